"""Open-loop load from a process of its own: `python -m tests.sandbox.load.arrivals ADDRESS FILE --sessions N …`.

Sessions arrive as a Poisson process whatever the server does; each says its turns one after the other and closes. One
JSON object goes to FILE: for each session what came of each turn. Times are measured from the planned arrival.
"""

import argparse
import asyncio
import json
import random
import time
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from evalkit.wire import sandbox_pb2 as wire
from evalkit.wire import sandbox_pb2_grpc
from tests.sandbox.load.scripts import SCRIPTS, turn_request

CALL_S = 120


async def run(
    address: str, sessions: int, turns: int, rate: float, cycle: str, channels: int, new_tokens: int
) -> list[Any]:
    """Let all sessions arrive and wait for their ends."""
    chance = random.Random(cycle)
    opened = [
        grpc.aio.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)])
        for _ in range(channels)
    ]
    stubs = [sandbox_pb2_grpc.SandboxStub(channel) for channel in opened]
    begun = time.monotonic()
    arrival = 0.0
    tasks = []
    for number in range(sessions):
        arrival += chance.expovariate(rate)
        tasks.append(
            asyncio.create_task(
                _session(
                    stubs[number % channels],
                    f"{cycle}-{number}",
                    number % SCRIPTS,
                    turns,
                    begun + arrival,
                    new_tokens,
                )
            )
        )
    results = await asyncio.gather(*tasks)
    for channel in opened:
        await channel.close()
    return results


async def _session(
    stub: Any, name: str, script: int, turns: int, planned_s: float, new_tokens: int
) -> dict[str, Any]:
    await asyncio.sleep(max(0.0, planned_s - time.monotonic()))
    said: list[dict[str, Any]] = []
    result: dict[str, Any] = {"session": name, "script": script, "turns": said}
    try:
        await stub.OpenSession(wire.OpenSessionRequest(session_id=name), timeout=CALL_S)
        due_s = planned_s
        for turn in range(turns):
            said.append(await _turn(stub, name, script, turn, due_s, new_tokens))
            if said[-1]["code"] != "OK":
                break
            due_s = time.monotonic()
        transcript = await stub.GetSession(wire.GetSessionRequest(session_id=name), timeout=CALL_S)
        result["transcript"] = [turn.turn_id for turn in transcript.turns]
        await stub.CloseSession(wire.CloseSessionRequest(session_id=name), timeout=CALL_S)
        result["code"] = "OK"
    except grpc.aio.AioRpcError as error:
        result["code"] = error.code().name
    return result


async def _turn(
    stub: Any, name: str, script: int, turn: int, due_s: float, new_tokens: int
) -> dict[str, Any]:
    try:
        joined: list[int] = []
        reply = None
        async for chunk in stub.StreamTurn(turn_request(name, script, turn, new_tokens), timeout=CALL_S):
            joined.extend(chunk.token_ids)
            if chunk.HasField("reply"):
                reply = chunk.reply
        assert reply is not None
        right = (reply.session_id, reply.turn_id, reply.turn_index) == (name, f"{name}/{turn}", turn)
        code = "OK" if right and joined == list(reply.token_ids) else "CROSSED"
    except grpc.aio.AioRpcError as error:
        code, joined = error.code().name, []
    return {"code": code, "ids": joined, "s": time.monotonic() - due_s}


def main() -> None:
    """Parse, run, write."""
    parser = argparse.ArgumentParser()
    parser.add_argument("address")
    parser.add_argument("file", type=Path)
    parser.add_argument("--sessions", type=int, required=True)
    parser.add_argument("--turns", type=int, required=True)
    parser.add_argument("--rate", type=float, required=True, help="sessions that arrive a second")
    parser.add_argument("--cycle", required=True)
    parser.add_argument("--new-tokens", type=int, default=4)
    parser.add_argument("--channels", type=int, default=4)
    given = parser.parse_args()
    results = asyncio.run(
        run(
            given.address,
            given.sessions,
            given.turns,
            given.rate,
            given.cycle,
            given.channels,
            given.new_tokens,
        )
    )
    given.file.write_text(json.dumps(results))


if __name__ == "__main__":
    main()
