"""Recomputation: activations that are computed again in the backward pass instead of being kept."""

from mindspore import Tensor, nn

from trainer.configuration.parallel import ParallelConfig, RecomputeSegments
from trainer.model.attention import KeyValue
from trainer.model.decoder import Block, CausalLM


class _Segment(nn.Cell):  # type: ignore[misc]
    """A run of layers that is recomputed as one: only its input is kept for the backward pass."""

    def __init__(self, blocks: list[Block]) -> None:
        super().__init__(auto_prefix=False)
        self.blocks = nn.CellList(blocks, auto_prefix=False)
        self.self_attn = blocks[0].self_attn

    def construct(
        self, x: Tensor, angles: KeyValue | None, mask: Tensor, past: KeyValue | None
    ) -> tuple[Tensor, KeyValue | None]:
        """As of one layer; training has no past and wants no keys."""
        new = None
        for block in self.blocks:
            x, new = block(x, angles, mask, past)
        return x, new


def apply_recompute(model: CausalLM, parallel: ParallelConfig) -> None:
    """Mark what `parallel.recompute` says; parameters keep their names."""
    layers = model.model.layers
    kind = parallel.recompute
    if isinstance(kind, RecomputeSegments):
        names = {id(parameter): parameter.name for parameter in model.get_parameters()}
        blocks = list(layers)
        runs = [blocks[start : start + kind.segments] for start in range(0, len(blocks), kind.segments)]
        model.model.layers = nn.CellList([_Segment(run) for run in runs])
        for parameter in model.get_parameters():
            parameter.name = names[id(parameter)]  # a Cell renames what is put into it
        for segment in model.model.layers:
            segment.recompute()
        return
    for layer in layers:
        if kind == "full":
            layer.recompute()
        elif kind == "selective":
            layer.self_attn.recompute()
