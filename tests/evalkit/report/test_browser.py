"""The HTML report in a real browser."""

import re
from pathlib import Path

import pytest

from evalkit.report.html import render_html
from evalkit.report.view import build_view
from tests.evalkit import fake_run
from tests.support.browser import browse


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(render_html(build_view(fake_run.source())), encoding="utf-8")
    return path


def test_the_report_opens_and_shows_everything(chromium: str, page: Path, tmp_path: Path) -> None:
    dom = browse(chromium, tmp_path / "profile", "--dump-dom", page.as_uri()).decode("utf-8")
    text = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", dom.replace("<wbr>", "")))
    for shown in (
        "✗ FAIL",  # verdict
        "dialogue/pass_hat_k k=3 [multi_turn]",  # rules
        "upper bound 0.69 is below 0.8",
        "Do: below 0.8: open the failed dialogues",
        "perplexity/long_tail",  # metrics with intervals
        "35.9 … 47.9",
        "−3.1 % better",
        "lost_en_002",  # worst samples
        "Zdeňka",
        "透支",
        "lost_card_en_000",  # dialogues
        "✗ broken : recalls Maria",
        "Your card is blocked, David.",
        "tokens encoded",  # conservation
        fake_run.SIGNATURES["text"],
        fake_run.CANDIDATE,
    ):
        assert shown.replace(" :", ":") in text.replace(" :", ":"), shown
    assert dom.count('<svg class="strip"') > 40


@pytest.mark.parametrize(
    ("name", "width"), [("desktop", 1280), ("laptop", 980), ("tablet", 820), ("phone", 390)]
)
def test_nothing_is_wider_than_the_screen(
    chromium: str, page: Path, tmp_path: Path, name: str, width: int
) -> None:
    """A frame of that width around the report; the outer page's script tells how wide its content is."""
    inner = page.read_text(encoding="utf-8").replace(
        "default-src 'none';", "default-src 'none'; script-src 'unsafe-inline';"
    )
    probe = "<script>document.title = 'width=' + document.documentElement.scrollWidth</script></body>"
    target = tmp_path / f"{name}.html"
    target.write_text(inner.replace("</body>", probe), encoding="utf-8")
    outer = tmp_path / "outer.html"
    outer.write_text(
        f'<iframe id="f" src="{target.as_uri()}" style="width:{width}px;height:900px;border:0"></iframe>'
        "<script>document.getElementById('f').onload = e => document.title = e.target.contentDocument.title</script>",
        encoding="utf-8",
    )
    dom = browse(
        chromium, tmp_path / "profile", "--allow-file-access-from-files", "--dump-dom", outer.as_uri()
    ).decode("utf-8")
    found = re.search(r"<title>width=(\d+)</title>", dom)
    assert found is not None, dom[:500]
    assert int(found.group(1)) <= width


def test_it_prints_to_pdf(chromium: str, page: Path, tmp_path: Path) -> None:
    target = tmp_path / "report.pdf"
    browse(chromium, tmp_path / "profile", f"--print-to-pdf={target}", page.as_uri())
    assert target.read_bytes().startswith(b"%PDF")
    assert target.stat().st_size > 20_000
