"""Training frequencies, pinned once for both models of a comparison."""

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from evalkit.bundle import TOKEN_COUNTS, WORD_COUNTS, Bundle
from evalkit.canonical import sha256_file
from evalkit.errors import InputError
from evalkit.metrics.words import lexicon_entries

if TYPE_CHECKING:
    from evalkit.scenario.schema import Frequency


@dataclass(frozen=True, eq=False)
class Counts:
    """Where the frequencies of tokens and words come from.

    Attributes:
        source: for people: a bundle's name or a file.
        digest: SHA-256 of the content, "none" where there is nothing.
        tokens: training frequency of each token id, shape (vocabulary,), or None.
        tokenizer_sha256: whose token ids `tokens` counts, or None where it isn't known.
        words: training frequency of each word, or None.
    """

    source: str
    digest: str
    tokens: npt.NDArray[np.int64] | None
    tokenizer_sha256: str | None
    words: Mapping[str, int] | None

    def lexicon(self) -> frozenset[str] | None:
        """Every known entry, in the form in which `lexicon_entries` looks them up."""
        if self.words is None:
            return None
        return frozenset(entry for word in self.words for entry, _, _ in lexicon_entries(word))


def no_counts(name: str) -> Counts:
    """Of a model that isn't a bundle: nobody knows what its training saw."""
    return Counts(source=name, digest="none", tokens=None, tokenizer_sha256=None, words=None)


def counts_from_bundle(bundle: Bundle) -> Counts:
    """The frequencies that a bundle's training saw; a converted model has none."""
    files = bundle.manifest.files
    digests = [files[name].sha256 for name in (TOKEN_COUNTS, WORD_COUNTS) if name in files]
    return Counts(
        source=bundle.manifest.name,
        digest="+".join(digests) or "none",
        tokens=bundle.token_counts,
        tokenizer_sha256=bundle.manifest.tokenizer.sha256,
        words=bundle.word_counts,
    )


def counts_from_file(path: Path) -> Counts:
    """Frequencies from a `.npz` file: `counts` by token id, and optionally `words` with their `word_counts`.

    Raises:
        InputError: missing, damaged or not such a file; or its numbers are no counts.
    """
    if not path.is_file():
        raise InputError(
            f"{path}: no such file; give a .npz file of counts, or baseline or candidate in a scenario"
        )
    try:
        with np.load(path, allow_pickle=False) as archive:
            tokens, words = _whole(archive["counts"], "counts"), None
            if "words" in archive:
                names = [str(word) for word in archive["words"].tolist()]
                if len(set(names)) < len(names):
                    raise ValueError("words: one is there twice")
                numbers = _whole(archive["word_counts"], "word_counts").tolist()
                words = dict(zip(names, numbers, strict=True))
    except (OSError, ValueError, KeyError, TypeError, EOFError, BadZipFile, zlib.error) as error:
        raise InputError(f"{path}: not a file of counts ({error}); write it with numpy.savez") from None
    return Counts(path.name, sha256_file(path), tokens, None, words)


def _whole(values: npt.NDArray[Any], name: str) -> npt.NDArray[np.int64]:
    """Counts as integers; numbers that are none would put tokens into a wrong class."""
    fits = values.ndim == 1 and values.dtype.kind in "iuf" and np.array_equal(values, np.floor(values))
    if not fits or (values < 0).any() or not 0 < values.sum(dtype=np.float64) < np.iinfo(np.int64).max:
        raise ValueError(f"{name}: a row of whole numbers from 0 on is needed, not all of them 0")
    return values.astype(np.int64)


def frequency_bands(counts: npt.NDArray[np.int64], frequency: "Frequency") -> npt.NDArray[np.int64]:
    """Band of each token id by cumulative training mass: 0 head, 1 middle, 2 long tail.

    A token is in the head where the tokens that are strictly more frequent hold less than `head` of the mass;
    ids of equal frequency share a band. A token that training never saw is in the long tail.

    Args:
        counts: shape (vocabulary,).
        frequency: the two cuts.

    Returns:
        Shape (vocabulary,).
    """
    total = int(counts.sum())
    ordered = np.sort(counts)[::-1]
    mass_before = np.concatenate([[0], np.cumsum(ordered)])
    # Ids that are strictly more frequent than each id.
    above = np.searchsorted(-ordered, -counts, side="left")
    share = mass_before[above] / max(total, 1)
    bands = (share >= frequency.head).astype(np.int64) + (share >= frequency.middle)
    return np.where(counts == 0, 2, bands)
