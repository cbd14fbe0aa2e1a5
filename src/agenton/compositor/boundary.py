"""The one rule by which configs, graph configs and session snapshots enter the compositor."""

from typing import Any, TypeVar

from pydantic import BaseModel

ModelT = TypeVar("ModelT", bound=BaseModel)


def validate_boundary(model_type: type[ModelT], value: Any) -> ModelT:
    """Validate ``value`` as ``model_type``.

    A model instance of any class is dumped and validated again, so that a DTO changed after its construction cannot
    skip validators. ``str`` and ``bytes`` are JSON text. Everything else is validated as it is.

    Raises:
        pydantic.ValidationError: the value does not fit, or the text is not JSON.
    """
    if isinstance(value, BaseModel):
        # The dump goes by field name, hence by_name; a wrongly assigned value is reported by the validation.
        return model_type.model_validate(value.model_dump(warnings=False), by_alias=True, by_name=True)
    if isinstance(value, str | bytes):
        return model_type.model_validate_json(value)
    return model_type.model_validate(value)
