"""The stress test: an undisturbed run, the same run under faults, and whether both are one."""

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

from evalkit.bundle import WEIGHTS
from evalkit.canonical import sha256_file
from evalkit.console import say
from evalkit.errors import EvalkitError, IncompleteError, InputError
from evalkit.files import write_json_atomic
from trainer.checkpoint import step_folder
from trainer.run_log import claimed
from trainer.stress.delays import Delay
from trainer.stress.job import Job
from trainer.stress.plan import RESTARTS, Fault, Stress
from trainer.stress.processes import end_leftovers
from trainer.stress.recovery import all_delays, judge_fault
from trainer.stress.report import Check, StressReport
from trainer.stress.taking_up import enter, struck_anew, take_up

# What a step's record holds that doesn't depend on the clock.
_TIMELESS = (
    "step", "epoch", "loss", "loss_scale", "overflow", "grad_norm", "learning_rate", "tokens", "sample_ids",
)  # fmt: skip


def run_stress(stress: Stress, out: Path) -> StressReport:
    """Run it all into the folder `out`, or what is left of it; writes stress.json there.

    Args:
        out: a new folder, or that of the same test, which then goes on: the undisturbed run is kept if it was done, the
            disturbed one goes on from its checkpoint, and faults whose consequences nobody saw are struck anew.

    Raises:
        InputError: `out` holds something else, or the undisturbed run already fails.
        IncompleteError: interrupted; workers are ended, the same command goes on.
    """
    started = time.monotonic()
    try:
        with claimed(out):
            enter(out, stress)
            report = _run(stress, out, started)
    except KeyboardInterrupt:
        raise IncompleteError(
            f"interrupted; the workers are ended, what is done is in {out}, the same command goes on"
        ) from None
    write_json_atomic(out / "stress.json", report.to_json())
    return report


def _run(stress: Stress, out: Path, started: float) -> StressReport:
    reference = _undisturbed(stress, out / "reference")
    alone = reference.attempts[-1]
    if alone.code != 0:
        raise InputError(
            f"{stress.config_path}: the undisturbed run already fails ({alone.down_because}); see "
            f"{reference.folder / f'logs-{alone.number}'}"
        )
    plan = stress.plan
    disturbed = _job(stress, out / "disturbed")
    take_up(disturbed, stress.faults)
    running = []
    if not disturbed.over:
        say(f"the same under {len(stress.faults)} faults")
        running.append(_to_its_end(disturbed, stress.faults, plan.restart_limit, restarts=True))
    beside = None
    if plan.beside:
        beside = _job(stress, out / "beside")
        if beside.broken_off:  # it must reach its end in one go
            beside = _anew(stress, beside)
        if not beside.attempts:
            running.append(_to_its_end(beside, (), plan.restart_limit, restarts=False))
    try:
        while running:
            running = [one for one in running if next(one, StopIteration) is not StopIteration]
    finally:
        for one in running:
            one.close()  # type: ignore[attr-defined]  # a generator: its workers are ended
    recoveries = tuple(judge_fault(disturbed, fault) for fault in stress.faults)
    checks = _compare(disturbed, reference, stress.config.steps, "under faults")
    if beside is not None:
        checks += _compare(beside, reference, stress.config.steps, "beside it")
        checks.append(
            Check("beside it: no restart", len(beside.attempts) == 1, f"{len(beside.attempts)} start")
        )
    return StressReport(
        stress,
        recoveries,
        tuple(checks),
        alone,
        tuple(disturbed.attempts),
        tuple(delay for delay in all_delays(disturbed) if not _explained(delay, stress.faults)),
        struck_anew(disturbed),
        time.monotonic() - started,
    )


def _job(stress: Stress, folder: Path) -> Job:
    return Job(folder, stress.config_path, stress.config.parallel.devices, stress.plan.stall_timeout_s)


def _anew(stress: Stress, job: Job) -> Job:
    end_leftovers(job.folder)
    shutil.rmtree(job.folder)
    return _job(stress, job.folder)


def _undisturbed(stress: Stress, folder: Path) -> Job:
    """The run that the others are compared with: in one go, or once more from the start."""
    job = _job(stress, folder)
    if job.over:
        say("the undisturbed run is there already")
        return job
    if job.attempts:
        job = _anew(stress, job)
    workers = stress.config.parallel.devices
    say(f"undisturbed run on {workers} worker{'s' * (workers > 1)}")
    for _ in _to_its_end(job, (), stress.plan.restart_limit, restarts=False):
        pass
    return job


def _to_its_end(job: Job, faults: tuple[Fault, ...], limit: int, *, restarts: bool) -> Iterator[None]:
    """Attempts until the training is done, or `limit` in a row bring no new step."""
    furthest, idle = 0, 0
    while True:
        yield from job.attempt(faults)
        attempt = job.attempts[-1]
        if attempt.code == 0 or not restarts:
            return
        say(f"attempt {attempt.number}: {attempt.down_because}")
        done = _steps(job)
        idle = 0 if done > furthest else idle + 1
        furthest = max(furthest, done)
        if idle >= limit:
            say(f"given up: {limit} restarts in a row without a new step")
            job.given_up = True
            job.keep()
            return


def _steps(job: Job) -> int:
    return len(_records(job)) if job.log_path.exists() else 0


def _records(job: Job) -> list[dict[str, Any]]:
    if not job.log_path.exists():
        return []
    found = []
    for line in job.log_path.read_bytes().split(b"\n")[:-1]:
        try:
            found.append(orjson.loads(line))
        except orjson.JSONDecodeError as error:
            if line.strip():
                raise EvalkitError(f"{job.log_path}: a broken record in the middle ({error})") from None
    return found


def _compare(job: Job, reference: Job, steps: int, name: str) -> list[Check]:
    """Loss curve and final weights against the undisturbed run's, to the bit."""
    pairs = [[{key: entry[key] for key in _TIMELESS} for entry in _records(one)] for one in (job, reference)]
    mine, other = pairs
    differing = next(
        (index + 1 for index, (a, b) in enumerate(zip(mine, other, strict=False)) if a != b), None
    )
    whole = [entry["step"] for entry in mine] == list(range(1, steps + 1))
    evidence = (
        f"{len(mine)} steps, no gap, no double, equal to the bit"
        if whole and differing is None
        else f"step {differing} differs"
        if differing is not None
        else f"{len(mine)} of {steps} steps"
    )
    weights = [step_folder(one.folder / "run", steps) / WEIGHTS for one in (job, reference)]
    if all(path.is_file() for path in weights):
        digests = [sha256_file(path) for path in weights]
        same, words = digests[0] == digests[1], " and ".join(digest[:12] for digest in digests)
    else:
        same, words = False, "there are no weights of the last step"
    return [
        Check(f"{name}: the loss curve continues", whole and differing is None, evidence),
        Check(f"{name}: the final weights equal the undisturbed run's", same, words),
    ]


def _explained(delay: Delay, faults: tuple[Fault, ...]) -> bool:
    return any(
        fault.kind not in RESTARTS and 0 <= delay.step - fault.step <= fault.slow_steps for fault in faults
    )
