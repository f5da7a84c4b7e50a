"""The command line of the sandbox. Heavy imports wait until a command runs."""

from pathlib import Path
from typing import Any, NoReturn

import click
from click.core import ParameterSource

from evalkit.console import run
from evalkit.errors import InputError
from sandbox.chat_command import chat
from sandbox.endpoint_options import OPENAI, endpoint_options, served_model
from sandbox.option_types import MAX_COUNT, MAX_IDLE_S, MAX_WAIT_S, FiniteRange

_FOLDER = click.Path(file_okay=False, path_type=Path)
_FILE = click.Path(dir_okay=False, path_type=Path)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def cli() -> None:
    """Serve an exported model behind gRPC, inside a business flow."""


@cli.command()
@click.argument("bundle", type=_FOLDER, required=False)
@click.option(
    "--flow", type=_FOLDER, help="Flow folder: intent recogniser, hand-over policy, satisfaction predictor."
)
@click.option(
    "--engine",
    type=click.Choice(["mindir", "onnx", OPENAI]),
    help="Graphs to run. Default: onnx where the bundle has it and the device is a CPU, else mindir. openai: no bundle, "
    "but a served model behind --endpoint.",
)
@endpoint_options
@click.option(
    "--listen", default="127.0.0.1:0", show_default=True, metavar="HOST:PORT", help="Port 0 takes a free one."
)
@click.option(
    "--max-sessions",
    type=click.IntRange(min=1, max=MAX_COUNT),
    default=64,
    show_default=True,
    help="Live sessions at most.",
)
@click.option(
    "--max-waiting",
    type=click.IntRange(min=1, max=MAX_COUNT),
    default=64,
    show_default=True,
    help="Turns that may wait for a place in the batch; more are refused.",
)
@click.option(
    "--idle-ttl-s",
    type=FiniteRange(min=0, max=MAX_IDLE_S, min_open=True),
    default=1800.0,
    show_default=True,
    help="An untouched session is forgotten after this time.",
)
@click.option(
    "--kv-mib",
    type=click.IntRange(min=1),
    default=1024,
    show_default=True,
    help="Memory of the engine's cache.",
)
@click.option(
    "--engine-timeout-s",
    type=FiniteRange(min=1, max=MAX_WAIT_S),
    default=120.0,
    show_default=True,
    help="An engine process that doesn't answer for so long hangs: it is killed and started again.",
)
@click.option(
    "--grace-s",
    type=FiniteRange(min=0, max=MAX_WAIT_S),
    default=10.0,
    show_default=True,
    help="Time for running turns after SIGTERM.",
)
@click.option(
    "--stream-interval-ms",
    type=FiniteRange(min=0, max=1000),
    default=20.0,
    show_default=True,
    help="Least time between two pieces of a streamed reply; 0 sends every token by itself.",
)
@click.option("--tls-cert", type=_FILE, help="Certificate chain (PEM); needs --tls-key.")
@click.option("--tls-key", type=_FILE, help="Private key of --tls-cert (PEM, no passphrase).")
@click.option("--client-ca", type=_FILE, help="Clients must show a certificate of these authorities (PEM).")
@click.option(
    "--allow-plaintext", is_flag=True, help="Let --listen be reached from other machines without TLS."
)
@click.option(
    "--tokens-file",
    type=_FILE,
    help="Lines TENANT:TOKEN or TENANT:sha256:HEX. Callers need a token; read again when it changes.",
)
@click.option("--reflection", is_flag=True, help="Describe the services to whoever asks (gRPC reflection).")
@click.option("--metrics", metavar="HOST:PORT", help="Prometheus endpoint; port 0 takes a free one.")
@click.option(
    "--otlp",
    metavar="URL",
    help="Send traces to this OpenTelemetry collector (OTLP over gRPC). Default: OTEL_EXPORTER_OTLP_ENDPOINT.",
)
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Lines of the log on stderr.",
)
@click.option("--log-text", is_flag=True, help="Log what users and the model say. Off: no text in the log.")
def serve(
    bundle: Path | None,
    engine: str | None,
    log_format: str,
    tls_cert: Path | None,
    tls_key: Path | None,
    client_ca: Path | None,
    endpoint: str | None,
    model: str | None,
    declare: str | None,
    api_key_env: str | None,
    endpoint_timeout_s: float,
    **options: Any,
) -> None:
    """Serve BUNDLE, or a model behind an endpoint, until SIGTERM; prints one JSON line when ready."""
    import asyncio
    import os
    import signal

    # From here on both end the server with 0; the loop's own handlers follow when there is one.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _end_while_starting)
    # gRPC's own lines on stderr repeat what we report, in words for its developers; read when it is imported.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    from sandbox.logs import configure_logging
    from sandbox.options import ServeOptions
    from sandbox.server import serve
    from sandbox.tls import TlsOptions

    configure_logging(log_format)
    served = served_model(
        bundle,
        engine,
        endpoint=endpoint,
        model=model,
        declare=declare,
        api_key_env=api_key_env,
        endpoint_timeout_s=endpoint_timeout_s,
    )
    source = click.get_current_context().get_parameter_source
    for name, option in (
        ("kv_mib", "--kv-mib"),
        ("engine_timeout_s", "--engine-timeout-s"),
        ("stream_interval_ms", "--stream-interval-ms"),
    ):
        if served is not None and source(name) is not ParameterSource.DEFAULT:
            raise InputError(
                f"{option}: belongs to a bundle; --engine openai runs no model here, leave one of them out"
            )
    options |= {"bundle": bundle, "endpoint": served, "engine": None if served else engine}
    asyncio.run(serve(ServeOptions(tls=TlsOptions(tls_cert, tls_key, client_ca), **options)))


def _end_while_starting(number: int, frame: object) -> NoReturn:
    raise SystemExit(0)


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
