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
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path

from evalkit.backends.base import Backend
from evalkit.errors import IncompleteError, InputError
from evalkit.files import write_json_atomic
from evalkit.metrics.context import ResampleSetup
from evalkit.runs.journal import Journal, reopen_journals
from evalkit.runs.perturbed import OnRecords
from evalkit.runs.records import SampleRecord, WindowRecord
from evalkit.scoring.scorer import DoneTexts, score_texts
from evalkit.scoring.texts import TextItem
from evalkit.training.evaluation import Measurement, Validation

_POLL_S = 0.05


class MissingRankError(IncompleteError):
    """A rank gave no result in time: it died, or hangs."""


@dataclass(frozen=True)
class Ranks:
    """The processes that evaluate together.

    Attributes:
        rank, size: this one's number from 0, and how many there are.
        folder: seen by all of them.
        run: a name that this training alone has, equal in all ranks, so that nobody reads what an earlier one left.
        timeout_s: how long a rank waits for the others' results.
    """

    rank: int
    size: int
    folder: Path
    run: str
    timeout_s: float = 600.0

    def __post_init__(self) -> None:
        """Raises InputError where the numbers don't fit."""
        if not 0 <= self.rank < self.size:
            raise InputError(f"rank: a number below {self.size} is needed (got {self.rank})")
        if self.timeout_s <= 0:
            raise InputError(f"timeout_s: a positive number of seconds is needed (got {self.timeout_s})")

    @classmethod
    def of_mindspore(cls, folder: str | Path, *, timeout_s: float = 600.0) -> "Ranks":
        """The ranks of a training that `msrun` started, after `mindspore.communication.init()`.

        Raises:
            InputError: communication isn't up.
        """
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
        return cls(rank, size, Path(folder), "".join(f"{int(part):05x}" for part in drawn), timeout_s)

    def measure(
        self, validation: Validation, backend: Backend, step: int, items: Sequence[TextItem] | None = None
    ) -> Measurement:
        """As `Validation.measure`, with equal results in every rank, to the bit, however many there are.

        Args:
            validation: the same in all ranks.
            backend: holds the same weights in all ranks.
            step: number of the evaluation; not used twice.
            items: other texts than the validation's.

        Raises:
            InputError: the ranks hold different weights.
            MissingRankError: a rank's result didn't come in time.
        """
        if self.size == 1:
            return validation.measure(backend, items)
        parts, digest = count(), backend.model_digest  # hashed once, not for each perturbation

        def score(texts: Sequence[TextItem], _: Collection[str], take: OnRecords) -> None:
            place = self.folder / self.run / f"step-{step}-part-{next(parts)}"
            take(self._score(validation, backend, digest, texts, place))

        return validation.measured_by(score, items)

    def first_of(self, resample: ResampleSetup | None, step: int) -> ResampleSetup | None:
        """Rank 0's weights of the texts: each rank sees other training batches, and all must weigh alike.

        Raises:
            MissingRankError: rank 0 gave none in time.
        """
        if self.size == 1 or resample is None:
            return resample
        file = self.folder / self.run / f"weights-{step}.json"
        if self.rank == 0:
            file.parent.mkdir(parents=True, exist_ok=True)
            write_json_atomic(file, asdict(resample))
            return resample
        self._wait({0: file})
        return ResampleSetup(**json.loads(file.read_bytes()))

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

    def _wait(self, files: Mapping[int, Path]) -> None:
        """Until the file of each rank is there; files appear whole."""
        until = time.monotonic() + self.timeout_s
        while waiting := [rank for rank, file in files.items() if not file.is_file()]:
            if time.monotonic() > until:
                names, place = ", ".join(map(str, waiting)), files[waiting[0]].parent
                raise MissingRankError(
                    f"rank {names} of {self.size} gave no result within {self.timeout_s:g} s ({place}); it died or hangs: "
                    "look at its log, and start all ranks again"
                )
            time.sleep(_POLL_S)

    def _check_weights(self, place: Path) -> None:
        """Wait for every rank's result, and see that all were made with the same weights."""
        marks = {rank: self._mark(place, rank) for rank in range(self.size)}
        self._wait(marks)
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
