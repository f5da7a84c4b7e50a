"""Parity: how far the exported graphs' log-probabilities lie from the checkpoint's, on real text."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
from mindspore import Tensor, nn

from evalkit.bundle import ModelSpec, Parity
from evalkit.errors import InputError
from trainer.checkpoint import Probe

# An export whose worst token is further off than this isn't the same model, in nats.
TOLERANCE = 1e-3

_ROWS_A_CALL = 8
_DECODE_TEXTS = 4
_DECODE_TOKENS = 48

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int32]


def score_logprobs(graph: nn.Cell, probe: Probe) -> Floats:
    """Log-probability of every target of the probe by a score graph, [rows, length]; 0 at padding."""
    fields = (probe.token_ids, probe.targets, probe.positions, probe.segments)
    parts = []
    for start in range(0, len(probe.token_ids), _ROWS_A_CALL):
        chunk = [Tensor(np.ascontiguousarray(field[start : start + _ROWS_A_CALL])) for field in fields]
        parts.append(graph(*chunk)[0].asnumpy())
    return np.where(probe.segments > 0, np.concatenate(parts), np.float32(0))


def onnx_logprobs(file: Path, probe: Probe) -> Floats:
    """Log-probability of every target of the probe by an ONNX score graph, [rows, length]; 0 at padding."""
    from evalkit.backends.onnx_session import open_session

    session = open_session(file)
    fields = {name: getattr(probe, name) for name in ("token_ids", "targets", "positions", "segments")}
    parts = []
    for start in range(0, len(probe.token_ids), _ROWS_A_CALL):
        chunk = {name: field[start : start + _ROWS_A_CALL] for name, field in fields.items()}
        parts.append(session.run(["logprob"], chunk)[0])
    return np.where(probe.segments > 0, np.concatenate(parts), np.float32(0))


def logits_logprobs(run: Callable[..., Floats], probe: Probe) -> Floats:
    """Log-probability of every target of the probe by raw logits, [rows, length]; 0 at padding.

    Args:
        run: token_ids, positions, segments → logits [rows, length, vocabulary].
        probe: the rows.
    """
    found = np.zeros(probe.token_ids.shape, dtype=np.float32)
    for row in range(len(probe.token_ids)):
        fields = (probe.token_ids, probe.positions, probe.segments)
        logits = run(*(np.ascontiguousarray(field[row : row + 1]) for field in fields))[0]
        for column in np.flatnonzero(probe.segments[row] > 0):
            found[row, column] = _logprob(logits[column], int(probe.targets[row, column]))
    return found


def decode_logprobs(graph: nn.Cell, spec: ModelSpec, probe: Probe) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """Log-probabilities by prefill and decode: the first text of some rows, half of it as the prompt.

    The texts differ in length, so that padding takes part too.

    Returns:
        Log-probabilities [rows, length], and True where one was computed.
    """
    rows = min(_DECODE_TEXTS, len(probe.token_ids))
    lengths = np.minimum((probe.segments[:rows] == 1).sum(1), _DECODE_TOKENS)
    prompts = np.maximum(lengths // 2, 1)
    result = np.zeros(probe.token_ids.shape, dtype=np.float32)
    computed = np.zeros(probe.token_ids.shape, dtype=np.bool_)

    cache = [np.zeros((rows, spec.kv_heads, 0, spec.head_size), np.float32)] * (2 * spec.layers)
    cached_positions = np.zeros((rows, 0), dtype=np.int32)
    start, width = np.zeros(rows, dtype=np.int64), int(prompts.max())
    stop = prompts
    while np.any(start < lengths):
        columns = start[:, None] + np.arange(width)
        positions = np.where(columns < stop[:, None], columns, -1).astype(np.int32)
        token_ids = np.where(
            positions >= 0, np.take_along_axis(probe.token_ids[:rows], np.maximum(positions, 0), 1), 0
        )
        last = np.maximum(stop - start - 1, 0).astype(np.int32)
        inputs = (token_ids.astype(np.int32), positions, cached_positions, last, *cache)
        logits, *new = (output.asnumpy() for output in graph(*(Tensor(value) for value in inputs)))
        cache = [np.concatenate(pair, axis=2) for pair in zip(cache, new, strict=True)]
        cached_positions = np.concatenate((cached_positions, positions), axis=1)
        for row in np.flatnonzero(stop > start):
            column = int(stop[row]) - 1
            result[row, column] = _logprob(logits[row], int(probe.targets[row, column]))
            computed[row, column] = True
        start, width = stop, 1
        stop = np.minimum(stop + 1, lengths)
        start = np.where(stop > start, start, lengths)
    return result, computed


def compare(name: str, found: Floats, expected: Floats, where: npt.NDArray[np.bool_]) -> Parity:
    """Compare log-probabilities where `where` is True.

    Raises:
        InputError: the worst token is off by more than TOLERANCE, or a number isn't finite.
    """
    difference = np.abs(found[where].astype(np.float64) - expected[where].astype(np.float64))
    worst = float(difference.max(initial=0.0))
    if not worst <= TOLERANCE:  # written so that NaN is refused too
        raise InputError(
            f"graph {name}: its log-probabilities differ from the checkpoint's by {worst:.3g} nats (at most {TOLERANCE} "
            "is allowed); nothing was written, please report it"
        )
    return Parity(
        tokens=int(where.sum()),
        max_abs_logprob_diff=worst,
        mean_abs_logprob_diff=float(difference.sum() / where.sum()),
    )


def _logprob(logits: Floats, target: int) -> float:
    centred = logits.astype(np.float64) - float(logits.max())
    return float(centred[target] - np.log(np.exp(centred).sum()))
