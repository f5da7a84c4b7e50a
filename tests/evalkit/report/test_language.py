"""Reports in Chinese: every phrase of ours is translated, data and names stay as they are."""

import ast
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from evalkit.cli import cli
from evalkit.errors import InputError
from evalkit.gate.judge import judge
from evalkit.metrics.registry import SPECS
from evalkit.report.chinese import PHRASES
from evalkit.report.html import render_html
from evalkit.report.junit import render_junit
from evalkit.report.language import ENGLISH, Language, language
from evalkit.report.markdown import render_markdown
from evalkit.report.source import ReportSource
from evalkit.report.view import build_view
from evalkit.runs.results_io import STATUSES
from tests.evalkit import fake_run
from tests.evalkit.report import review_run

TEMPLATE = Path(__file__).parents[3] / "evalkit" / "report" / "templates" / "report.html.j2"
GATE_FOLDER = Path(__file__).parents[3] / "evalkit" / "gate"
# Sentences whose fields hold words of the sentence: the runs below say them.
PUT_TOGETHER = {
    " and ",
    "7 7 is 7 7",
    "7 and 7",
    "measured in different ways, not comparable: 7",
    "could not be decided",
    "ended in an error",
    "7 of 7 blocking rules 7: 7",
    "7 isn't in 7",
    "7 is in 7 only for 7",
    "7 stands 7 times in 7; once is right",
    "7 of 7 7 of the 7 7; 7 allows a share of 7",
    "7 7 is exactly at the threshold",
    "Looking again and again isn't free: every further look at new samples raises the chance of a wrong verdict. This was "
    "look 7 of at most 7; 7.",
    "add the named number of samples at once",
    "a further one at this candidate takes a policy that allows it, and samples that nobody has looked at",
    "; this was the last look that the policy allows, so let its owner first write one that allows another",
    "the 7's run is partial; finish it with `evalkit resume`",
}
FIELD = re.compile(r"\{(\w+)(?::[tl])?\}")
# What stays: numbers with their units, dotted names of the plan, a model's family, families of signatures.
KEPT = re.compile(
    r"[\d\u202f.,%… −+–]+( ms)?([ …−\d.]+ms)?|[\w.]+\.\w+|llama|text|bytes|words|risk|dialogue|dialogue_cost|calibration"
)


class Recorder(Language):
    """Chinese that notes what it can't say."""

    missed: set[str]

    def translation(self, text: str) -> str | None:
        """As `Language` does."""
        found = super().translation(text)
        if found is None:
            self.missed.add(text)
        return found


@pytest.fixture
def recorder() -> Recorder:
    chinese = language("zh")
    made = Recorder(chinese.code, chinese.tag, chinese.phrases)
    object.__setattr__(made, "missed", set())
    return made


@pytest.fixture(scope="module")
def review(tmp_path_factory: pytest.TempPathFactory) -> ReportSource:
    return review_run.source(tmp_path_factory.mktemp("review") / "run", texts=40, dialogues=30)


def visible_words(page: str) -> str:
    body = re.sub(r"<style>.*?</style>", "", page.replace("<wbr>", ""), flags=re.DOTALL)
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", body))


def test_both_sides_of_a_phrase_have_the_same_fields() -> None:
    for english, chinese in PHRASES.items():
        assert {match[1] for match in FIELD.finditer(chinese)} <= {
            match[1] for match in FIELD.finditer(english)
        }, english


def test_every_phrase_of_the_template_is_translated() -> None:
    """Read from its source, so that a branch that no run takes counts too."""
    source = TEMPLATE.read_text(encoding="utf-8")
    chinese = language("zh")
    phrases = {match[2] for match in re.finditer(r"say\((['\"])(.+?)\1(?: \||\)| if| ~)", source)}
    assert len(phrases) > 60
    for phrase in phrases - {"in ", "Of ", "baseline ", "%s %s"}:
        said = phrase.replace("%s", "7")
        assert chinese.translation(said) is not None, phrase
    bare = re.sub(r"\{[%{].*?[%}]\}|<style>.*?</style>|<[^>]*>", " ", source, flags=re.DOTALL)
    words = set(re.findall(r"[A-Za-z]{3,}", bare))
    assert words <= {"evalkit", "verify"}, words


def test_every_action_of_the_registry_is_translated() -> None:
    chinese = language("zh")
    for spec in SPECS:
        said = chinese.translation(spec.action)
        assert said is not None and re.search("[\u4e00-\u9fff]", said), spec.action
    assert PHRASES.keys() >= {spec.action for spec in SPECS}


@pytest.mark.parametrize("name", ["judge", "measurement"])
def test_every_reason_of_the_judge_is_translated(name: str) -> None:
    """Read from its source, so that a new reason can't be forgotten; fields are filled with a number."""
    chinese = language("zh")
    said = set(sentences(GATE_FOLDER / f"{name}.py")) - PUT_TOGETHER
    assert len(said) > 5
    assert not {text for text in said if chinese.translation(text) is None}


def test_records_that_are_not_ok_are_translated_with_their_kind() -> None:
    chinese = language("zh")
    for kind, statuses in STATUSES.items():
        for status in statuses[1:]:
            said = chinese(f"7 {kind} {status.replace('_', ' ')}")
            assert not re.search("[a-z]", said), said


