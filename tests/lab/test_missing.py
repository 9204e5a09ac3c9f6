"""What a study lacks is said once for all panels and arms that lack the same."""

from types import SimpleNamespace
from typing import Any, cast

from semfocus.lab.missing import missing
from semfocus.lab.results import Results


def arm(label: str, *statuses: str) -> Any:
    runs = [SimpleNamespace(status=status) for status in statuses]
    return SimpleNamespace(label=label, runs=runs, over=[run for run in runs if run.status == "finished"])


def lacking(panels: dict[str, list[Any]]) -> list[str]:
    return missing(cast(Results, SimpleNamespace(panels=list(panels), in_panel=panels.__getitem__)))


def test_panels_that_lack_the_same_share_a_sentence() -> None:
    half = [arm("full", "finished", "waiting"), arm("top-k(5)", "finished", "begun")]
    assert lacking({"listops, heads 1": half, "listops, heads 2": half, "even_pairs": half[:1]}) == [
        "listops (heads 1; heads 2): in each 2 of 4 runs are over; full, top-k(5) have 1 of 2 seeds",
        "even_pairs: 1 of 2 runs are over; full has 1 of 2 seeds",
    ]


def test_what_has_begun_and_what_waits_are_told_apart() -> None:
    waiting, done = [arm("full", "waiting")], [arm("full", "finished")]
    assert lacking({"a": waiting, "b, x": [arm("full", "begun"), *waiting], "c": done, "a, y": waiting}) == [
        "b, x: none of 2 runs is over, 1 have begun",
        "none of the 2 runs is over of a (as it is; y)",
    ]


def test_many_arms_are_counted() -> None:
    arms = [arm(f"p({i})", "finished", "waiting") for i in range(7)]
    absent = [arm(f"q({i})", "waiting", "waiting") for i in range(2)]
    assert lacking({"a": [*arms, *absent]}) == [
        "a: 7 of 18 runs are over; 7 arms have 1 of 2 seeds; no run is over of q(0), q(1)"
    ]
    assert lacking({"a": [arm("full", "finished")]}) == []
