"""spikes.html in a real browser: light, dark, narrow; and what its curve must not lose."""

import re
from pathlib import Path

import pytest

from tests.support.browser import browse
from tests.trainer.diagnosis.spike_logs import jsonl
from trainer.diagnosis.spikes import diagnose_spikes
from trainer.diagnosis.spikes.page import render_page
from trainer.diagnosis.spikes.plots import Band, Curve, draw


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("spikes")
    log = jsonl(
        folder / "<run> & co.jsonl", change=lambda r: r | {"loss": 9.0} if 150 <= r["step"] < 160 else r
    )
    path = folder / "spikes.html"
    path.write_text(render_page(diagnose_spikes([log])), encoding="utf-8")
    return path


def test_the_page_shows_curve_findings_and_close_up(chromium, page, tmp_path):
    dom = browse(chromium, tmp_path / "profile", "--dump-dom", page.as_uri()).decode()
    text = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", dom))
    for shown in (
        "Loss spikes · &lt;run&gt; &amp; co.jsonl",
        "200 steps",
        "1 spike",
        "the loss rose from",
        "unknown cause",
        "back at its level after 10 steps (step 160)",
        "Gradient norm (logarithmic)",
        "Loss scale (logarithmic)",
        "Learning rate",
    ):
        assert shown in text, shown
    assert dom.count("<svg") == 5 and 'href="#spike-1"' in dom and 'id="spike-1"' in dom
    assert "<script" not in dom


@pytest.mark.parametrize("width", [1280, 820, 390])
def test_nothing_is_wider_than_the_screen(chromium, page, tmp_path, width):
    probe = "<script>document.title = 'width=' + document.documentElement.scrollWidth</script></body>"
    inner = page.read_text(encoding="utf-8").replace(
        "default-src 'none';", "default-src 'none'; script-src 'unsafe-inline';"
    )
    target = tmp_path / "inner.html"
    target.write_text(inner.replace("</body>", probe), encoding="utf-8")
    outer = tmp_path / "outer.html"
    outer.write_text(
        f'<iframe id="f" src="{target.as_uri()}" style="width:{width}px;height:900px;border:0"></iframe>'
        "<script>document.getElementById('f').onload = e => document.title = e.target.contentDocument.title</script>"
    )
    dom = browse(
        chromium, tmp_path / "profile", "--allow-file-access-from-files", "--dump-dom", outer.as_uri()
    ).decode()
    found = re.search(r"<title>width=(\d+)</title>", dom)
    assert found is not None and int(found.group(1)) <= width


def test_a_long_curve_keeps_its_spike(tmp_path):
    points = tuple((float(step), 9.0 if step == 12_345 else 2.0) for step in range(20_000))
    plot = draw("Loss", [Curve(points)])
    assert plot is not None
    heights = {
        float(pair.split(",")[1]) for pair in re.search(r'points="([^"]+)"', plot.svg).group(1).split()
    }
    assert len(heights) == 2 and plot.svg.count(",") < 3000


def test_a_plot_of_nothing_and_of_one_value():
    assert draw("x", [Curve(())]) is None
    assert draw("x", [Curve(((1.0, -1.0),))], logarithmic=True) is None
    assert draw("x", [Curve(((1.0, float("nan")),))]) is None
    plot = draw("x", [Curve(((5.0, 3.0),))], bands=[Band(5, 5, "1", "#a")], points=True)
    assert plot is not None and "nan" not in plot.svg
