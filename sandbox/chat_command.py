"""`sandbox chat`: options, and the terminal or pipe behind them. Heavy imports wait until it runs."""

from pathlib import Path
from typing import Any

import click

from sandbox.option_types import MAX_UINT32, MAX_WAIT_S, FiniteRange

_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command()
@click.argument("address", metavar="HOST:PORT")
@click.option("--system", "system_text", default="", help="System text that stands before the conversation.")
@click.option(
    "--locale", type=click.Choice(["en", "zh"]), default=None, help="Language of the flow's replies."
)
@click.option("--tenant", default="", help="Whose session it is; a server with tokens knows it.")
@click.option(
    "--max-new-tokens",
    type=click.IntRange(min=1, max=MAX_UINT32),
    default=None,
    help="Longest reply. Default: the server's.",
)
@click.option(
    "--temperature", type=FiniteRange(min=0, max=1000), default=0.0, show_default=True, help="0 is greedy."
)
@click.option(
    "--top-k",
    type=click.IntRange(min=0, max=MAX_UINT32),
    default=0,
    show_default=True,
    help="0 for all tokens.",
)
@click.option(
    "--top-p",
    type=FiniteRange(min=0, max=1, min_open=True),
    default=1.0,
    show_default=True,
    help="Draw from the most probable tokens of this total probability.",
)
@click.option(
    "--seed", type=click.IntRange(min=0, max=2**63 - 1), default=0, show_default=True, help="Of the draws."
)
@click.option("--stop", multiple=True, help="Text that ends a reply; may be given several times.")
@click.option(
    "--timeout-s",
    type=FiniteRange(min=0, max=MAX_WAIT_S, min_open=True),
    default=120.0,
    show_default=True,
    help="Deadline of a turn.",
)
@click.option("--tls-ca", type=_FILE, help="Authority that signed the server's certificate (PEM): use TLS.")
@click.option(
    "--tls-cert", type=_FILE, help="Own certificate (PEM), for servers that ask for one; needs --tls-key."
)
@click.option("--tls-key", type=_FILE, help="Key of --tls-cert (PEM).")
@click.option("--token-file", type=_FILE, help="File that holds the bearer token and nothing else.")
@click.option(
    "--json", "json_output", is_flag=True, help="Print the whole conversation as one JSON object at the end."
)
def chat(address: str, json_output: bool, **options: Any) -> None:
    """Talk to the model that a sandbox serves at HOST:PORT.

    In a terminal replies appear as they are generated, each with intent, hand-over, satisfaction and times under it;
    /help lists the commands. From a pipe every line is a turn, and the replies are printed as plain text.
    """
    import os

    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    from sandbox.chat_session import talk

    talk(address, json_output=json_output, **options)
