"""Strategies for a cluster: enumerate, drop what can't be cut or doesn't fit, and rank by predicted time.

Predictions closer than the model's error stand in one group: the list says what deserves a real test, not who wins.
"""

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import ValidationError

from evalkit.errors import InputError
from trainer.planning.accuracy import MEMORY, TIME
from trainer.planning.cluster import ClusterFile, ScreenFile
from trainer.planning.cost import GB, StepParts, ring_bytes, ring_seconds, step_parts
from trainer.planning.memory import fits, plan_stages
from trainer.planning.parameters import check_divisible
from trainer.planning.settings import Strategy, Training
from trainer.planning.shapes import ModelShape
from trainer.planning.time_model import Part, TimeModel

# Where nobody measured the time model's error, this much is assumed; a first-principles model alone is off by more.
UNMEASURED_ERROR = 0.15


@dataclass(frozen=True)
class Screened:
    """One strategy that fits.

    Attributes:
        seconds: of a step, where they go; their sum is `total_s`.
        error_s: what the model is off by.
        group: 1 for those that can't be told from the fastest, and so on.
        close: memory is so near that only a run decides.
        mfu: model operations / (peak · time).
    """

    strategy: Strategy
    memory_gib: float
    close: bool
    seconds: dict[Part, float]
    error_s: float
    mfu: float
    tokens_per_s: float
    group: int = 0

    @property
    def total_s(self) -> float:
        """Predicted time of a step."""
        return sum(self.seconds.values())

    def to_json(self) -> dict[str, Any]:
        """All fields; units in the names."""
        return {
            "group": self.group,
            "total_s": round(self.total_s, 4),
            "error_s": round(self.error_s, 4),
            "tokens_per_s": round(self.tokens_per_s, 1),
            "mfu": round(self.mfu, 4),
            "memory_gib": round(self.memory_gib, 2),
            "memory_close": self.close,
            "strategy": self.strategy.model_dump(mode="json", exclude_none=True),
            **{f"{part}_s": round(value, 4) for part, value in self.seconds.items()},
        }


@dataclass(frozen=True)
class Screening:
    """The result.

    Attributes:
        dropped: reason → how many strategies.
        ranked: those that fit, fastest first; of strategies that differ in what costs no predicted time the one that
            takes least memory.
        communication: where its cost comes from; "not counted": neither measurements nor links tell, so that it is free.
    """

    devices: int
    tried: int
    dropped: dict[str, int]
    ranked: tuple[Screened, ...]
    model: TimeModel
    relative_error: float
    communication: Literal["measurements", "links", "not counted"]

    @property
    def same_time(self) -> int:
        """How many fit but stand behind a leaner one of the same predicted time."""
        return self.tried - sum(self.dropped.values()) - len(self.ranked)

    def to_json(self, top: int | None = None) -> dict[str, Any]:
        """All fields, and the first `top` strategies."""
        return {
            "devices": self.devices,
            "tried": self.tried,
            "dropped": self.dropped,
            "fitting": len(self.ranked),
            "same_time": self.same_time,
            "time_model": self.model.to_json(),
            "relative_error": self.relative_error,
            "communication": self.communication,
            "memory_accuracy": MEMORY.to_json(),
            "time_accuracy": TIME.to_json(),
            "strategies": [item.to_json() for item in self.ranked[:top]],
        }


def screen(cluster: ClusterFile, task: ScreenFile, shape: ModelShape, model: TimeModel) -> Screening:
    """Try all strategies of the task's search space.

    Args:
        model: calibrated, or given by the cluster; where it names no bandwidth the cluster's links do.

    Raises:
        InputError: more devices are asked for than there are.
    """
    devices = task.search.devices or cluster.devices
    if devices > cluster.devices:
        raise InputError(f"search.devices {devices} is above the cluster's {cluster.devices}; give fewer")
    error = model.relative_error or UNMEASURED_ERROR
    dropped: Counter[str] = Counter()
    best: dict[tuple[Any, ...], Screened] = {}
    tried = 0
    for strategy in strategies(task, shape, devices, cluster.devices_per_node):
        tried += 1
        if isinstance(strategy, str):
            dropped[strategy] += 1
            continue
        training = training_of(task, strategy)
        memory_mib = max(stage.total_mib for stage in plan_stages(shape, training, cluster.device))
        verdict = fits(memory_mib, cluster.device.memory_gib, MEMORY.relative_error)
        if verdict == "doesn't fit":
            dropped["memory"] += 1
            continue
        found = _screened(cluster, shape, training, model, error, memory_mib, close=verdict == "too close")
        # What only memory tells apart: the leaner one stands for both.
        key = (*(round(value, 9) for value in found.seconds.values()), strategy.micro_batch_size)
        if key not in best or found.memory_gib < best[key].memory_gib:
            best[key] = found
    ranked = sorted(best.values(), key=lambda item: (item.total_s, item.memory_gib))
    return Screening(
        devices=devices,
        tried=tried,
        dropped=dict(dropped),
        ranked=tuple(_grouped(ranked, error)),
        model=model,
        relative_error=error,
        communication="measurements" if model.calibrated else "links" if cluster.links else "not counted",
    )


