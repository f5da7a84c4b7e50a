"""Time and memory of a verdict on very many samples: compare, judge and report of a made-up sealed run.

    python -m benchmarks.gate_size [--samples 1000000] [--out FILE.json]

Both models scored the same texts, each a cluster of its own, with two token classes; the run is written column by column, so
that making it isn't what is measured. The measured part is a process of its own that does what `evalkit judge` and `evalkit
report` do: read the evidence, results and comparison, verdict, the HTML page. Its peak memory is as the Linux kernel counts
it; beside wall time it tells its processor time, since other work on the machine moves only the former.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

RULES: list[dict[str, Any]] = [
    {"metric": "perplexity/token", "max": 60},
    {"metric": "perplexity/long_tail", "change": {"max_relative_increase": 0.02}},
    {"metric": "logits/entropy", "change": {"max_increase": 0.05}},
]
_ROWS = 50_000
_UNIT = 2.0**-30


def write_samples(path: Path, count: int, worse: float, seed: int) -> None:
    """samples.parquet of one model; the same seed gives the same texts.

    Args:
        path: of the file.
        count: texts.
        worse: is added to each token's surprise, in nats.
        seed: of the texts; the model's own noise comes from `worse` too.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    from evalkit.runs.evidence_io import sample_schema

    schema = sample_schema()
    texts = np.random.default_rng(seed)
    own = np.random.default_rng([seed, round(worse * 1e6)])
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for start in range(0, count, _ROWS):
            size = min(_ROWS, count - start)
            head, tail = texts.integers(5, 30, size), texts.integers(1, 5, size)
            loss = texts.gamma(9.0, 1 / 3, size) + own.normal(worse, 0.05, size)
            sums = {
                "head": _sums(head, np.round(loss * head / _UNIT) * _UNIT),
                "long_tail": _sums(tail, np.round(2 * loss * tail / _UNIT) * _UNIT),
            }
            names = [f"t{number:07d}" for number in range(start, start + size)]
            tokens = head + tail
            columns: dict[str, Any] = {
                "sample_id": names,
                "kind": ["text"] * size,
                "digest": [f"{number:064x}" for number in range(start, start + size)],
                "cluster": names,
                "status": ["ok"] * size,
                "tokens": tokens,
                "scored": tokens,
                "unconditioned": np.zeros(size, np.int64),
                "bytes": 4 * tokens,
                "bytes_scored": 4 * tokens,
                "words": np.maximum(1, tokens - 2),
                "nll": sums["head"]["nll"] + sums["long_tail"]["nll"],
                "classes": _as_json(sums),
                "worst": ["[[0,4,-4.5]]"] * size,
                "text": ["four" * number for number in tokens.tolist()],
                "from_cache": [False] * size,
                "elapsed_ns": np.full(size, 1_000_000),
                **dict.fromkeys(("tags", "cache_runs"), ["[]"] * size),
                **dict.fromkeys(("top1_outcomes", "views"), ["{}"] * size),
            }
            arrays = [
                pa.array(columns[field.name], field.type)
                if field.name in columns
                else pa.nulls(size, field.type)
                for field in schema
            ]
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema))


def _sums(tokens: Any, nll: Any) -> dict[str, Any]:
    return {
        "tokens": tokens,
        "nll": nll,
        "entropy": np.round(0.8 * nll / _UNIT) * _UNIT,
        "margin": np.round(-0.5 * nll / _UNIT) * _UNIT,
        "rank": 3.0 * tokens,
        "top1": tokens // 2,
        "top5": tokens - tokens // 4,
        "bytes": 4 * tokens,
    }


def _as_json(sums: dict[str, dict[str, Any]]) -> list[str]:
    columns = [column.tolist() for parts in sums.values() for column in parts.values()]
    form = (
        "{"
        + ",".join(
            f'"{name}":{{' + ",".join(f'"{field}":%r' for field in parts) + "}"
            for name, parts in sums.items()
        )
        + "}"
    )
    return [form % row for row in zip(*columns, strict=True)]


