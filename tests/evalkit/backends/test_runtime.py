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
