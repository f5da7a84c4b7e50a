"""Scoring with the `score` graph of a bundle, a MindIR file, on MindSpore."""

from typing import Any

from evalkit.backends.base import IntArray, RowStats
from evalkit.backends.runtime import mindspore_session
from evalkit.bundle import Bundle
from evalkit.errors import InputError


class MindirBackend:
    """A bundle's `score` graph.

    Rows come in one fixed shape for a whole run, so each shape is compiled once (about 0.1 s); declaring
    dynamic inputs instead was measured to be slower for every call.
    """

    name = "mindir"
    precision = "fp32"

    def __init__(self, bundle: Bundle) -> None:
        """Load the graph of a verified bundle.

        Raises:
            InputError: the bundle has no MindIR `score` graph, or MindSpore can't load it.
        """
        self.model_digest = bundle.model_digest
        self.max_length = bundle.model.max_length
        self.vocab_size = bundle.model.vocab_size
        file = bundle.graph_file("score")
        if bundle.manifest.graphs["score"].format != "mindir":
            raise InputError(
                f"{file}: the score graph isn't a MindIR; export the bundle again with --format mindir"
            )
        with mindspore_session() as mindspore:
            try:
                graph = mindspore.load(str(file))
            except RuntimeError:
                raise InputError(
                    f"{file}: MindSpore can't load this graph; export the bundle again"
                ) from None
            self._cell: Any = mindspore.nn.GraphCell(graph)

    def score(
        self, token_ids: IntArray, targets: IntArray, positions: IntArray, segments: IntArray
    ) -> RowStats:
        """See `Backend.score`."""
        with mindspore_session() as mindspore:
            inputs = (mindspore.Tensor(array) for array in (token_ids, targets, positions, segments))
            logprob, entropy, margin, rank, top_id = (output.asnumpy() for output in self._cell(*inputs))
        return RowStats(logprob, entropy, margin, rank, top_id)