def make_run(path: Path, count: int) -> None:
    """A run folder with plan, evidence of both models and a seal; results and verdict come later."""
    from evalkit.files import write_json_atomic
    from evalkit.gate.policy import policy_digest, resolve_policy
    from evalkit.metrics.context import MetricContext
    from evalkit.runs.evidence import Evidence
    from evalkit.runs.evidence_io import write_evidence
    from evalkit.runs.folder import RunFolder, Side
    from evalkit.runs.plan import SCHEMA, context_to_plan
    from evalkit.runs.seal import write_seal
    from evalkit.scenario.schema import Policy

    folder = RunFolder(path)
    policy = Policy.model_validate({"rules": RULES})
    signatures = {family: f"{family}|made-up" for family in ("text", "risk", "dialogue")}
    settings = context_to_plan(MetricContext(0.95, 2024, signatures))
    sides: tuple[tuple[Side, float], ...] = (("candidate", 0.01), ("baseline", 0.0))
    models = {
        side: {"name": f"made-up {side}", "model_digest": digit * 64, "model": {}}
        for (side, _), digit in zip(sides, "ab", strict=True)
    }
    plan = {
        "schema": SCHEMA,
        "run_id": "20261130T120000Z-00000000",
        "created": "2026-11-30T12:00:00Z",
        "scenario": {"name": "many_samples", "output": {"formats": ["html"]}},
        "scenario_sha256": "c" * 64,
        "first_release": False,
        "look": 1,
        "seed": 2024,
        "policy": resolve_policy(policy),
        "policy_sha256": policy_digest(policy),
        **models,
        "measurement": {side: settings for side, _ in sides},
        "data": {"texts": {"sha256": "d" * 64}},
        "environment": {"versions": {}, "machine": {}},
    }
    write_json_atomic(folder.plan, plan)
    for side, worse in sides:
        write_evidence(folder, side, Evidence())
        write_samples(folder.samples(side), count, worse, seed=7)
    write_seal(path)


def judge_and_report(path: Path) -> dict[str, Any]:
    """The measured part: what `evalkit rescore` and `evalkit report` do, step by step, with processor seconds."""
    from evalkit.files import write_bytes_atomic
    from evalkit.report.write import write_reports
    from evalkit.runs.derive import derive
    from evalkit.runs.folder import RunFolder
    from evalkit.runs.judging import judge_derived, store_verdict
    from evalkit.runs.plan import read_plan

    folder = RunFolder(path)
    took: dict[str, float] = {}
    begin = time.process_time()

    def step(name: str) -> None:
        took[name] = round(time.process_time() - begin - sum(took.values()), 2)

    derived = derive(folder)
    step("compare")
    verdict = judge_derived(read_plan(folder), derived)
    for name, content in derived.files().items():
        write_bytes_atomic(folder.path / name, content)
    store_verdict(folder, verdict)
    step("judge")
    write_reports(folder, ("html",))
    page = folder.reports / "report.html"
    step("report")
    return {"verdict": verdict.verdict, "cpu_s": took, "html_mib": round(page.stat().st_size / 2**20, 2)}


_SIDE = """
import json, pathlib, sys
from benchmarks.gate_size import judge_and_report
found = judge_and_report(pathlib.Path(sys.argv[1]))
peak = pathlib.Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]
print(json.dumps({**found, "peak_gib": round(int(peak) / 2**20, 2)}))
"""


def measure(path: Path) -> dict[str, Any]:
    """`judge_and_report` in a process of its own, with its wall time and peak memory."""
    begin = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", _SIDE, str(path)], stdout=subprocess.PIPE, check=True, text=True
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    total = round(sum(found["cpu_s"].values()), 1)
    return {**found, "cpu_total_s": total, "wall_s": round(time.monotonic() - begin, 1)}


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=1_000_000, help="of each model")
    parser.add_argument("--out", type=Path, help="write the JSON here too")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "run"
        path.mkdir()
        make_run(path, options.samples)
        found = {"samples": options.samples, **measure(path)}
    result = json.dumps(found, indent=2)
    if options.out is not None:
        options.out.write_text(result + "\n", encoding="utf-8")
    sys.stdout.write(result + "\n")


if __name__ == "__main__":
    main()
