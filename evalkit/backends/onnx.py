"""Scoring with the ONNX twin of the `score` graph, on ONNX Runtime."""

from evalkit.backends.base import IntArray, RowStats
from evalkit.backends.onnx_session import available_cores, open_session
from evalkit.bundle import SCORE_ONNX, Bundle
from evalkit.errors import InputError

_OUTPUTS = ["logprob", "entropy", "margin", "rank", "top_id"]


class OnnxBackend:
    """A bundle's `score_onnx` graph."""

    name = "onnx"
    precision = "fp32"
    # One core a call: two calls side by side were measured to be half as fast again as one call on two cores.
    parallel_calls = available_cores()

    def __init__(self, bundle: Bundle) -> None:
        """Load the graph of a verified bundle.

        Raises:
            InputError: the bundle has no such graph, it is unsafe, or ONNX Runtime isn't installed.
        """
        self.model_digest = bundle.model_digest
        self.max_length = bundle.model.max_length
        self.vocab_size = bundle.model.vocab_size
        if SCORE_ONNX not in bundle.manifest.graphs:
            raise InputError(
                f"{bundle.path}: the bundle has no ONNX graph; export it again with --format mindir,onnx"
            )
        self._session = open_session(bundle.graph_file(SCORE_ONNX), threads=1)

    def score(
        self, token_ids: IntArray, targets: IntArray, positions: IntArray, segments: IntArray
    ) -> RowStats:
        """See `Backend.score`."""
        inputs = {
            "token_ids": token_ids,
            "targets": targets,
            "positions": positions,
            "segments": segments,
        }
        return RowStats(*self._session.run(_OUTPUTS, inputs))
