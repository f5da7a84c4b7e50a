"""Labelled decisions: `{"id", "prompt", "target", "cluster"?}`, scored by the labels' log-probabilities.

A label's log-probability is the sum over its tokens in the joint encoding of prompt + " " + label; its tokens
are those that reach beyond the prompt's last byte. Nothing is divided by a length: the sum is the probability
that the model writes this label next. A decision that doesn't fit into the model with each of its labels is
never cut: it is left out with status "truncated", and counted.
"""

import hashlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from evalkit.backends.base import Backend
from evalkit.canonical import sha256_text
from evalkit.errors import InputError
from evalkit.metrics.accumulators import from_fixed, to_fixed
from evalkit.runs.records import SampleRecord, SampleStatus
from evalkit.scenario.schema import Risk
from evalkit.scoring.blocks import content_blocks
from evalkit.scoring.engine import SequenceStats, first_undefined, score_sequences
from evalkit.scoring.jsonl import read_objects, text_field
from evalkit.scoring.sample_head import sample_head
from evalkit.scoring.texts import unscorable
from evalkit.scoring.windows import Window
from evalkit.tokenization import EncodedText, TextTokenizer

Part = Literal["calibration", "judged"]


@dataclass(frozen=True)
class DecisionItem:
    """One labelled decision.

    Attributes:
        sample_id: unique in the file.
        prompt: what the model reads.
        target: the true label.
        cluster: decisions of one cluster aren't independent; the id where the data names none.
    """

    sample_id: str
    prompt: str
    target: str
    cluster: str

    @property
    def digest(self) -> str:
        """SHA-256 of prompt and target."""
        return sha256_text(f"{self.prompt}\0{self.target}")


def read_decisions(path: Path, labels: Sequence[str]) -> list[DecisionItem]:
    """Read a file of decisions, in its order.

    Raises:
        InputError: names the line: broken JSON, a missing or unknown field, a repeated id, a target that is
        no label;
            an empty or binary file.
    """
    decisions: list[DecisionItem] = []
    seen: dict[str, str] = {}
    for line in read_objects(path, required=("id", "prompt", "target"), optional=("cluster",)):
        sample_id = text_field(line, "id")
        if sample_id in seen:
            raise InputError(f"{line.where}: id: {sample_id!r} is repeated (first at {seen[sample_id]})")
        seen[sample_id] = line.where
        target = text_field(line, "target")
        if target not in labels:
            raise InputError(f"{line.where}: target: {target!r} is none of the labels {', '.join(labels)}")
        prompt = line.content["prompt"]
        if not isinstance(prompt, str):
            raise InputError(f"{line.where}: prompt: a text is needed (got {prompt!r:.60})")
        cluster = text_field(line, "cluster") if line.content.get("cluster") is not None else sample_id
        decisions.append(DecisionItem(sample_id, prompt, target, cluster))
    return decisions


def split_parts(decisions: Sequence[DecisionItem], calibration: float, seed: int) -> dict[str, Part]:
    """Calibration or judged for each cluster: whole clusters, drawn by their digest, the same for every
    model.

    Args:
        decisions: all of them.
        calibration: share of the clusters that choose the threshold.
        seed: of the draw.

    Raises:
        InputError: fewer than two clusters, so that one part would be empty.
    """
    clusters = sorted({decision.cluster for decision in decisions}, key=lambda name: _draw(seed, name))
    if len(clusters) < 2:
        raise InputError("risk.data: all decisions are of one cluster; a calibration part needs at least two")
    size = min(max(round(calibration * len(clusters)), 1), len(clusters) - 1)
    return {cluster: "calibration" if index < size else "judged" for index, cluster in enumerate(clusters)}


def score_decisions(
    decisions: Sequence[DecisionItem],
    tokenizer: TextTokenizer,
    backend: Backend,
    risk: Risk,
    *,
    seed: int,
    on_records: Callable[[Sequence[SampleRecord]], None],
    progress: Callable[[int], None] | None = None,
    done: Collection[str] = (),
) -> None:
    """Score decisions; one record each, whatever becomes of it.

    Args:
        decisions: unique ids.
        tokenizer, backend: of one model.
        risk: labels, in the order of `SampleRecord.label_logprobs`, and the share of the calibration part.
        seed: see `split_parts`.
        on_records: called with finished records, in a fixed order.
        progress: called with the number of decisions that are done since the last call.
        done: ids that needn't be scored again; leaving them out changes no bit of the rest.
    """
    parts = split_parts(decisions, risk.calibration, seed)
    ordered = sorted(decisions, key=lambda decision: (decision.digest, decision.sample_id))
    blocks = content_blocks(ordered, lambda decision: decision.digest, lambda decision: len(decision.prompt))
    for block in blocks:
        if all(decision.sample_id in done for decision in block):
            continue
        records = [
            replace(record, part=parts[record.cluster])
            for record in _score_block(block, risk.labels, tokenizer, backend, done)
        ]
        on_records(records)
        if progress is not None:
            progress(len(records))


