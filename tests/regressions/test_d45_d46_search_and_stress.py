"""Public reports about searches that only see failures, and recoveries whose time nobody can explain."""

import json

import pytest

from tests.trainer.pareto.test_front import runs, space, statuses
from trainer.pareto.front import find_front
from trainer.pareto.knee import recommend
from trainer.pareto.page import render_pareto_page
from trainer.pareto.report import ParetoReport
from trainer.pareto.runs import Run
from trainer.stress.job import Attempt, Job
from trainer.stress.plan import Fault
from trainer.stress.recovery import judge_fault


def test_d45_a_study_of_infeasible_runs_only_is_a_report_and_no_error():
    """optuna 6242, PR 6475, 3116: no front, no recommendation, each reason on the page."""
    bad = [Run({"batch": n}, "seed 1", None, None, "infeasible", f"{n} GiB, the limit is 1") for n in (8, 16)]
    plan = space()
    settings = find_front(bad, plan)
    assert recommend(settings, plan) is None
    report = ParetoReport(plan, tuple(settings), None)
    page = render_pareto_page(report)
    assert "No configuration can be on the front" in page and "16 GiB, the limit is 1" in page
    json.dumps(report.to_json(), allow_nan=False)


def test_d45_a_run_that_diverged_keeps_its_setting_off_the_front_and_on_the_page():
    """optuna 3762, PR 6445: one NaN of three seeds isn't averaged away, and isn't hidden."""
    nan = Run({"batch": 1}, "seed 3", None, 500.0, "nan", "step 9: the loss is nan")
    fine = runs(1, [1.0, 1.0], [500, 510])
    steady = runs(2, [3.0, 3.01], [100, 101])
    plan = space()
    settings = find_front([*fine, nan, *steady], plan)
    assert statuses(settings) == {1: "nan", 2: "front"}
    assert settings[0].why.startswith("1 of 3 runs: step 9")
    page = render_pareto_page(ParetoReport(plan, tuple(settings), recommend(settings, plan)))
    assert "the loss is nan" in page


@pytest.fixture
def job(tmp_path):
    return Job(tmp_path / "job", tmp_path / "config.yaml", 2, 60.0)


def test_d46_detection_restart_and_restore_are_timed_apart(job):
    """torchft 329 (948 s), pytorch 147064: one figure for a recovery doesn't say what to mend."""
    fault = Fault(1, "kill", 17, (1,), 1.0, 2)
    (job.folder / "signs" / "struck-1-1").write_text(json.dumps({"at_s": 100.0}))
    first, second = Attempt(1, 50.0, 0), Attempt(2, 103.0, 18)
    first.down_s, first.down_because = 102.0, "the process of rank 1 is gone"
    second.resumed_after, second.ready_s, second.first_step_s = 16, 120.0, 125.0
    job.attempts += [first, second]
    (job.folder / "signs" / "arrivals-2-0.jsonl").write_text(
        "".join(json.dumps({"step": step, "at_s": 124.0 + step - 17}) + "\n" for step in (17, 18, 19))
        + '{"step": 20, "a'  # torn: the worker was killed
    )
    found = judge_fault(job, fault)
    assert found.as_promised
    assert (found.detection_s, found.restart_s, found.restore_s) == (2.0, 18.0, 5.0)
    assert (found.lost_steps, found.catch_up_s) == (2, 1.0)


def test_d46_a_job_that_never_comes_back_is_not_called_recovered(job):
    """kubeflow/trainer 1478, pytorch 111646: a restart counts when a new step is done, not when processes start."""
    fault = Fault(1, "kill", 17, (1,), 1.0, 2)
    assert judge_fault(job, fault).outcome.startswith("never struck")
    (job.folder / "signs" / "struck-1-1").write_text(json.dumps({"at_s": 100.0}))
    first, second = Attempt(1, 50.0, 0), Attempt(2, 103.0, 18)
    first.down_s = 102.0
    second.resumed_after, second.ready_s, second.down_because = 16, 120.0, "no new step for 60 s"
    job.attempts += [first, second]
    found = judge_fault(job, fault)
    assert not found.as_promised and found.outcome == "didn't come back: no new step for 60 s"
