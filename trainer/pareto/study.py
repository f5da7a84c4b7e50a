"""The search: Optuna proposes configurations, each is run once a seed; everything is kept, so that it goes on after a kill."""

import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from evalkit.canonical import sha256_json
from evalkit.console import say
from evalkit.errors import IncompleteError, InputError
from evalkit.files import write_json_atomic
from evalkit.yaml_source import YamlSource
from trainer.config import TrainConfig
from trainer.pareto.runs import Run
from trainer.pareto.space import Choices, ParetoSpace, Search
from trainer.pareto.trial import UnknownFieldError, changed_config, run_trial
from trainer.pareto.values import check_values
from trainer.run_log import claimed

# Proposals that repeat a configuration cost nothing, but a small space may have no new ones left.
_ASKS_A_TRIAL = 20
# What a validation measures without a scenario.
_BUILT_IN = "perplexity/token"


def run_search(space: ParetoSpace, folder: Path, out: Path) -> list[Run]:
    """Run the search, or what is left of it.

    Args:
        folder: where `search.config` starts.
        out: gets study.db, space.json and runs/; a folder of the same space is taken up.

    Raises:
        InputError: Optuna isn't installed, the folder belongs to another space, or the configuration is broken.
        IncompleteError: interrupted; the same command goes on.
    """
    assert space.search is not None
    try:
        with claimed(out):
            return _Search(space, space.search, folder, out).run()
    except KeyboardInterrupt:
        raise IncompleteError(f"interrupted; what is done is in {out}, the same command goes on") from None


