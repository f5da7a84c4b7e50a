"""MLflow as a target: a run's metrics and reports, and the alias of the model that was promoted (extra `mlflow`).

The run folder and the registry stay the evidence; what stands in MLflow is a copy for those who look there. Weights aren't
copied: a model version holds the bundle's manifest, and its tags name digest and folder.
"""

import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

from evalkit.bundle import MANIFEST
from evalkit.canonical import sha256_text
from evalkit.errors import InputError
from evalkit.gate.verdict import read_verdict
from evalkit.metrics.result import MetricResult
from evalkit.runs.folder import RunFolder
from evalkit.runs.plan import read_plan
from evalkit.runs.registry_rows import AuditEntry
from evalkit.runs.results_io import read_results
from evalkit.runs.seal import seal_digest

EXPERIMENT = "evalkit"
_REFUSED = re.compile(r"[^\w./:\- ]", re.ASCII)
_FILES = ("verdict.json", "results.json", "comparison.json", "seal.json")
_METRICS_A_CALL = 500


class MlflowError(InputError):
    """MLflow isn't there, or didn't do what it was asked to."""


class MlflowTarget:
    """An MLflow tracking server or database, e.g. `sqlite:///mlflow.db`."""

    def __init__(self, uri: str) -> None:
        """Take the server at `uri`; a database is opened, and made where there is none.

        Raises:
            MlflowError: MLflow, or what its store needs, isn't installed; the database can't be opened.
        """
        # Nothing about a release is told to anybody but the target.
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        try:
            import mlflow

            if uri.startswith("sqlite:"):
                import sqlalchemy  # noqa: F401
        except ImportError as error:
            raise MlflowError(
                f'--mlflow needs the package {error.name}; pip install "evalkit[mlflow]"'
            ) from None
        self._uri = uri
        with self._told():
            self._client = mlflow.MlflowClient(tracking_uri=uri, registry_uri=uri)

    def log_run(self, folder: RunFolder) -> str:
        """Log a finished run: metrics with interval ends, digests as tags, results and reports as files.

        A run that is there already, under the same seal, gets its verdict and reports anew and no second run.

        Returns:
            The id of the MLflow run.

        Raises:
            InputError: the run isn't finished.
            MlflowError: MLflow didn't do it.
        """
        results, tags = read_results(folder.results), _tags(folder)
        with self._told():
            known = self._known_run(tags)
            run_id = known or self._new_run(tags)
            for name, value in tags.items():
                self._client.set_tag(run_id, name, value)
            if known is None:
                self._log_metrics(run_id, results.metrics)
            for name in _FILES:
                if (folder.path / name).is_file():
                    self._client.log_artifact(run_id, str(folder.path / name))
            if folder.reports.is_dir():
                self._client.log_artifacts(run_id, str(folder.reports), "reports")
            self._client.set_terminated(run_id)
        return run_id

    def move_alias(self, folder: RunFolder, entry: AuditEntry) -> str:
        """Let the alias of a promotion point at a version of the registered model named like the scenario.

        Args:
            folder: the run that was promoted.
            entry: of the audit.

        Returns:
            The version.

        Raises:
            InputError: the run isn't finished.
            MlflowError: MLflow didn't do it.
        """
        run_id, model = self.log_run(folder), str(read_plan(folder)["scenario"]["name"])
        with self._told():
            version = self._version(model, run_id, entry)
            self._client.set_registered_model_alias(model, entry.alias, version)
        return version

    def _known_run(self, tags: dict[str, str]) -> str | None:
        wanted = ("evalkit.run_id", "evalkit.seal_sha256")
        query = " and ".join(f"tags.`{name}` = '{tags[name]}'" for name in wanted)
        found = self._client.search_runs([self._experiment()], query, max_results=1)
        return str(found[0].info.run_id) if found else None

    def _new_run(self, tags: dict[str, str]) -> str:
        run = self._client.create_run(self._experiment(), run_name=tags["evalkit.run_id"], tags=tags)
        return str(run.info.run_id)

    def _experiment(self) -> str:
        found = self._client.get_experiment_by_name(EXPERIMENT)
        return str(found.experiment_id if found is not None else self._client.create_experiment(EXPERIMENT))

    def _log_metrics(self, run_id: str, metrics: Sequence[MetricResult]) -> None:
        from mlflow.entities import Metric

        numbers = [Metric(key, value, 0, 0) for key, value in scalars(metrics)]
        for first in range(0, len(numbers), _METRICS_A_CALL):
            self._client.log_batch(run_id, metrics=numbers[first : first + _METRICS_A_CALL])

    def _version(self, model: str, run_id: str, entry: AuditEntry) -> str:
        from mlflow.exceptions import MlflowException

        try:
            self._client.get_registered_model(model)
        except MlflowException:
            self._client.create_registered_model(model)
        for version in self._client.search_model_versions(f"name = '{model}'"):
            if version.tags.get("model_digest") == entry.model_digest and version.run_id == run_id:
                return str(version.version)
        with tempfile.TemporaryDirectory() as scratch:
            promotion = Path(scratch) / "promotion.json"
            promotion.write_text(json.dumps(entry.to_dict(), indent=2), encoding="utf-8")
            self._client.log_artifact(run_id, str(promotion), "bundle")
        manifest = None if entry.bundle is None else Path(entry.bundle) / MANIFEST
        if manifest is not None and manifest.is_file():
            self._client.log_artifact(run_id, str(manifest), "bundle")
        # Inside the run's artefacts: a server takes no other folder of this machine as a source.
        source = f"{self._client.get_run(run_id).info.artifact_uri}/bundle"
        tags = {"model_digest": str(entry.model_digest), "action": entry.action}
        if entry.bundle is not None:
            tags["bundle"] = entry.bundle
        return str(self._client.create_model_version(model, source, run_id=run_id, tags=tags).version)

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            # Its client prints addresses of runs on stdout, which belongs to our own commands.
            with redirect_stdout(sys.stderr):
                yield
        except Exception as error:
            # Whatever a client, a server or a database driver of a third party raises: the verdict doesn't depend on it.
            line = " ".join(str(error).split())
            raise MlflowError(f"MLflow at {self._uri}: {type(error).__name__}: {line[:300]}") from None


