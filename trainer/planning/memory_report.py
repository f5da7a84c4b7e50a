"""The result of `trainer memory`: verdict, JSON and text table."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from trainer.planning.accuracy import MEMORY, POOL
from trainer.planning.memory import StageMemory, fits, hccl_buffer_advice_mib, peak_stage
from trainer.planning.parameters import total_parameters
from trainer.planning.recompute import Choice, Frontier
from trainer.planning.reconcile import DryRun, Residual
from trainer.planning.settings import MemoryFile
from trainer.planning.shapes import ModelShape
from trainer.planning.static_plan import StaticPlan

_ONLY_FITS = "none fits"
# Of a frontier of thousands of choices so many are shown, evenly over the bytes.
_SHOWN_CHOICES = 12


@dataclass(frozen=True)
class MemoryReport:
    """A plan and what was set beside it.

    Attributes:
        dry_runs: stage → MindSpore's own replay, and everything on the device by it.
        residuals: measured figures beside the plan.
        frontier: what recomputation could save on the fullest stage.
        choices: stage → the cheapest recomputation that fits; None where none does.
        graph: the static plan of a dumped graph.
    """

    plan: MemoryFile
    shape: ModelShape
    stages: tuple[StageMemory, ...]
    dry_runs: dict[int, tuple[DryRun, float]]
    residuals: tuple[Residual, ...] = ()
    frontier: Frontier | None = None
    choices: Mapping[int, Choice | None] = field(default_factory=dict)
    graph: StaticPlan | None = None

    @property
    def peak(self) -> StageMemory:
        """The stage that takes most."""
        return peak_stage(self.stages)

    @property
    def peak_mib(self) -> float:
        """Of all stages; by dry run where there is one."""
        return max(self.stage_mib(stage) for stage in self.stages)

    def stage_mib(self, stage: StageMemory) -> float:
        """Everything on the device; from the dry run where there is one."""
        dry_run = self.dry_runs.get(stage.stage)
        return stage.total_mib if dry_run is None else dry_run[1]

    @property
    def hccl_buffer_advice_mib(self) -> int | None:
        """What HCCL_BUFFSIZE should be for a cut training; None where nothing is exchanged."""
        training = self.plan.training
        if training is None or training.strategy.devices == 1:
            return None
        return hccl_buffer_advice_mib(self.shape, training)

    @property
    def verdict(self) -> Literal["fits", "too close", "doesn't fit"] | None:
        """None where the file names no memory."""
        memory = self.plan.device.memory_gib
        if memory is None:
            return None
        every_stage_replayed = all(stage.stage in self.dry_runs for stage in self.stages)
        error = POOL.relative_error if every_stage_replayed else MEMORY.relative_error
        return fits(self.peak_mib, memory, error)

    def to_json(self) -> dict[str, Any]:
        """One object; sizes carry their unit in the name."""
        return {
            "name": self.plan.name,
            "verdict": self.verdict,
            "peak_mib": round(self.peak_mib, 3),
            "memory_mib": None if self.plan.device.memory_gib is None else self.plan.device.memory_gib * 1024,
            "parameters": total_parameters(self.shape),
            "hccl_buffer_advice_mib": self.hccl_buffer_advice_mib,
            "accuracy": MEMORY.to_json(),
            "pool_accuracy": POOL.to_json(),
            "plan": self.plan.model_dump(mode="json", exclude_unset=True),
            "stages": [stage.to_json() for stage in self.stages],
            "dry_runs": [
                {
                    "stage": stage,
                    "used_mib": run.used_mib,
                    "actual_mib": run.actual_mib,
                    "device_total_mib": round(total, 3),
                    "doubt": run.doubt,
                }
                for stage, (run, total) in self.dry_runs.items()
            ],
            "residuals": [row.to_json() for row in self.residuals],
            "recompute": self._recompute_json(),
            "graph": None if self.graph is None else self.graph.to_json(),
        }

    def _recompute_json(self) -> dict[str, Any] | None:
        if self.frontier is None:
            return None
        return {
            "candidates": [item.to_json() for item in self.frontier.candidates],
            "cheapest_that_fits": [
                {"stage": stage, "choice": None if choice is None else choice.to_json()}
                for stage, choice in self.choices.items()
            ],
            "frontier": [choice.to_json() for choice in shown_choices(self.frontier)],
        }


def choice_text(choice: Choice | None) -> str:
    """What recomputes, and what it costs."""
    if choice is None:
        return _ONLY_FITS
    names = ", ".join(f"{name} × {count}" for name, count in choice.layers.items())
    return f"{names} (+{100 * choice.extra_share:.2f} % operations)" if names else "nothing"


def shown_choices(frontier: Frontier) -> tuple[Choice, ...]:
    """Some of the frontier's choices, from first to last, about evenly spaced in bytes saved."""
    choices = frontier.choices
    if len(choices) <= _SHOWN_CHOICES:
        return choices
    most = choices[-1].saved_bytes
    wanted = [most * step / (_SHOWN_CHOICES - 1) for step in range(_SHOWN_CHOICES)]
    indices = {
        next(index for index, choice in enumerate(choices) if choice.saved_bytes >= bytes_saved)
        for bytes_saved in wanted
    }
    return tuple(choices[index] for index in sorted(indices))
