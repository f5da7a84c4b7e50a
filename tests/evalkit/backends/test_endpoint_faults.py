"""Everything an endpoint can do wrong gets one clear line: at the start exit 2, for one text its status, a dead one exit 4."""

import json
import math
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from evalkit.backends.endpoint import EndpointBackend
from evalkit.backends.endpoint_client import EndpointClient, _retry_after_s
from evalkit.backends.endpoint_texts import EndpointTexts
from evalkit.console import SilentProgress
from evalkit.errors import ExitCode, IncompleteError, InputError
from evalkit.metrics.token_classes import build_classifier
from evalkit.runs.evidence_io import read_evidence
from evalkit.runs.folder import RunFolder
from evalkit.runs.records import SampleRecord
from evalkit.runs.resume import resume_run
from evalkit.scenario.model_schema import EndpointRef
from evalkit.scenario.schema import Classes, Window
from evalkit.scoring.scorer import score_texts
from evalkit.scoring.texts import TextItem
from tests.support.completions_server import CompletionsServer, serve
from tests.support.endpoints import by_ids, by_texts, metrics, run, write_scenario

SHORT = "Tim had a red ball."
LONG = (
    "Once upon a time, there was a little girl named Lily. She loved to play outside in the park all day, and her "
    "dog was always with her."
)


def open_ids(server: CompletionsServer, bundle: Any, **more: Any) -> EndpointBackend:
    ref = EndpointRef.model_validate(by_ids(server, bundle, **more))
    return EndpointBackend(
        EndpointClient(ref), bundle.tokenizer, model_digest="declared:x", max_length=ref.max_length or 0
    )


def open_texts(server: CompletionsServer, **more: Any) -> EndpointTexts:
    return EndpointTexts(EndpointClient(EndpointRef.model_validate(by_texts(server, **more))))


def score(backend: EndpointBackend, bundle: Any, texts: list[str]) -> list[SampleRecord]:
    """One record a text, in order; windows of 64 positions."""
    records: list[SampleRecord] = []
    score_texts(
        [TextItem(str(index), text, str(index)) for index, text in enumerate(texts)],
        bundle.tokenizer,
        backend,
        Window(length=64, stride=64),
        build_classifier(Classes(), bundle.tokenizer, "t", None, None),
        on_records=records.extend,
    )
    return sorted(records, key=lambda record: record.sample_id)


def is_long(body: dict[str, Any]) -> bool:
    """Whether a request is about the long text: the probe and the short one have fewer tokens."""
    return len(body["prompt"]) > 32


def answers(*wrong: tuple[int, dict[str, str], bytes]) -> Callable[..., Any]:
    """Intercepts requests about the long text: with each of these once, then not any more."""
    left = list(wrong)
    return lambda number, body: left.pop(0) if left and is_long(body) else None


# At the start


@pytest.mark.parametrize(
    ("behaviour", "message"),
    [
        ({"ignores_echo": True, "dialects": frozenset({"echo"})}, "the endpoint ignores `echo`"),
        (
            {"dialects": frozenset()},
            "no logprobs.token_logprobs: the endpoint ignores `logprobs`, or forbids them",
        ),
        ({"takes_ids": False}, "leave tokenizer and max_length out, so that texts are sent as text"),
        (
            {"value": lambda index, logprob: 0.0},
            "every prompt log-probability is 0: the endpoint doesn't compute them",
        ),
        ({"value": lambda index, logprob: None}, "gives no log-probability for token 1"),
        ({"value": lambda index, logprob: "None"}, "log-probability of token 1 isn't a number ('None')"),
        ({"value": lambda index, logprob: -logprob}, "above 0: it gives something else (raw logits?)"),
        ({"bos_twice": True}, "it adds tokens of its own (a second BOS?)"),
        ({"keeps": 5}, "read 5 tokens where 25 were sent: it cuts prompts"),
        ({"write": lambda token: f"w{token}"}, "it has another vocabulary, or puts a token in front"),
        ({"max_model_len": 400}, "with max_model_len 400; max_length 500 needs 502"),
        ({"key": "sk-right"}, "it doesn't accept the API key"),
        (
            {"usage": False, "write": lambda token: None, "dialects": frozenset({"echo"})},
            "shows neither its tokens nor their number",
        ),
        (
            {"usage": False, "bos_twice": True, "generated": False, "dialects": frozenset({"echo"})},
            "it has another vocabulary, or puts a token in front (a second BOS?)",
        ),
    ],
)
def test_an_endpoint_that_does_not_fit_is_refused(endpoint, stories_bundle, behaviour, message):
    vars(endpoint.behaviour).update(behaviour)
    with pytest.raises((InputError, IncompleteError)) as caught:
        open_ids(endpoint, stories_bundle)
    shown = str(caught.value)
    # The length of the probe isn't this test's matter.
    assert (
        message.replace("25", str(len(endpoint.requests[0]["prompt"])) if endpoint.requests else "") in shown
    )
    assert shown.startswith(endpoint.url) and "\n" not in shown


