"""What a plan assumes: how the model is cut and trained, on which device; the file of `trainer memory`."""

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from trainer.configuration.parallel import RecomputeSegments
from trainer.configuration.strict import Listed, Positive, Strict
from trainer.planning.shapes import Length, ModelShape

# Bytes of (weight, gradient, master copy and Adam's moments) a parameter.
StateBytes = tuple[float, float, float]
GradientType = Literal["fp16", "fp32", "fp32_accumulation", "full_fp32"]
STATE_BYTES: dict[GradientType, StateBytes] = {
    "fp16": (2, 2, 12),
    "fp32": (2, 4, 12),
    "fp32_accumulation": (2, 6, 12),
    "full_fp32": (4, 4, 8),
}
Recompute = Literal["none", "selective", "attention", "full"] | RecomputeSegments
Schedule = Literal["1f1b", "gpipe"]
# Bounds as in `shapes`: no cluster has as many devices, no step as many rows.
Degree = Annotated[int, Field(gt=0, le=1 << 26)]
Rows = Annotated[int, Field(gt=0, le=1 << 24)]
_ITEM_BYTES, _DEVICE_GIB = 1024, 1 << 20


class Strategy(Strict):
    """How one model is spread over devices: data · model · pipeline of them.

    Attributes:
        data: replicas.
        model: devices that share the matrices of a layer (tensor parallel).
        pipeline: stages that share the layers.
        micro_batch_size: rows that a stage computes at a time.
        micro_batches: of a replica and step; rows a step = data · micro_batches · micro_batch_size.
        sequence_parallel: norms and residuals are cut along the sequence over the `model` devices.
        schedule: how many micro-batches a stage holds: 1F1B as many as there are stages behind it, GPipe all.
        interleave: model chunks a stage (virtual stages); needs 1f1b.
        zero_stage: what replicas share: 1 the optimizer, 2 gradients too, 3 weights too.
        recompute: selective recomputes the attention scores, attention the attention of each layer, full each layer
            from its input, segments runs of layers as one.
        layers_per_stage: default equal shares, the first stages take what is left over.
    """

    data: Degree = 1
    model: Degree = 1
    pipeline: Degree = 1
    micro_batch_size: Rows = 1
    micro_batches: Rows = 1
    sequence_parallel: bool = False
    schedule: Schedule = "1f1b"
    interleave: Degree = 1
    zero_stage: int = Field(default=0, ge=0, le=3)
    recompute: Recompute = "none"
    layers_per_stage: Listed[Positive] | None = None

    @model_validator(mode="after")
    def _consistent(self) -> "Strategy":
        if self.interleave > 1 and (self.pipeline == 1 or self.schedule != "1f1b"):
            raise ValueError("interleave needs pipeline above 1 and the schedule 1f1b")
        if self.layers_per_stage is not None and len(self.layers_per_stage) != self.pipeline:
            raise ValueError(
                f"layers_per_stage has {len(self.layers_per_stage)} numbers for pipeline {self.pipeline}"
            )
        if self.sequence_parallel and self.model == 1:
            raise ValueError("sequence_parallel needs model above 1")
        return self

    @property
    def devices(self) -> int:
        """How many devices train together."""
        return self.data * self.model * self.pipeline

    @property
    def rows(self) -> int:
        """Rows of a step, over all replicas."""
        return self.data * self.micro_batches * self.micro_batch_size

    def stage_layers(self, layers: int) -> tuple[int, ...]:
        """Layers of each stage.

        Raises:
            ValueError: they can't be shared out like that.
        """
        if self.layers_per_stage is not None:
            if sum(self.layers_per_stage) != layers:
                raise ValueError(
                    f"layers_per_stage adds up to {sum(self.layers_per_stage)}, the model has {layers} layers; correct it"
                )
            return self.layers_per_stage
        if layers < self.pipeline:
            raise ValueError(
                f"pipeline {self.pipeline} is above the model's {layers} layers; choose another pipeline"
            )
        share, rest = divmod(layers, self.pipeline)
        return tuple(share + (stage < rest) for stage in range(self.pipeline))

    def in_flight(self, stage: int) -> float:
        """Micro-batches of a whole stage whose activations it holds at once.

        1F1B holds min(p - stage, m); interleaved, 2(p - stage - 1) + (v - 1)p + 1 chunks of the v that make a stage
        (Narayanan et al., arXiv 2104.04473), which is p(1 + (p - 1)/(pv)) on the first.
        """
        if self.schedule == "gpipe":
            return float(self.micro_batches)
        if self.interleave == 1:
            return float(min(self.pipeline - stage, self.micro_batches))
        chunks = 2 * (self.pipeline - stage - 1) + (self.interleave - 1) * self.pipeline + 1
        return min(chunks, self.micro_batches * self.interleave) / self.interleave


