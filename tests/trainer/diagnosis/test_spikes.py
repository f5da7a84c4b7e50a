"""Labelled spikes are found with their causes, healthy logs are left alone."""

import json
from datetime import timedelta
from pathlib import Path

import pytest

from tests.trainer.diagnosis.spike_logs import START, jsonl, megatron, mindformers
from trainer.diagnosis.spikes import diagnose_spikes

# The words of the labels and the rule that states them; a spike without a cause in the diary stays unknown.
CAUSES = {
    "unknown in diary": "unknown_cause",
    "fp16 overflow after scale growth": "scale_overflow",
    "instability of configuration": "configuration_instability",
    None: "unknown_cause",
}


def logs_of(folder: Path, run: str) -> list[Path]:
    if run.startswith("52B"):
        return sorted((folder / "bigscience_train_logs").glob("meg_ds_3d_gpt2_perf_n16-ds-o*.out"))
    return [folder / "bigscience_spikes" / f"{run}.log"]


def test_each_labelled_spike_is_found_with_its_cause(shared_data):
    traces = shared_data / "traces"
    labels = json.loads((traces / "bigscience_spikes" / "labels.json").read_text())
    assert len(labels) == 5
    for label in labels:
        first, last = label["iterations"]
        peaks = []
        for path in logs_of(traces, label["run"]):
            report = diagnose_spikes([path])
            found = [
                (spike, finding)
                for spike, finding in report.explained
                if spike.start.step <= last and spike.last.step >= first
            ]
            assert found, label
            spike, finding = found[0]
            peaks.append(spike.peak.loss)
            expected = "early_divergence" if label["run"].startswith("52B") else CAUSES[label.get("cause")]
            assert finding.rule == expected, label
            if "recovered_by" in label:
                assert spike.recovered.step == label["recovered_by"]
        assert max(peaks) == pytest.approx(label["loss"][1], rel=0.02)


def test_a_norm_that_rose_a_little_isnt_told_as_one_that_didnt(shared_data):
    (first, second, *_) = diagnose_spikes(logs_of(shared_data / "traces", "tr8-104B-wide")).explained
    for (_, finding), times in ((first, "2.2"), (second, "3.0")):
        told = {item.name: item.value for item in finding.evidence}
        assert told["signature"] == f"the loss rose, the gradient norm to {times} times its level only"
        assert told["grad_norm_highest"] / told["grad_norm_before"] == pytest.approx(float(times), abs=0.05)


def test_the_labelled_logs_have_no_alarm_that_the_diary_doesnt_tell(shared_data):
    """One more is in the wide log: its diary tells of 8738 to 8743 too (and of the second attempt at 6930)."""
    folder = shared_data / "traces" / "bigscience_spikes"
    found = {
        path.stem: [s.start.step for s in diagnose_spikes([path]).spikes] for path in folder.glob("*.log")
    }
    assert found == {
        "tr11-176B-ml": [31216],
        "tr11-prequel": [],
        "tr8-104B-wide": [7010, 6930, 11448, 8741],
        "tr8b-104B": [17062],
    }


def test_healthy_logs_raise_no_alarm(shared_data):
    """29,096 steps of two GPT-2 trainings and 5,100 noisier ones of a third."""
    folder = shared_data / "traces" / "loss_logs_nanogpt"
    steps = 0
    for path in sorted(folder.glob("*.log")):
        report = diagnose_spikes([path])
        steps += sum(len(log.steps) for log in report.logs)
        assert report.spikes == []
        assert {finding.severity for finding in report.findings} <= {"info"}
    assert steps == 34_196


def rules(report) -> list[str]:
    return [finding.rule for _, finding in report.explained]


def risen(record, start=150, by=3.0):
    return record | {"loss": record["loss"] + by} if start <= record["step"] < start + 20 else record


def test_a_spike_that_recovers(tmp_path):
    report = diagnose_spikes([jsonl(tmp_path / "log.jsonl", change=risen)])
    ((spike, finding),) = report.explained
    assert (spike.start.step, spike.recovered.step, spike.recovery_steps) == (150, 170, 20)
    assert (finding.rule, finding.severity) == ("unknown_cause", "warning")


