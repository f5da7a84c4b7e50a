"""Records and where they go: JSON Lines, MLflow and TensorBoard for real."""

import json
import os

import pytest

from evalkit.errors import InputError
from evalkit.metrics.result import Interval, MetricResult
from evalkit.training.record import EvaluationRecord, JsonlSink, MlflowSink, TensorBoardSink, metric_entry

METRIC = MetricResult(
    name="perplexity/token",
    value=3.5,
    reason=None,
    unit="ratio",
    direction="lower",
    n=100,
    clusters=20,
    signature="ppl|…",
    interval=Interval(3.0, None, 0.95, 2, "cluster-bootstrap", 1000, 1),
)
MISSING = MetricResult("perplexity/oov", None, "no word counts", "ratio", "lower", 0, 0, "ppl|…")
RECORD = EvaluationRecord(
    step=40,
    epoch=1,
    trigger="loss_scale_drop",
    reason="loss scale 1024 -> 256 within 100 steps",
    loss_scale=256.0,
    metrics=(metric_entry(METRIC), metric_entry(MISSING)),
    details={"suppressed": 2},
)


def test_jsonl_appends_whole_lines(tmp_path):
    path = tmp_path / "runs" / "evaluations.jsonl"
    for _ in range(2):
        sink = JsonlSink(path)
        sink.write(RECORD)
        sink.close()
    first, second = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    assert first == second and first["suppressed"] == 2 and first["loss_scale"] == 256.0
    assert first["metrics"][0]["interval"] == {
        "low": 3.0,
        "high": None,
        "confidence": 0.95,
        "method": "cluster-bootstrap",
    }
    assert first["metrics"][1]["value"] is None and first["metrics"][1]["reason"] == "no word counts"


def test_a_file_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match="can't be written"):
        JsonlSink(tmp_path / "file" / "evaluations.jsonl")


def test_a_torn_line_costs_no_other_record(tmp_path):
    path = tmp_path / "evaluations.jsonl"
    path.write_text('{"step": 1}\n{"step": 2, "tri')
    sink = JsonlSink(path)
    sink.write(RECORD)
    sink.write(RECORD)
    lines = path.read_text().splitlines()
    assert lines[:2] == ['{"step": 1}', '{"step": 2, "tri']
    assert [json.loads(line)["step"] for line in lines[2:]] == [RECORD.step] * 2


@pytest.mark.timeout(20)
def test_a_pipe_is_no_file_of_records(tmp_path):
    os.mkfifo(tmp_path / "evaluations.jsonl")
    with pytest.raises(InputError, match="a pipe, a file is needed"):
        JsonlSink(tmp_path / "evaluations.jsonl")


def test_mlflow_holds_values_and_interval_ends(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow", reason="the extra mlflow isn't installed")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri((tmp_path / "mlruns").as_uri())
    with mlflow.start_run() as run:
        sink = MlflowSink()
        sink.write(RECORD)
        sink.close()
    client = mlflow.MlflowClient()
    (value,) = client.get_metric_history(run.info.run_id, "evalkit/perplexity/token")
    assert (value.value, value.step) == (3.5, 40)
    kept = client.get_run(run.info.run_id).data.metrics
    assert set(kept) == {"evalkit/perplexity/token", "evalkit/perplexity/token.low", "evalkit/loss_scale"}


def test_tensorboard_holds_values_and_interval_ends(tmp_path):
    pytest.importorskip("tensorboardX", reason="the extra tensorboard isn't installed")
    from tensorboardX.proto.event_pb2 import Event

    sink = TensorBoardSink(tmp_path)
    sink.write(RECORD)
    sink.close()
    (file,) = tmp_path.glob("events.*")
    found = {}
    for payload in tfrecords(file.read_bytes()):
        event = Event.FromString(payload)
        for value in event.summary.value:
            found[value.tag] = (event.step, value.simple_value)
    assert found["evalkit/perplexity/token"] == (40, 3.5)
    assert found["evalkit/perplexity/token.low"] == (40, 3.0)
    assert "evalkit/perplexity/oov" not in found


def test_tensorboard_of_a_second_training_replaces_nothing(tmp_path):
    """A file's name holds the second of its making: two trainings within one wrote the same file."""
    pytest.importorskip("tensorboardX", reason="the extra tensorboard isn't installed")
    sink = TensorBoardSink(tmp_path)
    for _ in range(3):
        sink.write(RECORD)
        sink.close()
        sink.close()
    files = list(tmp_path.glob("events.*"))
    assert len(files) == 3 and all(b"evalkit/perplexity/token" in file.read_bytes() for file in files)


def tfrecords(data: bytes):
    """Payloads of a TFRecord file: length, its CRC, payload, its CRC."""
    place = 0
    while place < len(data):
        size = int.from_bytes(data[place : place + 8], "little")
        yield data[place + 12 : place + 12 + size]
        place += 12 + size + 4
