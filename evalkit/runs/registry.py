"""The registry: which runs there were, what was decided, and which model each alias holds.

One SQLite file under `$EVALKIT_HOME`, by default `./.evalkit`. It holds digests, numbers and places, no texts. See
docs/promotion.md.
"""

import getpass
import os
import socket
from collections.abc import Sequence
from dataclasses import astuple, fields
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from evalkit.runs.plan import now_utc
from evalkit.runs.registry_rows import Action, Alias, AuditEntry, MetricEntry, RunEntry, VerdictEntry
from evalkit.runs.registry_schema import open_database, registry_file, told, transaction
from evalkit.runs.results_io import Results

RowT = TypeVar("RowT")


class Registry:
    """An open registry, a context manager. One thread uses it; processes may write at once."""

    def __init__(self, path: Path | None = None, *, create: bool = False) -> None:
        """Open the registry at `path`, by default `registry_file()`.

        Args:
            path: of the file.
            create: make it where there is none; otherwise it reads as empty.

        Raises:
            RegistryUnusableError: the file isn't a registry of this version, is damaged, or can't be opened.
        """
        self.path = path or registry_file()
        self._database = open_database(self.path, create=create)

    def __enter__(self) -> "Registry":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._database.close()

    def record(self, run: RunEntry, results: Results, verdict: VerdictEntry | None) -> None:
        """Keep a run with its metrics, in place of what was known of it; and a verdict beside earlier ones.

        Raises:
            RegistryUnusableError: it can't be written.
        """
        metrics = [
            (
                *(
                    results.run_id,
                    place,
                    metric.name,
                    metric.k,
                    metric.slice,
                    metric.value,
                    metric.reason,
                    metric.unit,
                ),
                *(
                    (None, None, None)
                    if metric.interval is None
                    else (metric.interval.low, metric.interval.high, metric.interval.confidence)
                ),
                *(metric.n, metric.signature),
            )
            for place, metric in enumerate(results.metrics)
        ]
        with told(self.path), transaction(self._database):
            self._insert("runs", astuple(run), "OR REPLACE")
            self._database.execute("DELETE FROM metrics WHERE run_id = ?", (run.run_id,))
            for row in metrics:
                self._insert("metrics", row)
            if verdict is not None:
                # Replaced, so that the latest one judged comes last.
                row = (run.run_id, run.seal_sha256, verdict.policy_sha256, verdict.verdict, now_utc())
                self._insert("verdicts", row, "OR REPLACE")

    def runs(self) -> list[tuple[RunEntry, VerdictEntry | None]]:
        """Every run with its latest verdict, the oldest run first."""
        latest: dict[str, VerdictEntry] = {}
        with told(self.path):
            for row in self._database.execute(
                "SELECT run_id, policy_sha256, verdict FROM verdicts JOIN runs USING (run_id, seal_sha256) "
                "ORDER BY verdicts.rowid"
            ):
                latest[row["run_id"]] = VerdictEntry(row["policy_sha256"], row["verdict"])
            found = self._database.execute("SELECT * FROM runs ORDER BY created, run_id").fetchall()
        runs = [RunEntry(**{**dict(row), "first_release": bool(row["first_release"])}) for row in found]
        return [(run, latest.get(run.run_id)) for run in runs]

    def judged_scenarios(self, scenario: str, model_digest: str, policy_sha256: str) -> set[str]:
        """Digests of the scenarios of that name under which a candidate was judged by a policy."""
        with told(self.path):
            rows = self._database.execute(
                "SELECT DISTINCT scenario_sha256 FROM runs JOIN verdicts USING (run_id) "
                "WHERE scenario = ? AND model_digest = ? AND policy_sha256 = ?",
                (scenario, model_digest, policy_sha256),
            ).fetchall()
        return {digest for (digest,) in rows}

    def metrics(self, name: str) -> list[MetricEntry]:
        """A metric, with every k and slice, over all runs, the oldest run first."""
        columns = ", ".join(item.name for item in fields(MetricEntry))
        return self._select(
            MetricEntry,
            f"SELECT {columns} FROM metrics JOIN runs USING (run_id) WHERE name = ? ORDER BY created, run_id, place",
            (name,),
        )

    def metric_names(self) -> list[str]:
        """The metrics that any run has, sorted."""
        with told(self.path):
            return [
                name for (name,) in self._database.execute("SELECT DISTINCT name FROM metrics ORDER BY name")
            ]

    def alias(self, name: str) -> Alias | None:
        """An alias, or None where nobody bound it."""
        found = self._select(Alias, "SELECT * FROM aliases WHERE name = ?", (name,))
        return found[0] if found else None

    def aliases(self) -> list[Alias]:
        """All aliases by name."""
        return self._select(Alias, "SELECT * FROM aliases ORDER BY name")

    def audit(self) -> list[AuditEntry]:
        """The whole audit, the oldest entry first."""
        return self._select(AuditEntry, "SELECT * FROM audit ORDER BY seq")

    def bind(self, name: str, policy_sha256: str, scenario_sha256: str) -> AuditEntry:
        """Bind an alias to what a promotion needs; what it holds stays.

        Raises:
            RegistryUnusableError: it can't be written.
        """
        with told(self.path), transaction(self._database):
            return self._append("bind", name, policy_sha256, scenario_sha256)

    def move(self, expected: Alias, **entry: str | None) -> AuditEntry | None:
        """Let an alias hold another model, if it is still as it was seen: the same model held, the same digests bound.

        Args:
            expected: the alias as it was seen.
            entry: fields of the `AuditEntry`; with a reason it is a forced one.

        Returns:
            The entry; None where the alias isn't as expected any more, and nothing was done.

        Raises:
            RegistryUnusableError: it can't be written.
        """
        action: Action = "promote" if entry.get("reason") is None else "force"
        with told(self.path), transaction(self._database):
            now = self.alias(expected.name)
            if now is None or _swapped(now) != _swapped(expected):
                return None
            entry["previous_digest"] = now.model_digest
            return self._append(action, now.name, now.policy_sha256, now.scenario_sha256, **entry)

    def _append(
        self, action: Action, alias: str, policy_sha256: str, scenario_sha256: str, **entry: str | None
    ) -> AuditEntry:
        values = {
            "at": now_utc(),
            "who": account(),
            "action": action,
            "alias": alias,
            "policy_sha256": policy_sha256,
            "scenario_sha256": scenario_sha256,
            **entry,
        }
        names, marks = ", ".join(values), ", ".join("?" * len(values))
        written = self._database.execute(
            f"INSERT INTO audit ({names}) VALUES ({marks})", tuple(values.values())
        )
        return self._select(AuditEntry, "SELECT * FROM audit WHERE seq = ?", (written.lastrowid,))[0]

    def _insert(self, table: str, row: Sequence[Any], conflict: str = "") -> None:
        self._database.execute(
            f"INSERT {conflict} INTO {table} VALUES ({', '.join('?' * len(row))})", tuple(row)
        )

    def _select(self, kind: type[RowT], query: str, values: Sequence[Any] = ()) -> list[RowT]:
        with told(self.path):
            return [kind(**dict(row)) for row in self._database.execute(query, tuple(values))]


def account() -> str:
    """Who acts: the account, and the machine it acts on."""
    try:
        # By the process's user id: the environment's names are anybody's to set.
        import pwd

        name = pwd.getpwuid(os.getuid()).pw_name
    except ImportError:
        name = getpass.getuser()
    except KeyError:
        name = f"uid {os.getuid()}"
    return f"{name}@{socket.gethostname()}"


def _swapped(alias: Alias) -> tuple[str | None, ...]:
    return (alias.model_digest, alias.policy_sha256, alias.scenario_sha256)
