"""A served model gives the numbers of the offline backend, by token ids and by whole texts, and says what it can't give."""

import json
import math
import ssl
import time
from typing import Any

import pyarrow.parquet as pq
import pytest

from evalkit.backends.endpoint import EndpointBackend
from evalkit.backends.endpoint_client import EndpointClient
from evalkit.errors import InputError
from evalkit.runs.evidence_io import read_evidence
from evalkit.runs.folder import RunFolder
from evalkit.runs.verify import verify
from evalkit.scenario.loader import load_scenario
from evalkit.scenario.model_schema import EndpointRef
from tests.support.completions_server import CompletionsServer, serve
from tests.support.endpoints import by_ids, by_texts, metrics, run, write_scenario
from tests.support.real_models import check_against_references, references


@pytest.fixture(scope="module")
def offline(stories_bundle, shared_data, tmp_path_factory) -> RunFolder:
    """The same texts, scored by the bundle itself with the same windows."""
    folder = tmp_path_factory.mktemp("offline")
    scenario = write_scenario(
        folder,
        {"bundle": str(stories_bundle.path)},
        shared_data,
        text={"data": "texts.jsonl", "window": {"length": 500, "stride": 500}},
    )
    return run(scenario, folder / "run", backend="onnx")


def backend_of(server: CompletionsServer, bundle: Any) -> EndpointBackend:
    client = EndpointClient(EndpointRef.model_validate(by_ids(server, bundle)))
    return EndpointBackend(client, bundle.tokenizer, model_digest="declared:x", max_length=500)


def assert_equal_numbers(ours: RunFolder, theirs: RunFolder, names: list[str]) -> None:
    found, wanted = metrics(ours), metrics(theirs)
    for name in names:
        assert wanted[name]["value"] is not None, wanted[name]["reason"]
        assert found[name]["value"] == pytest.approx(wanted[name]["value"], rel=1e-6), name
        assert found[name]["n"] == wanted[name]["n"], name


@pytest.mark.parametrize("dialect", ["prompt_logprobs", "echo"])
def test_token_ids_give_the_offline_numbers(
    endpoint, offline, stories_bundle, shared_data, tmp_path, dialect
):
    endpoint.behaviour.dialects = frozenset({dialect})
    scenario = write_scenario(tmp_path, by_ids(endpoint, stories_bundle), shared_data)
    folder = run(scenario, tmp_path / "run")
    names = ["perplexity/token", "perplexity/byte", "bits_per_byte", "perplexity/other"]
    assert_equal_numbers(folder, offline, names)
    for side, other in zip(
        read_evidence(folder, "candidate").samples, read_evidence(offline, "candidate").samples, strict=True
    ):
        assert (side.status, side.tokens, side.scored, side.unconditioned, side.bytes_scored, side.words) == (
            other.status,
            other.tokens,
            other.scored,
            other.unconditioned,
            other.bytes_scored,
            other.words,
        )
        assert side.label_logprobs == pytest.approx(other.label_logprobs, abs=1e-4)
    # The long text needs more than one window: 2 texts ask for several prompts.
    long_prompts = [body for body in endpoint.requests if len(body["prompt"]) == 501]
    assert long_prompts
    assert verify(folder) == []


@pytest.mark.parametrize("dialect", ["prompt_logprobs", "echo"])
def test_token_ids_give_the_float64_references(endpoint, stories_bundle, shared_data, dialect):
    endpoint.behaviour.dialects = frozenset({dialect})
    worst, mean = check_against_references(
        stories_bundle, backend_of(endpoint, stories_bundle), references(shared_data, "stories260K")
    )
    assert worst < 1e-3 and mean < 1e-4


