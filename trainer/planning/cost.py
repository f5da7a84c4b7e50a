"""Time of a step from first principles: operations, communication, bubble, and what only a measurement can give.

seconds = compute + exposed tensor-parallel + exposed data-parallel communication + fixed cost of each layer and micro-batch,
all of which the pipeline's bubble stretches where they happen per micro-batch, + fixed cost of a step.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from trainer.planning.activations import dropped, layer_forward_flop, saved_tensors
from trainer.planning.parameters import stage_parameters
from trainer.planning.settings import STATE_BYTES, Strategy, Training
from trainer.planning.shapes import ModelShape

GB = 1e9


def model_flop(rows: int, length: int, layers: int, hidden: int, vocab: int, *, recompute: bool) -> float:
    """Operations of one iteration of a GPT model, forward and backward (Narayanan et al., arXiv 2104.04473).

    96 B s L h² (1 + s/(6h) + V/(16 L h)) with full recomputation (hardware operations, HFU), 72 without (model
    operations, MFU).

    Args:
        rows: B, of the whole step; length: s; hidden: h.
    """
    factor = 96 if recompute else 72
    shape = 1 + length / (6 * hidden) + vocab / (16 * layers * hidden)
    return factor * rows * length * layers * hidden**2 * shape


@dataclass(frozen=True)
class StepParts:
    """The amounts that a step consists of, on the fullest stage where not said otherwise; what a time model multiplies by its coefficients.

    Attributes:
        compute_s: operations at the device's peak rate, its bubble and its shape penalty included.
        layer_micro_batches: layers · micro-batches one after the other, bubble included.
        tensor_gb: bytes that cross a device's link for tensor parallelism, bubble included, 1e9 each.
        data_gb: for data parallelism, once a step.
        pipeline_gb, pipeline_messages: from stage to stage and back.
        bubble_share: of the step, as far as it computes.
        flop: hardware operations of a device, the mean over stages.
        model_flop: without those that recomputation repeats.
    """

    compute_s: float
    layer_micro_batches: float
    tensor_gb: float
    tensor_messages: float
    data_gb: float
    data_messages: float
    pipeline_gb: float
    pipeline_messages: float
    bubble_share: float
    flop: float
    model_flop: float


def ring_bytes(size: float, ranks: int) -> float:
    """Bytes that cross each link in a ring all-reduce of `size` bytes: 2(n - 1)/n · size."""
    return 2 * (ranks - 1) / ranks * size


def ring_seconds(size: float, ranks: int, gb_s: float, latency_s: float = 0.0) -> float:
    """Time of a ring all-reduce: 2(n - 1)/n · size / bandwidth + 2(n - 1) · latency."""
    if ranks == 1:
        return 0.0
    return ring_bytes(size, ranks) / (gb_s * GB) + 2 * (ranks - 1) * latency_s


def bus_bandwidth_gb_s(size: float, seconds: float, ranks: int) -> float:
    """What a measured all-reduce says about its links: size / t · 2(n - 1)/n."""
    return ring_bytes(size, ranks) / seconds / GB


def bubble_factor(strategy: Strategy) -> float:
    """How much longer the micro-batches take than their sum: 1 + (p - 1)/(v m)."""
    return 1 + (strategy.pipeline - 1) / (strategy.interleave * strategy.micro_batches)


def misaligned(shape: ModelShape, strategy: Strategy, alignment: int) -> bool:
    """Whether matrices don't fill the matrix unit's tiles: head width, or a rank's share of the feed-forward width.

    On A100 (alignment 8) heads of 108 or 150 took about 1.3 times as long as those of 96 or 144 at the same size.
    """
    sizes = (shape.head_width, shape.intermediate_size // strategy.model, shape.query_size // strategy.model)
    return any(size % alignment for size in sizes)


def step_parts(
    shape: ModelShape,
    training: Training,
    *,
    peak_tflops: float,
    alignment: int = 1,
    misaligned_penalty: float = 1.0,
) -> StepParts:
    """The amounts of one step of a replica on its fullest stage.

    Args:
        peak_tflops: of a device, in the type that it computes in.
        alignment, misaligned_penalty: see `misaligned`; 1.0 leaves the penalty out.
    """
    strategy = training.strategy
    layers = max(strategy.stage_layers(shape.layers))
    mean_layers = shape.layers / strategy.pipeline
    forward = layer_forward_flop(shape, training)
    again = _recomputed_flop(shape, training)
    # The head is on the last stage only; spread, as layers can be.
    head = 2.0 * _tokens(training) * shape.vocab_size * shape.hidden_size / strategy.model / strategy.pipeline
    fullest = (3 * (forward * layers + head) + again * layers) * strategy.micro_batches
    model = 3 * (forward * mean_layers + head) * strategy.micro_batches
    bubble = bubble_factor(strategy)
    penalty = misaligned_penalty if misaligned(shape, strategy, alignment) else 1.0
    layer_micro_batches = layers * strategy.micro_batches * bubble
    messages = _tensor_messages(training) * layer_micro_batches
    hidden_bytes = training.element_bytes * _tokens(training) * shape.hidden_size
    # Forward and back, once for each chunk that a stage holds.
    transfers = 2.0 * strategy.micro_batches * strategy.interleave if strategy.pipeline > 1 else 0.0
    return StepParts(
        compute_s=fullest * bubble * penalty / (peak_tflops * 1e12),
        layer_micro_batches=layer_micro_batches,
        tensor_gb=messages * ring_bytes(hidden_bytes, strategy.model) / GB,
        tensor_messages=messages if strategy.model > 1 else 0.0,
        data_gb=_data_bytes(shape, training) / GB,
        data_messages=2.0 * (strategy.data - 1),
        pipeline_gb=transfers * hidden_bytes / (strategy.model if strategy.sequence_parallel else 1) / GB,
        pipeline_messages=transfers,
        bubble_share=1 - 1 / bubble,
        flop=model + again * mean_layers * strategy.micro_batches,
        model_flop=model,
    )


def _tokens(training: Training) -> int:
    return training.sequence_length * training.strategy.micro_batch_size


def _tensor_messages(training: Training) -> float:
    """All-reduces of hidden states a layer and micro-batch: two forward, two backward, two more where all is recomputed.

    With sequence parallelism each is a reduce-scatter and an all-gather, which move as much.
    """
    if training.strategy.model == 1:
        return 0.0
    recompute = training.strategy.recompute
    if recompute in ("none", "selective"):
        return 4.0
    return 5.0 if recompute == "attention" else 6.0


def _data_bytes(shape: ModelShape, training: Training) -> float:
    """Bytes that cross a device's link in a step because replicas share gradients and states.

    A gradient all-reduce; ZeRO stage 1 moves as much. From stage 2 on gradients have to be scattered with each micro-batch,
    and stage 3 gathers the weights for each one, forward and back (Rajbhandari et al., arXiv 1910.02054, section 7).
    """
    strategy = training.strategy
    weights, gradient, _ = STATE_BYTES[training.gradient_type]
    if training.gradient_type == "fp32_accumulation":
        gradient = 4
    parameters = stage_parameters(shape, strategy, 0).total
    if strategy.zero_stage < 2:
        return ring_bytes(parameters * gradient, strategy.data)
    gathers = 2 * strategy.micro_batches if strategy.zero_stage == 3 else 1
    one_way = gradient * strategy.micro_batches + weights * gathers
    return ring_bytes(parameters * one_way, strategy.data) / 2


def _recomputed_flop(shape: ModelShape, training: Training) -> float:
    """Operations that one layer's backward pass repeats for a micro-batch."""
    recompute = training.strategy.recompute
    if recompute == "none":
        return 0.0
    if recompute in ("selective", "attention"):
        tensors = saved_tensors(shape, training)
        return float(sum(tensor.producer_flop for tensor in tensors if dropped(tensor, recompute)))
    return layer_forward_flop(shape, training)


