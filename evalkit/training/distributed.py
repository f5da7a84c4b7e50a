"""One evaluation by several ranks: each scores batches of its own once, and all merge the same exact results.

Ranks plan the same batches and take every `size`-th. What they scored goes through files in a folder that all see, to
the bit; collectives on a CPU carry float32 sums only, and MindSpore's gathering of objects pickles.
"""

import json
import os
import secrets
import shutil
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from evalkit.backends.base import Backend
from evalkit.checks import instance, number, whole
from evalkit.errors import IncompleteError, InputError
from evalkit.files import write_bytes_atomic, write_json_atomic
from evalkit.runs.journal import Journal, reopen_journals
from evalkit.runs.perturbed import OnRecords
from evalkit.runs.records import SampleRecord, WindowRecord
from evalkit.scoring.scorer import DoneTexts, score_texts
from evalkit.scoring.texts import TextItem
from evalkit.training.evaluation import Measurement, Validation

_POLL_S = 0.05
_OUTCOME = "outcome"


class MissingRankError(IncompleteError):
    """A rank gave no result in time: it died, or hangs."""


class FailedRankError(IncompleteError):
    """Another rank's part of an evaluation failed; the rank itself goes on."""


@dataclass(frozen=True)
class Ranks:
    """The processes that evaluate together.

    Attributes:
        rank, size: this one's number from 0, and how many there are.
        folder: seen by all of them.
        run: a name that this training alone has, equal in all ranks, so that nobody reads what an earlier one left.
        timeout_s: how long a rank waits for the others' results.
        communicates: whether MindSpore's communication is up in all of them.
    """

    rank: int
    size: int
    folder: Path
    run: str
    timeout_s: float = 600.0
    communicates: bool = False

    def __post_init__(self) -> None:
        """Raises InputError where an argument doesn't fit."""
        whole("size", self.size, least=1)
        if whole("rank", self.rank, least=0) >= self.size:
            raise InputError(f"rank: a number below {self.size} is needed (got {self.rank})")
        instance("folder", self.folder, Path, "a pathlib.Path")
        if not instance("run", self.run, str, "a name") or "/" in self.run:
            raise InputError(f"run: a name without / is needed (got {self.run!r})")
        number("timeout_s", self.timeout_s, above=0, what="a positive number of seconds")

    @classmethod
    def of_mindspore(cls, folder: str | Path, *, timeout_s: float = 600.0) -> "Ranks":
        """The ranks of a training that `msrun` started, after `mindspore.communication.init()`.

        Raises:
            InputError: communication isn't up, or `folder` is no path of a folder.
        """
        if Path(instance("folder", folder, str | Path, "the path of a folder")).is_file():
            raise InputError(f"folder: {folder}: a folder is needed, this is a file")
        import numpy as np
        from mindspore import Tensor, communication, ops

        # Before init() MindSpore answers 0 of 1 in every process.
        rank, size = communication.get_rank(), communication.get_group_size()
        if size < int(os.environ.get("MS_WORKER_NUM", "1")):
            raise InputError("the ranks aren't known: call mindspore.communication.init() first")
        # Small whole numbers, which float32 carries exactly.
        drawn = np.array([secrets.randbelow(1 << 20) for _ in range(4)], dtype=np.float32)
        if size > 1:
            (drawn,) = (part.asnumpy() for part in ops.Broadcast(0)((Tensor(drawn),)))
        name = "".join(f"{int(part):05x}" for part in drawn)
        return cls(rank, size, Path(folder), name, timeout_s, communicates=size > 1)

    def measure(
        self,
        validation: Validation,
        backend: Backend,
        key: int | str,
        items: Sequence[TextItem] | None = None,
    ) -> Measurement:
        """As `Validation.measure`, with equal results in every rank, to the bit, however many there are.

        Args:
            validation: the same in all ranks.
            backend: holds the same weights in all ranks.
            key: of the evaluation; not used twice, and equal in all ranks.
            items: other texts than the validation's.

        Raises:
            InputError: the ranks hold different weights.
            MissingRankError: a rank's result didn't come in time.
            FailedRankError: a rank told of an error instead, by `agree`.
        """
        if self.size == 1:
            return validation.measure(backend, items)
        parts, digest = count(), backend.model_digest  # hashed once, not for each perturbation

        def score(texts: Sequence[TextItem], _: Collection[str], take: OnRecords) -> None:
            place = self.folder / self.run / f"step-{key}-part-{next(parts)}"
            take(self._score(validation, backend, digest, texts, place))

        return validation.measured_by(score, items)

    def exchange(self, key: int | str, name: str, value: Any) -> list[Any]:
        """What every rank gives under a name, in the order of the ranks.

        Args:
            key: of the evaluation, as in `measure`.
            name: used once an evaluation; equal in all ranks.
            value: JSON values; whole numbers arrive to the last digit, whatever their size.

        Raises:
            MissingRankError: a rank gave nothing in time.
            FailedRankError: a rank told of an error instead, by `agree`.
        """
        place = self.folder / self.run / f"step-{key}-{name}"
        # One line: there may be thousands of numbers.
        content = json.dumps({"value": value}, allow_nan=False, separators=(",", ":"))
        write_bytes_atomic(self._mark(place, self.rank), content.encode())
        marks = {rank: self._mark(place, rank) for rank in range(self.size)}
        self._wait(marks, None if name == _OUTCOME else self._outcome(place))
        found = [json.loads(mark.read_bytes())["value"] for mark in marks.values()]
        self._forget_before(place)
        return found

    def agree(self, key: int | str, error: str | None) -> str | None:
        """The first error that a rank has met in an evaluation, the same in all ranks, or None.

        It is the last thing that a rank says of an evaluation. Who still waits for that rank's part gives up.

        Raises:
            MissingRankError: a rank said nothing in time.
        """
        if self.size == 1:
            return error
        told = self.exchange(key, _OUTCOME, error)
        first = next((rank for rank, one in enumerate(told) if one is not None), None)
        return None if first is None else str(told[first])

    def mean(self, loss: float) -> float:
        """The mean of a number over all ranks, the same in all, in float32; through MindSpore's communication."""
        from mindspore import Tensor, float32, ops

        (total,) = ops.AllReduce()(Tensor([loss], dtype=float32)).asnumpy()
        return float(total) / self.size

    def _score(
        self, validation: Validation, backend: Backend, digest: str, texts: Sequence[TextItem], place: Path
    ) -> list[SampleRecord]:
        """Score this rank's batches, take the others' from their files, and make the records of all."""
        journal = place / f"rank-{self.rank}.journal.jsonl"
        with Journal(journal) as kept:

            def keep(windows: Sequence[WindowRecord]) -> None:
                kept.append(windows)

            score_texts(
                texts,
                validation.tokenizer,
                backend,
                validation.window,
                validation.classifier,
                on_records=_none,
                on_windows=keep,
                share=(self.rank, self.size),
            )
        write_json_atomic(self._mark(place, self.rank), {"weights_sha256": digest})
        self._check_weights(place)
        journals = [place / f"rank-{rank}.journal.jsonl" for rank in range(self.size)]
        records: list[SampleRecord] = []
        score_texts(
            texts,
            validation.tokenizer,
            backend,
            validation.window,
            validation.classifier,
            on_records=records.extend,
            done=DoneTexts(windows=reopen_journals(journals).windows),
        )
        self._forget_before(place)
        return records

    def _mark(self, place: Path, rank: int) -> Path:
        return place / f"rank-{rank}.json"

    def _outcome(self, place: Path) -> Path:
        """Where the ranks say how the evaluation of `place` went."""
        return place.with_name(f"{'-'.join(place.name.split('-')[:2])}-{_OUTCOME}")

    def _wait(self, files: Mapping[int, Path], outcome: Path | None) -> None:
        """Until the file of each rank is there; files appear whole. A rank that has told of an error writes none."""
        until = time.monotonic() + self.timeout_s
        while waiting := [rank for rank, file in files.items() if not file.is_file()]:
            told = [] if outcome is None else [self._mark(outcome, rank) for rank in waiting]
            errors = [json.loads(file.read_bytes())["value"] for file in told if file.is_file()]
            if any(errors):
                raise FailedRankError(str(next(filter(None, errors))))
            if time.monotonic() > until:
                names, place = ", ".join(map(str, waiting)), files[waiting[0]].parent
                raise MissingRankError(
                    f"rank {names} of {self.size} gave no result within {self.timeout_s:g} s ({place}); it died or hangs, "
                    "or its triggers asked for no evaluation here: look at its log, and start all ranks again"
                )
            time.sleep(_POLL_S)

    def _check_weights(self, place: Path) -> None:
        """Wait for every rank's result, and see that all were made with the same weights."""
        marks = {rank: self._mark(place, rank) for rank in range(self.size)}
        self._wait(marks, self._outcome(place))
        digests = [json.loads(mark.read_bytes())["weights_sha256"] for mark in marks.values()]
        differing = [rank for rank, digest in enumerate(digests) if digest != digests[0]]
        if differing:
            raise InputError(
                f"rank {differing[0]} holds other weights than rank 0: the replicas of a data-parallel training have "
                "drifted apart, or each holds a part of the model; nothing was measured"
            )

    def _forget_before(self, place: Path) -> None:
        """Remove this rank's earlier files: who wrote a result at `place` has read them."""
        for earlier in place.parent.glob("step-*"):
            if earlier != place:
                self._mark(earlier, self.rank).unlink(missing_ok=True)
                (earlier / f"rank-{self.rank}.journal.jsonl").unlink(missing_ok=True)

    def close(self) -> None:
        """Remove what is left, after the last evaluation; for rank 0 alone, when all ranks are through."""
        shutil.rmtree(self.folder / self.run, ignore_errors=True)


def _none(_: Sequence[SampleRecord]) -> None:
    raise AssertionError("shared work makes no record")