@pytest.mark.parametrize(
    ("behaviour", "message"),
    [
        ({"ignores_echo": True}, "the endpoint ignores `echo`"),
        (
            {"dialects": frozenset({"prompt_logprobs"})},
            "add tokenizer and max_length, so that token ids are sent",
        ),
        ({"write": lambda token: f"token_id:{token}"}, "doesn't show its tokens as text"),
        ({"write": lambda token: "\ufffd"}, "don't add up to the text"),
        ({"keeps": 5}, "don't add up to the text: the endpoint cut it"),
        ({"value": lambda index, logprob: 0.0}, "every prompt log-probability is 0"),
    ],
)
def test_an_endpoint_that_does_not_fit_whole_texts_is_refused(endpoint, behaviour, message):
    vars(endpoint.behaviour).update(behaviour)
    with pytest.raises(InputError) as caught:
        open_texts(endpoint)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "behaviour",
    [
        {"strict": True, "dialects": frozenset({"echo"})},
        {"usage": False},
        {"usage": False, "dialects": frozenset({"echo"})},
        {"generated": False, "dialects": frozenset({"echo"})},
        {"write": lambda token: f"token_id:{token}", "dialects": frozenset({"echo"})},
        {"write": lambda token: None, "dialects": frozenset({"echo"})},
        {"max_model_len": 502},
    ],
)
def test_the_ways_of_good_servers_give_equal_numbers(endpoint, stories_bundle, behaviour):
    wanted = score(open_ids(endpoint, stories_bundle), stories_bundle, [SHORT, LONG])
    vars(endpoint.behaviour).update(behaviour)
    found = score(open_ids(endpoint, stories_bundle), stories_bundle, [SHORT, LONG])
    assert [record.nll for record in found] == [record.nll for record in wanted]
    assert all(record.status == "ok" for record in found)


@pytest.mark.parametrize("style", ["sentencepiece", "byte-level", "bytes", "no BOS shown"])
def test_tokens_written_in_the_ways_of_servers_add_up_to_the_text(endpoint, style):
    def write(token: int) -> str:
        text = endpoint.tokenizer.token_text(token)
        if style == "no BOS shown" and token == 1:
            return ""
        if style == "byte-level":
            return text.replace("\u2581", "\u0120")
        if style == "bytes" and text.startswith("<0x"):
            return "bytes:\\x" + text[3:5].lower()
        return text if style == "sentencepiece" else text.replace("\u2581", " ")

    texts = [SHORT] if style == "byte-level" else [SHORT, "Lily said: 你好, café!"]
    wanted = open_texts(endpoint).score(texts)
    endpoint.behaviour.write = write
    for text, ours, theirs in zip(texts, open_texts(endpoint).score(texts), wanted, strict=True):
        assert ours.encoded.ends.tolist() == theirs.encoded.ends.tolist()
        assert ours.encoded.ends[-1] == len(text.encode()) and ours.first == 0
        assert ours.logprob.tolist() == theirs.logprob.tolist()


def test_a_first_token_that_nothing_conditions_is_counted_not_scored(endpoint, shared_data, tmp_path):
    endpoint.behaviour.bos = False
    folder = run(write_scenario(tmp_path, by_texts(endpoint), shared_data), tmp_path / "run")
    records = [record for record in read_evidence(folder, "candidate").samples if record.kind == "text"]
    scored = [record for record in records if record.status == "ok"]
    assert len(scored) == 13 and all(record.unconditioned == 1 for record in scored)
    assert all(record.tokens == record.scored + 1 for record in scored)