def scalars(metrics: Sequence[MetricResult]) -> list[tuple[str, float]]:
    """The numbers of a run by key: `evalkit/NAME[.K][.SLICE]`, and the ends of its interval with `.low` and `.high`.

    What has no value has no key. Characters that MLflow refuses become `_`; keys that would be equal by it get a digest.
    """
    found: dict[str, float] = {}
    for metric in metrics:
        if metric.value is None:
            continue
        parts = [metric.name, *(str(part) for part in (metric.k, metric.slice) if part is not None)]
        plain = "evalkit/" + ".".join(parts)
        key = _REFUSED.sub("_", plain)
        if key != plain:
            key = f"{key}-{sha256_text(plain)[:6]}"
        found[key] = metric.value
        ends: dict[str, Any] = {} if metric.interval is None else vars(metric.interval)
        found |= {f"{key}.{end}": ends[end] for end in ("low", "high") if ends.get(end) is not None}
    return list(found.items())


def _tags(folder: RunFolder) -> dict[str, str]:
    plan = read_plan(folder)
    verdict = read_verdict(folder.verdict) if folder.verdict.is_file() else None
    baseline = plan["baseline"]
    return {
        "evalkit.run_id": str(plan["run_id"]),
        "evalkit.seal_sha256": seal_digest(folder.path),
        "evalkit.verdict": "NOT JUDGED" if verdict is None else verdict.verdict,
        "evalkit.policy_sha256": "none" if verdict is None else verdict.policy_sha256,
        "evalkit.scenario": str(plan["scenario"]["name"]),
        "evalkit.scenario_sha256": str(plan["scenario_sha256"]),
        "evalkit.model_digest": str(plan["candidate"]["model_digest"]),
        "evalkit.baseline_model_digest": "none" if baseline is None else str(baseline["model_digest"]),
    }
