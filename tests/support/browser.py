"""Driving a page in headless Chromium, without a driver: a probe in the page writes what it found into its title."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="session")
def chromium() -> str:
    """The browser, or the test is skipped (failed where EVALKIT_REQUIRE_BROWSER=1)."""
    names = ("chromium", "chromium-browser", "google-chrome")
    found = next((path for name in names if (path := shutil.which(name))), None)
    if found is None:
        if os.environ.get("EVALKIT_REQUIRE_BROWSER") == "1":
            pytest.fail("EVALKIT_REQUIRE_BROWSER=1, but no chromium is installed")
        pytest.skip("no chromium is installed; `apt-get install chromium` to run this test")
    return found


def browse(chromium: str, profile: Path, *arguments: str) -> bytes:
    """What the browser prints."""
    command = [chromium, *FLAGS, f"--user-data-dir={profile}", *arguments]
    return subprocess.run(command, capture_output=True, check=True, timeout=120).stdout


def probed(chromium: str, folder: Path, page: str, script: str, *arguments: str) -> str:
    """The page's title after `script` ran in it; the page forbids scripts, so its policy is loosened first."""
    page = page.replace("default-src 'none';", "default-src 'none'; script-src 'unsafe-inline';")
    target = folder / "probed.html"
    target.write_text(page.replace("</body>", f"<script>{script}</script></body>"), encoding="utf-8")
    dom = browse(chromium, folder / "profile", *arguments, "--dump-dom", target.as_uri()).decode("utf-8")
    found = re.search(r"<title>(.*?)</title>", dom, re.DOTALL)
    assert found is not None, dom[:500]
    return found[1]
