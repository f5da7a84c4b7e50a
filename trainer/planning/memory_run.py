"""`trainer memory` from its arguments to its report."""

import math
from pathlib import Path

from evalkit.errors import InputError
from trainer.planning.graph_dump import read_graph
from trainer.planning.inputs import read_memory_file
from trainer.planning.memory import StageMemory, peak_stage, plan_inference, plan_training
from trainer.planning.memory_report import MemoryReport
from trainer.planning.recompute import Choice, Frontier, frontier
from trainer.planning.reconcile import DryRun, dry_run_total_mib, read_dry_run, reconcile
from trainer.planning.settings import DeviceMemory, Training
from trainer.planning.shapes import ModelShape
from trainer.planning.static_plan import plan_graph

# A pebibyte: a machine room holds as much, a rank doesn't.
_MOST_MIB = 2**30


def plan_memory(
    config: Path,
    changes: tuple[str, ...] = (),
    *,
    dry_runs: tuple[str, ...] = (),
    graph: Path | None = None,
    recompute: bool = False,
) -> MemoryReport:
    """The plan of a file, with what was asked for beside it.

    Args:
        config: see `read_memory_file`.
        changes: FIELD=VALUE each.
        dry_runs: [STAGE=]LOG each; the stage is 0 where none is named.
        graph: a dumped graph whose static plan is wanted.
        recompute: whether to look for the cheapest recomputation that fits.

    Raises:
        InputError: see `read_memory_file`; or a cut, log or graph that can't be used.
    """
    plan, shape = read_memory_file(config, changes)
    if plan.training is not None:
        stages = plan_training(shape, plan.training, plan.device)
    else:
        assert plan.inference is not None
        stages = plan_inference(shape, plan.inference, plan.device)
    _check_size(config, peak_stage(stages))
    found: Frontier | None = None
    choices: dict[int, Choice | None] = {}
    if recompute:
        if plan.training is None:
            raise InputError("--recompute: only a training recomputes; leave it out")
        found, choices = _recompute(shape, plan.training, plan.device)
    return MemoryReport(
        plan=plan,
        shape=shape,
        stages=stages,
        dry_runs=_dry_runs(dry_runs, stages, plan.device),
        residuals=tuple(reconcile(stages, plan.measured)),
        frontier=found,
        choices=choices,
        graph=None if graph is None else plan_graph(read_graph(graph)),
    )


def _check_size(config: Path, stage: StageMemory) -> None:
    """Numbers that are each possible, and together can't be meant."""
    if stage.total_mib <= _MOST_MIB:
        return
    term = max(stage.terms_mib, key=lambda name: stage.terms_mib[name])
    raise InputError(
        f"{config}: {stage.total_mib / 1024:.2g} GiB on one rank can't be meant, {stage.terms_mib[term] / stage.total_mib:.0%} "
        f"of it {term}; check the model's and the step's numbers (sequence_length, micro_batch_size, flash_attention)"
    )


def _recompute(
    shape: ModelShape, training: Training, device: DeviceMemory
) -> tuple[Frontier, dict[int, Choice | None]]:
    """The frontier on the fullest stage, counted from no recomputation at all, and each stage's cheapest that fits."""
    if device.memory_gib is None:
        raise InputError(
            "--recompute: needs device.memory_gib to know what fits; add it or give --set device.memory_gib=N"
        )
    strategy = training.strategy.model_copy(update={"recompute": "none"})
    plain = training.model_copy(update={"strategy": strategy})
    stages = plan_training(shape, plain, device)
    choices: dict[int, Choice | None] = {}
    for stage in stages:
        # Fragments grow with the pool, so that a byte saved frees as much more.
        excess_mib = (stage.total_mib - device.memory_gib * 1024) / device.fragmentation
        found = frontier(shape, plain, stage.stage)
        choices[stage.stage] = found.cheapest(max(0, math.ceil(excess_mib * 2**20)))
    return frontier(shape, plain, peak_stage(stages).stage), choices


def _dry_runs(
    given: tuple[str, ...], stages: tuple[StageMemory, ...], device: DeviceMemory
) -> dict[int, tuple[DryRun, float]]:
    found: dict[int, tuple[DryRun, float]] = {}
    for text in given:
        number, equals, path = text.partition("=")
        staged = bool(equals) and number.isdecimal()
        stage = int(number) if staged else 0
        log = Path(path if staged else text)
        if stage >= len(stages):
            raise InputError(f"--dry-run {text}: the plan has stages 0 to {len(stages) - 1}")
        if stage in found:
            raise InputError(f"--dry-run {text}: stage {stage} was given twice")
        run = read_dry_run(log)
        found[stage] = (run, dry_run_total_mib(run, stages[stage], device))
    return found
