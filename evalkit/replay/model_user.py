"""A served model in the user's place, asked through an OpenAI-compatible endpoint."""

import os
from collections.abc import Sequence
from typing import Any

from evalkit.errors import InputError
from evalkit.replay.users import UserError
from evalkit.scenario.dialogue import Dialogue
from evalkit.scenario.expectations import Reply
from evalkit.scenario.user_schema import ModelUser

# An empty text would end the turn before it begins: asked for once more, then the user is to blame.
_ATTEMPTS = 2


class ModelDrivenUser:
    """Plays the persona: the first turn is said as written, each other one in the model's words.

    The number of turns is the dialogue's, so that no text of the model can end it, and user and assistant speak by turns.
    """

    def __init__(self, dialogue: Dialogue, spec: ModelUser, texts: Sequence[str], seed: int) -> None:
        """Prepare; nothing is asked yet.

        Args:
            dialogue: as played.
            spec: which model, and how.
            texts: what each turn is after.
            seed: of the trial.
        """
        self._dialogue = dialogue
        self._spec = spec
        self._texts = texts
        self._seed = seed
        self._said: list[str] = []

    def say(self, index: int, replies: Sequence[Reply]) -> str | None:
        """See `SimulatedUser`.

        Raises:
            UserError: the endpoint failed, or the model said nothing twice.
        """
        text = self._texts[0] if index == 0 else self._ask(index, replies)
        self._said.append(text)
        return text

    def _ask(self, index: int, replies: Sequence[Reply]) -> str:
        for attempt in range(_ATTEMPTS):
            text = self._complete(self._messages(index, replies), attempt)
            if text.strip():
                return text.strip()
        raise UserError("the model that plays the user said nothing, twice")

    def _messages(self, index: int, replies: Sequence[Reply]) -> list[dict[str, str]]:
        facts = "; ".join(f"{name}: {self._dialogue.fact(name, index)}" for name in self._dialogue.facts)
        role = (
            f"You are a customer who writes to a company's assistant. {self._dialogue.persona or ''}\n"
            f"What you know: {facts or 'nothing in particular'}.\n"
            f"What you say next must come to this: {self._texts[index]}\n{self._spec.instructions}"
        )
        # Seen from the user's side: it is the assistant of this conversation.
        talk = []
        for said, reply in zip(self._said, replies, strict=True):
            talk.append({"role": "assistant", "content": said})
            talk.append({"role": "user", "content": reply.text})
        return [{"role": "system", "content": role}, *talk]

    def _complete(self, messages: list[dict[str, str]], attempt: int) -> str:
        import httpx

        spec = self._spec
        headers = {}
        if spec.api_key_env is not None:
            key = os.environ.get(spec.api_key_env)
            if not key:
                raise InputError(f"user.api_key_env: the variable {spec.api_key_env} isn't set; set it")
            headers["Authorization"] = f"Bearer {key}"
        body = {
            "model": spec.model,
            "messages": messages,
            "temperature": spec.temperature,
            "seed": (self._seed + attempt) % (1 << 31),
            "max_tokens": spec.max_tokens,
        }
        try:
            answer = httpx.post(
                f"{spec.ref.url}/chat/completions", json=body, headers=headers, timeout=spec.timeout_s
            )
            answer.raise_for_status()
            return _content(answer.json())
        except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
            raise UserError(
                f"the model that plays the user failed: {type(error).__name__}: {error}"[:300]
            ) from None


def _content(answer: Any) -> str:
    content = answer["choices"][0]["message"]["content"]
    if content is not None and not isinstance(content, str):
        raise TypeError("content isn't a text")
    return content or ""
