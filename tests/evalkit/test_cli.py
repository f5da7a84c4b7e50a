"""The command line as a user meets it: one clear line for bad input, the right exit code, nothing half-written."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from evalkit.bundle import ModelSpec, manifest_digest, model_digest
from evalkit.runs.folder import RunFolder
from tests.sandbox.processes import SandboxProcess

SCENARIO = "version: 1\nname: small\ntext: {data: texts.jsonl}\n"
TEXTS = '{"id": "a", "text": "hello, my card is lost"}\n{"id": "b", "text": "your account holds 50 euro"}\n'


def evalkit(*words: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "evalkit", *[str(word) for word in words]]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd, timeout=240)


def refused(done: subprocess.CompletedProcess[str], *parts: str) -> None:
    """Exit code 2, nothing on stdout, one line on stderr that holds every part."""
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("error: ")
    for part in parts:
        assert part in lines[0]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a sound scenario."""
    (tmp_path / "scenario.yaml").write_text(SCENARIO)
    (tmp_path / "texts.jsonl").write_text(TEXTS)
    return tmp_path


@pytest.mark.parametrize(
    ("scenario", "parts"),
    [
        (SCENARIO + "colour: red\n", ["scenario.yaml:4: colour: unknown key"]),
        (SCENARIO + "name: again\n", ["scenario.yaml:4: name: key given twice"]),
        (SCENARIO + "flow: [\n", ["scenario.yaml:5: broken YAML"]),
        ("\x00\x01\x02", ["scenario.yaml", "binary"]),
        ("version: 2\nname: x\ntext: {data: texts.jsonl}\n", ["scenario.yaml:1: version"]),
        ("version: 1\nname: x\n", ["nothing to measure"]),
        ("version: 1\nname: x\ntext: {data: absent.jsonl}\n", ["scenario.yaml:3: text.data", "no such file"]),
        (
            SCENARIO + "gate: {rules: [{metric: perplexity/tokn, max: 3}]}\n",
            ["perplexity/tokn", "perplexity/token"],
        ),
    ],
)
def test_a_broken_scenario_is_named_by_line(
    folder: Path, tiny_bundle: Path, scenario: str, parts: list[str]
) -> None:
    (folder / "scenario.yaml").write_text(scenario)
    done = evalkit("run", folder / "scenario.yaml", "--model", tiny_bundle, "--out", folder / "run")
    refused(done, *parts)
    assert not (folder / "run").exists()


@pytest.mark.parametrize(
    ("data", "parts"),
    [
        ("", ["texts.jsonl", "empty"]),
        (TEXTS + '{"id": "a", "text": "again"}\n', ["texts.jsonl:3", "'a'", "repeated"]),
        (TEXTS + "{\n", ["texts.jsonl:3", "broken JSON"]),
        (TEXTS + '{"id": "c"}\n', ["texts.jsonl:3", "text"]),
        (b"\xff\xfe\x00", ["texts.jsonl", "not UTF-8"]),
    ],
)
def test_broken_data_is_named_by_line(
    folder: Path, tiny_bundle: Path, data: str | bytes, parts: list[str]
) -> None:
    (folder / "texts.jsonl").write_bytes(data if isinstance(data, bytes) else data.encode())
    refused(evalkit("run", folder / "scenario.yaml", "--model", tiny_bundle, "--out", folder / "run"), *parts)
    assert not (folder / "run").exists()


