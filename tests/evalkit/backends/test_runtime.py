"""The one door to MindSpore."""

import os
import signal
import subprocess
import sys
import time

import pytest

SCRIPT = """
import signal, sys
from evalkit.backends.runtime import load_mindspore
print("importing", flush=True)
try:
    load_mindspore()
    signal.sigpending()
    print("imported", flush=True)
    import time
    time.sleep(20)
except KeyboardInterrupt:
    print("interrupted", "mindspore" in sys.modules, flush=True)
    sys.exit(4)
"""


@pytest.mark.parametrize("delay_s", [0.2, 0.8])
def test_an_interrupt_waits_until_mindspore_is_imported(delay_s):
    """In the middle of the import it aborts the process (SIGABRT)."""
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ},
    )
    assert process.stdout.readline() == "importing\n"
    time.sleep(delay_s)
    process.send_signal(signal.SIGINT)
    out, error = process.communicate(timeout=120)
    assert process.returncode in (4, -signal.SIGTERM), error[-2000:]
    assert "imported" in out or "interrupted True" in out


@pytest.mark.parametrize("chosen", [None, "python"])
def test_what_mindspore_asks_of_protobuf_is_not_handed_on_to_other_processes(chosen):
    """A server started later would read and write messages by protobuf's slow implementation in Python."""
    name = "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION"
    environment = {key: value for key, value in os.environ.items() if key != name}
    if chosen is not None:  # a choice of the user's own stays
        environment[name] = chosen
    script = f"from evalkit.backends.runtime import load_mindspore as l; l(); import os; print(os.environ.get({name!r}))"
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert done.stdout.strip() == str(chosen)
