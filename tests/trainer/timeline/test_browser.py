"""The heat map in a real browser: 4, 64 and 512 devices, on a desk and on a phone."""

import html
import json
import re

import pytest

from tests.support.browser import browse
from tests.trainer.timeline.synthetic import write_run
from trainer.timeline.heatmap import _share
from trainer.timeline.run import analyse, write_analysis

PROBE = """
<script>
addEventListener("load", () => setTimeout(() => {
  const out = {}, canvas = document.getElementById("plot-compute_utilisation");
  const where = () => document.getElementById("where").textContent;
  const frame = () => new Promise((done) => setTimeout(done, 60));
  const key = (name) => canvas.dispatchEvent(new KeyboardEvent("keydown", { key: name, bubbles: true }));
  const point = (type, fx, fy, more) => {
    const box = canvas.getBoundingClientRect();
    canvas.dispatchEvent(new PointerEvent(type, { clientX: box.left + box.width * fx, clientY: box.top + box.height * fy,
      bubbles: true, pointerType: "mouse", pointerId: 1, ...more }));
  };
  (async () => {
    out.ready = document.documentElement.dataset.ready;
    out.width = document.documentElement.scrollWidth;
    out.whole = where();
    const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
    out.colours = new Set(new Uint32Array(pixels.buffer)).size;
    point("pointermove", 0.5, 0.5);
    out.tip = document.getElementById("tip").textContent;
    canvas.focus(); key("ArrowRight"); await frame();
    out.spoken = document.getElementById("live").textContent;
    key("+"); key("+"); await frame();
    out.zoomed = where();
    key("0"); await frame();
    out.back = where();
    canvas.setPointerCapture = () => {};
    point("pointerdown", 0.4, 0.4); point("pointermove", 0.6, 0.4); point("pointerup", 0.6, 0.4); await frame();
    out.dragged = where();
    document.getElementById("reset").click(); await frame();
    out.reset = where();
    canvas.dispatchEvent(new WheelEvent("wheel", { deltaY: -1, ctrlKey: true, clientX: 300, bubbles: true, cancelable: true }));
    await frame();
    out.wheeled = where();
    canvas.dispatchEvent(new MouseEvent("dblclick", { bubbles: true })); await frame();
    out.doubled = where();
    const finger = (type, id, fx) => point(type, fx, 0.5, { pointerType: "touch", pointerId: id });
    finger("pointerdown", 1, 0.5); finger("pointerup", 1, 0.5); finger("pointerleave", 1, 0.5);
    out.tapped = document.getElementById("tip").style.display;
    finger("pointerdown", 1, 0.45); finger("pointerdown", 2, 0.55);
    finger("pointermove", 1, 0.35); finger("pointermove", 2, 0.65); finger("pointerup", 2, 0.65); finger("pointerup", 1, 0.35);
    await frame();
    out.pinched = where();
    finger("pointerdown", 1, 0.4); finger("pointermove", 1, 0.8); finger("pointerup", 1, 0.8); await frame();
    out.moved = where();
    document.getElementById("reset").click();
    out.rankTools = !document.getElementById("rank-tools").hidden;
    if (out.rankTools) { document.getElementById("fewer").click(); document.getElementById("fewer").click(); }
    await frame();
    out.fewer = where();
    if (out.rankTools) document.getElementById("down").click();
    await frame();
    out.down = where();
    canvas.focus(); for (let n = 0; n < 600; n++) key("ArrowUp");
    await frame();
    out.followed = where();
    document.title = "probe=" + JSON.stringify(out);
  })();
}, 100));
</script></body>
"""


def span_of(text):
    """(from, to) in ms of the line that says what is shown."""
    units = {"ns": 1e-6, "µs": 1e-3, "ms": 1.0, "s": 1e3}
    return [float(value) * units[unit] for value, unit in re.findall(r"([\d.]+) (ns|µs|ms|s)", text)]


def ranks_of(text):
    """The first and the last rank of the line that says what is shown."""
    first, last = re.search(r"ranks (\d+) to (\d+)", text).groups()
    return int(first), int(last)


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """One page for each number of devices."""
    folder = tmp_path_factory.mktemp("pages")
    found = {}
    for ranks, missing in (
        (4, frozenset[int]()),
        (64, frozenset({5, 40, 41})),
        (512, frozenset(range(96, 104))),
    ):
        run = write_run(folder / f"run{ranks}", ranks, steps=4, slow_rank=3, missing=missing, kernels=8)
        write_analysis(analyse(run), folder / f"out{ranks}", f"run of {ranks}")
        found[ranks] = folder / f"out{ranks}" / "heatmap.html"
    return found


