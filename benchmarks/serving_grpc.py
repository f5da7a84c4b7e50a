"""Part (d) of the serving benchmark: what a turn costs outside the model, through gRPC.

Outside the model is everything but the engine's time: admission, pipe, gRPC on both sides, intent, hand-over and
satisfaction. It's the client's time from the call to the last chunk, which holds the whole reply, less the engine's own
(waiting for its steps included), so it never hides in the model's. The stream's status comes a little later and holds nobody
up; `until_the_status_ms` has that too. Sessions run in a second process; the server is the real one, with the shipped
banking flow fitted from its data.

64 sessions are run three ways: people (a pause of 10 s between turns on average, exponential), hurried ones (2 s), and
programs that never pause. How long a turn queues depends on how busy the machine is, so each has its utilisation beside
it: `engine_utilisation` is the share of the time in which the model computes turns (its work on what nobody waits for not
counted), `server_utilisation` the server's processor time as a share of one core.

    python -m benchmarks.serving_grpc BUNDLE
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from evalkit.replay.server_process import sandbox_process

_PROJECT = Path(__file__).resolve().parent.parent
_BANKING = _PROJECT / "scenarios" / "banking"
# People think and write; those who don't, and programs.
PAUSES_S = (10.0, 2.0, 0.0)
_TARGETS = {"p50_ms_one_session": 2.0, "p99_ms_64_sessions": 15.0}


def fit_flow(folder: Path) -> Path:
    """The shipped banking flow, its artefacts fitted here."""
    flow = folder / "flow"
    shutil.copytree(_BANKING / "flow", flow, dirs_exist_ok=True)
    for kind, data in (("intent", "intents.csv"), ("satisfaction", "satisfaction.csv")):
        command = [sys.executable, "-m", "sandbox", "fit", kind, str(_BANKING / data), "--out", str(flow)]
        subprocess.run(command, check=True, capture_output=True, cwd=_PROJECT)
    return flow


def measure_grpc(
    bundle: Path,
    flow: Path | None,
    *,
    turns: int = 30,
    new_tokens: int = 16,
    pauses_s: Sequence[float] = PAUSES_S,
    seed: int = 0,
    engine: str | None = None,
) -> dict[str, Any]:
    """Time outside the model with 1 session, and with 64 at several paces.

    Args:
        bundle: served.
        flow: flow folder, or None.
        turns: of the single session; each of the 64 takes a fifth of them, at least six (on average, where it pauses).
        new_tokens: of each reply.
        pauses_s: mean pauses of the 64 sessions between two turns, one run each; the first is the one that is judged.
        seed: of the pauses.
        engine: mindir or onnx; None takes the server's default.
    """
    options = ["--max-sessions=128", "--max-waiting=128", *([f"--engine={engine}"] if engine else [])]
    with sandbox_process(bundle, flow, options=options) as server:

        def talk(sessions: int, pause: float, count: int) -> dict[str, Any]:
            load = os.getloadavg()[0]
            settings = {
                "address": server.address,
                "sessions": sessions,
                "turns": count,
                "new_tokens": new_tokens,
                "pause_s": pause,
                "seed": seed,
            }
            used_s = _cpu_s(server.pid)
            done = subprocess.run(
                [sys.executable, "-m", "benchmarks.serving_clients"],
                input=json.dumps(settings),
                capture_output=True,
                text=True,
                check=True,
                cwd=_PROJECT,
            )
            said = json.loads(done.stdout)
            return {"load": round(load, 2), **_summary(said, _cpu_s(server.pid) - used_s)}

        talk(1, 0.0, 5)  # the first turns pay for what is loaded lazily
        one = talk(1, 0.0, turns)
        many = {f"pause_{pause:g}_s": talk(64, pause, max(6, turns // 5)) for pause in pauses_s}
    judged = next(iter(many))
    return {
        "targets": _TARGETS,
        "p50_ms_one_session": one["outside_ms"]["p50"],
        "p99_ms_64_sessions": many[judged]["outside_ms"]["p99"],
        "p99_ms_64_sessions_at": judged,
        "new_tokens": new_tokens,
        "one_session": one,
        "sessions_64": many,
    }


def _cpu_s(pid: int) -> float:
    """Processor time of the server process so far, the engine's not included: a figure that other load doesn't change."""
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def _summary(turns: Sequence[dict[str, int]], server_s: float) -> dict[str, Any]:
    def quantiles(values: Sequence[int]) -> dict[str, float]:
        p50, p95, p99 = np.percentile(values, [50, 95, 99]) / 1e6
        return {"p50": round(float(p50), 3), "p95": round(float(p95), 3), "p99": round(float(p99), 3)}

    # From the first call to the last status; the pauses before and after aren't part of the run.
    begun_ns = min(turn["begin_ns"] for turn in turns)
    elapsed_s = (max(turn["begin_ns"] + turn["status_ns"] for turn in turns) - begun_ns) / 1e9
    work_s = sum(turn["work_ns"] for turn in turns) / 1e9
    return {
        "turns": len(turns),
        "turns_per_s": round(len(turns) / elapsed_s, 2),
        "engine_utilisation": round(work_s / elapsed_s, 3),
        "server_utilisation": round(server_s / elapsed_s, 3),
        "server_cpu_ms_a_turn": round(server_s * 1000 / len(turns), 3),
        "outside_ms": quantiles([turn["client_ns"] - turn["engine_ns"] for turn in turns]),
        "of_it_in_the_server_ms": quantiles([turn["server_ns"] - turn["engine_ns"] for turn in turns]),
        "of_it_flow_ms": quantiles([turn["flow_ns"] for turn in turns]),
        "until_the_status_ms": quantiles([turn["status_ns"] - turn["engine_ns"] for turn in turns]),
        "engine_ms": quantiles([turn["engine_ns"] for turn in turns]),
    }


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--no-flow", dest="flow", action="store_false")
    parser.add_argument("--turns", type=int, default=30)
    parser.add_argument("--new-tokens", type=int, default=16)
    parser.add_argument(
        "--pause-s",
        type=float,
        nargs="+",
        default=list(PAUSES_S),
        help="mean pauses of the 64 sessions, one run each",
    )
    parser.add_argument("--engine", choices=["mindir", "onnx"])
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        flow = fit_flow(Path(scratch)) if given.flow else None
        measured = measure_grpc(
            given.bundle,
            flow,
            turns=given.turns,
            new_tokens=given.new_tokens,
            pauses_s=given.pause_s,
            seed=given.seed,
            engine=given.engine,
        )
    sys.stdout.write(json.dumps(measured, indent=2) + "\n")


if __name__ == "__main__":
    main()
