"""Many sessions at once from a second process: nothing lost, doubled or crossed, nothing kept, nothing unbounded."""

import json
import resource
import statistics
import subprocess
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
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


OVERLOADED = ("--max-sessions=400", "--max-waiting=16", "--metrics=127.0.0.1:0")
PLACES = 32
LONG = {"turns": 1, "rate": 1e6, "new-tokens": 120}


def test_s23_beyond_capacity_only_resource_exhausted_and_the_queue_stays_bounded(
    tiny_bundle: Path, tmp_path: Path
) -> None:
    """300 sessions at once for 32 places and 16 waiting: the rest is refused, whoever is taken waits for few others.

    The engine stands still until the queue is full: a fast one might answer the first turns before the last have come.
    """
    with serving(tiny_bundle, tmp_path, *OVERLOADED) as server:
        waiting: list[float] = []
        running: list[float] = []
        stop = threading.Event()

        def watch() -> None:
            while not stop.wait(0.02):
                now = gauges(server)
                waiting.append(now["sandbox_num_requests_waiting"])
                running.append(now["sandbox_num_requests_running"])

        def refused() -> float:
            return gauges(server).get('sandbox_admission_rejections_total{reason="QUEUE_FULL"}', 0.0)

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            with ThreadPoolExecutor(1) as pool:
                with server.frozen_engine():
                    arriving = pool.submit(arrivals, server, tmp_path, "over", sessions=300, **LONG)
                    assert eventually(lambda: refused() > 0, 60)
                over = arriving.result()
        finally:
            stop.set()
            watcher.join()
        codes = Counter(turn["code"] for result in over for turn in result["turns"])
        assert set(codes) == {"OK", "RESOURCE_EXHAUSTED"}
        assert codes["OK"] >= PLACES
        assert max(waiting) <= 16
        assert max(running) <= PLACES
        assert refused() == codes["RESOURCE_EXHAUSTED"]


@pytest.mark.slow
def test_s23_the_latency_of_admitted_turns_stays_bounded(tiny_bundle: Path, tmp_path: Path) -> None:
    """Against the slowest of as many turns as the server takes at once; refusing costs it time as well, hence 5."""
    with serving(tiny_bundle, tmp_path, *OVERLOADED) as server:
        alone(server, 1)
        full = arrivals(server, tmp_path, "full", sessions=PLACES + 16, **LONG)
        assert {turn["code"] for result in full for turn in result["turns"]} == {"OK"}
        slowest = max(turn["s"] for result in full for turn in result["turns"])
        over = arrivals(server, tmp_path, "over", sessions=300, **LONG)
        taken = [turn["s"] for result in over for turn in result["turns"] if turn["code"] == "OK"]
        assert statistics.quantiles(taken, n=100)[98] <= 5 * slowest + 0.5
