from __future__ import annotations

from pathlib import Path

import pytest
import torch
from chromium import PROGRAM, Chromium

import semfocus

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(PROGRAM is None, reason="no Chromium on this machine"),
]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    encoder = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(8, 2, 8, batch_first=True), 3)
    hostile = type("<script>document.title='run'</script>" + "Long" * 30, (torch.nn.Sequential,), {})(encoder)
    found = semfocus.diagnose(hostile, torch.randn(2, 20, 8))
    return found.to_html(tmp_path_factory.mktemp("diagnosis") / "page.html")


@pytest.mark.parametrize(("scheme", "width"), [("light", 1200), ("dark", 400)])
def test_a_browser_shows_a_diagnosis_without_complaint(page: Path, tmp_path: Path, scheme: str, width: int) -> None:
    with Chromium(tmp_path / "profile") as browser:
        seen = browser.visit(page, width, scheme)
        title = browser.evaluate("document.title")
    assert (seen.complaints, seen.requests, seen.overflow) == ([], [], [])
    assert title.endswith("should it focus?")
    assert "does not recommend focus" in seen.text


def test_a_layer_that_is_unticked_disappears(page: Path, tmp_path: Path) -> None:
    shown = "[...document.querySelectorAll('.arm')].filter(e => getComputedStyle(e).display != 'none').length"
    with Chromium(tmp_path / "profile") as browser:
        browser.visit(page)
        before = browser.evaluate(shown)
        browser.evaluate("document.querySelector('.legend input').click()")
        assert before - browser.evaluate(shown) == 1
