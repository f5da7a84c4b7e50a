"""Digests by content; files and folders that appear whole or not at all."""

import hashlib
import json
import os
from pathlib import Path

import pytest

from evalkit.canonical import canonical_json, sha256_file, sha256_json, sha256_text
from evalkit.errors import InputError
from evalkit.files import folder_atomic, read_text, write_bytes_atomic, write_json_atomic


def test_canonical_json_is_independent_of_key_order() -> None:
    assert canonical_json({"b": 1, "a": [1.5, "ü"]}) == '{"a":[1.5,"ü"],"b":1}'.encode()
    assert sha256_json({"a": 1, "b": 2}) == sha256_json({"b": 2, "a": 1})


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {"a": [float("-inf")]}])
def test_canonical_json_refuses_what_json_cannot_carry(value: object) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        canonical_json(value)


def test_lone_surrogates_have_a_digest_of_their_own() -> None:
    assert sha256_text("a\ud800") != sha256_text("a?")


def test_file_digest_is_that_of_its_bytes(tmp_path: Path) -> None:
    data = bytes(range(256)) * 9000
    write_bytes_atomic(tmp_path / "sub" / "data", data)
    assert sha256_file(tmp_path / "sub" / "data") == hashlib.sha256(data).hexdigest()


def test_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "value.json"
    write_json_atomic(path, {"a": 1})
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json_atomic(path, {"a": float("nan")})
    assert json.loads(path.read_text()) == {"a": 1}
    assert [file.name for file in tmp_path.iterdir()] == ["value.json"]


def test_folder_appears_only_when_the_block_succeeds(tmp_path: Path) -> None:
    target = tmp_path / "out"
    with pytest.raises(RuntimeError, match="half-way"), folder_atomic(target) as staging:
        (staging / "part").write_text("x")
        raise RuntimeError("half-way")
    assert list(tmp_path.iterdir()) == []
    with folder_atomic(target) as staging:
        (staging / "part").write_text("x")
        assert not target.exists()
    assert (target / "part").read_text() == "x"
    with pytest.raises(InputError, match="exists already"), folder_atomic(target):
        pass


def test_text_that_is_not_utf8_is_named_by_line(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(b"good\nbad \xff\n")
    with pytest.raises(InputError, match=r"text:2: not UTF-8"):
        read_text(path)


def test_a_named_pipe_is_refused_and_a_shells_pipe_is_read(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(InputError, match="pipe: a pipe, a file is needed"):
        read_text(pipe)
    reader, writer = os.pipe()
    os.write(writer, b"text")
    os.close(writer)
    try:
        assert read_text(Path(f"/dev/fd/{reader}")) == "text"
    finally:
        os.close(reader)
