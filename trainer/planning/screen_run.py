"""`trainer screen` from its arguments to its files."""

import csv
import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from evalkit.errors import InputError
from evalkit.files import folder_atomic, write_json_atomic
from evalkit.yaml_source import load_yaml
from trainer.configuration.parallel import ParallelConfig
from trainer.planning.calibration import MemoryFit, fit_memory, fit_times
from trainer.planning.cluster import ClusterFile, ScreenFile
from trainer.planning.doubts import find_doubts
from trainer.planning.measurements import Measurement, read_map, read_measurements
from trainer.planning.screening import Screened, Screening, screen
from trainer.planning.settings import ModelFile, Strategy
from trainer.planning.shapes import ModelShape, read_huggingface_shape
from trainer.planning.time_model import TEXTBOOK, Fit, Part, TimeModel
from trainer.regular_file import require_regular


@dataclass(frozen=True)
class Calibration:
    """What the measurements gave; None where they say nothing about it.

    Attributes:
        textbook: the model of operations and communication alone, to set beside.
        doubts: rows that contradict themselves.
    """

    times: Fit
    textbook: Fit
    memory: MemoryFit | None
    doubts: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """All figures."""
        return {
            "times": self.times.to_json(),
            "textbook": self.textbook.to_json(),
            "memory": None if self.memory is None else self.memory.to_json(),
            "doubts": list(self.doubts),
        }


@dataclass(frozen=True)
class ScreenReport:
    """A screening and the calibration behind it."""

    cluster: ClusterFile
    task: ScreenFile
    shape: ModelShape
    screening: Screening
    calibration: Calibration | None

    def to_json(self, top: int | None = None) -> dict[str, Any]:
        """One object; the first `top` strategies."""
        return {
            "cluster": self.cluster.name,
            "model": self.task.name,
            **self.screening.to_json(top),
            "calibration": None if self.calibration is None else self.calibration.to_json(),
        }


def run_screen(
    cluster_path: Path, task_path: Path, *, tables: tuple[Path, ...] = (), map_path: Path | None = None
) -> ScreenReport:
    """Calibrate where measurements are given, and screen.

    Raises:
        InputError: unreadable files, or neither measurements nor `times` in the cluster's file.
    """
    for path in (cluster_path, task_path):
        require_regular(path)
    cluster, task = load_yaml(cluster_path, ClusterFile), load_yaml(task_path, ScreenFile)
    shape = (
        read_huggingface_shape(task_path.parent / task.model.config)
        if isinstance(task.model, ModelFile)
        else task.model
    )
    real = [path.resolve() for path in tables]
    if twice := next((path for at, path in enumerate(tables) if real[at] in real[:at]), None):
        raise InputError(
            f"--calibrate {twice}: given twice; a run that is left out must not be among the others"
        )
    if map_path is not None and not tables:
        raise InputError("--map: says how to read --calibrate; give both, or neither")
    calibration: Calibration | None = None
    if tables:
        calibration = _calibrate(cluster, task, shape, tables, map_path)
        model: TimeModel = calibration.times.model
        if calibration.memory is not None and not cluster.device.context_mib:
            cluster = _with_constant(cluster, task, calibration.memory)
    elif cluster.times is not None:
        model = cluster.times.model()
    else:
        raise InputError(
            f"{cluster_path}: times: is missing and no measurements are given; add times, or --calibrate TABLE"
        )
    return ScreenReport(cluster, task, shape, screen(cluster, task, shape, model), calibration)


def write_screen_report(report: ScreenReport, out: Path, top: int) -> None:
    """Write screen.json, strategies.csv and, of the first `top`, a ready training fragment each.

    Raises:
        InputError: `out` exists already.
    """
    with folder_atomic(out) as staging:
        write_json_atomic(staging / "screen.json", report.to_json())
        (staging / "strategies.csv").write_text(table(report.screening.ranked), encoding="utf-8")
        for number, item in enumerate(report.screening.ranked[:top], start=1):
            text = training_fragment(item, report.shape, report.task.sequence_length)
            (staging / f"{number:02d}.yaml").write_text(text, encoding="utf-8")