def test_missing_and_corrupt_bundles(folder: Path, tiny_bundle: Path) -> None:
    scenario = folder / "scenario.yaml"
    refused(evalkit("run", scenario), "no model is named")
    refused(evalkit("run", scenario, "--model", folder / "absent"), "absent", "no such bundle folder")
    copy = folder / "bundle"
    shutil.copytree(tiny_bundle, copy)
    weights = copy / "weights.safetensors"
    data = bytearray(weights.read_bytes())
    data[len(data) // 2] ^= 1
    weights.write_bytes(data)
    refused(evalkit("run", scenario, "--model", copy), "weights.safetensors", "corrupt")


def test_usage_errors_exit_2(folder: Path) -> None:
    assert evalkit("run").returncode == 2
    assert evalkit("walk").returncode == 2
    refused(evalkit("run", folder / "scenario.yaml", "--baseline", "alias:production"), "alias:production")
    refused(evalkit("judge", folder / "absent"), "no such run folder")
    refused(evalkit("report", folder), "plan.json")
    refused(evalkit("verify", folder / "absent"), "no such run folder")
    refused(evalkit("resume", folder / "absent"), "no such run folder")
    refused(evalkit("rescore", folder), "plan.json")
    refused(evalkit("compare", folder / "absent", folder / "other"), "no such run folder")
    refused(evalkit("power", folder / "scenario.yaml"), "gate", "no rule to decide")
    refused(evalkit("validate", folder / "absent.yaml"), "no such file")
    refused(
        evalkit("score", "--model", folder, "--data", folder / "texts.jsonl", "--window", "8/9/first"),
        "--window",
    )


def test_an_existing_run_folder_is_left_alone(folder: Path, tiny_bundle: Path) -> None:
    out = folder / "out"
    out.mkdir()
    (out / "precious").write_text("x")
    done = evalkit("run", folder / "scenario.yaml", "--model", tiny_bundle, "--out", out)
    refused(done, "exists already")
    assert [path.name for path in out.iterdir()] == ["precious"]


def test_a_run_folder_that_cannot_be_or_should_not_be(folder: Path, tiny_bundle: Path) -> None:
    words = ("run", folder / "scenario.yaml", "--model", tiny_bundle, "--out")
    refused(evalkit(*words, folder / "texts.jsonl" / "run"), "texts.jsonl")
    refused(evalkit(*words, tiny_bundle / "run"), "inside the bundle")
    assert not (tiny_bundle / "run").exists()


def test_a_run_without_a_gate_is_whole_and_verifies(folder: Path, tiny_bundle: Path) -> None:
    out = folder / "run"
    done = evalkit("run", folder / "scenario.yaml", "--model", tiny_bundle, "--out", out, "--tokens")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-2:] == ["verdict: NOT JUDGED", f"report: {out}/reports/report.html"]
    names = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
    evidence = {f"evidence/candidate/{name}.parquet" for name in ("samples", "tokens", "turns")}
    reports = {f"reports/{name}" for name in ("report.html", "report.md", "junit.xml")}
    assert names == {"plan.json", "results.json", "seal.json"} | evidence | reports
    assert evalkit("verify", out).returncode == 0
    tokens = out / "evidence" / "candidate" / "tokens.parquet"
    tokens.write_bytes(tokens.read_bytes()[:-1])
    verified = evalkit("verify", out)
    assert verified.returncode == 1
    assert "tokens.parquet" in verified.stdout


def test_token_rows_add_up_to_the_results(folder: Path, tiny_bundle: Path) -> None:
    import pyarrow.parquet as pq

    out = folder / "run"
    done = evalkit(
        "score", "--model", tiny_bundle, "--data", folder / "texts.jsonl", "--out", out, "--tokens", "--json"
    )
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)
    tokens = pq.read_table(RunFolder(out).tokens("candidate")).to_pandas()
    assert list(tokens.columns) == [
        "sample_id",
        "index",
        "token_id",
        "start_byte",
        "end_byte",
        "token_class",
        "logprob",
        "entropy",
        "margin",
        "rank",
    ]
    assert len(tokens) == results["conservation"]["tokens_scored"]
    total = next(metric for metric in results["metrics"] if metric["name"] == "logits/entropy")
    assert tokens["entropy"].astype("float64").mean() == pytest.approx(total["value"], rel=1e-6)


