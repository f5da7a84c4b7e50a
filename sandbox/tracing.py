"""OpenTelemetry: the standard interceptor of opentelemetry-instrumentation-grpc, spans sent by OTLP.

Asked for by --otlp, or by the standard variables OTEL_EXPORTER_OTLP_ENDPOINT and OTEL_EXPORTER_OTLP_TRACES_ENDPOINT.
Everything else (sampling, resource, headers) is left to OpenTelemetry's own variables.
"""

import logging
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from evalkit.errors import InputError

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

log = logging.getLogger(__name__)

_LAST_SPANS_S = 2.0
_ENDPOINT_VARIABLES = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")


@dataclass(frozen=True)
class Tracing:
    """The interceptor to add, and what to call at the end: it sends the spans that are left."""

    interceptor: Any
    close: Callable[[], None]


def tracing(endpoint: str | None, environment: Mapping[str, str] = os.environ) -> Tracing | None:
    """Set up tracing where it is asked for; None where it isn't.

    Args:
        endpoint: URL of an OTLP collector (gRPC); None leaves it to the environment.
        environment: variables.

    Raises:
        InputError: asked for by option, and it is no URL or the extra isn't installed; OpenTelemetry can't use one of its
            variables.
    """
    if endpoint is None and not any(environment.get(name) for name in _ENDPOINT_VARIABLES):
        return None
    if endpoint is not None:
        _check_url(endpoint)
    try:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        import_interceptor()
    except ImportError:
        if endpoint is None:
            # The variables may be meant for others on this machine.
            log.warning("OTEL_EXPORTER_OTLP_* is set but OpenTelemetry isn't installed: no tracing")
            return None
        raise InputError("--otlp: OpenTelemetry isn't installed; install evalkit[tracing]") from None
    try:
        provider = TracerProvider(resource=Resource.create({"service.name": "evalkit-sandbox"}))
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))
    except Exception as error:  # its own kinds for some variables, ValueError for others
        raise InputError(
            f"OTEL_*: OpenTelemetry takes a variable of the environment amiss ({error}); correct or unset it"
        ) from None
    return Tracing(make_interceptor(provider), lambda: _shut_down(provider))


def _check_url(endpoint: str) -> None:
    # The exporter takes any text and fails at each export, in the log only.
    try:
        parts = urlsplit(endpoint)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise InputError(f"--otlp: {endpoint!r} is no URL; write for example http://127.0.0.1:4317")


def _shut_down(provider: "TracerProvider") -> None:
    """Send what is left; a collector that doesn't answer doesn't hold up the server's end."""
    last = threading.Thread(target=provider.shutdown, daemon=True)
    last.start()
    last.join(_LAST_SPANS_S)


def import_interceptor() -> Any:
    """The package that holds the interceptor."""
    from opentelemetry.instrumentation import grpc

    return grpc


def make_interceptor(provider: "TracerProvider") -> Any:
    """The standard server interceptor; health checks make no spans."""
    from opentelemetry.instrumentation.grpc import filters

    return import_interceptor().aio_server_interceptor(provider, filters.negate(filters.health_check()))
