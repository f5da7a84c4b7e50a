"""One trial of the pressure test, seen from outside: a process whose memory is watched while its steps run."""

import json
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evalkit.errors import EvalkitError, InputError

_POLL_S, _TRIAL_TIMEOUT_S = 0.02, 900.0
_ALLOCATION = re.compile(
    r"MemoryError|bad_alloc|[Oo]ut of memory|[Mm]emory (?:isn't|is not|not) enough|alloc\w* .*fail", re.I
)


@dataclass(frozen=True)
class Trial:
    """One process.

    Attributes:
        value: rows, or positions a row.
        peak_mib: of its resident set; None where it ended before one was seen.
        why: in words.
    """

    value: int
    fits: bool
    peak_mib: float | None
    elapsed_s: float
    why: str


def run_trial(description: dict[str, Any], value: int, budget_mib: float) -> Trial:
    """Two steps in a process of their own; it is killed when it passes the budget or takes too long."""
    started = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "trainer.planning.pressure_child"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    peak: float | None = None
    why = ""
    try:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps(description))
        process.stdin.close()
        while process.poll() is None:
            seen = peak_mib(process.pid)
            peak = seen if seen is not None else peak
            if peak is not None and peak > budget_mib:
                why = f"passed {budget_mib:,.0f} MiB"
                break
            if time.monotonic() - started > _TRIAL_TIMEOUT_S:
                why = f"took more than {_TRIAL_TIMEOUT_S:.0f} s"
                break
            time.sleep(_POLL_S)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
    assert process.stdout is not None and process.stderr is not None
    answer, complaint = process.stdout.read(), process.stderr.read()
    process.stdout.close()
    process.stderr.close()
    elapsed = time.monotonic() - started
    if why:
        return Trial(value, False, peak, elapsed, why)
    if process.returncode == 2:  # the child's own one-line refusal
        raise InputError(f"--pressure: {complaint.strip().splitlines()[-1].removeprefix('error: ')}")
    if process.returncode != 0:
        lines = complaint.strip().splitlines() or ["no message"]
        # Killed by the kernel, or told by an allocator: anything else is a fault that more memory wouldn't mend.
        if process.returncode > 0 and not any(_ALLOCATION.search(line) for line in lines):
            raise EvalkitError(
                f"--pressure: a trial of {value} ended with code {process.returncode}: {lines[-1][:300]}"
            )
        return Trial(value, False, peak, elapsed, f"ended with code {process.returncode}: {lines[-1][:200]}")
    peak = float(json.loads(answer.strip().splitlines()[-1])["peak_mib"])
    return Trial(value, peak <= budget_mib, peak, elapsed, f"{peak:,.0f} MiB in {elapsed:.0f} s")


def peak_mib(pid: int) -> float | None:
    """The largest resident set of a process so far; None where it is gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return None
    for line in status.splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    return None
