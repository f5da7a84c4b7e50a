"""memory.html in a real browser: nothing overflows, the bars are as long as their numbers say."""

import html
import json
import re

import pytest

from tests.support.browser import browse
from tests.trainer.planning.public_runs import QWEN_7B, training_qwen_7b
from trainer.planning.memory_page import render_memory_page
from trainer.planning.memory_run import plan_memory

PROBE = """
<script>
addEventListener("load", () => {
  const wide = (node) => node.getBoundingClientRect().width;
  const bars = [...document.querySelectorAll(".bar svg")].map((svg) =>
    [...svg.querySelectorAll("rect")].reduce((sum, rect) => sum + wide(rect), 0));
  const limit = document.querySelector(".limit").getBoundingClientRect().left - document.querySelector(".bar").getBoundingClientRect().left;
  document.body.dataset.out = JSON.stringify({overflow: document.documentElement.scrollWidth - document.documentElement.clientWidth, bars, limit});
});
</script>
"""


@pytest.mark.slow
@pytest.mark.parametrize("width", [1280, 420])
def test_the_bars_are_as_long_as_their_numbers(chromium, tmp_path, width):
    (tmp_path / "plan.yaml").write_text(
        json.dumps(
            {
                "version": 1,
                "model": QWEN_7B.model_dump(exclude_none=True),
                "training": training_qwen_7b("none").model_dump(exclude_none=True),
                "device": {"memory_gib": 50},
            }
        )
    )
    report = plan_memory(tmp_path / "plan.yaml", recompute=True)
    page = render_memory_page(report)
    # The page allows no script; the probe needs one.
    page = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page).replace(
        "</body>", f"{PROBE}</body>"
    )
    (tmp_path / "page.html").write_text(page)
    dumped = browse(
        chromium,
        tmp_path / "profile",
        f"--window-size={width},900",
        "--dump-dom",
        (tmp_path / "page.html").as_uri(),
    )
    out = json.loads(html.unescape(re.search(r'data-out="([^"]+)"', dumped.decode()).group(1)))
    assert out["overflow"] == 0
    totals = [stage.total_mib for stage in report.stages]
    assert out["bars"][0] / out["bars"][1] == pytest.approx(totals[0] / totals[1], rel=0.02)
    assert out["limit"] / out["bars"][0] == pytest.approx(50 * 1024 / totals[0], rel=0.02)
