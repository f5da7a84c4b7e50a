"""A stress test that was ended half-way: what counts, what is struck anew, and from where the job goes on.

The job itself can go on at any time, that is what is being tested. What can't be kept is a fault whose consequences
nobody watched to the end: its times would hold the pause. Such a fault is taken back, the job goes back to a
checkpoint before it, and it strikes again. A training's steps are the same each time, so nothing else changes.
"""

import json
from pathlib import Path
from typing import Any

from evalkit.canonical import sha256_file
from evalkit.console import say
from evalkit.errors import InputError
from evalkit.files import write_json_atomic
from trainer.checkpoint import remove_step, saved_steps
from trainer.stress.job import Attempt, Job
from trainer.stress.plan import RESTARTS, Fault, Stress
from trainer.stress.processes import end_leftovers
from trainer.stress.recovery import attempt_at, judge_fault, read_arrivals

MARKER = "test.json"
# Times are of the machine's monotonic clock, which begins anew with each start of it.
_BOOT = Path("/proc/sys/kernel/random/boot_id")


def enter(out: Path, stress: Stress) -> None:
    """Mark the folder as this test's, or see that it is.

    Raises:
        InputError: it holds another test, something else, or a test from before the machine was started.
    """
    marker, boot = out / MARKER, _BOOT.read_text().strip() if _BOOT.exists() else ""
    mine = {"version": 1, "boot_id": boot, "of": _identity(stress)}
    if not marker.exists():
        if any(out.iterdir()):
            raise InputError(f"{out}: exists and holds no stress test that can go on; choose another folder")
        write_json_atomic(marker, mine)
        return
    try:
        theirs = json.loads(marker.read_text())
        of, began = theirs["of"], theirs["boot_id"]
    except (ValueError, TypeError, KeyError):
        raise InputError(f"{marker}: isn't a stress test's; choose another folder") from None
    if of != mine["of"]:
        raise InputError(
            f"{out}: holds a test of another plan, configuration or data; choose another --out, or remove it"
        )
    if began != boot:
        raise InputError(
            f"{out}: the machine was started anew since this test began, so that its times can't be compared; remove it "
            "or choose another --out"
        )


def _identity(stress: Stress) -> dict[str, Any]:
    """What a test must have in common with its first part."""
    data = stress.config.data
    files = [stress.config_path.parent / name for name in (*data.train, *data.validation)]
    described = {
        "plan": stress.plan.model_dump(mode="json"),
        "config": stress.config.model_dump(mode="json"),
        "faults": [fault.to_json() for fault in stress.faults],
        "data_sha256": [sha256_file(path) if path.is_file() else None for path in files],
    }
    return json.loads(json.dumps(described))  # type: ignore[no-any-return]  # as it is read back


def take_up(job: Job, faults: tuple[Fault, ...]) -> None:
    """Make a job that was broken off ready to go on; nothing for one that is over or wasn't begun."""
    end_leftovers(job.folder)
    if not job.attempts or job.over:
        return
    cut = [fault for fault in faults if _cut_short(job, fault)]
    last = job.attempts[-1]
    if job.broken_off:
        last.interrupted, last.down_because = True, "the stress test itself was ended"
    _take_back(job, cut)
    _go_back(job, [fault for fault in faults if job.struck(fault) is None])
    if cut:
        said = ", ".join(f"{fault.kind} at step {fault.step}" for fault in cut)
        say(f"struck anew, since nobody saw what came of it: {said}")
    job.keep()


def _cut_short(job: Job, fault: Fault) -> bool:
    """Whether a fault struck, and the test was ended before its consequences were over."""
    sign = job.struck(fault)
    if sign is None:
        return False
    attempt, last = attempt_at(job, float(sign["at_s"])), job.attempts[-1]
    if fault.kind in RESTARTS:
        after: Attempt | None = next((item for item in job.attempts if item.number > attempt.number), None)
        if after is None:
            return True
        return after is last and job.broken_off and judge_fault(job, fault).catch_up_s is None
    if attempt is not last or not job.broken_off:
        return False
    shows = fault.step + (1 if fault.kind == "delay_checkpoint" else fault.slow_steps - 1)
    arrived = read_arrivals(job.folder / "signs", attempt.number)
    gone_on = bool(arrived) and all(shows in steps for steps in arrived.values())
    return not gone_on and not judge_fault(job, fault).as_promised


def _take_back(job: Job, cut: list[Fault]) -> None:
    signs, run = job.folder / "signs", job.folder / "run"
    for fault in cut:
        sign = job.struck(fault)
        assert sign is not None
        if "damaged_step" in sign:  # it will be damaged again, when it has been written again
            remove_step(run, int(sign["damaged_step"]))
        for path in signs.glob(f"struck-{fault.number}-*"):
            path.rename(path.with_name(f"cut-{len(job.attempts)}-{path.name}"))


def _go_back(job: Job, coming: list[Fault]) -> None:
    """Remove the checkpoints that lie behind a fault that is still to strike, or too close before one.

    A delay isn't looked for in an attempt's first two steps (`find_delays`), so it must come after them.
    """
    run = job.folder / "run"
    latest = [fault.step - (1 if fault.kind in RESTARTS else 3) for fault in coming]
    for step in saved_steps(run):
        if latest and step > min(latest):
            remove_step(run, step)


def struck_anew(job: Job) -> int:
    """How many faults were taken back and struck again."""
    return len({path.name.rsplit("-", 1)[0] for path in job.folder.glob("signs/cut-*")})
