"""Looks at a candidate: counted from the registry, kept in the plan, judged by the policy."""

from pathlib import Path

import pytest

from evalkit.home import evalkit_home
from evalkit.runs.judging import judge_run, plan_facts
from evalkit.runs.looks import next_look
from evalkit.runs.plan import read_plan
from evalkit.runs.registry import Registry
from evalkit.runs.registry_rows import RunEntry, VerdictEntry
from evalkit.runs.registry_schema import registry_file
from tests.evalkit.fake_run import EVIDENCE_ONE, random_evidence, results, write_run

RULE = {"metric": "perplexity/token", "max": 60}


def recorded(run_id: str, scenario_sha256: str, *, judged: bool = True, **fields: str) -> None:
    known = {"scenario": "demo", "model_digest": "m", "policy": "p", **fields}
    entry = RunEntry(
        run_id=run_id,
        created="2026-11-30T12:00:00Z",
        folder="somewhere",
        seal_sha256=run_id,
        scenario=known["scenario"],
        scenario_sha256=scenario_sha256,
        model_name="model",
        model_digest=known["model_digest"],
        baseline_model_digest=None,
        first_release=False,
    )
    with Registry(create=True) as registry:
        verdict = VerdictEntry(known["policy"], "INCONCLUSIVE") if judged else None
        registry.record(entry, results([], EVIDENCE_ONE), verdict)


def look(scenario_sha256: str, policy_sha256: str | None = "p") -> int:
    return next_look("demo", scenario_sha256, "m", policy_sha256)


def test_other_samples_are_another_look() -> None:
    assert look("one") == 1
    recorded("a", "one")
    assert look("two") == 2
    recorded("b", "two")
    assert (look("three"), look("two")) == (3, 2)


def test_the_same_samples_again_are_no_new_look() -> None:
    recorded("a", "one")
    recorded("b", "one")
    assert look("one") == 1


@pytest.mark.parametrize("other", ["scenario", "model_digest", "policy"])
def test_what_else_was_judged_is_no_look_at_this_candidate(other: str) -> None:
    recorded("a", "one", **{other: "another"})
    assert look("two") == 1


def test_what_was_not_judged_is_no_look() -> None:
    recorded("a", "one", judged=False)
    assert look("two") == 1
    assert look("two", None) == 1


def test_a_registry_that_cannot_be_read_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    evalkit_home().mkdir(parents=True, exist_ok=True)
    registry_file().write_bytes(b"not a database, and long enough to be told from an empty one" * 40)
    assert look("one") == 1
    assert "earlier looks at this candidate aren't counted" in capsys.readouterr().err


def test_the_plans_look_is_judged(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", [RULE], random_evidence(1, dialogues=0), None, {"look": 3})
    verdict = judge_run(folder)
    assert (verdict.look, verdict.verdict) == (3, "INCONCLUSIVE")
    assert "max_looks allows 2" in verdict.rules[0].reason
    plan = read_plan(folder)
    assert plan_facts(plan) == {"first_release": False, "look": 3}
    assert plan_facts({key: plan[key] for key in plan if key != "look"})["look"] == 1
