"""The front over configurations: luck stays out, noise is shown, the knee loses nothing."""

import os

import numpy as np
import pytest
from scipy import stats

from evalkit.errors import InputError
from trainer.pareto.front import find_front, nondominated
from trainer.pareto.knee import recommend
from trainer.pareto.report import ParetoReport, run_pareto
from trainer.pareto.runs import Run, read_table
from trainer.pareto.space import ParetoSpace


def space(**changes):
    values = {
        "version": 1,
        "table": {"file": "runs.csv", "configuration": ["batch"]},
        "score": {"metric": "loss", "direction": "minimize"},
        "speed": {"metric": "tokens_per_s", "direction": "maximize"},
    }
    return ParetoSpace.model_validate(values | changes)


def runs(batch, scores, speeds):
    return [
        Run({"batch": batch}, str(index), score, speed)
        for index, (score, speed) in enumerate(zip(scores, speeds, strict=True))
    ]


def statuses(settings):
    return {item.configuration["batch"]: item.status for item in settings}


def test_a_lucky_seed_of_a_noisy_setting_is_not_on_the_front():
    noisy = runs(1, [3.20, 3.30, 3.31, 3.29], [100, 101, 99, 100])
    steady = runs(2, [3.25, 3.251, 3.249], [120, 121, 119])
    assert statuses(find_front([*noisy, *steady], space())) == {1: "dominated", 2: "front"}


def test_one_run_is_a_candidate_and_takes_nobody_off_the_front():
    once, often = runs(1, [3.0], [200]), runs(2, [3.2, 3.21], [100, 101])
    settings = find_front([*once, *often], space(noise="own"))
    assert statuses(settings) == {1: "candidate", 2: "front"}
    assert settings[0].score.low is None and settings[0].front_share is None
    assert "give it more seeds" in settings[0].why
    worse = runs(1, [3.5], [50])
    assert statuses(find_front([*worse, *often], space())) == {1: "too few runs", 2: "front"}


def test_nondominated_agrees_with_the_definition():
    generator = np.random.default_rng(3)
    points = generator.integers(0, 6, (40, 2)).astype(float)
    for index, keep in enumerate(nondominated(points)):
        beaten = any((p <= points[index]).all() and (p < points[index]).any() for p in points)
        assert keep == (not beaten)


def test_the_knee_is_the_fastest_without_a_significant_loss_by_welch():
    best = runs("best", [3.00, 3.02, 3.01, 3.03], [100, 101, 99, 100])
    same = runs("same", [3.01, 3.03, 3.02, 3.035], [150, 151, 149, 150])
    worse = runs("worse", [3.20, 3.22, 3.21, 3.23], [300, 301, 299, 300])
    plan = space(noise="own")
    found = recommend(find_front([*best, *same, *worse], plan), plan)
    assert found.setting.configuration == {"batch": "same"}
    expected = stats.ttest_ind(
        [r.score for r in same], [r.score for r in best], equal_var=False, alternative="greater"
    )
    assert found.p_loss == pytest.approx(expected.pvalue, abs=1e-12)
    assert found.speed_gain == pytest.approx(1.5, rel=0.01)
    assert found.speed_gain_low < found.speed_gain < found.speed_gain_high
    assert found.loss < found.loss_high


def test_with_a_margin_it_must_be_shown_to_lose_less():
    best = runs("best", [3.00, 3.10], [100, 101])
    fast = runs("fast", [3.02, 3.12], [150, 151])
    without, tight = space(noise="own"), space(noise="own", margin=0.01)
    assert recommend(find_front([*best, *fast], without), without).setting.configuration["batch"] == "fast"
    assert recommend(find_front([*best, *fast], tight), tight).setting.configuration["batch"] == "best"


def test_maximized_scores_and_minimized_times_turn_the_right_way():
    plan = space(
        noise="own",
        score={"metric": "accuracy", "direction": "maximize"},
        speed={"metric": "ms", "direction": "minimize"},
    )
    good = runs("good", [0.90, 0.91], [10, 11])
    bad = runs("bad", [0.80, 0.81], [20, 21])
    settings = find_front([*good, *bad], plan)
    assert statuses(settings) == {"good": "front", "bad": "dominated"}
    assert settings[0].score.low < 0.905 < settings[0].score.high
    assert settings[0].speed.low < settings[0].speed.mean < settings[0].speed.high


def test_public_runs_have_no_lucky_seed_on_the_front(shared_data, tmp_path):
    """1,512 real runs, 75 of one setting: the best of those 75 beats settings that its mean doesn't."""
    plan = tmp_path / "space.yaml"
    file = shared_data / "traces" / "pareto_modded_nanogpt" / "runs.csv"
    plan.write_text(
        f"version: 1\ntable: {{file: {file}, configuration: [track, record, planned_steps]}}\nnoise: own\n"
        "score: {metric: final_val_loss, direction: minimize}\nspeed: {metric: train_time_ms, direction: minimize}\n"
    )
    report = run_pareto(plan, tmp_path / "out")
    assert sum(len(item.runs) for item in report.settings) == 1512
    (often,) = [item for item in report.settings if item.n == 75]
    assert often.status == "dominated"
    assert often.score.sd == pytest.approx(0.0021, abs=1e-4)
    lucky = min(run.score for run in often.runs)
    assert lucky == 3.2731 and often.score.low > lucky
    # As a run it would be on the front of means at its own speed.
    assert all(item.n >= 2 for item in report.front)
    assert (tmp_path / "out" / "pareto.html").read_text().count("<rect") > 50
    again = run_pareto(plan, tmp_path / "again")
    assert again.to_json() == report.to_json()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("batch,loss\n1,2\n", "no column 'tokens_per_s'"),
        ("batch,loss,tokens_per_s\n1,x,3\n", "runs.csv:2: loss 'x': a number is needed"),
        ("batch,loss,tokens_per_s\n1,2,0\n", "runs.csv:2: tokens_per_s 0: a positive number"),
        ("batch,loss,tokens_per_s\n1,2\n", "runs.csv:2: another number of cells"),
        ("batch,loss,tokens_per_s\n", "no run is left"),
        ("batch,loss,loss,tokens_per_s\n1,2,3,4\n", "runs.csv:1: the column 'loss' is given twice"),
        ("", "runs.csv:1: a header with the names of the columns is needed"),
    ],
)
def test_a_broken_table_is_one_line(tmp_path, text, message):
    (tmp_path / "runs.csv").write_text(text)
    with pytest.raises(InputError, match=message):
        read_table(space(), tmp_path)


def test_a_table_that_is_a_pipe_is_refused(tmp_path):
    os.mkfifo(tmp_path / "runs.csv")
    with pytest.raises(InputError, match=r"runs.csv: .*pipe.*; save its content to a file"):
        read_table(space(), tmp_path)


def test_a_cell_may_hold_line_ends(tmp_path):
    text = 'batch,note,loss,tokens_per_s\r\n1,"two\nlines",2,3\r\n\r\n1,,2.5,3\r\n'
    (tmp_path / "runs.csv").write_bytes(b"\xef\xbb\xbf" + text.encode())
    assert [(run.name, run.score) for run in read_table(space(), tmp_path)] == [
        ("line 3", 2.0),
        ("line 5", 2.5),
    ]


def test_a_table_without_a_front_says_so():
    plan = space()
    report = ParetoReport(plan, tuple(find_front(runs(1, [3.0], [10]), plan)), None)
    assert "No configuration can be on the front" in report.summary[-1]
