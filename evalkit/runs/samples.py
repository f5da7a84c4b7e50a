"""Samples as columns: what a million of them is asked for comes as arrays, and a record is made only where it is looked at.

`Samples` is a sequence of records with columns beside it. `ListedSamples` has the records (a run in memory), its columns are
read from them; `evalkit.runs.stored_samples` has the columns (a Parquet file), its records are made of them.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

import numpy as np
import numpy.typing as npt

from evalkit.runs.records import ClassSums, SampleRecord

if TYPE_CHECKING:
    import pyarrow as pa

BoolArray = npt.NDArray[np.bool_]
RowArray = npt.NDArray[np.intp]

CountField = Literal["tokens", "scored", "unconditioned", "bytes", "bytes_scored", "words"]
TextField = Literal["sample_id", "kind", "digest", "cluster", "status", "part"]
SumGroup = Literal["classes", "views"]

SUM_FIELDS = tuple(item.name for item in fields(ClassSums))

_FoundT = TypeVar("_FoundT")


@dataclass(frozen=True, eq=False)
class SumColumns:
    """The sums over one class (or view) of the samples that have it.

    Attributes:
        rows: places of these samples, rising.
        sums: by field of `ClassSums`, shape (rows,); NaN where it isn't known.
        lacking: fields that some sample doesn't know.
    """

    rows: RowArray
    sums: Mapping[str, npt.NDArray[np.float64]]
    lacking: frozenset[str]

    def chosen(self, rows: RowArray) -> "SumColumns":
        """Of some samples only; `rows` are their places, rising."""
        at = np.searchsorted(self.rows, rows)
        at[at == len(self.rows)] = 0
        held = self.rows[at] == rows if len(self.rows) else np.zeros(len(rows), np.bool_)
        own = at[held]
        sums = {name: column[own] for name, column in self.sums.items()}
        lacking = frozenset(name for name in self.lacking if np.isnan(sums[name]).any())
        return SumColumns(np.flatnonzero(held), sums, lacking)


@dataclass(frozen=True, eq=False)
class WorstTokens:
    """The most surprising tokens of all samples, one after the other; all of shape (tokens,).

    Attributes:
        rows: place of the sample. starts: first byte. logprobs: in nats.
    """

    rows: RowArray
    starts: npt.NDArray[np.float64]
    logprobs: npt.NDArray[np.float64]


class Samples(Sequence[SampleRecord], ABC):
    """Records in a fixed order with their columns, each made when first asked for; none may be changed."""

    def __init__(self) -> None:
        self._known: dict[Hashable, Any] = {}

    @staticmethod
    def of(records: Sequence[SampleRecord]) -> "Samples":
        """The records with columns."""
        return records if isinstance(records, Samples) else ListedSamples(records)

    @overload
    def __getitem__(self, index: int) -> SampleRecord: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[SampleRecord]: ...
    def __getitem__(self, index: int | slice) -> SampleRecord | Sequence[SampleRecord]:
        if isinstance(index, slice):
            return self.chosen(np.arange(len(self), dtype=np.intp)[index])
        return self._record(range(len(self))[index])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Samples | tuple):
            return NotImplemented
        return len(self) == len(other) and all(
            ours == theirs for ours, theirs in zip(self, other, strict=True)
        )

    __hash__ = None  # type: ignore[assignment]

    def listed(self) -> tuple[SampleRecord, ...]:
        """The records themselves, made once and kept: for what looks at each of them anyway."""
        return self._once("listed", lambda: tuple(self))

    def chosen(self, rows: RowArray) -> "Samples":
        """Some of the samples.

        Args:
            rows: their places, rising.
        """
        return self if len(rows) == len(self) else self._chosen(rows)

    def where(self, mask: BoolArray) -> "Samples":
        """The samples at which `mask`, shape (samples,), is true."""
        return self.chosen(np.flatnonzero(mask))

    def counts(self, field: CountField) -> npt.NDArray[np.int64]:
        """A count of each sample, shape (samples,)."""
        return self._once(("number", field), lambda: self._number(field, np.int64))

    @property
    def nll(self) -> npt.NDArray[np.float64]:
        """The surprise of each sample, shape (samples,)."""
        return self._once(("number", "nll"), lambda: self._number("nll", np.float64))

    def text(self, field: TextField) -> "pa.Array":
        """A text of each sample, null where it has none."""
        return self._once(("text", field), lambda: self._text(field))

    def strings(self, field: TextField) -> list[str]:
        """The same as Python's own strings."""
        found: list[str] = self.text(field).to_numpy(zero_copy_only=False).tolist()
        return found

    def equals(self, field: TextField, value: str) -> BoolArray:
        """Where a text is `value`, shape (samples,)."""
        import pyarrow.compute as pc

        found: BoolArray = (
            pc.fill_null(pc.equal(self.text(field), value), False)
            .to_numpy(zero_copy_only=False)
            .astype(np.bool_)
        )
        return found

    def named(self, names: Iterable[str]) -> BoolArray:
        """Which samples have one of these ids, shape (samples,)."""
        import pyarrow.compute as pc

        held: BoolArray = (
            pc.is_in(self.text("sample_id"), _arrow_texts(sorted(names)))
            .to_numpy(zero_copy_only=False)
            .astype(np.bool_)
        )
        return held

    def of_kind(self, kind: str) -> "Samples":
        """The samples of one kind."""
        found: Samples = self._once(("kind", kind), lambda: self.where(self.equals("kind", kind)))
        return found

    def statuses(self) -> Counter[tuple[str, str]]:
        """How many samples there are of each kind and status."""
        import pyarrow as pa

        table = pa.table({"kind": self.text("kind"), "status": self.text("status")})
        rows = table.group_by(["kind", "status"]).aggregate([([], "count_all")]).to_pylist()
        return Counter({(row["kind"], row["status"]): row["count_all"] for row in rows})

    def repeated(self) -> tuple[str, str] | None:
        """Kind and id of a sample that is recorded twice, or None."""
        return self._once("repeated", self._repeated)

    def _repeated(self) -> tuple[str, str] | None:
        import pyarrow.compute as pc

        for kind in pc.unique(self.text("kind")).to_pylist():
            names = self.of_kind(kind).text("sample_id")
            if pc.count_distinct(names).as_py() != len(names):
                return kind, Counter(self.of_kind(kind).strings("sample_id")).most_common(1)[0][0]
        return None

    def tagged(self, tag: str) -> BoolArray:
        """Which samples have a tag, shape (samples,)."""
        codes, sets = self._tags
        return np.array([tag in tags for tags in sets], dtype=np.bool_)[codes]

    @property
    def tags(self) -> frozenset[str]:
        """Every tag that a sample has."""
        codes, sets = self._tags
        return frozenset(tag for code in np.unique(codes).tolist() for tag in sets[code])

    def sums(self, group: SumGroup) -> Mapping[str, SumColumns]:
        """The sums by class or by view, of those that hold a token."""
        return self._once(("sums", group), lambda: self._sums(group))

    @property
    def worst(self) -> WorstTokens:
        """The most surprising tokens."""
        return self._once("worst", self._worst)

    @abstractmethod
    def outcomes(self) -> Iterator[tuple[int, dict[str, str]]]:
        """Place and `top1_outcomes` of each sample that has any."""

    @abstractmethod
    def has_text(self) -> BoolArray:
        """Which samples have their source text, shape (samples,)."""

    @abstractmethod
    def from_cache(self) -> int:
        """How many samples were read from the result cache."""

    @property
    def _tags(self) -> tuple[RowArray, list[frozenset[str]]]:
        return self._once("tags", self._tag_sets)

    def _once(self, key: Hashable, make: Callable[[], _FoundT]) -> _FoundT:
        if key not in self._known:
            self._known[key] = make()
        found: _FoundT = self._known[key]
        return found

    @abstractmethod
    def _record(self, index: int) -> SampleRecord: ...

    @abstractmethod
    def _chosen(self, rows: RowArray) -> "Samples": ...

    @abstractmethod
    def _number(self, field: str, kind: type[Any]) -> Any: ...

    @abstractmethod
    def _text(self, field: TextField) -> "pa.Array": ...

    @abstractmethod
    def _sums(self, group: SumGroup) -> Mapping[str, SumColumns]: ...

    @abstractmethod
    def _worst(self) -> WorstTokens: ...

    @abstractmethod
    def _tag_sets(self) -> tuple[RowArray, list[frozenset[str]]]:
        """Sets of tags, and for each sample the place of its own among them."""


