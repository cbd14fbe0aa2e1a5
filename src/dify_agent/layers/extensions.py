"""Layer types of installed packages: the entry point group ``dify_agent.layers``.

The name of an entry point is the type id; its value is a `Layer` class with that ``type_id``, or a `LayerProvider` for
one. Installing the package is what admits the type: requests can name only what the operator has installed.
"""

from collections.abc import Iterable
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final

from agenton.compositor import LayerProvider
from agenton.layers import Layer
from dify_agent.errors import DifyAgentError

LAYER_ENTRY_POINTS: Final = "dify_agent.layers"
RESERVED_PREFIXES: Final = ("dify.", "plain.", "pydantic_ai.", "scripted.")
"""Type ids of this server, those of later versions included."""


class LayerExtensionError(DifyAgentError):
    """An installed layer type cannot be used; the process does not start."""

    def __init__(self, entry: EntryPoint, problem: str) -> None:
        package = entry.dist.name if entry.dist is not None else "an unknown package"
        super().__init__(
            f"layer type '{entry.name}' of package '{package}' ({LAYER_ENTRY_POINTS}: {entry.value}) cannot be used: "
            f"{problem}; correct the package or uninstall it"
        )


def load_layer_extensions(entries: Iterable[EntryPoint] | None = None) -> tuple[LayerProvider[Any], ...]:
    """Providers of every installed layer type, in the order of their type ids. Imports the packages.

    Raises:
        LayerExtensionError: a package does not import, its object is no layer type, or its type id is taken.
    """
    found = entry_points(group=LAYER_ENTRY_POINTS) if entries is None else entries
    providers: dict[str, LayerProvider[Any]] = {}
    for entry in sorted(found, key=lambda entry: entry.name):
        if entry.name.startswith(RESERVED_PREFIXES):
            raise LayerExtensionError(entry, f"ids that begin with {', '.join(RESERVED_PREFIXES)} are the server's own")
        if entry.name in providers:
            raise LayerExtensionError(entry, "another package registers the same id")
        providers[entry.name] = _load(entry)
    return tuple(providers.values())


def _load(entry: EntryPoint) -> LayerProvider[Any]:
    try:
        value = entry.load()
    except Exception as error:
        raise LayerExtensionError(entry, f"it does not import ({type(error).__name__}: {error})") from error
    if isinstance(value, type) and issubclass(value, Layer):
        value = LayerProvider.from_layer_type(value)
    if not isinstance(value, LayerProvider):
        raise LayerExtensionError(entry, f"it is neither a Layer class nor a LayerProvider, but {value!r:.200}")
    if value.type_id != entry.name:
        raise LayerExtensionError(entry, f"its class says type_id = {value.type_id!r}")
    return value
