"""Public faults of sharing out work and of batches: E49 and E52 of the list, with real graphs and processes."""

import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evalkit.backends.base import Backend
from evalkit.backends.choice import BackendName, open_backend
from evalkit.backends.mindir import MindirBackend
from evalkit.bundle import Bundle, load_bundle
from evalkit.metrics.token_classes import build_classifier
from evalkit.runs.journal import Journal, reopen_journals
from evalkit.runs.records import SampleRecord
from evalkit.scenario.schema import Classes, Window
from evalkit.scoring import blocks, engine
from evalkit.scoring.scorer import DoneTexts, score_texts
from evalkit.scoring.texts import TextItem
from evalkit.tokenization import TextTokenizer
from tests.evalkit.scoring.conftest import byte_level_tokenizer
from tests.evalkit.scoring.table_backend import ContextBackend

WORDS = ["my", "card", "is", "lost", "what", "the", "fee", "account", "please", "block", "today", "我的卡"]


def items(count: int, seed: int = 0) -> list[TextItem]:
    source = random.Random(seed)
    sizes = [source.choice([1, 3, 8, 20, 60]) for _ in range(count)]
    texts = [" ".join(source.choice(WORDS) for _ in range(size)) for size in sizes]
    return [TextItem(f"t{index}", text, f"t{index}") for index, text in enumerate(texts)]


def score(
    texts: list[TextItem], tokenizer: TextTokenizer, backend: Backend, **settings: Any
) -> dict[str, SampleRecord]:
    records: list[SampleRecord] = []
    classifier = build_classifier(Classes(), tokenizer, "t", None, None)
    window = Window(length=48, stride=32)
    score_texts(texts, tokenizer, backend, window, classifier, on_records=records.extend, **settings)
    found = {record.sample_id: replace(record, elapsed_ns=0) for record in records}
    assert len(found) == len(records)
    return found


def score_share(
    journal: Path,
    texts: list[TextItem],
    tokenizer: TextTokenizer,
    backend: Backend,
    number: int,
    workers: int,
) -> None:
    """What one of several workers does: its windows go to a journal of its own, whatever its order of the texts."""
    shuffled = texts.copy()
    random.Random(number).shuffle(shuffled)
    with Journal(journal) as kept:
        assert score(shuffled, tokenizer, backend, on_windows=kept.append, share=(number, workers)) == {}


class Unasked(ContextBackend):
    """A model that needn't be asked any more."""

    def score(self, token_ids: Any, targets: Any, positions: Any, segments: Any) -> Any:
        raise AssertionError("asked, though the workers scored everything")


@pytest.mark.parametrize("workers", [2, 3, 7])
def test_e49_any_number_of_workers_gives_the_same_bits(
    tmp_path: Path, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """lm-eval #1719, MindOCR #271: results depended on the number of devices, since samplers repeat samples."""
    monkeypatch.setattr(blocks, "_MIN_ITEMS", 20)
    monkeypatch.setattr(blocks, "_ONE_IN", 10)
    tokenizer, texts = byte_level_tokenizer(), items(90)
    alone = ContextBackend(tokenizer.vocab_size, 48)
    whole = score(texts, tokenizer, alone)
    journals = [tmp_path / f"{number}.jsonl" for number in range(workers)]
    asked = 0
    for number, journal in enumerate(journals):
        backend = ContextBackend(tokenizer.vocab_size, 48)
        score_share(journal, texts, tokenizer, backend, number, workers)
        asked += len(backend.calls)
    assert asked == len(alone.calls)
    done = DoneTexts(windows=reopen_journals(journals).windows)
    assert score(texts, tokenizer, Unasked(tokenizer.vocab_size, 48), done=done) == whole


WORKER = """
import sys
from pathlib import Path
from evalkit.backends.mindir import MindirBackend
from evalkit.bundle import load_bundle
from tests.regressions.test_e49_e52_workers_and_batches import items, score_share
bundle = load_bundle(Path(sys.argv[1]))
score_share(Path(sys.argv[2]), items(60), bundle.tokenizer, MindirBackend(bundle), int(sys.argv[3]), 3)
"""


def test_e49_processes_that_share_the_texts_record_what_one_alone_does(
    tiny_bundle: Path, tmp_path: Path
) -> None:
    bundle, texts = load_bundle(tiny_bundle), items(60)
    whole = score(texts, bundle.tokenizer, MindirBackend(bundle))
    journals = [tmp_path / f"{number}.jsonl" for number in range(3)]
    processes = [
        subprocess.Popen([sys.executable, "-c", WORKER, str(tiny_bundle), str(journal), str(number)])
        for number, journal in enumerate(journals)
    ]
    assert [process.wait() for process in processes] == [0, 0, 0]
    done = DoneTexts(windows=reopen_journals(journals).windows)
    unasked = Unasked(bundle.model.vocab_size, bundle.model.max_length)
    assert score(texts, bundle.tokenizer, unasked, done=done) == whole


@pytest.mark.parametrize("name", ["mindir", "onnx"])
def test_e52_another_batch_size_moves_no_text_by_more_than_1e_6(
    stories_bundle: Bundle, name: BackendName, monkeypatch: pytest.MonkeyPatch
) -> None:
    """lm-eval #704, #1645: results differed by more than rounding. A real model, all the way to the record."""
    texts = items(24)
    backend = open_backend(name, stories_bundle)
    usual = score(texts, stories_bundle.tokenizer, backend)
    monkeypatch.setattr(engine, "_BATCH_POSITIONS", 64)
    small = score(texts, stories_bundle.tokenizer, backend)
    for sample_id, record in usual.items():
        assert record.scored == small[sample_id].scored > 0
        assert small[sample_id].nll == pytest.approx(record.nll, rel=1e-6)
        assert sum(part.nll for part in record.classes.values()) == record.nll
