"""Measured steps to calibrate on: a table of runs (CSV or JSON Lines), or run folders of `trainer train`."""

import json
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError, model_validator

from evalkit.errors import InputError
from evalkit.files import read_text
from evalkit.yaml_source import YamlSource
from trainer.configuration.strict import Strict
from trainer.csv_rows import csv_rows, require_columns
from trainer.planning.settings import Strategy, Training
from trainer.planning.shapes import ModelShape
from trainer.regular_file import require_regular

_SHAPE = (
    "hidden_size", "layers", "heads", "kv_heads", "head_size", "intermediate_size", "vocab_size", "max_length",
    "activation", "norm", "positions", "tied_head", "bias", "qkv_bias", "qk_norm",
)  # fmt: skip
_STRATEGY = (
    "data", "model", "pipeline", "micro_batch_size", "sequence_parallel", "schedule", "interleave", "zero_stage",
    "recompute",
)  # fmt: skip
_TRAINING = (
    "sequence_length",
    "gradient_type",
    "flash_attention",
    "fused_activation",
    "dropout",
    "logits_bytes",
)
_OWN = ("seconds_per_step", "tflops_per_device", "memory_gib", "out_of_memory", "rows_per_step")
_FLAGS = (
    "tied_head", "bias", "qkv_bias", "qk_norm", "sequence_parallel", "flash_attention", "fused_activation", "dropout",
    "out_of_memory",
)  # fmt: skip
COLUMNS: tuple[str, ...] = (*_SHAPE, *_STRATEGY, *_TRAINING, *_OWN)
# The first steps of a run compile and warm up.
_WARM_UP_STEPS = 2


class TableMap(Strict):
    """MAP.yaml: how a table of others becomes one of ours.

    Attributes:
        columns: our name → theirs.
        constants: our name → what holds in every row.
        values: our name → their value → ours.
        where: their name → the value that a row must have to be read.
    """

    version: int = Field(default=1, ge=1, le=1)
    columns: dict[str, str] = Field(default={})
    constants: dict[str, str | int | float | bool] = Field(default={})
    values: dict[str, dict[str, str]] = Field(default={})
    where: dict[str, str] = Field(default={})

    @model_validator(mode="after")
    def _known(self) -> "TableMap":
        unknown = sorted((set(self.columns) | set(self.constants) | set(self.values)) - set(COLUMNS))
        if unknown:
            raise ValueError(f"{', '.join(unknown)}: not a column; there are {', '.join(COLUMNS)}")
        return self


@dataclass(frozen=True)
class Measurement:
    """One run.

    Attributes:
        where: file and line, or the run folder.
        seconds: of a step; None where it wasn't measured.
        tflops: a device's rate as the run logged it, hardware operations; None where it didn't.
        memory_gib: peak of a device; None where it wasn't measured.
        out_of_memory: True where it didn't run for want of memory.
    """

    where: str
    shape: ModelShape
    training: Training
    seconds: float | None
    memory_gib: float | None
    out_of_memory: bool
    tflops: float | None = None


def read_measurements(
    path: Path, mapping: TableMap | None = None, defaults: dict[str, Any] | None = None
) -> list[Measurement]:
    """The runs in a table or in a run folder of `trainer train`.

    Args:
        path: .csv, .jsonl (our column names unless `mapping` says others), or a folder with log.jsonl and checkpoints/.
        mapping: of a table.
        defaults: our column → value, where a table has no such column.

    Raises:
        InputError: unreadable, no rows, or a value that can't be; names the line.
    """
    if path.is_dir():
        return [_run_folder(path)]
    mapping = mapping or TableMap()
    read = list(_rows(path))
    require_columns(
        path, (*mapping.columns.values(), *mapping.where), {name for _, row in read for name in row}
    )
    rows = [
        _measurement(where, _ours(row, mapping, defaults or {}))
        for where, row in read
        if all(str(row.get(name, "")).strip() == value for name, value in mapping.where.items())
    ]
    if not rows:
        raise InputError(f"{path}: no measurements; check the file and `where` of the map")
    return rows


def read_map(path: Path) -> TableMap:
    """A map from YAML; every problem is an InputError with its line."""
    return YamlSource(path).parse(TableMap)


def _rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    if path.suffix == ".csv":
        yield from ((f"{path}:{line}", dict(row)) for line, row in csv_rows(path))
        return
    require_regular(path)
    text = read_text(path)
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            record = None
        if not isinstance(record, dict):
            raise InputError(f"{path}:{number}: not a JSON object; give .csv or .jsonl")
        yield f"{path}:{number}", record


