"""Running a baseline: 100 samples, 3 steps, everything recorded."""

import csv
import math
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
from mindspore.train import Callback, RunContext

from evalkit.bundle import TOKENIZER, WEIGHTS
from evalkit.canonical import sha256_file, sha256_json
from evalkit.errors import InputError
from evalkit.files import write_bytes_atomic, write_json_atomic
from evalkit.runs.plan import environment
from trainer.baseline.compare import Difference, compare
from trainer.baseline.record import BaselineRecord, BaselineStep, read_record
from trainer.baseline.trends import check_trends
from trainer.config import TokenizerConfig, TrainConfig
from trainer.data.pipeline import prepare
from trainer.loop import train
from trainer.run_log import LOG
from trainer.timeline.run import analyse

SAMPLES, STEPS = 100, 3
RECORD, TIMELINE, FIRST, LAST = "baseline.json", "timeline.json", "first", "last"

# Variables of the environment that change how MindSpore computes.
_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MS_DEV_RUNTIME_CONF",
    "MS_JIT",
    "CUDA_VISIBLE_DEVICES",
)


@dataclass(frozen=True)
class BaselineResult:
    """What a baseline run found.

    Attributes:
        record: of this run.
        folder: where its files lie.
        differences: to the first run in the folder; None where this was the first.
    """

    record: BaselineRecord
    folder: Path
    differences: list[Difference] | None


def run_baseline(config: TrainConfig, folder: Path, out: Path) -> BaselineResult:
    """Train a few steps on the first samples with everything recorded; compare with the first run in `out`.

    `out`/first holds the first run, `out`/last the newest later one: baseline.json, samples.jsonl, graphs/ (the graphs
    as they were compiled), run/ (log, checkpoint, the profiler's files), timeline.json (what `trainer timeline` says of
    them). Call it in a process of its own: MindSpore decides at its first graph whether graphs are written down.

    Args:
        config: the configuration; its evaluation, checkpoints and callbacks are left out.
        folder: its relative paths start here.
        out: what an earlier call wrote is compared with.

    Raises:
        InputError: bad data or configuration, or a broken record.
        RuntimeError: MindSpore had compiled a graph in this process before.
    """
    before = read_record(out / FIRST / RECORD) if (out / FIRST).is_dir() else None
    target = out / (FIRST if before is None else LAST)
    staging = out / f".{target.name}"
    for old in (staging, target):
        shutil.rmtree(old, ignore_errors=True)
    try:
        record = _record(config, folder, staging)
        write_json_atomic(staging / RECORD, record.model_dump(mode="json", by_alias=True))
        staging.rename(target)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise
    return BaselineResult(record, target, None if before is None else compare(before, record))


class _Measure(Callback):  # type: ignore[misc]
    """Ends the run after a few steps; measures the samples before and after."""

    def __init__(self) -> None:
        super().__init__()
        self.perplexity: list[float | None] = []

    def on_train_begin(self, run_context: RunContext) -> None:
        self._measure(run_context)

    def on_train_step_end(self, run_context: RunContext) -> None:
        if run_context.original_args().cur_step_num == STEPS:
            run_context.request_stop()

    def on_train_end(self, run_context: RunContext) -> None:
        self._measure(run_context)

    def _measure(self, run_context: RunContext) -> None:
        arguments = run_context.original_args()
        self.perplexity.append(arguments.train_network.perplexity(arguments.train_dataset.validation))


def _record(config: TrainConfig, folder: Path, staging: Path) -> BaselineRecord:
    samples = staging / "samples.jsonl"
    write_bytes_atomic(samples, _first_samples([folder / name for name in config.data.train]))
    write_bytes_atomic(staging / TOKENIZER, prepare(config, folder).tokenizer_json)
    short = config.model_copy(
        update={
            # The same samples are measured before and after: single steps see different ones, whose losses differ.
            "data": config.data.model_copy(update={"train": [samples.name], "validation": [samples.name]}),
            "tokenizer": TokenizerConfig(file=TOKENIZER),
            "profile": config.profile.model_copy(update={"first_step": 1, "steps": STEPS}),
            "checkpoints": None,
            "evaluation": None,
            "callbacks": (),
            "out": None,
        }
    )
    measure = _Measure()
    with _saved_graphs(staging / "graphs"):
        summary = train(short, staging, staging / "run", profile=True, callbacks=[measure])
    steps = tuple(
        BaselineStep(**{name: entry[name] for name in BaselineStep.model_fields})
        for entry in map(orjson.loads, (staging / "run" / LOG).read_bytes().splitlines())
    )
    write_json_atomic(staging / TIMELINE, analyse(staging / "run" / "profile").to_json())
    before, after = (None if value is None else math.log(value) for value in measure.perplexity)
    return BaselineRecord(
        name=config.name,
        config=orjson.loads(orjson.dumps(short.model_dump())),
        config_sha256=sha256_json(short.model_dump()),
        data_sha256=sha256_file(samples),
        environment=_environment(),
        steps=steps,
        loss_before=before,
        loss_after=after,
        weights_sha256=sha256_file(summary.checkpoint / WEIGHTS),
        operators=_operators(staging / "run" / "profile"),
        graphs=tuple(file.read_bytes().count(b"\n") for file in sorted((staging / "graphs").iterdir())),
        trends=check_trends(steps, before, after, short),
    )


def _first_samples(files: list[Path]) -> bytes:
    """The first records of JSON Lines files, or the first lines of texts as records."""
    lines: list[bytes] = []
    for file in files:
        if not file.is_file():
            raise InputError(f"{file}: no such file; check data.train")
        for number, line in enumerate(file.read_bytes().split(b"\n"), start=1):
            if not line.strip() or len(lines) == SAMPLES:
                continue
            if file.suffix != ".jsonl":
                text = line.decode("utf-8", "replace")
                line = orjson.dumps({"id": f"{file.name}:{number}", "text": text})
            lines.append(line.rstrip(b"\r") + b"\n")
    return b"".join(lines)


@contextmanager
def _saved_graphs(folder: Path) -> Iterator[None]:
    """Within the block MindSpore writes down the graphs that it compiles; the final form of each is kept."""
    wanted = {"MS_DEV_SAVE_GRAPHS": "1", "MS_DEV_SAVE_GRAPHS_PATH": str(folder / "all")}
    previous = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    folder.mkdir(parents=True)
    try:
        yield
    finally:
        for name, value in previous.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
    finals = sorted((folder / "all").rglob("*_validate_*.ir"), key=lambda file: file.stat().st_mtime_ns)
    for number, file in enumerate(finals, start=1):
        file.rename(folder / f"graph-{number:02d}.ir")
    shutil.rmtree(folder / "all", ignore_errors=True)
    if not finals:
        raise RuntimeError("MindSpore wrote no graphs; a baseline needs a process of its own")


def _operators(profile: Path) -> dict[str, int]:
    tables = list(profile.rglob("cpu_op_type_info_*.csv"))
    if not tables:
        return {}  # an Ascend device writes other tables
    with tables[0].open(newline="") as stream:
        return {row["op_type"]: int(row["type_occurrences"]) for row in csv.DictReader(stream)}


def _environment() -> dict[str, Any]:
    import mindspore as ms

    return {
        **environment(),
        "device": ms.get_context("device_target"),
        "variables": {name: os.environ.get(name) for name in _VARIABLES},
    }
