"""The JUnit report: one test case a rule, so that any CI shows the verdict without knowing us.

A violated blocking rule is a failure, an undecided one an error: neither may look green. A rule of severity
warn never turns a case red; its outcome is written to its output. Names and types are the same in every
language, since a CI follows a test by its name; messages are translated.
"""

import re
from xml.etree import ElementTree

from evalkit.report.language import ENGLISH, Language
from evalkit.report.rules import RuleView
from evalkit.report.text import visible
from evalkit.report.view import ReportView

# What XML 1.0 can't carry, even as a reference.
_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def render_junit(view: ReportView, say: Language = ENGLISH) -> str:
    """The JUnit XML text."""
    cases = [_case(view, rule, say) for rule in view.rules]
    red = {
        name: sum(case.find(name) is not None for case in cases) for name in ("failure", "error", "skipped")
    }
    if view.verdict.word in ("FAIL", "INCONCLUSIVE") and not (red["failure"] or red["error"]):
        # No rule explains the verdict (none was applied): it must not look green.
        cases.append(_unexplained(view, say))
        red["error"] += 1
    counts = {
        "tests": len(cases),
        "failures": red["failure"],
        "errors": red["error"],
        "skipped": red["skipped"],
    }
    attributes = {name: str(number) for name, number in counts.items()}
    root = ElementTree.Element("testsuites", {"name": _clean(view.title), **attributes})
    suite = ElementTree.SubElement(root, "testsuite", {"name": _clean(f"evalkit.{view.title}"), **attributes})
    properties = ElementTree.SubElement(suite, "properties")
    for name, value in (
        ("verdict", view.verdict.word),
        ("run_id", view.run_id),
        ("policy_sha256", view.verdict.policy_sha256),
        *((f"{model.role}_model_digest", model.digest) for model in view.models),
        *(("forced_promotion", sentence) for sentence in view.forced),
    ):
        ElementTree.SubElement(properties, "property", {"name": name, "value": _clean(value)})
    suite.extend(cases)
    ElementTree.indent(root)
    # The declaration is written here: the library would name the locale's encoding.
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _case(view: ReportView, rule: RuleView, say: Language) -> ElementTree.Element:
    name = f"rule {rule.number}: {rule.name}, {rule.demand}"
    case = ElementTree.Element(
        "testcase", {"classname": _clean(f"{view.title}.{rule.severity}"), "name": _clean(name), "time": "0"}
    )
    reason = say(rule.reason)
    facts = say(f"value {rule.value}, bounds {rule.interval}, n {rule.n}, coverage {rule.coverage}")
    needs = "\n" + say(f"needs n {rule.needs}") if rule.needs else ""
    detail = f"{say(rule.word)}: {reason}\n{facts}{needs}" + (f"\n{say(rule.action)}" if rule.action else "")
    tags = {"FAIL": "failure", "INCONCLUSIVE": "error"}
    if rule.outcome == "NOT_APPLIED":
        ElementTree.SubElement(case, "skipped", {"message": _clean(reason)})
    elif rule.outcome in tags and rule.severity == "block":
        attributes = {"type": rule.outcome, "message": _clean(reason)}
        ElementTree.SubElement(case, tags[rule.outcome], attributes).text = _clean(detail)
    else:
        prefix = say("WARNING") + " " if rule.outcome in tags else ""
        ElementTree.SubElement(case, "system-out").text = _clean(prefix + detail)
    return case


def _unexplained(view: ReportView, say: Language) -> ElementTree.Element:
    case = ElementTree.Element(
        "testcase", {"classname": _clean(f"{view.title}.block"), "name": "verdict", "time": "0"}
    )
    attributes = {"type": view.verdict.word, "message": _clean(say(view.verdict.reason))}
    ElementTree.SubElement(case, "error", attributes).text = _clean(say(view.verdict.meaning))
    return case


def _clean(text: str) -> str:
    return _NOT_XML.sub("\ufffd", visible(text))
