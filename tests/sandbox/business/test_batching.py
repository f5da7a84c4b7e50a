"""Predictions of concurrent turns: made together, equal to the bit, harmless when a turn leaves or a prediction fails."""

import asyncio
import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from sandbox.business.batching import SLICE_CHARACTERS, Batcher
from sandbox.business.features import RatedTurn
from sandbox.business.flow import BatchedFlow, BusinessFlow
from tests.sandbox.fixtures import INTENTS

TEXTS = [
    *(text for texts in INTENTS.values() for text in texts),
    *("", "   ", "zzz", "全都不认识的字", "I lost my card 1234 and 我的卡丢了", "balance " * 300),
]


class Recorder:
    """Doubles numbers and remembers the batches."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []

    def __call__(self, items: Sequence[int]) -> list[int]:
        self.batches.append(list(items))
        if 13 in items:
            raise ValueError("unlucky")
        return [2 * item for item in items]


def short(item: int) -> int:
    return 1


def test_what_waits_is_predicted_together_in_order() -> None:
    recorder = Recorder()

    async def run() -> list[int]:
        batcher = Batcher(recorder, short)
        return list(await asyncio.gather(*(batcher.predict(number) for number in range(5))))

    assert asyncio.run(run()) == [0, 2, 4, 6, 8]
    assert recorder.batches == [[0, 1, 2, 3, 4]]


def test_a_slice_is_bounded_and_a_long_item_comes_alone() -> None:
    recorder = Recorder()

    async def run() -> None:
        batcher = Batcher(recorder, lambda item: item)
        sizes = [200, 200, 200, 5 * SLICE_CHARACTERS, 10]
        assert await asyncio.gather(*map(batcher.predict, sizes)) == [2 * size for size in sizes]
        assert (batcher.batches, batcher.items) == (4, 5)

    asyncio.run(run())
    assert recorder.batches == [[200, 200], [200], [5 * SLICE_CHARACTERS], [10]]


def test_a_turn_that_left_is_not_predicted_and_the_others_are() -> None:
    recorder = Recorder()

    async def run() -> int:
        batcher = Batcher(recorder, short)
        tasks = [asyncio.create_task(batcher.predict(number)) for number in range(3)]
        await asyncio.sleep(0)
        tasks[1].cancel()
        return await tasks[2]

    assert asyncio.run(run()) == 4
    assert recorder.batches == [[0, 2]]


def test_a_failure_reaches_its_turns_and_the_next_are_served() -> None:
    async def run() -> int:
        batcher = Batcher(Recorder(), short)
        with pytest.raises(ValueError, match="unlucky"):
            await batcher.predict(13)
        return await batcher.predict(4)

    assert asyncio.run(run()) == 8


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64])
def test_rows_of_a_batch_equal_those_alone_to_the_bit(flow_folder: Path, size: int) -> None:
    flow = BusinessFlow.load(flow_folder)
    assert flow.intent is not None and flow.satisfaction is not None
    items = (TEXTS * 4)[:size]
    alone = np.stack([flow.intent.model.probabilities(text) for text in items])
    assert flow.intent.model.probabilities_of(items).tobytes() == alone.tobytes()
    assert flow.intent.recognise_all(items) == [flow.intent.recognise(text) for text in items]
    turns = [
        RatedTurn(text, "Your balance is 50 euro.", index, index % 3) for index, text in enumerate(items)
    ]
    assert flow.satisfaction.predict_all(turns) == [flow.satisfaction.predict(turn) for turn in turns]


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_many_labels_and_real_texts_are_equal_to_the_bit_too(shared_data: Path) -> None:
    """77 labels, so that whatever a kernel unrolls or blocks shows."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    from sandbox.business.features import intent_features
    from sandbox.business.linear_model import LinearTextModel

    with (shared_data / "dialogues" / "banking77" / "train.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))[::50]
    texts = [row["text"] for row in rows]
    pipeline = make_pipeline(
        TfidfVectorizer(analyzer=intent_features, sublinear_tf=True), LogisticRegression(max_iter=5)
    ).fit(texts, [row["category"] for row in rows])
    model = LinearTextModel.from_pipeline(pipeline)
    together = model.probabilities_of(texts)
    assert all(
        model.probabilities(text).tobytes() == row.tobytes()
        for text, row in zip(texts, together, strict=True)
    )
    assert together[5:9].tobytes() == model.probabilities_of(texts[5:9]).tobytes()


def test_a_batched_flow_reads_and_rates_like_the_flow_alone(flow_folder: Path) -> None:
    flow = BusinessFlow.load(flow_folder)
    batched = BatchedFlow(flow)

    async def run() -> None:
        readings = await asyncio.gather(*(batched.read(text, "en", 1, "balance", False) for text in TEXTS))
        for text, reading in zip(TEXTS, readings, strict=True):
            alone = flow.read(text, "en", 1, "balance", False)
            assert (reading.intent, reading.handover) == (alone.intent, alone.handover)
            assert (reading.failed_turns, reading.handover_reply) == (
                alone.failed_turns,
                alone.handover_reply,
            )
            assert reading.intent_ns > 0 and reading.handover_ns > 0
        guess, nanoseconds = await batched.rate(RatedTurn("balance", "50 euro", 1, 0))
        assert guess == flow.rate(RatedTurn("balance", "50 euro", 1, 0))[0] and nanoseconds > 0

    asyncio.run(run())
    assert batched.intents is not None
    assert batched.intents.items == len(TEXTS) and batched.intents.batches < len(TEXTS) / 2
