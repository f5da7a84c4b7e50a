"""The guided plan: its file, `version: 1`, and the checklist that it keeps."""

import re
import shlex
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, Literal

import orjson
from pydantic import Field, ValidationError, field_validator, model_validator

from evalkit.canonical import sha256_file
from evalkit.errors import ExitCode, InputError
from evalkit.files import write_json_atomic
from evalkit.yaml_source import YamlSource
from trainer.configuration.strict import Listed, Strict
from trainer.regular_file import require_regular

STEPS = ("baseline", "memory", "bottleneck", "strategy", "evaluation", "stress", "tradeoff")
QUESTIONS = {
    "baseline": "does it train, and twice the same? (trainer baseline)",
    "memory": "will it fit? (trainer memory)",
    "bottleneck": "what does it wait for? (trainer timeline)",
    "strategy": "which ways to spread it deserve a test? (trainer screen)",
    "evaluation": "is the score measured the same way everywhere? (trainer doctor evaluation, evalkit run)",
    "stress": "does it come back from a fault? (trainer stress)",
    "tradeoff": "which setting is worth it? (trainer pareto)",
}
State = Literal["done", "failed", "inconclusive", "stopped", "skipped", "open", "stale"]
_OWN_END_S, _TIDY_S = 2.0, 30.0
_PLACE = re.compile(r"\{\w*\}")
_RECORD, _SAID = "plan.json", "said.txt"
_STATES: dict[int, State] = {
    ExitCode.OK: "done",
    ExitCode.FAIL: "failed",
    ExitCode.INCONCLUSIVE: "inconclusive",
}


class StepPlan(Strict):
    """One step: `run`, a command of trainer or evalkit with {out} for its folder, or `skip` with a reason.

    `inputs`: files whose change makes the step stale, from the plan's folder.
    """

    run: str | None = None
    inputs: Listed[str] = ()
    skip: str | None = Field(default=None, min_length=3)

    @field_validator("run")
    @classmethod
    def _ours(cls, run: str | None) -> str | None:
        if run is not None and run.split(maxsplit=1)[:1] not in (["trainer"], ["evalkit"]):
            raise ValueError("a command of trainer or evalkit is needed")
        if run is not None:
            words = shlex.split(run)  # raises where a quote isn't closed
            if "--help" in words or "--version" in words:
                raise ValueError("--help and --version measure nothing; leave them out")
            if wrong := next((w for w in words if _PLACE.search(w.replace("{out}", ""))), None):
                raise ValueError(f"{wrong}: only {{out}} stands for something")
        return run

    @model_validator(mode="after")
    def _one(self) -> "StepPlan":
        if (self.run is None) == (self.skip is None):
            raise ValueError("give exactly one of run and skip")
        return self


class GuidePlan(Strict):
    """The whole file; a step that isn't named is open."""

    version: Literal[1]
    name: str
    baseline: StepPlan | None = None
    memory: StepPlan | None = None
    bottleneck: StepPlan | None = None
    strategy: StepPlan | None = None
    evaluation: StepPlan | None = None
    stress: StepPlan | None = None
    tradeoff: StepPlan | None = None


class StepRecord(Strict):
    """What a step left: its command, exit code, and the SHA-256 of what it read and wrote."""

    command: str
    exit_code: int
    at: str
    elapsed_s: float
    folder: str
    inputs: dict[str, str]
    evidence: dict[str, str]


class Record(Strict):
    """plan.json."""

    version: Literal[1]
    name: str
    steps: dict[str, StepRecord]