@pytest.mark.parametrize("look", [1, 2, 3])
def test_what_every_look_says_is_translated(look: int) -> None:
    chinese = language("zh")
    found = fake_run.results([fake_run.metric("perplexity/token", 50, 45, 61)], fake_run.EVIDENCE_ONE)
    verdict = judge(found, None, fake_run.policy([{"metric": "perplexity/token", "max": 60}]), look=look)
    for text in (verdict.warning, verdict.rules[0].action, verdict.rules[0].reason):
        said = chinese.translation(text or "")
        assert said is not None and not re.search(r"[a-z]{3,}", said.replace("max_looks", "")), said


def sentences(path: Path) -> list[str]:
    """Texts of a module with at least three words of their own; docstrings left out."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    inside: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            inside |= {id(part) for part in ast.walk(node) if part is not node}
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            inside.add(id(node.value))
    found = []
    for node in ast.walk(tree):
        if id(node) in inside:
            continue
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.append(node.value)
        elif isinstance(node, ast.JoinedStr):
            parts = [part.value if isinstance(part, ast.Constant) else "7" for part in node.values]
            found.append("".join(str(part) for part in parts))
    return [text for text in found if text.count(" ") >= 2 and re.search("[a-z]{2,}", text)]


def test_nothing_of_a_whole_run_stays_english(review: ReportSource, recorder: Recorder) -> None:
    sources = [
        review,
        fake_run.source(),
        fake_run.source(with_baseline=False, first_release=True),
    ]
    for source in sources:
        view = build_view(source)
        for render in (render_html, render_markdown, render_junit):
            render(view, recorder)
    assert not {text for text in recorder.missed if not KEPT.fullmatch(text)}


def test_the_verdict_the_tables_and_the_labels_of_charts_are_chinese(review: ReportSource) -> None:
    page = render_html(build_view(review), language("zh"))
    assert '<html lang="zh-CN">' in page
    assert "<title>不通过: banking_support</title>" in page
    text = visible_words(page)
    for said in (
        "✗ 不通过",
        "? 无法判定",
        "10 条阻断规则中",
        "数值和界限与阈值对照",
        "样本太少，无法判定",
        "措施: 低于 0.9：事实在轮次之间丢失",
        "Hello Maria, how can I help?",  # what models say is evidence: nobody translates it
        "perplexity/long_tail",
    ):
        assert said in text, said
    assert 'aria-label="perplexity/head：数值' in page.replace("<wbr>", "")
    assert "系强制执行，尽管该运行在 production 所要求的策略下的结论是“不通过”" in text


def test_both_languages_show_the_same_numbers(review: ReportSource) -> None:
    view = build_view(review)
    pages = [render_html(view, say) for say in (ENGLISH, language("zh"))]
    numbers = [sorted(re.findall(r'<td role="cell" class="num"[^>]*>([^<]*)', page)) for page in pages]
    assert numbers[0] == numbers[1]


def test_junit_keeps_its_names_and_translates_its_messages(review: ReportSource) -> None:
    """A CI follows a test by its name."""
    view = build_view(review)
    pages = [render_junit(view, say) for say in (ENGLISH, language("zh"))]
    names = [re.findall(r' (?:name|classname|type)="([^"]*)"', page) for page in pages]
    assert names[0] == names[1]
    assert "样本太少，无法判定" in pages[1] and "too few samples" not in pages[1]


def test_a_text_with_fields_is_translated_inside() -> None:
    chinese = language("zh")
    assert chinese("no value: no text was scored") == "没有数值：没有文本被评分"
    assert chinese("upper bound 0.9 is exactly at the threshold") == "上界 0.9 恰好等于阈值"
    assert chinese("2 of 3 blocking rules failed: a, b") == "3 条阻断规则中 2 条不通过：a, b"
    ways = "measured in different ways, not comparable: ppl|v:1 and ppl|v:2"
    assert chinese(ways) == "测量方式不同，不可比较：ppl|v:1 与 ppl|v:2"
    partial = "the baseline's run is partial; finish it with `evalkit resume`"
    assert chinese(partial) == "基线的运行不完整；请用 `evalkit resume` 完成"
    errors = "7 of 90 dialogues of the candidate ended in an error; max_error_rate allows a share of 0.01"
    assert chinese(errors) == "候选的 90 个对话中 7 个以错误告终；max_error_rate 允许的比例为 0.01"
    undecided = "lower bound 0.8 is below 0.9, upper bound 0.95 is not: too few samples to decide"
    assert chinese(undecided) == "下界 0.8 低于 0.9，而上界 0.95 则不然：样本太少，无法判定"
    assert chinese("a reason of somebody else's metric") == "a reason of somebody else's metric"
    assert ENGLISH("no text was scored") == "no text was scored"


def test_another_language_is_refused() -> None:
    with pytest.raises(InputError, match="--lang fr: choose from en, zh"):
        language("fr")


def test_the_command_writes_the_reports_again_in_chinese(tmp_path: Path) -> None:
    models = [fake_run.random_evidence(3, texts=12, dialogues=10, worse=worse) for worse in (0.1, 0.0)]
    run = fake_run.write_run(tmp_path / "run", review_run.RULES[:2], models[0], models[1])
    arguments = ["report", str(run.path), "--lang", "zh", "--format", "html,markdown"]
    done = CliRunner().invoke(cli, arguments)
    assert done.exit_code == 0, done.output
    for name in ("report.html", "report.md"):
        assert "不通过" in (run.reports / name).read_text(encoding="utf-8")
    assert CliRunner().invoke(cli, ["report", str(run.path), "--lang", "fr"]).exit_code == 2
