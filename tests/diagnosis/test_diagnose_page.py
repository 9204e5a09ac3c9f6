"""The page of a diagnosis."""

import re
import subprocess
import sys

import pytest
import torch
from torch import nn

import semfocus
from semfocus.training.files import StorageError


class Model(nn.Module):
    def __init__(self, name="attention"):
        super().__init__()
        setattr(self, name, nn.MultiheadAttention(8, 2, batch_first=True))

    def forward(self, x):
        return next(self.children())(x, x, x)[0]


HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(1)>"


def page(tmp_path, model):
    found = semfocus.diagnose(model, torch.randn(2, 20, 8))
    path = found.to_html(tmp_path / "new" / "page.html")
    return found, path.read_text(encoding="utf-8")


def test_it_holds_figures_words_and_numbers(tmp_path):
    found, text = page(tmp_path, Model())
    assert text.startswith("<!doctype html>")
    assert text.count('<svg class="plot"') == 5
    assert text.index("<svg") < text.index("In words") < text.index("Numbers by layer")
    assert "No candidate has been scored at paper size" in text
    assert "k = 32, 64 are clipped to 20" in text
    assert f"{100 * found.layers[0]['kept_mass_8']:.1f} %" in text
    assert [path.name for path in tmp_path.rglob("*.*")] == ["page.html"]  # nothing beside it, no temporary file
    assert found.to_html(tmp_path / "again.html").read_text(encoding="utf-8") == text


def test_it_needs_no_network(tmp_path):
    _, text = page(tmp_path, Model())
    assert "http://" not in text
    assert "https://" not in text
    assert not re.search(r"<(script|link|iframe)\b", text)
    assert not re.search(r"""(src|href)=["'](?!#|data:)""", text)
    assert "default-src 'none'" in text


def test_names_of_the_model_are_escaped(tmp_path):
    hostile = type(HOSTILE, (Model,), {})
    _, text = page(tmp_path, hostile(HOSTILE.replace(".", "")))
    assert "<script" not in text
    assert "<img" not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text


def test_a_head_that_sees_nothing(tmp_path):
    class Hides(nn.Module):
        def forward(self, x):
            sees = torch.tensor([True, False])[:, None, None].expand(1, 2, 1, x.shape[-2])
            return semfocus.attention(x, x, x, semfocus.Full(), attn_mask=sees)

    found = semfocus.diagnose(Hides(), torch.randn(1, 2, 9, 4), ks=(2, 4))
    assert [row["keys"] for row in found.rows if row["head"] is not None] == [9.0, None]
    assert "NaN" not in found.to_html(tmp_path / "page.html").read_text(encoding="utf-8")


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    found = semfocus.diagnose(Model(), torch.randn(2, 20, 8), ks=(4,))
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=r"cannot write .*file"):
        found.to_html(tmp_path / "file" / "page.html")


def test_without_the_laboratory_it_says_what_to_install(tmp_path):
    code = """
import sys
sys.modules["matplotlib"] = sys.modules["jinja2"] = sys.modules["scipy"] = sys.modules["rich"] = None
import torch, semfocus
x = torch.randn(1, 6, 8)
found = semfocus.diagnose(torch.nn.MultiheadAttention(8, 2, batch_first=True), (x, x, x), ks=(2,))
print(found.to_csv(sys.argv[1] + "/found.csv"))
try:
    found.to_html(sys.argv[1] + "/found.html")
except ImportError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert "found.csv" in done.stdout
    assert "pip install 'semfocus[lab]'" in done.stdout
