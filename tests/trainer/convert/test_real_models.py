"""Real models through convert, export and score, against float64 log-probabilities computed elsewhere."""

import pytest

from evalkit.backends.choice import open_backend
from tests.support.real_models import check_against_references, references


@pytest.mark.parametrize("backend", ["mindir", "onnx"])
def test_stories260k(stories_bundle, shared_data, backend):
    worst, mean = check_against_references(
        stories_bundle, open_backend(backend, stories_bundle), references(shared_data, "stories260K")
    )
    assert worst < 1e-3 and mean < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["mindir", "onnx"])
def test_smollm2(smollm2_bundle, shared_data, backend):
    worst, mean = check_against_references(
        smollm2_bundle,
        open_backend(backend, smollm2_bundle),
        references(shared_data, "smollm2_135m_instruct"),
    )
    print(f"{backend}: worst {worst:.2e}, mean {mean:.2e}")
    assert worst < 1e-3 and mean < 1e-4


def test_a_converted_bundle_has_no_counts_and_its_own_ids(stories_bundle):
    assert stories_bundle.token_counts is None and stories_bundle.word_counts is None
    assert stories_bundle.tokenizer.prefix_token == 1 and stories_bundle.tokenizer.end_token == 2
    assert stories_bundle.model.parameters == 260_032 and stories_bundle.manifest.training is None
    parity = stories_bundle.manifest.parity
    assert set(parity) == {"score", "decode", "score_onnx", "decode_onnx"}
    assert parity["score_onnx"].tokens > 300 and parity["score_onnx"].max_abs_logprob_diff < 1e-4
