"""The real server with real certificates and tokens: who gets in, and who sees what."""

import json
import re
import signal
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from grpc_status import rpc_status

from evalkit.wire import sandbox_pb2 as wire
from evalkit.wire import sandbox_pb2_grpc
from tests.sandbox.processes import SERVICE, SERVING, SandboxProcess, eventually, status_of, turn_request
from tests.sandbox.security.conftest import TOKENS, SecuredServer

UNAVAILABLE = grpc.StatusCode.UNAVAILABLE
UNAUTHENTICATED = grpc.StatusCode.UNAUTHENTICATED


@contextmanager
def client(
    secured: SecuredServer, credentials: grpc.ChannelCredentials | None
) -> Iterator[sandbox_pb2_grpc.SandboxStub]:
    """A stub over a channel of its own; None for plaintext."""
    address = secured.server.address
    channel = grpc.secure_channel(address, credentials) if credentials else grpc.insecure_channel(address)
    with channel:
        yield sandbox_pb2_grpc.SandboxStub(channel)


def describe(stub: sandbox_pb2_grpc.SandboxStub) -> grpc.StatusCode:
    return status_of(lambda: stub.Describe(wire.DescribeRequest(), timeout=10))


def test_a_good_client_is_served(secured: SecuredServer) -> None:
    session = secured.server.open()
    assert secured.server.turn(session, "hello").usage.generated_tokens == 12


def test_both_engines_say_the_same_and_describe_names_them(
    secured: SecuredServer, server: SandboxProcess
) -> None:
    replies = {}
    for each in (secured.server, server):
        kind = each.stub.Describe(wire.DescribeRequest(), timeout=10).engine
        session = each.open(system_text="be kind")
        replies[kind] = [list(each.turn(session, text).token_ids) for text in ("hello", "my card is lost")]
    assert set(replies) == {"mindir", "onnx"}
    assert replies["mindir"] == replies["onnx"]


def test_plaintext_to_the_tls_port_is_refused(secured: SecuredServer) -> None:
    with client(secured, None) as stub:
        assert describe(stub) is UNAVAILABLE


def test_a_client_that_trusts_another_authority_doesnt_talk_to_us(secured: SecuredServer) -> None:
    key, cert = secured.files.client_pem
    with client(secured, grpc.ssl_channel_credentials(secured.files.stranger_ca_pem, key, cert)) as stub:
        assert describe(stub) is UNAVAILABLE


def test_a_missing_client_certificate_is_refused(secured: SecuredServer) -> None:
    token = grpc.access_token_call_credentials(TOKENS["bank-a"])
    bare = grpc.ssl_channel_credentials(secured.files.ca_pem)
    with client(secured, grpc.composite_channel_credentials(bare, token)) as stub:
        assert describe(stub) is UNAVAILABLE


def test_a_client_certificate_of_another_authority_is_refused(secured: SecuredServer) -> None:
    key, cert = secured.files.stranger_pem
    with client(secured, grpc.ssl_channel_credentials(secured.files.ca_pem, key, cert)) as stub:
        assert describe(stub) is UNAVAILABLE


@pytest.mark.parametrize("token", [None, "wrong", TOKENS["bank-a"] + "x"])
def test_a_missing_or_wrong_token_is_refused_everywhere_but_at_health(
    secured: SecuredServer, token: str | None
) -> None:
    with client(secured, secured.files.client(token)) as stub:
        turn = turn_request("s", "hello")
        calls: list[Callable[[], object]] = [
            lambda: stub.Describe(wire.DescribeRequest(), timeout=10),
            lambda: stub.OpenSession(wire.OpenSessionRequest(), timeout=10),
            lambda: stub.Turn(turn, timeout=10),
            lambda: list(stub.StreamTurn(turn, timeout=10)),
            lambda: stub.GetSession(wire.GetSessionRequest(session_id="s"), timeout=10),
            lambda: stub.CloseSession(wire.CloseSessionRequest(session_id="s"), timeout=10),
        ]
        assert [status_of(call) for call in calls] == [UNAUTHENTICATED] * len(calls)
    with grpc.secure_channel(secured.server.address, secured.files.client(token)) as channel:
        request = health_pb2.HealthCheckRequest(service=SERVICE)
        assert health_pb2_grpc.HealthStub(channel).Check(request, timeout=10).status == SERVING


