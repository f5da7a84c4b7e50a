"""Scoring with a served model behind an OpenAI-compatible endpoint that gives prompt log-probabilities.

Prompts are token ids, one prompt for each window, so that windows and token classes are those of offline scoring. The
endpoint gives log-probabilities alone: entropy, margin and rank are None. Which of both dialects it speaks is found out
by a first prompt, which also shows whether it reads the declared tokens and adds none of its own.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from evalkit.backends.base import IntArray, RowStats
from evalkit.backends.endpoint_client import EndpointClient, Failed, Json, ReplyError
from evalkit.backends.endpoint_reply import echoed_logprobs, mapped_logprobs, prompt_entries, read_echo
from evalkit.errors import InputError
from evalkit.tokenization import TextTokenizer

# Plain English, so that every server shows its tokens as the same letters.
PROBE = "The cat sat on the mat, and the dog looked at it."

# One token is generated, since not every server takes 0. Its temperature is 1, so that a server which gives the
# log-probabilities after sampling's transformations gives those of the model.
_ONE_TOKEN: Json = {"max_tokens": 1, "temperature": 1.0, "top_p": 1.0}
ECHO: Json = {**_ONE_TOKEN, "echo": True, "logprobs": 1}


@dataclass(frozen=True)
class _Dialect:
    """One way to ask for prompt log-probabilities.

    Attributes:
        body: of the request, without prompt and model.
        logprobs: of the tokens after the first, from a reply and the ids that were sent.
        strings: what the server writes for each token, None where it isn't known.
    """

    name: str
    body: Json
    logprobs: Callable[[Json, Sequence[int]], list[float]]
    strings: Callable[[Json, Sequence[int]], list[str | None]]


class EndpointBackend:
    """A served model that is asked with token ids."""

    name = "endpoint"
    precision = "declared"

    def __init__(
        self, client: EndpointClient, tokenizer: TextTokenizer, *, model_digest: str, max_length: int
    ) -> None:
        """Find out how to ask, with one or two short prompts.

        Args:
            client: of the endpoint.
            tokenizer: of the served model, as the operator declares it.
            model_digest: as declared.
            max_length: input positions to use; a prompt has one token more, and one is generated.

        Raises:
            InputError: the endpoint gives no prompt log-probabilities for token ids, or reads other tokens than declared.
            IncompleteError: it doesn't answer.
        """
        self.model_digest, self.max_length, self.vocab_size = model_digest, max_length, tokenizer.vocab_size
        # So many windows of full length in one call that the slots for requests stay filled.
        self.batch_rows = 2 * client.concurrency
        self._client, self._tokenizer = client, tokenizer
        self._check_length()
        self._dialect = self._find_dialect()

    def score(
        self, token_ids: IntArray, targets: IntArray, positions: IntArray, segments: IntArray
    ) -> RowStats:
        """See `Backend.score`; a segment that the endpoint fails to score stands in `failed`."""
        logprob = np.full(token_ids.shape, np.nan, dtype=np.float32)
        places, bodies, reads = [], [], []
        for row in range(len(token_ids)):
            for segment in range(1, int(segments[row].max(initial=0)) + 1):
                columns = np.flatnonzero(segments[row] == segment)
                prompt = [int(token) for token in (*token_ids[row, columns], targets[row, columns[-1]])]
                places.append((row, segment, columns))
                bodies.append({**self._dialect.body, "prompt": prompt})
                reads.append(partial(_logprobs, self._dialect, prompt))
        failed: dict[tuple[int, int], str] = {}
        for (row, segment, columns), answer in zip(places, self._client.ask_all(bodies, reads), strict=True):
            if isinstance(answer, Failed):
                failed[row, segment] = answer.reason
            else:
                logprob[row, columns] = answer
        return RowStats(logprob, failed=failed)

    def _check_length(self) -> None:
        limit = served_length(self._client)
        needed = self.max_length + 2
        if limit is not None and limit < needed:
            raise InputError(
                f"{self._client.url}: serves {self._client.model!r} with max_model_len {limit}; max_length "
                f"{self.max_length} needs {needed} (the last target, and one generated token): give at most {limit - 2}"
            )

    def _find_dialect(self) -> _Dialect:
        prefix = [] if self._tokenizer.prefix_token is None else [self._tokenizer.prefix_token]
        prompt = [*prefix, *self._tokenizer.encode_ids(PROBE, special=False)]
        problems = []
        for dialect in (_MAPPED, _ECHO):
            try:
                logprobs, strings = self._client.probe(
                    {**dialect.body, "prompt": prompt}, partial(_probed, dialect, prompt)
                )
            except ReplyError as error:
                problems.append(f"by {dialect.name}: {error}")
                continue
            check_not_all_zero(self._client.url, logprobs)
            self._check_vocabulary(prompt, strings, len(prefix))
            return dialect
        raise InputError(
            f"{self._client.url}: no prompt log-probabilities of token ids ({'; '.join(problems)}); serve the model with a "
            "server that gives them, or leave tokenizer and max_length out, so that texts are sent as text"
        )

    def _check_vocabulary(self, prompt: Sequence[int], strings: Sequence[str | None], first: int) -> None:
        """Refuse a server that reads the ids as other text than the declared tokenizer does.

        Tokens before `first` aren't compared: servers show special tokens in many ways.
        """
        for index in range(first, len(prompt)):
            string, ours = strings[index], self._tokenizer.decode([prompt[index]], special=True)
            if string is not None and _plain(string) != _plain(ours):
                raise InputError(
                    f"{self._client.url}: the endpoint reads token {index} of {PROBE!r}, id {prompt[index]}, as {string!r}; "
                    f"the declared tokenizer means {ours!r}: it has another vocabulary, or puts a token in front (a second "
                    "BOS?); give the tokenizer.json of the served model"
                )


def served_length(client: EndpointClient) -> int | None:
    """`max_model_len` of the served model, from servers that tell it."""
    listed = (client.get_json("models") or {}).get("data")
    for entry in listed if isinstance(listed, list) else []:
        if isinstance(entry, dict) and entry.get("id") == client.model:
            length = entry.get("max_model_len")
            return length if isinstance(length, int) and not isinstance(length, bool) else None
    return None


def check_not_all_zero(url: str, logprobs: Sequence[float]) -> None:
    """Refuse a server that fills in zeros for what it didn't compute.

    Raises:
        InputError: every log-probability of the probe is 0.
    """
    if logprobs and not any(logprobs):
        raise InputError(
            f"{url}: every prompt log-probability is 0: the endpoint doesn't compute them; serve the model with a "
            "server that does"
        )


def _logprobs(dialect: _Dialect, sent: Sequence[int], reply: Json) -> list[float]:
    return dialect.logprobs(reply, sent)


def _probed(dialect: _Dialect, sent: Sequence[int], reply: Json) -> tuple[list[float], list[str | None]]:
    return dialect.logprobs(reply, sent), dialect.strings(reply, sent)


def _mapped_strings(reply: Json, sent: Sequence[int]) -> list[str | None]:
    entries = [
        entry.get(str(token)) if isinstance(entry, dict) else None
        for entry, token in zip(prompt_entries(reply), sent, strict=True)
    ]
    strings = [entry.get("decoded_token") if isinstance(entry, dict) else None for entry in entries]
    return [string if isinstance(string, str) else None for string in strings]


def _echoed_strings(reply: Json, sent: Sequence[int]) -> list[str | None]:
    echoed = read_echo(reply)
    if echoed.ids is not None or echoed.strings is None:
        if echoed.ids is None and echoed.prompt_tokens is None:
            raise ReplyError(
                "the answer shows neither its tokens nor their number, so nothing says what was read"
            )
        return [None] * len(sent)
    return list(echoed.strings)


def _plain(string: str) -> str:
    """A token's string without its marks for a space."""
    return string.replace("\u2581", " ").replace("\u0120", " ").strip()


_MAPPED = _Dialect("prompt_logprobs", {**_ONE_TOKEN, "prompt_logprobs": 1}, mapped_logprobs, _mapped_strings)
_ECHO = _Dialect("echo", ECHO, echoed_logprobs, _echoed_strings)
