"""The path that the diagnosing commands take: an empty one is refused, where `Path("")` would mean this folder."""

from pathlib import Path
from typing import Any

import click


class _GivenPath(click.Path):
    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            self.fail("the path is empty; is a variable of the shell unset?", param, ctx)
        return super().convert(value, param, ctx)


PATH = _GivenPath(path_type=Path)
