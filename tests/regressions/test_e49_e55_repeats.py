"""E49: samples repeated to fill devices counted twice. E55: repeats were served from a cache, so that five were one."""

from dataclasses import replace

import pytest

from evalkit.errors import InputError
from evalkit.metrics.context import DialogueSetup
from evalkit.metrics.evaluate import evaluate
from evalkit.metrics.trials import group_trials
from evalkit.replay.client import SandboxClient
from evalkit.replay.runner import run_dialogues
from evalkit.replay.trial import ReplaySettings
from evalkit.runs.evidence import Evidence
from evalkit.runs.evidence_io import in_order
from evalkit.runs.journal import Journal, reopen_journals
from tests.evalkit.metrics.samples import context, text_record
from tests.support.dialogues import RECALL, dialogue
from tests.support.fake_sandbox import Answer, FakeSandbox, serve

TEXTS = [text_record(f"t{index}", nll=20.0 + index) for index in range(12)]


@pytest.mark.parametrize("workers", [1, 2, 3, 5, 8])
def test_e49_the_number_of_workers_changes_no_number(tmp_path, workers):
    """Each gets equally many texts, the last ones by repeating the first, as samplers do: a text counts once."""
    each = -(-len(TEXTS) // workers)
    padded = (TEXTS + TEXTS)[: each * workers]
    paths = []
    for worker in range(workers):
        paths.append(tmp_path / f"{worker}.journal.jsonl")
        with Journal(paths[-1]) as journal:
            journal.append(padded[worker::workers])
    merged = in_order(reopen_journals(paths).samples.values(), ())
    expected = in_order(TEXTS, ())
    assert merged == expected
    assert evaluate(merged, context()) == evaluate(expected, context())


def test_e49_a_text_that_is_recorded_twice_is_damage_not_weight():
    with pytest.raises(InputError, match="text 't0' is recorded twice"):
        evaluate(Evidence((*TEXTS, TEXTS[0])), context())
    # Equal texts under ids of their own are two samples, as the user's data says.
    found = {
        item.name: item for item in evaluate(Evidence((*TEXTS, replace(TEXTS[0], sample_id="x"))), context())
    }
    assert found["perplexity/token"].n == 130


@pytest.mark.parametrize("trials", [1, 5])
def test_e55_every_repeat_is_asked_with_a_seed_of_its_own(trials):
    sandbox = FakeSandbox(lambda session, text: Answer(f"hello {text}"))
    settings = ReplaySettings(seed=1, trials=trials, temperature=0.8)
    records = []
    with serve(sandbox) as address, SandboxClient(address) as client:
        run_dialogues([dialogue(RECALL)], settings, client, records.extend)
    turns = len(records) // trials
    assert len(sandbox.sessions) == trials
    assert len({(record.trial, record.turn_index) for record in records}) == trials * turns
    assert len({record.turn_id for record in records}) == trials * turns
    asked = [request for request in sandbox.requests if hasattr(request, "turn_id")]
    assert len(asked) == trials * turns
    assert len({request.sampling.seed for request in asked}) == trials * turns


@pytest.mark.parametrize(("varies", "counted"), [(True, 5), (False, 1)])
def test_e55_copies_count_once_and_real_repeats_each(varies, counted):
    sandbox = FakeSandbox(lambda session, text: Answer(f"hello {text}"))
    records = []
    with serve(sandbox) as address, SandboxClient(address) as client:
        run_dialogues([dialogue(RECALL)], ReplaySettings(seed=1, trials=5), client, records.extend)
    key = records[0].dialogue_id
    setup = DialogueSetup((key,), trials=5, varies=varies, population="sample", turns={key: 3})
    assert group_trials(records, setup).counts()[key][1] == counted
