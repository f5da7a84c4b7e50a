"""Scenario files read, checked and resolved: absolute paths, files that are there, the policy in place."""

import glob
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from evalkit.backends.models import ServedModel, identity_sha256, load_tokenizer
from evalkit.backends.own import OwnModel
from evalkit.canonical import sha256_file, sha256_json
from evalkit.errors import InputError
from evalkit.gate.policy import check_policy
from evalkit.scenario.additions import Additions, read_additions
from evalkit.scenario.dialogue_checks import (
    refuse_blocking_on_model_users,
    refuse_flow_expectations,
    refuse_unknown_labels,
)
from evalkit.scenario.dialogue_files import DialogueSource, read_dialogues, recorded_files
from evalkit.scenario.flow import LoadedFlow, load_flow
from evalkit.scenario.model_schema import AliasRef, BaselineRef, BundleRef, EndpointRef, ModelRef
from evalkit.scenario.resample import LoadedResample, read_resample
from evalkit.scenario.schema import Policy, PolicyRef, Scenario, Text, Window
from evalkit.scenario.slices import check_slices
from evalkit.scenario.trials import check_k
from evalkit.yaml_source import FieldPath, YamlSource

# The additions stand in the digest by their content.
_NOT_MEASURED = {"model", "baseline", "gate", "output", "modules", "metrics", "business"}


@dataclass(frozen=True)
class LoadedScenario:
    """A scenario whose references were followed. Build it with `load_scenario`.

    Attributes:
        scenario: the file's content.
        source: the file itself, for line numbers; None for a scenario that was put together in memory.
        policy: the release policy, wherever it is written; None where the scenario has no gate.
        policy_source: the file that holds it.
        bundle, baseline: bundle folders; not opened here (a command may name others).
        text_data, counts_file, glossary, risk_data: data files.
        flow: the business flow.
        dialogue_files: files that `dialogues.include` matches, sorted.
        dialogues: their dialogues, sorted by id.
        additions: what the scenario adds to the metrics.
        candidate_model, baseline_model: models that aren't bundles; nothing is asked of them here.
        resample: what the texts are re-weighted to, or None.
        baseline_alias: the alias whose model is the baseline; the registry isn't asked here.
    """

    scenario: Scenario
    source: YamlSource | None
    policy: Policy | None
    policy_source: YamlSource | None
    bundle: Path | None
    baseline: Path | None
    text_data: Path | None
    counts_file: Path | None
    glossary: Path | None
    risk_data: Path | None
    flow: LoadedFlow | None
    dialogue_files: tuple[Path, ...]
    dialogues: tuple[DialogueSource, ...]
    additions: Additions = field(default_factory=Additions)
    candidate_model: ServedModel | OwnModel | None = None
    baseline_model: ServedModel | OwnModel | None = None
    resample: LoadedResample | None = None
    baseline_alias: str | None = None

    @property
    def name(self) -> str:
        """What the scenario is called: its file's name, or its own where there is no file."""
        return self.scenario.name if self.source is None else self.source.path.name

    def error(self, field: FieldPath, message: str) -> InputError:
        """An error that names the field, with file and line where there is a file."""
        if self.source is not None:
            return self.source.error(field, message)
        return InputError(f"{'.'.join(str(part) for part in field)}: {message}")

    @cached_property
    def digest(self) -> str:
        """SHA-256 of what is measured on what: the scenario with digests of its data in place of paths.

        Model, baseline, gate and output aren't part of it: they don't change what a number means.
        """
        content: dict[str, Any] = self.scenario.model_dump(mode="json", exclude=_NOT_MEASURED)
        content["additions"] = self.additions.identity()
        if self.scenario.text is not None:
            del content["text"]["robustness"]  # an addition, whose files stand there by content
        if self.text_data is not None:
            content["text"]["data"] = sha256_file(self.text_data)
        if self.counts_file is not None:
            content["text"]["classes"]["counts"] = sha256_file(self.counts_file)
        if self.glossary is not None:
            content["text"]["classes"]["domain"]["glossary"] = sha256_file(self.glossary)
        if self.resample is not None:
            content["text"]["resample"].update(self.resample.identity())
        if self.risk_data is not None:
            content["risk"]["data"] = sha256_file(self.risk_data)
        if self.flow is not None:
            content["flow"] = self.flow.digest
        if self.dialogue_files:
            content["dialogues"]["include"] = sorted(sha256_file(file) for file in self.dialogue_files)
            # Side by side or one after another: the same is measured.
            del content["dialogues"]["concurrency"]
            recorded = recorded_files(self.dialogues)
            if recorded:
                content["dialogues"]["recorded"] = sorted({sha256_file(file) for file in recorded})
        return sha256_json(content)


