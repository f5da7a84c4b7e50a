"""Replay of many dialogues side by side: every planned trial once, its records handed to one writer."""

import threading
import uuid
from collections import deque
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

from evalkit.errors import IncompleteError, InputError
from evalkit.replay.client import SandboxClient, ServerInfo
from evalkit.replay.prompt_check import PromptCheck
from evalkit.replay.trial import ReplaySettings, TrialResult, run_trial
from evalkit.runs.records import TurnRecord
from evalkit.scenario.dialogue import Dialogue

# So many trials in a row without an answer: the sandbox is dead, going on would only fill the run with holes.
_DEAD_AFTER = 5
# A text that the server refuses says nothing about its health.
_REFUSED_TEXT = "INVALID_ARGUMENT"


@dataclass(frozen=True, order=True)
class TrialId:
    """Names a unit of work."""

    dialogue_id: str
    trial: int


def check_server(
    info: ServerInfo, settings: ReplaySettings, *, model_digest: str, flow_digest: str | None
) -> None:
    """Refuse a sandbox that serves something else than planned.

    Args:
        info: what the server says about itself.
        settings: how dialogues will be replayed.
        model_digest: of the model under test; what is declared of a served model begins with `declared:`.
        flow_digest: of the scenario's flow; None where it has none.

    Raises:
        InputError: another model or flow, or limits that are too narrow.
    """
    if info.identity != model_digest:
        raise InputError(
            f"the sandbox serves model_digest {info.identity or 'unknown'}, "
            f"the run measures {model_digest}; serve the same model or leave --sandbox out"
        )
    if info.flow_digest != (flow_digest or ""):
        raise InputError(
            f"the sandbox runs flow_digest {info.flow_digest or 'none'}, "
            f"the scenario's is {flow_digest or 'none'}; serve it with the scenario's flow"
        )
    if info.max_turn_tokens and settings.max_new_tokens > info.max_turn_tokens:
        raise InputError(
            f"dialogues.max_new_tokens: {settings.max_new_tokens} is above the sandbox's limit of "
            f"{info.max_turn_tokens} tokens a turn; lower it"
        )
    if info.max_sessions and settings.concurrency > info.max_sessions:
        raise InputError(
            f"{settings.concurrency} dialogues side by side need as many sessions, the sandbox allows "
            f"{info.max_sessions}; lower the concurrency"
        )


def run_dialogues(
    dialogues: Sequence[Dialogue],
    settings: ReplaySettings,
    client: SandboxClient,
    on_trial: Callable[[list[TurnRecord]], None],
    *,
    done: Collection[TrialId] = (),
    prompts: PromptCheck | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Replay every trial of every dialogue.

    Args:
        dialogues: ids must differ.
        settings: how.
        client: of the sandbox; shared by the worker threads.
        on_trial: takes the records of one finished trial, in turn order; called from this thread only.
        done: trials that needn't run again.
        prompts: counts the prompts again, where the bundle that is served is at hand.
        progress: called with (finished, planned) trials after each trial.

    Raises:
        InputError: two dialogues of one id.
        IncompleteError: the sandbox stopped answering; finished trials were handed over.
    """
    by_id = {dialogue.id: dialogue for dialogue in dialogues}
    if len(by_id) != len(dialogues):
        raise InputError("two dialogues have the same id; give each its own")
    planned = [TrialId(key, trial) for key in sorted(by_id) for trial in range(settings.trials)]
    skipped = set(done)
    waiting = deque(unit for unit in planned if unit not in skipped)
    # A server that outlives this run keeps sessions: their ids must not meet those of another run.
    nonce = uuid.uuid4().hex[:12]
    stop = threading.Event()
    finished, faults = len(planned) - len(waiting), 0

    def work(unit: TrialId) -> TrialResult:
        return run_trial(by_id[unit.dialogue_id], unit.trial, settings, client, nonce, stop, prompts)

    with ThreadPoolExecutor(max_workers=settings.concurrency, thread_name_prefix="replay") as pool:
        running: set[Future[TrialResult]] = set()
        try:
            while waiting or running:
                while waiting and len(running) < settings.concurrency:
                    running.add(pool.submit(work, waiting.popleft()))
                ready, running = wait(running, return_when=FIRST_COMPLETED)
                for result in [future.result() for future in ready]:
                    on_trial(result.records)
                    finished += 1
                    if progress is not None:
                        progress(finished, len(planned))
                    faults = faults + 1 if result.lost_to not in (None, _REFUSED_TEXT) else 0
                    if faults >= _DEAD_AFTER:
                        raise IncompleteError(
                            f"{faults} dialogues in a row got no answer ({result.records[0].reason}); "
                            "what is done is kept, resume when the sandbox is well"
                        )
        finally:
            stop.set()
