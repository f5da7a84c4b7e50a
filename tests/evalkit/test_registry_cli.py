"""Registry, promotion and signature as a user meets them: commands, exit codes, one line where something is wrong."""

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from evalkit.bundle import load_bundle
from evalkit.cli import cli
from evalkit.console import run
from evalkit.runs.folder import RunFolder
from evalkit.runs.plan import context_to_plan
from evalkit.runs.promotion import bind_alias
from evalkit.runs.promotion import promote as promote_run
from evalkit.runs.recording import record_run
from tests.evalkit.fake_run import RULES, context_for, random_evidence, write_run
from tests.support.bundles import reseal
from tests.support.promotable import FAILING, Shop, digest_of, make_shop

FIRST = """\
version: 1
name: shop
first_release: true
text: {data: texts.jsonl}
gate: {policy: policy.yaml}
"""
POLICY = """\
rules:
  - {metric: perplexity/token, max: 1.0e9}
  - {metric: perplexity/token, change: {max_relative_increase: 0.5}, severity: warn}
"""


@pytest.fixture
def evalkit(capsys: pytest.CaptureFixture[str]) -> "Command":
    """The command line, in this process."""
    return Command(capsys)


class Command:
    """Runs commands and keeps what the last one printed."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self.out = self.err = ""

    def __call__(self, *words: object) -> int:
        self._capsys.readouterr()
        with pytest.raises(SystemExit) as left:
            run(cli, [str(word) for word in words])
        self.out, self.err = self._capsys.readouterr()
        assert isinstance(left.value.code, int)
        return left.value.code

    def json(self, *words: object) -> dict[str, object]:
        """What a command that succeeds prints with --json: one object and nothing else."""
        assert self(*words, "--json") == 0, self.err
        content: dict[str, object] = json.loads(self.out)
        return content


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    """A bound alias."""
    made = make_shop(tmp_path / "shop")
    bind_alias("production", made.policy, made.scenario)
    return made


def write_release(folder: Path) -> tuple[Path, Path]:
    """Scenarios of a first release and of the next, which is compared with what production holds."""
    words = ("my card is lost", "what is the fee", "please block it", "your account holds 50 euro")
    rows = [{"id": f"t{number}", "text": f"{words[number % 4]} {number}"} for number in range(40)]
    (folder / "texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "policy.yaml").write_text(POLICY)
    (folder / "first.yaml").write_text(FIRST)
    following = FIRST.replace("first_release: true", "baseline: {alias: production}")
    (folder / "next.yaml").write_text(following)
    return folder / "first.yaml", folder / "next.yaml"


def test_from_the_first_release_to_the_next(evalkit: "Command", tiny_bundle: Path, tmp_path: Path) -> None:
    """A run, its promotion, a run against what the alias holds, its promotion, and the history of both."""
    first, following = write_release(tmp_path)
    policy = tmp_path / "policy.yaml"
    assert evalkit("run", following, "--model", tiny_bundle, "--out", tmp_path / "early") == 2
    assert "alias:production: isn't bound" in evalkit.err
    assert evalkit("alias", "set", "production", "--policy", policy, "--scenario", first) == 0
    assert evalkit("run", following, "--model", tiny_bundle, "--out", tmp_path / "early") == 2
    assert "holds no model yet" in evalkit.err
    assert not (tmp_path / "early").exists()
    assert evalkit("run", first, "--model", tiny_bundle, "--out", tmp_path / "one") == 0
    assert evalkit("promote", tmp_path / "one", "--as", "production", "--expect", "none") == 0
    released = load_bundle(tiny_bundle).model_digest
    assert evalkit.out == f"promoted: production none -> {released}\n"

    newer = tmp_path / "newer"
    shutil.copytree(tiny_bundle, newer)
    weights = bytearray((newer / "weights.safetensors").read_bytes())
    weights[-4] ^= 1
    (newer / "weights.safetensors").write_bytes(weights)
    reseal(newer, "weights.safetensors")
    assert evalkit("run", following, "--model", newer, "--out", tmp_path / "two") == 0, evalkit.out
    plan = json.loads(RunFolder(tmp_path / "two").plan.read_bytes())
    assert plan["baseline"]["model_digest"] == released
    assert plan["inputs"]["baseline_alias"] == "production"
    # The change rule counts now, so the alias has to demand the other scenario.
    assert evalkit("promote", tmp_path / "two", "--as", "production") == 1
    assert "was measured under scenario" in evalkit.err
    assert evalkit("alias", "set", "production", "--policy", policy, "--scenario", following) == 0
    assert evalkit("promote", tmp_path / "two", "--as", "production", "--expect", released) == 0

    assert (
        evalkit(
            "run", first, "--model", tiny_bundle, "--baseline", "alias:production", "--out", tmp_path / "x"
        )
        == 0
    )
    runs = evalkit.json("history")["runs"]
    assert isinstance(runs, list)
    assert [item["verdict"] for item in runs] == ["PASS"] * 3
    assert evalkit("history", "--metric", "perplexity/token", "--out", tmp_path / "history.svg") == 0
    assert (tmp_path / "history.svg").read_text().startswith("<svg ")
    assert evalkit("resume", tmp_path / "two") == 0, evalkit.err


def test_an_alias_on_the_command_line_is_resolved(
    evalkit: "Command", tiny_bundle: Path, tmp_path: Path
) -> None:
    _, following = write_release(tmp_path)
    assert evalkit("run", following, "--model", tiny_bundle, "--baseline", "alias:nightly") == 2
    assert "alias:nightly: isn't bound" in evalkit.err
    assert evalkit.err.count("\n") == 1


def test_a_registry_that_cannot_be_written_changes_no_exit_code(
    evalkit: "Command", tiny_bundle: Path, tmp_path: Path, own_home: Path
) -> None:
    first, _ = write_release(tmp_path)
    own_home.mkdir(parents=True)
    (own_home / "registry.sqlite3").write_text("something else")
    assert evalkit("run", first, "--model", tiny_bundle, "--no-cache", "--out", tmp_path / "run") == 0
    assert evalkit.out.splitlines()[-2] == "verdict: PASS"
    warnings = [line for line in evalkit.err.splitlines() if line.startswith("warning: ")]
    assert len(warnings) == 2
    assert all("registry.sqlite3" in warning for warning in warnings)
    assert "earlier looks at this candidate aren't counted" in warnings[0]
    assert "the run isn't recorded" in warnings[1]
    assert "the registry can't be read" in (tmp_path / "run/reports/report.md").read_text()
    assert evalkit("verify", tmp_path / "run") == 0
    assert evalkit("promote", tmp_path / "run", "--as", "production") == 2


def test_promote_says_what_it_did(evalkit: "Command", shop: Shop) -> None:
    assert evalkit("promote", shop.run("a").path, "--as", "production", "--expect", digest_of("z")) == 1
    assert evalkit.err.startswith("error: production holds none")
    entry = evalkit.json("promote", shop.run("a").path, "--as", "production")
    assert (entry["action"], entry["model_digest"]) == ("promote", digest_of("a"))
    assert evalkit("promote", shop.run("b", FAILING).path, "--as", "production") == 1
    assert evalkit("promote", shop.run("b", FAILING).path, "--as", "production", "--force", "") == 2
    assert (
        evalkit("promote", shop.run("b", FAILING).path, "--as", "production", "--force", "outage 4711") == 0
    )
    assert "(forced: outage 4711)" in evalkit.out
    shown = evalkit.json("alias", "show", "production")
    assert isinstance(shown["audit"], list)
    assert [item["action"] for item in shown["audit"]] == ["bind", "promote", "force"]
    assert evalkit("alias", "show") == 0
    assert f"production: {digest_of('b')}" in evalkit.out
    assert "forced: outage 4711" in evalkit.out


def test_usage_is_one_line(evalkit: "Command", shop: Shop) -> None:
    for words in (
        ("alias", "show", "staging"),
        ("promote", shop.folder / "absent", "--as", "production"),
        ("promote", shop.folder),
        ("history", "--out", shop.folder / "plot.svg"),
        ("history", "--metric", "perplexity/token", "--out", shop.folder / "plot.png"),
        ("history", "--metric", "perplexity/token"),
        ("alias", "set", "x y", "--policy", shop.policy, "--scenario", shop.scenario),
        ("sign", shop.folder, "--key", shop.folder / "absent.pem"),
        ("verify", shop.folder, "--key", shop.folder / "absent.pub"),
    ):
        assert evalkit(*words) == 2, words
        assert evalkit.out == ""
        assert evalkit.err.startswith("error: ")
        assert evalkit.err.count("\n") == 1


def test_a_folder_in_place_of_a_file_is_named(evalkit: "Command", shop: Shop) -> None:
    run = shop.run("a")
    promote_run(run, "production")
    record_run(run)
    folder = shop.folder
    assert evalkit("history", "--metric", "perplexity/token", "--out", folder) == 2
    assert evalkit.err.startswith(f"error: {folder}: is a folder, a file is needed; ")
    assert list(folder.parent.glob(f".{folder.name}*")) == []
    for words in (("sign", run.path), ("verify", run.path)):
        assert evalkit(*words, "--key", folder) == 2
        assert evalkit.err == f"error: {folder}: is a folder; name the key's PEM file in it\n"


@pytest.mark.parametrize(
    "words",
    [
        ("history",),
        ("alias", "show"),
        ("cache",),
        ("promote", "RUN", "--as", "production"),
        ("report", "RUN"),
        ("run", "SCENARIO", "--model", "BUNDLE", "--out", "NEW"),
        ("run", "SCENARIO", "--model", "BUNDLE", "--no-cache", "--out", "NEW"),
        ("score", "--model", "BUNDLE", "--data", "TEXTS"),
    ],
)
def test_a_home_that_is_a_file_is_told_in_one_line(
    evalkit: "Command",
    shop: Shop,
    tiny_bundle: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
) -> None:
    home = shop.folder / "home"
    home.write_text("not a folder")
    monkeypatch.setenv("EVALKIT_HOME", str(home))
    places = {
        "RUN": shop.run("a").path,
        "SCENARIO": shop.scenario,
        "BUNDLE": tiny_bundle,
        "NEW": shop.folder / "new",
        "TEXTS": shop.folder / "texts.jsonl",
    }
    assert evalkit(*(places.get(word, word) for word in words)) == 2
    assert evalkit.err == (
        f"error: {home}: is a file, a folder is needed; let EVALKIT_HOME name a folder, or move the file away\n"
    )
    assert evalkit.out == "" and not list(places["NEW"].rglob("*"))  # nothing was measured


def test_a_rule_on_the_wrong_side_is_refused_by_validate_run_judge_and_alias(
    evalkit: "Command", shop: Shop, tiny_bundle: Path
) -> None:
    """A floor under a perplexity would pass a model for being bad."""
    says = (
        "rules.0.min: perplexity/token is better when lower: `min` would fail a good model and pass a bad one; "
        "write `max: 100` if that is the limit"
    )
    run, wrong = shop.run("a"), [{"metric": "perplexity/token", "min": 100}]
    old = shop.run("b", wrong)  # made before this was looked at
    scenario = shop.scenario.read_text().replace("max: 100", "min: 100")
    shop.policy.write_text("rules:\n  - {metric: perplexity/token, min: 100}\n")
    assert evalkit("judge", run.path, "--policy", shop.policy) == 2
    assert evalkit.err == f"error: {shop.policy}:2: {says}\n"
    assert evalkit("judge", old.path) == 2
    assert evalkit.err == (
        f"error: {old.plan}: policy.{says}; judge it under a sound one with --policy FILE.yaml\n"
    )
    assert evalkit("validate", shop.policy) == 2
    assert evalkit.err == f"error: {shop.policy}:2: {says}\n"
    assert evalkit("alias", "set", "other", "--policy", shop.policy, "--scenario", shop.scenario) == 2
    shop.scenario.write_text(scenario)
    for words in (("validate", shop.scenario), ("run", shop.scenario, "--model", tiny_bundle)):
        assert evalkit(*words) == 2
        assert evalkit.err == f"error: {shop.scenario}:4: gate.{says}\n"
    assert evalkit("verify", old.path) == 0  # what was sealed is what was sealed


def test_a_policy_that_only_warns_is_warned_of_and_binds_no_alias(evalkit: "Command", shop: Shop) -> None:
    warns = "{metric: perplexity/token, max: 100, severity: warn}"
    shop.policy.write_text(f"rules:\n  - {warns}\n")
    assert evalkit("validate", shop.policy) == 0
    assert evalkit.out == "policy: ok\n"
    assert evalkit.err == (
        f"warning: {shop.policy}: every rule is `severity: warn`: each verdict will be INCONCLUSIVE; "
        "let one rule block if it is to decide\n"
    )
    assert evalkit.json("validate", shop.policy)["warnings"]
    assert evalkit("judge", shop.run("a").path, "--policy", shop.policy) == 3
    assert evalkit.out.endswith("verdict: INCONCLUSIVE\n")
    assert evalkit("alias", "set", "other", "--policy", shop.policy, "--scenario", shop.scenario) == 2
    assert "so nothing could be promoted by it" in evalkit.err


def test_a_run_is_judged_by_what_an_alias_can_be_bound_to(evalkit: "Command", shop: Shop) -> None:
    run = shop.run("a", FAILING).path
    assert evalkit("alias", "set", "production", "--policy", shop.scenario, "--scenario", shop.scenario) == 0
    assert evalkit("promote", run, "--as", "production") == 1 and "evalkit judge" in evalkit.err
    assert evalkit("judge", run, "--policy", shop.scenario) == 0
    assert evalkit("promote", run, "--as", "production") == 0
    shop.scenario.write_text(shop.scenario.read_text().replace("perplexity/token", "perplexity/tokn"))
    assert evalkit("judge", run, "--policy", shop.scenario) == 2
    assert evalkit.err.startswith(f"error: {shop.scenario}:4: gate.rules.0.metric: unknown metric")


def test_changes_alone_bind_no_alias_to_a_first_release(evalkit: "Command", shop: Shop) -> None:
    change = "rules: [{metric: perplexity/token, change: {max_relative_increase: 0.5}}]"
    shop.policy.write_text(change + "\n")
    first = shop.folder / "first.yaml"
    first.write_text(
        f"version: 1\nname: shop\nfirst_release: true\ntext: {{data: texts.jsonl}}\ngate: {{{change}}}\n"
    )
    assert evalkit("validate", first) == 0
    assert evalkit.err.startswith(f"warning: {first}: every blocking rule is about change, which a first")
    assert evalkit("alias", "set", "other", "--policy", shop.policy, "--scenario", shop.scenario) == 0
    assert evalkit("alias", "set", "other", "--policy", shop.policy, "--scenario", first) == 2
    assert "so nothing could be promoted by it" in evalkit.err


def test_a_slice_that_the_scenario_lacks_binds_no_alias(evalkit: "Command", shop: Shop) -> None:
    shop.policy.write_text("rules:\n  - {metric: perplexity/token, slice: vip, max: 100}\n")
    assert evalkit("alias", "set", "other", "--policy", shop.policy, "--scenario", shop.scenario) == 2
    assert evalkit.err.startswith(
        f"error: {shop.policy}:2: rules.0.slice: 'vip': no sample under perplexity/token"
    )


def test_a_policy_of_another_scenario_fits_the_one_that_is_bound(evalkit: "Command", shop: Shop) -> None:
    """Its own declares the metric and has the tag; the bound one doesn't, so nothing could ever pass."""
    other = shop.folder / "other.yaml"
    (shop.folder / "vip.jsonl").write_text('{"id": "a", "text": "hello", "tags": ["vip"]}\n')
    view = "views: [{name: fees, regex: fee}]"
    for rule, says in (
        ("{metric: perplexity/token, slice: vip, max: 100}", "gate.rules.0.slice: 'vip': no sample under"),
        ("{metric: perplexity/view/fees, max: 100}", "gate.rules.0.metric: the scenario doesn't declare"),
    ):
        gate = f"gate: {{rules: [{rule}]}}"
        other.write_text(f"version: 1\nname: other\ntext: {{data: vip.jsonl, {view}}}\n{gate}\n")
        assert evalkit("validate", other) == 0, evalkit.err
        assert evalkit("alias", "set", "other", "--policy", other, "--scenario", shop.scenario) == 2
        assert evalkit.err.startswith(f"error: {other}:4: {says}")