class _Search:
    def __init__(self, space: ParetoSpace, search: Search, folder: Path, out: Path) -> None:
        self._space, self._search, self._out = space, search, out
        source = YamlSource(folder / search.config)
        source.parse(TrainConfig)
        self._base, self._folder = source.value, (folder / search.config).parent
        if self._base.get("evaluation") is None:
            raise InputError(f"{folder / search.config}: evaluation is missing; the score comes from it")
        if self._base["evaluation"].get("scenario") is None and space.score.metric != _BUILT_IN:
            raise InputError(
                f"score.metric {space.score.metric!r} isn't measured: without evaluation.scenario in "
                f"{folder / search.config} only {_BUILT_IN} is"
            )
        try:
            changed_config(self._base, search, {}, space.seeds[0])
        except ValueError as error:
            raise InputError(f"{folder / search.config}: {error}") from None
        for name, values in search.fields.items():
            try:
                check_values(name, values)
            except ValueError as error:
                raise InputError(f"search.fields: {error}") from None
            try:
                value = values.choices[0] if isinstance(values, Choices) else values.low
                changed_config(self._base, search, {name: value}, space.seeds[0])
            except UnknownFieldError as error:
                raise InputError(f"search.fields: {error}") from None
            except ValueError:
                continue  # doesn't fit alone, or not to the others: an infeasible run, told with its reason
        mine = space.model_dump(mode="json") | {"base": self._base}
        mine["search"].pop("trials")  # a search may be made longer
        marker = out / "space.json"
        if marker.exists() and marker.read_bytes() != _as_written(mine, out):
            raise InputError(f"{out}: holds a search of another space; choose another --out")
        if not marker.exists():
            write_json_atomic(marker, mine)

    def run(self) -> list[Run]:
        with _quiet_optuna() as optuna:
            storage = optuna.storages.RDBStorage(f"sqlite:///{(self._out / 'study.db').resolve()}")
            study = optuna.create_study(
                study_name=self._space.name,
                storage=storage,
                directions=[self._space.score.direction, "maximize"],
                load_if_exists=True,
            )
            states = optuna.trial.TrialState
            runs: dict[str, list[Run]] = {}
            own = self._base_values() if self._search.base_first else None
            if own is not None and not study.get_trials(deepcopy=False):
                study.enqueue_trial(own)
            for trial in study.get_trials(states=(states.COMPLETE, states.FAIL)):
                if set(trial.params) == set(self._search.fields):
                    self._runs_of(trial.params, runs)
            for trial in study.get_trials(states=(states.RUNNING,)):  # a killed search left them
                if set(trial.params) == set(self._search.fields):
                    self._tell(study, states, trial.number, trial.params, runs)
                else:
                    study.tell(trial.number, state=states.FAIL)
            asked = 0
            while len(runs) < self._search.trials and asked < _ASKS_A_TRIAL * self._search.trials:
                asked += 1
                # Seeded anew by how many there are: a search that was killed proposes what an unbroken one does.
                seed = self._search.sampler_seed + len(study.get_trials(deepcopy=False))
                study.sampler = optuna.samplers.TPESampler(seed=seed)
                trial = study.ask()
                self._tell(study, states, trial.number, self._suggest(trial), runs)
            if len(runs) < self._search.trials:
                say(f"{len(runs)} configurations: the space seems to hold no more")
            storage.engine.dispose()
        return [run for group in runs.values() for run in group]

    def _tell(
        self, study: Any, states: Any, number: int, values: dict[str, Any], runs: dict[str, list[Run]]
    ) -> None:
        group = self._runs_of(values, runs)
        good = [run for run in group if run.state == "ok"]
        if len(good) == len(group):
            means = [
                sum(float(getattr(run, name) or 0) for run in good) / len(good) for name in ("score", "speed")
            ]
            if all(math.isfinite(mean) for mean in means):
                study.tell(number, means)
                return
        study.tell(
            number, state=states.FAIL
        )  # NaN and infeasible ones: a sampler must not learn from numbers

    def _runs_of(self, values: dict[str, Any], runs: dict[str, list[Run]]) -> list[Run]:
        configuration = {name: values[name] for name in self._search.fields}
        key = sha256_json(configuration)[:12]
        if key in runs:
            return runs[key]
        done: list[Run] = []
        for seed in self._space.seeds:
            try:
                config = changed_config(self._base, self._search, configuration, seed)
            except ValueError as error:
                done.append(Run(configuration, f"seed {seed}", None, None, "infeasible", str(error)))
                continue
            out = self._out / "runs" / key / f"seed-{seed}"
            fresh = not (out / "result.json").exists()
            run = run_trial(config, self._folder, out, self._search, self._space.score.metric, configuration)
            if fresh:
                say(f"configuration {len(runs) + 1} of {self._search.trials}, {_told(run)}")
            done.append(run)
        runs[key] = done
        return done

    def _suggest(self, trial: Any) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for name, field in self._search.fields.items():
            if isinstance(field, Choices):
                values[name] = trial.suggest_categorical(name, list(field.choices))
            elif field.whole:
                values[name] = trial.suggest_int(name, int(field.low), int(field.high), log=field.log)
            else:
                values[name] = trial.suggest_float(name, float(field.low), float(field.high), log=field.log)
        return values

    def _base_values(self) -> dict[str, Any] | None:
        """The configuration's own values; None where the fields don't hold them all."""
        found: dict[str, Any] = {}
        for name, field in self._search.fields.items():
            place: Any = self._base
            for part in name.split("."):
                place = place.get(part) if isinstance(place, dict) else None
            inside = (
                place in field.choices
                if isinstance(field, Choices)
                else isinstance(place, int | float) and field.low <= place <= field.high
            )
            if not inside:
                return None
            found[name] = place
        return found


def _told(run: Run) -> str:
    names = ", ".join(f"{name} {value}" for name, value in run.configuration.items())
    if run.score is None or run.speed is None:
        return f"{names}, {run.name}: {run.state}: {run.why}"
    return f"{names}, {run.name}: score {run.score:.4f}, {run.speed:,.0f} tokens/s"


def _as_written(value: Any, out: Path) -> bytes:
    probe = out / ".space.json"
    write_json_atomic(probe, value)
    data = probe.read_bytes()
    probe.unlink()
    return data


@contextmanager
def _quiet_optuna() -> Iterator[Any]:
    try:
        import optuna
    except ModuleNotFoundError:
        raise InputError(
            "search: needs Optuna, which isn't installed; pip install 'evalkit[optuna]'"
        ) from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # experimental interfaces of its own
        yield optuna
