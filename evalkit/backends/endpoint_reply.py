"""What a completions reply says about the tokens of its prompt, checked: wrong counts, other tokens, no numbers.

Two dialects give prompt log-probabilities. `prompt_logprobs` (vLLM): a mapping from token id to log-probability at each
position. `echo` (OpenAI's completions, as lm-eval's local-completions uses it): the prompt comes back as part of the
text, its tokens as strings, `token_logprobs` beside them. In both the first token has none, and servers differ in
whether the one generated token is listed behind the prompt's.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from evalkit.backends.endpoint_client import Json, ReplyError

# What vLLM writes for minus infinity, which JSON can't carry.
_CLIPPED = -9999.0
# float32 rounding may leave a certain token a hair above 0.
_LARGEST = 1e-3

_ID = re.compile(r"token_id:(\d+)")


@dataclass(frozen=True)
class EchoedTokens:
    """The entries of an echo reply.

    Attributes:
        logprobs: as they came, None where there is none; the prompt's, perhaps the generated token's behind them.
        strings: of the tokens, or None.
        prompt_tokens: how many the server counts in the prompt, or None where it doesn't say.
    """

    logprobs: list[Any]
    strings: list[str] | None
    prompt_tokens: int | None

    @property
    def ids(self) -> list[int] | None:
        """Token ids, from servers that write them as `token_id:N` (return_tokens_as_token_ids)."""
        found = [_ID.fullmatch(string) for string in self.strings or ()]
        return [int(match[1]) for match in found if match] if found and all(found) else None


def read_echo(reply: Json) -> EchoedTokens:
    """The entries of an echo reply.

    Raises:
        ReplyError: it has none.
    """
    choice = _choice(reply)
    listed = choice.get("logprobs")
    logprobs = listed.get("token_logprobs") if isinstance(listed, dict) else None
    if not isinstance(listed, dict) or not isinstance(logprobs, list):
        raise ReplyError(
            "the answer has no logprobs.token_logprobs: the endpoint ignores `logprobs`, or forbids them"
        )
    strings = listed.get("tokens")
    if not isinstance(strings, list) or not all(isinstance(item, str) for item in strings):
        strings = None
    if strings is not None and len(strings) != len(logprobs):
        raise ReplyError(f"the answer has {len(strings)} tokens and {len(logprobs)} log-probabilities")
    usage = reply.get("usage")
    counted = usage.get("prompt_tokens") if isinstance(usage, dict) else None
    prompt_tokens = counted if isinstance(counted, int) and not isinstance(counted, bool) else None
    if len(logprobs) <= 1 and (prompt_tokens is None or prompt_tokens > 1):
        raise ReplyError(
            "the answer has log-probabilities of the generated token alone: the endpoint ignores `echo`"
        )
    return EchoedTokens(logprobs, strings, prompt_tokens)


def echoed_logprobs(reply: Json, sent: Sequence[int]) -> list[float]:
    """Log-probabilities of the tokens after the first, from an echo reply.

    Args:
        reply: of the endpoint.
        sent: token ids of the prompt.

    Raises:
        ReplyError: it isn't about exactly these tokens, or a value isn't a log-probability.
    """
    echoed = read_echo(reply)
    if echoed.prompt_tokens is not None and echoed.prompt_tokens != len(sent):
        raise _wrong_count(echoed.prompt_tokens, len(sent))
    if len(echoed.logprobs) not in (len(sent), len(sent) + 1):
        # One more than the prompt is the generated token.
        extra = int(len(echoed.logprobs) > len(sent))
        raise _wrong_count(len(echoed.logprobs) - extra, len(sent))
    if echoed.ids is not None and echoed.ids[: len(sent)] != list(sent):
        differing = next(index for index, token in enumerate(sent) if echoed.ids[index] != token)
        raise ReplyError(
            f"the endpoint read token {differing} as id {echoed.ids[differing]}, id {sent[differing]} was sent"
        )
    return [checked(value, index) for index, value in enumerate(echoed.logprobs[1 : len(sent)], start=1)]


def mapped_logprobs(reply: Json, sent: Sequence[int]) -> list[float]:
    """The same from a reply with `prompt_logprobs`."""
    entries = prompt_entries(reply)
    if len(entries) != len(sent):
        raise _wrong_count(len(entries), len(sent))
    found = []
    for index, token in enumerate(sent[1:], start=1):
        entry = entries[index]
        of_token = entry.get(str(token)) if isinstance(entry, dict) else None
        if of_token is None:
            raise ReplyError(
                f"the endpoint gives no log-probability for token {index} (id {token}): it read another token there"
            )
        found.append(checked(of_token.get("logprob") if isinstance(of_token, dict) else of_token, index))
    return found


def prompt_entries(reply: Json) -> list[Any]:
    """The list `prompt_logprobs` of a reply.

    Raises:
        ReplyError: it has none.
    """
    entries = _choice(reply).get("prompt_logprobs")
    if not isinstance(entries, list):
        raise ReplyError("the answer has no prompt_logprobs")
    return entries


def checked(value: Any, index: int) -> float:
    """`value` if it is the log-probability of a token.

    Raises:
        ReplyError: it isn't; the token's index is named.
    """
    if value is None:
        raise ReplyError(f"the endpoint gives no log-probability for token {index}")
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ReplyError(f"the endpoint's log-probability of token {index} isn't a number ({value!r:.40})")
    number = float(value)
    if not math.isfinite(number) or number <= _CLIPPED:
        raise ReplyError(
            f"the endpoint's log-probability of token {index} is not a finite number ({number:g})"
        )
    if number > _LARGEST:
        raise ReplyError(
            f"the endpoint's log-probability of token {index} is {number:g}, above 0: it gives something else (raw "
            "logits?)"
        )
    return number


def _choice(reply: Json) -> Json:
    choices = reply.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    if not isinstance(choice, dict):
        raise ReplyError("the answer has no choices[0]: it isn't one of a completions endpoint")
    return choice


def _wrong_count(read: int, sent: int) -> ReplyError:
    if read < sent:
        why = "it cuts prompts or tokenizes again"
    else:
        why = "it adds tokens of its own (a second BOS?) or tokenizes again"
    return ReplyError(f"the endpoint read {read} tokens where {sent} were sent: {why}")
