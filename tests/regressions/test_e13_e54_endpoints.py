"""Faults of public harnesses that score served models: prompts that the server reads otherwise, answers that are nothing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from evalkit.errors import InputError
from evalkit.runs.evidence_io import read_evidence
from evalkit.runs.folder import RunFolder
from tests.support.endpoints import by_ids, by_texts, metrics, run, write_scenario


@pytest.mark.parametrize("dialect", ["prompt_logprobs", "echo"])
@pytest.mark.parametrize("usage", [True, False])
def test_e13_a_server_that_adds_a_second_bos_is_refused(
    endpoint, stories_bundle, shared_data, tmp_path, dialect, usage
):
    """vLLM #27486, open-r1 #695: the prompt has its BOS, the server adds one; every number is a little wrong."""
    endpoint.behaviour.dialects = frozenset({dialect})
    endpoint.behaviour.bos_twice, endpoint.behaviour.usage = True, usage
    scenario = write_scenario(tmp_path, by_ids(endpoint, stories_bundle), shared_data)
    with pytest.raises(InputError, match="a second BOS"):
        run(scenario, tmp_path / "run")


@pytest.mark.parametrize(
    "behaviour",
    [{"ignores_echo": True}, {"value": lambda index, logprob: 0.0}, {"value": lambda index, logprob: None}],
)
@pytest.mark.parametrize("way", ["ids", "texts"])
def test_e33_no_log_probabilities_are_no_zeros(
    endpoint, stories_bundle, shared_data, tmp_path, behaviour, way
):
    """llama.cpp #27174: `echo` is ignored, every choice scores 0.0 and accuracy is exactly chance."""
    endpoint.behaviour.dialects = frozenset({"echo"})
    vars(endpoint.behaviour).update(behaviour)
    model = by_ids(endpoint, stories_bundle) if way == "ids" else by_texts(endpoint)
    with pytest.raises(InputError, match=r"no prompt log-probabilities|every prompt log-probability is 0"):
        run(write_scenario(tmp_path, model, shared_data), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_e16_e17_e19_labels_and_bytes_are_found_by_the_text_not_by_token_counts(
    endpoint, stories_bundle, shared_data, tmp_path
):
    """Both ways of asking find the same label tokens and bytes, byte-fallback tokens included."""
    found = []
    for way, model in (("ids", by_ids(endpoint, stories_bundle)), ("texts", by_texts(endpoint))):
        folder = run(write_scenario(tmp_path / way, model, shared_data), tmp_path / way / "run")
        records = [
            record for record in read_evidence(folder, "candidate").samples if record.sample_id != "t12"
        ]
        found.append([(r.sample_id, r.status, r.tokens, r.scored, r.bytes, r.bytes_scored) for r in records])
        control = next(record for record in records if record.text and "你好" in record.text)
        assert control.bytes_scored == len(str(control.text).encode())
    assert found[0] == found[1]


@pytest.mark.parametrize("usage", [True, False])
def test_e53_a_prompt_that_the_server_cuts_is_counted(endpoint, stories_bundle, shared_data, tmp_path, usage):
    """What the server cut off in silence would be missing in the sum, its bytes not."""
    endpoint.behaviour.keeps, endpoint.behaviour.usage = 300, usage
    folder = run(write_scenario(tmp_path, by_ids(endpoint, stories_bundle), shared_data), tmp_path / "run")
    long = next(record for record in read_evidence(folder, "candidate").samples if record.sample_id == "t12")
    assert long.status == "error" and "it cuts prompts" in str(long.reason)
    assert metrics(folder)["perplexity/token"]["coverage"] == pytest.approx(13 / 15)


def test_e54_exit_codes_of_served_models(endpoint, stories_bundle, shared_data, tmp_path):
    """2 where nobody answers at the start, 4 where the endpoint dies, and the run can be resumed."""
    scenario = write_scenario(tmp_path, by_ids(endpoint, stories_bundle, timeout_s=5), shared_data)

    def command(*words: object) -> subprocess.CompletedProcess[str]:
        program = "import evalkit.backends.endpoint_client as c; c._FIRST_WAIT_S = 0.01; from evalkit.cli import main; main()"
        return subprocess.run(
            [sys.executable, "-c", program, *map(str, words)],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])},
        )

    endpoint.behaviour.intercept = lambda number, body: (0, {}, b"")
    refused = command("run", scenario, "--out", tmp_path / "run")
    assert (
        refused.returncode == 2 and refused.stderr.count("\n") == 1 and "start the server" in refused.stderr
    )
    begun = len(endpoint.requests)
    endpoint.behaviour.intercept = lambda number, body: (0, {}, b"") if number > begun + 8 else None
    died = command("run", scenario, "--out", tmp_path / "run")
    assert died.returncode == 4 and died.stderr.count("\n") == 1 and "evalkit resume" in died.stderr
    endpoint.behaviour.intercept = lambda number, body: None
    done = command("resume", tmp_path / "run")
    assert done.returncode == 0 and "verdict: NOT JUDGED" in done.stdout
    assert RunFolder(tmp_path / "run").seal.is_file()
