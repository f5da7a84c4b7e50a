"""What the engine's loop asks of a model, and which graph of a bundle answers.

A promise stands behind both answers: the logits of a turn have the same bits whatever the other rows hold,
and keys and values that `prefill` computes have the same bits wherever its chunks begin (at multiples of
`alignment`). So a turn's tokens depend on its prompt and its sampling alone. Nothing is promised between keys and
values of `prefill` and of `decode`: those of a reply are computed again by `prefill` before another turn reuses
them.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from evalkit.bundle import DECODE_ONNX, Bundle, GraphSpec
from evalkit.errors import InputError
from sandbox.engine.kv_cache import Float32, KvRows, KvShape

EngineName = Literal["mindir", "onnx"]
Int32 = npt.NDArray[np.int32]

DECODE_ROLES: dict[EngineName, str] = {"mindir": "decode", "onnx": DECODE_ONNX}
_FIXED_INPUTS = ("token_ids", "positions", "past_positions", "last_index")


class StepModel(Protocol):
    """Computes tokens of turns whose keys and values lie in rows.

    Attributes:
        vocab_size: width of the logits.
        alignment: chunks of a prompt begin at multiples of it.
        chunk_tokens: length of a chunk beside turns that wait for their next token.
        idle_chunk_tokens: length of a chunk where nobody waits.
    """

    vocab_size: int
    alignment: int
    chunk_tokens: int
    idle_chunk_tokens: int

    def prefill(self, rows: KvRows, row: int, ids: Sequence[int], start: int) -> Float32:
        """Compute the tokens `ids` of a row after its first `start` ones; store their keys and values.

        Returns:
            Logits after the last of them, float32 [vocabulary]; valid until the next call.
        """
        ...

    def decode(self, rows: KvRows, wanted: Sequence[int], ids: Int32, lengths: Int32) -> Float32:
        """Compute one token in each of several rows.

        Args:
            rows: where keys and values lie.
            wanted: the rows to compute, ascending.
            ids: int32 [n], a token for each of the first n rows; those of rows that aren't wanted don't matter.
            lengths: int32 [n], how many tokens each row holds. What lies beyond may be overwritten, also in
                rows that aren't wanted.

        Returns:
            Logits, float32 [len(wanted), vocabulary]; valid until the next call.
        """
        ...

    def warm_up(self, rows: KvRows) -> None:
        """Do once what would make a user's first call slow."""
        ...


def kv_shape(bundle: Bundle) -> KvShape:
    """Keys and values of a bundle's model."""
    return KvShape(bundle.model.layers, bundle.model.kv_heads, bundle.model.head_size)


def choose_engine(bundle: Bundle, asked: EngineName | None = None) -> EngineName:
    """Which graph serves: the one asked for; otherwise ONNX if the bundle has it and no Ascend device is here.

    Raises:
        InputError: the bundle lacks the graph.
    """
    graphs = bundle.manifest.graphs
    if asked is None:
        asked = "onnx" if DECODE_ONNX in graphs and not _has_ascend() else "mindir"
    if DECODE_ROLES[asked] not in graphs:
        raise InputError(
            f"{bundle.path}: the bundle has no graph {DECODE_ROLES[asked]} for the engine {asked}; export it again with"
            f" --format mindir,onnx, or choose another engine"
        )
    return asked


def open_step_model(bundle: Bundle, name: EngineName, max_rows: int) -> StepModel:
    """Load the graph of a verified bundle.

    Raises:
        InputError: the bundle lacks the graph, or it isn't one that this engine can call, or its runtime isn't
            installed.
    """
    spec = bundle.manifest.graphs[DECODE_ROLES[choose_engine(bundle, name)]]
    _check_ports(bundle, DECODE_ROLES[name], spec, "onnx" if name == "onnx" else "mindir")
    if name == "mindir":
        from sandbox.engine.concat_model import open_mindir

        return open_mindir(bundle, spec)
    from sandbox.engine.onnx_model import open_onnx

    return open_onnx(bundle, max_rows)


def _check_ports(bundle: Bundle, role: str, spec: GraphSpec, wanted: str) -> None:
    if spec.format != wanted:
        raise InputError(
            f"{bundle.path}: graphs.{role}: format {spec.format} isn't served; export the bundle with --format {wanted}"
        )
    layers = range(bundle.model.layers)
    cached = [f"past_{kind}_{layer}" for layer in layers for kind in ("key", "value")]
    found = [port.name for port in spec.inputs]
    if found != [*_FIXED_INPUTS, *cached]:
        raise InputError(
            f"{bundle.path}: graphs.{role}: the inputs must be {', '.join(_FIXED_INPUTS)} and one past_key_N, past_value_N a"
            f" layer, found {', '.join(found) or 'none'}; export the bundle again"
        )


def _has_ascend() -> bool:
    return Path("/dev/davinci_manager").exists()
