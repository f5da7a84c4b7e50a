"""What each fault led to, and how long each part of coming back took."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trainer.stress.delays import Delay, find_delays
from trainer.stress.job import Attempt, Job
from trainer.stress.plan import RESTARTS, Fault


@dataclass(frozen=True)
class Recovery:
    """One fault and its consequences. Times in seconds; None: doesn't apply, or wasn't seen.

    Attributes:
        detection_s: from the fault to the supervisor's (or the delay detector's) notice of it.
        restart_s: from the notice to the first worker's word where it goes on: processes, imports, rendezvous, data,
            and the check of the checkpoint's digests.
        restore_s: from there to its first new step: weights and optimizer, compiling the graphs, the step.
        lost_steps: done before, done again.
        catch_up_s: from the first new step until the lost ones are done again.
        as_promised: whether it ended as the documentation says; `outcome` says how, or what went wrong.
    """

    fault: Fault
    as_promised: bool
    outcome: str
    detection_s: float | None = None
    restart_s: float | None = None
    restore_s: float | None = None
    lost_steps: int | None = None
    catch_up_s: float | None = None

    def to_json(self) -> dict[str, Any]:
        """For stress.json."""
        return asdict(self)


def read_arrivals(signs: Path, attempt: int) -> dict[int, dict[int, float]]:
    """Rank to step to seconds; a torn last line of a killed worker is left out."""
    found: dict[int, dict[int, float]] = {}
    for path in sorted(signs.glob(f"arrivals-{attempt}-*.jsonl")):
        steps = found.setdefault(int(path.stem.rsplit("-", 1)[1]), {})
        for line in path.read_text().split("\n")[:-1]:
            entry = json.loads(line)
            steps[int(entry["step"])] = float(entry["at_s"])
    return found


def judge_fault(job: Job, fault: Fault) -> Recovery:
    """What one fault led to."""
    sign = job.struck(fault)
    if sign is None:
        return Recovery(fault, False, "never struck: the run ended before")
    at_s = float(sign["at_s"])
    attempt = attempt_at(job, at_s)
    if fault.kind in RESTARTS:
        return _restart(job, fault, sign, attempt)
    return _delay(job, fault, at_s, attempt)


def attempt_at(job: Job, at_s: float) -> Attempt:
    """The attempt that was under way at a time."""
    return next(item for item in reversed(job.attempts) if item.started_s <= at_s)


def all_delays(job: Job) -> list[Delay]:
    """Of every attempt."""
    return [
        delay
        for attempt in job.attempts
        for delay in find_delays(read_arrivals(job.folder / "signs", attempt.number))
    ]


def _restart(job: Job, fault: Fault, sign: dict[str, Any], attempt: Attempt) -> Recovery:
    later = [item for item in job.attempts if item.number > attempt.number]
    after = later[0] if later else None
    down = attempt.down_s
    detection = None if down is None else max(0.0, down - float(sign["at_s"]))
    if after is None or after.ready_s is None or after.first_step_s is None or down is None:
        why = after.down_because if after is not None else attempt.down_because
        return Recovery(fault, False, f"didn't come back: {why}", detection)
    resumed = after.resumed_after or 0
    lost = after.steps_before - resumed
    own = read_arrivals(job.folder / "signs", after.number).get(0, {})
    regained = own.get(after.steps_before + 1)
    problem, outcome = None, f"went on after step {resumed}"
    if fault.kind == "corrupt_checkpoint":
        damaged = int(sign["damaged_step"])
        named = any(f"step-{damaged}" in line for line in after.passed_over)
        if not named or resumed >= damaged:
            problem = f"the damaged checkpoint step-{damaged} wasn't passed over"
        outcome = f"passed step-{damaged} over, {outcome}"
    if fault.kind == "full_disk":
        refusals = [
            json.loads(path.read_text())["message"]
            for path in job.folder.glob(f"signs/refusal-{attempt.number}-*")
        ]
        if not any("cannot be written" in text for text in refusals):
            problem = "no worker said that the disk refused"
        outcome = f"refused in one line, {outcome}"
    return Recovery(
        fault,
        problem is None,
        problem or outcome,
        detection_s=detection,
        restart_s=after.ready_s - down,
        restore_s=after.first_step_s - after.ready_s,
        lost_steps=lost,
        catch_up_s=None if regained is None else max(0.0, regained - after.first_step_s),
    )


def _delay(job: Job, fault: Fault, at_s: float, attempt: Attempt) -> Recovery:
    found = find_delays(read_arrivals(job.folder / "signs", attempt.number))
    # A delayed checkpoint shows at the step after it, a slow rank at its own.
    first = fault.step + 1 if fault.kind == "delay_checkpoint" else fault.step
    last = first + (fault.slow_steps - 1 if fault.kind == "slow_rank" else 0)
    seen = [delay for delay in found if first <= delay.step <= last and delay.rank in fault.ranks]
    if not seen:
        return Recovery(fault, False, "the delay wasn't noticed", lost_steps=0)
    what = "its checkpoint" if fault.kind == "delay_checkpoint" else "slow"
    return Recovery(
        fault,
        True,
        f"went on; rank {seen[0].rank} named as {seen[0].late_s:.1f} s late ({what})",
        detection_s=seen[0].at_s - at_s,
        lost_steps=0,
    )
