"""What a person sees of a conversation: text as it is generated, and under it what the server thinks of the turn."""

import unicodedata
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.cells import cell_len
from rich.console import Console
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from evalkit.replay.client import ServerInfo, Transcript, TurnReply

_WIDE = 2
_MAX_STARS = 5
# Below this rating a turn is shown as a bad one.
_GOOD, _MIDDLING = 3.5, 2.5
# Characters that would make a terminal do something else than show text: it isn't the model's to steer.
_BIDI = frozenset("\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def shown(text: str) -> str:
    """The text without control characters (escape sequences) and without changes of direction."""
    return "".join("\ufffd" if _steers(character) else character for character in text)


def _steers(character: str) -> bool:
    if character in "\n\t":
        return False
    return character in _BIDI or unicodedata.category(character) == "Cc"


class StreamedText:
    """Prints a text while it grows: words stay whole, further lines are indented like the first."""

    def __init__(self, console: Console, indent: int, style: str = "") -> None:
        """Begin at column `indent`, where the cursor already is."""
        self._console = console
        self._indent = self._column = indent
        self._style = style
        self._word = ""
        self._blank = ""

    def feed(self, text: str) -> None:
        """Show more of the text; the word at its end waits until it is whole."""
        for character in shown(text):
            if character == "\n":
                self._flush()
                self._new_line()
            elif character.isspace():
                self._flush()
                self._blank = " "
            elif cell_len(character) == _WIDE:  # Chinese may be broken anywhere
                self._flush()
                self._word = character
                self._flush()
            else:
                self._word += character
                if cell_len(self._word) >= self._console.width - self._indent:
                    self._flush()

    def end(self) -> None:
        """Show what waited, and go to the next line."""
        self._flush()
        self._console.print()

    def _flush(self) -> None:
        if not self._word:
            return
        piece = self._blank + self._word
        if self._column + cell_len(piece) > self._console.width and self._column > self._indent:
            self._new_line()
            piece = self._word
        self._print(piece)
        self._column += cell_len(piece)
        self._word = self._blank = ""

    def _new_line(self) -> None:
        self._print("\n" + " " * self._indent)
        self._column, self._blank = self._indent, ""

    def _print(self, text: str) -> None:
        self._console.print(Text(text, self._style), end="", soft_wrap=True)
        self._console.file.flush()


class Screen:
    """Shows a conversation: in colour and with a spinner on a terminal, as plain lines elsewhere."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self.rich = console.is_terminal
        arrow = "▸" if (console.encoding or "").lower().startswith("utf") else ">"
        self._you, self._bot = (f"you {arrow} ", f"bot {arrow} ") if self.rich else ("you: ", "bot: ")

    def prompt(self) -> str:
        """For input(): marks around what takes no room, so that editing a long line works."""
        return f"\001\x1b[1;36m\002{self._you}\001\x1b[0m\002" if self.rich else ""

    def welcome(self, address: str, info: ServerInfo) -> None:
        """Who answers here."""
        if not self.rich:
            return
        rows = Table.grid(padding=(0, 2))
        rows.add_column(style="dim")
        rows.add_column(overflow="fold")
        model = f"{info.declared_model} (declared)" if info.declared_model else info.model_digest[:16]
        rows.add_row("model", Text(shown(model or "unknown")))
        rows.add_row("engine", Text(shown(info.engine)))
        rows.add_row(
            "flow", info.flow_digest[:16] or Text("none: no intent, hand-over or satisfaction", "dim")
        )
        limits = f"{info.max_turn_tokens} tokens a reply"
        rows.add_row(
            "limits", f"{limits}, {info.max_context_tokens} in all" if info.max_context_tokens else limits
        )
        panel = Panel(rows, title=Text(address, "bold"), title_align="left", border_style="dim", expand=False)
        self._console.print(panel)
        self._console.print(Text(" /help for commands, Ctrl-C stops a reply, Ctrl-D ends\n", "dim"))

    def said(self, text: str) -> None:
        """What the user said, where no terminal shows it already."""
        if not self.rich:
            self._console.print(self._you + shown(text), markup=False, highlight=False, soft_wrap=True)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """A spinner until the first text."""
        if not self.rich:
            yield
            return
        with self._console.status("[dim]thinking[/dim]", spinner="dots"):
            yield

    def reply(self) -> StreamedText:
        """Begin a reply."""
        self._console.print(Text(self._bot, "bold green"), end="")
        if self.rich:
            return StreamedText(self._console, cell_len(self._bot))
        return _PlainText(self._console)

    def details(self, reply: TurnReply) -> None:
        """What the server thinks of the turn, and its times."""
        for parts in (_opinions(reply), _times(reply)):
            if parts:
                self._line(
                    Text().join([parts[0], *(Text.assemble((" · ", "dim"), part) for part in parts[1:])])
                )
        if reply.finish_reason == "LENGTH":
            self.note("cut at the longest reply; --max-new-tokens allows more")
        if reply.dropped_turns:
            self.note(f"the {reply.dropped_turns} oldest turns no longer fit into the context")
        if reply.state == "SESSION_HANDED_OVER":
            self.note("handed over to a person: this session takes no more turns; /reset begins a new one")

    def new_line(self) -> None:
        """Leave a line on which the user was typing."""
        self._console.print()

    def note(self, text: str) -> None:
        """A line that is neither user nor model."""
        self._line(Text(shown(text), "yellow"))

    def problem(self, text: str) -> None:
        """A line about what went wrong."""
        self._line(Text(shown(text), "red"))

    def _line(self, text: Text) -> None:
        """A line under what was said, indented like it."""
        if self.rich:
            self._console.print(Padding(text, (0, 0, 0, cell_len(self._bot))), highlight=False)
        else:
            self._console.print(Text("  ").append_text(text), soft_wrap=True, highlight=False)

    def commands(self, rows: Sequence[tuple[str, str]]) -> None:
        """What can be typed."""
        table = Table.grid(padding=(0, 3))
        for name, text in rows:
            table.add_row(Text(name, "bold"), Text(text))
        self._console.print(table)

    def transcript(self, transcript: Transcript) -> None:
        """The session as the server remembers it."""
        if not transcript.turns:
            self.note("nothing was said yet")
        for turn in transcript.turns:
            self._console.print(
                Text.assemble((self._you, "bold cyan"), shown(turn.user_text)), soft_wrap=True
            )
            self._console.print(
                Text.assemble((self._bot, "bold green"), shown(turn.reply.text)),
                soft_wrap=True,
                highlight=False,
            )


class _PlainText(StreamedText):
    """The same without a terminal: as it comes."""

    def __init__(self, console: Console) -> None:
        super().__init__(console, 0)

    def feed(self, text: str) -> None:
        self._print(shown(text))

    def end(self) -> None:
        self._console.print()


def _opinions(reply: TurnReply) -> list[Text]:
    parts = []
    if reply.intent is not None:
        style = "yellow" if reply.out_of_scope else "cyan"
        scope = ", out of scope" if reply.out_of_scope else ""
        probability = "" if reply.intent_probability is None else f" {reply.intent_probability:.0%}"
        parts.append(Text.assemble(("intent ", "dim"), (f"{shown(reply.intent)}{probability}{scope}", style)))
    if reply.handover is not None:
        score = "" if reply.handover_score is None else f" {reply.handover_score:.2f}"
        if reply.handover:
            parts.append(Text(f"hand-over{score}: {shown(reply.handover_reason or '')}", "bold red"))
        else:
            parts.append(
                Text.assemble(("hand-over ", "dim"), (f"no{score and f' ({score.strip()})'}", "green"))
            )
    if reply.satisfaction is not None:
        value = reply.satisfaction
        style = "green" if value >= _GOOD else "yellow" if value >= _MIDDLING else "red"
        filled = max(0, min(_MAX_STARS, round(value)))
        stars = "★" * filled + "☆" * (_MAX_STARS - filled)
        parts.append(Text.assemble(("satisfaction ", "dim"), (f"{stars} {value:.1f}", style)))
    if parts:
        server = reply.server
        parts.append(Text(f"in {_ms(server.intent_ns + server.handover_ns + server.satisfaction_ns)}", "dim"))
    return parts


def _times(reply: TurnReply) -> list[Text]:
    parts = [f"first token {_ms(reply.first_token_ns)}", f"whole turn {_ms(reply.total_ns)}"]
    if reply.generated_tokens and reply.generated_tokens > 1:
        each = (reply.total_ns - reply.first_token_ns) / (reply.generated_tokens - 1)
        parts.append(f"{reply.generated_tokens} tokens, {_ms(each)} each")
    if reply.prompt_tokens:
        reused = "" if reply.reused_tokens is None else f", {reply.reused_tokens} reused"
        parts.append(f"prompt {reply.prompt_tokens}{reused}")
    if reply.server.queue_ns > 1_000_000:
        parts.append(f"waited {_ms(reply.server.queue_ns)}")
    return [Text(part, "dim") for part in parts]


def _ms(nanoseconds: float) -> str:
    milliseconds = nanoseconds / 1e6
    if milliseconds >= 1000:
        return f"{milliseconds / 1000:.2f} s"
    return f"{milliseconds:.0f} ms" if milliseconds >= 10 else f"{milliseconds:.1f} ms"
