"""What must be true again after every fault: nothing in flight, and the next session's tokens those of a cold run."""

import urllib.request

from tests.sandbox.processes import SandboxProcess, eventually

TEXT = "hello, my name is Maria and my card is lost"


def gauges(server: SandboxProcess) -> dict[str, float]:
    """The metrics page, by name with labels."""
    with urllib.request.urlopen(f"http://{server.ready['metrics']}/metrics", timeout=10) as reply:
        lines = reply.read().decode().splitlines()
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if line[0] != "#")}


def at_rest(server: SandboxProcess) -> bool:
    """No turn runs or waits, in the server or the engine."""
    now = gauges(server)
    return now["sandbox_num_requests_running"] == now["sandbox_num_requests_waiting"] == 0


def cold_tokens(server: SandboxProcess) -> list[int]:
    """The reply that a new session gets."""
    session = server.open()
    return list(server.turn(session, TEXT, max_new_tokens=24).token_ids)


def check_unharmed(server: SandboxProcess, expected: list[int], seconds: float = 20) -> None:
    """Slots are back to zero, and a new session gets what it got before the fault."""
    assert eventually(lambda: at_rest(server), seconds), gauges(server)
    assert cold_tokens(server) == expected