def table(ranked: tuple[Screened, ...]) -> str:
    """CSV of the strategies, units in the column names."""
    stream = io.StringIO()
    rows = [_flat(item) for item in ranked]
    if rows:
        writer = csv.DictWriter(stream, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return stream.getvalue()


def training_fragment(item: Screened, shape: ModelShape, length: int) -> str:
    """`batch_size`, `accumulation` and `parallel` of a training configuration, as YAML.

    What `trainer train` has no key for (sequence parallelism, interleaving, higher ZeRO stages) stands in a comment.
    """
    cut = item.strategy
    fields, missing = parallel_fields(cut, shape)
    head = [
        f"# Predicted {item.total_s:.4g} ± {item.error_s:.2g} s a step, {item.tokens_per_s:,.0f} tokens/s, "
        f"{item.memory_gib:.1f} GiB a device{' (close: only a run decides)' if item.close else ''}.",
        f"# Goes into a training configuration with data.sequence_length {length}; for {cut.devices} processes.",
        *(f"# Not in this configuration: {text}." for text in missing),
    ]
    return "\n".join(head) + "\n" + yaml.safe_dump(fields, sort_keys=False)


def parallel_fields(cut: Strategy, shape: ModelShape) -> tuple[dict[str, Any], list[str]]:
    """The keys of a training configuration, checked by its own model, and what they leave unsaid."""
    missing = []
    for name, size, parts in (
        ("kv_heads", shape.kv_head_count, cut.model),
        ("hidden_size", shape.hidden_size, cut.model),
        ("layers", shape.layers, cut.pipeline),
    ):
        if size % parts:
            missing.append(f"{name} {size} over {parts}, which `trainer train` only cuts evenly")
    if shape.vocab_size % cut.model:
        missing.append(
            f"a vocabulary that {cut.model} devices can share; set model.vocab_multiple to {cut.model}"
        )
    if cut.sequence_parallel:
        missing.append("sequence_parallel")
    if cut.interleave > 1:
        missing.append(f"interleave {cut.interleave}")
    if cut.schedule != "1f1b":
        missing.append(f"schedule {cut.schedule}")
    if cut.zero_stage > 1:
        missing.append(f"zero_stage {cut.zero_stage} (optimizer_shard is stage 1)")
    recompute: Any = cut.recompute
    if recompute == "selective":
        recompute = "none"
        missing.append(
            "recompute of the scores alone (flash attention does it; recompute: selective takes all of attention)"
        )
    elif recompute == "attention":
        recompute = "selective"
    elif not isinstance(recompute, str):
        if (shape.layers // cut.pipeline) % recompute.segments:
            missing.append(
                f"runs of {recompute.segments} in stages of {shape.layers // cut.pipeline} layers, which `trainer train` only cuts evenly"
            )
        recompute = recompute.model_dump()
    # A model that isn't cut into stages adds gradients up instead.
    staged = cut.pipeline > 1
    parallel = ParallelConfig.model_validate(
        {
            "data": cut.data,
            "model": cut.model,
            "pipeline": cut.pipeline,
            "micro_batches": cut.micro_batches if staged else 1,
            "optimizer_shard": cut.zero_stage >= 1 and cut.data > 1,
            "recompute": recompute,
        }
    )
    fields = {
        "batch_size": cut.micro_batch_size * (cut.micro_batches if staged else 1),
        "accumulation": 1 if staged else cut.micro_batches,
        "parallel": parallel.model_dump(mode="json", exclude_defaults=True),
    }
    return fields, missing


def _calibrate(
    cluster: ClusterFile, task: ScreenFile, shape: ModelShape, tables: tuple[Path, ...], map_path: Path | None
) -> Calibration:
    mapping = read_map(map_path) if map_path is not None else None
    # What a table doesn't say is as in the model's file.
    defaults = {
        **shape.model_dump(exclude_none=True),
        "sequence_length": task.sequence_length,
        "rows_per_step": task.rows_per_step,
        "gradient_type": task.gradient_type,
        "flash_attention": task.flash_attention,
        "fused_activation": task.fused_activation,
        "dropout": task.dropout,
        "logits_bytes": task.logits_bytes,
    }
    rows: list[Measurement] = [row for path in tables for row in read_measurements(path, mapping, defaults)]
    device = cluster.device

    def fit(parts: tuple[Part, ...] | None) -> Fit:
        return fit_times(
            rows,
            peak_tflops=device.peak_tflops,
            alignment=device.alignment,
            misaligned_penalty=device.misaligned_penalty,
            parts=parts,
        )

    known = any(row.memory_gib is not None for row in rows)
    return Calibration(
        times=fit(None),
        textbook=fit(TEXTBOOK),
        memory=fit_memory(rows, device.memory_gib) if known else None,
        doubts=tuple(find_doubts(rows, device.memory_gib)),
    )


def _with_constant(cluster: ClusterFile, task: ScreenFile, memory: MemoryFit) -> ClusterFile:
    """The measured constant takes the place of context, buffers, workspace and fragments."""
    constant = memory.constant_gib.get(task.gradient_type)
    if constant is None:
        constant = max(memory.constant_gib.values())  # the cautious one of those measured
    device = cluster.device.model_copy(
        update={
            "context_mib": max(0.0, constant * 1024),
            "hccl_buffer_mib": 0.0,
            "workspace_mib": 0.0,
            "fragmentation": 1.0,
        }
    )
    return cluster.model_copy(update={"device": device})


def _flat(item: Screened) -> dict[str, Any]:
    fields = item.to_json()
    cut = fields.pop("strategy")
    recompute = item.strategy.recompute
    cut["recompute"] = recompute if isinstance(recompute, str) else f"segments {recompute.segments}"
    cut.pop("layers_per_stage", None)
    return {
        **fields,
        **{f"{name}_rows" if name == "micro_batch_size" else name: value for name, value in cut.items()},
    }