def test_a_policy_comes_through_a_pipe(evalkit: "Command", shop: Shop) -> None:
    """As in `--policy <(...)` of a shell; a slice makes its lines needed twice."""
    told = evalkit.json("alias", "set", "other", "--policy", shop.policy, "--scenario", shop.scenario)
    run = shop.run("a").path
    for text, code in (
        (shop.policy.read_text(), 0),
        ("rules: [{metric: perplexity/token, max: 100, slice: vip}]", 2),
    ):
        reader, writer = os.pipe()
        os.write(writer, text.encode())
        os.close(writer)
        pipe = f"/dev/fd/{reader}"
        assert (
            evalkit("alias", "set", "other", "--policy", pipe, "--scenario", shop.scenario, "--json") == code
        )
        os.close(reader)
        if code == 0:
            assert json.loads(evalkit.out)["policy_sha256"] == told["policy_sha256"]
        else:
            assert evalkit.err.startswith(f"error: {pipe}:1: rules.0.slice: 'vip': no sample")
    reader, writer = os.pipe()
    os.write(writer, shop.policy.read_bytes())
    os.close(writer)
    assert evalkit("judge", run, "--policy", f"/dev/fd/{reader}") == 0
    os.close(reader)


def test_a_model_in_the_users_place_binds_no_alias_that_blocks_on_it(evalkit: "Command", shop: Shop) -> None:
    user = "{kind: model, endpoint: http://x/v1, model: m, declare: m}"
    (shop.folder / "talk.yaml").write_text(
        f"id: d\nuser: {user}\nturns: [{{user: hi, gold: hello, expect: {{contains: [hello]}}}}]\n"
    )
    talks = shop.folder / "talks.yaml"
    talks.write_text("version: 1\nname: talks\ndialogues: {include: [talk.yaml]}\n")
    for severity, code in (("block", 2), ("warn", 0)):
        shop.policy.write_text(
            "rules:\n  - {metric: perplexity/token, max: 100}\n"
            f"  - {{metric: dialogue/pass_hat_k, k: 1, min: 0.5, severity: {severity}}}\n"
        )
        assert evalkit("alias", "set", "other", "--policy", shop.policy, "--scenario", talks) == code
    assert evalkit("alias", "set", "other", "--policy", shop.policy, "--scenario", talks) == 0