def _ours(row: dict[str, Any], mapping: TableMap, defaults: dict[str, Any]) -> dict[str, Any]:
    """A row under our names; empty cells are left out."""
    found: dict[str, Any] = dict(defaults)
    for name in COLUMNS:
        value = row.get(mapping.columns.get(name, name))
        if isinstance(value, str):
            value = value.strip()
        if value is not None and value != "":
            found[name] = mapping.values.get(name, {}).get(str(value), value)
    return found | mapping.constants


def _measurement(where: str, row: dict[str, Any]) -> Measurement:
    try:
        values = {name: _cell(name, value) for name, value in row.items()}
        shape_fields = {name: values[name] for name in _SHAPE if name in values}
        if "intermediate_size" not in shape_fields and "hidden_size" in shape_fields:
            raise ValueError("intermediate_size is missing; add the column or a constant")
        shape = ModelShape.model_validate(shape_fields)
        strategy_fields = {name: values[name] for name in _STRATEGY if name in values}
        rows = _positive(where, "rows_per_step", values)
        if rows is None:
            raise ValueError("rows_per_step is missing; add the column or a constant")
        strategy = Strategy.model_validate(strategy_fields)
        # A table's global batch isn't always a multiple: the last micro-batch is then smaller, or the figure rounded.
        micro_batches = max(1, round(rows / strategy.rows))
        training = Training.model_validate(
            {
                **{name: values[name] for name in _TRAINING if name in values},
                "strategy": Strategy.model_validate({**strategy_fields, "micro_batches": micro_batches}),
            }
        )
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        field = ".".join(map(str, problem["loc"]))
        message = problem["msg"].removeprefix("Value error, ")
        raise InputError(f"{where}: {field}: {message}" if field else f"{where}: {message}") from None
    except ValueError as error:
        raise InputError(f"{where}: {error}") from None
    return Measurement(
        where=where,
        shape=shape,
        training=training,
        seconds=_positive(where, "seconds_per_step", values),
        memory_gib=_positive(where, "memory_gib", values),
        out_of_memory=values.get("out_of_memory", False),
        tflops=_positive(where, "tflops_per_device", values),
    )


def _cell(name: str, value: Any) -> Any:
    """A cell's number where it is one, whole numbers as such; of a flag whether it holds.

    Raises:
        ValueError: a flag that is neither true, false, 1 nor 0.
    """
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            value = {"true": True, "false": False}.get(value.lower(), value)
    if name in _FLAGS:
        if isinstance(value, str) or value not in (0, 1):
            raise ValueError(f"{name}: true or false is needed, found {value!r}")
        return bool(value)
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _positive(where: str, name: str, values: dict[str, Any]) -> float | None:
    value = values.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise InputError(f"{where}: {name}: a positive number is needed, found {value!r}")
    return float(value)


def _run_folder(folder: Path) -> Measurement:
    """The median step of a run, after its first steps."""
    from trainer.checkpoint import read_checkpoint
    from trainer.config import TrainConfig
    from trainer.planning.inputs import training_plan

    meta = read_checkpoint(folder).meta
    config = TrainConfig.model_validate(meta.config)
    log = folder / "log.jsonl"
    if not log.is_file():
        raise InputError(f"{log}: no such file; give a whole run folder")
    times = [
        float(record["elapsed_ns"]) / 1e9
        for _, record in _rows(log)
        if isinstance(record.get("elapsed_ns"), int | float)
    ]
    steps = [later - earlier for earlier, later in pairwise(times)][_WARM_UP_STEPS - 1 :]
    # Where a run was resumed its clock may go back.
    steps = [seconds for seconds in steps if seconds > 0]
    if not steps:
        raise InputError(f"{log}: fewer than {_WARM_UP_STEPS + 1} steps with their times; train longer")
    plan = training_plan(config, meta.model)
    assert plan.training is not None and isinstance(plan.model, ModelShape)
    strategy = plan.training.strategy
    batches = strategy.model_copy(update={"micro_batches": strategy.micro_batches * config.accumulation})
    return Measurement(
        where=str(folder),
        shape=plan.model,
        training=plan.training.model_copy(update={"strategy": batches}),
        seconds=statistics.median(steps),
        memory_gib=None,
        out_of_memory=False,
    )
