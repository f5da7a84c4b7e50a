"""A model whose answers are kept: each batch is asked once on a machine, and read from the result cache afterwards.

The unit is the call of the backend, a batch of packed rows: a token's log-probability moves in its last bits with what
lies beside it, so only an answer to exactly the same arrays equals a fresh one to the bit. Everything that is made of
the answers (classes, views, sums, metrics) is computed anew each time.
"""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any

import numpy as np
import orjson

from evalkit.backends.base import Backend, IntArray, RowStats
from evalkit.backends.choice import BackendName, backend_class, open_backend
from evalkit.bundle import Bundle
from evalkit.cache.identity import scoring_identity
from evalkit.cache.store import CacheUnusableError, Entry, ResultCache, cache_file
from evalkit.canonical import canonical_json

_ARRAYS = ("logprob", "entropy", "margin", "rank", "top_id")
# These must be finite for an answer to be kept: what failed once may come right the next time.
_FINITE = ("logprob", "entropy", "margin")


@contextmanager
def cached_backend(
    name: BackendName, bundle: Bundle, run_id: str, tell: Callable[[str], None]
) -> Iterator[Backend]:
    """A bundle's backend behind the result cache of this machine's user.

    The graph is loaded when the first answer is missing. A cache that can't be used is told of and left alone.

    Args:
        name: of the backend.
        bundle: a verified one.
        run_id: of this run; kept with what it computes.
        tell: takes one line on what came of the cache, if there is anything to say.

    Raises:
        InputError: the bundle lacks that graph, or the runtime isn't installed.
    """
    identity = scoring_identity(name, bundle)
    if identity is None:
        yield open_backend(name, bundle)
        return
    path = cache_file()
    try:
        cache = ResultCache(path)
    except CacheUnusableError as error:
        tell(f"result cache {path}: not used, {error}")
        yield open_backend(name, bundle)
        return
    with cache:
        backend = CachedBackend(name, bundle, cache, canonical_json(identity), run_id)
        try:
            yield backend
        finally:
            summary = backend.summary()
            if summary:
                tell(f"result cache {path}: {summary}")


class CachedBackend:
    """See `cached_backend`.

    Attributes:
        reused, computed: batches so far.
    """

    def __init__(
        self, name: BackendName, bundle: Bundle, cache: ResultCache, identity: bytes, run_id: str
    ) -> None:
        self.name: str = name
        self.precision = backend_class(name).precision
        self.model_digest = bundle.model_digest
        self.max_length = bundle.model.max_length
        self.vocab_size = bundle.model.vocab_size
        self.parallel_calls: int = getattr(backend_class(name), "parallel_calls", 0)
        self.reused = self.computed = 0
        self._asked: tuple[BackendName, Bundle] = (name, bundle)
        self._backend: Backend | None = None
        self._cache = cache
        # One call at a time looks up and keeps; only the model answers several at once.
        self._lock = Lock()
        # Why the cache is no longer used, in words.
        self._trouble = ""
        self._identity = identity
        self._run_id = run_id

    def score(
        self, token_ids: IntArray, targets: IntArray, positions: IntArray, segments: IntArray
    ) -> RowStats:
        """See `Backend.score`."""
        key = self._key(token_ids, targets, positions, segments)
        with self._lock:
            found = self._look_up(key, token_ids.shape)
            if found is not None:
                self.reused += 1
                return found
            if self._backend is None:
                self._backend = open_backend(*self._asked)
        stats = self._backend.score(token_ids, targets, positions, segments)
        whole = all(np.isfinite(getattr(stats, name)[segments != 0]).all() for name in _FINITE)
        with self._lock:
            self.computed += 1
            if whole:
                self._keep(key, stats)
        return stats

    def summary(self) -> str:
        """One line on what came of the cache, empty where it changed nothing."""
        parts = []
        if self.reused:
            parts.append(f"{self.reused} of {self.reused + self.computed} batches were computed before")
        if self._cache.damaged:
            parts.append(f"{self._cache.damaged} were damaged there and computed anew")
        if self._trouble:
            parts.append(f"not used any more, {self._trouble}")
        return "; ".join(parts)

    def _key(self, *arrays: IntArray) -> str:
        digest = hashlib.sha256(self._identity)
        for array in arrays:
            digest.update(f"\n{array.dtype.str}{array.shape}\n".encode())
            digest.update(array.tobytes())
        return digest.hexdigest()

    def _look_up(self, key: str, shape: tuple[int, ...]) -> RowStats | None:
        if self._trouble:
            return None
        try:
            entry = self._cache.get(key)
            stats = None if entry is None else _decode(entry, shape)
            if entry is not None and stats is None:
                self._cache.reject(key)
        except CacheUnusableError as error:
            self._trouble = str(error)
            return None
        return stats

    def _keep(self, key: str, stats: RowStats) -> None:
        if self._trouble:
            return
        try:
            self._cache.put(key, _encode(stats, self.model_digest, self._run_id))
        except CacheUnusableError as error:
            self._trouble = str(error)


def _encode(stats: RowStats, model_digest: str, run_id: str) -> Entry:
    arrays = {name: np.ascontiguousarray(getattr(stats, name)) for name in _ARRAYS}
    layout = {name: [array.dtype.str, array.shape] for name, array in arrays.items()}
    return Entry(
        model_digest=model_digest,
        run_id=run_id,
        layout=orjson.dumps(layout).decode(),
        payload=b"".join(array.tobytes() for array in arrays.values()),
    )


def _decode(entry: Entry, shape: tuple[int, ...]) -> RowStats | None:
    """The answer in an entry whose digest is right; None where it doesn't answer a question of this shape."""
    try:
        layout = orjson.loads(entry.layout)
        arrays: dict[str, Any] = {}
        begin = 0
        for name in _ARRAYS:
            dtype, stored_shape = np.dtype(layout[name][0]), tuple(layout[name][1])
            end = begin + dtype.itemsize * int(np.prod(stored_shape))
            arrays[name] = np.frombuffer(entry.payload[begin:end], dtype=dtype).reshape(stored_shape)
            begin = end
    except (KeyError, TypeError, ValueError):
        return None
    if begin != len(entry.payload) or any(array.shape != shape for array in arrays.values()):
        return None
    return RowStats(**arrays, cached_from=entry.run_id)
