"""`trainer memory` and `trainer screen`: exit codes, one-line errors, JSON, files."""

import json
import subprocess
import sys

import pytest

from tests.trainer.diagnosis.test_doctor_cli import trainer
from tests.trainer.planning.public_runs import sweep_file, sweep_map

__all__ = ["trainer"]

PLAN = """\
version: 1
name: qwen2.5-7b
model: {hidden_size: 3584, layers: 28, heads: 28, kv_heads: 4, intermediate_size: 18944, vocab_size: 152064, qkv_bias: true}
training:
  sequence_length: 10240
  strategy: {model: 2, pipeline: 2, micro_batches: 64, sequence_parallel: true}
device: {memory_gib: 64}
measured:
  - {peak_mib: 55405}
"""
CLUSTER = """\
version: 1
nodes: 48
devices_per_node: 8
device: {memory_gib: 80, peak_tflops: 312, alignment: 8}
"""
MODEL = """\
version: 1
model: {hidden_size: 14336, layers: 72, heads: 64, intermediate_size: 57344, vocab_size: 250880, max_length: 2048,
  activation: gelu, norm: layernorm, positions: learned, tied_head: true, bias: true}
sequence_length: 2048
rows_per_step: 2048
gradient_type: fp16
flash_attention: false
dropout: true
search: {recompute: [full], zero_stages: [1]}
"""
TIMES = "times: {efficiency: 0.57, layer_micro_batch_ms: 14.8, relative_error: 0.055}\n"


@pytest.fixture
def plan(tmp_path):
    (tmp_path / "plan.yaml").write_text(PLAN)
    return tmp_path / "plan.yaml"


@pytest.mark.parametrize(
    ("memory_gib", "code", "word"), [(64, 0, "fits"), (58, 3, "too close"), (50, 1, "doesn't fit")]
)
def test_the_exit_code_says_whether_it_fits(trainer, plan, memory_gib, code, word):
    result = trainer("memory", plan, "--set", f"device.memory_gib={memory_gib}")
    assert result.returncode == code
    assert result.stdout.splitlines()[-1].startswith(f"verdict: {word} (")
    assert "measured 55,405 MiB" in result.stdout


def test_without_a_memory_there_is_no_verdict(trainer, plan):
    result = trainer("memory", plan, "--set", "device.memory_gib=null", "--json")
    assert result.returncode == 0 and json.loads(result.stdout)["verdict"] is None


def test_the_json_names_units_terms_and_the_error_to_expect(trainer, plan):
    content = json.loads(trainer("memory", plan, "--json", "--recompute").stdout)
    first, last = content["stages"]
    assert set(first["terms"]) >= {
        "parameters_mib",
        "activations_mib",
        "hccl_buffers_mib",
        "fragmentation_mib",
    }
    assert first["total_mib"] == pytest.approx(sum(first["terms"].values()), abs=0.1)
    assert (first["peak_phase"], last["peak_phase"]) == ("backward", "loss")
    assert 0 < content["accuracy"]["relative_error"] < 0.1 and content["accuracy"]["rows"] > 50
    assert (
        content["residuals"][0]["term"] == "total" and abs(content["residuals"][0]["relative_error"]) < 0.01
    )
    assert content["recompute"]["cheapest_that_fits"][0]["choice"]["layers"] == {}


def test_the_cheapest_recomputation_is_by_stage(trainer, plan):
    result = trainer("memory", plan, "--recompute", "--set", "device.memory_gib=50", "--json")
    first, second = json.loads(result.stdout)["recompute"]["cheapest_that_fits"]
    assert first["choice"]["saved_mib"] > 6000 and first["choice"]["extra_share"] < 0.01
    assert second["choice"]["saved_mib"] < first["choice"]["saved_mib"]


def test_a_dry_run_of_each_stage_decides(trainer, plan, tmp_path):
    for stage, used in enumerate((40000, 30000)):
        (tmp_path / f"rank{stage}.log").write_text(
            f"Used peak memory usage (without fragments): {used}M\nActual peak memory usage (with fragments): {used + 900}M\n"
        )
    logs = [f"--dry-run={stage}={tmp_path / f'rank{stage}.log'}" for stage in (0, 1)]
    result = trainer("memory", plan, *logs, "--set", "device.memory_gib=44", "--json")
    content = json.loads(result.stdout)
    assert (result.returncode, content["verdict"]) == (0, "fits")
    assert content["peak_mib"] == 40900 + 128 + 1200


