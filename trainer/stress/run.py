"""The stress test: an undisturbed run, the same run under faults, and whether both are one."""

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson

from evalkit.bundle import WEIGHTS
from evalkit.canonical import sha256_file
from evalkit.console import say
from evalkit.errors import EvalkitError, IncompleteError, InputError
from evalkit.files import write_json_atomic
from trainer.checkpoint import step_folder
from trainer.stress.delays import Delay
from trainer.stress.job import Attempt, Job
from trainer.stress.plan import RESTARTS, Fault, Stress
from trainer.stress.recovery import Recovery, all_delays, judge_fault

# What a step's record holds that doesn't depend on the clock.
_TIMELESS = (
    "step", "epoch", "loss", "loss_scale", "overflow", "grad_norm", "learning_rate", "tokens", "sample_ids",
)  # fmt: skip


@dataclass(frozen=True)
class Check:
    """Something that must hold at the end."""

    name: str
    holds: bool
    evidence: str


@dataclass(frozen=True)
class StressReport:
    """Everything a stress test found.

    Attributes:
        reference: the undisturbed run's only attempt.
        strange_delays: delays noticed that no fault explains: the machine's own, or the detector's false alarms.
    """

    stress: Stress
    recoveries: tuple[Recovery, ...]
    checks: tuple[Check, ...]
    reference: Attempt
    attempts: tuple[Attempt, ...]
    strange_delays: tuple[Delay, ...]
    elapsed_s: float

    @property
    def as_promised(self) -> bool:
        """Whether every fault and every check is."""
        return all(item.as_promised for item in self.recoveries) and all(check.holds for check in self.checks)

    def to_json(self) -> dict[str, Any]:
        """stress.json."""
        return {
            "version": 1,
            "config": str(self.stress.config_path),
            "workers": self.stress.config.parallel.devices,
            "plan": self.stress.plan.model_dump(),
            "as_promised": self.as_promised,
            "faults": [item.to_json() for item in self.recoveries],
            "checks": [asdict(check) for check in self.checks],
            "reference": asdict(self.reference),
            "attempts": [asdict(attempt) for attempt in self.attempts],
            "strange_delays": [delay.to_json() for delay in self.strange_delays],
            "elapsed_s": self.elapsed_s,
        }


def run_stress(stress: Stress, out: Path) -> StressReport:
    """Run it all into the folder `out`, which must not exist; writes stress.json there.

    Raises:
        InputError: `out` exists, or the undisturbed run already fails.
        IncompleteError: interrupted; workers are ended.
    """
    if out.exists():
        raise InputError(f"{out}: exists already; remove it or choose another folder")
    started = time.monotonic()
    try:
        report = _run(stress, out, started)
    except KeyboardInterrupt:
        raise IncompleteError(
            f"interrupted; the workers are ended, {out} holds what they wrote; start it again with another --out"
        ) from None
    write_json_atomic(out / "stress.json", report.to_json())
    return report


def _run(stress: Stress, out: Path, started: float) -> StressReport:
    workers, plan = stress.config.parallel.devices, stress.plan

    def job(name: str) -> Job:
        return Job(out / name, stress.config_path, workers, plan.stall_timeout_s)

    reference, disturbed = job("reference"), job("disturbed")
    say(f"undisturbed run on {workers} worker{'s' * (workers > 1)}")
    for _ in _to_its_end(reference, (), plan.restart_limit, restarts=False):
        pass
    alone = reference.attempts[-1]
    if alone.code != 0:
        raise InputError(
            f"{stress.config_path}: the undisturbed run already fails ({alone.down_because}); see "
            f"{reference.folder / f'logs-{alone.number}'}"
        )
    say(f"the same under {len(stress.faults)} faults")
    running = [_to_its_end(disturbed, stress.faults, plan.restart_limit, restarts=True)]
    beside = job("beside") if plan.beside else None
    if beside is not None:
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
        time.monotonic() - started,
    )


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
