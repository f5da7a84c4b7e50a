"""ONNX twin of the score graph: one file whose rows and row length are dynamic."""

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from evalkit.bundle import GraphPort, ModelSpec
from evalkit.errors import InputError
from trainer.export.onnx_score import build_score_graph
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
    graph: "nn.Cell", spec: ModelSpec, inputs: list[GraphPort], outputs: list[GraphPort], file: Path
) -> None:
    """Write the ONNX form of a score graph.

    Args:
        graph: the `ScoreGraph`, whose parameters are taken.
        spec: of its model.
        inputs, outputs: names in call order.
        file: to write.

    Raises:
        InputError: the model is too large for one file.
    """
    import onnx

    model = build_score_graph(spec, weights_of(graph), inputs, outputs)
    if model.ByteSize() > _LARGEST_BYTES:
        raise InputError("--format onnx: one ONNX file holds at most 2 GB, this model is larger; use mindir")
    onnx.checker.check_model(model)
    file.write_bytes(model.SerializeToString())
