"""The CI recipes of docs/ci: sound by their published schemas, and their shell steps do what they say."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from evalkit.cli import cli

RECIPES = Path(__file__).resolve().parent.parent / "docs" / "ci"
PASSING = "rules:\n  - {metric: perplexity/token, max: 1.0e9}\n"
FAILING = "rules:\n  - {metric: perplexity/token, max: 1.1}\n"
UNDECIDED = "rules:\n  - {metric: perplexity/token, max: 1.0e9, min_n: 1000000}\n"


def recipe(name: str) -> dict[Any, Any]:
    content: dict[Any, Any] = yaml.safe_load((RECIPES / name).read_text())
    return content


def gate_job(manifest: dict[Any, Any]) -> dict[Any, Any]:
    """The Job of a recipe for Kubernetes."""
    if manifest["kind"] == "Job":
        return manifest
    (metric,) = manifest["spec"]["metrics"]
    job = metric["provider"]["job"]
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {**job["metadata"], "name": "gate"},
        "spec": job["spec"],
    }


@pytest.mark.parametrize(
    ("name", "schema"),
    [("github-actions.yaml", "vendor.github-workflows"), ("gitlab-ci.yaml", "vendor.gitlab-ci")],
)
def test_the_published_schema_finds_no_fault(name: str, schema: str) -> None:
    """The schemas come with the package; a fault planted in the recipe shows that they are looked at."""
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema]
    pytest.importorskip("check_jsonschema", reason="check-jsonschema isn't installed")
    done = subprocess.run([*command, str(RECIPES / name)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_published_schema_finds_a_planted_fault(tmp_path: Path) -> None:
    pytest.importorskip("check_jsonschema", reason="check-jsonschema isn't installed")
    broken = tmp_path / "broken.yaml"
    broken.write_text((RECIPES / "github-actions.yaml").read_text().replace("runs-on:", "runs_on:"))
    command = [
        sys.executable,
        "-m",
        "check_jsonschema",
        "--builtin-schema",
        "vendor.github-workflows",
        str(broken),
    ]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 1


@pytest.mark.parametrize("name", ["kubernetes-job.yaml", "argo-analysis-template.yaml"])
def test_the_kubernetes_schema_finds_no_fault(name: str) -> None:
    """Strictly: a field that the API doesn't know is a fault. `generateName` stands for the name."""
    kubernetes_validate = pytest.importorskip(
        "kubernetes_validate", reason="kubernetes-validate isn't installed"
    )
    job = gate_job(recipe(name))
    kubernetes_validate.validate(job, kubernetes_validate.latest_version(), strict=True)
    job["spec"]["template"]["spec"]["restart"] = "Never"
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(job, kubernetes_validate.latest_version(), strict=True)


@pytest.mark.parametrize("name", ["kubernetes-job.yaml", "argo-analysis-template.yaml"])
def test_a_job_tries_nothing_twice_and_runs_a_command_that_there_is(name: str) -> None:
    job = gate_job(recipe(name))["spec"]
    pod = job["template"]["spec"]
    assert (job["backoffLimit"], pod["restartPolicy"]) == (0, "Never")
    assert job["activeDeadlineSeconds"] > 0
    assert job["ttlSecondsAfterFinished"] > 0
    (container,) = pod["containers"]
    command, *words = [*container["command"], *container["args"]]
    assert command == "evalkit"
    context = cli.commands[words[0]].make_context(words[0], words[1:])
    mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
    for name in ("scenario", "model", "out"):
        place = str(context.params[name])
        assert place.startswith("{{args.") or any(place.startswith(f"{mount}/") for mount in mounts), place
    assert {mount["name"] for mount in container["volumeMounts"]} == {
        volume["name"] for volume in pod["volumes"]
    }


def test_an_analysis_is_one_measurement_that_may_not_fail() -> None:
    """Argo Rollouts #4479: an analysis in which every measurement was an error was called successful."""
    template = recipe("argo-analysis-template.yaml")
    assert (template["apiVersion"], template["kind"]) == ("argoproj.io/v1alpha1", "AnalysisTemplate")
    (metric,) = template["spec"]["metrics"]
    limits = ("failureLimit", "inconclusiveLimit", "consecutiveErrorLimit")
    assert [metric[name] for name in ("count", *limits)] == [1, 0, 0, 0]
    assert set(metric) == {"name", "provider", "count", *limits}
    assert [item["name"] for item in template["spec"]["args"]] == ["bundle"]


def test_no_recipe_lets_an_undecided_gate_through() -> None:
    for name in ("github-actions.yaml", "gitlab-ci.yaml"):
        text = (RECIPES / name).read_text()
        assert "continue-on-error" not in text
        assert "allow_failure:" not in text
        assert "|| true" not in text
    # What comes from outside reaches a shell through its environment only.
    jobs = recipe("github-actions.yaml")["jobs"].values()
    assert not any("${{" in step.get("run", "") for job in jobs for step in job["steps"])


