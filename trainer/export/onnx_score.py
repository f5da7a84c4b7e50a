"""The score and logits graphs in ONNX operators.

It's written node by node, because what MindSpore's exporter makes of the model is two to three times slower: ONNX
Runtime has one kernel each for attention, rotary positions and RMS norm, but finds them in no other form. Every export
compares the result with the checkpoint.
"""

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from evalkit.bundle import GraphPort, ModelSpec
from evalkit.scoring.head import LOWEST
from trainer.export.onnx_writer import GraphWriter
from trainer.model.attention import HIDDEN
from trainer.model.rotary import rotary_angles

if TYPE_CHECKING:
    from onnx import ModelProto

    from trainer.model.weights import Weights

_FLOAT, _INT32, _INT64 = 1, 6, 7  # TensorProto.DataType
_AXES = ["rows", "length"]
# The queries of a row are taken in blocks, each with the keys up to its end: five eighths of the products of all with
# all. More blocks were measured to gain nothing.
_QUERY_BLOCKS = 4
# Statistics are taken in blocks of rows, whose logits stay in the processor's cache and small in memory: with 512
# rows a block has about this many logits.
_BLOCK_LOGITS, _USUAL_ROWS = 1 << 21, 512


def build_score_graph(
    spec: ModelSpec, weights: "Weights", inputs: list[GraphPort], outputs: list[GraphPort]
) -> "ModelProto":
    """The graph that `ScoreGraph` computes, for any number of rows and any row length.

    One thing more is asked of the rows: within a segment, later positions stand further right.

    Args:
        spec: the architecture.
        weights: parameters by name, see `CausalLM`.
        inputs, outputs: `score_ports()`.
    """
    graph = _Decoder(spec, weights, inputs)
    return graph.model("score", inputs, outputs, graph.statistics(), _AXES)


def build_logits_graph(
    spec: ModelSpec, weights: "Weights", inputs: list[GraphPort], outputs: list[GraphPort]
) -> "ModelProto":
    """The graph that `LogitsGraph` computes; see `build_score_graph`."""
    graph = _Decoder(spec, weights, inputs)
    return graph.model("logits", inputs, outputs, [graph.logits()], _AXES)


