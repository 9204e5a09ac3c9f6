"""Examples in docstrings are run."""

import doctest
import importlib
import pkgutil

import pytest

import semfocus

MODULES = [
    module.name
    for module in pkgutil.walk_packages(semfocus.__path__, "semfocus.")
    if not module.name.endswith("__main__") and ".tasks" not in module.name  # tasks have their own test
]


@pytest.mark.parametrize("name", ["semfocus", *MODULES])
def test_examples(name):
    if name.startswith("semfocus.kernels."):
        pytest.importorskip("triton", reason="Triton is not installed")
    if name == "semfocus.lab.cluster":
        pytest.importorskip("ray", reason="semfocus[ray] is not installed")
    result = doctest.testmod(importlib.import_module(name), optionflags=doctest.IGNORE_EXCEPTION_DETAIL)
    assert result.failed == 0
