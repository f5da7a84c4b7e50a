"""Our side of `benchmarks/scoring.py`: one backend in a process of its own."""

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np


def main() -> None:
    """Read one JSON object of settings from stdin, print one of measurements; see `benchmarks/scoring.py`."""
    settings = json.load(sys.stdin)
    from evalkit.backends.choice import open_backend
    from evalkit.bundle import TOKENIZER, load_bundle
    from evalkit.metrics.token_classes import build_classifier
    from evalkit.runs.records import SampleRecord
    from evalkit.scenario.schema import Classes, Window
    from evalkit.scoring.scorer import score_texts
    from evalkit.scoring.texts import TextItem
    from evalkit.tokenization import TextTokenizer

    bundle = load_bundle(Path(settings["model"]))
    backend = open_backend(settings["backend"], bundle)
    # The peer always feeds a first token; for a tokenizer without one of its own the caller chooses it.
    tokenizer = TextTokenizer.from_file(
        bundle.path / TOKENIZER,
        prefix_token=settings["prefix_token"],
        end_token=None,
        chat_template=None,
    )
    classifier = build_classifier(Classes(), tokenizer, bundle.manifest.tokenizer.sha256, None, None)
    window = Window(length=settings["length"], stride=settings["length"], prefix="first")
    items = [TextItem(str(index), text, str(index)) for index, text in enumerate(settings["texts"])]
    seconds = []
    for _ in range(settings["passes"]):
        records: list[SampleRecord] = []
        begin = time.perf_counter()
        score_texts(items, tokenizer, backend, window, classifier, on_records=records.extend)
        seconds.append(time.perf_counter() - begin)
    by_id = {record.sample_id: record for record in records}
    ordered = [by_id[item.sample_id] for item in items]
    result = {
        "nll": [record.nll for record in ordered],
        "tokens": sum(record.scored for record in ordered),
        "seconds": min(seconds),
        "peak_mib": _peak_mib(),
        "matmul_gflops": _matmul_gflops(settings["backend"], *settings["matmul"]),
    }
    sys.stdout.write(json.dumps(result) + "\n")


def _matmul_gflops(backend: str, rows: int, inputs: int, outputs: int) -> float:
    generator = np.random.default_rng(0)
    left = generator.random((rows, inputs), dtype=np.float32)
    right = generator.random((inputs, outputs), dtype=np.float32)
    multiply = _onnx_matmul(left, right) if backend == "onnx" else _mindspore_matmul(left, right)
    best = float("inf")
    for _ in range(30):
        begin = time.perf_counter()
        multiply()
        best = min(best, time.perf_counter() - begin)
    return 2e-9 * rows * inputs * outputs / best


def _onnx_matmul(left: Any, right: Any) -> Any:
    import onnxruntime
    from onnx import TensorProto, helper, numpy_helper

    graph = helper.make_graph(
        [helper.make_node("MatMul", ["left", "right"], ["out"])],
        "matmul",
        [helper.make_tensor_value_info("left", TensorProto.FLOAT, left.shape)],
        [helper.make_tensor_value_info("out", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(right, "right")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 11)], ir_version=8)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    binding.bind_cpu_input("left", left)
    out = onnxruntime.OrtValue.ortvalue_from_numpy(np.empty((len(left), right.shape[1]), np.float32))
    binding.bind_ortvalue_output("out", out)
    return lambda: session.run_with_iobinding(binding)


def _mindspore_matmul(left: Any, right: Any) -> Any:
    from mindspore import Tensor, ops

    product, first, second = ops.MatMul(), Tensor(left), Tensor(right)
    # Reading one number waits for the whole product; reading all of it would measure the copy too.
    return lambda: product(first, second)[:1, :1].asnumpy()


def _peak_mib() -> float:
    # Of this program alone: what getrusage tells includes the process that started it.
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


if __name__ == "__main__":
    main()
