"""Scoring with a served model whose tokenizer isn't known: each text is one prompt, seen whole, without windows."""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import TypeVar

import numpy as np

from evalkit.backends.endpoint_client import Failed
from evalkit.backends.endpoint_texts import EndpointTexts, ServedTokens
from evalkit.metrics.token_classes import TokenClassifier
from evalkit.runs.records import SampleRecord
from evalkit.scenario.schema import Risk
from evalkit.scoring.decisions import DecisionItem, decision_record, scored_record, split_parts
from evalkit.scoring.engine import SequenceStats
from evalkit.scoring.text_records import TextJob, TokenRows, blank_record, finish_text
from evalkit.scoring.texts import TextItem, unscorable

# Texts that are asked for before anything is written: at most these are asked again after a kill.
_BATCH = 64

ItemT = TypeVar("ItemT")


def score_served_texts(
    items: Sequence[TextItem],
    endpoint: EndpointTexts,
    classifier: TokenClassifier,
    *,
    on_records: Callable[[Sequence[SampleRecord]], None],
    on_tokens: Callable[[TokenRows], None] | None = None,
    progress: Callable[[int], None] | None = None,
    done: Collection[str] = (),
) -> None:
    """Score texts; one record each, whatever becomes of it. Equal texts are asked once.

    Args:
        items: unique ids.
        endpoint: the model.
        classifier: of texts without token ids (see `evalkit.runs.setup`).
        on_records, on_tokens, progress: as in `evalkit.scoring.scorer.score_texts`.
        done: ids of texts whose records are written.
    """
    by_digest: dict[str, list[TextItem]] = {}
    for item in sorted(items, key=lambda item: item.sample_id):
        if item.sample_id not in done:
            by_digest.setdefault(item.digest, []).append(item)
    for batch in _batches([by_digest[digest] for digest in sorted(by_digest)]):
        refusals = [(item, unscorable(group[0].text)) for group in batch for item in group]
        records = [blank_record(item, None, *refusal) for item, refusal in refusals if refusal is not None]
        asked = [group for group in batch if not unscorable(group[0].text)]
        for group, answer in zip(asked, endpoint.score([group[0].text for group in asked]), strict=True):
            found, tokens = _finish(group, answer, classifier)
            records += found
            if on_tokens is not None:
                for rows in tokens:
                    on_tokens(rows)
        on_records(records)
        if progress is not None:
            progress(len(records))


def score_served_decisions(
    decisions: Sequence[DecisionItem],
    endpoint: EndpointTexts,
    risk: Risk,
    *,
    seed: int,
    on_records: Callable[[Sequence[SampleRecord]], None],
    progress: Callable[[int], None] | None = None,
    done: Collection[str] = (),
) -> None:
    """Score decisions; the label's tokens are those that reach beyond the prompt's last byte, as in offline scoring.

    Args:
        decisions: unique ids.
        endpoint: the model.
        risk, seed, on_records, progress, done: as in `evalkit.scoring.decisions.score_decisions`.
    """
    parts = split_parts(decisions, risk.calibration, seed)
    ordered = sorted(decisions, key=lambda decision: (decision.digest, decision.sample_id))
    for batch in _batches([decision for decision in ordered if decision.sample_id not in done]):
        asked = [decision for decision in batch if not unscorable(decision.prompt)]
        answers = iter(
            endpoint.score([f"{decision.prompt} {label}" for decision in asked for label in risk.labels])
        )
        records = []
        for decision in batch:
            refusal = unscorable(decision.prompt)
            record = (
                _decided(decision, risk.labels, list(islice(answers, len(risk.labels))))
                if refusal is None
                else decision_record(decision, *refusal)
            )
            records.append(replace(record, part=parts[decision.cluster]))
        on_records(records)
        if progress is not None:
            progress(len(records))


def _batches(items: Sequence[ItemT]) -> Iterator[Sequence[ItemT]]:
    for start in range(0, len(items), _BATCH):
        yield items[start : start + _BATCH]


def _finish(
    group: list[TextItem], answer: ServedTokens | Failed, classifier: TokenClassifier
) -> tuple[list[SampleRecord], list[TokenRows]]:
    if isinstance(answer, Failed):
        return [blank_record(item, None, "error", answer.reason) for item in group], []
    job = TextJob(group, answer.encoded)
    if not len(answer.logprob):
        # One token and no prefix: nothing can be asked, and nothing is lost.
        return [
            replace(
                blank_record(item, answer.encoded), unconditioned=1, words=classifier.words.count(item.text)
            )
            for item in group
        ], []
    return finish_text(job, answer.first, _stats(answer, answer.first), classifier)


def _decided(
    decision: DecisionItem, labels: Sequence[str], answers: Sequence[ServedTokens | Failed]
) -> SampleRecord:
    of_labels = []
    for label, answer in zip(labels, answers, strict=True):
        if isinstance(answer, Failed):
            return decision_record(decision, "error", f"label {label!r}: {answer.reason}")
        # A token that spans the join of prompt and label belongs to the label.
        first = int(np.searchsorted(answer.encoded.ends, len(decision.prompt.encode()), side="right"))
        if first < answer.first:
            reason = "nothing stands before the label: its first token can't be scored"
            return decision_record(decision, "error", reason)
        of_labels.append(_stats(answer, first))
    return scored_record(decision, labels, of_labels)


def _stats(answer: ServedTokens, first: int) -> SequenceStats:
    """Statistics of the tokens from `first` on; how long a single text took among others isn't known."""
    return SequenceStats(answer.logprob[first - answer.first :], None, None, None, elapsed_ns=0)
