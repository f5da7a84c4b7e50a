"""Where things lie in a run folder."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Side = Literal["candidate", "baseline"]


@dataclass(frozen=True)
class RunFolder:
    """Paths of one run. Nothing else lies in the folder."""

    path: Path

    @property
    def plan(self) -> Path:
        """The resolved scenario, every digest, seeds, versions."""
        return self.path / "plan.json"

    @property
    def results(self) -> Path:
        """Results of the candidate."""
        return self.path / "results.json"

    @property
    def baseline_results(self) -> Path:
        """Results of the baseline, where the run has one."""
        return self.path / "results.baseline.json"

    @property
    def comparison(self) -> Path:
        """Paired differences, where the run has a baseline."""
        return self.path / "comparison.json"

    @property
    def seal(self) -> Path:
        """Digest of everything above."""
        return self.path / "seal.json"

    @property
    def verdict(self) -> Path:
        """The latest verdict."""
        return self.path / "verdict.json"

    @property
    def verdicts(self) -> Path:
        """One verdict a policy digest."""
        return self.path / "verdicts"

    @property
    def reports(self) -> Path:
        """The projections."""
        return self.path / "reports"

    def evidence(self, side: Side) -> Path:
        """Folder of one model's evidence."""
        return self.path / "evidence" / side

    def samples(self, side: Side) -> Path:
        """Texts and decisions."""
        return self.evidence(side) / "samples.parquet"

    def turns(self, side: Side) -> Path:
        """Turns of dialogues."""
        return self.evidence(side) / "turns.parquet"

    def tokens(self, side: Side) -> Path:
        """One row a scored token, on request."""
        return self.evidence(side) / "tokens.parquet"

    def logits(self, side: Side) -> Path:
        """Raw logits of each scored token, on request."""
        return self.evidence(side) / "logits.parquet"