class Checklist:
    """A plan and its folder."""

    def __init__(self, path: Path, out: Path) -> None:
        """Read both.

        Raises:
            InputError: a broken plan, or a folder that holds another plan's record or something else.
        """
        self.path, self.out = path, out
        require_regular(path)
        self.plan = YamlSource(path).parse(GuidePlan)
        self.record = Record(version=1, name=self.plan.name, steps={})
        file = out / _RECORD
        if file.is_file():
            try:
                self.record = Record.model_validate(orjson.loads(file.read_bytes()))
            except (orjson.JSONDecodeError, ValidationError) as error:
                raise InputError(
                    f"{file}: isn't a checklist ({str(error).splitlines()[0]}); restore it"
                ) from None
            if self.record.name != self.plan.name:
                raise InputError(f"{file}: belongs to {self.record.name!r}, not {self.plan.name!r}")
        elif out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise InputError(f"{out}: exists and holds no {_RECORD}; choose another folder")

    def state(self, step: str) -> tuple[State, str]:
        """A step's state and why: evidence that was changed, or is older than its inputs, doesn't count."""
        planned: StepPlan | None = getattr(self.plan, step)
        if planned is None:
            return "open", f"not in {self.path.name}; give it a run, or a skip with the reason"
        if planned.skip is not None:
            return "skipped", planned.skip
        kept = self.record.steps.get(step)
        if kept is None:
            return "open", "not run yet"
        if kept.command != planned.run:
            return "stale", "the command was changed"
        for name in sorted({*kept.inputs, *planned.inputs}):
            if self._digest(name) != kept.inputs.get(name):
                return "stale", f"{name} was changed"
        for name, digest in kept.evidence.items():
            file = self.out / name
            if not file.is_file():
                return "stale", f"evidence {name} is gone"
            if sha256_file(file) != digest:
                return "stale", f"evidence {name} was changed"
        if not kept.evidence:
            return "stopped", "left no evidence"
        return _STATES.get(
            kept.exit_code, "stopped"
        ), f"exit {kept.exit_code} in {kept.elapsed_s:.0f} s, {kept.at}{self._reason(kept)}"

    def _reason(self, kept: StepRecord) -> str:
        """Where a step that isn't done says why, and its error."""
        if kept.exit_code == ExitCode.OK:
            return ""
        file = self.out / kept.folder / _SAID
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines() if file.is_file() else []
        error = next((line for line in reversed(lines) if line.startswith("error: ")), "")
        return f"; see {file}" + (f": {error.removeprefix('error: ')[:200]}" if error else "")

    def run(self, step: str) -> None:
        """Run a step into a new folder and record it.

        Raises:
            InputError: nothing to run, or an input is missing.
        """
        planned: StepPlan | None = getattr(self.plan, step)
        if planned is None or planned.run is None:
            raise InputError(f"{self.path}: {step} has no run; add it")
        inputs: dict[str, str] = {}
        for name in planned.inputs:
            digest = self._digest(name)
            if digest is None:
                raise InputError(f"{self.path}:{step}.inputs: {name} is missing")
            inputs[name] = digest
        base = self.out / step
        base.mkdir(parents=True, exist_ok=True)
        if not (
            self.out / _RECORD
        ).exists():  # so that a folder whose first step is broken off is known as ours
            write_json_atomic(self.out / _RECORD, self.record.model_dump())
        number = 1 + max((int(p.name[4:]) for p in base.glob("run-*") if p.name[4:].isdigit()), default=0)
        folder = base / f"run-{number}"
        folder.mkdir()
        program, *arguments = shlex.split(planned.run)
        target = str((folder / "out").resolve())
        command = [sys.executable, "-m", program, *(part.replace("{out}", target) for part in arguments)]
        started = time.monotonic()
        with (folder / _SAID).open("wb") as said:
            code = _run(command, self.path.parent, said)
        # What a run leaves beside its reports (checkpoints, databases) is evidence as well, but not a link out of it.
        files = sorted(file for file in folder.rglob("*") if file.is_file() and not file.is_symlink())
        kept = StepRecord(
            command=planned.run,
            exit_code=code,
            at=datetime.now(UTC).isoformat(timespec="seconds"),
            elapsed_s=time.monotonic() - started,
            folder=str(folder.relative_to(self.out)),
            inputs=inputs,
            evidence={str(file.relative_to(self.out)): sha256_file(file) for file in files},
        )
        self.record = Record(version=1, name=self.plan.name, steps={**self.record.steps, step: kept})
        write_json_atomic(self.out / _RECORD, self.record.model_dump())

    def to_json(self) -> dict[str, Any]:
        """State and reason of each step."""
        rows = {}
        for step in STEPS:
            state, why = self.state(step)
            kept = self.record.steps.get(step)
            folder = None if kept is None else str(self.out / kept.folder)
            rows[step] = {"state": state, "why": why, "folder": folder}
        return {"version": 1, "name": self.plan.name, "steps": rows}

    def _digest(self, name: str) -> str | None:
        file = self.path.parent / name
        return sha256_file(file) if file.is_file() else None


def _run(command: list[str], folder: Path, said: BinaryIO) -> int:
    """Exit code. An interruption is passed on, and the command has time to end its own processes."""
    child = subprocess.Popen(command, cwd=folder, stdout=said, stderr=subprocess.STDOUT)
    try:
        return child.wait()
    finally:
        if child.poll() is None:
            # Ctrl-C reached it as well; a second signal would break off its tidying up.
            if not _ended(child, _OWN_END_S):
                child.terminate()
            if not _ended(child, _TIDY_S):
                child.kill()
                child.wait()


def _ended(child: "subprocess.Popen[bytes]", timeout_s: float) -> bool:
    try:
        child.wait(timeout_s)
    except subprocess.TimeoutExpired:
        return False
    return True