def test_a_run_with_a_model_in_the_users_place_is_judged_by_no_rule_that_blocks_on_it(
    evalkit: "Command", tmp_path: Path
) -> None:
    evidence = random_evidence(1)
    context = context_for(evidence)
    assert context.dialogues is not None
    talks = replace(context.dialogues, model_users=(context.dialogues.dialogue_ids[0],))
    for name, dialogues, code in (("vouched", context.dialogues, 0), ("not", talks, 2)):
        settings = context_to_plan(replace(context, dialogues=dialogues))
        measurement = {"candidate": settings, "baseline": settings}
        run = write_run(tmp_path / name, RULES, evidence, None, {"measurement": measurement}).path
        policy = tmp_path / "policy.yaml"
        policy.write_text("rules: [{metric: dialogue/pass_hat_k, k: 1, min: 0.5}]\n")
        assert evalkit("judge", run, "--policy", policy) == code, evalkit.err
        if code:
            assert evalkit.err == (
                f"error: {policy}: a model played the user of lost_card_en_000 in {run}, and the blocking rule on "
                "dialogue/pass_hat_k would stand on it; give the rule severity: warn\n"
            )
        policy.write_text("rules: [{metric: perplexity/token, max: 100}]\n")
        assert evalkit("judge", run, "--policy", policy) == 0