class Training(Strict):
    """The step of a training run.

    Attributes:
        gradient_type: bytes a parameter: fp16 2 + 2 + 12 = 16; fp32 gradients 2 + 4 + 12 = 18; fp32_accumulation
            beside 16-bit gradients 2 + 2 + 4 + 12 = 20; full_fp32 4 + 4 + 8 = 16, with 4-byte activations.
        accumulation_bytes: a parameter's bytes that are held on top while the gradients of several batches add up.
        step_copy_bytes: a parameter's bytes that the optimizer takes for a moment at the step (DeepSpeed's fp16
            optimizer copies gradients to fp32: 4).
        flash_attention: scores never lie in memory as a whole.
        fused_activation: SwiGLU keeps gate and up only; otherwise the activated gate too.
        dropout: its masks are kept (one byte an element).
        attention_mask_bytes: of one element of a sequence² mask a micro-batch; 0 where none is made.
        logits_bytes: a logit's bytes at the loss: 16-bit logits, their float32 copy and its gradient are 10.
    """

    sequence_length: Length
    strategy: Strategy = Strategy()
    gradient_type: GradientType = "fp32"
    accumulation_bytes: float = Field(default=0, ge=0, le=_ITEM_BYTES)
    step_copy_bytes: float = Field(default=0, ge=0, le=_ITEM_BYTES)
    flash_attention: bool = True
    fused_activation: bool = True
    dropout: bool = False
    attention_mask_bytes: float = Field(default=0, ge=0, le=_ITEM_BYTES)
    logits_bytes: float = Field(default=10, ge=0, le=_ITEM_BYTES)

    @property
    def element_bytes(self) -> int:
        """Bytes of an activation."""
        return 4 if self.gradient_type == "full_fp32" else 2


class Inference(Strict):
    """Generation with a KV cache.

    Attributes:
        model: devices that share weights and cache (tensor parallel).
        sequences: that are held at once.
        length: positions kept of each.
        kv_bytes: of one number in the cache; `weight_bytes` of one weight.
        prefill_tokens: that are computed in one go.
    """

    model: Degree = 1
    sequences: Rows
    length: Length
    kv_bytes: float = Field(default=2, gt=0, le=_ITEM_BYTES)
    weight_bytes: float = Field(default=2, gt=0, le=_ITEM_BYTES)
    prefill_tokens: Annotated[int, Field(gt=0, le=1 << 27)] = 1


class DeviceMemory(Strict):
    """The device and what lies on it beside the model.

    Attributes:
        memory_gib: what may be used; None: no verdict.
        hccl_buffer_mib: HCCL_BUFFSIZE; each communicator has two. 0 leaves the term out.
        communicators: of a rank; None counts world, model, data and pipeline groups.
        workspace_mib: scratch memory of operators.
        context_mib: driver, runtime and libraries.
        fragmentation: reserved / used of the framework's pool; 1.02 to 1.04 measured with MindSpore, 1.06 to 1.40
            with PyTorch.
    """

    memory_gib: float | None = Field(default=None, gt=0, le=_DEVICE_GIB)
    hccl_buffer_mib: float = Field(default=200, ge=0, le=_DEVICE_GIB * 1024)
    communicators: int | None = Field(default=None, ge=0, le=1 << 20)
    workspace_mib: float = Field(default=128, ge=0, le=_DEVICE_GIB * 1024)
    context_mib: float = Field(default=0, ge=0, le=_DEVICE_GIB * 1024)
    fragmentation: float = Field(default=1.04, ge=1, le=100)


class Measured(Strict):
    """A measured peak, to set the plan against.

    Attributes:
        peak_mib: of one rank.
        stage: its pipeline stage.
        kind: used is the framework's pool without fragments, actual with them, device everything on the device.
        terms_mib: what was measured of single terms, by their names.
    """

    peak_mib: float = Field(gt=0)
    stage: int = Field(default=0, ge=0)
    kind: Literal["used", "actual", "device"] = "used"
    terms_mib: dict[str, Annotated[float, Field(ge=0)]] = Field(default={})


class ModelFile(Strict):
    """A model by reference."""

    config: str


def _model_kind(value: Any) -> str:
    # By what is given, so that a wrong number of a shape isn't told as an unknown key beside `config`.
    by_reference = "config" in value if isinstance(value, dict) else isinstance(value, ModelFile)
    return "ModelFile" if by_reference else "ModelShape"


GivenModel = Annotated[
    Annotated[ModelShape, Tag("ModelShape")] | Annotated[ModelFile, Tag("ModelFile")],
    Discriminator(_model_kind),
]


class MemoryFile(Strict):
    """CONFIG.yaml of `trainer memory`."""

    version: Literal[1]
    name: str = "plan"
    model: GivenModel
    training: Training | None = None
    inference: Inference | None = None
    device: DeviceMemory = DeviceMemory()
    measured: Listed[Measured] = ()

    @model_validator(mode="after")
    def _one(self) -> "MemoryFile":
        if (self.training is None) == (self.inference is None):
            raise ValueError("give exactly one of training and inference")
        return self
