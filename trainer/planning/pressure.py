"""The pressure test: real training steps in processes of their own, to find the largest batch or sequence that fits.

On a CPU a process's memory is its resident set (VmHWM); it is watched while the steps run and the process killed as soon
as it passes the budget, which itself leaves the machine a reserve. Memory grows about linearly with the batch, so the
bracket is narrowed by interpolation first and by halving where that doesn't help.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from evalkit.console import say
from evalkit.errors import InputError
from trainer.planning.inputs import read_memory_file
from trainer.planning.memory import peak_stage, plan_training
from trainer.planning.pressure_trial import Trial, run_trial
from trainer.planning.settings import DeviceMemory, MemoryFile, Training
from trainer.planning.shapes import ModelShape

Vary = Literal["batch", "sequence"]
# Of the memory that the machine has left, a trial may take so much; the rest is for what a poll misses.
_SHARE = 0.6
_STEP = {"batch": 1, "sequence": 16}
_MOST = {"batch": 4096, "sequence": 1 << 16}
# The bracket is narrow enough when it is a twentieth of the value.
_PRECISION = 0.05


@dataclass(frozen=True)
class PressureResult:
    """What was found.

    Attributes:
        largest: value that fits, None where not even the smallest does; `too_large` the smallest tried that doesn't.
        growth_mib: measured, a unit between the smallest and the largest that fit; None where they are one.
        predicted_growth_mib: by the memory plan, over the same range.
    """

    vary: Vary
    budget_mib: float
    largest: int | None
    too_large: int | None
    growth_mib: float | None
    predicted_growth_mib: float
    trials: tuple[Trial, ...]

    @property
    def unit(self) -> str:
        """What a step of the value is."""
        return "row" if self.vary == "batch" else "position"

    def to_json(self) -> dict[str, Any]:
        """All fields."""
        return {**asdict(self), "trials": [asdict(trial) for trial in self.trials], "unit": self.unit}


def press(
    config: Path, changes: tuple[str, ...], vary: Vary, *, budget_mib: float | None = None
) -> PressureResult:
    """Find the largest batch (or sequence) whose steps stay within the budget on this machine.

    Raises:
        InputError: no training, more than one device, a model that this project doesn't compute, or a budget that the
            machine can't give.
    """
    plan, shape = read_memory_file(config, changes)
    training = plan.training
    if training is None or training.strategy.devices > 1:
        raise InputError(
            "--pressure: runs the steps of one device here; give a training with data, model and pipeline 1"
        )
    budget = _budget(budget_mib)
    description = training_description(plan, shape)

    def run(value: int) -> Trial:
        trial = run_trial({**description, **_varied(vary, value)}, value, budget)
        say(f"{vary} {value}: {'fits' if trial.fits else 'does not fit'}, {trial.why}")
        return trial

    trials = search(run, step=_STEP[vary], most=_most(vary, shape), budget_mib=budget)
    fitting = sorted((trial for trial in trials if trial.fits), key=lambda trial: trial.value)
    growth: float | None = None
    first, last = (fitting[0].value, fitting[-1].value) if fitting else (1, 2)
    if len(fitting) > 1 and fitting[0].peak_mib is not None and fitting[-1].peak_mib is not None:
        growth = (fitting[-1].peak_mib - fitting[0].peak_mib) / (last - first)
    return PressureResult(
        vary=vary,
        budget_mib=budget,
        largest=fitting[-1].value if fitting else None,
        too_large=min((trial.value for trial in trials if not trial.fits), default=None),
        growth_mib=growth,
        predicted_growth_mib=_predicted_growth(shape, training, vary, first, max(last, first + _STEP[vary])),
        trials=tuple(trials),
    )


def search(run: Callable[[int], Trial], *, step: int, most: int, budget_mib: float) -> list[Trial]:
    """Trials until the largest value that fits is known to a twentieth (or one step).

    Args:
        run: one trial of a value.
        step: values are multiples of it.
        most: largest value to try.
        budget_mib: what the peaks are held against, to guess the next value.
    """
    trials = [run(step)]
    if not trials[0].fits:
        return trials
    low, high = trials[0], None
    value = min(2 * step, most)
    while value > low.value:
        trial = run(value)
        trials.append(trial)
        if trial.fits:
            low = trial
        else:
            high = trial.value
        ceiling = most + step if high is None else high
        if ceiling - low.value <= max(step, _PRECISION * low.value):
            break
        value = _next(trials, low.value, ceiling, step, budget_mib)
    return trials


def _next(trials: list[Trial], low: int, ceiling: int, step: int, budget_mib: float) -> int:
    """A value between: what a line through the fitting peaks says, kept off the ends; the middle where it can't."""
    fitting = sorted(
        (trial.value, trial.peak_mib) for trial in trials if trial.fits and trial.peak_mib is not None
    )
    guess: int | None = None
    if len(fitting) > 1:
        (x0, y0), (x1, y1) = fitting[0], fitting[-1]
        if y1 > y0:
            guess = int(x1 + (budget_mib - y1) * (x1 - x0) / (y1 - y0))
    failed = any(not trial.fits for trial in trials)
    if not failed:
        # Nothing has failed yet: go on carefully, so that a wrong line doesn't ask for a hundred times the memory.
        guess = min(max(2 * low if guess is None else guess, low + step), 4 * low)
    else:
        # A guess beside an end would narrow the bracket by one step only, should it be wrong.
        margin = max(step, (ceiling - low) // 8)
        guess = (low + ceiling) // 2 if guess is None else min(max(guess, low + margin), ceiling - margin)
    return max(low + step, min(guess // step * step, ceiling - step))


def training_description(plan: MemoryFile, shape: ModelShape) -> dict[str, Any]:
    """What the child needs to build the model and its step.

    Raises:
        InputError: a model that `trainer train` doesn't compute.
    """
    training = plan.training
    assert training is not None
    if shape.qkv_bias or shape.qk_norm or shape.query_size != shape.hidden_size:
        raise InputError(
            "--pressure: heads of another width and biases on queries, keys and values only aren't computed here"
        )
    recompute = training.strategy.recompute
    if recompute == "selective":
        raise InputError(
            "--pressure: recompute selective isn't computed here; attention, full and segments are"
        )
    kind = "selective" if recompute == "attention" else recompute
    return {
        "model": {
            "family": "llama" if shape.activation == "swiglu" else "gpt2",
            **shape.model_dump(
                include={
                    "hidden_size", "layers", "heads", "kv_heads", "intermediate_size", "vocab_size", "max_length",
                    "activation", "norm", "positions", "tied_head", "bias",
                }
            ),
        },
        "recompute": kind if isinstance(kind, str) else kind.model_dump(),
        "sequence_length": training.sequence_length,
        "batch_size": training.strategy.micro_batch_size * training.strategy.micro_batches,
    }  # fmt: skip


def _varied(vary: Vary, value: int) -> dict[str, int]:
    return {"batch_size": value} if vary == "batch" else {"sequence_length": value}


def _most(vary: Vary, shape: ModelShape) -> int:
    return _MOST["batch"] if vary == "batch" else min(_MOST["sequence"], shape.max_length)


def _predicted_growth(shape: ModelShape, training: Training, vary: Vary, first: int, last: int) -> float:
    def total(value: int) -> float:
        changed = training
        if vary == "sequence":
            changed = training.model_copy(update={"sequence_length": value})
        else:
            strategy = training.strategy.model_copy(update={"micro_batch_size": value, "micro_batches": 1})
            changed = training.model_copy(update={"strategy": strategy})
        device = DeviceMemory(hccl_buffer_mib=0, workspace_mib=0, fragmentation=1)
        return peak_stage(plan_training(shape, changed, device)).total_mib

    return (total(last) - total(first)) / (last - first)


def _budget(budget_mib: float | None) -> float:
    available = _available_mib()
    most = _SHARE * available
    if budget_mib is None:
        return most
    if budget_mib > most:
        raise InputError(
            f"--budget-mib {budget_mib:,.0f}: this machine has {available:,.0f} MiB left, of which a trial may take "
            f"{most:,.0f}; give less"
        )
    return budget_mib


def _available_mib() -> float:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) / 1024
    raise InputError("--pressure: this system doesn't say how much memory is left (no MemAvailable)")
