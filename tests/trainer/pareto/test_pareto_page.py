"""pareto.html in a real browser: nothing overflows, and every setting is where its numbers say."""

import html
import json
import re

import pytest

from tests.support.browser import browse
from tests.trainer.pareto.test_front import runs, space
from trainer.pareto.front import find_front
from trainer.pareto.knee import recommend
from trainer.pareto.page import render_pareto_page
from trainer.pareto.report import ParetoReport

PROBE = """
<script>
addEventListener("load", () => {
  const middle = (node) => { const box = node.getBoundingClientRect(); return [box.left + box.width / 2, box.top + box.height / 2]; };
  const points = Object.fromEntries([...document.querySelectorAll("svg g")].map((group) =>
    [group.textContent.trim().split(":")[0], middle(group.querySelector("circle"))]));
  document.body.dataset.out = JSON.stringify({overflow: document.documentElement.scrollWidth - document.documentElement.clientWidth,
    points, knees: document.querySelectorAll(".knee").length});
});
</script>
"""


def test_numbers_and_ticks_can_be_read():
    """Seen with public runs: 3.4799e+07 ms in the table, 410,662 on the axis."""
    plan = space()
    settings = find_front(
        [*runs(1, [2.7, 2.8], [34_798_589, 34_798_589]), *runs(2, [3.2, 3.3], [90_000, 90_000])], plan
    )
    page = render_pareto_page(ParetoReport(plan, tuple(settings), recommend(settings, plan)))
    assert "34,798,589 [" in page and "90,000 [" in page and "e+07" not in page
    ticks = re.findall(r'text-anchor="(?:middle|end)">([\d.,]+)</text>', page)
    assert ticks == ["100,000", "1,000,000", "10,000,000", "2.8", "3", "3.2"]


@pytest.mark.slow
@pytest.mark.parametrize("width", [1280, 420])
def test_faster_is_right_and_worse_is_higher(chromium, tmp_path, width):
    plan = space()
    settings = find_front(
        [*runs("<b>", [3.0, 3.02], [100, 101]), *runs(2, [3.3, 3.31], [200, 201]), *runs(3, [3.5], [50])],
        plan,
    )
    page = render_pareto_page(ParetoReport(plan, tuple(settings), recommend(settings, plan)))
    assert "<b>" not in page
    page = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page).replace(
        "</body>", f"{PROBE}</body>"
    )
    (tmp_path / "page.html").write_text(page)
    target = (tmp_path / "page.html").as_uri()
    dumped = browse(chromium, tmp_path / "profile", f"--window-size={width},900", "--dump-dom", target)
    out = json.loads(html.unescape(re.search(r'data-out="([^"]+)"', dumped.decode()).group(1)))
    assert out["overflow"] == 0 and out["knees"] == 1 and len(out["points"]) == 3
    best, fast = out["points"]["batch <b>"], out["points"]["batch 2"]
    assert fast[0] > best[0] and fast[1] < best[1]
