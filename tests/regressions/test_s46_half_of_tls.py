"""S46: half of TLS, or of any other protection, is refused; there is no plaintext port by mistake."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sandbox.security.certificates import make_certificates


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--tls-key=KEY"], "--tls-cert: is missing"),
        (["--tls-cert=CERT"], "--tls-key: is missing"),
        (["--listen=0.0.0.0:0"], "--allow-plaintext"),
    ],
)
def test_s46_half_of_security_is_refused_with_one_line(
    tiny_bundle: Path, tmp_path: Path, options: list[str], message: str
) -> None:
    files = make_certificates(tmp_path)
    places = {"KEY": str(files.key), "CERT": str(files.cert)}
    arguments = [re.sub("KEY|CERT", lambda match: places[match[0]], option) for option in options]
    done = subprocess.run(
        [sys.executable, "-m", "sandbox", "serve", str(tiny_bundle), *arguments],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert "PRIVATE" not in done.stderr
