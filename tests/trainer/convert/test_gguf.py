"""GGUF files: stories260K written as llama.cpp stores it must come back as the Hugging Face folder has it."""

import json
import re
import struct
from pathlib import Path

import numpy as np
import pytest

from evalkit.errors import InputError
from evalkit.tokenization import TextTokenizer
from tests.support.real_models import references
from tests.trainer.convert.sources import interleaved
from trainer.convert import convert
from trainer.convert.folder import read_folder
from trainer.convert.gguf import read_gguf
from trainer.convert.gguf_tokenizer import read_tokenizer

gguf = pytest.importorskip("gguf", reason='pip install "evalkit[convert]"')

_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def llama2c_vocabulary(file: Path) -> tuple[list[str], list[float]]:
    """Tokens and scores of llama2.c's tokenizer file: length of the longest, then (score, bytes, text) each."""
    data, place = file.read_bytes(), 4
    tokens, scores = [], []
    while place < len(data):
        score, size = struct.unpack_from("<fi", data, place)
        text = data[place + 8 : place + 8 + size].decode()
        tokens.append(text.replace(" ", "\u2581"))
        scores.append(score)
        place += 8 + size
    return tokens, scores


def gguf_name(name: str) -> str:
    plain = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
    }
    if name in plain:
        return plain[name]
    match = re.fullmatch(r"model\.layers\.(\d+)\.(.+)\.weight", name)
    return f"blk.{match[1]}.{_NAMES[match[2]]}.weight"


def write_stories(shared_data: Path, file: Path, *, metadata=None, edit=None, architecture="llama") -> Path:
    folder = shared_data / "models" / "stories260K"
    source = read_folder(folder / "hf")
    tokens, scores = llama2c_vocabulary(folder / "tok512.bin")
    # llama2.c's file has no place for what a token is for: 0 unknown, 1 and 2 control, then the bytes.
    tokens[:3] = ["<unk>", "<s>", "</s>"]
    types = [2, 3, 3] + [6 if re.fullmatch("<0x[0-9A-F]{2}>", token) else 1 for token in tokens[3:]]
    writer = gguf.GGUFWriter(str(file), architecture)
    model = source.model
    writer.add_block_count(model.layers)
    writer.add_context_length(model.max_length)
    writer.add_embedding_length(model.hidden_size)
    writer.add_feed_forward_length(model.intermediate_size)
    writer.add_head_count(model.heads)
    writer.add_head_count_kv(model.kv_heads)
    writer.add_layer_norm_rms_eps(model.norm_eps)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores(scores)
    writer.add_token_types(types)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template("{{ messages }}")
    for key, value in (metadata or {}).items():
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        else:
            writer.add_string(key, value)
    weights = {}
    for name, value in source.weights.items():
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            heads = model.heads if "q_proj" in name else model.kv_heads
            value = interleaved(value, heads)
        weights[gguf_name(name)] = value
    if edit is not None:
        edit(weights)
    for name, value in weights.items():
        writer.add_tensor(name, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def test_stories_come_back_as_they_are(shared_data, tmp_path):
    expected = read_folder(shared_data / "models" / "stories260K" / "hf")
    found = read_gguf(write_stories(shared_data, tmp_path / "stories.gguf"))
    assert found.model == expected.model
    assert set(found.weights) == set(expected.weights)
    assert all(np.array_equal(found.weights[name], expected.weights[name]) for name in expected.weights)
    assert (found.prefix_token, found.end_token, found.chat_template) == (1, 2, "{{ messages }}")


def test_the_tokenizer_from_scores_gives_the_reference_ids(shared_data, tmp_path):
    checkpoint = convert(write_stories(shared_data, tmp_path / "stories.gguf"), tmp_path / "out", name="mine")
    assert checkpoint.meta.name == "mine"
    tokenizer = TextTokenizer.from_file(
        checkpoint.path / "tokenizer.json", prefix_token=1, end_token=2, chat_template=None
    )
    items = references(shared_data, "stories260K")
    assert len(items) == 12
    for item in items:
        assert [1, *tokenizer.encode(item["text"]).ids] == item["token_ids"], item["kind"]
        assert tokenizer.decode(item["token_ids"]) == item["text"]


def test_the_bos_can_be_switched_off(shared_data, tmp_path):
    file = write_stories(shared_data, tmp_path / "s.gguf", metadata={"tokenizer.ggml.add_bos_token": False})
    assert read_gguf(file).prefix_token is None


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"llama.expert_count": 8}, "mixture of experts"),
        ({"llama.rope.scaling.type": "yarn"}, "rotary positions are scaled"),
        ({"llama.rope.dimension_count": 4}, "turned in part"),
    ],
)
def test_what_isnt_computed_is_refused(shared_data, tmp_path, metadata, message):
    file = write_stories(shared_data, tmp_path / "s.gguf", metadata=metadata)
    with pytest.raises(InputError, match=message):
        convert(file, tmp_path / "out")


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("tokenizer.ggml.unknown_token_id", "unknown_token_id 512: there are 512 tokens"),
        ("tokenizer.ggml.padding_token_id", None),
    ],
)
def test_ids_beyond_the_vocabulary_are_refused(shared_data, tmp_path, key, message):
    file = write_stories(shared_data, tmp_path / "s.gguf", metadata={key: 512})
    if message is None:
        assert convert(file, tmp_path / "out").meta.model.vocab_size == 512  # an id that nobody uses here
        return
    with pytest.raises(InputError, match=message):
        convert(file, tmp_path / "out")


