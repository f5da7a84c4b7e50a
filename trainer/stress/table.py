"""The stress test's tables in Markdown, for the terminal and stress.md."""

from statistics import median

from trainer.stress.recovery import Recovery
from trainer.stress.report import StressReport

_TIMES = ("detection_s", "restart_s", "restore_s", "catch_up_s")


def stress_table(report: StressReport) -> str:
    """One row a fault, one a kind, and the checks."""
    done = sum(item.as_promised for item in report.recoveries)
    workers = report.stress.config.parallel.devices
    lines = [
        f"{done} of {len(report.recoveries)} faults on {workers} worker{'s' * (workers > 1)} ended as promised.",
        "",
        "| fault | step | ranks | detection_s | restart_s | restore_s | lost steps | catch_up_s | outcome |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for item in report.recoveries:
        fault = item.fault
        sign = "" if item.as_promised else "NOT AS PROMISED: "
        ranks = ", ".join(str(rank) for rank in fault.ranks)
        cells = [fault.kind, str(fault.step), ranks, *(_time(getattr(item, name)) for name in _TIMES[:3])]
        cells += ["-" if item.lost_steps is None else str(item.lost_steps), _time(item.catch_up_s)]
        lines.append("| " + " | ".join([*cells, f"{sign}{item.outcome}"]) + " |")
    lines += [
        "",
        "| kind (median, longest) | faults | " + " | ".join(_TIMES) + " |",
        "|---|---|---|---|---|---|",
    ]
    for kind in dict.fromkeys(item.fault.kind for item in report.recoveries):
        same = [item for item in report.recoveries if item.fault.kind == kind]
        lines.append(f"| {kind} | {len(same)} | " + " | ".join(_spread(same, name) for name in _TIMES) + " |")
    lines.append("")
    lines += [
        f"{'ok' if check.holds else 'NOT AS PROMISED'}  {check.name}: {check.evidence}"
        for check in report.checks
    ]
    if report.times_taken_up:
        lines.append(
            f"The test itself was ended and taken up again {report.times_taken_up} times; {report.struck_anew} faults were struck anew"
        )
    if report.strange_delays:
        longest = max(delay.late_s for delay in report.strange_delays)
        lines.append(
            f"{len(report.strange_delays)} delays noticed that no fault explains (this machine's own), up to {longest:.1f} s"
        )
    return "\n".join(lines)


def _time(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _spread(items: list[Recovery], name: str) -> str:
    values = [value for item in items if (value := getattr(item, name)) is not None]
    return f"{median(values):.2f}, {max(values):.2f}" if values else "-"