def load_scenario(path: Path) -> LoadedScenario:
    """Read the scenario at `path` and everything it refers to, except bundles.

    Raises:
        InputError: the first problem, with file, line and field.
    """
    return _load(YamlSource(path))


def policy_of_file(path: Path) -> tuple[Policy, YamlSource]:
    """The policy that a file holds, its own or at a scenario's gate, and the file in which it stands.

    It isn't checked against metrics that a scenario declares. The file is read once: it may be a pipe.

    Raises:
        InputError: the first problem, with file, line and field; or a scenario without a gate.
    """
    source = YamlSource(path)
    if "rules" in source.value or not {"version", "gate"} & source.value.keys():
        return source.parse(Policy), source
    loaded = _load(source)
    if loaded.policy is None or loaded.policy_source is None:
        raise InputError(f"{path}: a scenario without a gate; name a policy, or a scenario that has one")
    return loaded.policy, loaded.policy_source


def _load(source: YamlSource) -> LoadedScenario:
    path, scenario = source.path, source.parse(Scenario)
    reader = _Reader(source)
    additions = read_additions(scenario, source, reader.file, path.resolve().parent)
    policy, policy_source = reader.policy(scenario)
    text, risk, talks = scenario.text, scenario.risk, scenario.dialogues
    counts = text.classes.counts if text is not None else "candidate"
    domain = text.classes.domain if text is not None else None
    counts_field: FieldPath = ("text", "classes", "counts")
    flow = reader.flow(scenario.flow)
    dialogue_files = reader.matches(talks.include) if talks is not None else ()
    dialogues = read_dialogues(dialogue_files)
    if flow is None:
        refuse_flow_expectations(dialogues, path)
    else:
        refuse_unknown_labels(dialogues, flow.intent_labels())
    loaded = LoadedScenario(
        scenario=scenario,
        source=source,
        policy=policy,
        policy_source=policy_source,
        bundle=reader.bundle(scenario.model),
        baseline=reader.bundle(scenario.baseline),
        text_data=None if text is None else reader.file(("text", "data"), text.data),
        counts_file=None if counts in ("baseline", "candidate") else reader.file(counts_field, counts),
        glossary=None
        if domain is None
        else reader.file(("text", "classes", "domain", "glossary"), domain.glossary),
        risk_data=None if risk is None else reader.file(("risk", "data"), risk.data),
        flow=flow,
        dialogue_files=dialogue_files,
        dialogues=dialogues,
        additions=additions,
        candidate_model=reader.model("model", scenario.model, additions.modules),
        baseline_model=reader.model("baseline", scenario.baseline, additions.modules),
        resample=read_resample(scenario, source, reader.file, additions.modules),
        baseline_alias=scenario.baseline.alias if isinstance(scenario.baseline, AliasRef) else None,
    )
    check_gate(loaded, policy, policy_source)
    return loaded


def check_gate(loaded: LoadedScenario, policy: Policy | None, policy_source: YamlSource | None) -> None:
    """Check a policy against the metrics that a scenario declares, the tags of its data, its trials and the users of its dialogues.

    Args:
        loaded: the scenario, read from a file.
        policy, policy_source: its own, or one that its runs are to be judged by; and the file that holds it.

    Raises:
        InputError: the first problem, with file, line and field.
    """
    assert loaded.source is not None
    if policy is not None and policy_source is not None:
        declared = loaded.additions.declared
        check_policy(policy, policy_source, declared.specs)
        refuse_blocking_on_model_users(loaded.dialogues, declared.own, policy, policy_source.path)
    check_slices(loaded.scenario, loaded.source, policy, policy_source, loaded.text_data, loaded.dialogues)
    check_k(loaded.scenario, loaded.source, policy, policy_source, loaded.dialogues)


