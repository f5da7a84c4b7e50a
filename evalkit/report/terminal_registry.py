"""Tables of aliases and of the audit for the terminal."""

from collections.abc import Sequence

from evalkit.report import numbers
from evalkit.report.terminal import print_table
from evalkit.report.text import visible
from evalkit.runs.registry_rows import Alias, AuditEntry


def print_aliases(aliases: Sequence[Alias]) -> None:
    """Print what each alias holds and demands, digests in full: `--expect` takes them."""
    if not aliases:
        print("no alias is bound yet; bind one with `evalkit alias set NAME --policy FILE --scenario FILE`")
    for alias in aliases:
        forced = ", forced" if alias.action == "force" else ""
        since = (
            f" (since {alias.at}, by {visible(alias.who or '')}, run {alias.run_id}{forced})"
            if alias.at
            else ""
        )
        print(f"{alias.name}: {alias.model_digest or 'none'}{since}")
        if alias.bundle is not None:
            print(f"  bundle: {visible(alias.bundle)}")
        print(f"  demands policy {alias.policy_sha256}")
        print(f"  demands scenario {alias.scenario_sha256}")


def print_audit(entries: Sequence[AuditEntry]) -> None:
    """Print a line an entry, the oldest first."""
    from rich.table import Table
    from rich.text import Text

    if not entries:
        return
    table = Table("no", "at", "who", "what", "alias", "from", "to", "run", "why", box=None, pad_edge=False)
    for entry in entries:
        if entry.action == "bind":
            why = f"policy {entry.policy_sha256[:12]}, scenario {entry.scenario_sha256[:12]}"
        elif entry.action == "force":
            why = f"forced: {entry.reason} ({entry.overridden or 'nothing stood against it'})"
        else:
            why = str(entry.verdict)
        moved = entry.action != "bind"
        cells = [
            *(str(entry.seq), entry.at, entry.who, entry.action, entry.alias),
            (numbers.short_digest(entry.previous_digest) if entry.previous_digest else "none")
            if moved
            else "",
            numbers.short_digest(entry.model_digest) if moved else "",
            *(entry.run_id or "", why),
        ]
        table.add_row(*(Text(visible(cell)) for cell in cells))
    print_table(table)
