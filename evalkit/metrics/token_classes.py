"""Token classes from the source text, by byte spans: a partition of the tokens.

A token is oov or domain where it overlaps such a span of the text; otherwise it belongs to the frequency band
of its id. The declared precedence decides between them, so that each token has exactly one class.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from evalkit.canonical import sha256_json
from evalkit.errors import InputError
from evalkit.metrics.counts import Counts, frequency_bands
from evalkit.metrics.glossary import Glossary
from evalkit.metrics.registry import TOKEN_CLASSES
from evalkit.metrics.views import SpanView
from evalkit.metrics.words import lexicon_entries
from evalkit.scenario.schema import Classes
from evalkit.tokenization import EncodedText, byte_offsets

CodeArray = npt.NDArray[np.int64]

# Metrics that exist once a class.
CLASS_METRICS = ("perplexity", "logits/entropy", "logits/margin", "logits/rank", "logits/top_k_accuracy")

_BANDS = ("head", "middle", "long_tail")
_CODE = {name: code for code, name in enumerate(TOKEN_CLASSES)}
_NO_WORDS = "the model has no training word counts and the scenario pins none"


class Vocabulary(Protocol):
    """What the classes need to know of a tokenizer; see `TextTokenizer`."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def unknown_ids(self) -> frozenset[int]: ...


@dataclass(frozen=True)
class TokenClassifier:
    """Gives each token of a text its class, as an index into `TOKEN_CLASSES`. Build it with
    `build_classifier`.

    Attributes:
        precedence: which of oov, domain and frequency decides first.
        bands: frequency band of each token id, or None.
        lexicon: known entries, or None where nothing is out of vocabulary.
        unknown: for each token id whether it always is, shape (vocabulary,).
        glossary: of domain terms, or None.
        absent: why a metric has no value, by metric name.
        digest: SHA-256 over everything above; part of the protocol signature.
        views: selections beside the partition.
    """

    precedence: tuple[str, ...]
    bands: CodeArray | None
    lexicon: frozenset[str] | None
    unknown: npt.NDArray[np.bool_]
    glossary: Glossary | None
    absent: dict[str, str]
    digest: str
    views: tuple[SpanView, ...] = ()

    def view_members(self, text: str, encoded: EncodedText) -> dict[str, CodeArray]:
        """For each view 1 where a token belongs to it, else 0, shape (tokens,)."""
        return {view.name: _overlaps(text, view.spans(text), encoded).astype(np.int64) for view in self.views}

    def classify(self, text: str, encoded: EncodedText) -> CodeArray:
        """Class of each token, shape (tokens,)."""
        codes = np.full(len(encoded.ids), _CODE["other"], dtype=np.int64)
        for rule in reversed(self.precedence):
            if rule == "frequency" and self.bands is not None:
                codes = self.bands[encoded.ids]
            elif rule == "oov" and self.lexicon is not None:
                codes = np.where(self._is_oov(text, encoded), _CODE["oov"], codes)
            elif rule == "domain" and self.glossary is not None:
                spans = self.glossary.spans(text)
                codes = np.where(_overlaps(text, spans, encoded), _CODE["domain"], codes)
        return codes

    def _is_oov(self, text: str, encoded: EncodedText) -> npt.NDArray[np.bool_]:
        lexicon = self.lexicon or frozenset()
        spans = [(start, end) for entry, start, end in lexicon_entries(text) if entry not in lexicon]
        return _overlaps(text, spans, encoded) | self.unknown[encoded.ids]


def build_classifier(
    spec: Classes,
    tokenizer: Vocabulary,
    tokenizer_sha256: str,
    counts: Counts | None,
    terms: Sequence[str] | None,
) -> TokenClassifier:
    """Put the classes of a scenario together.

    Args:
        spec: the declared classes.
        tokenizer: of the model that is scored.
        tokenizer_sha256: its digest; token counts of another tokenizer don't apply.
        counts: the pinned frequencies, or None.
        terms: of the glossary, or None where the scenario names none.

    Raises:
        InputError: the token counts don't fit the vocabulary.
    """
    absent: dict[str, str] = {}
    bands = lexicon = None
    reason = _no_bands(spec, tokenizer_sha256, counts)
    if reason is None and counts is not None and counts.tokens is not None and spec.frequency is not None:
        if len(counts.tokens) < tokenizer.vocab_size:
            raise InputError(
                f"classes.counts: {counts.source}: counts {len(counts.tokens)} token ids, "
                f"the tokenizer has {tokenizer.vocab_size}; pin the counts of this tokenizer"
            )
        bands = frequency_bands(counts.tokens, spec.frequency)
    elif reason is not None:
        absent |= _absent(_BANDS, reason)
    if spec.oov is None or "oov" not in spec.precedence:
        absent |= _absent(("oov",), "the scenario declares no oov class")
    elif counts is None or counts.words is None:
        absent |= _absent(("oov",), _NO_WORDS)
    else:
        lexicon = counts.lexicon()
    if not terms or "domain" not in spec.precedence:
        absent |= _absent(("domain",), "the scenario names no glossary")
        terms = None
    identity = {
        "classes": spec.model_dump(exclude={"counts", "domain"}),
        "counts": counts.digest if counts is not None else None,
        "terms": sorted(terms) if terms is not None else None,
    }
    return TokenClassifier(
        precedence=tuple(spec.precedence),
        bands=bands,
        lexicon=lexicon,
        unknown=np.isin(np.arange(tokenizer.vocab_size), list(tokenizer.unknown_ids)),
        glossary=Glossary(terms) if terms is not None else None,
        absent=absent,
        digest=sha256_json(identity),
    )


def _no_bands(spec: Classes, tokenizer_sha256: str, counts: Counts | None) -> str | None:
    if spec.frequency is None or "frequency" not in spec.precedence:
        return "the scenario declares no frequency classes"
    if counts is None or counts.tokens is None:
        return "the model has no training token counts and the scenario pins none"
    if counts.tokenizer_sha256 not in (None, tokenizer_sha256):
        return f"the pinned token counts ({counts.source}) belong to another tokenizer"
    return None


def _absent(classes: Sequence[str], reason: str) -> dict[str, str]:
    names = [f"{stem}/{name}" for name in classes for stem in CLASS_METRICS]
    if "oov" in classes:
        names += ["perplexity/without_oov", "rate/oov"]
    return dict.fromkeys(names, reason)


def _overlaps(text: str, spans: Sequence[tuple[int, int]], encoded: EncodedText) -> npt.NDArray[np.bool_]:
    """Which tokens share a byte with one of the character spans."""
    if not spans:
        return np.zeros(len(encoded.ids), dtype=np.bool_)
    edges = np.asarray(spans, dtype=np.int64)
    if not text.isascii():
        edges = byte_offsets(text)[edges]
    # The spans are sorted and disjoint: a token overlaps one where the first span that ends after the token's
    # start begins before its end.
    following = np.searchsorted(edges[:, 1], encoded.starts, side="right")
    starts = np.append(edges[:, 0], encoded.size_bytes + 1)[following]
    return (starts < encoded.ends) & (encoded.starts < encoded.ends)
