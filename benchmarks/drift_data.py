"""What `benchmarks/drift.py` measures on: banking questions and customers' messages of dialogues, a small language model and a
question recogniser trained on other texts of both, every text scored once."""

import csv
import json
import random
import re
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from evalkit.canonical import sha256_text
from evalkit.metrics.own import OwnMetric
from evalkit.runs.evidence import Evidence
from evalkit.runs.evidence_io import in_order, read_evidence, write_evidence
from evalkit.runs.folder import RunFolder
from evalkit.runs.records import SampleRecord
from evalkit.scoring.texts import TextItem

QUESTIONS, UTTERANCES, SCRAMBLED = "banking77", "sgd", "scrambled"
# Texts to train on, of banking77 and of sgd: nine to one, as the traffic is where the stream begins.
_TRAINING = (3600, 400)
_POOL_QUESTIONS, _POOL_SCRAMBLED = 6000, 2500
TRAINER: dict[str, Any] = {
    "version": 1,
    "name": "drift",
    "seed": 1,
    "model": {"family": "llama", "hidden_size": 64, "layers": 2, "heads": 4, "max_length": 128},
    "tokenizer": {"train": {"vocab_size": 600}},
    "data": {
        "train": ["train.jsonl"],
        "validation": ["train_tail.jsonl"],
        "loss_on": "all",
        "sequence_length": 64,
    },
    "optimizer": {"name": "adamw", "learning_rate": 5e-3, "schedule": "cosine", "warmup_steps": 20},
    "steps": 250,
    "batch_size": 16,
}
# Terms of the glossary, which count as entities beside numbers, dates, amounts and ids.
TERMS = ("checking account", "savings account", "checking", "savings")
# Words of the topics' names that say nothing of a topic.
_FUNCTION_WORDS = frozenset(
    ["about", "after", "and", "by", "for", "into", "my", "not", "of", "on", "or", "to", "up", "via", "why"]
)
_COURTESY = frozenset(
    [
        "yes",
        "yep",
        "yeah",
        "no",
        "nope",
        "ok",
        "okay",
        "sure",
        "thanks",
        "thank",
        "please",
        "correct",
        "right",
        "perfect",
        "great",
        "alright",
        "fine",
        "good",
    ]
)
_BUSINESS = frozenset(
    [
        "card",
        "cards",
        "account",
        "accounts",
        "bank",
        "banking",
        "transfer",
        "transfers",
        "transferred",
        "payment",
        "payments",
        "pay",
        "paid",
        "fee",
        "fees",
        "charge",
        "charged",
        "charges",
        "exchange",
        "currency",
        "currencies",
        "rate",
        "rates",
        "atm",
        "cash",
        "money",
        "pin",
        "refund",
        "top",
        "topup",
        "withdraw",
        "withdrawal",
        "withdrew",
        "deposit",
        "balance",
        "cheque",
        "check",
        "passcode",
        "app",
        "identity",
        "verify",
        "transaction",
        "transactions",
        "debit",
        "credit",
        "visa",
        "mastercard",
        "statement",
        "declined",
        "pending",
        "beneficiary",
        "virtual",
    ]
)


def topic_words(dialogues: Path) -> list[str]:
    """A bank's glossary as it may lie about: the words of the names of banking77's 77 topics, e.g. of `pending_top_up`.

    Only the list of names is read, not which text has which.
    """
    names = json.loads((dialogues / "banking77" / "categories.json").read_text(encoding="utf-8"))
    return sorted({word for name in names for word in re.findall("[a-z]+", name.lower())} - _FUNCTION_WORDS)


def courtesy(text: str) -> float:
    """Words by which people in a conversation answer, confirm and thank, per 100 characters: a feature of the user."""
    return _density(text, _COURTESY)


def business(text: str) -> float:
    """Words of the bank's business per 100 characters: a feature of the user."""
    return _density(text, _BUSINESS)


def _density(text: str, words: frozenset[str]) -> float:
    found = re.findall(r"[a-z']+", text.lower())
    return 100 * sum(word in words for word in found) / max(1, len(text))


def f1_state(record: SampleRecord) -> tuple[float, float, float]:
    """Right questions, wrong answers of either kind, one text; the outcome stands in the record's tags."""
    truth, said = "is:question" in record.tags, "said:question" in record.tags
    return float(truth and said), float(truth != said), 1.0


F1 = OwnMetric(
    name="own/question_f1",
    unit="share",
    direction="higher",
    evidence="text",
    state=f1_state,
    compute=lambda sums: 2 * sums[:, 0] / (2 * sums[:, 0] + sums[:, 1]),
    action="look at the questions that were missed",
    alarm=0.8,
    support=(0.0, 1.0),
)


@dataclass(frozen=True)
class Pool:
    """The scored texts.

    Attributes:
        items, evidence: in the same order, by id.
        source: of each text.
        bundle: of the language model.
    """

    items: tuple[TextItem, ...]
    evidence: Evidence
    source: tuple[str, ...]
    bundle: Path


