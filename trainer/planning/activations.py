"""What a layer keeps for its backward pass, tensor by tensor, and what it costs to compute each again.

The counts follow Korthikanti et al. (arXiv 2205.05198), generalised to grouped-query attention, gated feed-forward
layers, flash attention and four-byte activations. For GPT (four times hidden, dropout, 16 bit) their sums are sbh(34 + 5as/h),
sbh(10 + 24/t + 5as/(ht)) with tensor and sbh(34 + 5as/h)/t with sequence parallelism.
"""

from dataclasses import dataclass
from typing import Literal

from trainer.configuration.parallel import RecomputeSegments
from trainer.planning.parameters import rank_heads
from trainer.planning.settings import Recompute, Training
from trainer.planning.shapes import ModelShape

Part = Literal["attention", "feed_forward"]
# Operations an element: a norm, and an activation function.
_NORM_OPERATIONS, _ACTIVATION_OPERATIONS = 5, 8


@dataclass(frozen=True)
class SavedTensor:
    """A tensor of one layer, one micro-batch and one rank that lies in memory until the backward pass.

    Attributes:
        name: of the tensor.
        saved_bytes: its size.
        producer_flop: floating-point operations to compute it again from what is before it.
        part: which half of the layer it belongs to.
        scores: True for what selective recomputation drops.
        checkpoint: True for the layer's input, which stays in any case.
    """

    name: str
    saved_bytes: int
    producer_flop: int
    part: Part
    scores: bool = False
    checkpoint: bool = False


def saved_tensors(shape: ModelShape, training: Training) -> tuple[SavedTensor, ...]:
    """The tensors of one layer in order of computation."""
    strategy, element = training.strategy, training.element_bytes
    parts = strategy.model
    tokens = training.sequence_length * strategy.micro_batch_size
    rows = training.sequence_length * tokens  # sequence² · micro-batch
    # Sequence parallelism cuts what tensor parallelism leaves whole.
    whole = tokens * shape.hidden_size // (parts if strategy.sequence_parallel else 1)
    heads, key_heads = rank_heads(shape, parts)
    queries, keys = heads * shape.head_width, key_heads * shape.head_width
    inner = shape.intermediate_size // parts
    mask = whole if training.dropout else 0
    score_flop = 2 * rows * queries

    tensors = [
        SavedTensor("layer input", element * whole, 0, "attention", checkpoint=True),
        SavedTensor("attention input", element * whole, _NORM_OPERATIONS * whole, "attention"),
        SavedTensor(
            "queries, keys, values",
            # Where queries and keys are normed, what the norms get is kept too.
            element * tokens * (queries + 2 * keys + (queries + keys if shape.qk_norm else 0)),
            2 * tokens * shape.hidden_size * (queries + 2 * keys),
            "attention",
        ),
    ]
    if training.flash_attention:
        # One float32 log-sum-exp a head and position stays beside the context.
        tensors.append(
            SavedTensor(
                "attention context",
                tokens * (element * queries + 4 * heads),
                2 * score_flop,
                "attention",
            )
        )
    else:
        # The softmax; with dropout its mask and what it left.
        a_score = element + (1 + element if training.dropout else 0)
        tensors += [
            SavedTensor("attention scores", a_score * heads * rows, score_flop, "attention", scores=True),
            SavedTensor("attention context", element * tokens * queries, score_flop, "attention"),
        ]
    tensors += [
        SavedTensor(
            "feed-forward residual",
            element * whole + mask,
            2 * tokens * queries * shape.hidden_size,
            "attention",
        ),
        SavedTensor("feed-forward input", element * whole, _NORM_OPERATIONS * whole, "feed_forward"),
        SavedTensor(
            "up projection",
            element * tokens * inner * _kept_before_activation(shape, training),
            2 * tokens * shape.hidden_size * inner * shape.up_matrices,
            "feed_forward",
        ),
        SavedTensor(
            "activated", element * tokens * inner, _ACTIVATION_OPERATIONS * tokens * inner, "feed_forward"
        ),
    ]
    if mask:
        tensors.append(
            SavedTensor("output mask", mask, 2 * tokens * inner * shape.hidden_size, "feed_forward")
        )
    return tuple(tensors)


def dropped(tensor: SavedTensor, recompute: Recompute) -> bool:
    """Whether a setting recomputes this tensor."""
    if tensor.checkpoint or recompute == "none":
        return False
    if recompute == "selective":
        return tensor.scores
    if recompute == "attention":
        # The half's input stays, and so does what the other half begins with.
        return tensor.part == "attention" and tensor.name not in ("attention input", "feed-forward residual")
    return True


def kept_bytes(shape: ModelShape, training: Training) -> float:
    """Bytes that one layer keeps of each micro-batch in flight; runs of layers share the input of the first."""
    recompute = training.strategy.recompute
    kept = sum(
        tensor.saved_bytes for tensor in saved_tensors(shape, training) if not dropped(tensor, recompute)
    )
    return kept / recompute.segments if isinstance(recompute, RecomputeSegments) else float(kept)


def recomputed_bytes(shape: ModelShape, training: Training) -> float:
    """Bytes that live while a layer (or run of layers) is computed again in the backward pass."""
    recompute = training.strategy.recompute
    again = sum(tensor.saved_bytes for tensor in saved_tensors(shape, training) if dropped(tensor, recompute))
    if isinstance(recompute, RecomputeSegments):
        inputs = sum(tensor.saved_bytes for tensor in saved_tensors(shape, training) if tensor.checkpoint)
        return float(again * recompute.segments + inputs * (recompute.segments - 1))
    return float(again)


def gradient_bytes(shape: ModelShape, training: Training) -> float:
    """The largest set of activation gradients that a backward pass holds at once in one layer.

    Those on both sides of the activation function, or of the softmax where scores lie in memory.
    """
    strategy, element = training.strategy, training.element_bytes
    tokens = training.sequence_length * strategy.micro_batch_size
    feed_forward = element * tokens * (shape.intermediate_size // strategy.model) * (1 + shape.up_matrices)
    if training.flash_attention:
        return float(feed_forward)
    heads, _ = rank_heads(shape, strategy.model)
    return float(max(feed_forward, 2 * element * heads * tokens * training.sequence_length))


def layer_forward_flop(shape: ModelShape, training: Training) -> float:
    """Operations of one layer's forward pass for one micro-batch on one rank."""
    tokens = training.sequence_length * training.strategy.micro_batch_size
    inner = shape.intermediate_size // training.strategy.model
    down = 0 if training.dropout else 2 * tokens * inner * shape.hidden_size
    return float(sum(tensor.producer_flop for tensor in saved_tensors(shape, training)) + down)


def _kept_before_activation(shape: ModelShape, training: Training) -> int:
    if shape.activation == "gelu":
        return 1
    return 2 if training.fused_activation else 3
