"""Token classes from the source text, by byte spans: a partition of the tokens.

A token is oov, domain or of a class of the user where it overlaps such a span of the text; otherwise it belongs to the
frequency band of its id. The declared precedence decides between them, so that each token has exactly one class.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import numpy as np
import numpy.typing as npt

from evalkit.canonical import sha256_json
from evalkit.errors import InputError
from evalkit.metrics.context import ClassSetup
from evalkit.metrics.counts import Counts, frequency_bands
from evalkit.metrics.glossary import Glossary
from evalkit.metrics.own_classes import ClassMembers, OwnClass
from evalkit.metrics.registry import CLASS_METRICS, TOKEN_CLASSES
from evalkit.metrics.spans import touched
from evalkit.metrics.views import SpanView
from evalkit.metrics.words import WordRule, lexicon_entries
from evalkit.scenario.schema import Classes
from evalkit.tokenization import EncodedText

CodeArray = npt.NDArray[np.int64]

_BANDS = ("head", "middle", "long_tail")
_CODE = {name: code for code, name in enumerate(TOKEN_CLASSES)}
_NO_WORDS = "the model has no training word counts and none are pinned"


class Vocabulary(Protocol):
    """What the classes need to know of a tokenizer; see `TextTokenizer`."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def unknown_ids(self) -> frozenset[int]: ...


@dataclass(frozen=True)
class TokenClassifier:
    """Gives each token of a text its class, as an index into `names`. Build it with `build_classifier`.

    Attributes:
        precedence: which of oov, domain, frequency and the own classes decides first.
        bands: frequency band of each token id, or None.
        lexicon: known entries, or None where nothing is out of vocabulary.
        unknown: for each token id whether it always is, shape (vocabulary,).
        glossary: of domain terms, or None.
        absent: why a metric has no value, by metric name.
        digest: SHA-256 over everything that decides; part of the protocol signature.
        own: the user's classes.
        views: selections beside the partition.
        words: how the words of a text are counted.
    """

    precedence: tuple[str, ...]
    bands: CodeArray | None
    lexicon: frozenset[str] | None
    unknown: npt.NDArray[np.bool_]
    glossary: Glossary | None
    absent: dict[str, str]
    digest: str
    own: tuple[ClassMembers, ...] = ()
    views: tuple[SpanView, ...] = ()
    words: WordRule = field(default_factory=WordRule)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Every class: those of evalkit, then the user's."""
        return (*TOKEN_CLASSES, *(members.name for members in self.own))

    def view_members(self, text: str, encoded: EncodedText) -> dict[str, CodeArray]:
        """For each view 1 where a token belongs to it, else 0, shape (tokens,)."""
        return {view.name: touched(text, view.spans(text), encoded).astype(np.int64) for view in self.views}

    def classify(self, text: str, encoded: EncodedText) -> CodeArray:
        """Class of each token, shape (tokens,)."""
        codes = np.full(len(encoded.ids), _CODE["other"], dtype=np.int64)
        own = {members.name: members for members in self.own}
        for rule in reversed(self.precedence):
            if rule == "frequency" and self.bands is not None:
                codes = self.bands[encoded.ids]
            elif rule == "oov" and self.lexicon is not None:
                codes = np.where(self._is_oov(text, encoded), _CODE["oov"], codes)
            elif rule == "domain" and self.glossary is not None:
                spans = self.glossary.spans(text)
                codes = np.where(touched(text, spans, encoded), _CODE["domain"], codes)
            elif rule in own:
                codes = np.where(own[rule](text, encoded), self.names.index(rule), codes)
        return codes

    def _is_oov(self, text: str, encoded: EncodedText) -> npt.NDArray[np.bool_]:
        lexicon = self.lexicon or frozenset()
        spans = [(start, end) for entry, start, end in lexicon_entries(text) if entry not in lexicon]
        return touched(text, spans, encoded) | self.unknown[encoded.ids]


def build_classifier(
    spec: Classes,
    tokenizer: Vocabulary,
    tokenizer_sha256: str,
    counts: Counts | None,
    terms: Sequence[str] | None,
    own: Sequence[tuple[ClassSetup, OwnClass]] = (),
) -> TokenClassifier:
    """Put the classes of a scenario together.

    Args:
        spec: the declared classes.
        tokenizer: of the model that is scored.
        tokenizer_sha256: its digest; token counts of another tokenizer don't apply.
        counts: the pinned frequencies, or None.
        terms: of the glossary, or None where the scenario names none.
        own: the user's classes that the precedence names.

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
        absent |= _absent(("oov",), "no oov class is declared")
    elif counts is None or counts.words is None:
        absent |= _absent(("oov",), _NO_WORDS)
    else:
        lexicon = counts.lexicon()
    if not terms or "domain" not in spec.precedence:
        absent |= _absent(("domain",), "no glossary is given")
        terms = None
    identity = {
        "classes": spec.model_dump(exclude={"counts", "domain", "own"}),
        "counts": counts.digest if counts is not None else None,
        "terms": sorted(terms) if terms is not None else None,
    }
    if own:
        identity["own"] = {setup.name: [setup.reference, setup.sha256] for setup, _ in own}
    return TokenClassifier(
        precedence=tuple(spec.precedence),
        bands=bands,
        lexicon=lexicon,
        unknown=np.isin(np.arange(tokenizer.vocab_size), list(tokenizer.unknown_ids)),
        glossary=Glossary(terms) if terms is not None else None,
        absent=absent,
        digest=sha256_json(identity),
        own=tuple(ClassMembers(declared) for _, declared in own),
    )


def _no_bands(spec: Classes, tokenizer_sha256: str, counts: Counts | None) -> str | None:
    if spec.frequency is None or "frequency" not in spec.precedence:
        return "no frequency classes are declared"
    if counts is None or counts.tokens is None:
        return "the model has no training token counts and none are pinned"
    if counts.tokenizer_sha256 not in (None, tokenizer_sha256):
        return f"the pinned token counts ({counts.source}) belong to another tokenizer"
    return None


def _absent(classes: Sequence[str], reason: str) -> dict[str, str]:
    names = [f"{stem}/{name}" for name in classes for stem in CLASS_METRICS]
    if "oov" in classes:
        names += ["perplexity/without_oov", "rate/oov"]
    return dict.fromkeys(names, reason)
