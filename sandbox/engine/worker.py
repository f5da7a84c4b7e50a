"""The engine process: loads the model, then runs a loop of steps over the turns in flight.

It is started by the supervisor as `python -m sandbox.engine.worker` and speaks frames over stdin and stdout. The main
thread alone touches MindSpore; a second thread reads the pipe, so that a cancel is seen at the next token, and ends
the process when the server is gone, even if it was killed.
"""

import os
import queue
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from evalkit.bundle import load_bundle
from evalkit.errors import EvalkitError, ExitCode
from evalkit.tokenization import TextTokenizer
from sandbox.domain import FinishReason, Sampling
from sandbox.engine.kv_cache import KvBudgetError, KvCache, KvEntry
from sandbox.engine.pipe import ChildPipe, Message
from sandbox.engine.sampler import Sampler
from sandbox.engine.step_model import StepModel
from sandbox.engine.text_stream import TextStream


@dataclass
class ActiveTurn:
    """One turn in flight.

    Attributes:
        request: number that the supervisor gave it.
        entry: the session's cache.
        pending: tokens not yet computed: the rest of the prompt, later the token just chosen.
        reused: tokens of the prompt found in the cache.
        generated: tokens chosen so far.
        arrived_ns, prefill_ns, decode_ns: arrival, and the work done for this turn.
    """

    request: int
    entry: KvEntry
    pending: list[int]
    reused: int
    sampling: Sampling
    sampler: Sampler
    text: TextStream
    arrived_ns: int
    generated: int = 0
    prefill_ns: int = 0
    decode_ns: int = 0
    done: bool = field(default=False)


class EngineLoop:
    """Takes one step for each turn in flight, round and round; turns join and leave between steps."""

    def __init__(self, model: StepModel, tokenizer: TextTokenizer, cache: KvCache, pipe: ChildPipe) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._cache = cache
        self._pipe = pipe
        self._turns: dict[int, ActiveTurn] = {}

    def run(self, inbox: "queue.SimpleQueue[Message]") -> None:
        """Serve for ever; the reader thread ends the process."""
        while True:
            # With nothing to compute, wait for a message; otherwise only take what is there.
            while not self._turns or not inbox.empty():
                self.handle(inbox.get())
            for turn in list(self._turns.values()):
                while not inbox.empty():
                    self.handle(inbox.get())
                if not turn.done:
                    self.step(turn)

    def handle(self, message: Message) -> None:
        """Start or cancel a turn, or forget a session. Whatever is unknown or over is ignored."""
        match message["op"]:
            case "generate":
                self._start(message)
            case "cancel":
                turn = self._turns.get(message["request"])
                if turn is not None:
                    self._end(turn, FinishReason.CANCELLED)
            case "release":
                self._cache.drop(message["key"])

    def step(self, turn: ActiveTurn) -> None:
        """Compute the turn's pending tokens, choose the next one and send it."""
        started_ns = time.perf_counter_ns()
        entry = turn.entry
        past = entry.length
        logits, new = self._model.step(turn.pending, past, entry.past())
        entry.append(turn.pending, new)
        token = turn.sampler.choose(logits)
        turn.pending = [token]
        turn.generated += 1
        ended = token == self._tokenizer.end_token
        text, stopped = ("", False) if ended else turn.text.push(token)
        full = turn.generated >= turn.sampling.max_new_tokens
        if (ended or full) and not stopped:
            rest, stopped = turn.text.finish()
            text += rest
        elapsed_ns = time.perf_counter_ns() - started_ns
        if turn.generated == 1:
            turn.prefill_ns = elapsed_ns
        else:
            turn.decode_ns += elapsed_ns
        if stopped:
            self._end(turn, FinishReason.STOP_STRING, token, text)
        elif ended:
            self._end(turn, FinishReason.END, token, text)
        elif full:
            self._end(turn, FinishReason.LENGTH, token, text)
        else:
            self._pipe.write({"event": "token", "request": turn.request, "id": token, "text": text})

    def _start(self, message: Message) -> None:
        prompt: list[int] = message["prompt"]
        sampling = Sampling(**{**message["sampling"], "stop": tuple(message["sampling"]["stop"])})
        try:
            entry = self._cache.acquire(message["key"], len(prompt) + sampling.max_new_tokens)
        except KvBudgetError:
            self._pipe.write({"event": "rejected", "request": message["request"]})
            return
        reused = entry.keep_common_prefix(prompt)
        self._turns[message["request"]] = ActiveTurn(
            request=message["request"],
            entry=entry,
            pending=prompt[reused:],
            reused=reused,
            sampling=sampling,
            sampler=Sampler(sampling),
            text=TextStream(self._tokenizer.decode, sampling.stop),
            arrived_ns=time.perf_counter_ns(),
        )

    def _end(self, turn: ActiveTurn, reason: FinishReason, token: int | None = None, text: str = "") -> None:
        turn.done = True
        turn.entry.in_flight = False
        del self._turns[turn.request]
        work_ns = turn.prefill_ns + turn.decode_ns
        self._pipe.write(
            {
                "event": "end",
                "request": turn.request,
                "id": token,
                "text": text,
                "reason": reason.value,
                "reused": turn.reused,
                "queue_ns": max(0, time.perf_counter_ns() - turn.arrived_ns - work_ns),
                "prefill_ns": turn.prefill_ns,
                "decode_ns": turn.decode_ns,
            }
        )


def main() -> None:
    """Load what the first message names, say so, and serve."""
    pipe = ChildPipe.take_over_stdio()
    start = pipe.read()
    if start is None:
        return
    try:
        bundle = load_bundle(Path(start["bundle"]))
        model = StepModel(bundle)
    except EvalkitError as error:
        pipe.write({"event": "failed", "message": str(error), "exit_code": int(error.exit_code)})
        raise SystemExit(int(ExitCode.INPUT)) from None
    # The first call compiles; it must not be a user's.
    model.step([0], 0, KvEntry(model.shape, 1).past())
    loop = EngineLoop(model, bundle.tokenizer, KvCache(model.shape, start["kv_bytes"]), pipe)
    inbox: queue.SimpleQueue[Message] = queue.SimpleQueue()
    threading.Thread(target=_read_until_the_server_is_gone, args=(pipe, inbox), daemon=True).start()
    pipe.write({"event": "ready"})
    loop.run(inbox)


def _read_until_the_server_is_gone(pipe: ChildPipe, inbox: "queue.SimpleQueue[Message]") -> None:
    while (message := pipe.read()) is not None:
        inbox.put(message)
    # The main thread may be deep inside the model: no clean-up could wait for it, and there is nothing to save.
    os._exit(0)


if __name__ == "__main__":
    main()
