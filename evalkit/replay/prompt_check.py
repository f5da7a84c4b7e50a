"""Whether a server lays out prompts as the bundle that it serves says: their lengths are counted again from the transcript.

What a model says hardly shows a wrong prompt where it forgives one. The bundle's chat template and tokenizer are at hand,
and the server tells how many tokens it read.
"""

import threading
from collections.abc import Sequence

from evalkit.chat import ChatRenderer
from evalkit.replay.client import TurnReply
from evalkit.runs.records import ExpectationResult, TurnRecord
from evalkit.tokenization import TextTokenizer


class PromptCheck:
    """Counts the prompts of a bundle; may be shared by threads."""

    def __init__(self, tokenizer: TextTokenizer) -> None:
        """Prepare.

        Raises:
            InputError: the bundle has no chat template, or a broken one.
        """
        self._renderer = ChatRenderer(tokenizer)
        self._lock = threading.Lock()  # the tokenizer is switched between texts of a user and of the template

    def check(
        self, before: Sequence[TurnRecord], user_text: str, reply: TurnReply
    ) -> list[ExpectationResult]:
        """The check of one turn; none where the flow answered, so that nothing was laid out.

        Args:
            before: the session's answered turns.
            user_text: what the user said then.
            reply: to it. Of the turns before, those that the server reports as dropped aren't counted.
        """
        if reply.finish_reason == "HANDED_OVER":
            return []
        kept = [(turn.user_text, turn.token_ids) for turn in before[reply.dropped_turns :]]
        with self._lock:
            wanted = len(self._renderer.layout("", kept, user_text))
        told = reply.prompt_tokens
        return [ExpectationResult("prompt_tokens", wanted, told, told == wanted)]