class _Decoder(GraphWriter):
    def __init__(self, spec: ModelSpec, weights: "Weights", inputs: list[GraphPort]) -> None:
        super().__init__()
        self.spec, self.weights = spec, weights
        self.rotary_tables: tuple[str, str] | None = None
        if spec.positions == "rotary":
            cosines, sines = rotary_angles(spec.head_size, spec.max_length, spec.rope_theta)
            self.rotary_tables = self.constant("cosines", cosines), self.constant("sines", sines)
        self.length = self._at(self.op("Shape", "token_ids"), 1)
        self.inputs = {port.name: self._filled(port.name) for port in inputs}
        self.shape = self.op("Shape", self.inputs["token_ids"])
        # Padding may stand at -1: it reads position 0.
        self.positions = self.op(
            "Max", self.op("Cast", self.inputs["positions"], to=_INT64), self.integers(0)
        )
        self.blocks = self._blocks(self._at(self.shape, 1), _QUERY_BLOCKS)
        self.masks = [self._mask(start, end) for start, end in self.blocks]

    def _hidden(self) -> str:
        """[B*L, hidden] behind the last norm."""
        x = self.op("Gather", self._weight("model.embed_tokens"), self.inputs["token_ids"])
        # [B, L, hidden], as all x
        if self.spec.positions == "learned":
            x = self.op("Add", x, self.op("Gather", self._weight("model.embed_positions"), self.positions))
        for index in range(self.spec.layers):
            name = f"model.layers.{index}"
            mixed = self._attention(self._norm(x, f"{name}.input_layernorm"), f"{name}.self_attn")
            x = self.op("Add", x, mixed)
            fed = self._feed_forward(self._norm(x, f"{name}.post_attention_layernorm"), f"{name}.mlp")
            x = self.op("Add", x, fed)
        return self.op("Reshape", self._norm(x, "model.norm"), self.integers(-1, self.spec.hidden_size))

    def logits(self) -> str:
        """[B, L, V]."""
        logits = self.op("Gemm", self._hidden(), self._head(), transB=1)
        shape = self.op("Concat", self.shape, self.integers(self.spec.vocab_size), axis=0)
        return self._columns(self.op("Reshape", logits, shape), self.integers(0), self.length)

    def _head(self) -> str:
        return self._weight("model.embed_tokens" if self.spec.tied_head else "lm_head")

    def _filled(self, name: str) -> str:
        """The input with as many columns as there are blocks at the least: no block of queries may be empty."""
        missing = self.op("Max", self.op("Sub", self.integers(_QUERY_BLOCKS), self.length), self.integers(0))
        return self.op("Pad", name, self.op("Concat", self.integers(0, 0, 0), missing, axis=0))

    def _at(self, shape: str, axis: int) -> str:
        return self.op("Slice", shape, self.integers(axis), self.integers(axis + 1))

    def _blocks(self, size: str, count: int) -> list[tuple[str, str]]:
        """Where `count` blocks of about equal size begin and end."""
        inner = [
            self.op("Div", self.op("Mul", size, self.integers(index)), self.integers(count))
            for index in range(1, count)
        ]
        return list(pairwise([self.integers(0), *inner, size]))

    def _columns(self, value: str, start: str, end: str, axis: int = 1) -> str:
        return self.op("Slice", value, start, end, self.integers(axis))

    def _mask(self, start: str, end: str) -> str:
        """float32 [B, 1, queries, keys] of the queries from `start` to `end`; see `attention_mask`."""

        def queries(name: str) -> str:
            return self.op("Unsqueeze", self._columns(self.inputs[name], start, end), self.integers(1, 3))

        def keys(name: str) -> str:
            return self.op(
                "Unsqueeze", self._columns(self.inputs[name], self.integers(0), end), self.integers(1, 2)
            )

        query, key = queries("positions"), keys("positions")
        visible = self.op(
            "And",
            self.op("Equal", queries("segments"), keys("segments")),
            self.op("GreaterOrEqual", query, key),
        )
        if self.spec.attention_window is not None:
            window = self.constant("attention_window", np.int32(self.spec.attention_window))
            visible = self.op("And", visible, self.op("Less", self.op("Sub", query, key), window))
        return self.op("Where", visible, self._float("zero", 0.0), self._float("hidden", HIDDEN))

    def _attention(self, x: str, name: str) -> str:
        spec = self.spec
        # Queries and keys are one product, and are turned by one operator: half of the calls.
        both = self._linear(x, f"{name}.q_proj", f"{name}.k_proj")
        if self.rotary_tables is not None:
            both = self.op(
                "RotaryEmbedding",
                both,
                *self.rotary_tables,
                self.positions,
                num_heads=spec.heads + spec.kv_heads,
            )
        widths = self.integers(spec.heads * spec.head_size, spec.kv_heads * spec.head_size)
        query, key = self.ops("Split", 2, both, widths, axis=-1)
        value = self._linear(x, f"{name}.v_proj")
        blocks = []
        for mask, (start, end) in zip(self.masks, self.blocks, strict=True):
            seen = [key, value]
            if end != self.blocks[-1][1]:
                seen = [self._columns(part, self.integers(0), end) for part in seen]
                # Without it the width of the values is lost on ONNX's shape inference, which then fails.
                seen[1] = self.op("Reshape", seen[1], self.integers(0, -1, spec.kv_heads * spec.head_size))
            blocks.append(
                self.op(
                    "Attention",
                    self._columns(query, start, end),
                    *seen,
                    mask,
                    q_num_heads=spec.heads,
                    kv_num_heads=spec.kv_heads,
                    scale=spec.head_size**-0.5,
                )
            )
        return self._linear(self.op("Concat", *blocks, axis=1), f"{name}.o_proj")

    def _feed_forward(self, x: str, name: str) -> str:
        up = self._linear(x, f"{name}.up_proj")
        if self.spec.activation == "swiglu":
            gate = self._linear(x, f"{name}.gate_proj")
            inner = self.op("Mul", self.op("Mul", gate, self.op("Sigmoid", gate)), up)
        else:
            inner = self.op("Gelu", up, approximate="tanh")
        return self._linear(inner, f"{name}.down_proj")

    def _norm(self, x: str, name: str) -> str:
        if self.spec.norm == "rmsnorm":
            return self.op("RMSNormalization", x, self._weight(name), epsilon=self.spec.norm_eps, axis=-1)
        return self.op(
            "LayerNormalization",
            x,
            self._weight(name),
            self._weight(name, "bias"),
            epsilon=self.spec.norm_eps,
            axis=-1,
        )

    def _linear(self, x: str, *names: str) -> str:
        """x through one linear layer, or through several side by side."""
        joined = " ".join(names)
        matrix = np.concatenate([self.weights[f"{name}.weight"] for name in names])
        product = self.op("MatMul", x, self.constant(joined, matrix.T))
        if f"{names[0]}.bias" not in self.weights:
            return product
        bias = np.concatenate([self.weights[f"{name}.bias"] for name in names])
        return self.op("Add", product, self.constant(f"{joined}.bias", bias))

    def _weight(self, name: str, kind: str = "weight") -> str:
        return self.constant(f"{name}.{kind}", self.weights[f"{name}.{kind}"])

    def _float(self, name: str, value: float) -> str:
        return self.constant(name, np.float32(value))

    def statistics(self) -> list[str]:
        """The five outputs [B, L]; see `ScoringHead`."""
        hidden = self._hidden()
        count = -(-_USUAL_ROWS * self.spec.vocab_size // _BLOCK_LOGITS)
        targets = self.op("Reshape", self.inputs["targets"], self.integers(-1, 1))  # [B*L, 1]
        parts = [
            self._block_statistics(
                self._columns(hidden, start, end, axis=0), self._columns(targets, start, end, axis=0)
            )
            for start, end in self._blocks(self._at(self.op("Shape", hidden), 0), count)
        ]
        return [
            self._columns(
                self.op("Reshape", self.op("Concat", *columns, axis=0), self.shape),
                self.integers(0),
                self.length,
            )
            for columns in zip(*parts, strict=True)
        ]

    def _block_statistics(self, hidden: str, targets: str) -> list[str]:
        """hidden [N, hidden], targets [N, 1] → five columns [N, 1]."""
        logits = self.op("Gemm", hidden, self._head(), transB=1)  # [N, V]
        best, best_ids = self.ops("TopK", 2, logits, self.integers(2), axis=-1)
        largest, second = self.ops("Split", 2, best, axis=-1, num_outputs=2)
        top_id = self.op("Cast", self._columns(best_ids, self.integers(0), self.integers(1)), to=_INT32)
        centred = self.op("Sub", logits, largest)  # [N, V], the largest is 0
        own = self.op("GatherElements", centred, targets, axis=1)
        better = self._row_sum(self.op("Cast", self.op("Greater", centred, own), to=_FLOAT))
        rank = self.op("Add", self.op("Cast", better, to=_INT32), self.constant("one_id", np.int32(1)))
        second = self.op("Sub", second, largest)
        other = self.op("Where", self.op("Equal", top_id, targets), second, self._float("zero", 0.0))

        lowest = self.op("Expand", self._float("lowest", LOWEST), self.op("Shape", targets))
        weights = self.op("Exp", self.op("ScatterElements", centred, targets, lowest, axis=1))
        own_weight, rest, one = self.op("Exp", own), self._row_sum(weights), self._float("one", 1.0)
        log_total = self._log1p(self.op("Add", rest, self.op("Sub", own_weight, one)), one)
        weighted = self.op(
            "Add", self._row_sum(self.op("Mul", weights, centred)), self.op("Mul", own_weight, own)
        )
        expected = self.op("Div", weighted, self.op("Add", own_weight, rest))
        return [
            self.op("Sub", own, log_total),
            self.op("Sub", log_total, expected),
            self.op("Sub", own, other),
            rank,
            top_id,
        ]

    def _log1p(self, x: str, one: str) -> str:
        """ln(1 + x) as in `ScoringHead`; ONNX has no operator for it."""
        u = self.op("Add", x, one)
        exact = self.op("Div", self.op("Mul", self.op("Log", u), x), self.op("Sub", u, one))
        return self.op("Where", self.op("Equal", u, one), x, exact)

    def _row_sum(self, x: str) -> str:
        return self.op("ReduceSum", x, self.integers(-1), keepdims=1)