def test_whoever_is_not_there_is_named_and_nothing_is_written(
    stories_bundle, shared_data, tmp_path, monkeypatch
):
    monkeypatch.setattr("evalkit.backends.endpoint_client._FIRST_WAIT_S", 0.001)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
    for model in (by_texts, lambda server: by_ids(server, stories_bundle)):
        nowhere = CompletionsServer(None, stories_bundle.tokenizer, url=url)  # type: ignore[arg-type]
        scenario = write_scenario(tmp_path, model(nowhere), shared_data)
        with pytest.raises(InputError, match="start the server, or correct the model's endpoint") as caught:
            run(scenario, tmp_path / "run")
        assert url in str(caught.value) and "ConnectError" in str(caught.value)
        assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"model": "storeis"},
            "it doesn't know this address or model (model 'storeis', HTTP 404: The model `storeis`",
        ),
        ({"endpoint": "{url}/v2"}, "it doesn't know this address or model"),
        ({"api_key_env": "NO_SUCH_KEY"}, "the environment variable NO_SUCH_KEY isn't set"),
    ],
)
def test_wrong_names_are_refused_at_the_start(
    endpoint, stories_bundle, shared_data, tmp_path, change, message
):
    change = {key: value.format(url=endpoint.url.removesuffix("/v1")) for key, value in change.items()}
    model = {**by_ids(endpoint, stories_bundle), **change}
    with pytest.raises(InputError) as caught:
        run(write_scenario(tmp_path, model, shared_data), tmp_path / "run")
    assert message in str(caught.value) and not (tmp_path / "run").exists()


def test_a_server_that_repeats_the_key_does_not_make_it_public(endpoint, stories_bundle, monkeypatch):
    monkeypatch.setenv("STORIES_KEY", "sk-wrong-but-secret")
    endpoint.behaviour.key = "sk-right"
    with pytest.raises(IncompleteError, match=r"Incorrect API key: Bearer \*\*\*") as caught:
        open_ids(endpoint, stories_bundle, api_key_env="STORIES_KEY")
    assert "secret" not in str(caught.value)


def test_a_key_is_sent_only_where_its_variable_is_named(endpoint, stories_bundle, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-right")
    endpoint.behaviour.key = "sk-right"
    with pytest.raises(IncompleteError, match="API key: None"):
        open_ids(endpoint, stories_bundle)
    open_ids(endpoint, stories_bundle, api_key_env="OPENAI_API_KEY")


def test_without_httpx_one_line_says_what_to_install(endpoint, stories_bundle, monkeypatch):
    monkeypatch.setitem(sys.modules, "httpx", None)
    with pytest.raises(InputError, match=r'pip install "evalkit\[endpoint\]"'):
        open_ids(endpoint, stories_bundle)


# One text


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (lambda index, logprob: math.nan, "log-probability of token 40 is not a finite number (nan)"),
        (lambda index, logprob: -math.inf, "log-probability of token 40 is not a finite number (-inf)"),
        (lambda index, logprob: -9999.0, "log-probability of token 40 is not a finite number (-9999)"),
        (lambda index, logprob: None, "gives no log-probability for token 40"),
        (lambda index, logprob: True, "log-probability of token 40 isn't a number (True)"),
        (lambda index, logprob: 3.5, "log-probability of token 40 is 3.5, above 0"),
    ],
)
@pytest.mark.parametrize("dialect", ["prompt_logprobs", "echo"])
def test_a_wrong_value_is_an_error_of_its_text(endpoint, stories_bundle, dialect, value, reason):
    endpoint.behaviour.dialects = frozenset({dialect})
    endpoint.behaviour.value = lambda index, logprob: value(index, logprob) if index == 40 else logprob
    short, long = score(open_ids(endpoint, stories_bundle), stories_bundle, [SHORT, LONG])
    assert short.status == "ok" and short.scored > 5
    assert long.status == "error" and reason in str(long.reason) and long.scored == 0 and long.nll == 0


@pytest.mark.parametrize("dialect", ["prompt_logprobs", "echo"])
@pytest.mark.parametrize("usage", [True, False])
def test_a_server_that_cuts_long_prompts_is_found_out(endpoint, stories_bundle, dialect, usage):
    endpoint.behaviour.dialects = frozenset({dialect})
    endpoint.behaviour.usage = usage
    endpoint.behaviour.keeps = 32
    short, long = score(open_ids(endpoint, stories_bundle), stories_bundle, [SHORT, LONG])
    assert short.status == "ok"
    assert long.status == "error" and "it cuts prompts or tokenizes again" in str(long.reason)


