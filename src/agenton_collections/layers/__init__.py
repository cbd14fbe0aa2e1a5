"""Ready-made layers, by family: ``plain`` and ``pydantic_ai``."""

__all__: list[str] = []