def test_whole_texts_give_the_offline_numbers(endpoint, offline, shared_data, tmp_path):
    """The long text has more tokens than the model reads: an error of its own; so texts are compared one by one."""
    scenario = write_scenario(tmp_path, by_texts(endpoint), shared_data)
    folder = run(scenario, tmp_path / "run")
    ours = {record.sample_id: record for record in read_evidence(folder, "candidate").samples}
    theirs = {record.sample_id: record for record in read_evidence(offline, "candidate").samples}
    scored = [record for record in ours.values() if record.status == "ok" and record.kind == "text"]
    assert len(scored) == 13
    for record in scored:
        other = theirs[record.sample_id]
        assert record.nll == pytest.approx(other.nll, rel=1e-6)
        assert (record.tokens, record.scored, record.unconditioned) == (other.tokens, other.scored, 0)
        assert (record.bytes_scored, record.words) == (other.bytes_scored, other.words)
    long = ours["t12"]
    assert long.status == "error" and "maximum context length" in str(long.reason)
    for name in ("d0", "d1", "d2", "d3"):
        assert ours[name].label_logprobs == pytest.approx(theirs[name].label_logprobs, abs=1e-4)
    found = metrics(folder)
    nll, size = (math.fsum(getattr(record, field) for record in scored) for field in ("nll", "bytes_scored"))
    assert found["bits_per_byte"]["value"] == pytest.approx(nll / size / math.log(2), rel=1e-12)
    assert found["bits_per_byte"]["signature"] == "ppl|w:whole|p:declared|v:1"
    assert "token counts" in found["perplexity/head"]["reason"]
    tokens = pq.read_table(folder.tokens("candidate"))
    assert tokens.column("token_id").null_count == tokens.num_rows
    assert verify(folder) == []


def test_what_the_endpoint_does_not_give_is_null_with_the_reason(
    endpoint, stories_bundle, shared_data, tmp_path
):
    folder = run(write_scenario(tmp_path, by_ids(endpoint, stories_bundle), shared_data), tmp_path / "run")
    found = metrics(folder)
    for name in (
        "logits/entropy",
        "logits/margin",
        "logits/rank",
        "logits/top_k_accuracy",
        "logits/rank/other",
    ):
        assert found[name]["value"] is None and found[name]["interval"] is None
        assert "an endpoint gives log-probabilities alone" in found[name]["reason"]
    tokens = pq.read_table(folder.tokens("candidate"))
    for name in ("entropy", "margin", "rank"):
        assert tokens.column(name).null_count == tokens.num_rows > 200
    assert tokens.column("logprob").null_count == tokens.column("token_id").null_count == 0


def test_the_identity_is_plainly_declared_everywhere(
    endpoint, stories_bundle, shared_data, tmp_path, monkeypatch
):
    monkeypatch.setenv("STORIES_KEY", "sk-very-secret")
    endpoint.behaviour.key = "sk-very-secret"
    scenario = write_scenario(
        tmp_path,
        by_ids(endpoint, stories_bundle, api_key_env="STORIES_KEY"),
        shared_data,
        gate={"rules": [{"metric": "perplexity/token", "max": 100}]},
    )
    folder = run(scenario, tmp_path / "run")
    plan = json.loads(folder.plan.read_text())["candidate"]
    assert plan["model_digest"] == "declared:stories-260k" and plan["identity"] == "declared"
    assert plan["identity_note"] == "declared by the operator of the endpoint, not verified"
    assert plan["endpoint"] == endpoint.url and plan["backend"] == {
        "name": "endpoint",
        "precision": "declared",
    }
    for file in (folder.results, folder.verdict):
        assert json.loads(file.read_text())["model_digest"] == "declared:stories-260k"
    for name in ("report.html", "report.md"):
        report = (folder.reports / name).read_text()
        assert "declared:stories-260k" in report.replace("\\", "")
        assert "not verified" in report
    assert "|p:declared|" in metrics(folder)["perplexity/token"]["signature"]
    for file in folder.path.rglob("*"):
        assert not file.is_file() or b"very-secret" not in file.read_bytes(), file


def test_equal_declared_models_are_inconclusive_and_a_bundle_is_not_comparable(
    endpoint, stories_bundle, shared_data, tmp_path
):
    served = by_ids(endpoint, stories_bundle)
    gate = {"rules": [{"metric": "bits_per_byte", "change": {"max_relative_increase": 0.5}}]}
    baselines = {
        "candidate and baseline are the same model": served,
        "measured in different ways": {"bundle": str(stories_bundle.path)},
    }
    for index, (reason, baseline) in enumerate(baselines.items()):
        scenario = write_scenario(tmp_path / str(index), served, shared_data, baseline, gate=gate)
        verdict = json.loads(run(scenario, tmp_path / str(index) / "run", backend="onnx").verdict.read_text())
        assert verdict["verdict"] == "INCONCLUSIVE"
        assert reason in json.dumps(verdict["rules"])