def strategies(
    task: ScreenFile, shape: ModelShape, devices: int, devices_per_node: int
) -> Iterator[Strategy | str]:
    """Every strategy of the search space; for one that can't be cut like that the reason."""
    space = task.search
    for model in _divisors(devices):
        if model > (space.max_model or devices_per_node):
            continue
        for pipeline in _divisors(devices // model):
            if pipeline > min(space.max_pipeline or shape.layers, shape.layers):
                continue
            data = devices // model // pipeline
            for size in space.micro_batch_sizes:
                rows, rest = divmod(task.rows_per_step, data * size)
                if rest or not rows:
                    yield "rows_per_step isn't a multiple of data · micro_batch_size"
                    continue
                if rows < pipeline:
                    yield "fewer micro-batches than stages"
                    continue
                if shape.layers % pipeline and not space.uneven_stages:
                    yield "layers aren't a multiple of pipeline"
                    continue
                yield from _variants(task, shape, data, model, pipeline, size, rows)


def _variants(
    task: ScreenFile, shape: ModelShape, data: int, model: int, pipeline: int, size: int, rows: int
) -> Iterator[Strategy | str]:
    space = task.search
    # A direction that isn't cut has nothing to share or to interleave: one variant, whatever the lists ask for.
    interleaves = space.interleave if pipeline > 1 else (1,)
    zero_stages = space.zero_stages if data > 1 else (0,)
    sequences = space.sequence_parallel if model > 1 else (False,)
    for schedule in space.schedules:
        for interleave in interleaves:
            for zero in zero_stages:
                for sequence in sequences:
                    for recompute in space.recompute:
                        if interleave > 1 and rows % pipeline:
                            # Chunks take turns in groups of `pipeline` micro-batches.
                            yield "micro-batches aren't a multiple of pipeline, which interleaving needs"
                            continue
                        try:
                            strategy = Strategy(
                                data=data,
                                model=model,
                                pipeline=pipeline,
                                micro_batch_size=size,
                                micro_batches=rows,
                                sequence_parallel=sequence,
                                schedule=schedule,
                                interleave=interleave,
                                zero_stage=zero,
                                recompute=recompute,
                            )
                            check_divisible(shape, strategy)
                        except ValidationError:
                            continue  # GPipe doesn't interleave
                        except InputError as error:
                            yield str(error).partition(" ")[0] + " can't be cut"
                            continue
                        yield strategy


def training_of(task: ScreenFile, strategy: Strategy) -> Training:
    """The task's step under a strategy."""
    return Training(
        sequence_length=task.sequence_length,
        strategy=strategy,
        gradient_type=task.gradient_type,
        flash_attention=task.flash_attention,
        fused_activation=task.fused_activation,
        dropout=task.dropout,
        logits_bytes=task.logits_bytes,
    )


def predict_seconds(
    cluster: ClusterFile, training: Training, shape: ModelShape, parts: StepParts, model: TimeModel
) -> dict[Part, float]:
    """Where a step's time goes: bandwidth from the model where it is calibrated, else from the cluster's links."""
    seconds = model.seconds(parts)
    strategy = training.strategy
    if model.tensor_gb_s is None and not model.calibrated and (link := cluster.link(strategy.model)):
        tokens = training.sequence_length * strategy.micro_batch_size
        size = float(training.element_bytes * tokens * shape.hidden_size)
        one = ring_seconds(size, strategy.model, link.curve().at(size), link.latency_us / 1e6)
        seconds["tensor"] = parts.tensor_messages * one * (1 - link.hidden_share)
    if model.data_gb_s is None and not model.calibrated and strategy.data > 1:
        # A replica's peers are a model's devices apart, so that their ring spans the levels between.
        link = cluster.link(strategy.model * strategy.data)
        if link is not None:
            size = parts.data_gb * GB / ring_bytes(1.0, strategy.data)
            one = ring_seconds(size, strategy.data, link.curve().at(size), link.latency_us / 1e6)
            seconds["data"] = one * (1 - link.hidden_share)
    if strategy.pipeline > 1 and not model.calibrated:
        link = cluster.link(strategy.model * strategy.data + 1)
        if link is not None:
            size = parts.pipeline_gb * GB / parts.pipeline_messages
            whole = (
                parts.pipeline_gb / link.curve().at(size) + parts.pipeline_messages * link.latency_us / 1e6
            )
            seconds["pipeline"] = whole * (1 - link.hidden_share)
    return seconds


def _screened(
    cluster: ClusterFile,
    shape: ModelShape,
    training: Training,
    model: TimeModel,
    error: float,
    memory_mib: float,
    *,
    close: bool,
) -> Screened:
    device, strategy = cluster.device, training.strategy
    parts = step_parts(
        shape,
        training,
        peak_tflops=device.peak_tflops,
        alignment=device.alignment,
        misaligned_penalty=device.misaligned_penalty,
    )
    seconds = predict_seconds(cluster, training, shape, parts, model)
    total = sum(seconds.values())
    tokens = strategy.rows * training.sequence_length
    return Screened(
        strategy=strategy,
        memory_gib=memory_mib / 1024,
        close=close,
        seconds=seconds,
        error_s=total * error,
        mfu=parts.model_flop / (device.peak_tflops * 1e12 * total),
        tokens_per_s=tokens / total,
    )


def _grouped(ranked: list[Screened], error: float) -> Iterator[Screened]:
    """A group begins with its fastest and holds all that lie within the error of it."""
    group, first = 0, 0.0
    for item in ranked:
        if group == 0 or item.total_s > first * (1 + error):
            group, first = group + 1, item.total_s
        yield Screened(**{**item.__dict__, "group": group})


def _divisors(number: int) -> list[int]:
    small = [value for value in range(1, math.isqrt(number) + 1) if number % value == 0]
    return sorted({*small, *(number // value for value in small)})
