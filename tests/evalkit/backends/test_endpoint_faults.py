"""What an endpoint does wrong later: with one text it is that text's error; a dead one leaves a run to resume (exit 4)."""

import json
import math
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from evalkit.backends.endpoint_http import retry_after_s
from evalkit.console import SilentProgress
from evalkit.errors import ExitCode, IncompleteError, InputError
from evalkit.runs.folder import RunFolder
from evalkit.runs.resume import resume_run
from tests.support.completions_server import CompletionsServer, serve
from tests.support.endpoints import (
    LONG,
    SHORT,
    by_ids,
    by_texts,
    metrics,
    open_ids,
    run,
    score,
    write_scenario,
)


def is_long(body: dict[str, Any]) -> bool:
    """Whether a request is about the long text: the probe and the short one have fewer tokens."""
    return len(body["prompt"]) > 32


def answers(*wrong: tuple[int, dict[str, str], bytes]) -> Callable[..., Any]:
    """Intercepts requests about the long text: with each of these once, then not any more."""
    left = list(wrong)
    return lambda number, body: left.pop(0) if left and is_long(body) else None


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
    assert retry_after_s("2.5") == 2.5 and retry_after_s(None) is None and retry_after_s("soon") is None
    assert (
        retry_after_s(time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(time.time() + 3600))) or 0
    ) > 3500


def test_a_wait_beyond_reason_is_not_waited_for(endpoint, stories_bundle):
    backend = open_ids(endpoint, stories_bundle)
    endpoint.behaviour.intercept = lambda number, body: (429, {"Retry-After": "3600"}, b'{"detail": "quota"}')
    with pytest.raises(IncompleteError, match="HTTP 429: quota; it doesn't answer a short prompt either"):
        score(backend, stories_bundle, [LONG])


def test_no_answer_in_time(endpoint, stories_bundle, monkeypatch):
    monkeypatch.setattr("evalkit.backends.endpoint_client._ATTEMPTS", 2)
    backend = open_ids(endpoint, stories_bundle, timeout_s=0.5)
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
