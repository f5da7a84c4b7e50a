"""The memory plan: every term of every stage, for training and for inference."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from evalkit.errors import InputError
from trainer.planning.activations import (
    gradient_bytes,
    kept_bytes,
    recomputed_bytes,
    saved_tensors,
)
from trainer.planning.parameters import check_divisible, rank_heads, stage_parameters
from trainer.planning.settings import STATE_BYTES, DeviceMemory, Inference, Strategy, Training
from trainer.planning.shapes import ModelShape

MIB = 2**20
Term = Literal[
    "parameters",
    "gradients",
    "optimizer",
    "activations",
    "recomputed_layer",
    "activation_gradients",
    "logits",
    "step_copies",
    "kv_cache",
    "receive_buffers",
    "workspace",
    "fragmentation",
    "hccl_buffers",
    "context",
]
# What the framework's own pool doesn't hold.
OUTSIDE_THE_POOL: tuple[Term, ...] = ("hccl_buffers", "context")


@dataclass(frozen=True)
class StageMemory:
    """One rank of one stage.

    Attributes:
        stage: counted from 0; its `ranks`, which follow each other from `first_rank`, are alike.
        layers: it holds.
        in_flight: micro-batches whose activations it holds at once.
        phases: what lies in memory in each phase of a step, MiB a term; terms that are 0 are left out.
    """

    stage: int
    first_rank: int
    ranks: int
    layers: int
    in_flight: float
    parameters: int
    phases: Mapping[str, Mapping[Term, float]]

    @property
    def peak_phase(self) -> str:
        """The phase that takes most."""
        return max(self.phases, key=lambda phase: sum(self.phases[phase].values()))

    @property
    def terms_mib(self) -> Mapping[Term, float]:
        """The terms of the peak phase."""
        return self.phases[self.peak_phase]

    @property
    def total_mib(self) -> float:
        """Everything on the device at the peak."""
        return sum(self.terms_mib.values())

    def pool_mib(self, *, fragments: bool) -> float:
        """The framework's pool at the peak, with or without fragments."""
        left_out: tuple[Term, ...] = OUTSIDE_THE_POOL if fragments else (*OUTSIDE_THE_POOL, "fragmentation")
        return sum(value for term, value in self.terms_mib.items() if term not in left_out)

    def to_json(self) -> dict[str, Any]:
        """All fields, sizes with their unit in the name."""
        return {
            "stage": self.stage,
            "first_rank": self.first_rank,
            "ranks": self.ranks,
            "layers": self.layers,
            "micro_batches_in_flight": self.in_flight,
            "parameters": self.parameters,
            "peak_phase": self.peak_phase,
            "total_mib": round(self.total_mib, 3),
            "pool_used_mib": round(self.pool_mib(fragments=False), 3),
            "pool_actual_mib": round(self.pool_mib(fragments=True), 3),
            "terms": {f"{term}_mib": round(value, 3) for term, value in self.terms_mib.items()},
            "phases": {
                phase: {f"{term}_mib": round(value, 3) for term, value in terms.items()}
                for phase, terms in self.phases.items()
            },
        }


def plan_training(shape: ModelShape, training: Training, device: DeviceMemory) -> tuple[StageMemory, ...]:
    """The memory of one rank of each stage.

    Raises:
        InputError: the model can't be cut like that.
    """
    check_divisible(shape, training.strategy)
    return tuple(_stage(shape, training, device, stage) for stage in range(training.strategy.pipeline))


def plan_stages(shape: ModelShape, training: Training, device: DeviceMemory) -> tuple[StageMemory, ...]:
    """Those stages that can be the fullest: first, second and last, and where layers are uneven all."""
    check_divisible(shape, training.strategy)
    layers = training.strategy.stage_layers(shape.layers)
    count = training.strategy.pipeline
    wanted = range(count) if len(set(layers)) > 1 else sorted({0, min(1, count - 1), count - 1})
    return tuple(_stage(shape, training, device, stage) for stage in wanted)


def plan_inference(shape: ModelShape, inference: Inference, device: DeviceMemory) -> tuple[StageMemory, ...]:
    """The memory of a rank that generates with a KV cache: one "stage", one phase.

    Raises:
        InputError: the model can't be cut like that.
    """
    parts = inference.model
    strategy = Strategy(model=parts)
    check_divisible(shape, strategy)
    parameters = stage_parameters(shape, strategy, 0).total
    cache = kv_bytes_a_token(shape, parts, inference.kv_bytes) * inference.sequences * inference.length
    prefill = Training(
        sequence_length=max(2, inference.prefill_tokens), strategy=strategy, gradient_type="fp16"
    )
    working = sum(tensor.saved_bytes for tensor in saved_tensors(shape, prefill))
    logits = 4 * inference.sequences * shape.vocab_size / parts
    terms: dict[Term, float] = {
        "parameters": parameters * inference.weight_bytes / MIB,
        "kv_cache": cache / MIB,
        "activations": working / MIB,
        "logits": logits / MIB,
    }
    return (
        StageMemory(
            stage=0,
            first_rank=0,
            ranks=parts,
            layers=shape.layers,
            in_flight=1,
            parameters=parameters,
            phases={"generation": _with_device_terms(terms, device, communicators(strategy, shape, device))},
        ),
    )


