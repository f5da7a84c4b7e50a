"""Measuring one model: texts and decisions through its graph, dialogues through a sandbox; records to the journal.

Measuring always begins with what the journals hold: a run that was interrupted goes on where it stopped, and a new one
finds nothing.
"""

from collections import defaultdict
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from evalkit.backends.models import ServedModel, open_model
from evalkit.bundle import Bundle
from evalkit.cache.backend import cached_backend
from evalkit.console import Progress, say
from evalkit.errors import InputError
from evalkit.replay.access import Access
from evalkit.runs.completeness import check_whole
from evalkit.runs.evidence import Evidence
from evalkit.runs.evidence_io import in_order, read_evidence, write_evidence
from evalkit.runs.folder import RunFolder
from evalkit.runs.journal import Journal, JournalContent, reopen_journals
from evalkit.runs.logits_io import keep_raw_logits
from evalkit.runs.perturbed import OnRecords, ScoreItems, score_perturbed
from evalkit.runs.records import SampleRecord, TurnRecord, WindowRecord
from evalkit.runs.served import score_whole_texts
from evalkit.runs.setup import ModelSetup, RunSetup
from evalkit.runs.tokens_io import write_tokens

if TYPE_CHECKING:
    from evalkit.backends.base import Backend
    from evalkit.replay.runner import TrialId
    from evalkit.replay.trial import ReplaySettings
    from evalkit.scoring.text_records import TokenRows
    from evalkit.scoring.texts import TextItem


def measure(
    setup: RunSetup,
    model: ModelSetup,
    folder: RunFolder,
    progress: Progress,
    *,
    sandbox_address: str | None,
    sandbox_access: Access,
    keep_tokens: bool,
    keep_logits: bool,
    cache_run_id: str | None,
) -> Evidence:
    """Measure what isn't measured yet of one model and write its evidence folder.

    Args:
        setup: the run.
        model: which of its models.
        folder: the run folder; journals lie there while the work goes on.
        progress: shows the work.
        sandbox_address: of a running sandbox that `check_sandbox` accepted; None: one is started for this model.
        sandbox_access: TLS and token for it.
        keep_tokens, keep_logits: write tokens.parquet, logits.parquet too.
        cache_run_id: name of this run in the result cache; None: the cache is neither read nor written.

    Raises:
        InputError: the sandbox serves something else than planned, or a journal or evidence file is damaged.
        IncompleteError: the sandbox died; the journals keep what was done.
    """
    journals = _Journals.of(folder, model)
    # Both files are written at the very end and appear whole, so both together say that the model is done.
    if folder.samples(model.side).is_file() and folder.turns(model.side).is_file():
        evidence = read_evidence(folder, model.side)
        check_whole(setup, evidence, folder.evidence(model.side))
    else:
        done = reopen_journals(journals.paths)
        if keep_tokens:
            _forget_texts_without_tokens(done)
        _score(setup, model, done, progress, journals, keep_tokens, cache_run_id)
        _replay(setup, model, done, progress, sandbox_address, sandbox_access, journals.turns)
        evidence = in_order(done.samples.values(), done.turns.values())
        check_whole(setup, evidence, folder.evidence(model.side))
        if keep_tokens:
            write_tokens(folder.tokens(model.side), journals.tokens, model.classifier.names)
        if keep_logits:
            keep_raw_logits(setup, model, folder, evidence, progress)
        write_evidence(folder, model.side, evidence)
    for path in journals.paths:
        path.unlink(missing_ok=True)
    return evidence


@dataclass(frozen=True)
class _Journals:
    samples: Path
    turns: Path
    tokens: Path

    @classmethod
    def of(cls, folder: RunFolder, model: ModelSetup) -> "_Journals":
        names = ("samples", "turns", "tokens")
        return cls(*(folder.evidence(model.side) / f"{name}.journal.jsonl" for name in names))

    @property
    def paths(self) -> tuple[Path, Path, Path]:
        return self.samples, self.turns, self.tokens


def _forget_texts_without_tokens(done: JournalContent) -> None:
    """Let texts be scored again whose token rows were lost with the tail of their journal."""
    for key, record in list(done.samples.items()):
        if record.kind == "text" and record.scored and record.sample_id not in done.tokens:
            del done.samples[key]


