"""The bundle's `decode_onnx` graph in ONNX Runtime, reading and writing the rows in place.

Measured on x86 (docs/serving-engine.md): with two or more new tokens the bits of keys, values and logits don't depend
on where a chunk begins or ends, and those of a decoded token don't depend on the number of rows or on what is
in them. `open_onnx` measures that again on the machine it runs on.
"""

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np

from evalkit.backends.onnx_session import available_cores, open_rewritten, open_session
from evalkit.bundle import DECODE_ONNX, Bundle, ModelSpec
from sandbox.engine.concat_model import ConcatModel
from sandbox.engine.fused_attention import LAST_KEY, LONGEST, fuse_attention
from sandbox.engine.kv_cache import Float32, KvRows, KvShape
from sandbox.engine.step_model import Int32, StepModel

log = logging.getLogger(__name__)

# Numbers of rows that a step computes; what is missing is filled up with rows that nobody reads.
BATCH_ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
_CHUNK, _IDLE_CHUNK = 64, 128
# A chunk of one token takes another way through the matrix product, with other bits.
_LEAST_NEW = 2


def open_onnx(bundle: Bundle, max_rows: int) -> StepModel:
    """Load the graph; where its attention can't be fused, as it is.

    Raises:
        InputError: the graph is unsafe or can't be loaded, or ONNX Runtime isn't installed.
    """
    from evalkit.onnx_operators import check_onnx

    file, spec = bundle.graph_file(DECODE_ONNX), bundle.model
    check_onnx(file)
    import onnx

    model = onnx.load(str(file))
    if not fuse_attention(model, spec):
        log.warning(
            "%s: its attention has an unknown form; it is served without fusing, which is slower", file
        )
        session = open_session(file)
        names = [port.name for port in session.get_inputs()]
        return ConcatModel(spec, lambda arrays: session.run(None, dict(zip(names, arrays, strict=True))))
    fused = FusedModel(spec, open_rewritten(model, file, available_cores()), max_rows)
    if not fused.is_exact():
        log.warning("%s: on this processor results depend on the shape; rows are computed one by one", file)
        fused.fix_shapes()
    return fused


