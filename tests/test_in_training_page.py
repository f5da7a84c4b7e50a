"""The page about evaluation inside training: its script runs as it stands, in a process of its own."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np

from tests.evalkit.training.fixtures import small_validation, texts, token_rows

PAGE = Path(__file__).resolve().parent.parent / "docs" / "in-training.md"


def test_the_script_runs_with_three_added_lines_and_one_function(tmp_path):
    script, adapter = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert script.count("# +") == 3
    check = small_validation(tmp_path)  # writes tokenizer.json
    lines = [json.dumps({"id": item.sample_id, "text": item.text}) for item in texts()]
    (tmp_path / "validation.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    np.save(tmp_path / "rows.npy", token_rows(check, rows=12))
    adapted = adapter + "Model(loss_cell, optimizer=optimizer).train(1, data, callbacks=[callback])\n"
    # A dataset that one Model trained can't be another's.
    again = script.split("ms.set_seed(1)")[1].split("network =")[0]
    (tmp_path / "train.py").write_text(script + again + adapted, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "GLOG_v": "3"}
    done = subprocess.run(
        [sys.executable, "train.py"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    records = [json.loads(line) for line in (tmp_path / "evaluations.jsonl").read_text().splitlines()]
    assert [(record["step"], record["trigger"], record["error"]) for record in records] == [
        (9, "at_end", None),
        (3, "at_end", None),
    ]
    names = {metric["name"] for metric in records[0]["metrics"] if metric["value"] is not None}
    assert {"perplexity/token", "bits_per_byte", "logits/entropy"} <= names
