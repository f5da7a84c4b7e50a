"""Everything that the commands do, as Python functions: those that the pages document, with typed findings and text paths."""

import importlib
import inspect
import json
import re
from pathlib import Path

import pytest

from tests.trainer.diagnosis import descriptions
from tests.trainer.diagnosis.spike_logs import mindformers
from tests.trainer.timeline.synthetic import write_run
from trainer.diagnosis.distributed import diagnose_distributed
from trainer.diagnosis.environment import check_environment, read_settings
from trainer.diagnosis.evaluation import check_evaluations
from trainer.diagnosis.out_of_memory import diagnose_out_of_memory
from trainer.diagnosis.rank_table import check_rank_table, generate_rank_table
from trainer.diagnosis.spikes import diagnose_spikes
from trainer.findings import SEVERITIES, Finding, report
from trainer.timeline.ranks import read_rank_map
from trainer.timeline.run import analyse, write_analysis

DOCS = Path(__file__).resolve().parents[2] / "docs"


def typed(findings):
    assert all(isinstance(finding, Finding) and finding.severity in SEVERITIES for finding in findings)
    assert all(finding.summary and finding.action for finding in findings)
    json.dumps(report(findings), allow_nan=False)
    return {finding.rule for finding in findings}


def test_the_timeline(tmp_path):
    run = write_run(tmp_path / "run", 4, slow_rank=1)
    (tmp_path / "ranks.yaml").write_text("trace_view.json: 1\n")
    analysis = analyse(str(run))
    assert "load_imbalance" in typed(analysis.findings)
    assert analyse(str(run / "rank_0"), read_rank_map(str(tmp_path / "ranks.yaml"))).ranks[0].rank == 1
    write_analysis(analysis, str(tmp_path / "out"), "x")
    assert (tmp_path / "out" / "heatmap.html").is_file()


def test_the_diagnosing_functions(tmp_path):
    log = mindformers(tmp_path / "a.log", [7.25] * 20 + [float("nan")] * 5)
    assert typed(diagnose_spikes([str(log)]).findings)
    (tmp_path / "table.json").write_text(json.dumps(generate_rank_table({"n0": ["10.0.0.1"]})))
    assert typed(check_rank_table(str(tmp_path / "table.json")).findings) == {"server_id_not_ip"}
    (tmp_path / "env").write_text("HCCL_CONNECT_TIMEOUT=5\n")
    assert typed(check_environment(*read_settings(str(tmp_path / "env"))))
    assert typed(diagnose_out_of_memory("nothing of the kind")) == {"not_recognised"}
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "rank_0.log").write_text("[ERROR] rank=0 EJ0003: Failed to bind the IP port\n")
    assert typed(diagnose_distributed(str(tmp_path / "logs")).findings) == {"port_in_use"}
    assert typed(check_evaluations(descriptions.SOUND, descriptions.SOUND)) == set()


@pytest.mark.parametrize("page", ["timeline.md", "diagnosis.md"])
def test_documented_functions_exist_with_those_parameters(page):
    text = (DOCS / page).read_text(encoding="utf-8")
    found = re.findall(r"`((?:trainer|evalkit)(?:\.\w+)+)\(([\w, ]*)\)`", text)
    assert found or page == "timeline.md"
    for name, parameters in found:
        module, _, function = name.rpartition(".")
        real = inspect.signature(getattr(importlib.import_module(module), function)).parameters
        assert [item.strip() for item in parameters.split(",")] == list(real)[: parameters.count(",") + 1], (
            name
        )