def test_the_page_and_its_numbers_are_written(trainer, plan, tmp_path):
    result = trainer("memory", plan, "--recompute", "--out", tmp_path / "out")
    page = (tmp_path / "out" / "memory.html").read_text()
    assert result.returncode == 0 and "memory: " in result.stdout
    assert page.count("<rect ") == 8 + 9 and "://" not in page and "<script" not in page
    assert "Recomputation: the frontier" in page and "dashed: 64 GiB" in page
    assert json.loads((tmp_path / "out" / "memory.json").read_text())["name"] == "qwen2.5-7b"
    assert trainer("memory", plan, "--out", tmp_path / "out").returncode == 2


def test_a_name_cannot_write_into_the_page(trainer, plan, tmp_path):
    trainer("memory", plan, "--set", "name=<script>alert(1)</script>", "--out", tmp_path / "out")
    assert "<script" not in (tmp_path / "out" / "memory.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--set", "training.strategi=3"), "--set: training.strategi: unknown key; correct its name"),
        (("--set", "training.strategy.model=3"), "heads 28 isn't a multiple of model 3"),
        (("--dry-run", "none.log"), "none.log"),
        (("--dry-run", "7=none.log"), "stages 0 to 1"),
        (("--dry-run", "²=none.log"), "²=none.log: no such file"),
        (("--set", "training.strategy.layers_per_stage=[1, 2]"), "has 28 layers; correct it"),
        (
            ("--set", "measured=[{peak_mib: 1, terms_mib: {parameters: -3}}]"),
            "measured.0.terms_mib.parameters: Input",
        ),
        (("--graph", "none.ir"), "no such file"),
        (("--graph", __file__), "neither .ir nor .mindir"),
        (("--budget-mib", "100"), "belongs to --pressure"),
        (("--pressure", "batch", "--recompute"), "runs instead of planning"),
        (("--recompute", "--set", "device.memory_gib=null"), "needs device.memory_gib"),
    ],
)
def test_wrong_use_is_one_line(trainer, plan, arguments, words):
    result = trainer("memory", plan, *arguments)
    assert result.returncode == 2 and words in result.stderr and result.stderr.count("\n") == 1


def test_inference_by_its_cache(trainer, tmp_path):
    text = (
        PLAN.partition("training:")[0]
        + "inference: {sequences: 64, length: 8192}\ndevice: {memory_gib: 64}\n"
    )
    (tmp_path / "plan.yaml").write_text(text)
    content = json.loads(trainer("memory", tmp_path / "plan.yaml", "--json").stdout)
    assert content["stages"][0]["terms"]["kv_cache_mib"] == 64 * 8192 * 57344 / 2**20


@pytest.fixture
def screening(tmp_path):
    (tmp_path / "cluster.yaml").write_text(CLUSTER + TIMES)
    (tmp_path / "model.yaml").write_text(MODEL)
    return tmp_path / "cluster.yaml", tmp_path / "model.yaml"


def test_a_screening_writes_ready_fragments(trainer, screening, tmp_path):
    result = trainer("screen", *screening, "--top", "3", "--out", tmp_path / "out")
    assert result.returncode == 0, result.stderr
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "01.yaml", "02.yaml", "03.yaml", "screen.json", "strategies.csv",
    ]  # fmt: skip
    assert "optimizer_shard: true" in (tmp_path / "out" / "01.yaml").read_text()
    assert len(result.stdout.splitlines()) == 5


def test_the_first_group_is_counted_whether_it_is_shown_or_not(trainer, screening):
    found = json.loads(trainer("screen", *screening, "--json", "--top", "100").stdout)
    count = sum(item["group"] == 1 for item in found["strategies"])
    assert count > 2
    few = trainer("screen", *screening, "--top", "2").stderr
    assert (
        f"group 1 holds {count} strategies, 2 of them shown: " in few and "the first row is no winner" in few
    )
    assert f"group 1 holds {count} strategies: " in trainer("screen", *screening, "--top", "100").stderr


