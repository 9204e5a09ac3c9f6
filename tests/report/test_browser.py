from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from chromium import PROGRAM, Chromium

from semfocus import studies
from semfocus.lab.results import Results
from semfocus.report.page import build

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(PROGRAM is None, reason="no Chromium on this machine"),
]


@pytest.mark.parametrize(("scheme", "width"), [("light", 1200), ("dark", 1200), ("light", 400), ("dark", 400)])
def test_a_browser_shows_the_page_without_complaint(results: Results, tmp_path: Path, scheme: str, width: int) -> None:
    page = build(studies.get("convergence"), results)
    with Chromium(tmp_path / "profile") as browser:
        seen = browser.visit(page, width, scheme)
        background = browser.evaluate("getComputedStyle(document.documentElement).getPropertyValue('--paper')")
        ink = browser.evaluate("getComputedStyle(document.querySelector('svg.plot text')).fill")
    assert seen.complaints == []
    assert seen.requests == []
    assert seen.overflow == []
    assert "Does attention that focuses converge" in seen.text
    assert background.strip() == {"light": "#fbfbfa", "dark": "#14161a"}[scheme]
    assert len(seen.screenshot) > 10_000
    assert ink.startswith("rgb")


def test_hostile_labels_run_nothing(results: Results, tmp_path: Path) -> None:
    label = "<img src=x onerror=document.title='run'><script>document.title='run'</script>" + "long" * 60
    arms = [replace(arm, label=f"{number}{label}", panel=label) for number, arm in enumerate(results.manifest.arms)]
    page = build(studies.get("convergence"), Results(results.store, replace(results.manifest, arms=tuple(arms))))
    with Chromium(tmp_path / "profile") as browser:
        seen = browser.visit(page, 400)
        title = browser.evaluate("document.title")
    assert title.startswith("convergence, smoke")
    assert (seen.complaints, seen.requests, seen.overflow) == ([], [], [])


def test_an_arm_that_is_unticked_disappears(results: Results, tmp_path: Path) -> None:
    page = build(studies.get("convergence"), results)
    shown = "[...document.querySelectorAll('.arm')].filter(e => getComputedStyle(e).display != 'none').length"
    with Chromium(tmp_path / "profile") as browser:
        browser.visit(page)
        before = browser.evaluate(shown)
        browser.evaluate("document.querySelector('.legend input').click()")
        after = browser.evaluate(shown)
    # three curves with line and band
    assert before - after == 6
