"""Sessions: ownership, bounds, time."""

import pytest

from sandbox.converters import transcript_to_wire
from sandbox.domain import (
    FinishReason,
    HandoverDecision,
    IntentGuess,
    Sampling,
    SatisfactionGuess,
    SessionState,
    Timings,
    TurnInput,
    TurnReply,
    Usage,
)
from sandbox.errors import (
    CapacityError,
    InvalidRequestError,
    SessionBusyError,
    SessionEndedError,
    SessionExistsError,
    UnknownSessionError,
)
from sandbox.limits import Limits
from sandbox.sessions import Session, SessionStore


class Bench:
    """A store with a clock set by hand."""

    def __init__(self, **limits: float) -> None:
        self.now = 0.0
        self.released: list[int] = []
        settings = Limits(**{"max_context_tokens": 64, **limits})  # type: ignore[arg-type]
        self.store = SessionStore(settings, self.released.append, lambda: self.now)

    def open(self, session_id: str = "") -> Session:
        return self.store.open(session_id, "", "", "")


def a_reply(asked: TurnInput, text: str, token_ids: tuple[int, ...]) -> TurnReply:
    most = 2**62
    return TurnReply(
        asked.session_id,
        asked.turn_id,
        199,
        text,
        token_ids,
        FinishReason.LENGTH,
        IntentGuess("transfer_of_money_to_another_country", 0.9, False),
        HandoverDecision(False, "", 0.1),
        SatisfactionGuess(3.0, 0.5),
        Usage(2**31, 2**31, 2**31, 199),
        Timings(most, most, most, most, most, most, most, most),
        SessionState.OPEN,
    )


def test_ids_are_given_or_made_and_never_shared() -> None:
    bench = Bench()
    assert bench.open("mine").session_id == "mine"
    assert bench.open().session_id != bench.open().session_id
    with pytest.raises(SessionExistsError):
        bench.open("mine")


def test_s31_a_new_session_of_an_old_id_has_another_cache_key() -> None:
    bench = Bench(idle_ttl_s=10)
    first = bench.open("same")
    bench.now = 11
    second = bench.open("same")
    assert first.cache_key != second.cache_key
    assert bench.released == [first.cache_key]


def test_s12_an_untouched_session_idles_out_and_frees_its_cache() -> None:
    bench = Bench(idle_ttl_s=10)
    session, kept = bench.open("a"), bench.open("b")
    bench.now = 8
    bench.store.find("b")
    bench.now = 12
    bench.store.sweep()
    assert bench.released == [session.cache_key]
    with pytest.raises(UnknownSessionError):
        bench.store.find("a")
    assert bench.store.find("b") is kept


def test_s15_no_session_with_a_turn_in_flight_is_ever_forgotten() -> None:
    bench = Bench(idle_ttl_s=10, max_sessions=1)
    session = bench.open("a")
    with session.lock():
        bench.now = 100
        bench.store.sweep()
        with pytest.raises(CapacityError):
            bench.open("b")
        assert bench.store.find("a") is session
    assert len(bench.store) == 1


def test_s15_the_longest_untouched_makes_room_handed_over_ones_first() -> None:
    bench = Bench(max_sessions=3)
    sessions = {name: bench.open(name) for name in "abc"}
    sessions["c"].state = SessionState.HANDED_OVER
    bench.store.find("a")
    bench.open("d")
    bench.open("e")
    assert bench.released == [sessions["c"].cache_key, sessions["b"].cache_key]
    assert bench.store.find("a") is sessions["a"]
    assert len(bench.store) == 3


def test_closed_sessions_take_no_place_and_are_bounded_too() -> None:
    bench = Bench(max_sessions=2)
    for number in range(5):
        bench.store.close(bench.open(str(number)))
    assert len(bench.store) == 0
    assert bench.store.find("4").state is SessionState.CLOSED
    with pytest.raises(UnknownSessionError):
        bench.store.find("2")


def test_s13_the_lock_is_exclusive_and_always_given_back() -> None:
    session = Bench().open()
    with pytest.raises(ZeroDivisionError), session.lock():
        with pytest.raises(SessionBusyError), session.lock():
            pass
        raise ZeroDivisionError
    with session.lock():
        pass


