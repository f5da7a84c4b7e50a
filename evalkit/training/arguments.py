"""Fields of what `RunContext.original_args()` gives: a dict whose missing attributes raise KeyError in MindSpore."""

from collections.abc import Mapping
from typing import Any


def argument(arguments: Any, name: str, default: Any = None) -> Any:
    """The field `name`, or `default` where this training has none."""
    if isinstance(arguments, Mapping):
        return arguments.get(name, default)
    return getattr(arguments, name, default)
