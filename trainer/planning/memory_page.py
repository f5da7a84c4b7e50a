"""memory.html: the stages as stacked bars, and the tables; one file, no script."""

from pathlib import Path
from typing import Any

from markupsafe import Markup

from evalkit.files import folder_atomic, write_json_atomic
from evalkit.report.pages import page_templates
from trainer.planning.accuracy import MEMORY
from trainer.planning.memory import StageMemory, Term
from trainer.planning.memory_report import MemoryReport, choice_text, shown_choices
from trainer.planning.parameters import total_parameters
from trainer.planning.recompute import Frontier

_TEMPLATES = Path(__file__).parent / "templates"
# States blue, activations green, communication orange, the rest grey.
_COLOURS: dict[Term, str] = {
    "parameters": "#1f4e79",
    "gradients": "#3b7dbd",
    "optimizer": "#7fb2e0",
    "step_copies": "#b5d3ee",
    "activations": "#2f7d4f",
    "recomputed_layer": "#5fae7c",
    "activation_gradients": "#9ad1ae",
    "logits": "#c9a227",
    "kv_cache": "#2f7d4f",
    "receive_buffers": "#d9822b",
    "hccl_buffers": "#f0b070",
    "workspace": "#7a6f9b",
    "fragmentation": "#a9a3bd",
    "context": "#8c8c8c",
}
_GIB = 1024.0


def write_memory_report(report: MemoryReport, out: Path) -> None:
    """Write memory.html and memory.json into a new folder.

    Raises:
        InputError: `out` exists already.
    """
    with folder_atomic(out) as staging:
        write_json_atomic(staging / "memory.json", report.to_json())
        (staging / "memory.html").write_text(render_memory_page(report), encoding="utf-8")


def render_memory_page(report: MemoryReport) -> str:
    """The page; the template escapes every value."""
    style = Markup((_TEMPLATES / "memory.css").read_text(encoding="utf-8"))
    return page_templates(_TEMPLATES).get_template("memory.html.j2").render(view=_view(report), style=style)


def _view(report: MemoryReport) -> dict[str, Any]:
    memory = report.plan.device.memory_gib
    widest = (
        max([report.peak_mib, *(stage.total_mib for stage in report.stages), (memory or 0) * _GIB]) * 1.03
    )
    used = [term for term in _COLOURS if any(term in stage.terms_mib for stage in report.stages)]
    limit_text = "" if memory is None else f"{memory:g} GiB that the device has"
    verdict = report.verdict
    return {
        "name": report.plan.name,
        "model": f"{total_parameters(report.shape):,} parameters, {report.shape.layers} layers of {report.shape.hidden_size:,}",
        "strategy": strategy_text(report),
        "verdict": None if verdict is None else f"{verdict}: {report.peak_mib / _GIB:.1f} of {memory:g} GiB",
        "verdict_class": (verdict or "").replace(" ", "-").replace("'", "-"),
        "accuracy": accuracy_text(),
        "limit": None if memory is None else 100 * memory * _GIB / widest,
        "limit_text": limit_text,
        "bars": [_bar(stage, widest) for stage in report.stages],
        "legend": [{"name": term.replace("_", " "), "colour": _COLOURS[term]} for term in used],
        "tables": _tables(report, used),
    }


def strategy_text(report: MemoryReport) -> str:
    """The cut in one sentence."""
    training, inference = report.plan.training, report.plan.inference
    if training is None:
        assert inference is not None
        return f"Generation: {inference.sequences:,} sequences of {inference.length:,} positions."
    cut = training.strategy
    recompute = (
        cut.recompute if isinstance(cut.recompute, str) else f"runs of {cut.recompute.segments} layers"
    )
    return (
        f"{cut.devices:,} device{'s' * (cut.devices > 1)}: data {cut.data}, model {cut.model}, pipeline {cut.pipeline}; "
        f"{cut.micro_batches:,} micro-batch{'es' * (cut.micro_batches > 1)} of {cut.micro_batch_size} × {training.sequence_length:,} tokens; recompute {recompute}, gradients {training.gradient_type}, "
        f"ZeRO stage {cut.zero_stage}."
    )


def accuracy_text() -> str:
    """What to expect of a figure."""
    return (
        f"Such predictions were off by {100 * MEMORY.relative_error:.0f} % on average on {MEMORY.rows} public measurements "
        f"({MEMORY.on}), {MEMORY.note}."
    )


def _bar(stage: StageMemory, widest: float) -> dict[str, Any]:
    parts, x = [], 0.0
    for term, colour in _COLOURS.items():
        value = stage.terms_mib.get(term)
        if not value:
            continue
        width = 1000 * value / widest
        text = f"{term.replace('_', ' ')}: {value / _GIB:.2f} GiB"
        parts.append({"x": x, "width": width, "colour": colour, "text": text})
        x += width
    return {
        "label": f"stage {stage.stage} ({stage.peak_phase})",
        "total": f"{stage.total_mib / _GIB:.1f} GiB",
        "parts": parts,
    }


