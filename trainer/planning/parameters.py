"""Parameters of a stage and rank, counted module by module."""

from dataclasses import dataclass

from evalkit.errors import InputError
from trainer.planning.settings import Strategy
from trainer.planning.shapes import ModelShape


@dataclass(frozen=True)
class ParameterCounts:
    """Trained numbers on one rank of a stage."""

    embedding: int
    layers: int
    final_norm: int
    head: int

    @property
    def total(self) -> int:
        """All of them."""
        return self.embedding + self.layers + self.final_norm + self.head


def check_divisible(shape: ModelShape, strategy: Strategy) -> None:
    """Whether the model can be cut like that.

    Raises:
        InputError: names the size that isn't a multiple of its parts.
    """
    parts = strategy.model
    for name, size in (("heads", shape.heads), ("intermediate_size", shape.intermediate_size)):
        if size % parts:
            raise InputError(f"{name} {size} isn't a multiple of model {parts}; choose another degree")
    if shape.kv_head_count % parts and parts % shape.kv_head_count:
        raise InputError(
            f"kv_heads {shape.kv_head_count} and model {parts}: neither is a multiple of the other; choose another degree"
        )
    try:
        layers = strategy.stage_layers(shape.layers)
    except ValueError as error:
        raise InputError(str(error)) from None
    if strategy.interleave > 1 and any(count % strategy.interleave for count in layers):
        raise InputError(f"stages of {layers} layers aren't multiples of interleave {strategy.interleave}")


def rank_heads(shape: ModelShape, parts: int) -> tuple[int, int]:
    """Query heads and key heads of one of `parts` ranks; where key heads are fewer, each rank holds a copy of one."""
    return shape.heads // parts, max(1, shape.kv_head_count // parts)


def layer_parameters(shape: ModelShape, parts: int = 1) -> int:
    """Trained numbers of one layer on one of `parts` ranks.

    Matrices and the biases of those cut by columns are shared; norms and the biases behind a reduction aren't.
    """
    hidden, inner = shape.hidden_size, shape.intermediate_size // parts
    queries, keys = (count * shape.head_width for count in rank_heads(shape, parts))
    matrices = hidden * (2 * queries + 2 * keys) + hidden * inner * (shape.up_matrices + 1)
    norms = 2 * norm_parameters(shape) + (2 * shape.head_width if shape.qk_norm else 0)
    biases = 0
    if shape.bias or shape.qkv_bias:
        biases += queries + 2 * keys
    if shape.bias:
        biases += 2 * hidden + shape.up_matrices * inner
    return matrices + norms + biases


def norm_parameters(shape: ModelShape) -> int:
    """Trained numbers of one norm."""
    return shape.hidden_size * (2 if shape.norm == "layernorm" else 1)


def stage_parameters(shape: ModelShape, strategy: Strategy, stage: int) -> ParameterCounts:
    """Trained numbers on one rank of `stage`; a tied head is a copy where the last stage isn't the first."""
    first, last = stage == 0, stage == strategy.pipeline - 1
    table = -(-shape.vocab_size // strategy.model) * shape.hidden_size
    positions = shape.max_length * shape.hidden_size if shape.positions == "learned" else 0
    return ParameterCounts(
        embedding=(table + positions) if first else 0,
        layers=strategy.stage_layers(shape.layers)[stage] * layer_parameters(shape, strategy.model),
        final_norm=norm_parameters(shape) if last else 0,
        head=table if last and not (shape.tied_head and first) else 0,
    )


def total_parameters(shape: ModelShape) -> int:
    """Trained numbers of the whole model."""
    return stage_parameters(shape, Strategy(), 0).total
