"""llama2.c files: the real stories260K against its Hugging Face folder, both header versions, and damaged files."""

import json
import shutil
import struct

import numpy as np
import pytest

from evalkit.errors import InputError
from evalkit.tokenization import TextTokenizer
from tests.support.real_models import references
from tests.trainer.convert.sources import small_spec, small_weights, write_llama2c, write_tokenizer
from trainer.convert import convert
from trainer.convert.folder import read_folder
from trainer.convert.llama2c import read_llama2c


def test_stories260k_equals_its_hugging_face_folder(shared_data):
    folder = shared_data / "models" / "stories260K"
    found, expected = read_llama2c(folder / "stories260K.bin"), read_folder(folder / "hf")
    assert found.model == expected.model
    assert set(found.weights) == set(expected.weights)
    assert all(found.weights[name].tobytes() == expected.weights[name].tobytes() for name in expected.weights)
    assert found.tokenizer_json == expected.tokenizer_json
    assert (found.prefix_token, found.end_token, found.name) == (1, 1, "stories260K")
    assert found.origin["format"] == "llama2.c version 0"


def test_its_own_tokenizer_gives_the_reference_ids(shared_data, tmp_path):
    source = shared_data / "models" / "stories260K"
    for name in ("stories260K.bin", "tok512.bin"):
        shutil.copyfile(source / name, tmp_path / name)
    checkpoint = convert(tmp_path / "stories260K.bin", tmp_path / "out")
    assert set(checkpoint.meta.config["converted_from"]["files"]) == {"stories260K.bin", "tok512.bin"}
    tokenizer = TextTokenizer.from_file(
        checkpoint.path / "tokenizer.json", prefix_token=1, end_token=1, chat_template=None
    )
    for item in references(shared_data, "stories260K"):
        assert [1, *tokenizer.encode(item["text"]).ids] == item["token_ids"], item["kind"]
        assert tokenizer.decode(item["token_ids"]) == item["text"]


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize("tied", [True, False])
def test_both_versions_come_back_bit_for_bit(tmp_path, version, tied):
    spec = small_spec("llama", kv_heads=2, tied_head=tied)
    weights = small_weights(spec)
    write_tokenizer(tmp_path)
    found = read_llama2c(write_llama2c(tmp_path / "m.bin", spec, weights, version=version))
    assert found.model == spec and set(found.weights) == set(weights)
    assert all(np.array_equal(found.weights[name], value) for name, value in weights.items())


@pytest.fixture
def file(tmp_path):
    spec = small_spec("llama")
    write_tokenizer(tmp_path)
    return write_llama2c(tmp_path / "m.bin", spec, small_weights(spec), version=0)


def with_header(file, version):
    data = file.read_bytes()
    file.write_bytes(struct.pack("<Ii", 0x616B3432, version) + data[8:])


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda file: file.write_bytes(b""), "not a llama2.c file; of .bin files only llama2.c's"),
        (lambda file: file.write_bytes(b"\xff" * 400), r"its header says \(-1, -1"),
        (lambda file: file.write_bytes(file.read_bytes()[:-4]), "bytes, its header asks for"),
        (lambda file: file.write_bytes(file.read_bytes() + b"\0\0\0\0"), "bytes, its header asks for"),
        (lambda file: with_header(file, 2), "version 2; only float32 files are read"),
        (lambda file: (file.parent / "tokenizer.json").unlink(), "no tokenizer; lay tokenizer.json"),
    ],
)
def test_damaged_files_are_refused(file, tmp_path, edit, message):
    edit(file)
    with pytest.raises(InputError, match=message):
        convert(file, tmp_path / "out")


def test_another_rotary_base_is_refused(file):
    data = bytearray(file.read_bytes())
    data[-4:] = struct.pack("<f", 0.5)
    file.write_bytes(data)
    with pytest.raises(InputError, match="rotary angles aren't those of base 10000"):
        read_llama2c(file)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "0 tokens, the model has 280"),
        (b"\1\0\0\0" + struct.pack("<fi", 1, 9) + b"a", "not a tokenizer"),
    ],
)
def test_damaged_tokenizers_are_refused(file, content, message):
    (file.parent / "tokenizer.json").unlink()
    (file.parent / "tokenizer.bin").write_bytes(content)
    with pytest.raises(InputError, match=message):
        read_llama2c(file)


def test_a_tokenizer_of_a_larger_vocabulary_is_refused(file, tmp_path):
    vocabulary = json.loads((file.parent / "tokenizer.json").read_text())
    vocabulary["model"]["vocab"]["\u0120extra"] = 400
    (file.parent / "tokenizer.json").write_text(json.dumps(vocabulary))
    with pytest.raises(InputError, match="the tokenizer has ids up to 400, the model only 280 rows"):
        convert(file, tmp_path / "out")
