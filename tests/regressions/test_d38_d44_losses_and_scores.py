"""Public reports about loss spikes and about scores that can't be compared."""

from dataclasses import replace

import pytest

from tests.trainer.diagnosis import descriptions
from tests.trainer.diagnosis.spike_logs import megatron
from trainer.diagnosis.evaluation import check_evaluations
from trainer.diagnosis.spikes import diagnose_spikes


def test_d38_a_loss_scale_that_halves_each_step_explains_the_spike_and_stale_norms_dont(tmp_path):
    """llm-foundry 232, Megatron-DeepSpeed 347: the norm printed at skipped steps is the last one, over and over."""
    lines = [megatron(step, 2.66, scale=524288.0, norm=180376.315 + step) for step in range(100, 140)]
    lines += [megatron(step, 2.66, scale=1048576.0, norm=453082.517 + step) for step in range(140, 162)]
    scales = [1048576.0, 524288.0, 262144.0, 131072.0, 65536.0, 32768.0]
    lines += [megatron(162 + n, 4.37, scale=scale, norm=464441.887) for n, scale in enumerate(scales)]
    path = tmp_path / "run.log"
    path.write_text("\n".join(lines) + "\n")
    report = diagnose_spikes([path])
    ((spike, finding),) = report.explained
    assert spike.start.step == 162 and finding.rule == "scale_overflow"
    assert finding.value("stale_grad_norms") == 5
    assert {"grad_norm_stale"} <= {item.rule for item in report.findings}


def test_d38_a_norm_of_zero_and_a_scale_of_minus_one_are_not_measurements(tmp_path):
    """Pai-Megatron-Patch 587, ml-engineering 32: logs that print 0.000 and -1.0 where nothing was measured."""
    path = tmp_path / "run.log"
    path.write_text("\n".join(megatron(step, 2.5, scale=-1.0, norm=0.0) for step in range(1, 30)) + "\n")
    rules = {finding.rule for finding in diagnose_spikes([path]).findings}
    assert rules == {"grad_norm_not_measured", "loss_scale_not_measured"}


SOUND = replace(descriptions.SOUND, samples=500)


@pytest.mark.parametrize(
    ("fault", "rule"),
    [
        pytest.param({"batch_difference": 0.0027}, "batch_dependent", id="d39_winogrande_moves_with_the_number_of_devices"),
        pytest.param({"batch_difference": 0.0192}, "batch_dependent", id="d40_a_score_depends_on_the_batch_size"),
        pytest.param({"missing": tuple(f"q{n}" for n in range(437))}, "samples_missing", id="d41_63_of_500_answers"),
        pytest.param({"tokenizer_sha256": "u" * 64}, "tokenizer_differs", id="d42_another_tokenizer_or_bos"),
        pytest.param({"template_sha256": "u" * 64}, "template_differs", id="d42_another_chat_template"),
        pytest.param({"shuffled": True}, "shuffling_differs", id="d42_shuffled"),
        pytest.param({"repeated": ("image-3",)}, "samples_repeated", id="d43_21_images_became_22"),
        pytest.param({"training_parts": ("dropout",)}, "frozen_train_mode", id="d44_dropout_was_active"),
    ],
)  # fmt: skip
def test_d39_d44_scores_that_cannot_be_compared(fault, rule):
    """lm-eval 1719, 1751, 3055, 1854, 2676; LMOps 101; rf-detr 1507; ethos-ares 20."""
    first = replace(SOUND, source="b", weights_sha256="v" * 64)
    assert check_evaluations(first, SOUND) == []
    assert rule in {finding.rule for finding in check_evaluations(first, replace(SOUND, **fault))}