class ListedSamples(Samples):
    """Samples whose records are there."""

    def __init__(self, records: Sequence[SampleRecord]) -> None:
        super().__init__()
        self._records = tuple(records)

    def __len__(self) -> int:
        return len(self._records)

    def __iter__(self) -> Iterator[SampleRecord]:
        return iter(self._records)

    def outcomes(self) -> Iterator[tuple[int, dict[str, str]]]:
        """See `Samples.outcomes`."""
        return ((row, one.top1_outcomes) for row, one in enumerate(self._records) if one.top1_outcomes)

    def from_cache(self) -> int:
        """See `Samples.from_cache`."""
        return sum(record.from_cache for record in self._records)

    def strings(self, field: TextField) -> list[str]:
        """See `Samples.strings`."""
        return list(map(attrgetter(field), self._records))

    def has_text(self) -> BoolArray:
        """See `Samples.has_text`."""
        return np.array([record.text is not None for record in self._records], dtype=np.bool_)

    def _record(self, index: int) -> SampleRecord:
        return self._records[index]

    def _chosen(self, rows: RowArray) -> Samples:
        return ListedSamples([self._records[row] for row in rows.tolist()])

    def _number(self, field: str, kind: type[Any]) -> Any:
        return np.array(list(map(attrgetter(field), self._records)), dtype=kind)

    def _text(self, field: TextField) -> "pa.Array":
        return _arrow_texts(list(map(attrgetter(field), self._records)))

    def _sums(self, group: SumGroup) -> Mapping[str, SumColumns]:
        found: dict[str, tuple[list[int], list[ClassSums]]] = {}
        for row, record in enumerate(self._records):
            for name, sums in getattr(record, group).items():
                rows, parts = found.setdefault(name, ([], []))
                rows.append(row)
                parts.append(sums)
        return {name: _columns(rows, parts) for name, (rows, parts) in found.items()}

    def _worst(self) -> WorstTokens:
        tokens = [
            (row, start, logprob)
            for row, record in enumerate(self._records)
            for start, _, logprob in record.worst
        ]
        table = np.array(tokens, dtype=np.float64).reshape(-1, 3)
        return WorstTokens(table[:, 0].astype(np.intp), table[:, 1], table[:, 2])

    def _tag_sets(self) -> tuple[RowArray, list[frozenset[str]]]:
        sets: dict[frozenset[str], int] = {}
        codes = [sets.setdefault(frozenset(record.tags), len(sets)) for record in self._records]
        return np.array(codes, dtype=np.intp), list(sets)


def _arrow_texts(values: Sequence[str | None]) -> "pa.Array":
    """Texts as Arrow's; those that aren't Unicode (half a surrogate pair) too, which can be compared but not read back."""
    import pyarrow as pa

    cells = [None if value is None else value.encode("utf-8", "surrogatepass") for value in values]
    return pa.array(cells, pa.binary()).view(pa.string())


def _columns(rows: list[int], parts: list[ClassSums]) -> SumColumns:
    columns = {name: list(map(attrgetter(name), parts)) for name in SUM_FIELDS}
    return SumColumns(
        np.array(rows, dtype=np.intp),
        {name: np.array(values, dtype=np.float64) for name, values in columns.items()},
        frozenset(name for name, values in columns.items() if None in values),
    )
