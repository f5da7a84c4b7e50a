"""What the server counts. Names are those that vLLM uses, with `sandbox_` before them; no label names a tenant or a session."""

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import grpc

from evalkit.errors import InputError
from sandbox.calls import Call
from sandbox.domain import FinishReason, TurnPiece, TurnReply
from sandbox.engine.requests import RestartReason
from sandbox.interceptor import HEALTH_PREFIX, CallObserver
from sandbox.port import check_address

# Seconds, from a tenth of a millisecond to a minute.
_BUCKETS = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.015, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0),
)


class TurnMeter(Protocol):
    """Follows one turn."""

    def piece(self, piece: TurnPiece) -> None:
        """A piece of the reply is on its way to the caller."""
        ...


class Metrics(CallObserver, Protocol):
    """Counts calls and turns."""

    def turn(self) -> TurnMeter:
        """Follow a turn that begins now."""
        ...


class NoMetrics:
    """Counts nothing."""

    def call_ended(self, call: Call, code: grpc.StatusCode, seconds: float) -> None:
        """Nothing to count."""

    def turn(self) -> TurnMeter:
        """A meter that measures nothing."""
        return self

    def piece(self, piece: TurnPiece) -> None:
        """Nothing to measure."""


class Gauges(Protocol):
    """What is read at the moment of a scrape, from the scrape's own thread: it must not wait."""

    def active_sessions(self) -> int:
        """Open and handed-over sessions."""
        ...

    def requests(self) -> tuple[int, int]:
        """Turns running and waiting."""
        ...

    def kv_cache_usage(self) -> float | None:
        """Share of the cache memory in use, 0..1; None if the engine doesn't say."""
        ...

    def engine_restarts(self) -> Mapping[RestartReason, int]:
        """How often the engine was started again, by reason; empty if it has no process of ours."""
        ...


class PrometheusMetrics:
    """Counters and histograms for Prometheus, and the endpoint that shows them."""

    def __init__(self, gauges: Gauges) -> None:
        """Make a registry of our own.

        Raises:
            InputError: the extra isn't installed.
        """
        try:
            import prometheus_client as prometheus
        except ImportError:
            raise InputError(
                "--metrics: prometheus-client isn't installed; install evalkit[metrics]"
            ) from None
        self._registry = prometheus.CollectorRegistry()
        self._registry.register(_GaugeCollector(gauges))

        def histogram(name: str, text: str) -> Any:
            return prometheus.Histogram(f"sandbox_{name}", text, buckets=_BUCKETS, registry=self._registry)

        def counter(name: str, text: str, *labels: str) -> Any:
            return prometheus.Counter(f"sandbox_{name}", text, labels, registry=self._registry)

        self.first_token = histogram("time_to_first_token_seconds", "Arrival of a turn to its first token.")
        self.inter_token = histogram("inter_token_latency_seconds", "Between two tokens of a turn.")
        self._per_token = histogram(
            "request_time_per_output_token_seconds", "Mean time of a turn's tokens after the first."
        )
        self._e2e = histogram("e2e_request_latency_seconds", "A whole answered turn.")
        self._queue = histogram("request_queue_time_seconds", "Waiting in the engine.")
        self._prefill = histogram("request_prefill_time_seconds", "Work up to the first token.")
        self._decode = histogram("request_decode_time_seconds", "Work on the tokens after the first.")
        self._overhead = histogram("turn_overhead_seconds", "A turn less its time inside the engine.")
        self._flow = prometheus.Histogram(
            "sandbox_flow_time_seconds",
            "The business flow's parts of a turn.",
            ("part",),
            buckets=_BUCKETS,
            registry=self._registry,
        )
        self._prompt_tokens = counter("prompt_tokens", "Tokens of prompts.")
        self._generated_tokens = counter("generation_tokens", "Tokens generated.")
        self._queries = counter("prefix_cache_queries", "Prompt tokens looked for in the cache.")
        self._hits = counter("prefix_cache_hits", "Prompt tokens found in the cache.")
        self._success = counter("request_success", "Answered turns.", "finished_reason")
        self._rejections = counter("admission_rejections", "Calls refused for want of capacity.", "reason")
        self._handled = counter("grpc_server_handled", "Calls by their status.", "grpc_method", "grpc_code")

    def serve(self, listen: str) -> tuple[str, Callable[[], None]]:
        """Answer scrapes on HOST:PORT from a thread; the address bound, and how to stop.

        Raises:
            InputError: the address can't be used.
        """
        from prometheus_client import start_http_server

        host, port = check_address(listen, "--metrics"), listen.rpartition(":")[2]
        try:
            server, _ = start_http_server(int(port), host.strip("[]"), self._registry)
        except OSError as error:
            raise InputError(
                f"--metrics: can't listen on {listen} ({error.strerror}); choose another port or host"
            ) from None
        return f"{host}:{server.server_port}", server.shutdown

    def call_ended(self, call: Call, code: grpc.StatusCode, seconds: float) -> None:
        """Count the call by its status; a refusal also by its reason."""
        if call.method.startswith(HEALTH_PREFIX):
            return
        self._handled.labels(call.method.rpartition("/")[2], code.name).inc()
        if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
            self._rejections.labels(call.reason or "UNKNOWN").inc()

    def turn(self) -> TurnMeter:
        """Follow a turn."""
        return _PrometheusTurn(self)

    def turn_ended(self, reply: TurnReply, after_first_ns: int) -> None:
        """Count an answered turn.

        Args:
            reply: the answer.
            after_first_ns: from its first piece to the last one with a token; 0 where all came at once.
        """
        usage, timings = reply.usage, reply.timings
        self._success.labels(reply.finish_reason.value).inc()
        self._e2e.observe(timings.total_ns / 1e9)
        for part, spent_ns, made in (
            ("intent", timings.intent_ns, reply.intent),
            ("handover", timings.handover_ns, reply.handover),
            ("satisfaction", timings.satisfaction_ns, reply.satisfaction),
        ):
            if made is not None:
                self._flow.labels(part).observe(spent_ns / 1e9)
        if reply.finish_reason is FinishReason.HANDED_OVER:
            return  # the engine took no part
        engine_ns = timings.queue_ns + timings.prefill_ns + timings.decode_ns
        self._overhead.observe(max(0, timings.total_ns - engine_ns) / 1e9)
        self._queue.observe(timings.queue_ns / 1e9)
        self._prefill.observe(timings.prefill_ns / 1e9)
        self._decode.observe(timings.decode_ns / 1e9)
        # A served model may tell none of these: what is unknown isn't counted.
        if usage.generated_tokens is not None:
            self._generated_tokens.inc(usage.generated_tokens)
            if usage.generated_tokens > 1 and after_first_ns > 0:
                # What the reader waits, as everywhere; decode_ns is only the turn's share of the steps it was in.
                self._per_token.observe(after_first_ns / 1e9 / (usage.generated_tokens - 1))
        if usage.prompt_tokens is not None:
            self._prompt_tokens.inc(usage.prompt_tokens)
            if usage.reused_tokens is not None:
                self._queries.inc(usage.prompt_tokens)
                self._hits.inc(usage.reused_tokens)


