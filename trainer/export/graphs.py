"""The graphs of a bundle: `score` (teacher-forced statistics) and `step` (prefill and decode with a KV cache)."""

import stat
from pathlib import Path

import mindspore as ms
from mindspore import Tensor, dtype, nn, ops

from evalkit.bundle import GraphPort, ModelSpec
from evalkit.scoring.head import ScoringHead
from trainer.model.attention import KeyValue
from trainer.model.decoder import CausalLM


class ScoreGraph(nn.Cell):  # type: ignore[misc]
    """Statistics of each target given everything before it."""

    def __init__(self, model: CausalLM, spec: ModelSpec) -> None:
        super().__init__(auto_prefix=False)  # parameters keep the names they have in the model
        self.model = model
        self.head = ScoringHead(spec.vocab_size)

    def construct(
        self, token_ids: Tensor, targets: Tensor, positions: Tensor, segments: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """int32 [B, L] each → logprob, entropy, margin (float32), rank, top_id (int32), each [B, L]."""
        logits = self.model(token_ids, positions, segments)  # [B*L, V]
        logprob, entropy, margin, rank, top_id = self.head(logits, targets.reshape(-1))
        shape = token_ids.shape
        return (
            logprob.reshape(shape),
            entropy.reshape(shape),
            margin.reshape(shape),
            rank.reshape(shape),
            top_id.reshape(shape),
        )


class LogitsGraph(nn.Cell):  # type: ignore[misc]
    """Raw logits of the next token at every position."""

    def __init__(self, model: CausalLM, spec: ModelSpec) -> None:
        super().__init__(auto_prefix=False)
        self.model = model
        self.vocab_size = spec.vocab_size

    def construct(self, token_ids: Tensor, positions: Tensor, segments: Tensor) -> Tensor:
        """int32 [B, L] each → float32 [B, L, V]."""
        logits = self.model(token_ids, positions, segments)  # [B*L, V]
        return logits.astype(dtype.float32).reshape(token_ids.shape[0], -1, self.vocab_size)


class StepGraph(nn.Cell):  # type: ignore[misc]
    """S new tokens after P cached ones: the logits at one place, and keys and values of the new tokens."""

    def __init__(self, model: CausalLM, spec: ModelSpec) -> None:
        super().__init__(auto_prefix=False)
        self.model = model
        self.layers = spec.layers
        self.hidden_size = spec.hidden_size

    def construct(
        self, token_ids: Tensor, positions: Tensor, past_positions: Tensor, last_index: Tensor, *past: Tensor
    ) -> tuple[Tensor, ...]:
        """Run one step.

        Args:
            token_ids: int32 [B, S].
            positions: int32 [B, S], absolute; -1 is padding.
            past_positions: int32 [B, P]; -1 is an empty slot.
            last_index: int32 [B], the index in S whose logits are wanted.
            past: past_key_0, past_value_0, past_key_1, ... float32 [B, kv_heads, P, head_size].

        Returns:
            logits float32 [B, V], then key_0, value_0, key_1, ... float32 [B, kv_heads, S, head_size].
        """
        pairs: tuple[KeyValue, ...] = ()
        for index in range(self.layers):
            pairs = (*pairs, (past[2 * index], past[2 * index + 1]))
        # One text a row, segment 0; padding and empty slots are segment -1, which no real token shares.
        segments, past_segments = ops.minimum(positions, 0), ops.minimum(past_positions, 0)
        hidden, new = self.model.model(token_ids, positions, segments, pairs, past_positions, past_segments)

        texts = hidden.reshape(token_ids.shape[0], -1, self.hidden_size)  # [B, S, hidden]
        chosen = ops.tile(last_index.reshape(-1, 1, 1), (1, 1, self.hidden_size))  # [B, 1, hidden]
        last = ops.gather_d(texts, 1, chosen).reshape(-1, self.hidden_size)  # [B, hidden]
        outputs: tuple[Tensor, ...] = (self.model.logits(last),)
        for key, value in new:
            outputs = (*outputs, key, value)
        return outputs


def score_ports() -> tuple[list[GraphPort], list[GraphPort]]:
    """Inputs and outputs of the score graph."""
    names = ("token_ids", "targets", "positions", "segments")
    inputs = [GraphPort(name=name, dtype="int32", shape=[None, None]) for name in names]
    outputs = [
        GraphPort(name=name, dtype=kind, shape=[None, None])
        for name, kind in (
            ("logprob", "float32"),
            ("entropy", "float32"),
            ("margin", "float32"),
            ("rank", "int32"),
            ("top_id", "int32"),
        )
    ]
    return inputs, outputs


def logits_ports(spec: ModelSpec) -> tuple[list[GraphPort], list[GraphPort]]:
    """Inputs and outputs of the logits graph."""
    names = ("token_ids", "positions", "segments")
    inputs = [GraphPort(name=name, dtype="int32", shape=[None, None]) for name in names]
    return inputs, [GraphPort(name="logits", dtype="float32", shape=[None, None, spec.vocab_size])]


def step_ports(spec: ModelSpec) -> tuple[list[GraphPort], list[GraphPort]]:
    """Inputs and outputs of the step graph."""
    cache: list[int | None] = [None, spec.kv_heads, None, spec.head_size]
    layers = [name for index in range(spec.layers) for name in (f"key_{index}", f"value_{index}")]
    inputs = [
        GraphPort(name="token_ids", dtype="int32", shape=[None, None]),
        GraphPort(name="positions", dtype="int32", shape=[None, None]),
        GraphPort(name="past_positions", dtype="int32", shape=[None, None]),
        GraphPort(name="last_index", dtype="int32", shape=[None]),
        *(GraphPort(name=f"past_{name}", dtype="float32", shape=cache) for name in layers),
    ]
    outputs = [
        GraphPort(name="logits", dtype="float32", shape=[None, spec.vocab_size]),
        *(GraphPort(name=name, dtype="float32", shape=cache) for name in layers),
    ]
    return inputs, outputs


def dynamic_inputs(ports: list[GraphPort]) -> list[Tensor]:
    """Placeholders with the ports' dynamic shapes, for `export` and `set_inputs`."""
    return [Tensor(shape=port.shape, dtype=getattr(dtype, port.dtype)) for port in ports]


def export_mindir(graph: nn.Cell, inputs: list[GraphPort], file: Path) -> None:
    """Write `graph` as a MindIR with dynamic shapes."""
    graph.set_train(False)
    ms.export(graph, *dynamic_inputs(inputs), file_name=str(file.with_suffix("")), file_format="MINDIR")
    # MindSpore writes mode 0400 below 0700 folders; a bundle is as readable as any other file.
    file.chmod(file.stat().st_mode | stat.S_IWUSR | stat.S_IRGRP | stat.S_IROTH)


def load_mindir(file: Path, inputs: list[GraphPort]) -> nn.GraphCell:
    """Load a MindIR that serves all shapes with one compilation."""
    graph = nn.GraphCell(ms.load(str(file)))
    graph.set_inputs(*dynamic_inputs(inputs))
    return graph