def test_a_sandbox_is_checked_before_anything_is_measured(
    folder: Path, tiny_bundle: Path, server: SandboxProcess
) -> None:
    out = folder / "run"
    words = ("run", folder / "scenario.yaml", "--model", tiny_bundle, "--out", out, "--sandbox")
    refused(evalkit(*words, server.address), "--sandbox", "no dialogues")
    (folder / "hello.yaml").write_text(
        "id: hello\nturns: [{user: hello, gold: hi, expect: {contains: [hi]}}]\n"
    )
    (folder / "scenario.yaml").write_text(
        SCENARIO + "dialogues: {include: [hello.yaml], max_new_tokens: 4}\n"
    )
    copy = folder / "bundle"
    export_other_window(tiny_bundle, copy)
    other = ("run", folder / "scenario.yaml", "--model", copy, "--out", out, "--sandbox")
    refused(evalkit(*other, server.address), "model_digest")
    refused(evalkit(*words, "junk"), "--sandbox junk", "HOST:PORT")
    nobody = evalkit(*words, "127.0.0.1:1")
    assert nobody.returncode == 4
    assert len(nobody.stderr.splitlines()) == 1
    assert not out.exists()
    done = evalkit(*words, server.address)
    assert done.returncode == 0, done.stderr
    assert (out / "evidence" / "candidate" / "turns.parquet").is_file()


def export_other_window(bundle: Path, copy: Path) -> None:
    """The same weights under another architecture, hence another model digest."""
    shutil.copytree(bundle, copy)
    content = json.loads((copy / "manifest.json").read_text())
    content["model"]["attention_window"] = 7
    spec = ModelSpec.model_validate(content["model"])
    weights = content["files"]["weights.safetensors"]["sha256"]
    content["model_digest"] = model_digest(weights, content["tokenizer"]["sha256"], spec)
    content["manifest_sha256"] = manifest_digest(content)
    (copy / "manifest.json").write_text(json.dumps(content))


def test_the_result_cache_is_shown_and_cleared(folder: Path, tiny_bundle: Path, own_home: Path) -> None:
    words = ("score", "--model", tiny_bundle, "--data", folder / "texts.jsonl")
    assert evalkit("cache").stdout.endswith("total: 0 batches, 0.0 of 2,048.0 MiB\n")
    assert not own_home.exists()
    assert evalkit(*words, "--no-cache").returncode == 0
    assert not own_home.exists()
    first, second = evalkit(*words, "--json"), evalkit(*words, "--json")
    assert "were computed before" not in first.stderr
    assert "1 of 1 batches were computed before" in second.stderr
    assert json.loads(first.stdout)["metrics"] == json.loads(second.stdout)["metrics"]
    shown = json.loads(evalkit("cache", "--json").stdout)
    assert (shown["entries"], len(shown["models"])) == (1, 1)
    assert shown["path"] == str(own_home / "result_cache.sqlite3")
    (own_home / "result_cache.sqlite3").write_bytes(b"rubbish" * 100)
    refused(evalkit("cache"), "result_cache.sqlite3", "evalkit cache --clear")
    assert "total: 0 batches" in evalkit("cache", "--clear").stdout
    assert list(own_home.iterdir()) == []


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_a_progress_bar_where_stderr_is_a_terminal(folder: Path, tiny_bundle: Path) -> None:
    import pty

    ours, theirs = pty.openpty()
    words = ["score", "--model", str(tiny_bundle), "--data", str(folder / "texts.jsonl"), "--json"]
    process = subprocess.Popen(
        [sys.executable, "-m", "evalkit", *words], stdout=subprocess.PIPE, stderr=theirs, text=True
    )
    os.close(theirs)
    shown = b""
    while True:
        try:
            part = os.read(ours, 1 << 16)
        except OSError:
            # The other end is closed: the process is over.
            break
        if not part:
            break
        shown += part
    os.close(ours)
    assert process.stdout is not None
    json.loads(process.stdout.read())
    process.stdout.close()
    assert process.wait() == 0
    assert b"candidate: scoring" in shown and b"2/2" in shown
