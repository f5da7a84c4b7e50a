"""ONNX twins of the score and logits graphs: files whose rows and row length are dynamic."""

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from evalkit.bundle import GraphPort, ModelSpec
from evalkit.errors import InputError
from trainer.export.onnx_score import build_logits_graph, build_score_graph
from trainer.model.weights import weights_of

if TYPE_CHECKING:
    from mindspore import nn


_LARGEST_BYTES = (1 << 31) - 1  # of a protobuf message


def require_onnx() -> None:
    """Refuse early where the packages for ONNX aren't installed."""
    for package in ("onnx", "onnxruntime"):
        if find_spec(package) is None:
            raise InputError(f'--format onnx: needs the package {package}; pip install "evalkit[onnx]"')


def export_onnx(
    role: Literal["score", "logits"],
    model: "nn.Cell",
    spec: ModelSpec,
    inputs: list[GraphPort],
    outputs: list[GraphPort],
    file: Path,
) -> None:
    """Write the ONNX form of a graph of whole rows.

    Args:
        role: score (`ScoreGraph`) or logits (`LogitsGraph`).
        model: whose parameters are taken.
        spec: its architecture.
        inputs, outputs: the graph's ports.
        file: to write.

    Raises:
        InputError: the model is too large for one file.
    """
    import onnx

    build = build_score_graph if role == "score" else build_logits_graph
    graph = build(spec, weights_of(model), inputs, outputs)
    if graph.ByteSize() > _LARGEST_BYTES:
        raise InputError("--format onnx: one ONNX file holds at most 2 GB, this model is larger; use mindir")
    onnx.checker.check_model(graph)
    file.write_bytes(graph.SerializeToString())