def test_another_tenants_session_doesnt_exist(secured: SecuredServer) -> None:
    server = secured.server
    session = server.open(session_id="shared-name")
    server.turn(session, "my name is Maria", "t1")
    with client(secured, secured.files.client(TOKENS["bank-b"])) as other:
        request = turn_request(session, "what is my name", "t1")
        calls: list[Callable[[], object]] = [
            lambda: other.Turn(request, timeout=10),
            lambda: list(other.StreamTurn(request, timeout=10)),
            lambda: other.GetSession(wire.GetSessionRequest(session_id=session), timeout=10),
            lambda: other.CloseSession(wire.CloseSessionRequest(session_id=session), timeout=10),
        ]
        assert [status_of(call) for call in calls] == [grpc.StatusCode.NOT_FOUND] * len(calls)
        # The id itself is free for the other tenant, and its session is its own.
        own = other.OpenSession(wire.OpenSessionRequest(session_id=session), timeout=10)
        assert own.session_id == session
        reply = other.Turn(turn_request(session, "my name is Maria", "t1"), timeout=30)
        assert (reply.turn_index, reply.usage.reused_tokens) == (0, 0)
        other.CloseSession(wire.CloseSessionRequest(session_id=session), timeout=10)
    transcript = server.stub.GetSession(wire.GetSessionRequest(session_id=session), timeout=10)
    assert [turn.turn_id for turn in transcript.turns] == ["t1"]
    assert transcript.state == wire.OPEN


def test_s31_a_tenants_cached_prompt_isnt_found_by_another(secured: SecuredServer) -> None:
    """The same system text and words in two tenants' sessions: nothing is reused across."""
    text = "be kind to every caller and answer shortly"
    first = secured.server.open(system_text=text)
    secured.server.turn(first, "hello")
    with client(secured, secured.files.client(TOKENS["bank-b"])) as other:
        session = other.OpenSession(wire.OpenSessionRequest(system_text=text), timeout=10).session_id
        assert other.Turn(turn_request(session, "hello"), timeout=30).usage.reused_tokens == 0


def test_a_tenant_is_what_the_token_says(secured: SecuredServer) -> None:
    assert status_of(lambda: secured.server.open(tenant="bank-b")) is grpc.StatusCode.PERMISSION_DENIED
    assert status_of(lambda: secured.server.open(tenant="bank-a")) is grpc.StatusCode.OK


def test_tokens_are_read_again_without_a_restart(secured: SecuredServer) -> None:
    before = secured.tokens_file.read_text()
    try:
        with client(secured, secured.files.client("brand-new")) as stub:
            assert describe(stub) is UNAUTHENTICATED
            secured.tokens_file.write_text(before + "bank-c:brand-new\n")
            assert eventually(lambda: describe(stub) is grpc.StatusCode.OK, 10)
            secured.tokens_file.write_text(before)
            secured.server.process.send_signal(signal.SIGHUP)
            assert eventually(lambda: describe(stub) is UNAUTHENTICATED, 10)
    finally:
        secured.tokens_file.write_text(before)


def test_reflection_describes_the_services_and_needs_a_token(secured: SecuredServer) -> None:
    database = ProtoReflectionDescriptorDatabase(secured.server.channel)
    assert SERVICE in database.get_services()
    with grpc.secure_channel(secured.server.address, secured.files.client("wrong")) as channel:
        assert status_of(lambda: ProtoReflectionDescriptorDatabase(channel).get_services()) is UNAUTHENTICATED