@pytest.mark.parametrize("edited", ["plan.json", "evidence/candidate/samples.parquet", "results.json"])
def test_an_edited_run_is_not_judged(evalkit: "Command", shop: Shop, edited: str) -> None:
    run, other = shop.run("a"), shop.run("b")
    verdict = run.verdict.read_bytes()
    path = run.path / edited
    path.write_bytes(path.read_bytes() + b" ")
    for words in ((run.path,), (other.path, "--baseline", run.path)):
        assert evalkit("judge", *words) == 2
        assert evalkit.err.startswith(f"error: {run.path}: isn't as it was sealed: {edited}: ")
        assert evalkit.err.count("\n") == 1 and evalkit.out == ""
    assert run.verdict.read_bytes() == verdict
    run.seal.unlink()
    assert evalkit("judge", run.path) == 2
    assert "isn't finished" in evalkit.err
    assert evalkit("judge", other.path, "--baseline", shop.folder) == 2
    assert "the folder isn't a run" in evalkit.err


def test_runs_judged_later_by_one_policy_are_looks_too(evalkit: "Command", shop: Shop) -> None:
    """A gate of its own, or none, doesn't let a candidate be tried again and again under the policy that counts."""
    runs = [shop.run("a", scenario_sha256=digest_of(f"samples {number}")).path for number in range(3)]
    shop.policy.write_text("rules: [{metric: perplexity/token, max: 90}]\n")
    codes = [evalkit("judge", made, "--policy", shop.policy) for made in (*runs, *runs)]
    assert codes == [0, 0, 3, 0, 0, 3]
    looks = [json.loads(RunFolder(made).verdict.read_bytes())["look"] for made in runs]
    assert looks == [1, 2, 3]
    for made, code in zip(runs, (0, 0, 3), strict=True):
        assert evalkit("verify", made) == 0, evalkit.out
        assert evalkit("rescore", made) == code
    assert evalkit("judge", runs[2]) == 0  # its own policy judged it first
    policy = next(path for path in RunFolder(runs[2]).verdicts.iterdir() if b'"look":3' in path.read_bytes())
    policy.write_bytes(policy.read_bytes().replace(b'"look":3', b'"look":2'))
    assert evalkit("verify", runs[2]) == 1
    policy.write_bytes(b"[]")
    assert evalkit("judge", runs[2], "--policy", shop.policy) == 3
    assert evalkit("verify", runs[2]) == 0
    # Another candidate begins anew.
    assert evalkit("judge", shop.run("b").path, "--policy", shop.policy) == 0