def test_a_token_that_was_read_as_another_is_found_out(endpoint, stories_bundle):
    endpoint.behaviour.dialects = frozenset({"echo"})
    endpoint.behaviour.write = lambda token: f"token_id:{token}"
    backend = open_ids(endpoint, stories_bundle)
    endpoint.behaviour.write = lambda token: f"token_id:{token + 1}"
    (record,) = score(backend, stories_bundle, [SHORT])
    assert record.status == "error" and "read token 0 as id 2, id 1 was sent" in str(record.reason)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ((400, {}, b'{"object": "error", "message": "too long"}'), "HTTP 400: too long"),
        ((413, {}, b"<html>Payload\nToo Large</html>"), "HTTP 413: <html>Payload Too Large</html>"),
        ((302, {"Location": "http://127.0.0.1:1/"}, b""), "HTTP 302: no further word"),
        ((200, {}, b"[]"), "the answer isn't a JSON object"),
        ((200, {}, b'{"choices": []}'), "the answer has no choices[0]"),
        ((200, {}, b'{"choices": [{"text": "x"}]}'), "the answer has no prompt_logprobs"),
        ((500, {}, b'{"error": "CUDA out of memory"}'), "after 5 attempts: HTTP 500: CUDA out of memory"),
        ((200, {}, b'{"choices": [{"te'), "after 5 attempts: the answer isn't JSON"),
        ((0, {}, b""), "after 5 attempts: RemoteProtocolError"),
    ],
)
def test_a_prompt_that_fails_while_the_endpoint_lives_is_an_error_of_its_text(
    endpoint, stories_bundle, answer, reason
):
    backend = open_ids(endpoint, stories_bundle)
    endpoint.behaviour.intercept = lambda number, body: answer if is_long(body) else None
    short, long = score(backend, stories_bundle, [SHORT, LONG])
    assert short.status == "ok"
    assert long.status == "error" and reason in str(long.reason) and "\n" not in str(long.reason)


@pytest.mark.parametrize(
    "wrong",
    [
        [(503, {}, b"loading")] * 4,
        [(429, {"Retry-After": "0"}, b"{}"), (502, {}, b"")],
        [(0, {}, b""), (0, {}, b"")],
        [(200, {}, b'{"choices": [{"te')],
    ],
)
def test_passing_faults_are_retried_and_change_no_number(endpoint, stories_bundle, wrong):
    wanted = score(open_ids(endpoint, stories_bundle), stories_bundle, [SHORT, LONG])
    endpoint.requests.clear()
    endpoint.behaviour.intercept = answers(*wrong)
    found = score(open_ids(endpoint, stories_bundle), stories_bundle, [SHORT, LONG])
    assert [(record.status, record.nll) for record in found] == [("ok", record.nll) for record in wanted]
    assert sum(map(is_long, endpoint.requests)) == len(wrong) + 1


def test_retry_after_is_honoured(endpoint, stories_bundle):
    backend = open_ids(endpoint, stories_bundle)
    endpoint.behaviour.intercept = answers((429, {"Retry-After": "0.4"}, b"{}"))
    begin = time.monotonic()
    (record,) = score(backend, stories_bundle, [LONG])
    assert record.status == "ok" and time.monotonic() - begin >= 0.4
    assert _retry_after_s("2.5") == 2.5 and _retry_after_s(None) is None and _retry_after_s("soon") is None
    assert (
        _retry_after_s(time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(time.time() + 3600))) or 0
    ) > 3500


def test_a_wait_beyond_reason_is_not_waited_for(endpoint, stories_bundle):
    backend = open_ids(endpoint, stories_bundle)
    endpoint.behaviour.intercept = lambda number, body: (429, {"Retry-After": "3600"}, b'{"detail": "quota"}')
    with pytest.raises(IncompleteError, match="HTTP 429: quota; it doesn't answer a short prompt either"):
        score(backend, stories_bundle, [LONG])


def test_no_answer_in_time(endpoint, stories_bundle):
    backend = open_ids(endpoint, stories_bundle, timeout_s=0.2)
    release = threading.Event()
    endpoint.behaviour.intercept = lambda number, body: release.wait(10) and None if is_long(body) else None
    (record,) = score(backend, stories_bundle, [LONG])
    release.set()
    assert record.status == "error" and "no answer within timeout_s (ReadTimeout)" in str(record.reason)


