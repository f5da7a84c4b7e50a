"""The log: JSON or text, with the call's id, and never with what somebody said."""

import asyncio
import gc
import json
import logging
import sys
from functools import partial
from pathlib import Path

import grpc.aio
import pytest

from evalkit.wire import sandbox_pb2 as wire
from sandbox.calls import Call, begin_call, end_call
from sandbox.logs import JsonFormatter, TextFormatter, log_loop_fault
from tests.sandbox.inprocess import PacedEngine, on_a_loop, served
from tests.sandbox.processes import turn_request

SAID = "-".join(("sword", "fish"))  # in no line of source


def record(message: str = "call ended", **extra: object) -> logging.LogRecord:
    return logging.makeLogRecord({"name": "sandbox.calls", "levelname": "INFO", "msg": message, **extra})


def failed() -> logging.LogRecord:
    try:
        try:
            raise ValueError(SAID)
        except ValueError as error:
            raise KeyError(SAID) from error
    except KeyError:
        return record("a call failed", exc_info=sys.exc_info())


def test_a_line_of_json_holds_the_calls_id_and_the_events_fields() -> None:
    token = begin_call(Call("/x/Turn", "request-1"))
    try:
        entry = json.loads(JsonFormatter().format(record(fields={"code": "OK", "ms": 1.5})))
    finally:
        end_call(token)
    assert entry["time"].endswith("+00:00")
    del entry["time"]
    assert entry == {
        "level": "INFO",
        "logger": "sandbox.calls",
        "message": "call ended",
        "request_id": "request-1",
        "code": "OK",
        "ms": 1.5,
    }


def test_an_exception_shows_type_and_place_but_not_its_message() -> None:
    for line in (JsonFormatter().format(failed()), TextFormatter().format(failed())):
        assert "KeyError" in line and "ValueError" in line and "test_logs.py" in line
        assert "KeyError: " not in line
        assert SAID not in line
    assert "\n" not in JsonFormatter().format(failed())


def test_text_quotes_what_could_break_or_fake_a_line() -> None:
    line = TextFormatter().format(record(fields={"code": "OK", "session_id": "a b=c\nd", "empty": ""}))
    assert line.endswith("call ended code=OK session_id='a b=c\\nd' empty=''")
    assert "\n" not in line


def test_an_exception_that_nobody_awaited_isnt_quoted_either(caplog: pytest.LogCaptureFixture) -> None:
    async def lose_one() -> None:
        asyncio.get_running_loop().set_exception_handler(log_loop_fault)

        async def fail() -> None:
            raise ValueError(SAID)

        task = asyncio.create_task(fail())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        del task
        gc.collect()

    asyncio.run(lose_one())
    lines = [JsonFormatter().format(entry) for entry in caplog.records if entry.name == "sandbox.logs"]
    assert len(lines) == 1
    assert "ValueError" in lines[0]
    assert SAID not in lines[0]


@pytest.mark.parametrize("log_text", [False, True])
def test_conversations_are_logged_only_on_request(
    tiny_bundle: Path, caplog: pytest.LogCaptureFixture, log_text: bool
) -> None:
    caplog.set_level(logging.INFO, "sandbox")

    async def test() -> None:
        async with served(tiny_bundle, PacedEngine(text="reply "), log_text=log_text) as stub:
            session = (await stub.OpenSession(wire.OpenSessionRequest())).session_id
            await stub.Turn(turn_request(session, SAID))

    on_a_loop(test)
    (line,) = [
        JsonFormatter().format(entry)
        for entry in caplog.records
        if entry.__dict__["fields"]["method"].endswith("/Turn")
    ]
    assert (SAID in line, "reply reply" in line) == (log_text, log_text)


def test_every_call_of_a_session_names_it_and_a_made_turn_id_is_told(
    tiny_bundle: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "sandbox")
    reply = wire.TurnReply()

    async def test() -> None:
        async with served(tiny_bundle, PacedEngine()) as stub:
            await stub.OpenSession(wire.OpenSessionRequest(session_id="mine"))
            reply.CopyFrom(await stub.Turn(turn_request("mine", "hello")))
            await stub.GetSession(wire.GetSessionRequest(session_id="mine"))
            await stub.CloseSession(wire.CloseSessionRequest(session_id="mine"))
            for call in (
                partial(stub.OpenSession, wire.OpenSessionRequest(session_id="mine")),
                partial(stub.GetSession, wire.GetSessionRequest(session_id="nobody's")),
                partial(stub.CloseSession, wire.CloseSessionRequest(session_id="nobody's")),
            ):
                with pytest.raises(grpc.aio.AioRpcError):
                    await call()

    on_a_loop(test)
    lines = [entry.__dict__["fields"] for entry in caplog.records if hasattr(entry, "fields")]
    assert [(line["method"].rpartition("/")[2], line["session_id"]) for line in lines] == [
        ("OpenSession", "mine"),
        ("Turn", "mine"),
        ("GetSession", "mine"),
        ("CloseSession", "mine"),
        ("OpenSession", "mine"),
        ("GetSession", "nobody's"),
        ("CloseSession", "nobody's"),
    ]
    assert lines[1]["turn_id"] == reply.turn_id != ""
