"""`python -m tests.faulty_sandbox BUNDLE [options of sandbox serve] --fault NAME`: the same ready line, the same end."""

import click

from evalkit.console import run
from sandbox.cli import serve
from tests.faulty_sandbox.faults import FAULTS, plant


def _plant(context: click.Context, option: click.Parameter, name: str) -> None:
    plant(name)


# The product's command as it is, and one option more.
_OPTION = click.Option(
    ["--fault"],
    type=click.Choice(list(FAULTS)),
    default="none",
    show_default=True,
    expose_value=False,
    callback=_plant,
)
_COMMAND = click.Command(
    "faulty_sandbox", callback=serve.callback, params=[*serve.params, _OPTION], help=serve.help
)

if __name__ == "__main__":
    run(_COMMAND)