def test_a_session_with_a_turn_in_flight_isnt_closed() -> None:
    bench = Bench()
    session = bench.open()
    with session.lock(), pytest.raises(SessionBusyError):
        bench.store.close(session)
    bench.store.close(session)
    with pytest.raises(SessionEndedError):
        bench.store.require_open(session)


def test_a_session_has_a_maximum_of_turns() -> None:
    bench = Bench(max_session_turns=0)
    with pytest.raises(SessionEndedError, match="0 turns"):
        bench.store.require_open(bench.open())


@pytest.mark.parametrize(("ids", "size"), [(0, 65_536), (1024, 2), (1024, 65_536)])
def test_a_transcript_can_always_be_sent(ids: int, size: int) -> None:
    """GetSession of a longer one would fail for ever."""
    bench = Bench(max_context_tokens=8192)
    session = bench.open("s" * 128)
    turns = 0
    with pytest.raises(SessionEndedError, match="200 turns" if size < 9 else "of text and tokens"):
        while True:
            bench.store.require_open(session)
            turns += 1
            asked = TurnInput(session.session_id, f"{turns:0128}", "您" * 2730, Sampling(1024))
            reply = a_reply(asked, text="x" * size, token_ids=(2**32 - 1,) * ids)
            session.store(asked, reply)
    assert transcript_to_wire(session, "d" * 64).ByteSize() <= 4 << 20
    assert turns > 50


def test_no_session_opens_with_a_system_text_that_the_template_leaves_out() -> None:
    store = SessionStore(Limits(64, system_problem="leaves it out"), lambda key: None)
    with pytest.raises(InvalidRequestError, match=r"system_text: .*leaves it out"):
        store.open("", "", "be kind", "")
    assert store.open("", "", "", "").system_text == ""


def test_a_session_exists_for_its_owner_only() -> None:
    bench = Bench()
    mine = bench.store.open("same", "a", "", "", "a")
    theirs = bench.store.open("same", "b", "", "", "b")
    assert bench.store.find("same", "a") is mine
    assert bench.store.find("same", "b") is theirs
    for owner in ("", "c"):
        with pytest.raises(UnknownSessionError):
            bench.store.find("same", owner)
    bench.store.close(mine)
    assert bench.store.find("same", "a").state is SessionState.CLOSED
    assert bench.store.find("same", "b").state is SessionState.OPEN


def test_s15_one_tenants_sessions_dont_push_out_anothers() -> None:
    bench = Bench(max_sessions=4)
    kept = bench.store.open("kept", "b", "", "", "b")
    for number in range(20):
        bench.store.open(str(number), "a", "", "", "a")
    assert bench.store.find("kept", "b") is kept
    assert [bench.store.find(str(number), "a").session_id for number in (17, 18, 19)] == ["17", "18", "19"]
    assert len(bench.store) == 4


def test_s15_nobody_loses_a_session_to_a_tenant_that_holds_as_many() -> None:
    """A tenant at its share gives up its own, even where another's is the longest untouched."""
    bench = Bench(max_sessions=2)
    kept = bench.store.open("kept", "a", "", "", "a")
    for number in range(5):
        bench.store.open(str(number), "b", "", "", "b")
    assert bench.store.find("kept", "a") is kept
    assert bench.store.find("4", "b").state is SessionState.OPEN


def test_s15_a_tenant_that_holds_fewer_gets_its_place() -> None:
    bench = Bench(max_sessions=3)
    first = [bench.store.open(str(number), "a", "", "", "a") for number in range(3)]
    bench.store.open("new", "b", "", "", "b")
    assert bench.released == [first[0].cache_key]
    # Two and one now: a second one of b would leave a with fewer, so b's own goes.
    bench.store.open("newer", "b", "", "", "b")
    assert [bench.store.find(str(number), "a") for number in (1, 2)] == first[1:]
    with pytest.raises(UnknownSessionError):
        bench.store.find("new", "b")


def test_s15_turns_in_flight_dont_push_out_the_idle_session_of_another_tenant() -> None:
    bench = Bench(max_sessions=2)
    kept = bench.store.open("kept", "a", "", "", "a")
    busy = bench.store.open("busy", "b", "", "", "b")
    with busy.lock(), pytest.raises(CapacityError, match="2 places"):
        bench.store.open("more", "b", "", "", "b")
    assert bench.store.find("kept", "a") is kept
