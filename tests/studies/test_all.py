"""``semfocus run all``: one study after another, all planned before the first is trained."""

import pytest

from semfocus import studies
from semfocus.cli import main
from semfocus.lab.store import Store

SMALL = ["train.epochs=1", "data.train=50", "data.heldout=50"]


@pytest.fixture
def two(monkeypatch):
    """Two studies of thirteen: which there are is not the question here."""
    monkeypatch.setattr(studies, "names", lambda: ["convergence", "budget"])


def run(out, *words):
    return main(["run", "all", "--size", "smoke", "--device", "cpu", "--no-clock", "--out", str(out), *words])


def test_every_study_has_a_page_and_the_index_names_it(two, tmp_path, capsys):
    assert run(tmp_path, *SMALL) == 0
    shown = capsys.readouterr().out
    assert "2 studies: convergence, budget\n" in shown
    text = (tmp_path / "index.html").read_text()
    for name in ("convergence", "budget"):
        store = Store(tmp_path, name)
        (question,) = store.names()
        assert store.manifest(question).complete
        assert f'href="{name}/pages/{question}.html"' in text


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--only", "even_pairs"], "--only names panels of one study"),
        (["--size", "smok"], "size is 'smok'; did you mean 'smoke'?"),
        (["--size", "ptb"], "size is 'ptb'; "),
        (["model.widht=8"], "convergence: "),
    ],
)
def test_what_cannot_be_is_said_before_anything_is_trained(two, tmp_path, capsys, words, says):
    assert run(tmp_path, *words) == 2
    found = capsys.readouterr()
    assert says in found.err
    assert "Traceback" not in found.err
    assert not list(tmp_path.iterdir())


def test_studies_without_the_size_are_named(two, tmp_path, capsys, monkeypatch):
    sizes = dict(studies.get("budget").sizes)
    del sizes["smoke"]
    monkeypatch.setattr(type(studies.get("budget")), "sizes", sizes)
    assert run(tmp_path, *SMALL) == 0
    assert "1 study: convergence; without budget, which have no size smoke" in capsys.readouterr().out
    assert not (tmp_path / "budget").exists()


def test_one_that_fails_does_not_keep_the_others_waiting(two, tmp_path, capsys):
    (tmp_path / "convergence").mkdir()
    (tmp_path / "convergence" / "runs").write_text("a file where a folder belongs")
    assert run(tmp_path, *SMALL) == 2
    assert "semfocus: " in capsys.readouterr().err
    assert "budget/pages/" in (tmp_path / "index.html").read_text()
