"""What the tests read of public measurements: the BigScience sweep, its logs, and models by their numbers."""

import csv
import re
from pathlib import Path

from trainer.planning.measurements import Measurement, TableMap, read_measurements
from trainer.planning.settings import Strategy, Training
from trainer.planning.shapes import ModelShape

GPT = {"activation": "gelu", "norm": "layernorm", "positions": "learned", "tied_head": True, "bias": True}
QWEN_7B = ModelShape(
    hidden_size=3584,
    layers=28,
    heads=28,
    kv_heads=4,
    intermediate_size=18944,
    vocab_size=152064,
    qkv_bias=True,
)
QWEN_72B = ModelShape(
    hidden_size=8192,
    layers=80,
    heads=64,
    kv_heads=8,
    intermediate_size=29568,
    vocab_size=152064,
    qkv_bias=True,
)
LLAMA2_7B = ModelShape(hidden_size=4096, layers=32, heads=32, intermediate_size=11008, vocab_size=32000)
GPT_52B = ModelShape(
    hidden_size=8192, layers=64, heads=32, intermediate_size=32768, vocab_size=50688, max_length=1024, **GPT
)

_COLUMNS = {
    "hidden_size": "nhidden",
    "layers": "nlayers",
    "heads": "nheads",
    "data": "dp",
    "model": "tp",
    "pipeline": "pp",
    "micro_batch_size": "mbs",
    "rows_per_step": "gbs",
    "memory_gib": "mem_GB",
    "out_of_memory": "oom",
    "seconds_per_step": "sec_per_it",
    "tflops_per_device": "tflops",
    "gradient_type": "grad_dtype",
}
_GRADIENTS = {"bf16": "fp32", "fp32 accumulate (BF16 optimizer)": "fp32_accumulation"}


def sweep_file(traces: Path) -> Path:
    return traces / "strategy_sweep" / "bigscience_a100_strategy_sweep.csv"


def sweep_map(**where: str) -> TableMap:
    constants = {
        "recompute": "full", "vocab_size": 250880, "sequence_length": 2048, "max_length": 2048, "flash_attention": False,
        "dropout": True, **GPT,
    }  # fmt: skip
    return TableMap(columns=_COLUMNS, constants=constants, values={"gradient_type": _GRADIENTS}, where=where)


def read_sweep(traces: Path, **where: str) -> list[Measurement]:
    """All rows, or those whose columns say so; a GPT's feed-forward width is four times its hidden size."""
    rows: list[Measurement] = []
    with sweep_file(traces).open() as stream:
        wanted = [
            row for row in csv.DictReader(stream) if all(row[name] == value for name, value in where.items())
        ]
    for width in sorted({row["nhidden"] for row in wanted}):
        mapping = sweep_map(**{**where, "nhidden": width})
        rows += read_measurements(sweep_file(traces), mapping, {"intermediate_size": 4 * int(width)})
    return sorted(rows, key=lambda row: int(row.where.rpartition(":")[2]))


def logged_memory(traces: Path, name: str) -> dict[int, tuple[float, float]]:
    """stage → (allocated, max allocated) in MiB, of a log of 64 ranks with 4 ranks a stage."""
    text = (traces / "bigscience_train_logs" / name).read_text(errors="replace")
    found = re.findall(
        r"\[Rank (\d+)\] \(after 1 iterations\) memory \(MB\) \| allocated: ([\d.]+) \| max allocated: ([\d.]+)",
        text,
    )
    return {int(rank) // 4: (float(allocated), float(peak)) for rank, allocated, peak in found}


def training_52b(**changes: object) -> Training:
    """The step behind those logs."""
    strategy = Strategy(model=4, pipeline=16, micro_batch_size=4, micro_batches=256, recompute="full")
    fields = {
        "sequence_length": 1024, "strategy": strategy, "gradient_type": "fp16", "flash_attention": False, "dropout": True,
        "attention_mask_bytes": 4,
    }  # fmt: skip
    return Training(**{**fields, **changes})


def training_qwen_7b(recompute: str) -> Training:
    """The MindSpeed script behind the MindSpore readings: sequence parallel, flash attention, fused SwiGLU, bf16."""
    strategy = Strategy(model=2, pipeline=2, micro_batches=64, sequence_parallel=True, recompute=recompute)
    return Training(sequence_length=10240, strategy=strategy, gradient_type="fp32")
