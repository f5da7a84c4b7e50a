"""Measuring one model: texts and decisions through its graph, dialogues through a sandbox; records to the journal."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from evalkit.console import Progress
from evalkit.errors import InputError
from evalkit.runs.evidence import Evidence
from evalkit.runs.evidence_io import write_evidence
from evalkit.runs.folder import RunFolder
from evalkit.runs.journal import Journal
from evalkit.runs.records import SampleRecord, TurnRecord
from evalkit.runs.setup import ModelSetup, RunSetup
from evalkit.runs.tokens_io import TokenWriter

if TYPE_CHECKING:
    from evalkit.replay.trial import ReplaySettings


def measure(
    setup: RunSetup,
    model: ModelSetup,
    folder: RunFolder,
    progress: Progress,
    *,
    sandbox_address: str | None,
    keep_tokens: bool,
) -> Evidence:
    """Measure one model and write its evidence folder.

    Args:
        setup: the run.
        model: which of its models.
        folder: the run folder; journals lie there while the work goes on.
        progress: shows the work.
        sandbox_address: of a running sandbox that `check_sandbox` accepted; None: one is started for this model.
        keep_tokens: write tokens.parquet too.

    Raises:
        IncompleteError: the sandbox died; the journals keep what was done.
    """
    samples = _score(setup, model, folder, progress, keep_tokens)
    turns = _replay(setup, model, folder, progress, sandbox_address)
    evidence = Evidence(samples=tuple(samples), turns=tuple(turns))
    write_evidence(folder, model.side, evidence)
    for journal in folder.evidence(model.side).glob("*.journal.jsonl"):
        journal.unlink()
    return evidence


def _score(
    setup: RunSetup, model: ModelSetup, folder: RunFolder, progress: Progress, keep_tokens: bool
) -> list[SampleRecord]:
    if not setup.texts and not setup.decisions:
        return []
    from evalkit.backends.mindir import MindirBackend
    from evalkit.scoring.decisions import score_decisions
    from evalkit.scoring.scorer import score_texts

    backend = MindirBackend(model.bundle)
    records: list[SampleRecord] = []
    task = progress.start(f"{model.side}: scoring", len(setup.texts) + len(setup.decisions))
    with (
        Journal(folder.evidence(model.side) / "samples.journal.jsonl") as journal,
        _token_writer(folder, model, keep_tokens) as tokens,
    ):

        def keep(batch: Sequence[SampleRecord]) -> None:
            journal.append(batch)
            records.extend(batch)

        def advance(done: int) -> None:
            progress.advance(task, done)

        if setup.texts:
            score_texts(
                setup.texts,
                model.bundle.tokenizer,
                backend,
                model.window,
                model.classifier,
                on_records=keep,
                on_tokens=None if tokens is None else tokens.write,
                progress=advance,
            )
        risk = setup.loaded.scenario.risk
        if risk is not None:
            score_decisions(
                setup.decisions,
                model.bundle.tokenizer,
                backend,
                risk,
                seed=setup.loaded.scenario.seed,
                on_records=keep,
                progress=advance,
            )
    return records


@contextmanager
def _token_writer(folder: RunFolder, model: ModelSetup, wanted: bool) -> Iterator[TokenWriter | None]:
    if not wanted:
        yield None
        return
    with TokenWriter(folder.tokens(model.side)) as writer:
        yield writer


def check_sandbox(setup: RunSetup, address: str) -> None:
    """Refuse a running sandbox that serves something else than the candidate, before anything is measured.

    Raises:
        InputError: another model or flow, limits that are too narrow, or nothing to replay.
        IncompleteError: no answer.
    """
    from evalkit.replay.client import SandboxClient
    from evalkit.replay.runner import check_server

    candidate, flow = setup.models[0], setup.loaded.flow
    with SandboxClient(address) as client:
        check_server(
            client.describe(),
            _replay_settings(setup),
            model_digest=candidate.bundle.model_digest,
            flow_digest=None if flow is None else flow.digest,
        )


def _replay_settings(setup: RunSetup) -> "ReplaySettings":
    from evalkit.replay.trial import ReplaySettings

    spec = setup.loaded.scenario.dialogues
    if spec is None:
        raise InputError("--sandbox: the scenario replays no dialogues; leave the option out")
    return ReplaySettings(
        seed=setup.loaded.scenario.seed,
        trials=spec.trials,
        variation=tuple(spec.variation),
        temperature=spec.temperature,
        max_new_tokens=spec.max_new_tokens,
    )


def _replay(
    setup: RunSetup, model: ModelSetup, folder: RunFolder, progress: Progress, sandbox_address: str | None
) -> list[TurnRecord]:
    loaded = setup.loaded
    if loaded.scenario.dialogues is None:
        return []
    from evalkit.replay.client import SandboxClient
    from evalkit.replay.runner import run_dialogues
    from evalkit.replay.server_process import sandbox_process

    settings = _replay_settings(setup)
    dialogues = [item.dialogue for item in loaded.dialogues]
    records: list[TurnRecord] = []
    task = progress.start(f"{model.side}: dialogues", len(dialogues) * settings.trials)

    def replay(address: str) -> None:
        with (
            SandboxClient(address) as client,
            Journal(folder.evidence(model.side) / "turns.journal.jsonl") as journal,
        ):

            def keep(trial: list[TurnRecord]) -> None:
                journal.append(trial)
                records.extend(trial)
                progress.advance(task)

            run_dialogues(dialogues, settings, client, keep)

    if sandbox_address is not None:
        replay(sandbox_address)
    else:
        with sandbox_process(model.bundle.path, None if loaded.flow is None else loaded.flow.path) as server:
            replay(server.address)
    return records
