"""The one door to ONNX Runtime: a checked graph on the CPU."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evalkit.errors import InputError
from evalkit.onnx_operators import check_onnx

if TYPE_CHECKING:
    from onnx import ModelProto

_ERROR = 3  # severity from which ONNX Runtime writes to stderr
# How long a thread without work looks for the next operator before it sleeps. Waking it takes longer than most operators
# of a step, so without any of this a second thread is worth nothing; with no bound it takes the processor from a server.
_SPIN_US = 200


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def open_session(file: Path, threads: int | None = None) -> Any:
    """Check the ONNX graph and open an `onnxruntime.InferenceSession` on the CPU.

    Args:
        file: the graph.
        threads: that one call uses; None for one on each core that this process may use, as MindSpore does.

    Raises:
        InputError: ONNX Runtime isn't installed, the graph is unsafe, or it can't be loaded.
    """
    check_onnx(file)
    # From the file, not from its bytes: that needs the memory of the weights once less.
    return _open(str(file), file, available_cores() if threads is None else threads)


def open_rewritten(model: "ModelProto", file: Path, threads: int) -> Any:
    """Open a session on a graph that was read from `file`, checked, and rewritten here.

    Its threads soon sleep while they have nothing to do, for it shares the processor with a server.

    Raises:
        InputError: ONNX Runtime isn't installed, or the graph can't be loaded.
    """
    return _open(model.SerializeToString(), file, threads, spin_us=_SPIN_US)


def _open(source: str | bytes, file: Path, threads: int, spin_us: int | None = None) -> Any:
    try:
        import onnxruntime
    except ImportError:
        raise InputError(
            f'{file}: ONNX graphs need the packages onnx and onnxruntime; pip install "evalkit[onnx]"'
        ) from None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = _ERROR
    options.add_session_config_entry("session.intra_op.allow_spinning", "1")
    if spin_us is not None:
        options.add_session_config_entry("session.intra_op.spin_duration_us", str(spin_us))
    # Not session.set_denormal_as_zero: it changes the floating-point mode of this whole process, ours and the caller's.
    try:
        return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its exceptions have no common base but Exception
        reason = str(error).splitlines()[0]
        raise InputError(
            f"{file}: ONNX Runtime can't load this graph ({reason}); export the bundle again"
        ) from None
