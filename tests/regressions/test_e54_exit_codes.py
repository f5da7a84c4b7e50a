"""E54: what was not found, failed or undecided never ends with exit code 0."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from evalkit.cli import cli
from evalkit.errors import EvalkitError, ExitCode
from tests.evalkit.fake_run import random_evidence, write_run

PASSES = [{"metric": "perplexity/token", "max": 1000}]
FAILS = [{"metric": "perplexity/token", "max": 1.01}]
OPEN = [{"metric": "perplexity/domain", "max": 60}]


@pytest.mark.parametrize(
    ("rules", "code"), [(PASSES, ExitCode.OK), (FAILS, ExitCode.FAIL), (OPEN, ExitCode.INCONCLUSIVE)]
)
def test_e54_judge_ends_with_the_verdict(
    rules: list[dict[str, object]], code: ExitCode, tmp_path: Path
) -> None:
    run = write_run(tmp_path / "run", rules, random_evidence(1, texts=30, dialogues=0), None)
    result = CliRunner().invoke(cli, ["judge", str(run.path)], standalone_mode=False)
    assert result.return_value == code


def test_e54_verify_ends_with_1_where_something_differs(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", PASSES, random_evidence(1, texts=30, dialogues=0), None)
    assert (
        CliRunner().invoke(cli, ["verify", str(run.path)], standalone_mode=False).return_value == ExitCode.OK
    )
    run.results.unlink()
    result = CliRunner().invoke(cli, ["verify", str(run.path)], standalone_mode=False)
    assert result.return_value == ExitCode.FAIL
    assert "results.json" in result.output


@pytest.mark.parametrize("command", ["judge", "report", "verify"])
def test_e54_a_run_that_does_not_exist_is_an_input_error(command: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(cli, [command, str(tmp_path / "nothing")], standalone_mode=False)
    assert isinstance(result.exception, EvalkitError)
    assert result.exception.exit_code == ExitCode.INPUT
