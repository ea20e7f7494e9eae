import base64
import hashlib
import json
import re
from html.parser import HTMLParser

import pytest

from shardwright.errors import InvalidInput
from shardwright.report import entry_of, report_page, write_report
from tests.unit.report.plans import HOSTILE, hostile_plan, mixed_plan, row_wise_plan


class Page(HTMLParser):
    """Elements of a page as a browser's parser sees them."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.text = [], {}
        self._open = None
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self._open = tag

    def handle_data(self, data):
        self.text.setdefault(self._open, []).append(data)

    def handle_endtag(self, tag):
        self._open = None


def all_of(page, tag):
    return [attributes for name, attributes in page.elements if name == tag]


@pytest.fixture(scope="module")
def page():
    return Page(report_page([entry_of(hostile_plan(), "<h1>'plan' & \"co\"")]))


def test_the_policy_allows_the_pages_own_style_and_script_and_nothing_else(page):
    (policy,) = [one["content"] for one in all_of(page, "meta") if one.get("http-equiv") == "Content-Security-Policy"]
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    assert rules["default-src"] == rules["base-uri"] == rules["form-action"] == "'none'"
    data, script = page.text["script"]
    (style,) = page.text["style"]
    for rule, content in (("script-src", script), ("style-src", style)):
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert rules[rule] == f"'sha256-{digest}'"
    json.loads(data)


def test_nothing_comes_from_elsewhere(page):
    assert not all_of(page, "link")
    for _, attributes in page.elements:
        assert not {"src", "style", "onclick", "onload"} & set(attributes)
        assert attributes.get("href", "#").startswith("#")
    script, style = page.text["script"][1], page.text["style"][0]
    assert "url(" not in style
    assert "@import" not in style
    assert set(re.findall(r"https?://[^\"'` ]+", script + style)) == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"innerHTML|insertAdjacentHTML|document\.write|eval\(|new Function|fetch\(", script)


def test_names_are_text_whatever_they_hold(page):
    assert len(all_of(page, "script")) == 2
    assert not all_of(page, "img")
    assert not all_of(page, "b")
    data = json.loads(page.text["script"][0])
    assert tuple(data["tasks"][0]["tables"]["name"]) == HOSTILE
    assert data["plans"][0]["strategy"] == "<b>bold</b>"
    assert page.text["title"] == ["<h1>'plan' & \"co\" – sharding plan"]


def test_separators_that_end_a_line_of_a_script_are_escaped():
    text = report_page([entry_of(mixed_plan(), "a\u2028b\u2029c")])
    embedded = re.search(r'id="data">(.*?)</script>', text, re.DOTALL)[1]
    assert not set("<>&\u2028\u2029") & set(embedded)
    assert json.loads(embedded)["plans"][0]["name"] == "a\u2028b\u2029c"


def test_readers_without_scripts_get_the_step_and_the_bound():
    text = report_page([entry_of(mixed_plan(bound_ms=0.0123), "a<b")])
    cost = mixed_plan().cost
    step, kernels = cost.step_ms, cost.compute_ms / cost.step_ms
    assert f"<li>a&lt;b: step {step:.3f} ms, bound 0.012 ms. {kernels:.0%} of a step is kernels, " in text


def test_the_same_plans_make_the_same_page(tmp_path):
    entries = [entry_of(row_wise_plan(), "before"), entry_of(mixed_plan(), "after")]
    size = write_report(entries, tmp_path / "a.html")
    assert (tmp_path / "a.html").read_bytes() == report_page(entries).encode()
    assert (tmp_path / "a.html").stat().st_size == size


def test_without_a_plan_there_is_no_report():
    with pytest.raises(InvalidInput, match="at least one plan"):
        report_page([])
