"""What the load's users say. Few scripts and many sessions: every reply can be compared with that of a lone run."""

from evalkit.wire import sandbox_pb2 as wire

SCRIPTS = 8
_TURNS = (
    "hello",
    "my card is lost",
    "my name is Maria",
    "what is my name",
    "my account is 1234",
    "请帮助我",
    "what does it hold",
    "thank you",
    "one more thing",
    "goodbye",
)


def turn_request(session: str, script: int, turn: int, new_tokens: int = 4) -> wire.TurnRequest:
    """The turn of this number; every other script is sampled, with a seed of its own."""
    sampling = wire.Sampling(
        max_new_tokens=new_tokens, temperature=float(script % 2), seed=100 * script + turn
    )
    text = f"{_TURNS[(turn + script) % len(_TURNS)]} {script}"
    return wire.TurnRequest(
        session_id=session, turn_id=f"{session}/{turn}", user_text=text, sampling=sampling
    )
