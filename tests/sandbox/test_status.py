"""Errors become a code, a message and google.rpc details, in one place."""

from pathlib import Path
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2 as details
from google.rpc import status_pb2

from evalkit.wire import sandbox_pb2 as wire
from sandbox import errors
from sandbox.status import STATUS_OF
from tests.sandbox.inprocess import PacedEngine, on_a_loop, served
from tests.sandbox.processes import turn_request


def parts_of(error: grpc.aio.AioRpcError) -> dict[str, Any]:
    """The details by their type's name."""
    found = {}
    for key, value in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            status = status_pb2.Status.FromString(value)
            assert (status.code, status.message) == (error.code().value[0], error.details())
            for part in status.details:
                name = part.type_url.rpartition(".")[2]
                message = getattr(details, name)()
                part.Unpack(message)
                found[name] = message
    return found


def test_every_error_has_a_status() -> None:
    kinds = {
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type)
        and issubclass(kind, errors.SandboxError)
        and kind is not errors.SandboxError
    }
    assert kinds == set(STATUS_OF)
    assert len({kind.default_reason for kind in kinds}) == len(kinds)


@pytest.mark.parametrize(
    ("fault", "code", "reason", "retry_ms"),
    [
        (errors.CapacityError("full"), grpc.StatusCode.RESOURCE_EXHAUSTED, "CAPACITY", 1000),
        (errors.CapacityError("full", 2.5, reason="RATE"), grpc.StatusCode.RESOURCE_EXHAUSTED, "RATE", 2500),
        (errors.EngineUnavailableError("away"), grpc.StatusCode.UNAVAILABLE, "ENGINE_UNAVAILABLE", None),
        (ZeroDivisionError("swordfish"), grpc.StatusCode.INTERNAL, "FAULT", None),
    ],
)
def test_what_an_engine_raises_reaches_the_caller_as_a_rich_status(
    tiny_bundle: Path, fault: Exception, code: grpc.StatusCode, reason: str, retry_ms: int | None
) -> None:
    async def test() -> None:
        async with served(tiny_bundle, PacedEngine(fault=fault)) as stub:
            session = (await stub.OpenSession(wire.OpenSessionRequest())).session_id
            for streamed in (False, True):
                with pytest.raises(grpc.aio.AioRpcError) as failed:
                    if streamed:
                        async for _ in stub.StreamTurn(turn_request(session, "hello")):
                            pass
                    else:
                        await stub.Turn(turn_request(session, "hello"))
                parts = parts_of(failed.value)
                assert failed.value.code() is code
                assert (parts["ErrorInfo"].reason, parts["ErrorInfo"].domain) == (
                    reason,
                    "evalkit.sandbox.v1",
                )
                delay = parts["RetryInfo"].retry_delay.ToMilliseconds() if "RetryInfo" in parts else None
                assert delay == retry_ms
                assert parts["RequestInfo"].request_id
                assert "swordfish" not in failed.value.details()

    on_a_loop(test)


def test_a_bad_field_is_named_for_programs(tiny_bundle: Path) -> None:
    async def test() -> None:
        async with served(tiny_bundle, PacedEngine()) as stub:
            session = (await stub.OpenSession(wire.OpenSessionRequest())).session_id
            with pytest.raises(grpc.aio.AioRpcError) as failed:
                await stub.Turn(turn_request(session, "hello", top_p=7.0))
            (violation,) = parts_of(failed.value)["BadRequest"].field_violations
            assert (violation.field, violation.description) == ("sampling.top_p", "must lie in (0, 1]")
            with pytest.raises(grpc.aio.AioRpcError) as failed:
                await stub.OpenSession(wire.OpenSessionRequest(locale="x" * 100_000))
            assert failed.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            with pytest.raises(grpc.aio.AioRpcError) as failed:
                await stub.GetSession(wire.GetSessionRequest(session_id="x" * 100_000))
            assert failed.value.code() is grpc.StatusCode.INVALID_ARGUMENT

    on_a_loop(test)