def test_reflection_is_off_unless_asked(server: SandboxProcess) -> None:
    database = ProtoReflectionDescriptorDatabase(server.channel)
    assert status_of(database.get_services) is grpc.StatusCode.UNIMPLEMENTED


def test_the_log_is_json_with_request_ids_and_holds_no_secret_and_no_text(secured: SecuredServer) -> None:
    server = secured.server
    session = server.open(system_text="swordfish system")
    with_id = [("x-request-id", "request-4711")]
    _, call = server.stub.Turn.with_call(turn_request(session, "swordfish 7319", "t1"), metadata=with_id)
    assert ("x-request-id", "request-4711") in [tuple(pair) for pair in call.trailing_metadata()]
    status_of(lambda: server.turn(session, "swordfish " * 2000))

    def turns() -> list[dict[str, object]]:
        entries = [json.loads(line) for line in server.log.read_text().splitlines()]
        return [entry for entry in entries if entry.get("request_id") == "request-4711"]

    assert eventually(lambda: len(turns()) == 1, 5)
    (entry,) = turns()
    assert entry["method"] == f"/{SERVICE}/Turn"
    assert (entry["code"], entry["tenant"], entry["session_id"]) == ("OK", "bank-a", session)
    assert (entry["turn_id"], entry["generated_tokens"]) == ("t1", 12)
    log = server.log.read_text()
    assert "swordfish" not in log
    assert not any(token in log for token in TOKENS.values())


def test_a_refusal_carries_the_request_id_and_its_reason(secured: SecuredServer) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        secured.server.stub.Turn(turn_request("nobody", "hi"), metadata=[("x-request-id", "bad id")])
    status = rpc_status.from_call(refused.value)
    assert {detail.type_url.rpartition(".")[2] for detail in status.details} == {"ErrorInfo", "RequestInfo"}
    (request_id,) = [value for key, value in refused.value.trailing_metadata() if key == "x-request-id"]
    assert re.fullmatch("[0-9a-f]{32}", request_id)


def test_the_metrics_endpoint_speaks_prometheus_with_the_fields_usual_names(secured: SecuredServer) -> None:
    server = secured.server
    session = server.open(system_text="be kind to my account and to my card, " * 2)
    for text in ("hello", "my card is lost"):
        list(server.stream(session, text))
    status_of(lambda: server.turn("nobody", "hi"))
    assert server.ready["metrics"].startswith("127.0.0.1:")
    with urllib.request.urlopen(f"http://{server.ready['metrics']}/metrics", timeout=10) as reply:
        page = reply.read().decode()
    for name in (
        *("time_to_first_token_seconds_bucket", "inter_token_latency_seconds_bucket"),
        *("request_time_per_output_token_seconds_count", "e2e_request_latency_seconds_sum"),
        *("request_queue_time_seconds_count", "turn_overhead_seconds_count"),
        *("prefix_cache_queries_total", "prefix_cache_hits_total", "generation_tokens_total"),
        *("num_requests_running", "num_requests_waiting", "active_sessions", "engine_restarts_total"),
        'request_success_total{finished_reason="length"}',
        'grpc_server_handled_total{grpc_code="NOT_FOUND",grpc_method="Turn"}',
    ):
        assert f"sandbox_{name}" in page, name
    values = dict(line.rsplit(" ", 1) for line in page.splitlines() if not line.startswith("#"))
    first_tokens = float(values["sandbox_time_to_first_token_seconds_count"])
    gaps = float(values["sandbox_inter_token_latency_seconds_count"])
    assert first_tokens >= 2
    assert gaps >= 11 * 2
    assert (
        0
        < float(values["sandbox_prefix_cache_hits_total"])
        < float(values["sandbox_prefix_cache_queries_total"])
    )
    assert float(values["sandbox_active_sessions"]) >= 1
    assert float(values["sandbox_num_requests_waiting"]) == 0
    assert "bank-a" not in page and session not in page
