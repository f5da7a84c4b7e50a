"""The part of a sample's record that is known before any model is asked."""

from collections.abc import Sequence
from typing import Literal, Protocol

from evalkit.runs.records import SampleRecord, SampleStatus
from evalkit.scoring.jsonl import is_unicode


class Sample(Protocol):
    """A text or a decision of the user's data."""

    @property
    def sample_id(self) -> str: ...

    @property
    def cluster(self) -> str: ...

    @property
    def digest(self) -> str: ...


def sample_head(
    kind: Literal["text", "risk"],
    sample: Sample,
    text: str,
    status: SampleStatus,
    reason: str | None,
    *,
    tokens: int = 0,
    tags: Sequence[str] = (),
) -> SampleRecord:
    """A record with the sample's identity, its source text and its status.

    Args:
        kind: text or risk.
        sample: whose record it is.
        text: that is scored.
        status, reason: what became of it.
        tokens: of the text.
        tags: the user's.
    """
    return SampleRecord(
        sample_id=sample.sample_id,
        kind=kind,
        digest=sample.digest,
        cluster=sample.cluster,
        status=status,
        reason=reason,
        tokens=tokens,
        bytes=len(text.encode("utf-8", "surrogatepass")),
        tags=list(tags),
        # A text that isn't Unicode can't be written down again.
        text=text if is_unicode(text) else None,
    )