def test_a_begin_token_that_isnt_there_is_refused(shared_data, tmp_path, monkeypatch):
    monkeypatch.setattr(
        gguf.GGUFWriter,
        "add_bos_token_id",
        lambda self, _: self.add_uint32("tokenizer.ggml.bos_token_id", 512),
    )
    file = write_stories(shared_data, tmp_path / "s.gguf")
    with pytest.raises(InputError, match="prefix token 512: the tokenizer has 512 tokens"):
        convert(file, tmp_path / "out")


def test_other_architectures_are_refused(shared_data, tmp_path):
    file = write_stories(shared_data, tmp_path / "s.gguf", architecture="bert")
    with pytest.raises(InputError, match="architecture 'bert' isn't supported"):
        convert(file, tmp_path / "out")


def test_missing_and_surplus_weights_are_named(shared_data, tmp_path):
    file = write_stories(shared_data, tmp_path / "a.gguf", edit=lambda w: w.pop("blk.1.ffn_up.weight"))
    with pytest.raises(InputError, match=r"model\.layers\.1\.mlp\.up_proj\.weight: weight is missing"):
        convert(file, tmp_path / "out")
    extra = {"blk.0.attn_q_norm.weight": np.ones(8, np.float32)}
    file = write_stories(shared_data, tmp_path / "b.gguf", edit=lambda w: w.update(extra))
    with pytest.raises(InputError, match=r"blk\.0\.attn_q_norm\.weight: weight is unknown"):
        convert(file, tmp_path / "out")


@pytest.mark.parametrize("content", [b"", b"GGUF", b"not a model at all" * 10])
def test_damaged_files_are_refused(tmp_path, content):
    (tmp_path / "m.gguf").write_bytes(content)
    with pytest.raises(InputError, match="not a GGUF file"):
        convert(tmp_path / "m.gguf", tmp_path / "out")


BYTE_LEVEL = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.tokens": ["<|end|>", "a", "b", "1", "2", "ab", "12", "\u0120"],
    "tokenizer.ggml.merges": ["a b", "1 2"],
    "tokenizer.ggml.token_type": [3, 1, 1, 1, 1, 1, 1, 1],
    "tokenizer.ggml.pre": "gpt-2",
    "tokenizer.ggml.bos_token_id": 0,
    "tokenizer.ggml.eos_token_id": 0,
}


@pytest.mark.parametrize(
    ("pre", "ids", "prefix"),
    [("gpt-2", [5, 6, 7, 5], None), ("smollm", [5, 3, 4, 7, 5], None), ("llama-bpe", [5, 6, 7, 5], 0)],
)
def test_byte_level_tokenizers(tmp_path, pre, ids, prefix):
    found = read_tokenizer({**BYTE_LEVEL, "tokenizer.ggml.pre": pre}.get, tmp_path)
    (tmp_path / "tokenizer.json").write_bytes(found.json)
    tokenizer = TextTokenizer.from_file(
        tmp_path / "tokenizer.json", prefix_token=None, end_token=0, chat_template=None
    )
    assert tokenizer.encode("ab12 ab").ids.tolist() == ids and found.prefix_token == prefix
    assert tokenizer.encode("<|end|>ab").ids.tolist() == [0, 5] and found.size == 8


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokenizer.ggml.model": "bert"}, "model 'bert' isn't supported"),
        ({"tokenizer.ggml.pre": "falcon"}, "pre 'falcon' isn't supported"),
        ({"tokenizer.ggml.tokens": None}, "tokens: missing"),
        ({"tokenizer.ggml.tokens": ["a", "a"]}, "a token stands twice"),
        ({"tokenizer.ggml.model": "llama"}, "scores: missing"),
        (
            {"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.bos_token_id": None},
            "bos_token_id: missing",
        ),
    ],
)
def test_tokenizers_that_cant_be_built(tmp_path, change, message):
    with pytest.raises(InputError, match=message):
        read_tokenizer({**BYTE_LEVEL, **change}.get, tmp_path)


@pytest.mark.slow
def test_smollm2_tokenizer_and_template(smollm2_file):
    found = read_gguf(smollm2_file)
    assert found.model.parameters == 134_515_008 and found.model.tied_head
    assert found.model.rope_theta == 100000.0 and found.prefix_token is None
    assert "<|im_start|>" in found.chat_template and found.end_token == 2
    assert len(json.loads(found.tokenizer_json)["model"]["vocab"]) == 49152