def kv_bytes_a_token(shape: ModelShape, parts: int = 1, kv_bytes: float = 2) -> float:
    """Bytes of one token's keys and values in all layers, on one of `parts` ranks: 2 · L · kv_heads · head · bytes."""
    _, key_heads = rank_heads(shape, parts)
    return 2 * shape.layers * key_heads * shape.head_width * kv_bytes


def state_bytes(training: Training) -> tuple[float, float, float]:
    """Bytes a parameter of weights, gradients and optimizer on one rank, after what replicas share."""
    weights, gradients, optimizer = STATE_BYTES[training.gradient_type]
    gradients += training.accumulation_bytes
    data, zero = training.strategy.data, training.strategy.zero_stage
    return (
        weights / (data if zero >= 3 else 1),
        gradients / (data if zero >= 2 else 1),
        optimizer / (data if zero >= 1 else 1),
    )


def communicators(strategy: Strategy, shape: ModelShape, device: DeviceMemory) -> int:
    """Communicators of a rank: the world, one for each direction that is cut, one for a head tied across stages."""
    if device.communicators is not None:
        return device.communicators
    if strategy.devices == 1:
        return 0
    degrees = (strategy.data, strategy.model, strategy.pipeline)
    tied = shape.tied_head and strategy.pipeline > 1
    return 1 + sum(degree > 1 for degree in degrees) + tied


def hccl_buffer_advice_mib(shape: ModelShape, training: Training) -> int:
    """The vendor's advice for HCCL_BUFFSIZE: one micro-batch's hidden states, rounded up to whole MiB."""
    tokens = training.sequence_length * training.strategy.micro_batch_size
    return math.ceil(tokens * shape.hidden_size * training.element_bytes / MIB)


def peak_stage(stages: tuple[StageMemory, ...]) -> StageMemory:
    """The stage that decides whether the plan fits."""
    return max(stages, key=lambda stage: stage.total_mib)


def _stage(shape: ModelShape, training: Training, device: DeviceMemory, stage: int) -> StageMemory:
    strategy = training.strategy
    parameters = stage_parameters(shape, strategy, stage).total
    layers, in_flight = strategy.stage_layers(shape.layers)[stage], strategy.in_flight(stage)
    weights, gradients, optimizer = (parameters * size / MIB for size in state_bytes(training))
    tokens = training.sequence_length * strategy.micro_batch_size
    held: dict[Term, float] = {
        "parameters": weights,
        "gradients": gradients,
        "optimizer": optimizer,
        "receive_buffers": (_receive_buffers(shape, training) if stage else 0.0) / MIB,
    }
    mask = training.attention_mask_bytes * tokens * training.sequence_length
    kept = in_flight * (layers * kept_bytes(shape, training) + mask) / MIB
    backward: dict[Term, float] = {
        **held,
        "activations": kept,
        "recomputed_layer": recomputed_bytes(shape, training) / MIB,
        "activation_gradients": gradient_bytes(shape, training) / MIB,
    }
    phases: dict[str, dict[Term, float]] = {"backward": backward}
    if stage == strategy.pipeline - 1:
        logits = training.logits_bytes * tokens * -(-shape.vocab_size // strategy.model)
        phases["loss"] = {**held, "activations": kept, "logits": logits / MIB}
    if training.step_copy_bytes:
        phases["step"] = {**held, "step_copies": parameters * training.step_copy_bytes / MIB}
    count = communicators(strategy, shape, device)
    return StageMemory(
        stage=stage,
        first_rank=stage * strategy.data * strategy.model,
        ranks=strategy.data * strategy.model,
        layers=layers,
        in_flight=in_flight,
        parameters=parameters,
        phases={phase: _with_device_terms(terms, device, count) for phase, terms in phases.items()},
    )


def _receive_buffers(shape: ModelShape, training: Training) -> float:
    """A stage receives into two buffers of one micro-batch's hidden states (measured: two of 2sbh, none on the first)."""
    tokens = training.sequence_length * training.strategy.micro_batch_size
    shared = training.strategy.model if training.strategy.sequence_parallel else 1
    return 2.0 * training.element_bytes * tokens * shape.hidden_size / shared


def _with_device_terms(terms: dict[Term, float], device: DeviceMemory, count: int) -> dict[Term, float]:
    full = {**terms, "workspace": device.workspace_mib}
    full["fragmentation"] = (device.fragmentation - 1) * sum(full.values())
    full["hccl_buffers"] = 2 * device.hccl_buffer_mib * count
    full["context"] = device.context_mib
    return {term: value for term, value in full.items() if value}


def fits(total_mib: float, memory_gib: float, error: float) -> Literal["fits", "too close", "doesn't fit"]:
    """The verdict: "too close" where only the prediction's own error decides.

    Args:
        error: relative error of such predictions.
    """
    limit = memory_gib * 1024
    if total_mib > limit:
        return "doesn't fit"
    return "fits" if total_mib * (1 + error) <= limit else "too close"


def require_stage(stages: tuple[StageMemory, ...], stage: int) -> StageMemory:
    """The memory of `stage`.

    Raises:
        InputError: the plan has no such stage.
    """
    if stage >= len(stages):
        raise InputError(f"measured.stage {stage}: the plan has stages 0 to {len(stages) - 1}")
    return stages[stage]
