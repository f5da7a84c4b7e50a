"""Which backend scores a bundle."""

from typing import TYPE_CHECKING, Literal

from evalkit.backends.base import Backend
from evalkit.bundle import SCORE_ONNX, Bundle

if TYPE_CHECKING:
    from evalkit.backends.mindir import MindirBackend
    from evalkit.backends.onnx import OnnxBackend

BackendName = Literal["mindir", "onnx"]
# MindIR is the reference, and the way on Ascend.
DEFAULT: BackendName = "mindir"
# The graph that each runs, and the package that runs it.
SCORE_ROLES: dict[BackendName, str] = {"mindir": "score", "onnx": SCORE_ONNX}
RUNTIMES: dict[BackendName, str] = {"mindir": "mindspore", "onnx": "onnxruntime"}


def backend_class(name: BackendName) -> "type[MindirBackend] | type[OnnxBackend]":
    """The class of the backend called `name`; its runtime isn't imported."""
    if name == "onnx":
        from evalkit.backends.onnx import OnnxBackend

        return OnnxBackend
    from evalkit.backends.mindir import MindirBackend

    return MindirBackend


def open_backend(name: BackendName, bundle: Bundle) -> Backend:
    """Load a bundle's graph for the backend called `name`.

    Raises:
        InputError: the bundle lacks that graph, or the runtime isn't installed.
    """
    return backend_class(name)(bundle)
