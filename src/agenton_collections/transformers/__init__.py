"""Transformers by target framework; import the module of the one you need."""

__all__: list[str] = []
