"""Part (d) of the serving benchmark: what a turn costs outside the model, through gRPC.

Outside the model is everything but the engine's time: admission, pipe, gRPC on both sides, intent, hand-over and
satisfaction. It's the client's time from the call to the last chunk less the engine's own (waiting for its steps
included), so it never hides in the model's. Sessions run in a second process; the server is the real one, with the
shipped banking flow fitted from its data.

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
    pause_s: float = 2.0,
    seed: int = 0,
    engine: str | None = None,
) -> dict[str, Any]:
    """Time outside the model with 1 session, and with 64 that pause between turns and that don't.

    Args:
        bundle: served.
        flow: flow folder, or None.
        turns: of each session.
        new_tokens: of each reply.
        pause_s: mean pause of a paced session between two turns.
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
            cpu_ms = (_cpu_s(server.pid) - used_s) * 1000 / len(said)
            return {"load": round(load, 2), "server_cpu_ms_a_turn": round(cpu_ms, 3), **_summary(said)}

        talk(1, 0.0, 5)  # the first turns pay for what is loaded lazily
        measured = {
            "one_session": talk(1, 0.0, turns),
            "sessions_64_paced": talk(64, pause_s, max(4, turns // 5)),
            "sessions_64_eager": talk(64, 0.0, max(4, turns // 5)),
        }
    return {
        "targets": _TARGETS,
        "p50_ms_one_session": measured["one_session"]["outside_ms"]["p50"],
        "p99_ms_64_sessions": measured["sessions_64_paced"]["outside_ms"]["p99"],
        "pause_s": pause_s,
        "new_tokens": new_tokens,
        **measured,
    }


def _cpu_s(pid: int) -> float:
    """Processor time of the server process so far, the engine's not included: a figure that other load doesn't change."""
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def _summary(turns: Sequence[dict[str, int]]) -> dict[str, Any]:
    def quantiles(values: Sequence[int]) -> dict[str, float]:
        p50, p95, p99 = np.percentile(values, [50, 95, 99]) / 1e6
        return {"p50": round(float(p50), 3), "p95": round(float(p95), 3), "p99": round(float(p99), 3)}

    return {
        "turns": len(turns),
        "outside_ms": quantiles([turn["client_ns"] - turn["engine_ns"] for turn in turns]),
        "of_it_in_the_server_ms": quantiles([turn["server_ns"] - turn["engine_ns"] for turn in turns]),
        "of_it_flow_ms": quantiles([turn["flow_ns"] for turn in turns]),
        "engine_ms": quantiles([turn["engine_ns"] for turn in turns]),
    }


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--no-flow", dest="flow", action="store_false")
    parser.add_argument("--turns", type=int, default=30)
    parser.add_argument("--new-tokens", type=int, default=16)
    parser.add_argument("--pause-s", type=float, default=2.0)
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
            pause_s=given.pause_s,
            seed=given.seed,
            engine=given.engine,
        )
    sys.stdout.write(json.dumps(measured, indent=2) + "\n")


if __name__ == "__main__":
    main()