def github_steps() -> list[tuple[str, bool]]:
    """The shell steps of the workflow in order, each with whether it runs after a failure too."""
    jobs = recipe("github-actions.yaml")["jobs"]
    assert jobs["promote"]["needs"] == "gate"
    steps = [step for job in ("gate", "promote") for step in jobs[job]["steps"]]
    return [
        (step["run"], step.get("if") == "always()")
        for step in steps
        if "run" in step and step["name"] != "Install"
    ]


def gitlab_steps() -> list[tuple[str, bool]]:
    """The same of the pipeline."""
    content = recipe("gitlab-ci.yaml")
    assert content["promote"]["needs"] == ["release-gate"]
    return [(line, False) for job in ("release-gate", "promote") for line in content[job]["script"]]


class Runner:
    """A machine of a CI: a working copy with a scenario, keys, and evalkit on its path."""

    def __init__(self, folder: Path, bundle: Path, policy: str) -> None:
        self.folder = folder
        (folder / "scenarios").mkdir(parents=True)
        rows = [{"id": f"t{number}", "text": f"my card {number} is lost"} for number in range(40)]
        (folder / "scenarios/texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (folder / "scenarios/policy.yaml").write_text(policy)
        (folder / "scenarios/release.yaml").write_text(
            "version: 1\nname: shop\ntext: {data: texts.jsonl}\ngate: {policy: policy.yaml}\n"
        )
        (folder / "keys").mkdir()
        for words in (
            ("genpkey", "-algorithm", "ed25519", "-out", "signing.pem"),
            ("pkey", "-in", "signing.pem", "-pubout", "-out", "keys/release.pub"),
        ):
            subprocess.run(["openssl", *words], check=True, capture_output=True, cwd=folder)
        command = folder / "bin" / "evalkit"
        command.parent.mkdir()
        command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m evalkit "$@"\n')
        command.chmod(0o755)
        project = Path(__file__).resolve().parent.parent
        self._environment = {
            **os.environ,
            "PATH": f"{command.parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(project),
            "BUNDLE": str(bundle),
            "SCENARIO": "scenarios/release.yaml",
            "PUBLIC_KEY": "keys/release.pub",
            "RUNNER_TEMP": str(folder / "temporary"),
            "GITHUB_STEP_SUMMARY": str(folder / "summary.md"),
            "GLOG_v": "3",
        }
        (folder / "temporary").mkdir()

    def shell(self, script: str, **more: str) -> subprocess.CompletedProcess[str]:
        """Run a step as GitHub does."""
        command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script]
        environment = {**self._environment, **more}
        return subprocess.run(
            command,
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=240,
        )

    def play(self, steps: list[tuple[str, bool]], **more: str) -> list[int]:
        """Exit codes of the steps that were run: after a failure only those that always are."""
        codes: list[int] = []
        for script, always in steps:
            if always or not any(codes):
                codes.append(self.shell(script, **more).returncode)
        return codes


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl isn't installed")
@pytest.mark.parametrize("system", ["github", "gitlab"])
def test_a_passing_model_is_signed_verified_and_promoted(
    system: str, tiny_bundle: Path, tmp_path: Path
) -> None:
    runner = Runner(tmp_path / "copy", tiny_bundle, PASSING)
    bind = "evalkit alias set production --policy scenarios/policy.yaml --scenario scenarios/release.yaml"
    assert runner.shell(bind).returncode == 0
    key = runner.folder / "signing.pem"
    steps, signing = (github_steps(), key.read_text()) if system == "github" else (gitlab_steps(), str(key))
    codes = runner.play(steps, SIGNING_KEY=signing)
    assert codes == [0] * len(steps)
    shown = json.loads(runner.shell("evalkit alias show production --json").stdout)
    assert shown["aliases"][0]["bundle"] == str(tiny_bundle)
    assert not list((runner.folder / "temporary").iterdir())
    if system == "github":
        assert "PASS" in (runner.folder / "summary.md").read_text()
    assert (runner.folder / "run/reports/junit.xml").is_file()


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl isn't installed")
@pytest.mark.parametrize(("policy", "code"), [(FAILING, 1), (UNDECIDED, 3)])
def test_any_other_verdict_stops_the_release_and_shows_its_report(
    tiny_bundle: Path, tmp_path: Path, policy: str, code: int
) -> None:
    runner = Runner(tmp_path / "copy", tiny_bundle, policy)
    codes = runner.play(github_steps(), SIGNING_KEY="never read")
    # validate, the gate, and the report; neither signature nor promotion.
    assert codes == [0, code, 0]
    assert (runner.folder / "summary.md").is_file()
    assert runner.play(gitlab_steps()) == [
        0,
        2,
    ]  # the folder `run` is there already: refused, not overwritten