def _score_block(
    block: Sequence[DecisionItem],
    labels: Sequence[str],
    tokenizer: TextTokenizer,
    backend: Backend,
    done: Collection[str],
) -> list[SampleRecord]:
    usable = [decision for decision in block if unscorable(decision.prompt) is None]
    joint = tokenizer.encode_batch([f"{decision.prompt} {label}" for decision in usable for label in labels])
    encoded = {
        decision.sample_id: joint[index * len(labels) : (index + 1) * len(labels)]
        for index, decision in enumerate(usable)
    }
    records: dict[str, SampleRecord] = {}
    for decision in block:
        refusal = _refusal(decision, encoded.get(decision.sample_id), tokenizer, backend)
        if refusal is not None:
            records[decision.sample_id] = decision_record(decision, *refusal)
    asked = [decision for decision in usable if decision.sample_id not in records]
    windows = [
        _label_window(text, len(decision.prompt.encode()), tokenizer)
        for decision in asked
        for text in encoded[decision.sample_id]
    ]
    sequences = [text.ids for decision in asked for text in encoded[decision.sample_id]]
    stats: dict[int, SequenceStats] = {}
    for finished in score_sequences(
        sequences,
        [[window] for window in windows],
        backend,
        prefix_token=tokenizer.prefix_token,
        longest_row=backend.max_length,
        skip={
            position * len(labels) + index
            for position, decision in enumerate(asked)
            if decision.sample_id in done
            for index in range(len(labels))
        },
    ):
        stats.update(finished)
    for position, decision in enumerate(asked):
        if decision.sample_id in done:
            continue
        of_labels = [stats[position * len(labels) + index] for index in range(len(labels))]
        records[decision.sample_id] = scored_record(decision, labels, of_labels)
    return [records[decision.sample_id] for decision in block if decision.sample_id not in done]


def _label_window(text: EncodedText, prompt_bytes: int, tokenizer: TextTokenizer) -> Window:
    # A token that spans the join of prompt and label belongs to the label.
    first = int(np.searchsorted(text.ends, prompt_bytes, side="right"))
    return Window(start=0, first_scored=first, end=len(text.ids), prefix=tokenizer.prefix_token is not None)


def _refusal(
    decision: DecisionItem, encoded: Sequence[EncodedText] | None, tokenizer: TextTokenizer, backend: Backend
) -> tuple[SampleStatus, str] | None:
    if encoded is None:
        return unscorable(decision.prompt)
    for text in encoded:
        window = _label_window(text, len(decision.prompt.encode()), tokenizer)
        if window.inputs > backend.max_length:
            needed = f"needs {window.inputs} input positions with its label"
            return "truncated", f"{needed}, the model reads {backend.max_length}: left out, not cut"
        if window.first_scored == 0 and not window.prefix:
            return "error", "nothing stands before the label: its first token can't be scored"
        if text.ids.max() >= backend.vocab_size:
            return (
                "error",
                f"token id {text.ids.max()} is outside the model's vocabulary of {backend.vocab_size}",
            )
    return None


def scored_record(
    decision: DecisionItem, labels: Sequence[str], of_labels: Sequence[SequenceStats]
) -> SampleRecord:
    """The record of a decision from the statistics of each label's tokens, in the labels' order."""
    for label, stats in zip(labels, of_labels, strict=True):
        if stats.failed is not None:
            return decision_record(decision, "error", f"label {label!r}: {stats.failed}")
        undefined = first_undefined(stats)
        if undefined is not None:
            return decision_record(
                decision, "error", f"the model's {undefined[1]} of label {label!r} is not a finite number"
            )
    logprobs = [from_fixed(int(to_fixed(stats.logprob).sum())) for stats in of_labels]
    true = of_labels[labels.index(decision.target)]
    cached_from = frozenset[str]().union(*(stats.cached_from for stats in of_labels))
    return replace(
        decision_record(decision, "ok", None),
        tokens=len(true.logprob),
        scored=len(true.logprob),
        nll=-logprobs[labels.index(decision.target)],
        label_logprobs=logprobs,
        from_cache=bool(cached_from),
        cache_runs=sorted(cached_from),
        elapsed_ns=sum(stats.elapsed_ns for stats in of_labels),
    )


def decision_record(decision: DecisionItem, status: SampleStatus, reason: str | None) -> SampleRecord:
    """The record of a decision before any log-probability."""
    head = sample_head("risk", decision, decision.prompt, status, reason)
    return replace(head, target=decision.target)


def _draw(seed: int, cluster: str) -> str:
    return hashlib.sha256(f"{seed}\0{cluster}".encode()).hexdigest()
