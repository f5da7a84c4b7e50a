"""An alias moves only to a model that passed under the policy and the scenario that it was bound to."""

import shutil
from pathlib import Path

import pytest

from evalkit.errors import ExitCode, InputError
from evalkit.report import write_reports
from evalkit.runs.folder import RunFolder
from evalkit.runs.judging import judge_run, store_verdict
from evalkit.runs.promotion import Promotion, PromotionRefusedError, bind_alias, promote, promoted_bundle
from evalkit.runs.registry import Registry, account
from evalkit.runs.registry_rows import Alias, AuditEntry
from evalkit.runs.seal import read_seal_content
from tests.evalkit.fake_run import policy
from tests.support.promotable import FAILING, PASSING, Shop, digest_of, make_shop


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    """A scenario whose policy an alias is bound to."""
    made = make_shop(tmp_path / "shop")
    bind_alias("production", made.policy, made.scenario)
    return made


def held() -> Alias:
    with Registry() as registry:
        alias = registry.alias("production")
    assert alias is not None
    return alias


def audit() -> list[AuditEntry]:
    with Registry() as registry:
        return registry.audit()


def refused(run: RunFolder, *parts: str, expect: str | None = None, force: str | None = None) -> None:
    """Exit code 1, every part in the message, alias and audit as before."""
    before = held(), audit()
    with pytest.raises(PromotionRefusedError) as caught:
        promote(run, "production", expect=expect, force=force)
    assert caught.value.exit_code == ExitCode.FAIL
    for part in (*parts, "nothing was promoted"):
        assert part in str(caught.value)
    assert (held(), audit()) == before


def test_a_pass_moves_the_alias_and_the_audit_says_who_when_which(shop: Shop) -> None:
    run = shop.run("a")
    done = promote(run, "production", expect="none")
    assert held().model_digest == digest_of("a")
    entry = audit()[-1]
    assert entry == done.entry
    assert (entry.action, entry.who, entry.verdict) == ("promote", account(), "PASS")
    assert (entry.model_digest, entry.previous_digest) == (digest_of("a"), None)
    assert entry.run_id is not None
    assert entry.run_id.endswith("-a")
    assert entry.seal_sha256 == read_seal_content(run.path)["seal_sha256"]
    assert entry.at.endswith("Z")


@pytest.mark.parametrize("expect", [None, digest_of("a")])
def test_the_alias_moves_on_from_what_it_holds(shop: Shop, expect: str | None) -> None:
    promote(shop.run("a"), "production")
    promote(shop.run("b"), "production", expect=expect)
    assert (held().model_digest, audit()[-1].previous_digest) == (digest_of("b"), digest_of("a"))


def test_another_digest_than_expected_is_refused(shop: Shop) -> None:
    refused(shop.run("a"), f"holds none, not {digest_of('b')}", expect=digest_of("b"))
    promote(shop.run("a"), "production")
    refused(shop.run("b"), f"holds {digest_of('a')}, not none", expect="none")


def test_a_verdict_that_is_no_pass_is_refused(shop: Shop) -> None:
    shop.policy.write_text("rules:\n  - {metric: perplexity/token, max: 1.1}\n")
    bind_alias("production", shop.policy, shop.scenario)
    refused(shop.run("a", FAILING), "has the verdict FAIL")
    shop.policy.write_text("rules:\n  - {metric: perplexity/token, max: 1.1, min_n: 100000}\n")
    bind_alias("production", shop.policy, shop.scenario)
    run = shop.run("b", [{**FAILING[0], "min_n": 100000}])
    refused(run, "has the verdict INCONCLUSIVE")


def test_an_edited_policy_promotes_nothing(shop: Shop) -> None:
    """The run passed, but under a policy that somebody made easier."""
    easier = [{"metric": "perplexity/token", "max": 1000}]
    refused(shop.run("a", easier), "has no verdict under policy", "evalkit judge")