@pytest.mark.parametrize("name", ["none", "None"])
def test_none_is_no_name_for_an_alias(evalkit: "Command", shop: Shop, name: str) -> None:
    """`--expect none` means an alias that holds nothing."""
    assert evalkit("alias", "set", name, "--policy", shop.policy, "--scenario", shop.scenario) == 2
    assert evalkit.err == (
        f"error: {name!r}: isn't a name for an alias: it says elsewhere that there is none; choose another\n"
    )


def test_an_empty_registry_is_no_error(evalkit: "Command") -> None:
    assert evalkit.json("history") == {"runs": []}
    assert evalkit.json("alias", "show") == {"aliases": [], "audit": []}


def test_sign_and_verify(evalkit: "Command", shop: Shop, tmp_path: Path) -> None:
    serialization = pytest.importorskip(
        "cryptography.hazmat.primitives.serialization", reason="no extra sign"
    )
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.generate()
    pem, formats = (
        serialization.Encoding.PEM,
        (serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
    )
    (tmp_path / "key.pem").write_bytes(key.private_bytes(pem, *formats))
    public = key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo)
    (tmp_path / "key.pub").write_bytes(public)
    run = shop.run("a")
    assert evalkit("verify", run.path, "--key", tmp_path / "key.pub") == 1
    assert "unsigned" in evalkit.out
    assert evalkit("sign", run.path, "--key", tmp_path / "key.pem") == 0
    assert evalkit("verify", run.path, "--key", tmp_path / "key.pub") == 0
    assert "signature: valid" in evalkit.out
    assert str(evalkit.json("verify", run.path)["signature"]).endswith("--key)")
    # A signed run is promoted as any other.
    assert evalkit("promote", run.path, "--as", "production") == 0
