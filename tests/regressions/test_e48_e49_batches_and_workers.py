"""Public faults of batches and of sharing out work: E48, E49 and E52 of the list."""

import json
import random
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from evalkit.backends.base import Backend
from evalkit.backends.choice import BackendName, open_backend
from evalkit.bundle import Bundle, load_bundle
from evalkit.metrics.token_classes import TokenClassifier, build_classifier
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


def classes(tokenizer: TextTokenizer) -> TokenClassifier:
    return build_classifier(Classes(), tokenizer, "t", None, None)


def share(
    all_items: list[TextItem], wanted: set[str], tokenizer: TextTokenizer, backend: Backend
) -> list[SampleRecord]:
    """What one worker records: the plan is made over all texts, only its own are asked."""
    records: list[SampleRecord] = []
    score_texts(
        all_items,
        tokenizer,
        backend,
        Window(length=48, stride=32),
        classes(tokenizer),
        on_records=records.extend,
        done=DoneTexts(frozenset(item.sample_id for item in all_items if item.sample_id not in wanted)),
    )
    return records


def timeless(records: list[SampleRecord]) -> dict[str, SampleRecord]:
    found = {record.sample_id: replace(record, elapsed_ns=0) for record in records}
    assert len(found) == len(records)
    return found


def test_e48_a_batch_is_sized_by_what_is_in_it() -> None:
    """lm-eval PR #3654, #1678: a batch size found on short texts was reused for long ones (31.5 GiB)."""
    tokenizer = byte_level_tokenizer()
    backend = ContextBackend(tokenizer.vocab_size, 48)
    texts = items(120)
    share(texts, {item.sample_id for item in texts}, tokenizer, backend)
    lengths = {length for _, length in backend.calls}
    assert len(backend.calls) > 3
    assert all(rows * length <= max(engine._BATCH_POSITIONS, length) for rows, length in backend.calls)
    assert max(lengths) <= 48


@pytest.mark.parametrize("name", ["mindir", "onnx"])
def test_e52_another_batch_size_moves_no_text_by_more_than_1e_6(
    stories_bundle: Bundle, name: BackendName, monkeypatch: pytest.MonkeyPatch
) -> None:
    """lm-eval #704, #1645: results differed by more than rounding. A real model, all the way to the record."""
    texts = items(24)
    everything = {item.sample_id for item in texts}
    backend = open_backend(name, stories_bundle)
    usual = timeless(share(texts, everything, stories_bundle.tokenizer, backend))
    monkeypatch.setattr(engine, "_BATCH_POSITIONS", 64)
    small = timeless(share(texts, everything, stories_bundle.tokenizer, backend))
    for sample_id, record in usual.items():
        assert record.scored == small[sample_id].scored > 0
        assert small[sample_id].nll == pytest.approx(record.nll, rel=1e-6)
        assert sum(part.nll for part in record.classes.values()) == record.nll


@pytest.mark.parametrize("workers", [1, 2, 3, 7])
def test_e49_any_number_of_workers_gives_the_same_bits(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """lm-eval #1719, MindOCR #271: results depended on the number of devices, since samplers repeat samples."""
    monkeypatch.setattr(blocks, "_MIN_ITEMS", 20)
    monkeypatch.setattr(blocks, "_ONE_IN", 10)
    tokenizer = byte_level_tokenizer()
    texts = items(90)
    everything = {item.sample_id for item in texts}
    whole = share(texts, everything, tokenizer, ContextBackend(tokenizer.vocab_size, 48))
    merged: list[SampleRecord] = []
    for worker in range(workers):
        order = texts.copy()
        random.Random(worker).shuffle(order)
        own = {item.sample_id for index, item in enumerate(texts) if index % workers == worker}
        merged += share(order, own, tokenizer, ContextBackend(tokenizer.vocab_size, 48))
    assert timeless(merged) == timeless(whole)


WORKER = """
import json, sys
from dataclasses import asdict
from pathlib import Path
from evalkit.backends.mindir import MindirBackend
from evalkit.bundle import load_bundle
from tests.regressions.test_e48_e49_batches_and_workers import items, share
worker, workers = int(sys.argv[2]), int(sys.argv[3])
bundle, texts = load_bundle(Path(sys.argv[1])), items(60)
own = {item.sample_id for index, item in enumerate(texts) if index % workers == worker}
records = share(texts, own, bundle.tokenizer, MindirBackend(bundle))
print(json.dumps([asdict(record) for record in records]))
"""


def test_e49_processes_that_share_the_texts_record_what_one_alone_does(tiny_bundle: Path) -> None:
    """With a real graph: each process plans all rows and asks those that hold a text of its own."""
    from evalkit.backends.mindir import MindirBackend

    bundle, texts = load_bundle(tiny_bundle), items(60)
    whole = share(texts, {item.sample_id for item in texts}, bundle.tokenizer, MindirBackend(bundle))
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, str(tiny_bundle), str(worker), "3"], stdout=subprocess.PIPE
        )
        for worker in range(3)
    ]
    merged = [record for process in processes for record in json.loads(process.communicate()[0])]
    expected = json.loads(json.dumps([asdict(record) for record in whole]))
    for record in (*merged, *expected):
        record["elapsed_ns"] = 0
    assert len(merged) == len(texts)
    assert {record["sample_id"]: record for record in merged} == {
        record["sample_id"]: record for record in expected
    }