def _score(
    setup: RunSetup,
    model: ModelSetup,
    done: JournalContent,
    progress: Progress,
    journals: _Journals,
    keep_tokens: bool,
    cache_run_id: str | None,
) -> None:
    from evalkit.scoring.decisions import score_decisions
    from evalkit.scoring.scorer import DoneTexts, score_texts

    planned = len(setup.texts) * (1 + len(setup.perturbed)) + len(setup.decisions)
    kinds = ("text", "risk", "perturbed")
    ids = {kind: frozenset(key for found, key in done.samples if found == kind) for kind in kinds}
    if planned == sum(map(len, ids.values())):
        return
    task = progress.start(f"{model.side}: scoring", planned)
    progress.advance(task, len(done.samples))
    rows: list[TokenRows] = []
    with ExitStack() as stack:
        journal = stack.enter_context(Journal(journals.samples))
        token_journal = stack.enter_context(Journal(journals.tokens)) if keep_tokens else None

        def keep(batch: Sequence[SampleRecord]) -> None:
            # Token rows first: a text whose record is on disk has them.
            if token_journal is not None:
                token_journal.append(rows)
                rows.clear()
            journal.append(batch)
            done.samples.update({(record.kind, record.sample_id): record for record in batch})

        def keep_windows(batch: Sequence[WindowRecord]) -> None:
            journal.append(batch)

        def advance(steps: int) -> None:
            progress.advance(task, steps)

        def keep_perturbed(score: ScoreItems) -> None:
            clean = {key: record for (kind, key), record in done.samples.items() if kind == "text"}

            def take(batch: Sequence[SampleRecord]) -> None:
                keep(batch)
                advance(len(batch))

            for texts in setup.perturbed:
                score_perturbed(texts, clean, score, take, ids["perturbed"])

        risk = setup.loaded.scenario.risk
        tokenizer = model.model.tokenizer
        if tokenizer is None or model.window is None:
            score_whole_texts(
                setup,
                model,
                ids,
                keep,
                on_tokens=rows.append if keep_tokens else None,
                progress=advance,
                on_texts=keep_perturbed,
            )
            return
        backend = stack.enter_context(_open_backend(setup, model, cache_run_id))
        if setup.texts:
            score_texts(
                setup.texts,
                tokenizer,
                backend,
                model.window,
                model.classifier,
                on_records=keep,
                on_tokens=rows.append if keep_tokens else None,
                on_windows=keep_windows,
                progress=advance,
                done=DoneTexts(ids["text"], done.windows),
            )

        def score_changed(items: "Sequence[TextItem]", finished: Collection[str], take: OnRecords) -> None:
            assert tokenizer is not None and model.window is not None
            score_texts(
                items,
                tokenizer,
                backend,
                model.window,
                model.classifier,
                on_records=take,
                # Without windows of an earlier attempt: those of a long text could be of another perturbation.
                done=DoneTexts(frozenset(finished)),
            )

        keep_perturbed(score_changed)
        if risk is not None:
            score_decisions(
                setup.decisions,
                tokenizer,
                backend,
                risk,
                seed=setup.loaded.scenario.seed,
                on_records=keep,
                progress=advance,
                done=ids["risk"],
            )


def _open_backend(
    setup: RunSetup, model: ModelSetup, cache_run_id: str | None
) -> "AbstractContextManager[Backend]":
    measured = model.model
    # What somebody declares a model to be says nothing certain about its answers: those are asked anew each time.
    if cache_run_id is None or not isinstance(measured, Bundle):
        return nullcontext(open_model(setup.backend, measured))
    return cached_backend(setup.backend, measured, cache_run_id, lambda line: say(f"{model.side}: {line}"))


def check_sandbox(setup: RunSetup, address: str, access: Access = Access()) -> None:  # noqa: B008
    """Refuse a running sandbox that serves something else than the candidate, before anything is measured.

    Raises:
        InputError: no HOST:PORT, another model or flow, limits that are too narrow, or nothing to replay.
        IncompleteError: no answer.
    """
    from evalkit.replay.client import SandboxClient
    from evalkit.replay.runner import check_server

    host, colon, port = address.rpartition(":")
    if not (host and colon and port.isdigit() and int(port) < 1 << 16):
        raise InputError(f"--sandbox {address}: HOST:PORT is needed, as `sandbox serve` prints it")
    candidate, flow = setup.models[0], setup.loaded.flow
    with SandboxClient(address, access) as client:
        check_server(
            client.describe(),
            _replay_settings(setup),
            model_digest=candidate.model.model_digest,
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
        concurrency=spec.concurrency,
        single_turn_probes=spec.single_turn_probes,
    )


def _replay(
    setup: RunSetup,
    model: ModelSetup,
    done: JournalContent,
    progress: Progress,
    sandbox_address: str | None,
    sandbox_access: Access,
    turns: Path,
) -> None:
    loaded = setup.loaded
    if loaded.scenario.dialogues is None:
        return
    from evalkit.replay.client import SandboxClient
    from evalkit.replay.prompt_check import PromptCheck
    from evalkit.replay.runner import run_dialogues
    from evalkit.replay.server_process import sandbox_process

    settings = _replay_settings(setup)
    prompts = PromptCheck(model.model.tokenizer) if isinstance(model.model, Bundle) else None
    dialogues = [item.dialogue for item in loaded.dialogues]
    finished = _finished_trials(done)
    if len(finished) == len(dialogues) * settings.trials:
        return
    task = progress.start(f"{model.side}: dialogues", len(dialogues) * settings.trials)
    progress.advance(task, len(finished))

    def replay(address: str, access: Access) -> None:
        with SandboxClient(address, access) as client, Journal(turns) as journal:

            def keep(trial: list[TurnRecord]) -> None:
                journal.append(trial)
                done.turns.update({(turn.dialogue_id, turn.trial, turn.turn_index): turn for turn in trial})
                progress.advance(task)

            run_dialogues(dialogues, settings, client, keep, done=finished, prompts=prompts)

    if sandbox_address is not None:
        # Again, for a resumed run comes here without the check before a new one, and only if dialogues are missing.
        check_sandbox(setup, sandbox_address, sandbox_access)
        replay(sandbox_address, sandbox_access)
    else:
        assert isinstance(model.model, Bundle | ServedModel)  # `prepare` refuses the others
        served = model.model.path if isinstance(model.model, Bundle) else model.model.ref
        with sandbox_process(served, None if loaded.flow is None else loaded.flow.path) as server:
            replay(server.address, Access())


def _finished_trials(done: JournalContent) -> "set[TrialId]":
    """Trials with a record of every turn; one that the machinery spoilt is played again."""
    from evalkit.replay.runner import TrialId

    trials: defaultdict[TrialId, list[TurnRecord]] = defaultdict(list)
    for turn in done.turns.values():
        trials[TrialId(turn.dialogue_id, turn.trial)].append(turn)
    return {
        trial
        for trial, turns in trials.items()
        if len(turns) == turns[0].dialogue_turns
        and all(turn.status != "infrastructure_fault" for turn in turns)
    }