def load_pool(dialogues: Path, work: Path) -> Pool:
    """Train and score, or read what an earlier call left in `work`.

    Args:
        dialogues: folder of the public dialogue data.
        work: keeps models and scores.
    """
    training, items = _split(dialogues)
    work.mkdir(parents=True, exist_ok=True)
    bundle = work / "bundle"
    if not bundle.is_dir():
        _train(training, work)
    scored = RunFolder(work / "scored")
    if not scored.samples("candidate").is_file():
        scored.evidence("candidate").mkdir(parents=True, exist_ok=True)
        write_evidence(scored, "candidate", _score(items, bundle))
    evidence = read_evidence(scored, "candidate")
    if [record.sample_id for record in evidence.samples] != sorted(items):
        raise RuntimeError(f"{scored.path}: holds other texts than these; remove it")
    said = _recognise(training, items)
    tagged = tuple(
        replace(record, tags=[_truth(record.sample_id, items), said[record.sample_id]])
        for record in evidence.samples
    )
    ordered = tuple(items[record.sample_id] for record in tagged)
    return Pool(
        ordered, Evidence(samples=tagged), tuple(item.sample_id.split("-")[0] for item in ordered), bundle
    )


def _split(dialogues: Path) -> tuple[list[str], dict[str, TextItem]]:
    """Texts to train on, and the pool; no dialogue and no text of banking77 is in both."""
    source = random.Random(7)
    with (dialogues / "banking77" / "train.csv").open(encoding="utf-8", newline="") as stream:
        questions = [row["text"].strip() for row in csv.DictReader(stream)]
    with (dialogues / "banking77" / "test.csv").open(encoding="utf-8", newline="") as stream:
        questions += [row["text"].strip() for row in csv.DictReader(stream)]
    questions = list(dict.fromkeys(" ".join(text.split()) for text in questions))
    source.shuffle(questions)
    talks = []
    for file in sorted((dialogues / "sgd_banks_payment").glob("*/dialogues_*.json")):
        talks += json.loads(file.read_text(encoding="utf-8"))
    source.shuffle(talks)
    trained, utterances, pool = questions[: _TRAINING[0]], [], {}
    while len(utterances) < _TRAINING[1]:
        utterances += [turn["utterance"] for turn in talks.pop()["turns"]]
    rest = questions[_TRAINING[0] :]
    for index, text in enumerate(rest[:_POOL_QUESTIONS]):
        _add(pool, QUESTIONS, index, text)
    for index, text in enumerate(rest[:_POOL_SCRAMBLED]):
        words = text.split()
        source.shuffle(words)
        _add(pool, SCRAMBLED, index, " ".join(words))
    spoken = [(str(talk["dialogue_id"]), turn) for talk in talks for turn in talk["turns"]]
    for index, (talk, turn) in enumerate(spoken):
        # Traffic is what customers write; the models have learnt from both sides of the dialogues.
        if turn["speaker"] == "USER":
            _add(pool, UTTERANCES, index, turn["utterance"], cluster=talk)
    return trained + utterances, pool


def _add(pool: dict[str, TextItem], source: str, index: int, text: str, cluster: str | None = None) -> None:
    name = f"{source}-{index:05d}"
    pool[name] = TextItem(name, " ".join(text.split()), cluster or name)


def _train(texts: list[str], work: Path) -> None:
    lines = [json.dumps({"id": f"t{index}", "text": text}) + "\n" for index, text in enumerate(texts)]
    random.Random(1).shuffle(lines)
    (work / "train.jsonl").write_text("".join(lines[100:]), encoding="utf-8")
    (work / "train_tail.jsonl").write_text("".join(lines[:100]), encoding="utf-8")
    (work / "train.yaml").write_text(yaml.safe_dump(TRAINER))
    for words in (
        ("train", str(work / "train.yaml"), "--out", str(work / "model")),
        ("export", str(work / "model"), "--out", str(work / "bundle"), "--format", "mindir,onnx"),
    ):
        subprocess.run([sys.executable, "-m", "trainer", *words], check=True, stdout=sys.stderr)


def _score(items: dict[str, TextItem], bundle: Path) -> Evidence:
    from evalkit.backends.choice import open_backend
    from evalkit.bundle import load_bundle
    from evalkit.metrics.counts import counts_from_bundle
    from evalkit.metrics.token_classes import build_classifier
    from evalkit.scenario.schema import Classes, Window
    from evalkit.scoring.scorer import score_texts

    loaded = load_bundle(bundle)
    classifier = build_classifier(
        Classes(), loaded.tokenizer, loaded.manifest.tokenizer.sha256, counts_from_bundle(loaded), None
    )
    records: list[SampleRecord] = []
    score_texts(
        list(items.values()),
        loaded.tokenizer,
        open_backend("onnx", loaded),
        Window(length=128, stride=128),
        classifier,
        on_records=records.extend,
    )
    return in_order(records, ())


def _truth(name: str, items: dict[str, TextItem]) -> str:
    """A text is a question where it holds a question mark; word order doesn't change that."""
    return "is:question" if "?" in items[name].text else "is:statement"


def _words(text: str) -> str:
    """What the recogniser sees: lower-case words, no punctuation that gives the answer away."""
    return " ".join(re.findall(r"[\w']+", text.lower()))


def _recognise(training: list[str], items: dict[str, TextItem]) -> dict[str, str]:
    """Question or statement, by logistic regression on words and pairs of words."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    recogniser = make_pipeline(
        TfidfVectorizer(ngram_range=(1, 2), min_df=3, sublinear_tf=True, token_pattern=r"\S+"),
        LogisticRegression(max_iter=1000),
    )
    recogniser.fit([_words(text) for text in training], ["?" in text for text in training])
    found = recogniser.predict([_words(item.text) for item in items.values()])
    return {
        name: "said:question" if said else "said:statement" for name, said in zip(items, found, strict=True)
    }


def digest(pool: Pool) -> str:
    """SHA-256 of the texts, for the record."""
    return sha256_text("\n".join(item.text for item in pool.items))
