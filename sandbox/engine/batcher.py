"""Continuous batching: turns join and leave between steps.

A round computes at most one chunk of a prompt and one token of every turn that is being answered, so that a long
prompt delays others by a chunk at a time. What a turn's tokens are doesn't depend on the order of all this:
`step_model.py` says why.
"""

import queue
import time
from collections import deque
from dataclasses import dataclass

import numpy as np

from evalkit.tokenization import TextTokenizer
from sandbox.domain import FinishReason
from sandbox.engine import messages
from sandbox.engine.kv_cache import BLOCK, Float32, KvRows
from sandbox.engine.pacing import Outbox
from sandbox.engine.pipe import Message
from sandbox.engine.prefix_cache import PrefixCache
from sandbox.engine.row_table import RowTable
from sandbox.engine.step_model import StepModel
from sandbox.engine.turns import ActiveTurn, Phase

# A chunk of fewer tokens isn't worth its call, unless the prompt is so short.
_LEAST_CHUNK = 16
# Settling begins so long after a turn's end: server and caller need the processor first to finish the turn, and the
# caller may have its next one ready.
_SETTLE_AFTER_S = 0.005


@dataclass(frozen=True)
class BatchLimits:
    """Bounds of one engine.

    Attributes:
        max_rows: turns computed at once.
        max_waiting: turns that may wait for a row; more are rejected.
        max_length: longest turn, prompt and reply.
    """

    max_rows: int
    max_waiting: int
    max_length: int


