"""How fast the sandbox serves, as ratios of one run on this machine's CPU.

`--part engine` measures at the engine: (a) one session's time per token against PyTorch eager with a KV cache, (b) the
tokens per second of 32 sessions against one session and against Hugging Face generate with a batch of 32, (c) the
time to the first token of turn 5 with and without prefix reuse, (e) the time per token by length of history.
`--part grpc` measures through gRPC: (d) what a turn costs outside the model.
Sides run one after the other, each in a process of its own, in turn and more than once; a ratio is of medians. On a
busy machine look at `cpu`: the same ratios by processor time, with `--cores 1`, where nobody waits for anybody.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

PEERS_VARIABLE = "EVALKIT_PEERS_PYTHON"
_HERE = Path(__file__).resolve().parent
_PROMPT_TOKENS, _BATCH = 32, 32


def run_side(command: list[str], settings: dict[str, Any]) -> dict[str, Any]:
    """Run one side to its end and return what it measured, with the load that the machine had before."""
    load = os.getloadavg()[0]
    done = subprocess.run(
        command, input=json.dumps(settings), capture_output=True, text=True, check=False, cwd=_HERE.parent
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return {**result, "load": load}


def measure_engine(source: str, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Parts (a), (b), (c), (e) on one model."""
    from benchmarks.serving_models import prepare
    from evalkit.bundle import load_bundle

    prepare(source, folder)
    bundle = load_bundle(folder / "bundle")
    random = np.random.default_rng(options.seed)
    shared = {
        "bundle": str(folder / "bundle"),
        "hf": str(folder / "hf"),
        "cores": sorted(os.sched_getaffinity(0))[: options.cores],
        "kv_mib": options.kv_mib,
        "seed": options.seed,
        "new_tokens": options.new_tokens,
        "repeats": options.repeats,
        "prompts": random.integers(6, bundle.model.vocab_size, (_BATCH, _PROMPT_TOKENS)).tolist(),
        "batch": True,
        "history": False,
    }
    own = [sys.executable, "-m", "benchmarks.serving_engine"]
    peer = [options.peer, str(_HERE / "serving_peer.py")]
    sides: dict[str, list[dict[str, Any]]] = {"onnx": [], "peer": [], "mindir": []}
    for passed in range(options.passes):
        sides["onnx"].append(run_side(own, {**shared, "engine": "onnx", "history": passed == 0}))
        sides["peer"].append(run_side(peer, shared))
        if options.mindir:
            sides["mindir"].append(run_side(own, {**shared, "engine": "mindir", "batch": False}))
    return {
        "model": bundle.name,
        "parameters": bundle.model.parameters,
        "cores": len(shared["cores"]),
        "load": {side: [round(run["load"], 2) for run in runs] for side, runs in sides.items()},
        "wall": _summary(sides, ""),
        "cpu": _summary(sides, "cpu_"),
        "a_equal_ids": {
            side: runs[0]["one"][0]["ids"] == sides["peer"][0]["one"][0]["ids"]
            for side, runs in sides.items()
            if runs
        },
        "kv_used_bytes_at_the_end": sides["onnx"][0]["kv_used_bytes"],
    }


def measure_through_grpc(source: str, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Part (d) on one model."""
    from benchmarks.serving_grpc import fit_flow, measure_grpc
    from benchmarks.serving_models import prepare

    prepare(source, folder)
    return {"model": source, **measure_grpc(folder / "bundle", fit_flow(folder), seed=options.seed)}


def _summary(sides: dict[str, list[dict[str, Any]]], kind: str) -> dict[str, Any]:
    """Ratios by wall-clock time (kind "") or processor time ("cpu_")."""

    def median(side: str, part: str, field: str) -> float | None:
        found = [measured[field] for run in sides[side] for measured in run.get(part, [])]
        return round(statistics.median(found), 3) if found else None

    def ratio(top: float | None, bottom: float | None) -> float | None:
        return None if top is None or bottom is None else round(top / bottom, 3)

    ms = {side: median(side, "one", f"{kind}ms_per_token") for side in sides}
    rate = f"tokens_per_{kind}s"
    one, many = median("onnx", "one", rate), median("onnx", "batch", rate)
    generate = median("peer", "batch", rate)
    first = sides["onnx"][0]
    return {
        "a_ms_per_token": ms,
        "a_ratio_to_eager": {side: ratio(ms[side], ms["peer"]) for side in ("onnx", "mindir")},
        "b_tokens_per_s": {"one": one, "32": many, "generate_32": generate},
        "b_ratio_to_one": ratio(many, one),
        "b_ratio_to_generate": ratio(many, generate),
        "c_fifth_turn": {case: _fifth(first[case], kind) for case in ("settled", "at_once")},
        "e_ms_per_token": {
            length: round(statistics.median(run[f"{kind}ms_per_token"] for run in runs), 3)
            for length, runs in first["growth"].items()
        },
    }


def _fifth(runs: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    warm, cold = (statistics.median(run[f"{side}_{kind}ms"] for run in runs) for side in ("warm", "cold"))
    return {
        "history": runs[0]["history"],
        "reused": runs[0]["reused"],
        "warm_ms": round(warm, 2),
        "cold_ms": round(cold, 2),
        "ratio": round(cold / warm, 2),
        "equal_ids": all(run["equal_ids"] for run in runs),
    }


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", help="demo, or a Hugging Face folder or GGUF file")
    parser.add_argument("--part", choices=["engine", "grpc"], default="engine")
    parser.add_argument(
        "--peer",
        default=os.environ.get(PEERS_VARIABLE),
        help=f"Python of an environment with transformers and torch (default: ${PEERS_VARIABLE})",
    )
    parser.add_argument("--folder", type=Path, help="keep the prepared model here")
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--cores", type=int, help="cores that each side uses; default all")
    parser.add_argument("--repeats", type=int, default=3, help="in each process")
    parser.add_argument("--passes", type=int, default=2, help="processes of each side")
    parser.add_argument("--kv-mib", type=int, default=1024)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-mindir", dest="mindir", action="store_false")
    parser.add_argument("--out", type=Path, help="write the JSON here too")
    options = parser.parse_args()
    if options.part == "engine" and options.peer is None:
        parser.error(f"give --peer or set {PEERS_VARIABLE}")
    with tempfile.TemporaryDirectory() as scratch:
        measure = measure_engine if options.part == "engine" else measure_through_grpc
        measured = measure(options.source, options.folder or Path(scratch), options)
    result = json.dumps(measured, indent=2)
    if options.out is not None:
        options.out.write_text(result + "\n", encoding="utf-8")
    sys.stdout.write(result + "\n")


if __name__ == "__main__":
    main()
