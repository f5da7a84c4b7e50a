"""axe-core, the accessibility checker, on the report in a real browser: light and dark, English and Chinese."""

import html
import json
import shutil
import subprocess
from pathlib import Path

import pytest

from evalkit.report.html import render_html
from evalkit.report.language import language
from evalkit.report.source import ReportSource
from evalkit.report.view import build_view
from tests.evalkit.report import review_run
from tests.support.browser import probed

pytestmark = pytest.mark.slow
AXE = "axe-core@4.11.0"
# Everything that a reader may open is opened, since what is folded isn't checked.
PROBE = """
document.querySelectorAll('details').forEach(one => one.open = true);
document.title = 'unfinished';
axe.run(document, {resultTypes: ['violations']}).then(found => { document.title = JSON.stringify({
  dark: matchMedia('(prefers-color-scheme: dark)').matches, passes: found.passes.length,
  violations: found.violations.map(one => [one.impact, one.id, one.nodes.length,
    one.nodes.slice(0, 3).map(node => node.html.slice(0, 200))])}); },
  error => { document.title = JSON.stringify({error: String(error)}); });
"""


@pytest.fixture(scope="module")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is not installed, which brings axe-core; `apt-get install npm` to run this test")
    folder = tmp_path_factory.mktemp("axe")
    command = [npm, "install", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix", str(folder), AXE]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    if done.returncode:
        pytest.skip(f"npm could not install {AXE}: {done.stderr.strip().splitlines()[-1:]}")
    return (folder / "node_modules" / "axe-core" / "axe.min.js").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def review(tmp_path_factory: pytest.TempPathFactory) -> ReportSource:
    return review_run.source(tmp_path_factory.mktemp("review") / "run", texts=40, dialogues=30)


@pytest.mark.parametrize(
    ("code", "dark", "width"),
    [("en", False, 1280), ("en", True, 1280), ("zh", False, 1280), ("zh", True, 1280), ("en", False, 500)],
    ids=["en-light", "en-dark", "zh-light", "zh-dark", "en-narrow"],
)
def test_axe_has_no_serious_finding(
    chromium: str, axe: str, review: ReportSource, tmp_path: Path, code: str, dark: bool, width: int
) -> None:
    page = render_html(build_view(review), language(code))
    flags = ["--virtual-time-budget=60000", f"--window-size={width},900"]
    if dark:
        flags.append("--blink-settings=preferredColorScheme=0")
    # The checker's own text may hold the end of a script.
    script = axe.replace("</script", "<\\/script") + PROBE
    title = probed(chromium, tmp_path, page, script, *flags)
    found = json.loads(html.unescape(title))
    assert "error" not in found, found
    assert found["dark"] is dark
    assert found["passes"] > 15
    assert [one for one in found["violations"] if one[0] in ("serious", "critical")] == []
