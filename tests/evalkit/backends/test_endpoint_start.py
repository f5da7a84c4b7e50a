"""An endpoint that doesn't fit is refused at the start with one clear line; the ways of good servers are all understood."""

import socket
import sys

import pytest

from evalkit.errors import IncompleteError, InputError
from evalkit.runs.evidence_io import read_evidence
from tests.support.completions_server import CompletionsServer
from tests.support.endpoints import (
    LONG,
    SHORT,
    by_ids,
    by_texts,
    open_ids,
    open_texts,
    run,
    score,
    write_scenario,
)


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