def test_two_declared_models_are_compared(endpoint, stories_bundle, shared_data, tmp_path):
    ours, theirs = (by_ids(endpoint, stories_bundle, declare=name) for name in ("model-b", "model-a"))
    gate = {"rules": [{"metric": "bits_per_byte", "change": {"max_relative_increase": 0.5}}]}
    scenario = write_scenario(tmp_path, ours, shared_data, theirs, gate=gate)
    run(scenario, tmp_path / "run")
    compared = json.loads((tmp_path / "run" / "comparison.json").read_text())
    assert (compared["model_digest"], compared["baseline_model_digest"]) == (
        "declared:model-b",
        "declared:model-a",
    )
    bits = next(item for item in compared["metrics"] if item["name"] == "bits_per_byte")
    assert bits["absolute"]["value"] == 0.0


def test_requests_run_side_by_side_and_change_no_number(endpoint, stories_bundle, shared_data, tmp_path):
    found = []
    for concurrency in (1, 6):
        endpoint.busy = 0
        endpoint.behaviour.intercept = lambda number, body: time.sleep(0.01)
        scenario = write_scenario(
            tmp_path / str(concurrency),
            by_ids(endpoint, stories_bundle, concurrency=concurrency),
            shared_data,
        )
        folder = run(scenario, tmp_path / str(concurrency) / "run")
        found.append(json.loads(folder.results.read_text())["metrics"])
        assert endpoint.busy <= concurrency
    assert endpoint.busy > 1
    assert found[0] == found[1]


def test_https_with_a_certificate_of_the_system(stories_server, stories_bundle, tmp_path, monkeypatch):
    trustme = pytest.importorskip("trustme")
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    server = CompletionsServer(stories_server.backend, stories_server.tokenizer)
    monkeypatch.setattr("evalkit.backends.endpoint_client._FIRST_WAIT_S", 0.001)
    with serve(server, context):
        with pytest.raises(Exception, match="certificate verify failed"):
            backend_of(server, stories_bundle)
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
        assert backend_of(server, stories_bundle).vocab_size == 512


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"endpoint": "ftp://host/v1"}, "endpoint: http://HOST/v1 or https://HOST/v1 is needed"),
        ({"endpoint": "http://user:pw@host/v1"}, "no user, password or query may stand in the URL"),
        ({"endpoint": "http://host/v1?key=1"}, "no user, password or query may stand in the URL"),
        ({"declare": "two words"}, "model.declare"),
        ({"max_length": None}, "tokenizer and max_length go together"),
        ({"prefix_token": "<bos>"}, "prefix_token '<bos>' isn't a token of"),
        ({"tokenizer": "texts.jsonl"}, "not a tokenizer file"),
        ({"tokenizer": "nowhere.json"}, "no such file"),
        ({"concurrency": 0}, "model.concurrency"),
        ({"timeout": 3}, "unknown key"),
    ],
)
def test_wrong_scenarios_are_named(endpoint, stories_bundle, shared_data, tmp_path, change, message):
    model = {**by_ids(endpoint, stories_bundle), **change}
    scenario = write_scenario(
        tmp_path, {key: value for key, value in model.items() if value is not None}, shared_data
    )
    with pytest.raises(InputError, match=r"scenario\.yaml:1: ") as caught:
        load_scenario(scenario)
    assert message in str(caught.value) and "pw" not in str(caught.value) and "\n" not in str(caught.value)


def test_windows_need_the_tokenizer(endpoint, shared_data, tmp_path):
    text = {"data": "texts.jsonl", "window": {"length": 64, "stride": 64}}
    scenario = write_scenario(tmp_path, by_texts(endpoint), shared_data, text=text)
    with pytest.raises(InputError, match=r"text\.window: .* for windows add tokenizer and max_length"):
        run(scenario, tmp_path / "run")