def test_communication_that_nobody_priced_is_said(trainer, screening):
    cluster, model = screening
    result = trainer("screen", cluster, model)
    assert "communication costs nothing here: CLUSTER.yaml has no links" in result.stderr
    links = "links: [{level: all, devices: 384, bandwidth: [{size_mib: 64, gb_s: 20}]}]\n"
    cluster.write_text(cluster.read_text() + links)
    result = trainer("screen", cluster, model, "--json")
    assert "costs nothing" not in result.stderr and json.loads(result.stdout)["communication"] == "links"


def test_nothing_fits_is_exit_code_1(trainer, screening):
    cluster, model = screening
    cluster.write_text(cluster.read_text().replace("memory_gib: 80", "memory_gib: 4"))
    assert trainer("screen", cluster, model).returncode == 1


def test_a_screening_calibrated_on_the_public_sweep(trainer, screening, tmp_path, traces):
    """The figures of the fit, and a textbook's model beside them, stand before the list."""
    cluster, model = screening
    cluster.write_text(CLUSTER)
    mapping = sweep_map(date="02-25", nlayers="72", nhidden="14336")
    (tmp_path / "map.yaml").write_text(mapping.model_dump_json(exclude_defaults=True))
    options = ("--calibrate", sweep_file(traces), "--map", tmp_path / "map.yaml")
    result = trainer("screen", cluster, model, *options, "--json")
    content = json.loads(result.stdout)
    times, textbook = content["calibration"]["times"], content["calibration"]["textbook"]
    assert times["spearman"] >= 0.5 and times["spearman_left_out"] >= 0.35
    assert textbook["spearman_left_out"] < times["spearman_left_out"]
    assert set(times["top_recall_left_out"]) == {"top_1", "top_3", "top_5"}
    assert content["relative_error"] == times["relative_error_left_out"]
    assert content["calibration"]["memory"]["missed_out_of_memory"] == []
    # What ran fastest that day, 110 to 112 s, is among those that the model can't tell from its first.
    cuts = {(i["strategy"]["data"], i["strategy"]["model"], i["strategy"]["pipeline"], i["strategy"]["micro_batch_size"])
            for i in content["strategies"] if i["group"] == 1}  # fmt: skip
    assert {(8, 4, 12, 2), (16, 4, 6, 2), (16, 2, 12, 2)} <= cuts


@pytest.mark.parametrize(
    ("change", "arguments", "words"),
    [
        (("times:", "time:"), (), "time: unknown key"),
        ((TIMES, ""), (), "times: is missing"),
        (("nodes: 48", "nodes: 0"), (), "cluster.yaml:2: nodes"),
        (
            ("nodes: 48", "nodes: true"),
            (),
            "cluster.yaml:2: nodes: Input should be a valid integer (got ",
        ),
        (
            ("nodes: 48", 'nodes: "48"'),
            (),
            "cluster.yaml:2: nodes: Input should be a valid integer (got '48')",
        ),
        (("version", "version"), ("--map", "map.yaml"), "give both, or neither"),
        (("version", "version"), ("--calibrate", "none.csv"), "none.csv"),
        (
            ("version", "version"),
            ("--calibrate", "a.csv", "--calibrate", "./a.csv"),
            "--calibrate a.csv: given twice",
        ),
    ],
)
def test_wrong_use_of_screen_is_one_line(trainer, screening, change, arguments, words):
    cluster, model = screening
    cluster.write_text(cluster.read_text().replace(*change))
    result = trainer("screen", cluster, model, *arguments)
    assert result.returncode == 2 and words in result.stderr and result.stderr.count("\n") == 1


def test_planning_never_loads_mindspore(plan):
    code = "import sys; from trainer.cli import cli; cli(sys.argv[1:], standalone_mode=False); print('mindspore' in sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", code, "memory", str(plan), "--recompute"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout.splitlines()[-1] == "False"