def test_errors_are_counted_and_make_a_rule_inconclusive(endpoint, stories_bundle, shared_data, tmp_path):
    endpoint.behaviour.value = lambda index, logprob: math.nan if index == 60 else logprob
    gate = {"rules": [{"metric": "perplexity/token", "max": 1000}]}
    scenario = write_scenario(tmp_path, by_ids(endpoint, stories_bundle), shared_data, gate=gate)
    folder = run(scenario, tmp_path / "run")
    results = json.loads(folder.results.read_text())
    assert results["conservation"]["error"] == 1 and results["counts"]["text"]["ok"] == 13
    verdict = json.loads(folder.verdict.read_text())
    assert verdict["verdict"] == "INCONCLUSIVE"
    assert "1 of 15 texts of the candidate ended in an error" in json.dumps(verdict["rules"])


# A dead endpoint


def die_after(requests: int) -> Callable[..., Any]:
    """From that request on every connection breaks."""
    return lambda number, body: (0, {}, b"") if number > requests else None


@pytest.mark.parametrize("way", ["ids", "texts"])
def test_an_endpoint_that_dies_leaves_a_run_that_can_be_resumed(
    endpoint, stories_bundle, shared_data, tmp_path, way, monkeypatch
):
    monkeypatch.setattr("evalkit.scoring.served_texts._BATCH", 4)
    model = by_ids(endpoint, stories_bundle, concurrency=1) if way == "ids" else by_texts(endpoint)
    scenario = write_scenario(tmp_path, model, shared_data)
    whole = run(scenario, tmp_path / "whole")
    needed = len(endpoint.requests)
    endpoint.requests.clear()
    endpoint.behaviour.intercept = die_after(needed // 2 + 2)
    with pytest.raises(
        IncompleteError, match="doesn't answer a short prompt either; finish it with `evalkit resume"
    ) as caught:
        run(scenario, tmp_path / "run")
    assert caught.value.exit_code == ExitCode.INCOMPLETE
    folder = RunFolder(tmp_path / "run")
    # Still dead: the run stays as it is.
    with pytest.raises(IncompleteError, match="evalkit resume"):
        resume_run(folder, SilentProgress())
    endpoint.behaviour.intercept = lambda number, body: None
    endpoint.requests.clear()
    resume_run(folder, SilentProgress())
    assert len(endpoint.requests) < needed
    assert metrics(folder) == metrics(whole)


def test_a_resumed_run_may_find_its_endpoint_elsewhere(endpoint, stories_bundle, shared_data, tmp_path):
    scenario = write_scenario(tmp_path, by_ids(endpoint, stories_bundle), shared_data)
    endpoint.behaviour.intercept = die_after(6)
    with pytest.raises(IncompleteError):
        run(scenario, tmp_path / "run")
    other = CompletionsServer(endpoint.backend, endpoint.tokenizer)
    with serve(other):
        scenario.write_text(scenario.read_text().replace(endpoint.url, other.url))
        resume_run(RunFolder(tmp_path / "run"), SilentProgress())
    assert other.requests


def test_another_declared_identity_is_not_resumed(endpoint, stories_bundle, shared_data, tmp_path):
    scenario = write_scenario(tmp_path, by_ids(endpoint, stories_bundle), shared_data)
    endpoint.behaviour.intercept = die_after(6)
    with pytest.raises(IncompleteError):
        run(scenario, tmp_path / "run")
    endpoint.behaviour.intercept = lambda number, body: None
    scenario.write_text(scenario.read_text().replace("stories-260k", "another"))
    with pytest.raises(InputError, match="model_digest was declared:stories-260k, is declared:another"):
        resume_run(RunFolder(tmp_path / "run"), SilentProgress())


def test_an_interrupt_ends_waiting_requests_at_once(endpoint, stories_bundle):
    backend = open_ids(endpoint, stories_bundle)
    release = threading.Event()
    endpoint.behaviour.intercept = lambda number, body: release.wait(20) and None if is_long(body) else None

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        score(backend, stories_bundle, [LONG])
    release.set()
    signal.signal(signal.SIGALRM, previous)
    assert time.monotonic() - begin < 5
