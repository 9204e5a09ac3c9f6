"""A panel of more arms than anybody can tell apart has tables and no drawing."""

from semfocus import studies
from semfocus.report import curves, times
from semfocus.report.page import answer


def test_too_many_arms_are_not_drawn(results, monkeypatch):
    study = studies.get("convergence")
    drawn = answer(study, results)
    assert drawn.figures
    for module in (curves, times):
        monkeypatch.setattr(module, "MOST_ARMS", len(results.arms) - 1)
    found = answer(study, results)
    assert not found.figures
    assert "So many arms are not drawn" in found.page()
    assert [one.verdict for one in found.judged] == [one.verdict for one in drawn.judged]
