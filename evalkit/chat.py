"""Conversations as token ids: one rendering for training, scoring and serving.

A chat template (Jinja, as in Hugging Face tokenizers) gives the text around the messages. Messages themselves are
encoded apart from the template, with special tokens read as plain text, so that a user can't write an end-of-turn
token; and ids once produced are kept, never encoded again (text → ids isn't the inverse of ids → text).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from evalkit.errors import InputError
from evalkit.tokenization import TextTokenizer

# Private-use code points: no template holds them, and message text never takes part in the rendering.
_OPEN, _CLOSE = "\ue0f0", "\ue0f1"

# Renderings and pieces of template text that a renderer remembers; a server's turns need a handful.
_REMEMBERED = 64


@dataclass(frozen=True)
class Message:
    """One message of a conversation; role is system, user or assistant."""

    role: str
    content: str


@dataclass(frozen=True)
class ChatIds:
    """Token ids of a rendered conversation.

    Attributes:
        ids: the token ids.
        reply: True where the token is the assistant's own (content and the end-of-turn token after it).
    """

    ids: list[int]
    reply: list[bool]


class ChatRenderer:
    """Renders conversations with a tokenizer's chat template."""

    def __init__(self, tokenizer: TextTokenizer) -> None:
        """Compile the template.

        Raises:
            InputError: the tokenizer has no chat template, or one that can't hold a conversation.
        """
        from jinja2 import TemplateError
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        if tokenizer.chat_template is None:
            raise InputError(
                "the bundle has no chat template (tokenizer.chat_template is null); it can't hold a conversation;"
                " export or convert it again from a tokenizer that has one"
            )
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        environment.globals["raise_exception"] = _raise_exception
        try:
            self._template = environment.from_string(tokenizer.chat_template)
        except TemplateError as error:
            raise InputError(f"tokenizer.chat_template: broken template: {error}") from None
        self._tokenizer = tokenizer
        # A rendering depends on the roles alone, so the turns of a session share a few of them.
        self._render_roles = lru_cache(_REMEMBERED)(self._render_anew)
        self._literal_ids = lru_cache(_REMEMBERED)(self._encode_literal)
        self._end_ids = self._reply_end()
        self._render_roles(("user", "assistant", "user"), True)

    def conversation(self, messages: Sequence[Message]) -> ChatIds:
        """A whole conversation, for training; the prefix token, where there is one, stands first."""
        ids: list[int] = [] if self._tokenizer.prefix_token is None else [self._tokenizer.prefix_token]
        reply = [False] * len(ids)
        after_reply = False
        for text, index in _pieces(self._render(messages, add_generation_prompt=False)):
            new = self._encode(text, index, messages)
            own = index is not None and messages[index].role == "assistant"
            marks = [own] * len(new)
            if after_reply and list(new[: len(self._end_ids)]) == self._end_ids:
                marks[: len(self._end_ids)] = [True] * len(self._end_ids)
            ids.extend(new)
            reply.extend(marks)
            after_reply = own
        return ChatIds(ids=ids, reply=reply)

    def system_problem(self) -> str:
        """Why the template takes no system text; empty where it takes one."""
        try:
            self._render_roles(("system", "user"), True)
        except InputError as error:
            return str(error)
        return ""

    def opening(self, system_text: str | None, user_text: str) -> list[int]:
        """Prompt ids of a session's first turn, prefix token included.

        Raises:
            InputError: the template takes no system text.
        """
        messages = [Message("user", user_text)]
        if system_text:
            messages.insert(0, Message("system", system_text))
        prefix = [] if self._tokenizer.prefix_token is None else [self._tokenizer.prefix_token]
        return prefix + self._encode_all(self._render(messages, add_generation_prompt=True), messages)

    def opening_head(self, system_text: str | None) -> int:
        """How many leading ids of `opening` hold nothing of what the user says: prefix token, system text, template."""
        messages = [Message("user", "x")]
        if system_text:
            messages.insert(0, Message("system", system_text))
        text = self._render(messages, add_generation_prompt=True)
        head, _, _ = text.partition(f"{_OPEN}{len(messages) - 1}{_CLOSE}")
        return (self._tokenizer.prefix_token is not None) + len(self._encode_all(head, messages))

    def next_turn(self, reply_ids: Sequence[int], user_text: str) -> list[int]:
        """Ids to append for one more user turn after a reply.

        Args:
            reply_ids: the ids that the model generated for the reply before; where they already end with the
                end-of-turn tokens these aren't written twice.
            user_text: what the user says now.
        """
        messages = [Message("user", "x"), Message("assistant", "x"), Message("user", user_text)]
        text = self._render(messages, add_generation_prompt=True)
        _, _, after_reply = text.partition(f"{_OPEN}1{_CLOSE}")
        ids = self._encode_all(after_reply, messages)
        for overlap in range(min(len(self._end_ids), len(reply_ids)), 0, -1):
            if list(reply_ids[-overlap:]) == self._end_ids[:overlap]:
                return ids[overlap:]
        return ids

    def layout(
        self, system_text: str | None, exchanges: Sequence[tuple[str, Sequence[int]]], user_text: str
    ) -> list[int]:
        """Prompt ids of a session's next turn, laid out from its beginning.

        Args:
            system_text: as of `opening`.
            exchanges: what the user said and the ids that the model generated, oldest first.
            user_text: what the user says now.
        """
        users = [*(said for said, _ in exchanges), user_text]
        ids = self.opening(system_text, users[0])
        for (_, reply_ids), following in zip(exchanges, users[1:], strict=True):
            ids += [*reply_ids, *self.next_turn(reply_ids, following)]
        return ids

    def _reply_end(self) -> list[int]:
        # Ids that the template writes right after a reply, up to and including the end token (or nothing).
        messages = [Message("user", "x"), Message("assistant", "x")]
        text = self._render(messages, add_generation_prompt=False)
        _, _, tail = text.partition(f"{_OPEN}1{_CLOSE}")
        ids = self._tokenizer.encode_ids(tail, special=True)
        end = self._tokenizer.end_token
        return ids[: ids.index(end) + 1] if end is not None and end in ids else []

    def _render(self, messages: Sequence[Message], *, add_generation_prompt: bool) -> str:
        return self._render_roles(tuple(message.role for message in messages), add_generation_prompt)

    def _render_anew(self, roles: tuple[str, ...], add_generation_prompt: bool) -> str:
        marked: list[dict[str, Any]] = [
            {"role": role, "content": f"{_OPEN}{index}{_CLOSE}"} for index, role in enumerate(roles)
        ]
        try:
            text = self._template.render(
                messages=marked,
                add_generation_prompt=add_generation_prompt,
                bos_token="",
                eos_token=self._end_text(),
            )
        except Exception as error:  # a template computes: it fails with whatever Python raises
            raise InputError(f"tokenizer.chat_template: {error}") from None
        for message in marked:
            if text.count(message["content"]) != 1:
                # The model wouldn't see what was said, and no number would show it.
                raise InputError(
                    f"tokenizer.chat_template: leaves out or repeats what a {message['role']} message says; it has to stand in"
                    " the rendering once, unchanged"
                )
        return text

    def _end_text(self) -> str:
        end = self._tokenizer.end_token
        return "" if end is None else self._tokenizer.token_text(end)

    def _encode_literal(self, literal: str) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode_ids(literal, special=True))

    def _encode(self, literal: str, index: int | None, messages: Sequence[Message]) -> Sequence[int]:
        if index is None:
            return self._literal_ids(literal)
        return self._tokenizer.encode_ids(messages[index].content, special=False)

    def _encode_all(self, text: str, messages: Sequence[Message]) -> list[int]:
        return [token for piece, index in _pieces(text) for token in self._encode(piece, index, messages)]


def _pieces(text: str) -> list[tuple[str, int | None]]:
    """Split a rendering into template text (text, None) and messages ("", index)."""
    pieces: list[tuple[str, int | None]] = []
    while text:
        literal, opened, rest = text.partition(_OPEN)
        if literal:
            pieces.append((literal, None))
        if not opened:
            break
        number, _, text = rest.partition(_CLOSE)
        pieces.append(("", int(number)))
    return pieces


def _raise_exception(message: str) -> None:
    from jinja2 import TemplateError

    raise TemplateError(message)
