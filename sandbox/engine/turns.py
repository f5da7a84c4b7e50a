"""One turn in the engine: what it was asked, how far it is, what its time went into."""

import enum
import time
from dataclasses import dataclass, field

from sandbox.domain import Sampling
from sandbox.engine.prefix_cache import Lease
from sandbox.engine.sampler import Sampler
from sandbox.engine.text_stream import TextStream


class Phase(enum.Enum):
    """WAITING (for a row) → PREFILL → DECODE → SETTLING → OVER.

    A reply's keys and values come from single steps, whose bits differ from those of a prefill. A turn that is
    answered may stay in its row while nobody needs it, to compute them again as the next turn would; that is SETTLING,
    and nobody waits for it.
    """

    WAITING = "waiting"
    PREFILL = "prefill"
    DECODE = "decode"
    SETTLING = "settling"
    OVER = "over"


@dataclass(eq=False)
class ActiveTurn:
    """One turn.

    Attributes:
        request: number that the supervisor gave it.
        key, tenant, shared_tokens: as in `GenerationRequest`.
        prompt_tokens: length of the prompt.
        ids: the prompt, and the tokens chosen so far.
        computed: how many of `ids` have keys and values in the row.
        lease: what it holds of the prefix cache; None while it waits.
        reused: tokens of the prompt found in the cache.
        prefill_ns: work of the chunks of its prompt.
        decode_ns: its share of the steps it took part in: a step's time divided by the number of turns in it.
        settle_end: in SETTLING, where `computed` shall come.
    """

    request: int
    key: int
    tenant: str
    shared_tokens: int
    prompt_tokens: int
    ids: list[int]
    sampling: Sampling
    sampler: Sampler
    text: TextStream
    arrived_ns: int = field(default_factory=time.perf_counter_ns)
    phase: Phase = Phase.WAITING
    lease: Lease | None = None
    computed: int = 0
    reused: int = 0
    prefill_ns: int = 0
    decode_ns: int = 0
    settle_end: int = 0

    @property
    def generated(self) -> int:
        """Tokens chosen so far."""
        return len(self.ids) - self.prompt_tokens

    @property
    def most_tokens(self) -> int:
        """Tokens that its row must hold."""
        return self.prompt_tokens + self.sampling.max_new_tokens

    @property
    def prompt_left(self) -> int:
        """Tokens of the prompt still to compute."""
        return self.prompt_tokens - self.computed
