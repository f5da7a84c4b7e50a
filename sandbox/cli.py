"""The command line of the sandbox. Heavy imports wait until a command runs."""

from pathlib import Path

import click

from evalkit.console import run
from sandbox.chat_command import chat

_FOLDER = click.Path(file_okay=False, path_type=Path)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def cli() -> None:
    """Serve an exported model behind gRPC, inside a business flow."""


@cli.command()
@click.argument("bundle", type=_FOLDER)
@click.option(
    "--flow", type=_FOLDER, help="Flow folder: intent recogniser, hand-over policy, satisfaction predictor."
)
@click.option(
    "--listen", default="127.0.0.1:0", show_default=True, metavar="HOST:PORT", help="Port 0 takes a free one."
)
@click.option(
    "--max-sessions", type=click.IntRange(min=1), default=64, show_default=True, help="Live sessions at most."
)
@click.option(
    "--kv-mib",
    type=click.IntRange(min=1),
    default=1024,
    show_default=True,
    help="Memory of the engine's cache.",
)
@click.option(
    "--grace-s",
    type=click.FloatRange(min=0),
    default=10.0,
    show_default=True,
    help="Time for running turns after SIGTERM.",
)
def serve(
    bundle: Path, flow: Path | None, listen: str, max_sessions: int, kv_mib: int, grace_s: float
) -> None:
    """Serve BUNDLE until SIGTERM; prints one JSON line when ready."""
    import asyncio
    import logging
    import os

    # gRPC's own lines on stderr repeat what we report, in words for its developers; read when it is imported.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    from sandbox.server import ServeOptions, serve

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    asyncio.run(serve(ServeOptions(bundle, flow, listen, max_sessions, kv_mib, grace_s)))


@cli.command()
@click.argument("kind", type=click.Choice(["intent", "satisfaction"]))
@click.argument("data", type=click.Path(path_type=Path), metavar="DATA.csv")
@click.option("--out", type=_FOLDER, required=True, help="Folder for the artefact and its model card.")
@click.option(
    "--rated", is_flag=True, help="The examples were rated by people, not generated; the card says so."
)
def fit(kind: str, data: Path, out: Path, rated: bool) -> None:
    """Train an artefact of a flow from DATA.csv and measure it by cross-validation.

    intent: columns text, intent and optionally locale. satisfaction: columns user_text, reply, turn_index,
    failed_turns, satisfaction (1 to 5).
    """
    from sandbox.business.fit import fit_intent, fit_satisfaction

    card = (fit_intent if kind == "intent" else fit_satisfaction)(data, out, rated=rated)
    click.echo(card.summary())


cli.add_command(chat)


def main() -> None:
    """Entry point of the console script."""
    run(cli)