@dataclass(frozen=True)
class BandwidthCurve:
    """Measured bus bandwidth over message size, interpolated over the logarithm of the size, flat beyond the largest.

    Below the smallest of several sizes the time of a message stays what it is there; one point alone is a constant.

    Attributes:
        sizes_mib: rising.
        gb_s: at those sizes.
    """

    sizes_mib: tuple[float, ...]
    gb_s: tuple[float, ...]

    def at(self, size_bytes: float) -> float:
        """GB/s for messages of so many bytes."""
        if len(self.sizes_mib) == 1:
            return self.gb_s[0]  # nothing says from which size on it falls
        size = max(size_bytes / 2**20, 1e-9)
        if size <= self.sizes_mib[0]:
            # Below the smallest message the latency rules: the time stays, so the bandwidth falls.
            return self.gb_s[0] * size / self.sizes_mib[0]
        for (x0, y0), (x1, y1) in zip(self._points(), self._points()[1:], strict=False):
            if size <= x1:
                share = (math.log(size) - math.log(x0)) / (math.log(x1) - math.log(x0))
                return y0 + share * (y1 - y0)
        return self.gb_s[-1]

    def _points(self) -> Sequence[tuple[float, float]]:
        return list(zip(self.sizes_mib, self.gb_s, strict=True))
