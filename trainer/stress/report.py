"""What a stress test found."""

from dataclasses import asdict, dataclass
from typing import Any

from trainer.stress.delays import Delay
from trainer.stress.job import Attempt
from trainer.stress.plan import Stress
from trainer.stress.recovery import Recovery


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
        struck_anew: faults that a test which was ended half-way had to repeat.
        elapsed_s: since the test was started, the last time.
    """

    stress: Stress
    recoveries: tuple[Recovery, ...]
    checks: tuple[Check, ...]
    reference: Attempt
    attempts: tuple[Attempt, ...]
    strange_delays: tuple[Delay, ...]
    struck_anew: int
    elapsed_s: float

    @property
    def times_taken_up(self) -> int:
        """How often the test itself was ended and went on."""
        return sum(attempt.interrupted for attempt in self.attempts)

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
            "times_taken_up": self.times_taken_up,
            "struck_anew": self.struck_anew,
            "elapsed_s": self.elapsed_s,
        }
