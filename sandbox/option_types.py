"""Types of command-line options that several commands share."""

from typing import Any

import click

# Beyond these a number is a slip of the hand, and clocks, gRPC or memory would fail on it later with a stranger message.
MAX_COUNT = 1_000_000
MAX_WAIT_S = 86_400.0
MAX_IDLE_S = 366 * 86_400.0
MAX_UINT32 = 2**32 - 1


class FiniteRange(click.FloatRange):
    """A range of numbers. click's own lets `nan` pass, which is neither below nor above any bound."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The number; infinity and nan are refused like one out of range."""
        number = super().convert(value, param, ctx)
        if number - number != 0:
            self.fail(f"{value} is no finite number.", param, ctx)
        return number