class Batcher:
    """The engine's loop over all turns."""

    def __init__(
        self,
        model: StepModel,
        tokenizer: TextTokenizer,
        cache: PrefixCache,
        rows: KvRows,
        pipe: Outbox,
        limits: BatchLimits,
    ) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._cache = cache
        self._pipe = pipe
        self._limits = limits
        self._table = RowTable(rows, limits.max_rows, limits.max_length)
        self._waiting: deque[ActiveTurn] = deque()
        self._turns: dict[int, ActiveTurn] = {}  # waiting or in a row, and not yet answered
        self._outgoing: list[Message] = []
        self._load: Message | None = None
        self._chunks = 0  # of prompts, so far
        self._settle_from_s = 0.0  # by time.monotonic

    @property
    def used_bytes(self) -> int:
        """Cache memory in use."""
        return self._cache.used_bytes + self._table.used_bytes

    def run(self, inbox: "queue.SimpleQueue[Message]") -> None:
        """Serve for ever; the reader thread ends the process."""
        while True:
            try:
                message = inbox.get(timeout=self._patience_s())
            except queue.Empty:
                self.round()
                continue
            self.handle(message)
            if not self.busy:
                self._flush()

    def _patience_s(self) -> float | None:
        """How long to wait for a message before the next round; None for ever, where there is nothing to compute."""
        if self._turns:
            return 0.0
        return max(0.0, self._settle_from_s - time.monotonic()) if self.busy else None

    @property
    def busy(self) -> bool:
        """Whether there is something to compute."""
        return bool(self._waiting or len(self._table))

    def handle(self, message: Message) -> None:
        """Start or cancel a turn, forget a session, or answer a ping. Whatever is unknown or over is ignored."""
        match message["op"]:
            case "generate":
                self._take(message)
            case "cancel":
                turn = self._turns.get(message["request"])
                if turn is not None:
                    self._end(turn, FinishReason.CANCELLED)
            case "release":
                for turn in self._table.of(Phase.SETTLING):
                    if turn.key == message["key"]:
                        self._leave(turn)
                self._cache.drop(message["key"])
            case "ping":  # answered from here, where the model is called: the answer says that the loop moves
                self._outgoing.append({"event": "pong"})

    def round(self) -> None:
        """Let turns join, compute one chunk and one step, and send what came of it."""
        self._admit()
        answering = self._table.of(Phase.DECODE)
        self._prefill_some(answering)
        if answering:
            self._decode(answering)
        elif len(self._table) and all(turn.phase is Phase.SETTLING for turn in self._table):
            self._settle(next(iter(self._table)))
        self._flush()

    def _take(self, message: Message) -> None:
        turn = messages.read_turn(message, self._tokenizer.decode)
        if len(self._waiting) >= self._limits.max_waiting:
            self._admit()  # of a burst, those who find a row don't wait
        if not turn.ids or not self._table.fits(turn.most_tokens):
            reason = (
                f"{turn.prompt_tokens} tokens and {turn.sampling.max_new_tokens} for the reply aren't between 1 and"
                f" {self._limits.max_length}"
            )
            self._outgoing.append(messages.rejected(turn, reason))
        elif len(self._waiting) >= self._limits.max_waiting:
            reason = f"{len(self._waiting)} turns wait for the model; try again later"
            self._outgoing.append(messages.rejected(turn, reason))
        else:
            self._turns[turn.request] = turn
            self._waiting.append(turn)

    def _admit(self) -> None:
        """Give rows to those who wait, in order; settling turns make room."""
        while self._waiting:
            turn = self._waiting[0]
            # What its session's last turn has settled so far is kept for it.
            for other in self._table.of(Phase.SETTLING):
                if other.key == turn.key:
                    self._leave(other)
            while not self._table.join(turn):
                settling = self._table.of(Phase.SETTLING)
                if not settling:
                    return
                self._leave(settling[0])
            self._waiting.popleft()
            # The logits after the last token are wanted, so that one at least is computed.
            lease = self._cache.lease(
                turn.tenant, turn.key, turn.shared_tokens, turn.ids, turn.prompt_tokens - 1
            )
            turn.lease, turn.phase = lease, Phase.PREFILL
            self._cache.load(lease, self._table.rows, self._table.row(turn))
            turn.computed = turn.reused = lease.tokens // self._model.alignment * self._model.alignment

    def _next_prompt(self, starting: list[ActiveTurn]) -> ActiveTurn:
        """The shortest, so that it needn't wait for long ones, and every other time the oldest, so that none starves."""
        self._chunks += 1
        if self._chunks % 2:
            return min(starting, key=lambda turn: turn.prompt_left)
        return min(starting, key=lambda turn: turn.arrived_ns)

    def _prefill_some(self, answering: list[ActiveTurn]) -> None:
        """Compute prompts up to a number of tokens, which is what they may delay those who are being answered.

        It is larger while more turns wait for their first token than are being answered.
        """
        starting = self._table.of(Phase.PREFILL)
        model = self._model
        budget = model.idle_chunk_tokens if len(starting) > len(answering) else model.chunk_tokens
        while starting and budget >= min(_LEAST_CHUNK, model.chunk_tokens):
            turn = self._next_prompt(starting)
            budget -= self._prefill(turn, budget)
            if turn.phase is not Phase.PREFILL:
                starting.remove(turn)

    def _prefill(self, turn: ActiveTurn, most: int) -> int:
        """Compute a chunk of a prompt and, after its last one, the first token; returns the chunk's length."""
        started_ns = time.perf_counter_ns()
        before = turn.computed
        logits = self._compute_chunk(turn, turn.prompt_tokens, most)
        if turn.prompt_left:
            turn.prefill_ns += time.perf_counter_ns() - started_ns
            return turn.computed - before
        turn.phase = Phase.DECODE
        token = self._choose([turn], logits[None])[0]
        if token is not None:
            self._keep(turn)
        turn.prefill_ns += time.perf_counter_ns() - started_ns
        self._emit(turn, token)
        return turn.prompt_tokens - before

    def _compute_chunk(self, turn: ActiveTurn, end: int, most: int) -> Float32:
        size = most if self._model.alignment == 1 else self._model.chunk_tokens
        start = turn.computed
        chunk = turn.ids[start : min(start + size, end)]
        logits = self._model.prefill(self._table.rows, self._table.row(turn), chunk, start)
        turn.computed += len(chunk)
        return logits

    def _decode(self, answering: list[ActiveTurn]) -> None:
        started_ns = time.perf_counter_ns()
        tokens, lengths = np.zeros(len(self._table), np.int32), np.zeros(len(self._table), np.int32)
        wanted = []
        stepping = set(answering)
        for row, turn in enumerate(self._table):
            lengths[row] = turn.computed
            if turn in stepping:
                wanted.append(row)
                tokens[row] = turn.ids[-1]
        logits = self._model.decode(self._table.rows, wanted, tokens, lengths)
        for turn in answering:
            turn.computed += 1
        chosen = self._choose(answering, logits)
        share_ns = (time.perf_counter_ns() - started_ns) // len(answering)
        for turn, token in zip(answering, chosen, strict=True):
            turn.decode_ns += share_ns
            self._emit(turn, token)

    def _choose(self, turns: list[ActiveTurn], logits: Float32) -> list[int | None]:
        """The next token of each turn; None where the logits aren't finite numbers."""
        best = logits.argmax(1)
        # argmax and max carry NaN through.
        finite = np.isfinite(logits[np.arange(len(turns)), best])
        return [
            None
            if not fine
            else int(token)
            if turn.sampler.greedy
            else turn.sampler.choose(row, turn.generated)
            for turn, row, token, fine in zip(turns, logits, best, finite, strict=True)
        ]

    def _emit(self, turn: ActiveTurn, token: int | None) -> None:
        """Add a token to the reply and send it."""
        if token is None:
            reason = "the model's logits aren't finite numbers; its weights or its graph are broken"
            self._outgoing.append(messages.broken(turn, reason))
            # Whoever sits there next must not meet NaN, not even behind a weight of zero.
            self._table.rows.clear(self._table.row(turn))
            self._leave(turn)
            return
        turn.ids.append(token)
        ended = token == self._tokenizer.end_token
        text, stopped = ("", False) if ended else turn.text.push(token)
        full = turn.generated >= turn.sampling.max_new_tokens
        if (ended or full) and not stopped:
            rest, stopped = turn.text.finish()
            text += rest
        if stopped:
            self._end(turn, FinishReason.STOP_STRING, token, text)
        elif ended:
            self._end(turn, FinishReason.END, token, text)
        elif full:
            self._end(turn, FinishReason.LENGTH, token, text)
        else:
            self._outgoing.append(messages.token_chosen(turn, token, text))

    def _end(self, turn: ActiveTurn, reason: FinishReason, token: int | None = None, text: str = "") -> None:
        self._outgoing.append(messages.ended(turn, reason, token, text))
        if reason is FinishReason.CANCELLED:
            self._leave(turn)
        else:
            self._begin_settling(turn)

    def _begin_settling(self, turn: ActiveTurn) -> None:
        del self._turns[turn.request]
        turn.phase = Phase.SETTLING
        self._settle_from_s = time.monotonic() + _SETTLE_AFTER_S
        # Short of the row's end: a chunk may need a place behind its last token (onnx_model.py).
        turn.settle_end = (len(turn.ids) - 1) // BLOCK * BLOCK
        start = min(turn.prompt_tokens, turn.settle_end)
        turn.computed = start // self._model.alignment * self._model.alignment
        if turn.lease is None or turn.settle_end <= turn.lease.tokens:
            self._leave(turn)

    def _settle(self, turn: ActiveTurn) -> None:
        self._compute_chunk(turn, turn.settle_end, self._model.chunk_tokens)
        if turn.computed >= turn.settle_end:
            self._leave(turn)

    def _keep(self, turn: ActiveTurn) -> None:
        assert turn.lease is not None, "a turn in a row has a lease"
        self._cache.keep(turn.lease, turn.ids, turn.computed, self._table.rows, self._table.row(turn))

    def _leave(self, turn: ActiveTurn) -> None:
        """Free what a turn holds, wherever it is; what it computed as any other turn would is kept."""
        self._turns.pop(turn.request, None)
        if turn.phase in (Phase.PREFILL, Phase.SETTLING):
            self._keep(turn)
        if turn.phase is Phase.WAITING:
            self._waiting.remove(turn)
        elif turn.phase is not Phase.OVER:
            self._table.leave(turn)
        if turn.lease is not None:
            self._cache.give_back(turn.lease)
        turn.phase = Phase.OVER

    def _flush(self) -> None:
        load: Message = {
            "event": "load",
            "running": len(self._table) - len(self._table.of(Phase.SETTLING)),
            "waiting": len(self._waiting),
            "kv_used": self.used_bytes,
        }
        if load != self._load:
            self._load = load
            self._outgoing.append(load)
        if self._outgoing:
            self._pipe.write(*self._outgoing)
            self._outgoing.clear()
