"""How fast and in how much memory `trainer timeline` reads a large trace, beside a bare parse and HolisticTraceAnalysis.

A Kineto trace of the asked sizes is written from the rows of a real one (its events again and again, moved in time).
Each program runs in a process of its own; its peak resident memory is the kernel's count. `parse` is the time of a bare
streaming parse with ijson (which streams) and, for sizes up to --whole-mb, of orjson (which doesn't).

    python -m benchmarks.timeline --seed-trace FILE.json.gz --out figures.json

The peers (ijson, orjson, HolisticTraceAnalysis) live in an environment of their own: EVALKIT_TIMELINE_PEERS_PYTHON.
"""

import argparse
import gzip
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

_PARSE = {
    "ijson": "import sys, ijson\nwith open(sys.argv[1], 'rb') as f:\n for _ in ijson.items(f, 'traceEvents.item', use_float=True): pass",
    "orjson": "import sys, orjson\norjson.loads(open(sys.argv[1], 'rb').read())",
}
_HTA = """
import sys
from hta.trace_analysis import TraceAnalysis
analysis = TraceAnalysis(trace_files={0: sys.argv[1]}, trace_dir='')
print(analysis.get_temporal_breakdown(visualize=False).to_json())
"""


def write_trace(seed: Path, target: Path, size_bytes: int) -> int:
    """Repeat the events of a real trace, each round later than the one before, up to a size; returns the events."""
    document = json.loads(gzip.open(seed).read())
    events = [event for event in document["traceEvents"] if "ts" in event and event.get("ph") == "X"]
    others = [event for event in document["traceEvents"] if event.get("ph") == "M"]
    low = min(event["ts"] for event in events)
    span = max(event["ts"] + event.get("dur", 0) for event in events) - low + 100
    rounds = count = 0
    with target.open("w", encoding="utf-8") as stream:
        stream.write(json.dumps({key: value for key, value in document.items() if key != "traceEvents"})[:-1])
        stream.write(', "traceEvents": [\n')
        stream.write(",\n".join(json.dumps(event) for event in others))
        while stream.tell() < size_bytes:
            for event in events:
                moved = event | {"ts": event["ts"] + rounds * span}
                if moved["name"].startswith("ProfilerStep#"):
                    moved["name"] = f"ProfilerStep#{int(moved['name'][13:]) + 10 * rounds}"
                stream.write(",\n" + json.dumps(moved))
                count += 1
            rounds += 1
        stream.write("\n]}\n")
    return count


def measure(command: list[str], **environment: str) -> dict[str, Any]:
    """Wall time in s and peak resident memory in MB of a command, which must succeed."""
    begin = time.perf_counter()
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **environment},
    )
    assert process.stdout is not None
    output = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    found: dict[str, Any] = {
        "seconds": round(time.perf_counter() - begin, 2),
        "cpu_seconds": round(usage.ru_utime + usage.ru_stime, 2),
        "peak_mb": round(usage.ru_maxrss / 1024, 1),
    }
    if os.waitstatus_to_exitcode(status) != 0:
        found["failed"] = True
    found["output"] = output.decode(errors="replace")
    return found


def compare(seed: Path, megabytes: int, folder: Path, peers: str | None, whole_mb: int) -> dict[str, Any]:
    """All programs on one trace."""
    trace = folder / f"rank-0_{megabytes}.json"
    events = write_trace(seed, trace, megabytes << 20)
    row: dict[str, Any] = {"mb": megabytes, "events": events, "bytes": trace.stat().st_size}
    own = measure(
        [sys.executable, "-m", "trainer", "timeline", str(trace), "--out", str(folder / "out"), "--json"],
        PYTHONPATH=str(Path(__file__).resolve().parents[1]),
    )
    own["files_mb"] = {
        path.name: round(path.stat().st_size / (1 << 20), 1) for path in sorted((folder / "out").iterdir())
    }
    report = json.loads(own.pop("output"))
    own["compute_share"] = report["facts"]["compute_share"]["value"]
    row["trainer timeline"] = own
    for path in (folder / "out").iterdir():
        path.unlink()
    (folder / "out").rmdir()
    if peers:
        for name, code in _PARSE.items():
            if name == "ijson" or megabytes <= whole_mb:
                row[name] = measure([peers, "-c", code, str(trace)])
                del row[name]["output"]
        if megabytes <= whole_mb:
            row["HolisticTraceAnalysis"] = measure([peers, "-c", _HTA, str(trace)])
            row["HolisticTraceAnalysis"]["output"] = row["HolisticTraceAnalysis"]["output"][-300:]
        row["times_of_bare_streaming_parse"] = round(own["cpu_seconds"] / row["ijson"]["cpu_seconds"], 2)
    trace.unlink()
    return row


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed-trace", type=Path, required=True, help="A real Kineto trace, .json.gz.")
    parser.add_argument("--sizes-mb", type=int, nargs="+", default=[64, 256, 1024])
    parser.add_argument(
        "--whole-mb", type=int, default=256, help="Largest size for programs that read it whole."
    )
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    peers = os.environ.get("EVALKIT_TIMELINE_PEERS_PYTHON")
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for size in options.sizes_mb:
            rows.append(compare(options.seed_trace, size, Path(folder), peers, options.whole_mb))
            options.out.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    first, last = rows[0], rows[-1]
    growth = (last["trainer timeline"]["cpu_seconds"] / first["trainer timeline"]["cpu_seconds"]) / (
        last["bytes"] / first["bytes"]
    )
    print(json.dumps({"rows": rows, "growth_over_linear": round(growth, 2)}, indent=2))


if __name__ == "__main__":
    main()
