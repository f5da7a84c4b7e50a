"""Which backend scores a bundle."""

from typing import Literal

from evalkit.backends.base import Backend
from evalkit.bundle import Bundle

BackendName = Literal["mindir", "onnx"]
# MindIR is the reference, and the way on Ascend.
DEFAULT: BackendName = "mindir"


def open_backend(name: BackendName, bundle: Bundle) -> Backend:
    """Load a bundle's graph for the backend called `name`.

    Raises:
        InputError: the bundle lacks that graph, or the runtime isn't installed.
    """
    if name == "onnx":
        from evalkit.backends.onnx import OnnxBackend

        return OnnxBackend(bundle)
    from evalkit.backends.mindir import MindirBackend

    return MindirBackend(bundle)
