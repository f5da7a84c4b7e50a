"""The peer's side of `benchmarks/scoring.py`: lm-evaluation-harness with a Hugging Face model.

It runs with the Python of the peers' environment (lm-eval, transformers, torch), so nothing of this project is imported.
"""

import json
import os
import resource
import sys
import time
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_OFFLINE", "1")


def main() -> None:
    """Read one JSON object of settings from stdin, print one of measurements; see `benchmarks/scoring.py`."""
    settings = json.load(sys.stdin)
    # Batch size auto tries large batches until memory runs out: its own, not that of the whole machine.
    limit = settings["memory_limit_mib"] << 20
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    import torch
    from lm_eval.api.instance import Instance
    from lm_eval.models.huggingface import HFLM

    torch.set_num_threads(settings["threads"])
    model = HFLM(
        pretrained=settings["model"],
        device="cpu",
        dtype="float32",
        batch_size=settings["batch_size"],
        max_length=settings["length"],
        add_bos_token=False,
        prefix_token_id=settings["prefix_token"],
    )
    if settings["batch_size"] == "auto":
        # Found once, outside the measured time, to the peer's advantage: by itself it would look at each call.
        model.batch_size_per_gpu = model._detect_batch_size()
    requests = [
        Instance(request_type="loglikelihood_rolling", doc={}, arguments=(text,), idx=0)
        for text in settings["texts"]
    ]
    seconds = []
    for _ in range(settings["passes"]):
        begin = time.perf_counter()
        logprobs = model.loglikelihood_rolling(requests, disable_tqdm=True)
        seconds.append(time.perf_counter() - begin)
    tokens = sum(len(model.tok_encode(text, add_special_tokens=False)) for text in settings["texts"])
    result = {
        "nll": [-value for value in logprobs],
        "tokens": tokens,
        "batch_size": model.batch_size,
        "seconds": min(seconds),
        "peak_mib": _peak_mib(),
        "matmul_gflops": _matmul_gflops(torch, *settings["matmul"]),
    }
    sys.stdout.write("\n" + json.dumps(result) + "\n")


def _matmul_gflops(torch, rows: int, inputs: int, outputs: int) -> float:  # type: ignore[no-untyped-def]
    left, right, out = torch.rand(rows, inputs), torch.rand(outputs, inputs), torch.empty(rows, outputs)
    best = float("inf")
    with torch.no_grad():
        for _ in range(30):
            begin = time.perf_counter()
            torch.matmul(left, right.T, out=out)
            best = min(best, time.perf_counter() - begin)
    return 2e-9 * rows * inputs * outputs / best


def _peak_mib() -> float:
    # Of this program alone: what getrusage tells includes the process that started it.
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


if __name__ == "__main__":
    main()
