"""Clients of `benchmarks/serving_grpc.py`, in a process of their own: sessions that talk at once over gRPC."""

import asyncio
import itertools
import json
import math
import random
import sys
import time
from typing import Any

import grpc.aio

from evalkit.wire import sandbox_pb2 as wire
from evalkit.wire import sandbox_pb2_grpc

TEXTS = (
    "hello, my name is Maria",
    "my card is lost, can you block it",
    "what is my balance",
    "how long does a transfer take",
    "thank you, that helped",
)


async def talk(settings: dict[str, Any]) -> list[dict[str, int]]:
    """Run all sessions; for each turn its nanoseconds at the client (to the reply, and to the status), in the engine, in the server."""
    async with grpc.aio.insecure_channel(settings["address"]) as channel:
        stub = sandbox_pb2_grpc.SandboxStub(channel)
        begin_s = time.monotonic() + 0.2
        sessions = [_session(stub, settings, number, begin_s) for number in range(settings["sessions"])]
        return [turn for turns in await asyncio.gather(*sessions) for turn in turns]


async def _session(stub: Any, settings: dict[str, Any], number: int, begin_s: float) -> list[dict[str, int]]:
    chance = random.Random(f"{settings['seed']}/{number}")
    session = (await stub.OpenSession(wire.OpenSessionRequest())).session_id
    # Users of a paced run don't speak in chorus; those of an eager run all begin at once and never pause.
    pause_s = settings["pause_s"]
    await asyncio.sleep(max(0.0, begin_s - time.monotonic()) + pause_s * chance.random())
    turns = []
    # A paced run ends for all at once: with some gone the rest would have the machine to themselves.
    end_s = begin_s + pause_s * (settings["turns"] + 0.5) if pause_s else math.inf
    for turn in itertools.count():
        if time.monotonic() >= end_s or (turn == settings["turns"] and not pause_s):
            break
        request = wire.TurnRequest(
            session_id=session,
            user_text=TEXTS[(turn + number) % len(TEXTS)],
            sampling=wire.Sampling(max_new_tokens=settings["new_tokens"]),
        )
        reply, measured = await _turn(stub, request)
        if reply.state == wire.OPEN:
            turns.append(measured)
        else:  # handed over: the engine took no part, and the session takes no more turns
            session = (await stub.OpenSession(wire.OpenSessionRequest())).session_id
        if pause_s:
            await asyncio.sleep(chance.expovariate(1 / pause_s))
    await stub.CloseSession(wire.CloseSessionRequest(session_id=session))
    return turns


async def _turn(stub: Any, request: wire.TurnRequest) -> tuple[wire.TurnReply, dict[str, int]]:
    started_ns = reply_ns = time.perf_counter_ns()
    reply = None
    async for chunk in stub.StreamTurn(request, timeout=120):
        if chunk.HasField("reply"):
            reply, reply_ns = chunk.reply, time.perf_counter_ns()
    status_ns = time.perf_counter_ns()
    assert reply is not None
    timings = reply.timings
    work_ns = timings.prefill_ns + timings.decode_ns
    return reply, {
        "begin_ns": started_ns,
        "client_ns": reply_ns - started_ns,
        "status_ns": status_ns - started_ns,
        "server_ns": timings.total_ns,
        "engine_ns": timings.queue_ns + work_ns,
        "work_ns": work_ns,
        "flow_ns": timings.intent_ns + timings.handover_ns + timings.satisfaction_ns,
    }


def main() -> None:
    """Read one JSON object of settings from stdin, print the turns as JSON."""
    settings = json.load(sys.stdin)
    turns = asyncio.run(talk(settings))
    sys.stdout.write(json.dumps(turns) + "\n")


if __name__ == "__main__":
    main()
