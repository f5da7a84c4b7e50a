"""Many sessions at once from a second process: nothing lost, doubled or crossed, nothing kept, nothing unbounded."""

import json
import resource
import statistics
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from evalkit.wire import sandbox_pb2 as wire
from tests.sandbox.faults.watch import at_rest, gauges
from tests.sandbox.load.scripts import SCRIPTS, turn_request
from tests.sandbox.processes import SandboxProcess, eventually, serving

MIB = 1 << 20


def arrivals(server: SandboxProcess, folder: Path, cycle: str, **settings: float) -> list[dict[str, Any]]:
    """What the sessions of one cycle met."""
    file = folder / f"{cycle}.json"
    options = [f"--{name}={value}" for name, value in settings.items()]
    command = [
        sys.executable,
        "-m",
        "tests.sandbox.load.arrivals",
        server.address,
        str(file),
        f"--cycle={cycle}",
    ]
    subprocess.run([*command, *options], check=True, timeout=900)
    results: list[dict[str, Any]] = json.loads(file.read_text())
    return results


def alone(server: SandboxProcess, turns: int) -> list[list[list[int]]]:
    """Token ids of each script's turns, by one session at a time."""
    expected = []
    for script in range(SCRIPTS):
        session = server.open(session_id=f"alone-{script}")
        expected.append(
            [list(server.stub.Turn(turn_request(session, script, turn)).token_ids) for turn in range(turns)]
        )
        server.stub.CloseSession(wire.CloseSessionRequest(session_id=session))
    return expected


def memory_mib(server: SandboxProcess) -> float:
    """Resident memory of the server and its engine."""
    pids = (server.process.pid, server.engine_pid())
    pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids)
    return pages * resource.getpagesize() / MIB


def check_cycle(results: list[dict[str, Any]], expected: list[list[list[int]]], turns: int) -> None:
    """Every turn was answered once, in order, with the tokens of a lone run."""
    assert Counter(result["code"] for result in results) == {"OK": len(results)}
    assert Counter(turn["code"] for result in results for turn in result["turns"]) == {
        "OK": turns * len(results)
    }
    for result in results:
        name = result["session"]
        assert result["transcript"] == [f"{name}/{turn}" for turn in range(turns)]
        assert [turn["ids"] for turn in result["turns"]] == expected[result["script"]], name


def check_emptied(server: SandboxProcess) -> None:
    """No turn, no live session, no cache memory in use."""
    assert eventually(lambda: at_rest(server), 20)
    assert eventually(lambda: gauges(server)["sandbox_active_sessions"] == 0, 20)
    assert eventually(lambda: gauges(server).get("sandbox_kv_cache_usage_perc", 0.0) == 0.0, 20), gauges(
        server
    )


def run_twice(bundle: Path, folder: Path, sessions: int, turns: int, rate: float) -> None:
    limits = [f"--max-sessions={sessions + SCRIPTS}", f"--max-waiting={sessions}", "--metrics=127.0.0.1:0"]
    with serving(bundle, folder, *limits) as server:
        expected = alone(server, turns)
        sizes = []
        for cycle in ("first", "second"):
            results = arrivals(server, folder, cycle, sessions=sessions, turns=turns, rate=rate)
            check_cycle(results, expected, turns)
            check_emptied(server)
            sizes.append(memory_mib(server))
        # The first cycle fills allocators and the list of closed sessions, which is bounded by --max-sessions.
        assert sizes[1] <= sizes[0] * 1.03 + 8, sizes


def test_forty_sessions_lose_double_and_cross_nothing(tiny_bundle: Path, tmp_path: Path) -> None:
    run_twice(tiny_bundle, tmp_path, sessions=40, turns=3, rate=100)


@pytest.mark.slow
def test_a_thousand_sessions_of_ten_turns_twice(tiny_bundle: Path, tmp_path: Path) -> None:
    run_twice(tiny_bundle, tmp_path, sessions=1000, turns=10, rate=20)


def test_s23_beyond_capacity_only_resource_exhausted_and_bounded_latency(
    tiny_bundle: Path, tmp_path: Path
) -> None:
    """300 sessions at once for 32 places and 16 waiting: the rest is refused, whoever is taken waits for few others."""
    limits = ["--max-sessions=400", "--max-waiting=16", "--metrics=127.0.0.1:0"]
    with serving(tiny_bundle, tmp_path, *limits) as server:
        alone(server, 1)
        full = arrivals(server, tmp_path, "full", sessions=48, turns=1, rate=1e6)
        assert {turn["code"] for result in full for turn in result["turns"]} == {"OK"}
        slowest_when_full = max(turn["s"] for result in full for turn in result["turns"])
        over = arrivals(server, tmp_path, "over", sessions=300, turns=1, rate=1e6)
        ended = [turn for result in over for turn in result["turns"]]
        assert {turn["code"] for turn in ended} == {"OK", "RESOURCE_EXHAUSTED"}
        taken = [turn["s"] for turn in ended if turn["code"] == "OK"]
        # Refusing costs the server's time as well, hence more than 1.
        assert statistics.quantiles(taken, n=100)[98] <= 5 * slowest_when_full + 0.5
        refused = sum(turn["code"] == "RESOURCE_EXHAUSTED" for turn in ended)
        assert gauges(server)['sandbox_admission_rejections_total{reason="QUEUE_FULL"}'] == refused
