"""A step graph as the bundle holds it: the cache goes in, and the new tokens' keys and values come out.

So it runs in MindSpore. There the bits of a result depend on the shapes of a call, the batch included. Therefore
shapes are few and a function of the turn alone: a step computes always the same number of rows, and the cached
length is rounded up to one of few sizes by how many tokens the turn itself holds. In a chunk of a prompt tokens
stand at fixed places, since chunks begin at multiples of their length.

Few shapes are also what makes MindSpore fast: a graph that was compiled for a shape takes half the time of one that
finds its shapes at each call (docs/serving-engine.md).
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from evalkit.bundle import Bundle, GraphSpec, ModelSpec
from evalkit.errors import InputError
from sandbox.engine.kv_cache import Float32, KvRows, room_for
from sandbox.engine.step_model import Int32

# token_ids, positions, past_positions, last_index and the cache in; logits and the new keys and values out.
Run = Callable[[list[Any]], Sequence[Any]]

# Rows of a step: MindSpore takes about the same time for one and for four.
ROWS = 4
_CHUNK = 32


class ConcatModel:
    """See the module; the Protocol is `StepModel`."""

    def __init__(self, spec: ModelSpec, run: Run) -> None:
        self.vocab_size = spec.vocab_size
        self.alignment = self.chunk_tokens = self.idle_chunk_tokens = min(_CHUNK, spec.max_length)
        self._spec = spec
        self._run = run

    def prefill(self, rows: KvRows, row: int, ids: Sequence[int], start: int) -> Float32:
        """See `StepModel`."""
        new = len(ids)
        tokens = np.zeros((1, self.chunk_tokens), np.int32)
        tokens[0, :new] = ids
        positions = np.full((1, self.chunk_tokens), -1, np.int32)
        positions[0, :new] = np.arange(start, start + new)
        past = self._past_length(start)
        logits, *cache = self._run(
            [
                tokens,
                positions,
                _past_positions([start], past),
                np.array([new - 1], np.int32),
                *_cached(rows, [row], past),
            ]
        )
        for part, values in zip(rows.parts, cache, strict=True):
            part[row, :, start : start + new] = values[0, :, :new]
        first: Float32 = logits[0]
        return first

    def decode(self, rows: KvRows, wanted: Sequence[int], ids: Int32, lengths: Int32) -> Float32:
        """See `StepModel`."""
        logits = np.empty((len(wanted), self.vocab_size), np.float32)
        groups: dict[int, list[int]] = {}
        for place, row in enumerate(wanted):
            groups.setdefault(self._past_length(int(lengths[row])), []).append(place)
        for past, places in groups.items():
            for begin in range(0, len(places), ROWS):
                part = places[begin : begin + ROWS]
                logits[part] = self._decode_some(rows, [wanted[place] for place in part], ids, lengths, past)
        return logits

    def warm_up(self, rows: KvRows) -> None:
        """See `StepModel`."""
        self.prefill(rows, 0, [0], 0)
        self.decode(rows, [0], np.zeros(1, np.int32), np.ones(1, np.int32))

    def _decode_some(self, rows: KvRows, chosen: list[int], ids: Int32, lengths: Int32, past: int) -> Float32:
        # Rows that are missing are filled up with the first one; nobody reads them.
        filled = [*chosen, *[chosen[0]] * (ROWS - len(chosen))]
        held = lengths[filled]
        logits, *cache = self._run(
            [
                ids[filled][:, None],
                held[:, None],
                _past_positions(held, past),
                np.zeros(ROWS, np.int32),
                *_cached(rows, filled, past),
            ]
        )
        places = lengths[chosen]
        for part, values in zip(rows.parts, cache, strict=True):
            part[chosen, :, places] = values[: len(chosen), :, 0]
        found: Float32 = logits[: len(chosen)]
        return found

    def _past_length(self, length: int) -> int:
        return room_for(length, self._spec.max_length)


def open_mindir(bundle: Bundle, spec: GraphSpec) -> ConcatModel:
    """Load the MindIR of the role `decode`; it serves prefill too.

    Only the engine process's main thread may come here and call the model: MindSpore allows one thread at a time.

    Raises:
        InputError: MindSpore can't load it.
    """
    import mindspore
    from mindspore import Tensor, nn

    file = bundle.path / spec.file
    # One thread runs the operators, one an operator's loops: with more they wait for each other.
    mindspore.set_context(runtime_num_threads=1, inter_op_parallel_num=1)
    try:
        graph = nn.GraphCell(mindspore.load(str(file)))
    except (RuntimeError, ValueError) as error:
        raise InputError(f"{file}: MindSpore can't load it ({error}); export the bundle again") from None

    def run(arrays: list[Any]) -> list[Any]:
        outputs = graph(*(Tensor.from_numpy(np.ascontiguousarray(array)) for array in arrays))
        return [output.asnumpy() for output in outputs]

    return ConcatModel(bundle.model, run)


def _past_positions(lengths: Sequence[int] | Int32, past: int) -> Int32:
    places = np.arange(past, dtype=np.int32)[None]
    return np.where(places < np.asarray(lengths, np.int32)[:, None], places, np.int32(-1))


def _cached(rows: KvRows, chosen: list[int], past: int) -> list[Float32]:
    return [part[chosen, :, :past] for part in rows.parts]
