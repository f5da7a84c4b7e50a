"""`trainer timeline`: read, correct, measure, judge, and write the four files."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evalkit.files import folder_atomic, write_json_atomic
from trainer.findings import Finding, report
from trainer.timeline.assemble import Rank, assemble
from trainer.timeline.cube import Cube, build_cube, write_parquet
from trainer.timeline.facts import Subject, collect
from trainer.timeline.facts.parts import table_parts
from trainer.timeline.facts.world import World, shown_ranks, world_of
from trainer.timeline.heatmap import render_heatmap
from trainer.timeline.model import Recording
from trainer.timeline.perfetto import write_trace
from trainer.timeline.ranks import RankMap
from trainer.timeline.readers import read_folder
from trainer.timeline.skew import Skew, estimate
from trainer.timeline.verdicts import Verdicts, judge

_PARTIAL = "the file keeps one occurrence of each operator, so that idle time can't be told"


@dataclass(frozen=True)
class Analysis:
    """Everything that the tool knows about a folder of traces."""

    recording: Recording
    ranks: list[Rank]
    skew: Skew
    world: World
    subjects: list[Subject]
    verdicts: Verdicts

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What the rules found, in their order."""
        return self.verdicts.findings

    def fact(self, name: str) -> float | None:
        """A fact of the run; None where it isn't known."""
        return self.subjects[0].value(name)

    def to_json(self) -> dict[str, Any]:
        """The report that `--json` prints and findings.json holds."""
        return report(
            self.findings,
            missing_ranks=self.world.missing,
            quarantine=self.recording.quarantine.rows(),
            skew=self.skew.to_json(),
            undecided=[item.to_json() for item in self.verdicts.undecided],
            ranks_present=list(self.world.present),
            missing_ranks_because=list(self.world.reasons),
            notes=self.notes(),
            facts={
                name: {"value": fact.value, "unit": fact.unit, "where": fact.where}
                for name, fact in self.subjects[0].facts.items()
            },
            files_read=self.recording.read,
        )

    def notes(self) -> list[str]:
        """What a reader must know before the numbers: assumed ranks, several recordings, ranks that show nothing."""
        reasons: dict[str, list[int]] = {}
        for rank in self.ranks:
            if rank.why_unknown:
                reasons.setdefault(rank.why_unknown, []).append(rank.rank)
            if not rank.complete:
                reasons.setdefault(_PARTIAL, []).append(rank.rank)
        return [
            *self.recording.notes,
            *(
                f"rank{'s' if len(of) > 1 else ''} {shown_ranks(of)}: {reason}"
                for reason, of in reasons.items()
            ),
        ]


def analyse(path: Path | str, ranks: RankMap | None = None) -> Analysis:
    """Analyse a profiler's folder (or one file).

    Raises:
        InputError: the path doesn't exist or holds nothing that can be read.
    """
    recording = read_folder(Path(path), ranks or {})
    assembled = assemble(recording)
    names = recording.names.texts
    skew = estimate(assembled, names, recording.stages)
    world = world_of(assembled, recording, names)
    subjects = collect(assembled, recording, skew, world)
    return Analysis(recording, assembled, skew, world, subjects, judge(subjects))


def write_analysis(analysis: Analysis, out: Path | str, title: str) -> Cube:
    """Write cube.parquet, heatmap.html, trace.json and findings.json into a new folder.

    Raises:
        InputError: `out` exists already.
    """
    cube = build_cube(analysis.ranks, analysis.skew, analysis.world, table_parts(analysis.recording))
    with folder_atomic(Path(out)) as staging:
        write_parquet(cube, staging / "cube.parquet")
        about = write_trace(
            staging / "trace.json",
            analysis.ranks,
            analysis.skew,
            cube,
            analysis.recording.names.texts,
            analysis.recording.memory,
        )
        findings = analysis.to_json() | {"trace": about}
        write_json_atomic(staging / "findings.json", findings)
        html = render_heatmap(cube, findings, title)
        (staging / "heatmap.html").write_text(html, encoding="utf-8")
    return cube