def test_the_same_policy_written_elsewhere_is_the_same(shop: Shop) -> None:
    """The scenario's gate and the file with the same rules have one digest; a run judged by it later counts."""
    bind_alias("production", shop.scenario, shop.scenario)
    run = shop.run("a", [{"metric": "perplexity/token", "max": 1000}])
    store_verdict(run, judge_run(run, policy(PASSING)))
    assert promote(run, "production").entry.verdict == "PASS"


def test_another_scenario_promotes_nothing(shop: Shop) -> None:
    (shop.folder / "texts.jsonl").write_text('{"id": "a", "text": "an easier text"}\n')
    refused(shop.run("a"), "was measured under scenario", held().scenario_sha256[:12])


def test_a_run_that_does_not_verify_is_refused_even_by_force(shop: Shop) -> None:
    run = shop.run("a")
    data = bytearray(run.samples("candidate").read_bytes())
    data[len(data) // 2] ^= 1
    run.samples("candidate").write_bytes(bytes(data))
    refused(run, "doesn't verify", "samples.parquet")
    refused(run, "doesn't verify", force="it is late")


def test_an_edited_verdict_is_refused(shop: Shop) -> None:
    bind_alias("production", shop.policy, shop.scenario)
    shop.policy.write_text("rules:\n  - {metric: perplexity/token, max: 1.1}\n")
    bind_alias("production", shop.policy, shop.scenario)
    run = shop.run("a", FAILING)
    for path in (run.verdict, *run.verdicts.iterdir()):
        path.write_bytes(path.read_bytes().replace(b'"FAIL"', b'"PASS"'))
    refused(run, "doesn't verify", "verdict")


def test_force_moves_it_with_a_reason_that_every_later_report_shows(shop: Shop) -> None:
    promote(shop.run("a"), "production")
    done = promote(shop.run("b", FAILING), "production", force="outage 4711,\n  rolled forward")
    assert (held().model_digest, held().action) == (digest_of("b"), "force")
    assert (done.entry.reason, done.entry.verdict) == ("outage 4711, rolled forward", None)
    assert done.entry.overridden is not None
    assert "has no verdict under policy" in done.entry.overridden
    later = shop.run("c")
    for path in write_reports(later, ("html", "markdown", "junit")).values():
        text = path.read_text()
        assert "outage 4711, rolled forward" in text, path
        assert "by force" in text, path


@pytest.mark.parametrize("reason", ["", "  \n"])
def test_force_needs_a_reason(shop: Shop, reason: str) -> None:
    with pytest.raises(InputError, match="a reason is needed"):
        promote(shop.run("a"), "production", force=reason)


def test_force_does_not_overrule_the_expectation(shop: Shop) -> None:
    refused(shop.run("a", FAILING), "holds none", expect=digest_of("z"), force="hurry")


def test_what_is_held_already_is_not_promoted_again(shop: Shop) -> None:
    promote(shop.run("a"), "production")
    refused(shop.run("a"), "already")


def test_an_alias_that_moves_while_the_run_is_checked_is_lost(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compare-and-swap without --expect too: what counts is what the alias held when the work began."""
    ours, theirs = shop.run("a"), shop.run("b")
    lost_to(ours, monkeypatch, lambda: promote(theirs, "production"))
    assert held().model_digest == digest_of("b")


def test_an_alias_that_is_bound_anew_while_the_run_is_checked_is_lost(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.policy.write_text("rules:\n  - {metric: perplexity/token, max: 2}\n")
    ours = shop.run("a")
    lost_to(ours, monkeypatch, lambda: bind_alias("production", shop.policy, shop.scenario))
    assert held().model_digest is None


def lost_to(run: RunFolder, monkeypatch: pytest.MonkeyPatch, meanwhile: "object") -> None:
    from evalkit.runs import promotion

    original = promotion.verify

    def slow(folder: RunFolder) -> object:
        monkeypatch.setattr(promotion, "verify", original)
        assert callable(meanwhile)
        meanwhile()
        return original(folder)

    monkeypatch.setattr(promotion, "verify", slow)
    with pytest.raises(PromotionRefusedError, match="changed meanwhile"):
        promote(run, "production")


def test_names_and_digests_are_checked(shop: Shop) -> None:
    run = shop.run("a")
    with pytest.raises(InputError, match="alias:staging: isn't bound"):
        promote(run, "staging")
    with pytest.raises(InputError, match="--expect abc"):
        promote(run, "production", expect="abc")
    with pytest.raises(InputError, match="isn't a name"):
        bind_alias("../x", shop.policy, shop.scenario)
    with pytest.raises(InputError, match="no such run folder"):
        promote(RunFolder(shop.folder / "absent"), "production")


def test_binding_needs_sound_files(shop: Shop) -> None:
    with pytest.raises(InputError, match="no such file"):
        bind_alias("production", shop.folder / "absent.yaml", shop.scenario)
    (shop.folder / "bare.yaml").write_text("version: 1\nname: bare\ntext: {data: texts.jsonl}\n")
    with pytest.raises(InputError, match="without a gate"):
        bind_alias("production", shop.folder / "bare.yaml", shop.scenario)
    shop.policy.write_text("rules:\n  - {metric: perplexity/tokn, max: 1.1}\n")
    with pytest.raises(InputError, match=r"policy\.yaml:2: .*perplexity/tokn"):
        bind_alias("production", shop.policy, shop.scenario)


def of_bundle(shop: Shop, bundle: Path) -> Promotion:
    """Promote the bundle's own model."""
    from evalkit.bundle import load_bundle
    from tests.evalkit.fake_run import plan

    described = {**plan()["candidate"], "model_digest": load_bundle(bundle).model_digest}
    run = shop.run("bundled", candidate=described, inputs={"candidate": str(bundle)})
    return promote(run, "production")


def test_an_alias_resolves_to_its_bundle_or_says_what_is_wrong(
    shop: Shop, tiny_bundle: Path, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=r"holds no model yet.*first_release"):
        promoted_bundle("production")
    place = tmp_path / "bundles" / "tiny"
    shutil.copytree(tiny_bundle, place)
    digest = of_bundle(shop, place).entry.model_digest
    assert (promoted_bundle("production").path, held().model_digest) == (place, digest)
    place.rename(tmp_path / "moved")
    with pytest.raises(InputError, match=f"isn't whole in its place.*{digest}"):
        promoted_bundle("production")
    # The same model from where it is now.
    assert of_bundle(shop, tmp_path / "moved").entry.previous_digest == digest
    assert promoted_bundle("production").path == tmp_path / "moved"


def test_a_bundle_that_is_another_model_now_is_named(shop: Shop, tiny_bundle: Path, tmp_path: Path) -> None:
    from tests.support.bundles import reseal

    place = tmp_path / "tiny"
    shutil.copytree(tiny_bundle, place)
    of_bundle(shop, place)
    tokenizer = place / "tokenizer.json"
    tokenizer.write_text(tokenizer.read_text() + "\n")
    reseal(place, "tokenizer.json")
    with pytest.raises(InputError, match="now holds the model"):
        promoted_bundle("production")
    run = shop.run("other", inputs={"candidate": str(place)})
    refused(run, "now holds the model")


def test_a_model_without_a_bundle_is_promoted_but_is_no_baseline(shop: Shop) -> None:
    promote(shop.run("a"), "production")
    with pytest.raises(InputError, match="isn't known as a bundle"):
        promoted_bundle("production")


def test_whoever_promotes_learns_that_the_run_compared_with_another_model(shop: Shop) -> None:
    assert promote(shop.run("a"), "production").notes == ()
    (note,) = promote(shop.run("b"), "production").notes
    assert f"not with {digest_of('a')}" in note
