"""Parity: how far the exported graphs' log-probabilities lie from the checkpoint's, on real text."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
from mindspore import Tensor, nn

from evalkit.bundle import ModelSpec, Parity
from evalkit.errors import InputError
from trainer.checkpoint import Probe
from trainer.export.step_calls import Step

_ROWS_A_CALL = 8
_DECODE_TEXTS = 4
_DECODE_TOKENS = 48

Floats = npt.NDArray[np.float32]
Mask = npt.NDArray[np.bool_]


def cut(probe: Probe, length: int) -> Probe:
    """The first `length` positions of each row: what follows can't change them."""
    return Probe(**{name: np.ascontiguousarray(rows[:, :length]) for name, rows in vars(probe).items()})


def score_logprobs(
    graph: nn.Cell, probe: Probe, *, rows: int = _ROWS_A_CALL, length: int | None = None
) -> Floats:
    """Log-probability of every target of the probe by a score graph, [rows, length]; 0 at padding.

    Args:
        graph: int32 [B, L] inputs.
        probe: the rows.
        rows: at the most in one call; with `length` always as many, filled up with padding.
        length: of the graph's static shape, at least the probe's; None: a dynamic graph.
    """
    fields = (probe.token_ids, probe.targets, probe.positions, probe.segments)
    count, width = probe.token_ids.shape
    parts = []
    for start in range(0, count, rows):
        chunk = [field[start : start + rows] for field in fields]
        if length is not None:
            missing = ((0, rows - len(chunk[0])), (0, length - width))
            chunk = [np.pad(field, missing) for field in chunk]
        found = graph(*(Tensor(np.ascontiguousarray(field)) for field in chunk))[0].asnumpy()
        parts.append(found[: count - start, :width])
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


def decode_logprobs(
    step: Step, spec: ModelSpec, probe: Probe, *, rows: int = _DECODE_TEXTS
) -> tuple[Floats, Mask]:
    """Log-probabilities by prefill and decode: the first text of some rows, half of it as the prompt.

    The texts differ in length, so that padding takes part too.

    Args:
        step: a step graph.
        spec: its architecture.
        probe: the rows.
        rows: at the most at once.

    Returns:
        Log-probabilities [rows, length], and True where one was computed.
    """
    rows = min(rows, _DECODE_TEXTS, len(probe.token_ids))
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
        logits, *new = step(inputs)
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


def compare(name: str, found: Floats, expected: Floats, where: Mask, tolerance: float) -> Parity:
    """Compare log-probabilities where `where` is True.

    Args:
        name: the graph's role, for messages.
        found, expected: [rows, length].
        where: what to compare.
        tolerance: of the worst token, in nats.

    Raises:
        InputError: the worst token is off by more than `tolerance`, or a number isn't finite.
    """
    difference = np.abs(found[where].astype(np.float64) - expected[where].astype(np.float64))
    worst = float(difference.max(initial=0.0))
    if not worst <= tolerance:  # written so that NaN is refused too
        raise InputError(
            f"graph {name}: its log-probabilities differ from the checkpoint's by {worst:.3g} nats, {tolerance:g} is"
            " allowed; nothing was written; raise --parity-tolerance only if you know why they differ"
        )
    return Parity(
        tokens=int(where.sum()),
        max_abs_logprob_diff=worst,
        mean_abs_logprob_diff=float(difference.sum() / where.sum()),
    )


def _logprob(logits: Floats, target: int) -> float:
    centred = logits.astype(np.float64) - float(logits.max())
    return float(centred[target] - np.log(np.exp(centred).sum()))
