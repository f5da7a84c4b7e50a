"""Raw logits by the optional `logits` graph of a bundle: MindIR on MindSpore, its ONNX twin on ONNX Runtime."""

from collections.abc import Callable
from pathlib import Path

from evalkit.backends.base import Float32Array, IntArray
from evalkit.backends.choice import BackendName
from evalkit.bundle import LOGITS, LOGITS_ONNX, Bundle
from evalkit.errors import InputError

# token_ids, positions, segments, int32 (rows, length) each → float32 (rows, length, vocabulary).
RawLogits = Callable[[IntArray, IntArray, IntArray], Float32Array]


def logits_file(name: BackendName, bundle: Bundle) -> Path:
    """The bundle's graph of raw logits for the backend called `name`.

    Raises:
        InputError: the bundle has none.
    """
    role, formats = (LOGITS_ONNX, "mindir,onnx") if name == "onnx" else (LOGITS, "mindir")
    if role not in bundle.manifest.graphs:
        raise InputError(
            f"{bundle.path}: the bundle has no graph of raw logits for --backend {name}; export it again with "
            f"`trainer export CKPT --format {formats} --logits`"
        )
    return bundle.graph_file(role)


def open_logits(file: Path) -> RawLogits:
    """Load a graph of raw logits from a verified bundle.

    Raises:
        InputError: it is unsafe or can't be loaded, or the runtime isn't installed.
    """
    return _onnx(file) if file.suffix == ".onnx" else _mindir(file)


def _onnx(file: Path) -> RawLogits:
    from evalkit.backends.onnx_session import open_session

    session = open_session(file)

    def run(token_ids: IntArray, positions: IntArray, segments: IntArray) -> Float32Array:
        inputs = {"token_ids": token_ids, "positions": positions, "segments": segments}
        logits: Float32Array = session.run(["logits"], inputs)[0]
        return logits

    return run


def _mindir(file: Path) -> RawLogits:
    from evalkit.backends.runtime import mindspore_session

    with mindspore_session() as mindspore:
        try:
            cell = mindspore.nn.GraphCell(mindspore.load(str(file)))
        except RuntimeError:
            raise InputError(f"{file}: MindSpore can't load this graph; export the bundle again") from None

    def run(token_ids: IntArray, positions: IntArray, segments: IntArray) -> Float32Array:
        with mindspore_session() as mindspore:
            inputs = (mindspore.Tensor(array) for array in (token_ids, positions, segments))
            logits: Float32Array = cell(*inputs).asnumpy()
            return logits

    return run
