"""`parallel`: how a model and its batches are spread over devices."""

from typing import Literal

from pydantic import model_validator

from evalkit.bundle import ModelSpec
from evalkit.errors import InputError
from trainer.configuration.strict import Positive, Strict


class RecomputeSegments(Strict):
    """Recompute whole runs of `segments` layers: activations are kept only where a run begins."""

    segments: Positive


class ParallelConfig(Strict):
    """Parallel training; the number of processes (`msrun --worker_num`) is data · model · pipeline.

    Attributes:
        data: replicas; each trains on `batch_size` rows of its own a step.
        model: devices that share the matrices of a layer.
        pipeline: stages that share the layers.
        micro_batches: parts into which a stage cuts its batch.
        optimizer_shard: replicas share the optimizer's moments (ZeRO stage 1).
        recompute: activations that are computed again in the backward pass: none, the attention of each layer
            (selective), all of each layer (full), or runs of layers as one.
        enable_alltoall: redistribute with AllToAll instead of AllGather and slicing.
        fully_use_devices: strategies that MindSpore searches must use every device.
        elementwise_op_strategy_follow: element-wise operators take the strategy of the operator after them (in that
            search).
    """

    data: Positive = 1
    model: Positive = 1
    pipeline: Positive = 1
    micro_batches: Positive = 1
    optimizer_shard: bool = False
    recompute: Literal["none", "selective", "full"] | RecomputeSegments = "none"
    enable_alltoall: bool = False
    fully_use_devices: bool = True
    elementwise_op_strategy_follow: bool = False

    @model_validator(mode="after")
    def _consistent(self) -> "ParallelConfig":
        if self.pipeline == 1 and self.micro_batches > 1:
            raise ValueError(f"micro_batches {self.micro_batches} needs pipeline above 1; use accumulation")
        if self.micro_batches < self.pipeline:
            raise ValueError(
                f"micro_batches {self.micro_batches} is below pipeline {self.pipeline}: some stage would never work"
            )
        if self.optimizer_shard and self.data == 1:
            raise ValueError("optimizer_shard needs data above 1: there is nobody to share with")
        switched = self.enable_alltoall or self.elementwise_op_strategy_follow or not self.fully_use_devices
        if switched and not self.splits_the_model:
            raise ValueError(
                "enable_alltoall, fully_use_devices and elementwise_op_strategy_follow concern cut models; "
                "leave them out where model and pipeline are 1"
            )
        return self

    @property
    def devices(self) -> int:
        """How many processes train together."""
        return self.data * self.model * self.pipeline

    @property
    def splits_the_model(self) -> bool:
        """Whether a device holds only a part of the model or of its optimizer."""
        return self.model > 1 or self.pipeline > 1 or self.optimizer_shard


def check_parallel(parallel: ParallelConfig, spec: ModelSpec, batch_size: int, *, debug: bool) -> None:
    """Whether a model can be cut as declared; its vocabulary is checked when the tokenizer is known.

    Raises:
        ValueError: a size that isn't a multiple of the number of its parts.
    """
    shared = {
        "heads": spec.heads,
        # A key head can't lie on two devices: fewer of them than devices would be sliced wrongly.
        "kv_heads": spec.kv_heads,
        "hidden_size": spec.hidden_size,
        "intermediate_size": spec.intermediate_size,
    }
    for name, size in shared.items():
        if size % parallel.model:
            raise ValueError(f"model.{name} {size} isn't a multiple of parallel.model {parallel.model}")
    if spec.layers % parallel.pipeline:
        raise ValueError(
            f"model.layers {spec.layers} isn't a multiple of parallel.pipeline {parallel.pipeline}"
        )
    if batch_size % parallel.micro_batches:
        raise ValueError(
            f"batch_size {batch_size} isn't a multiple of parallel.micro_batches {parallel.micro_batches}"
        )
    if isinstance(parallel.recompute, RecomputeSegments):
        stage_layers = spec.layers // parallel.pipeline
        if stage_layers % parallel.recompute.segments:
            raise ValueError(
                f"the {stage_layers} layers of a stage aren't a multiple of parallel.recompute.segments "
                f"{parallel.recompute.segments}"
            )
    if debug and (parallel.splits_the_model or parallel.recompute != "none"):
        raise ValueError(
            "debug runs operation by operation; cut models and recomputation need compiled graphs"
        )


def check_vocabulary(parallel: ParallelConfig, vocab_size: int) -> None:
    """Whether a vocabulary (padding included) can be cut over the devices.

    Raises:
        InputError: it isn't a multiple of the number of its parts.
    """
    if vocab_size % parallel.model:
        raise InputError(
            f"parallel.model: the vocabulary of {vocab_size} isn't a multiple of {parallel.model}; "
            f"set model.vocab_multiple to {parallel.model} (or a multiple of it)"
        )
