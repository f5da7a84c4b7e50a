"""The documented example of a user's own backend works as it is printed."""

import hashlib
import inspect
import re
import textwrap

import numpy as np

from evalkit.backends import base
from evalkit.backends.base import Backend
from evalkit.scenario.schema import Window
from evalkit.scoring.scorer import score_texts
from evalkit.scoring.texts import TextItem
from tests.evalkit.scoring.conftest import byte_level_tokenizer


def documented_backend() -> type:
    printed = re.search(
        r"class TableBackend:.*?\n\n    Attributes:", inspect.getdoc(Backend) and Backend.__doc__, re.S
    )
    source = textwrap.dedent("        " + printed[0].removesuffix("\n\n    Attributes:"))
    assert len(source.splitlines()) <= 30
    namespace = {"np": np, "hashlib": hashlib, "RowStats": base.RowStats}
    exec(source, namespace)
    return namespace["TableBackend"]


def test_the_documented_backend_scores():
    from evalkit.metrics.token_classes import build_classifier
    from evalkit.scenario.schema import Classes

    tokenizer = byte_level_tokenizer()
    logits = np.random.default_rng(0).normal(size=(tokenizer.vocab_size, tokenizer.vocab_size))
    table = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    backend: Backend = documented_backend()(table)
    classifier = build_classifier(Classes(), tokenizer, "t", None, None)
    records = []
    items = [TextItem("a", "my card", "a"), TextItem("b", "the annual fee", "b")]
    score_texts(
        items, tokenizer, backend, Window(length=16, stride=16), classifier, on_records=records.extend
    )
    for item, record in zip(items, sorted(records, key=lambda record: record.sample_id), strict=True):
        ids = [1, *tokenizer.encode(item.text).ids]
        assert abs(record.nll + table[ids[:-1], ids[1:]].sum()) < 1e-5
