"""Scoring the perturbed texts of a run: what a perturbation leaves as it is has its clean record, the rest is scored."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from evalkit.perturbations.perturbation import PerturbedTexts
from evalkit.runs.records import SampleRecord
from evalkit.scoring.texts import TextItem

OnRecords = Callable[[Sequence[SampleRecord]], None]

# Scores texts: items, the ids of those that needn't be scored, and what takes the records.
ScoreItems = Callable[[Sequence[TextItem], Collection[str], OnRecords], None]


def score_perturbed(
    texts: PerturbedTexts,
    clean: Mapping[str, SampleRecord],
    score: ScoreItems,
    on_records: OnRecords,
    done: Collection[str] = (),
) -> None:
    """One record of kind perturbed a text, whatever becomes of it.

    A text that the perturbation leaves as it is isn't scored again: in other company its float32 scores would differ in
    the last bits, and its difference has to be exactly nothing. Each perturbation is scored by itself, so that the
    others don't move it either.

    Args:
        texts: under one perturbation.
        clean: the record of each clean text, by id.
        score: of the model.
        on_records: takes the finished records of each batch.
        done: ids of perturbed records that are written.
    """
    name = texts.setup.name
    untouched = [item for item in texts.items if item.digest == clean[item.sample_id].digest]
    copied = [
        perturbed_record(clean[item.sample_id], name)
        for item in untouched
        if perturbed_id(name, item.sample_id) not in done
    ]
    if copied:
        on_records(copied)
    kept = {item.sample_id for item in untouched}
    changed = [item for item in texts.items if item.sample_id not in kept]
    if not changed:
        return
    finished = {item.sample_id for item in changed if perturbed_id(name, item.sample_id) in done}

    def take(batch: Sequence[SampleRecord]) -> None:
        on_records([perturbed_record(record, name) for record in batch])

    score(changed, finished, take)


def perturbed_id(perturbation: str, sample_id: str) -> str:
    """The id of a text's record under a perturbation."""
    return f"{perturbation}/{sample_id}"


def perturbed_record(record: SampleRecord, perturbation: str) -> SampleRecord:
    """The record of a text as one under a perturbation."""
    return replace(
        record,
        kind="perturbed",
        perturbation=perturbation,
        sample_id=perturbed_id(perturbation, record.sample_id),
    )
