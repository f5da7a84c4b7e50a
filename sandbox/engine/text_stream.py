"""Text of a reply while its tokens arrive: whole characters only, and never a part of a stop string."""

from collections.abc import Callable, Sequence

_REPLACEMENT = "\ufffd"


class IncrementalDecoder:
    """Decodes token by token; the pieces joined equal the decoding of all ids at once.

    A character may be spread over several tokens, and a token's text may depend on the one before it (a leading
    space). So each piece is the difference of two decodings of a short window: the last tokens already shown, with
    and without the new ones. Text that ends with U+FFFD is a character still incomplete and waits.
    """

    def __init__(self, decode: Callable[[list[int]], str]) -> None:
        """Make a decoder.

        Args:
            decode: token ids → text, special tokens left out.
        """
        self._decode = decode
        self._ids: list[int] = []
        self._window_start = 0
        self._shown_end = 0

    def push(self, token_id: int) -> str:
        """Text that is certain after one more token; may be empty."""
        self._ids.append(token_id)
        text = self._unseen()
        if not text or text.endswith(_REPLACEMENT):
            return ""
        self._window_start = self._shown_end
        self._shown_end = len(self._ids)
        return text

    def flush(self) -> str:
        """What is left at the end, incomplete characters included."""
        text = self._unseen()
        self._window_start = self._shown_end = len(self._ids)
        return text

    def _unseen(self) -> str:
        shown = self._decode(self._ids[self._window_start : self._shown_end])
        return self._decode(self._ids[self._window_start :])[len(shown) :]


class StopMatcher:
    """Cuts a reply at the first stop string, also one that is spread over several tokens."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""

    def feed(self, text: str) -> tuple[str, bool]:
        """Text that may be shown, and whether a stop string was met (it and what follows it are swallowed)."""
        if not self._stops:
            return text, False
        text = self._held + text
        found = [position for stop in self._stops if (position := text.find(stop)) >= 0]
        if found:
            self._held = ""
            return text[: min(found)], True
        hold = self._longest_begun_stop(text)
        self._held = text[len(text) - hold :]
        return text[: len(text) - hold], False

    def flush(self) -> str:
        """What was held back, at the end of the reply."""
        held, self._held = self._held, ""
        return held

    def _longest_begun_stop(self, text: str) -> int:
        longest = max((len(stop) for stop in self._stops), default=1) - 1
        for length in range(min(longest, len(text)), 0, -1):
            if any(stop.startswith(text[-length:]) for stop in self._stops):
                return length
        return 0


class TextStream:
    """Both together."""

    def __init__(self, decode: Callable[[list[int]], str], stops: Sequence[str]) -> None:
        self._decoder = IncrementalDecoder(decode)
        self._matcher = StopMatcher(stops)

    def push(self, token_id: int) -> tuple[str, bool]:
        """Text to show after one more token, and whether a stop string ended the reply."""
        return self._matcher.feed(self._decoder.push(token_id))

    def finish(self) -> tuple[str, bool]:
        """The rest of the text when no more tokens come, and whether a stop string was met in it."""
        text, stopped = self._matcher.feed(self._decoder.flush())
        return (text, True) if stopped else (text + self._matcher.flush(), False)