@pytest.mark.parametrize(("ranks", "width"), [(4, 1280), (64, 390), (512, 1280), (512, 390)])
def test_it_fits_draws_zooms_and_speaks(chromium, pages, tmp_path, ranks, width):
    # The page's own policy lets no other script in: the probe needs a wider one.
    page = re.sub(
        r"script-src 'sha256-[^']+'", "script-src 'unsafe-inline'", pages[ranks].read_text(encoding="utf-8")
    )
    # With --dump-dom the browser draws one frame only: timers stand in for frames.
    frames = "<script>window.requestAnimationFrame = (draw) => setTimeout(draw, 0)</script></head>"
    page = page.replace("</head>", frames).replace("</body>", PROBE)
    (tmp_path / "page.html").write_text(page, encoding="utf-8")
    outer = tmp_path / "outer.html"
    outer.write_text(
        f'<iframe id="f" src="page.html" style="width:{width}px;height:1200px;border:0"></iframe><script>setInterval('
        "() => { document.title = document.getElementById('f').contentDocument.title }, 50)</script>",
        encoding="utf-8",
    )
    dom = browse(
        chromium,
        tmp_path / "profile",
        "--allow-file-access-from-files",
        "--virtual-time-budget=6000",
        "--dump-dom",
        outer.as_uri(),
    ).decode()
    found = re.search(r"<title>probe=(.*?)</title>", dom, re.DOTALL)
    assert found is not None, dom[:500]
    probe = json.loads(html.unescape(found.group(1)))
    assert probe["ready"] == "yes"
    assert probe["width"] <= width
    assert probe["colours"] > 8  # a drawn map, not a blank one
    assert (
        "Compute utilisation: " in probe["tip"] and "unknown" in probe["tip"]
    )  # memory has no counters here
    assert probe["spoken"].startswith("rank ") and "Communication wait" in probe["spoken"]
    whole = span_of(probe["whole"])
    zoomed, dragged = span_of(probe["zoomed"]), span_of(probe["dragged"])
    assert whole[0] == 0 and zoomed[1] - zoomed[0] == pytest.approx(0.36 * whole[1], rel=0.05)
    assert dragged[0] > 0.2 * whole[1] and dragged[1] < 0.7 * whole[1]
    assert probe["back"] == probe["reset"] == probe["doubled"] == probe["whole"]
    wheeled, pinched, moved = (span_of(probe[name]) for name in ("wheeled", "pinched", "moved"))
    assert wheeled[1] - wheeled[0] == pytest.approx(0.8 * whole[1], rel=0.05)
    assert probe["tapped"] == "block"  # stays when the finger is lifted
    assert pinched[1] - pinched[0] == pytest.approx(whole[1] / 3, rel=0.1)
    assert moved[0] < pinched[0] and moved[1] - moved[0] == pytest.approx(pinched[1] - pinched[0], rel=0.01)
    assert probe["rankTools"] == (ranks > 8)
    if ranks > 8:
        first, last = ranks_of(probe["fewer"])
        assert last - first + 1 == ranks // 4
        assert ranks_of(probe["down"])[0] == first + ranks // 8
        assert ranks_of(probe["followed"]) == (0, ranks // 4 - 1)


def test_the_page_as_it_is_shows_its_tables_and_runs_its_own_script_only(chromium, pages, tmp_path):
    page = pages[64]
    dom = browse(
        chromium, tmp_path / "profile", "--virtual-time-budget=3000", "--dump-dom", page.as_uri()
    ).decode()
    assert 'data-ready="yes"' in dom
    text = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", dom))
    for shown in (
        "Rank 3 communicates least",
        "61 ranks present, 3 missing",
        "not in the folder",
        "load_imbalance",
        "compare within",
    ):
        assert shown in text, shown
    foreign = tmp_path / "foreign.html"
    foreign.write_text(
        page.read_text(encoding="utf-8").replace("</body>", "<script>document.title='in'</script></body>"),
        encoding="utf-8",
    )
    dom = browse(
        chromium, tmp_path / "profile", "--virtual-time-budget=3000", "--dump-dom", foreign.as_uri()
    ).decode()
    assert "<title>in</title>" not in dom


def test_names_from_a_trace_are_text_and_no_markup(tmp_path):
    path = write_run(tmp_path / "run", 1, steps=2) / "rank_0" / "ASCEND_PROFILER_OUTPUT" / "trace_view.json"
    text = path.read_text().replace("MatMul-op1", "</script><img src=x onerror=alert(1)>")
    path.write_text(text[:-40])  # with a broken tail, so that the quarantine table has a row
    write_analysis(analyse(tmp_path / "run"), tmp_path / "out", "</title><script>alert(1)</script>")
    page = (tmp_path / "out" / "heatmap.html").read_text()
    assert "<img" not in page and "<script>alert" not in page


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0 %"), (0.004, "< 1 %"), (0.02, "2 %"), (0.999, "> 99 %"), (1.0, "100 %")],
)
def test_few_is_not_none_and_nearly_all_is_not_all(value, text):
    assert _share(value) == text
