"""Intents of concurrent turns: alone, together, and by the scikit-learn pipeline they come from; prints JSON.

    python -m benchmarks.predictions TEXTS.csv [--turns 64]

TEXTS.csv has the columns text and intent (or category), as `sandbox fit intent` takes. Every figure is CPU time, the median of
repeats in one process; the ratios are what counts, since the machine's load is in both sides of them.
"""

import argparse
import asyncio
import csv
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from sandbox.business.batching import Batcher
from sandbox.business.features import intent_features
from sandbox.business.intent import IntentRecogniser
from sandbox.business.linear_model import LinearTextModel

_REPEATS = 30


def _read(path: Path) -> tuple[list[str], list[str]]:
    with path.open(newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    label = "intent" if "intent" in rows[0] else "category"
    return [row["text"] for row in rows], [row[label] for row in rows]


def _median_us(work: Callable[[], object]) -> float:
    spent = []
    for _ in range(_REPEATS):
        started = time.process_time()
        work()
        spent.append(time.process_time() - started)
    return statistics.median(spent) * 1e6


async def _concurrent(recogniser: IntentRecogniser, texts: list[str]) -> tuple[float, float, int]:
    """Microseconds a turn, CPU milliseconds between two turns of the loop (99th percentile), and batches."""
    batcher = Batcher(recogniser.recognise_all, len)
    gaps = [0.0]

    async def watch() -> None:
        last = time.process_time()
        while True:
            await asyncio.sleep(0)
            now = time.process_time()
            gaps.append(now - last)
            last = now

    watcher = asyncio.create_task(watch())
    spent = []
    for _ in range(_REPEATS):
        started = time.process_time()
        await asyncio.gather(*(batcher.predict(text) for text in texts))
        spent.append(time.process_time() - started)
    watcher.cancel()
    stills = sorted(gaps)
    return (
        statistics.median(spent) * 1e6 / len(texts),
        stills[int(0.99 * (len(stills) - 1))] * 1000,
        batcher.batches // _REPEATS,
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("texts", type=Path)
    parser.add_argument("--turns", type=int, default=64)
    options = parser.parse_args()
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    texts, labels = _read(options.texts)
    step = max(1, len(texts) // 2000)
    pipeline = make_pipeline(
        TfidfVectorizer(analyzer=intent_features, sublinear_tf=True), LogisticRegression(max_iter=30)
    ).fit(texts[::step], labels[::step])
    recogniser = IntentRecogniser(LinearTextModel.from_pipeline(pipeline), 0.3)
    turns = (texts * (1 + options.turns // len(texts)))[: options.turns]

    features = _median_us(lambda: [intent_features(text) for text in turns]) / len(turns)
    alone = _median_us(lambda: [recogniser.recognise(text) for text in turns]) / len(turns)
    together = _median_us(lambda: recogniser.recognise_all(turns)) / len(turns)
    sklearn = _median_us(lambda: pipeline.predict_proba(turns[:1]))
    queued, still_ms, batches = asyncio.run(_concurrent(recogniser, turns))
    print(
        json.dumps(
            {
                "labels": len(recogniser.model.labels),
                "features": len(recogniser.model.columns),
                "turns": len(turns),
                "cpu_us_a_turn": {
                    "features alone": round(features, 1),
                    "one by one": round(alone, 1),
                    "together": round(together, 1),
                    "through the queue": round(queued, 1),
                    "scikit-learn, one by one": round(sklearn, 1),
                },
                "ratio_together_to_one_by_one": round(together / alone, 3),
                "ratio_queue_to_one_by_one": round(queued / alone, 3),
                "batches": batches,
                "loop_stands_still_p99_cpu_ms": round(still_ms, 3),
                "load_1_min": os.getloadavg()[0],
            },
            indent=2,
        )
    )


if __name__ == "__main__":
    main()
