"""Reading traces: every event once, exact times, and what can't be read named by its byte."""

import gzip
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.timeline import json_stream
from trainer.timeline.clock import BadTime, to_ns
from trainer.timeline.json_stream import EventFile


class Rejects:
    def __init__(self):
        self.rows = []

    def __call__(self, kind, example, count):
        self.rows.append((kind, example, count))


def read(path):
    rejects = Rejects()
    source = EventFile(path, rejects)
    return [event for batch in source.batches() for event in batch], source.header, rejects.rows


def write(tmp_path, text, name="trace.json"):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@given(st.integers(-(10**15), 4 * 10**15), st.integers(0, 999))
def test_texts_are_exact_to_the_nanosecond(whole, fraction):
    sign = -1 if whole < 0 else 1
    assert to_ns(f"{whole}.{fraction:03d}") == whole * 1000 + sign * fraction


@given(st.integers(0, 8_700_000_000_000), st.integers(0, 999))
def test_numbers_below_2_to_43_are_exact_to_the_nanosecond(whole, fraction):
    assert to_ns(float(f"{whole}.{fraction:03d}")) == whole * 1000 + fraction


@pytest.mark.parametrize(
    ("value", "ns"),
    [
        (5, 5_000),
        ("1.5e3", 1_500_000),
        (" 12.25\t", 12_250),
        ("12", 12_000),
        (0.0004, 0),
        ("0.0006", 1),
        (-3.5, -3_500),
    ],
)
def test_forms_of_time(value, ns):
    assert to_ns(value) == ns


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ("", "malformed_event"),
        (None, "malformed_event"),
        (True, "malformed_event"),
        ([], "malformed_event"),
        ("soon", "malformed_event"),
        (float("nan"), "malformed_event"),
        ("nan", "malformed_event"),
        (float("inf"), "overflow"),
        ("1e400", "overflow"),
        (1 << 70, "overflow"),
        (1.8e19, "overflow"),
        ("9" * 5000, "overflow"),
    ],
)
def test_bad_times(value, kind):
    with pytest.raises(BadTime) as caught:
        to_ns(value)
    assert caught.value.kind == kind


def events(count):
    return [
        {
            "ph": "X",
            "name": f'a "quoted" }},{{ name {n}',
            "ts": n,
            "dur": 1,
            "args": {"x": [{"y": n}, {"z": {}}]},
        }
        for n in range(count)
    ]


@pytest.mark.parametrize("block", [64, 100, 257, 1 << 20])
@pytest.mark.parametrize("indent", [None, 1])
def test_every_event_once_whatever_the_block(tmp_path, monkeypatch, block, indent):
    monkeypatch.setattr(json_stream, "_BLOCK_BYTES", block)
    truth = events(60)
    for document in (truth, {"a": {"b": 1}, "traceEvents": truth, "distributedInfo": {"rank": 3}}):
        found, header, rejects = read(write(tmp_path, json.dumps(document, indent=indent)))
        assert found == truth and rejects == []
        if isinstance(document, dict):
            assert header == {"a": {"b": 1}, "distributedInfo": {"rank": 3}}


def test_keys_behind_the_events_with_objects_in_lists(tmp_path):
    document = {"traceEvents": events(5), "deviceProperties": [{"id": 0}, {"id": 1}], "end": "x"}
    found, header, rejects = read(write(tmp_path, json.dumps(document)))
    assert found == events(5) and rejects == []
    assert header == {"deviceProperties": [{"id": 0}, {"id": 1}], "end": "x"}


@pytest.mark.parametrize("text", ["[]", '{"traceEvents": []}', '{"traceEvents": [], "a": 1}', "[\n]\n"])
def test_no_events(tmp_path, text):
    found, _, rejects = read(write(tmp_path, text))
    assert found == [] and rejects == []


def test_an_array_that_was_never_closed(tmp_path):
    """Chrome's own format allows it; said all the same."""
    whole = json.dumps(events(4))
    found, _, rejects = read(write(tmp_path, whole[:-1]))
    assert found == events(4)
    assert [(kind, count) for kind, _, count in rejects] == [("broken_tail", 1)]


@pytest.mark.parametrize("cut", [3, 20, 45])
def test_a_broken_tail_is_salvaged_and_its_byte_told(tmp_path, cut):
    whole = json.dumps(events(40))
    found, _, rejects = read(write(tmp_path, whole[:-cut]))
    assert found == events(39)
    [(kind, example, count)] = rejects
    assert (kind, count) == ("broken_tail", 1)
    offset = int(example.split(":")[0].removeprefix("byte "))
    assert whole[offset:].lstrip(", ").startswith(json.dumps(events(40)[39])[:40])


def test_a_cut_gzip_stream_is_salvaged(tmp_path):
    packed = gzip.compress(json.dumps(events(4000)).encode())
    found, _, rejects = read(write(tmp_path, packed[: len(packed) // 2], "trace.json.gz"))
    assert found == events(len(found)) and 100 < len(found) < 4000
    assert rejects[-1][0] == "broken_tail" and "gzip" in rejects[-1][1]


def test_one_bad_event_costs_one_event(tmp_path):
    parts = [json.dumps(event) for event in events(30)]
    parts[10] = parts[10].replace('"ts": 10', '"ts": 10 "broken')
    found, _, rejects = read(write(tmp_path, "[" + ", ".join(parts) + "]"))
    assert [event["ts"] for event in found] == [n for n in range(30) if n != 10]
    assert [kind for kind, _, _ in rejects] == ["malformed_event"]


def test_control_characters_nan_and_bytes_that_are_no_text(tmp_path):
    text = b'[{"ph": "X", "name": "a\x01\tb", "ts": 1, "dur": 1}, {"ph": "X", "name": "\xff", "ts": 2, "dur": 1},'
    text += b' {"ph": "X", "name": "c", "ts": NaN, "dur": 1}, {"ph": "X", "name": "d", "ts": 4, "dur": 1}]'
    found, _, rejects = read(write(tmp_path, text))
    assert [event["name"] for event in found] == ["a\x01\tb", "�", "c", "d"]
    assert [kind for kind, _, _ in rejects] == ["repaired_text"] * 3


def test_numbers_with_more_digits_than_a_double(tmp_path):
    text = '[{"ph": "X", "name": "\\"ts\\": 1704161511420306.491", "ts": 1704161511420306.491, "dur": 0.003}]'
    found, _, _ = read(write(tmp_path, text))
    assert to_ns(found[0]["ts"]) == 1_704_161_511_420_306_491
    assert found[0]["name"] == '"ts": 1704161511420306.491'


def test_memory_stays_bounded_with_one_endless_string(tmp_path, monkeypatch):
    monkeypatch.setattr(json_stream, "_BLOCK_BYTES", 1 << 10)
    monkeypatch.setattr(json_stream, "_MAX_EVENT_BYTES", 1 << 14)
    text = json.dumps(events(20))[:-1] + ', {"ph": "X", "name": "' + "x" * 200_000
    found, _, rejects = read(write(tmp_path, text))
    assert found == events(20)
    assert {kind for kind, _, _ in rejects} == {"broken_tail"}
