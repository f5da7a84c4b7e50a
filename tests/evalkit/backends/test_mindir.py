"""The MindIR backend with a real model: stories260K against its float64 reference."""

import json
import threading
from dataclasses import replace

import numpy as np
import pytest

from evalkit.backends.mindir import MindirBackend
from evalkit.backends.runtime import mindspore_session
from evalkit.bundle import Bundle
from evalkit.errors import InputError
from evalkit.metrics.counts import counts_from_bundle
from evalkit.metrics.token_classes import build_classifier
from evalkit.scenario.schema import Classes, Window
from evalkit.scoring.scorer import score_texts
from evalkit.scoring.texts import TextItem
from tests.support.stories import export_stories


@pytest.fixture(scope="module")
def bundle(shared_data, tmp_path_factory) -> Bundle:
    return export_stories(shared_data, tmp_path_factory.mktemp("stories"))


@pytest.fixture(scope="module")
def backend(bundle) -> MindirBackend:
    return MindirBackend(bundle)


@pytest.fixture(scope="module")
def reference(shared_data):
    return json.loads((shared_data / "models" / "stories260K" / "reference.json").read_text())["items"]


def score(items, bundle, backend, window):
    classifier = build_classifier(
        Classes(), bundle.tokenizer, bundle.manifest.tokenizer.sha256, counts_from_bundle(bundle), None
    )
    records, tokens = [], {}
    score_texts(
        items,
        bundle.tokenizer,
        backend,
        window,
        classifier,
        on_records=records.extend,
        on_tokens=lambda rows: tokens.update({rows.sample_id: rows}),
    )
    return {record.sample_id: replace(record, elapsed_ns=0) for record in records}, tokens


def texts(reference):
    return [TextItem(str(index), item["text"], str(index)) for index, item in enumerate(reference)]


def test_log_probabilities_equal_the_float64_reference(bundle, backend, reference):
    _, tokens = score(texts(reference), bundle, backend, Window(length=512, stride=512))
    differences = []
    for index, item in enumerate(reference):
        rows = tokens[str(index)]
        assert [1, *rows.token_id] == item["token_ids"]
        differences.append(np.abs(rows.logprob - np.array(item["logprobs"])))
        right = np.array(item["argmax_ids"]) == np.array(item["token_ids"][1:])
        assert list(rows.rank == 1) == list(right)
    worst, mean = np.concatenate(differences).max(), np.concatenate(differences).mean()
    assert worst < 1e-3 and mean < 1e-4


def test_any_order_gives_the_same_bits(bundle, backend, reference):
    window = Window(length=64, stride=32)
    first, _ = score(texts(reference), bundle, backend, window)
    second, _ = score(texts(reference)[::-1], bundle, backend, window)
    assert first == second


def test_packing_moves_no_perplexity_by_more_than_1e_6(bundle, backend, reference):
    window = Window(length=128, stride=64)
    together, _ = score(texts(reference), bundle, backend, window)
    for item in texts(reference)[:6]:
        alone, _ = score([item], bundle, backend, window)
        found, expected = (side[item.sample_id] for side in (alone, together))
        assert np.exp(found.nll / found.scored) == pytest.approx(
            np.exp(expected.nll / expected.scored), rel=1e-6
        )


def test_statistics_belong_together(bundle, backend, reference):
    _, tokens = score(texts(reference), bundle, backend, Window(length=512, stride=512))
    for rows in tokens.values():
        assert np.all(rows.logprob <= 0)
        assert np.all((rows.entropy >= -1e-6) & (rows.entropy <= np.log(512) + 1e-5))
        assert np.all((rows.margin >= 0) == (rows.rank == 1))
        assert np.all((rows.rank >= 1) & (rows.rank <= 512))


def test_threads_take_turns(backend):
    ids = np.tile(np.arange(3, 35, dtype=np.int32), (2, 1))
    positions, segments = np.tile(np.arange(32, dtype=np.int32), (2, 1)), np.ones_like(ids)
    expected = backend.score(ids, ids, positions, segments).logprob
    found: list[bool] = []

    def work():
        for _ in range(5):
            found.append(np.array_equal(backend.score(ids, ids, positions, segments).logprob, expected))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 20


def test_the_lock_may_be_taken_again_by_its_holder():
    with mindspore_session() as outer, mindspore_session() as inner:
        assert outer is inner


def test_identity(bundle, backend):
    assert backend.model_digest == bundle.model_digest
    assert (backend.max_length, backend.vocab_size, backend.precision) == (512, 512, "fp32")


def test_a_bundle_without_the_graph_is_refused(bundle):
    manifest = bundle.manifest.model_copy(update={"graphs": {}})
    with pytest.raises(InputError, match="no graph for the role 'score'"):
        MindirBackend(Bundle(path=bundle.path, manifest=manifest))
