"""Rows made by the original generators: every one of them must be solved exactly."""

import json
import os
from pathlib import Path

import pytest

from semfocus import tasks

FOLDER = Path(os.environ.get("SEMFOCUS_GOLDEN") or Path(__file__).resolve().parents[3] / "shared" / "golden")
WITHOUT_PRODUCTS = "modular_arithmetic_brackets_nomult"

pytestmark = pytest.mark.skipif(
    not FOLDER.is_dir(), reason=f"no golden rows in {FOLDER}; set SEMFOCUS_GOLDEN to the folder that has them"
)


def rows(name):
    return [json.loads(line) for line in (FOLDER / f"{name}.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("name", [name for name in tasks.names() if name != "listops"] + [WITHOUT_PRODUCTS])
def test_every_row_is_solved(name):
    if name == WITHOUT_PRODUCTS:
        task = tasks.get("modular_arithmetic_brackets", multiplication=False)
    else:
        task = tasks.get(name)
    golden = rows(f"nnch_{name}")
    assert len(golden) > 300
    for row in golden:
        assert task.solve(row["input"]) == row["output"], row
        assert len(row["input"]) == task.input_length(row["length"])
        assert len(row["output"]) == task.output_length(row["length"])


def test_every_listops_row_is_solved_with_and_without_round_brackets():
    task = tasks.get("listops")
    golden = rows("listops")
    assert len(golden) > 700
    for row in golden:
        tokens = task.encode(row["source"])
        assert len(tokens) == row["length"]
        assert task.solve(tokens) == [row["target"]]
        assert task.encode(row["source"].replace("(", "").replace(")", "")) == tokens