class FusedModel:
    """See the module; the Protocol is `StepModel`."""

    def __init__(self, spec: ModelSpec, session: Any, max_rows: int) -> None:
        self.vocab_size = spec.vocab_size
        self.alignment = 1
        self.chunk_tokens = _CHUNK
        self.idle_chunk_tokens = _IDLE_CHUNK
        self._spec = spec
        self._session = session
        self._batch_rows = (*(size for size in BATCH_ROWS if size < max_rows), max_rows)
        self._logits = np.empty((max_rows, spec.vocab_size), np.float32)  # of every step
        self._one_by_one = False
        self._bound: KvRows | None = None
        self._prefills: dict[tuple[int, int], _Call] = {}
        self._steps: dict[tuple[int, int, int], _DecodeStep] = {}

    def prefill(self, rows: KvRows, row: int, ids: Sequence[int], start: int) -> Float32:
        """See `StepModel`."""
        new = len(ids)
        # Filled up by tokens behind the last one, which see everything and are seen by nobody.
        width = max(new, _LEAST_NEW) if self.alignment == 1 else self.chunk_tokens
        width = min(width, rows.room - start)
        tokens = np.zeros((1, width), np.int32)
        tokens[0, :new] = ids
        positions = np.minimum(np.arange(start, start + width, dtype=np.int32), self._spec.max_length - 1)
        logits = np.empty((1, self.vocab_size), np.float32)
        call = self._prefill_of(rows, row)
        call.input("token_ids", tokens)
        call.input("positions", positions[None])
        call.input("last_index", np.array([new - 1], np.int32))
        call.input(LAST_KEY, np.array([start + width - 1], np.int32))
        call.input(LONGEST, np.array([start + width], np.int32))
        call.output("logits", logits)
        call.run()
        first: Float32 = logits[0]
        return first

    def decode(self, rows: KvRows, wanted: Sequence[int], ids: Int32, lengths: Int32) -> Float32:
        """See `StepModel`."""
        if self._one_by_one:
            found = [self._step(rows, row, 1).run(ids[[row]], lengths[[row]])[0].copy() for row in wanted]
            return np.stack(found)
        used = len(ids)
        size = min(next(size for size in self._batch_rows if size >= used), rows.count)
        logits = self._step(rows, 0, size).run(ids, lengths)
        return logits[:used] if len(wanted) == used else logits[wanted]

    def _prefill_of(self, rows: KvRows, row: int) -> "_Call":
        self._bind(rows)
        key = (row, rows.room)
        if key not in self._prefills:
            self._prefills[key] = _Call(self._session, rows, row, 1)
        return self._prefills[key]

    def _bind(self, rows: KvRows | None) -> None:
        """Forget the calls on other rows."""
        if self._bound is not rows:
            self._prefills.clear()
            self._steps.clear()
            self._bound = rows

    def _step(self, rows: KvRows, first: int, size: int) -> "_DecodeStep":
        self._bind(rows)
        key = (first, size, rows.room)
        if key not in self._steps:
            self._steps[key] = _DecodeStep(self._session, rows, first, self._logits[:size])
        return self._steps[key]

    def warm_up(self, rows: KvRows) -> None:
        """See `StepModel`."""
        self.prefill(rows, 0, [0, 0], 0)
        self.decode(rows, [0], np.zeros(1, np.int32), np.zeros(1, np.int32))

    def is_exact(self) -> bool:
        """Measure whether the bits depend on chunks, or on what else is computed."""
        spec = self._spec
        length = min(24, spec.max_length - 2)
        count = min(len(self._logits), 5)
        room = -(-(length + 2) // 16) * 16
        rows = KvRows(KvShape(spec.layers, spec.kv_heads, spec.head_size), room * count)
        rows.lay_out(room, [])
        ids = [int(token) for token in np.random.default_rng(0).integers(0, spec.vocab_size, length)]
        found = [self.prefill(rows, row, ids, 0) for row in range(count)]
        for start, end in ((0, 2), (2, 9), (9, length - 3), (length - 3, length)):
            found.append(self.prefill(rows, count - 1, ids[start:end], start))
        same = all(np.array_equal(part[0, :, :length], part[count - 1, :, :length]) for part in rows.parts)
        alone = self.decode(rows, [0], np.array(ids[:1], np.int32), np.array([length], np.int32)).copy()
        tokens, lengths = np.full(count, ids[0], np.int32), np.full(count, length, np.int32)
        lengths[1:-1] = 1
        beside = self.decode(rows, list(range(count)), tokens, lengths)
        self._bind(None)
        return (
            same
            and np.array_equal(found[0], found[-1])
            and np.array_equal(alone[0], beside[0])
            and np.array_equal(alone[0], beside[-1])
        )

    def fix_shapes(self) -> None:
        """Use one shape for all steps and one for all chunks, so that equal bits need no luck."""
        self._one_by_one = True
        self.alignment = self.idle_chunk_tokens = self.chunk_tokens


class _Call:
    """One call of the graph on some rows, its arrays bound in place."""

    def __init__(self, session: Any, rows: KvRows, first: int, count: int) -> None:
        self._session = session
        self._binding = session.io_binding()
        self._arrays: dict[str, Any] = {}  # what is bound must live as long as it is
        layers = [(layer, kind) for layer in range(rows.shape.layers) for kind in ("key", "value")]
        for (layer, kind), part in zip(layers, rows.parts, strict=True):
            used = part[first : first + count]
            self.input(f"past_{kind}_{layer}", used)
            self.output(f"present_{kind}_{layer}", used)

    def input(self, name: str, array: Any) -> None:
        """Bind a contiguous array, instead of what was bound before; its memory is read at each run."""
        self._arrays[name] = array
        self._binding.bind_input(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)

    def output(self, name: str, array: Any) -> None:
        """The same with one that each run writes."""
        self._arrays[name] = array
        self._binding.bind_output(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)

    def run(self) -> None:
        """Compute."""
        self._session.run_with_iobinding(self._binding)


class _DecodeStep:
    """One new token in each of `size` rows; bound once, run often."""

    def __init__(self, session: Any, rows: KvRows, first: int, logits: Float32) -> None:
        size = len(logits)
        self._ids = np.zeros((size, 1), np.int32)
        self._positions = np.zeros((size, 1), np.int32)
        self._last_key = np.zeros(size, np.int32)
        self._longest = np.zeros(1, np.int32)
        self._logits = logits
        self._call = _Call(session, rows, first, size)
        self._call.input("token_ids", self._ids)
        self._call.input("positions", self._positions)
        self._call.input("last_index", np.zeros(size, np.int32))
        self._call.input(LAST_KEY, self._last_key)
        self._call.input(LONGEST, self._longest)
        self._call.output("logits", self._logits)

    def run(self, ids: Int32, lengths: Int32) -> Float32:
        used = len(ids)
        self._ids[:used, 0] = ids
        self._positions[:used, 0] = lengths
        self._last_key[:used] = lengths
        for filled in (self._ids, self._positions, self._last_key):
            filled[used:] = 0
        self._longest[0] = int(lengths.max()) + 1
        self._call.run()
        return self._logits