def scenario_from_texts(data: Path, window: Window | None) -> LoadedScenario:
    """A scenario that scores one file of texts and nothing else.

    Raises:
        InputError: the file is missing or empty.
    """
    if not data.is_file() or data.stat().st_size == 0:
        problem = "the file is empty" if data.is_file() else "no such file"
        raise InputError(f"{data}: {problem}; give a file of JSON lines with id and text")
    return LoadedScenario(
        scenario=Scenario(version=1, name="score", text=Text(data=data.name, window=window)),
        source=None,
        policy=None,
        policy_source=None,
        bundle=None,
        baseline=None,
        text_data=data.resolve(),
        counts_file=None,
        glossary=None,
        risk_data=None,
        flow=None,
        dialogue_files=(),
        dialogues=(),
    )


class _Reader:
    """Follows the references of one scenario file."""

    def __init__(self, source: YamlSource) -> None:
        self._source = source
        self._folder = source.path.resolve().parent

    def absolute(self, name: str) -> Path:
        """Absolute path of a name that is relative to the scenario file."""
        return (self._folder / name).resolve()

    def bundle(self, ref: ModelRef | BaselineRef | None) -> Path | None:
        """Folder of a model that is a bundle."""
        return self.absolute(ref.bundle) if isinstance(ref, BundleRef) else None

    def model(
        self, key: str, ref: ModelRef | BaselineRef | None, modules: Path | None
    ) -> ServedModel | OwnModel | None:
        """A model that isn't a bundle, with its tokenizer."""
        if ref is None or isinstance(ref, BundleRef | AliasRef):
            return None
        if isinstance(ref, EndpointRef) and ref.tokenizer is None:
            return ServedModel(ref, None, identity_sha256(ref.declare))
        at: FieldPath = (key, "tokenizer")
        file = self.file(at, str(ref.tokenizer))
        try:
            tokenizer, digest = load_tokenizer(file, ref.prefix_token)
        except InputError as error:
            raise self._source.error(at, str(error)) from None
        if isinstance(ref, EndpointRef):
            return ServedModel(ref, tokenizer, digest)
        return OwnModel(ref, tokenizer, digest, modules)

    def file(self, field: FieldPath, name: str) -> Path:
        """A file that must be there and hold something."""
        path = self.absolute(name)
        if not path.is_file():
            kind = "is a folder, a file is needed" if path.is_dir() else "no such file; correct the path"
            raise self._source.error(field, f"{path}: {kind}")
        if path.stat().st_size == 0:
            raise self._source.error(field, f"{path}: the file is empty; put data into it or remove the key")
        return path

    def flow(self, name: str | None) -> LoadedFlow | None:
        """The flow folder."""
        if name is None:
            return None
        folder = self.absolute(name)
        if not folder.is_dir():
            raise self._source.error(("flow",), f"{folder}: no such flow folder; correct the path")
        return load_flow(folder)

    def matches(self, patterns: list[str]) -> tuple[Path, ...]:
        """Files that the patterns of `dialogues.include` match."""
        files: set[Path] = set()
        for index, pattern in enumerate(patterns):
            # Path.glob refuses absolute patterns.
            names = glob.glob(pattern, root_dir=self._folder, recursive=True)  # noqa: PTH207
            found = [self.absolute(name) for name in names]
            found = [path for path in found if path.is_file()]
            if not found:
                raise self._source.error(
                    ("dialogues", "include", index), f"{pattern!r} matches no file under {self._folder}"
                )
            files.update(found)
        return tuple(sorted(files))

    def policy(self, scenario: Scenario) -> tuple[Policy | None, YamlSource | None]:
        """The policy and the file that holds it."""
        if scenario.gate is None:
            return None, None
        if isinstance(scenario.gate, PolicyRef):
            source = YamlSource(self.file(("gate", "policy"), scenario.gate.policy))
            return source.parse(Policy), source
        return scenario.gate, self._source
