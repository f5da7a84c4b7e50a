"""What `sandbox serve` was asked for."""

from dataclasses import dataclass, field
from pathlib import Path

from evalkit.scenario.model_schema import EndpointRef
from sandbox.engine.pacing import STREAM_INTERVAL_MS
from sandbox.engine.step_model import EngineName
from sandbox.tls import TlsOptions


@dataclass(frozen=True)
class ServeOptions:
    """Options of the server, one each of the command line's.

    Attributes:
        bundle: bundle folder; None where an endpoint is served.
        endpoint: a model that somebody else serves, in place of a bundle.
        flow: flow folder, or None.
        engine: which graph of the bundle; None takes the best that it has.
        listen: HOST:PORT, port 0 for a free one.
        max_sessions: live sessions at most.
        max_waiting: turns that may wait for a place in the batch.
        idle_ttl_s: how long an untouched session is kept.
        kv_mib: budget of the engine's cache.
        engine_timeout_s: an engine that doesn't answer for so long hangs; it is killed and started again.
        stream_interval_ms: least time between two pieces of a streamed reply.
        grace_s: how long turns may still run after SIGTERM.
        tls: files of TLS.
        allow_plaintext: other machines may connect without TLS.
        tokens_file: bearer tokens, or None to let everybody in.
        reflection: whether the server describes its services to whoever asks.
        metrics: HOST:PORT of the Prometheus endpoint, or None.
        otlp: URL of an OpenTelemetry collector, or None for what the environment says.
        log_text: whether conversations go to the log.
    """

    bundle: Path | None = None
    endpoint: EndpointRef | None = None
    flow: Path | None = None
    engine: EngineName | None = None
    listen: str = "127.0.0.1:0"
    max_sessions: int = 64
    max_waiting: int = 64
    idle_ttl_s: float = 1800.0
    kv_mib: int = 1024
    engine_timeout_s: float = 120.0
    stream_interval_ms: float = STREAM_INTERVAL_MS
    grace_s: float = 10.0
    tls: TlsOptions = field(default_factory=TlsOptions)
    allow_plaintext: bool = False
    tokens_file: Path | None = None
    reflection: bool = False
    metrics: str | None = None
    otlp: str | None = None
    log_text: bool = False