class _PrometheusTurn:
    def __init__(self, metrics: PrometheusMetrics) -> None:
        self._metrics = metrics
        self._last_ns = time.perf_counter_ns()
        self._first_ns: int | None = None

    def piece(self, piece: TurnPiece) -> None:
        if piece.repeated:
            return
        if piece.token_ids or (piece.text and self._is_new(piece)):
            now_ns = time.perf_counter_ns()
            waited_s = (now_ns - self._last_ns) / 1e9
            tokens = max(1, len(piece.token_ids))
            if self._first_ns is None:
                self._metrics.first_token.observe(waited_s)
                tokens, waited_s, self._first_ns = tokens - 1, 0.0, now_ns
            # Tokens that came together share the time since the piece before.
            for _ in range(tokens):
                self._metrics.inter_token.observe(waited_s / tokens)
            self._last_ns = now_ns
        if piece.reply is not None:
            began_ns = self._last_ns if self._first_ns is None else self._first_ns
            self._metrics.turn_ended(piece.reply, self._last_ns - began_ns)

    def _is_new(self, piece: TurnPiece) -> bool:
        """Whether a text without ids counts as a token; what was held back for a stop string follows one that did."""
        if piece.reply is None:
            return True
        return self._first_ns is None and piece.reply.finish_reason is not FinishReason.HANDED_OVER


class _GaugeCollector:
    def __init__(self, gauges: Gauges) -> None:
        self._gauges = gauges

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        gauges = self._gauges
        running, waiting = gauges.requests()
        yield GaugeMetricFamily("sandbox_num_requests_running", "Turns in the engine's batch.", value=running)
        yield GaugeMetricFamily("sandbox_num_requests_waiting", "Turns that wait for a place.", value=waiting)
        yield GaugeMetricFamily(
            "sandbox_active_sessions",
            "Sessions not closed and not forgotten.",
            value=gauges.active_sessions(),
        )
        usage = gauges.kv_cache_usage()
        if usage is not None:
            yield GaugeMetricFamily(
                "sandbox_kv_cache_usage_perc",
                "Share of the cache memory in use; 1 is all of it.",
                value=usage,
            )
        restarts = CounterMetricFamily(
            "sandbox_engine_restarts", "How often the engine was started again.", labels=["reason"]
        )
        for reason, count in gauges.engine_restarts().items():
            restarts.add_metric([reason], count)
        yield restarts
