"""The commands: exit codes, one-line errors, the JSON contract."""

import io
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from evalkit.console import run
from tests.trainer.diagnosis.spike_logs import jsonl
from trainer.cli import cli
from trainer.diagnosis.rank_table import generate_rank_table


@dataclass(frozen=True)
class Result:
    """What a command left behind."""

    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def trainer(capsys, monkeypatch):
    """Runs a command of `trainer` in this process, as the console script does."""

    def call(*arguments: str | Path, stdin: str = "") -> Result:
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        with pytest.raises(SystemExit) as left:
            run(cli, [str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return Result(left.value.code, out, err)

    return call


@pytest.fixture
def table(tmp_path) -> Path:
    path = tmp_path / "hccl.json"
    path.write_text(json.dumps(generate_rank_table({"10.0.0.9": ["10.0.0.1", "10.0.0.2"]})))
    return path


def contract(result: Result) -> dict:
    fields = json.loads(result.stdout)
    assert {"findings", "missing_ranks", "quarantine", "skew"} <= fields.keys()
    for finding in fields["findings"]:
        assert {"rule", "severity", "evidence", "rivals", "action"} <= finding.keys()
    return fields


def test_a_valid_rank_table_exits_0_and_an_invalid_one_1(trainer, table):
    result = trainer("doctor", "rank-table", table, "--json")
    assert (result.returncode, contract(result)["valid"]) == (0, True)
    value = json.loads(table.read_text()) | {"server_count": "7"}
    table.write_text(json.dumps(value))
    result = trainer("doctor", "rank-table", table, "--json")
    assert result.returncode == 1 and contract(result)["findings"][0]["rule"] == "count_mismatch"
    assert "NOT VALID" in trainer("doctor", "rank-table", table).stdout


def test_a_warning_alone_exits_0(trainer, table):
    value = json.loads(table.read_text())
    value["server_list"][0]["device"][0]["device_port"] = "80"
    table.write_text(json.dumps(value))
    assert trainer("doctor", "rank-table", table).returncode == 0


def test_generate_then_validate(trainer, tmp_path):
    out = tmp_path / "new" / "hccl.json"
    servers = ("--server", "n0=10.0.0.1,10.0.0.2", "--server", "n1=10.0.0.3,10.0.0.4")
    assert trainer("doctor", "rank-table", "--generate", *servers, "--out", out).returncode == 0
    result = trainer("doctor", "rank-table", out, "--json")
    assert result.returncode == 0 and contract(result)["ranks"] == 4
    assert json.loads(trainer("doctor", "rank-table", "--generate", *servers).stdout) == json.loads(
        out.read_text()
    )
    assert trainer("doctor", "rank-table", "--generate", *servers, "--out", out).returncode == 2


def test_environment_reads_a_file_or_its_own_process(trainer, tmp_path, monkeypatch):
    path = tmp_path / "env.txt"
    path.write_text("HCCL_CONNECT_TIMEOUT=60\n")
    result = trainer(
        "doctor", "environment", path, "--version", "cann=8.3.RC1", "--version", "driver=1.0", "--json"
    )
    found = {finding["rule"] for finding in contract(result)["findings"]}
    assert result.returncode == 0 and {"value_refused", "versions_not_released_together"} <= found
    monkeypatch.setenv("HCCL_RDMA_SL", "9")
    own = trainer("doctor", "environment")
    assert own.returncode == 0 and "HCCL_RDMA_SL = 9" in own.stdout


def test_oom_takes_text_a_file_or_stdin(trainer, tmp_path):
    text = (
        "x " * 3000
        + "TotalUsedMemStatistics : 1000 plus alloc size : 100 is more than total mem size : 1050."
    )
    path = tmp_path / "error.txt"
    path.write_text(text)
    for result in (
        trainer("doctor", "oom", text),
        trainer("doctor", "oom", path),
        trainer("doctor", "oom", "-", stdin=text),
    ):
        assert result.returncode == 0 and result.stdout.startswith("error: pool_limit:")


def test_oom_reads_a_log_with_bytes_that_are_not_utf8(trainer, tmp_path):
    path = tmp_path / "worker.log"
    path.write_bytes(
        b"\xd6\xd0 half a character \xe4\xb8\n"
        b"TotalUsedMemStatistics : 1000 plus alloc size : 100 is more than total mem size : 1050.\n"
    )
    result = trainer("doctor", "oom", path)
    assert result.returncode == 0 and result.stdout.startswith("error: pool_limit:")
    for content, why in ((b"\x1f\x8b\x08\0", "compressed data"), ("a b".encode("utf-16"), "UTF-16 text")):
        path.write_bytes(content)
        result = trainer("doctor", "oom", path)
        assert result.returncode == 2 and result.stdout == ""
        assert len(result.stderr.splitlines()) == 1 and why in result.stderr


def test_spikes_refuses_a_log_that_is_given_twice(trainer, tmp_path):
    log = jsonl(tmp_path / "log.jsonl")
    (tmp_path / "link.jsonl").symlink_to(log)
    for again in (log, tmp_path / "link.jsonl"):
        result = trainer("spikes", log, again)
        assert result.returncode == 2 and result.stdout == ""
        assert len(result.stderr.splitlines()) == 1 and "given twice" in result.stderr


def test_distributed(trainer, tmp_path):
    (tmp_path / "worker_0.log").write_text(
        "[ERROR] ME(1,python):2026-05-01-10:00:00.000.000 [x] x\nValueError: y\n"
    )
    result = trainer("doctor", "distributed", tmp_path, "--json")
    assert result.returncode == 0 and contract(result)["findings"][0]["rule"] == "process_raised"


def test_spikes_writes_a_page_and_findings(trainer, tmp_path):
    log = jsonl(tmp_path / "log.jsonl", change=lambda r: r | {"loss": 9.0} if 150 <= r["step"] < 160 else r)
    result = trainer("spikes", log, "--out", tmp_path / "out", "--json")
    fields = contract(result)
    assert result.returncode == 0 and fields["spikes"][0]["start"] == 150
    assert json.loads((tmp_path / "out" / "findings.json").read_text()) == fields
    assert "Loss spikes" in (tmp_path / "out" / "spikes.html").read_text()
    plain = trainer("spikes", log)
    assert plain.returncode == 0 and plain.stdout.startswith("warning: unknown_cause: step 150")


@pytest.mark.parametrize(
    "arguments",
    [
        ("doctor", "rank-table", "none.json"),
        ("doctor", "rank-table"),
        ("doctor", "rank-table", "--generate"),
        ("doctor", "rank-table", "--generate", "--server", "n0"),
        ("doctor", "rank-table", "--generate", "--server", "n0=1.1.1.1,"),
        ("doctor", "rank-table", "--generate", "--server", "n0=1.1.1.1", "--server", "n0=1.1.1.2"),
        ("doctor", "rank-table", "x.json", "--server", "n0=1.1.1.1"),
        ("doctor", "environment", "none.txt"),
        ("doctor", "environment", "--version", "cann"),
        ("doctor", "environment", "--version", "torch=2.1"),
        ("doctor", "oom", "none.txt"),
        ("doctor", "oom", " "),
        ("doctor", "distributed", "none"),
        ("spikes", "none.log"),
        ("spikes",),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(trainer, tmp_path, monkeypatch, arguments):
    monkeypatch.chdir(tmp_path)
    result = trainer(*arguments)
    assert result.returncode == 2 and result.stdout == ""
    assert len(result.stderr.splitlines()) == 1 and result.stderr.startswith("error: ")


def test_spikes_refuses_a_folder_that_exists_before_it_reads(trainer, tmp_path):
    result = trainer("spikes", tmp_path / "none.log", "--out", tmp_path)
    assert result.returncode == 2 and "exists already" in result.stderr


def test_none_of_it_loads_mindspore(tmp_path, table):
    log = jsonl(tmp_path / "log.jsonl", 20)
    code = (
        "import sys\nfrom click.testing import CliRunner\nfrom trainer.cli import cli\n"
        f"for arguments in (['doctor', 'rank-table', {str(table)!r}], ['doctor', 'environment'], ['doctor', 'oom', 'x y'],"
        f" ['spikes', {str(log)!r}]):\n"
        "    assert CliRunner().invoke(cli, arguments, standalone_mode=False).exception is None\n"
        "assert not {'mindspore', 'pandas', 'torch'} & sys.modules.keys()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_half_a_character_in_a_rank_table_is_an_input_error(trainer, table):
    value = json.loads(table.read_text())
    value["server_list"][0]["server_id"] = "\ud800"
    table.write_text(json.dumps(value))
    result = trainer("doctor", "rank-table", table)
    assert result.returncode == 2 and "\\ud800" in result.stderr and result.stderr.count("\n") == 1


@pytest.mark.parametrize("version", ["9" * 5000, "²", "2.²"])
def test_absurd_versions_are_versions_that_no_table_has(trainer, tmp_path, version):
    path = tmp_path / "freeze.txt"
    path.write_text(f"mindspore=={version}\n")
    for arguments in (("--version", f"mindspore={version}"), (path,)):
        result = trainer("doctor", "environment", *arguments, "--json")
        assert result.returncode == 0
        assert "version_not_in_table" in [item["rule"] for item in contract(result)["findings"]]


@pytest.mark.parametrize(
    "command",
    ["spikes {pipe}", "spikes {log} --plog {pipe}", "doctor rank-table {pipe}", "doctor environment {pipe}",
     "doctor oom {pipe}", "doctor distributed {pipe}", "timeline {pipe} --out {out}",
     "timeline {log} --ranks {pipe} --out {out}", "spikes /dev/null"],
)  # fmt: skip
def test_what_is_no_regular_file_is_refused(trainer, tmp_path, command):
    pipe, log = tmp_path / "pipe", jsonl(tmp_path / "log.jsonl")
    os.mkfifo(pipe)
    result = trainer(*(part.format(pipe=pipe, log=log, out=tmp_path / "out") for part in command.split()))
    assert result.returncode == 2
    assert "not a regular file" in result.stderr and result.stderr.count("\n") == 1


def test_names_that_are_not_utf8_are_shown(trainer, tmp_path):
    log = tmp_path / os.fsdecode(b"n\xff.log")
    log.write_text("".join(f"step:{step}/9 train_loss:nan\n" for step in range(9)))
    (tmp_path / os.fsdecode(b"\xff.log")).touch()
    (tmp_path / os.fsdecode(b"\xff.json")).touch()
    result = trainer("spikes", log, "--plog", log, "--out", tmp_path / "out", "--json")
    assert result.returncode == 0 and r"n\xff.log" in json.dumps(contract(result)).replace("\\\\", "\\")
    result = trainer("doctor", "distributed", tmp_path, "--json")
    assert result.returncode == 0
    assert {Path(item["file"]).name for item in contract(result)["files_skipped"]} >= {
        r"\xff.log",
        r"\xff.json",
    }
    result.stdout.encode()


@pytest.mark.parametrize(
    "arguments",
    [
        ("timeline", "", "--out", "x"),
        ("timeline", "x", "--out", ""),
        ("spikes", ""),
        ("doctor", "distributed", ""),
        ("doctor", "rank-table", ""),
        ("doctor", "environment", ""),
        ("doctor", "oom", ""),
    ],
)
def test_an_empty_path_is_not_this_folder(trainer, arguments):
    result = trainer(*arguments)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.count("\n") == 1 and "is a variable of the shell unset?" in result.stderr


@pytest.mark.parametrize("arguments", [(), ("doctor",)])
def test_without_a_command_the_help_is_a_page(trainer, arguments):
    result = trainer(*arguments)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("Usage:") and result.stderr.count("\n") > 8
