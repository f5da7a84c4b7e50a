"""`python -m scenarios.generate --out DIR`: writes the banking-support business. See README.md beside this file."""

import csv
import io
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import click
import yaml

from evalkit.files import write_bytes_atomic
from scenarios.generator.applications import evaluation_decisions, training_texts
from scenarios.generator.chinese import CHINESE
from scenarios.generator.dialogues import evaluation_files, training_messages
from scenarios.generator.english import ENGLISH
from scenarios.generator.flow_data import intent_examples, satisfaction_examples
from scenarios.generator.language import Language
from scenarios.generator.notes import GLOSSARY, NOTES_EN, NOTES_ZH, evaluation_notes, training_notes
from scenarios.generator.randomness import part_random

# A language trains a model of its own: one of this size doesn't learn two in the time there is.
_DIALOGUES = 4400
_NOTES = 400
_APPLICATIONS = {"en": 1600, "zh": 0}
_VALIDATION_SHARE = 0.05


def training_records(seed: int, language: Language, part: str, share: float) -> list[dict[str, Any]]:
    """Training (or validation) records of one language in shuffled order.

    Args:
        seed: of the whole business.
        language: of the conversations.
        part: train or validation; names the records and the source of chance.
        share: size as a share of the training data.
    """
    locale = language.locale
    random = part_random(seed, f"{part}/dialogues/{locale}")
    records: list[dict[str, Any]] = [
        {"messages": training_messages(random, language)} for _ in range(round(_DIALOGUES * share))
    ]
    random = part_random(seed, f"{part}/notes/{locale}")
    notes = NOTES_EN if locale == "en" else NOTES_ZH
    records += [{"text": text} for text in training_notes(random, notes, round(_NOTES * share))]
    random = part_random(seed, f"{part}/applications/{locale}")
    count = round(_APPLICATIONS[locale] * share)
    records += [{"text": text} for text in training_texts(random, count)]
    part_random(seed, f"{part}/order/{locale}").shuffle(records)
    return [{"id": f"{part}-{number:05}"} | record for number, record in enumerate(records, start=1)]


def training_files(seed: int) -> dict[str, str]:
    """The files that a trainer reads: relative path → text."""
    return {
        f"{language.locale}/{part}.jsonl": _jsonl(training_records(seed, language, part, share))
        for language in (ENGLISH, CHINESE)
        for part, share in (("train", 1.0), ("validation", _VALIDATION_SHARE))
    }


def evaluation_data(seed: int) -> dict[str, str]:
    """The files that a scenario and its flow read: relative path → text."""
    english = evaluation_notes(part_random(seed, "texts/en"), NOTES_EN, customers=120, per_customer=2)
    chinese = evaluation_notes(part_random(seed, "texts/zh"), NOTES_ZH, customers=120, per_customer=2)
    intents, satisfaction = [], []
    dialogues: dict[str, Any] = {}
    for language, per_topic, questions, single in ((ENGLISH, 6, 2, 16), (CHINESE, 6, 3, 16)):
        locale = language.locale
        dialogues |= evaluation_files(
            part_random(seed, f"dialogues/{locale}"),
            language,
            per_topic=per_topic,
            questions=questions,
            single=single,
            per_handover=2,
        )
        intents += intent_examples(part_random(seed, f"intents/{locale}"), language, per_wording=3)
        satisfaction += satisfaction_examples(
            part_random(seed, f"satisfaction/{locale}"), language, count=400
        )
    files = {
        "texts.jsonl": _jsonl(english),
        "texts_zh.jsonl": _jsonl(chinese),
        "applications.jsonl": _jsonl(evaluation_decisions(part_random(seed, "applications"), count=400)),
        "terms.txt": "".join(f"{term}\n" for term in GLOSSARY),
        "intents.csv": _csv(intents),
        "satisfaction.csv": _csv(satisfaction),
    }
    for name, content in dialogues.items():
        files[f"dialogues/{name}.yaml"] = yaml.safe_dump(
            content, allow_unicode=True, sort_keys=False, width=110
        )
    return files


def _jsonl(records: Iterable[Mapping[str, Any]]) -> str:
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)


def _csv(rows: list[dict[str, str]]) -> str:
    stream = io.StringIO()
    writer = csv.DictWriter(stream, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return stream.getvalue()


@click.command()
@click.option(
    "--out", required=True, type=click.Path(path_type=Path, file_okay=False), help="Folder to write into."
)
@click.option("--seed", default=2024, show_default=True, help="Of every random choice.")
def main(out: Path, seed: int) -> None:
    """Write training data into OUT/en and OUT/zh, and the evaluation data into OUT/evaluation."""
    for name, text in training_files(seed).items():
        write_bytes_atomic(out / name, text.encode())
    for name, text in evaluation_data(seed).items():
        write_bytes_atomic(out / "evaluation" / name, text.encode())
    click.echo(f"written: {out}")


if __name__ == "__main__":
    main()
