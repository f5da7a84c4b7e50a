"""Records that say the same as an earlier one, or nearly so."""

from hashlib import blake2b

import numpy as np
import numpy.typing as npt
from datasketch import MinHash, MinHashLSH

from trainer.data.corpus import Record

# Characters, not words: Chinese has no spaces between words.
_SHINGLE = 5
_PERMUTATIONS = 128
_SEED = 2024
# Bounds the memory for a long text: this many pieces times 128 permutations at a time.
_BLOCK = 1 << 14

HashValues = npt.NDArray[np.uint32]


def content_digest(record: Record) -> bytes:
    """16 bytes that two records share only if they say the same: equal roles, equal texts, whatever their ids."""
    digest = blake2b(digest_size=16)
    roles = ["text"] if record.text is not None else [message.role for message in record.messages]
    for role, text in zip(roles, record.texts, strict=True):
        data = text.encode("utf-8", "surrogatepass")
        digest.update(f"{role}\0{len(data)}\0".encode())
        digest.update(data)
    return digest.digest()


class NearDuplicates:
    """Texts seen so far, by the MinHash of their five-character pieces (Broder 1997), indexed by bands (LSH).

    A text that is near an earlier one isn't added: every near duplicate is one of a text that is none itself. The
    similarity is estimated from 128 seeded permutations: its standard error at 0.8 is 0.035.
    """

    def __init__(self, threshold: float) -> None:
        self._threshold = threshold
        self._index = MinHashLSH(threshold=threshold, num_perm=_PERMUTATIONS)
        self._sketches: list[MinHash] = []
        self._empty = MinHash(num_perm=_PERMUTATIONS, seed=_SEED, hashfunc=int)

    def met(self, text: str) -> bool:
        """True where the text is near an earlier one; otherwise it is remembered."""
        sketch = self._sketch(text)
        # The index proposes also texts that are somewhat below the threshold.
        for number in self._index.query(sketch):
            if sketch.jaccard(self._sketches[number]) >= self._threshold:
                return True
        self._index.insert(len(self._sketches), sketch)
        self._sketches.append(sketch)
        return False

    def _sketch(self, text: str) -> MinHash:
        sketch = self._empty.copy()
        hashes = _shingles(text)
        for start in range(0, len(hashes), _BLOCK):
            sketch.update_batch(hashes[start : start + _BLOCK])
        return sketch


def _shingles(text: str) -> HashValues:
    """A 32-bit hash of each different piece of five characters; case and the length of white space don't count."""
    plain = " ".join(text.casefold().split())
    points = np.frombuffer(plain.encode("utf-32-le", "surrogatepass"), dtype=np.uint32).astype(np.uint64)
    if len(points) < _SHINGLE:
        points = np.pad(points, (0, _SHINGLE - len(points)))
    # A polynomial over 64 bits (wrapping), its upper half mixed in: equal pieces give equal values.
    value = np.zeros(len(points) - _SHINGLE + 1, dtype=np.uint64)
    for place in range(_SHINGLE):
        value = value * np.uint64(0x9E3779B97F4A7C15) + points[place : place + len(value)]
    value ^= value >> np.uint64(29)
    value *= np.uint64(0xBF58476D1CE4E5B9)
    return np.unique((value >> np.uint64(32)).astype(np.uint32))
