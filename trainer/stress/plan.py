"""The stress test's file, `version: 1`: which training, which faults, at which steps."""

import math
import random
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import Field, model_validator

from evalkit.errors import InputError
from evalkit.yaml_source import YamlSource
from trainer.config import TrainConfig, load_config
from trainer.configuration.strict import Positive, Strict
from trainer.regular_file import require_regular

Kind = Literal["kill", "corrupt_checkpoint", "delay_checkpoint", "full_disk", "slow_rank", "hang"]
# What a fault must lead to: a job that is down and comes back, or one that goes on and whose delay is noticed.
RESTARTS: frozenset[Kind] = frozenset({"kill", "corrupt_checkpoint", "full_disk", "hang"})


class FaultCounts(Strict):
    """How many faults of each kind."""

    kill: int = Field(default=0, ge=0, le=1000)
    corrupt_checkpoint: int = Field(default=0, ge=0, le=1000)
    delay_checkpoint: int = Field(default=0, ge=0, le=1000)
    full_disk: int = Field(default=0, ge=0, le=1000)
    slow_rank: int = Field(default=0, ge=0, le=1000)
    hang: int = Field(default=0, ge=0, le=1000)


class StressPlan(Strict):
    """The whole file.

    Attributes:
        config: a training configuration with `checkpoints`; `parallel.data` is the number of workers.
        seed: of the faults' order, steps and ranks.
        kill_share: of the workers, rounded up, that a `kill` ends.
        delay_s: by which a checkpoint is delayed, and a slow rank in each of its steps.
        slow_steps: for how many steps a rank is slow.
        stall_timeout_s: a job whose log doesn't grow for so long counts as hung, and is ended and restarted; longer than a
            start takes.
        restart_limit: restarts in a row without one new step, after which the job is given up.
        beside: run a second, undisturbed job at the same time, which must notice nothing.
    """

    version: Literal[1]
    config: str
    seed: int = Field(default=0, ge=0)
    faults: FaultCounts
    kill_share: float = Field(default=0.5, gt=0, le=1)
    delay_s: float = Field(default=1.5, ge=0.2, le=600)
    slow_steps: Positive = 2
    stall_timeout_s: float = Field(default=120.0, ge=5)
    restart_limit: Positive = 3
    beside: bool = False

    @model_validator(mode="after")
    def _some(self) -> "StressPlan":
        if not any(self.faults.model_dump().values()):
            raise ValueError("faults: all counts are 0; ask for at least one fault")
        return self


@dataclass(frozen=True)
class Fault:
    """One fault.

    Attributes:
        number: from 1, by step.
        step: it strikes as this step begins (delay_checkpoint: when this step's checkpoint is written).
        ranks: the workers it strikes.
    """

    number: int
    kind: Kind
    step: int
    ranks: tuple[int, ...]
    delay_s: float
    slow_steps: int

    def to_json(self) -> dict[str, Any]:
        """For the workers and the report."""
        return asdict(self)


@dataclass(frozen=True)
class Stress:
    """A plan with its training configuration and its faults."""

    plan: StressPlan
    config_path: Path
    config: TrainConfig
    faults: tuple[Fault, ...]


def load_stress(path: Path) -> Stress:
    """Read a stress plan and draw its faults.

    Raises:
        InputError: the plan or the training configuration is broken, or too short for that many faults.
    """
    require_regular(path)
    source = YamlSource(path)
    plan = source.parse(StressPlan)
    config_path = path.parent / plan.config
    config = load_config(config_path)
    if config.checkpoints is None:
        raise source.error(
            ("config",), f"{config_path} names no checkpoints; without them each fault starts the run anew"
        )
    try:
        faults = draw_faults(plan, config)
    except InputError as error:
        raise source.error(("faults",), str(error)) from None
    return Stress(plan, config_path, config, faults)


def draw_faults(plan: StressPlan, config: TrainConfig) -> tuple[Fault, ...]:
    """Kinds in random order, a random step and random workers each; the same seed gives the same faults.

    Each fault has its own stretch of steps, at least a checkpoint's distance and three steps long, so that one is over
    before the next one strikes. A corrupted checkpoint is the newest of two, or nothing would be left to go on from.

    Raises:
        InputError: the run has too few steps.
    """
    generator = random.Random(plan.seed)
    kinds: list[Kind] = [kind for kind in get_args(Kind) for _ in range(getattr(plan.faults, kind))]
    generator.shuffle(kinds)
    assert config.checkpoints is not None
    every = config.checkpoints.every
    first, stretch = 2 * every + 2, max(every, plan.slow_steps) + 3
    if config.checkpoints.keep_last < 2 and "corrupt_checkpoint" in kinds:
        raise InputError("corrupt_checkpoint needs checkpoints.keep_last of 2 or more in the configuration")
    needed = first + len(kinds) * stretch
    if config.steps < needed:
        raise InputError(
            f"{len(kinds)} faults need a run of at least {needed} steps, the configuration has {config.steps}"
        )
    stretch = (config.steps - first) // len(kinds)
    workers = config.parallel.devices
    faults = []
    for index, kind in enumerate(kinds):
        begin = first + index * stretch
        step = begin + generator.randrange(max(1, stretch - plan.slow_steps - 2))
        if kind in ("delay_checkpoint", "full_disk"):
            step = -(-step // every) * every  # where a checkpoint is due
        hit = 1 if kind != "kill" else min(workers, math.ceil(plan.kill_share * workers))
        ranks = (
            (0,)  # the one that writes
            if kind in ("delay_checkpoint", "full_disk", "corrupt_checkpoint")
            else tuple(sorted(generator.sample(range(workers), hit)))
        )
        faults.append(Fault(index + 1, kind, step, ranks, plan.delay_s, plan.slow_steps))
    return tuple(faults)
