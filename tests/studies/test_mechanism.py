"""The candidates of `mechanism`."""

from types import SimpleNamespace

from semfocus.studies.mechanism import CANDIDATES


def test_one_key_has_the_smallest_dispersion_ratio():
    full, five, one = (
        SimpleNamespace(diagnostic=lambda *_, found=value: found) for value in (0.9, 0.18, 0.0)
    )  # fmt: skip
    ratio = CANDIDATES["dispersion ratio, 75 %"]
    assert ratio(full, one) == 0 < ratio(full, five) < ratio(full, full) == 1
    assert ratio(one, five) is None