def test_a_small_rise_must_persist(tmp_path):
    once = diagnose_spikes(
        [jsonl(tmp_path / "a", change=lambda r: r | {"loss": 2.3} if r["step"] == 150 else r)]
    )
    assert once.spikes == []
    twice = diagnose_spikes(
        [jsonl(tmp_path / "b", change=lambda r: r | {"loss": 2.3} if r["step"] in (150, 151) else r)]
    )
    assert [spike.start.step for spike in twice.spikes] == [150]


def test_one_odd_batch_is_told_but_no_alarm(tmp_path):
    report = diagnose_spikes(
        [jsonl(tmp_path / "a", change=lambda r: r | {"loss": 3.5} if r["step"] == 150 else r)]
    )
    assert report.spikes == [] and [f.rule for f in report.findings] == ["odd_batches"]


def test_a_spike_on_a_falling_loss_is_found(tmp_path):
    def change(record):
        falling = record | {"loss": record["loss"] + 4 * (1 - record["step"] / 200)}
        return risen(falling, by=1.5)

    assert [s.start.step for s in diagnose_spikes([jsonl(tmp_path / "a", change=change)]).spikes] == [150]


def test_a_loss_that_is_no_number(tmp_path):
    path = tmp_path / "run.log"
    path.write_text(
        "\n".join(megatron(step, 2.0) for step in range(1, 50)) + "\n" + megatron(50, float("nan")) + "\n"
    )
    report = diagnose_spikes([path])
    ((spike, finding),) = report.explained
    assert not spike.finite and finding.severity == "error"
    json.dumps(report.to_json(), allow_nan=False)


def test_slow_divergence(tmp_path):
    """So slow that the level follows: no spike, but a third above its best at the end."""

    def change(record):
        return record | {"loss": record["loss"] * (1.0002 ** max(0, record["step"] - 500))}

    report = diagnose_spikes([jsonl(tmp_path / "a", 2000, change)])
    (finding,) = report.findings
    assert report.spikes == [] and finding.rule == "slow_divergence"
    assert 1300 < finding.value("start") < 1500


def test_scale_overflow(tmp_path):
    def change(record):
        step = record["step"]
        scale = (
            65536.0 if step < 140 else 131072.0 if step < 150 else max(1024.0, 131072.0 / 2 ** (step - 149))
        )
        overflow = 150 <= step < 157
        return risen(record) | {"loss_scale": scale, "overflow": overflow}

    (finding,) = [f for _, f in diagnose_spikes([jsonl(tmp_path / "a", change=change)]).explained]
    assert finding.rule == "scale_overflow" and finding.value("skipped_steps") == 7


def test_scale_collapse_before_the_spike(tmp_path):
    def change(record):
        step = record["step"]
        return risen(record) | {
            "loss_scale": 65536.0 if step < 120 else max(256.0, 65536.0 / 2 ** (step - 119))
        }

    assert rules(diagnose_spikes([jsonl(tmp_path / "a", change=change)])) == ["scale_collapse"]


def test_after_a_resume(tmp_path):
    first = jsonl(tmp_path / "a", 150)
    second = jsonl(tmp_path / "b", 200, lambda r: risen(r, 142) if r["step"] > 140 else None)
    assert rules(diagnose_spikes([first, second])) == ["after_resume"]


def test_a_jump_of_the_learning_rate(tmp_path):
    def change(record):
        return risen(record) | {"learning_rate": 1e-4 if record["step"] < 148 else 1e-3}

    (finding,) = [f for _, f in diagnose_spikes([jsonl(tmp_path / "a", change=change)]).explained]
    assert finding.rule == "learning_rate_jump"


def test_the_end_of_warm_up(tmp_path):
    def change(record):
        return risen(record) | {"learning_rate": 1e-3 * min(1, record["step"] / 140)}

    assert rules(diagnose_spikes([jsonl(tmp_path / "a", change=change)])) == ["configuration_instability"]