def _tables(report: MemoryReport, used: list[Term]) -> list[dict[str, Any]]:
    tables = [
        {
            "title": "Terms (MiB)",
            "note": None,
            "columns": [
                "stage",
                "total",
                "ranks",
                "layers",
                "in flight",
                *(term.replace("_", " ") for term in used),
            ],
            "rows": [
                [
                    stage.stage,
                    f"{stage.total_mib:,.0f}",
                    _ranks(stage),
                    stage.layers,
                    f"{stage.in_flight:g}",
                    *(f"{stage.terms_mib.get(term, 0):,.0f}" for term in used),
                ]
                for stage in report.stages
            ],
        }
    ]
    if report.dry_runs:
        tables.append(
            {
                "title": "MindSpore's dry run (MiB)",
                "note": "It replays the allocator and so takes the place of the plan where there is one.",
                "columns": ["stage", "used", "with fragments", "on the device", "doubt"],
                "rows": [
                    [
                        stage,
                        f"{run.used_mib:,}",
                        _or_unknown(run.actual_mib),
                        f"{total:,.0f}",
                        run.doubt or "",
                    ]
                    for stage, (run, total) in report.dry_runs.items()
                ],
            }
        )
    if report.residuals:
        tables.append(
            {
                "title": "Against what was measured (MiB)",
                "note": None,
                "columns": ["term", "stage", "peak", "predicted", "measured", "residual", "error"],
                "rows": [
                    [
                        row.term.replace("_", " "),
                        row.stage,
                        row.kind,
                        f"{row.predicted_mib:,.0f}",
                        _or_unknown(row.measured_mib),
                        _or_unknown(row.residual_mib),
                        "unknown" if row.relative_error is None else f"{100 * row.relative_error:+.2f} %",
                    ]
                    for row in report.residuals
                ],
            }
        )
    return tables + _recompute_tables(report) + _graph_tables(report)


def _recompute_tables(report: MemoryReport) -> list[dict[str, Any]]:
    if report.frontier is None:
        return []
    return [
        {
            "title": "Recomputation: the cheapest that fits",
            "note": "In how many of a stage's layers each tensor is computed again.",
            "text": True,
            "columns": ["stage", "recompute"],
            "rows": [[f"stage {stage}", choice_text(choice)] for stage, choice in report.choices.items()],
        },
        {
            "title": "Recomputation: what saves most for its operations",
            "note": None,
            "columns": ["tensor", "layers", "MiB a layer", "GFLOP a layer", "bytes a FLOP"],
            "rows": [
                [
                    item.name,
                    item.layers,
                    f"{item.saved_bytes / 2**20:,.1f}",
                    f"{item.extra_flop / 1e9:,.1f}",
                    f"{item.bytes_per_flop:.3g}",
                ]
                for item in report.frontier.candidates
            ],
        },
        {
            "title": "Recomputation: the frontier on the fullest stage",
            "note": "Choices that no other one beats in both bytes and operations; the table holds a selection.",
            "curve": _curve(report.frontier),
            "text": True,
            "columns": ["layers that recompute", "MiB saved", "extra operations"],
            "rows": [
                [
                    _layers(choice.layers),
                    f"{choice.saved_bytes / 2**20:,.0f}",
                    f"{100 * choice.extra_share:.2f} %",
                ]
                for choice in shown_choices(report.frontier)
            ],
        },
    ]


def _curve(frontier: Frontier) -> dict[str, Any]:
    """The frontier as a line: bytes saved to the right, extra operations upwards."""
    choices = frontier.choices
    most_bytes, most_share = choices[-1].saved_bytes or 1, choices[-1].extra_share or 1.0
    step = max(1, len(choices) // 400)
    points = [
        f"{1000 * choice.saved_bytes / most_bytes:.1f},{100 - 100 * choice.extra_share / most_share:.2f}"
        for choice in (*choices[::step], choices[-1])
    ]
    return {
        "points": " ".join(points),
        "right": f"{most_bytes / 2**20:,.0f} MiB saved",
        "top": f"{100 * most_share:.1f} % more operations",
    }


def _graph_tables(report: MemoryReport) -> list[dict[str, Any]]:
    if report.graph is None:
        return []
    plain, fused = report.graph.plain, report.graph.after_fusion
    return [
        {
            "title": f"Static plan of {report.graph.graph.source.name}",
            "note": (
                f"Peak {plain.peak_bytes / 2**20:,.2f} MiB at {plain.peak_at}, of which {plain.resident_bytes / 2**20:,.2f} MiB are "
                f"parameters and inputs; fused element by element {fused.peak_bytes / 2**20:,.2f} MiB, and "
                f"{report.graph.saved_bytes / 2**20:,.2f} MiB a step needn't be written."
                + (f" {report.graph.gaps}." if report.graph.gaps else "")
            ),
            "columns": ["largest at the peak", "operator", "MiB"],
            "rows": [
                [tensor.scope or tensor.name, tensor.kind, f"{tensor.tensor_bytes / 2**20:,.3f}"]
                for tensor in plain.largest
            ],
        }
    ]


def _ranks(stage: StageMemory) -> str:
    last = stage.first_rank + stage.ranks - 1
    return f"{stage.first_rank:,}" if stage.ranks == 1 else f"{stage.first_rank:,} to {last:,}"


def _layers(layers: dict[str, int]) -> str:
    return ", ".join(f"{name} × {count}" for name, count in layers.items()) or "nothing"


def _or_unknown(value: float | None) -> str:
    return "unknown" if value is None else f"{value:,.0f}"