def test_the_same_data_in_two_attempts(tmp_path):
    first = jsonl(tmp_path / "a", 200, risen)
    second = jsonl(tmp_path / "b", 200, lambda r: risen(r) if r["step"] > 100 else None)
    assert rules(diagnose_spikes([first, second])) == ["bad_data", "bad_data"]


def test_errors_of_other_logs_are_joined_by_time_and_the_first_wins(tmp_path):
    log = mindformers(
        tmp_path / "run.log", [2.0 + 0.01 * (step % 3) + (3 if step > 150 else 0) for step in range(200)]
    )
    plog = tmp_path / "plog.log"
    spike = START + timedelta(seconds=1520)

    def line(minutes: float, text: str) -> str:
        time = (spike - timedelta(minutes=minutes)).strftime("%Y-%m-%d-%H:%M:%S.000.000")
        return f"[ERROR] HCCL(1,python):{time} [x.cc:1] {text}\n"

    plog.write_text(
        line(120, "wait socket establish timeout, an hour before")
        + line(3, "listen on ip[1] and specific port[16666] fail")
        + line(1, "wait socket establish timeout, timeout[120]")
        + line(-5, "SDMA error afterwards")
    )
    ((_, finding),) = diagnose_spikes([log], [plog]).explained
    assert finding.rule == "communication_error" and finding.value("sign").startswith(
        "port_in_use 3.0 min before"
    )


def test_logs_without_times_say_that_they_cant_be_joined(tmp_path):
    plog = tmp_path / "plog.log"
    plog.write_text(
        "[ERROR] HCCL(1,python):2026-05-01-10:00:00.000.000 [x.cc:1] wait socket establish timeout\n"
    )
    report = diagnose_spikes([jsonl(tmp_path / "a", change=risen)], [plog])
    assert rules(report) == ["unknown_cause"]
    assert "logs_not_joined" in {finding.rule for finding in report.findings}


def test_the_profile_is_told_beside(shared_data, tmp_path):
    trace = shared_data / "traces" / "mstt_trace_view"
    report = diagnose_spikes([jsonl(tmp_path / "a", change=risen)], trace=trace)
    (finding,) = [finding for finding in report.findings if finding.rule == "profile_beside"]
    assert finding.value("verdicts") and finding.value("spikes_in_the_profile") == "none"


def test_every_step_skipped(shared_data):
    report = diagnose_spikes([shared_data / "traces" / "bigscience_train_logs" / "meg_gpt2_perf_n16.out"])
    assert [finding.rule for finding in report.findings] == ["every_step_skipped"]


def test_the_report_has_the_fields_of_the_contract(tmp_path):
    fields = diagnose_spikes([jsonl(tmp_path / "a", change=risen)]).to_json()
    assert {"findings", "missing_ranks", "quarantine", "skew"} <= fields.keys()
    assert {"rule", "severity", "evidence", "rivals", "action"} <= fields["findings"][0].keys()
    assert fields["spikes"][0]["start"] == 150


@pytest.mark.parametrize("loss", ["nan", "inf"])
def test_a_loss_that_is_never_finite_is_an_error(tmp_path, loss):
    log = tmp_path / "train.log"
    log.write_text("".join(f"step:{step}/50 train_loss:{loss}\n" for step in range(50)))
    (finding,) = diagnose_spikes([log]).findings
    assert (finding.rule, finding.severity) == ("not_finite_from_the_start", "error")
    assert (finding.value("start"), finding.value("count"), finding.value("finite")) == (0, 50, 0)


def test_losses_that_become_finite_later_were_not_finite_at_first(tmp_path):
    log = tmp_path / "train.log"
    log.write_text("".join(f"step:{step}/50 train_loss:{'nan' if step < 3 else 2.5}\n" for step in range(50)))
    found = [item for item in diagnose_spikes([log]).findings if item.rule == "not_finite_from_the_start"]
    assert [(item.value("count"), item.value("finite")) for item in found] == [(3, 47)]
