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


def test_a_dry_run_says_what_is_missing_and_writes_nothing(two, tmp_path, capsys):
    words = ["run", "convergence", "--size", "smoke", "--device", "cpu", "--no-clock", "--out", str(tmp_path)]
    assert main([*words, *SMALL, "--dry-run"]) == 0
    assert "10 of 10 runs to train; nothing was trained or written" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())

    assert main([*words, *SMALL, "--first-seeds", "1"]) == 0
    before = sorted(tmp_path.rglob("*"))
    capsys.readouterr()
    assert main([*words, *SMALL, "--dry-run"]) == 0
    assert "5 of 10 runs to train" in capsys.readouterr().out
    assert run(tmp_path, *SMALL, "--dry-run") == 0
    assert "5 of 6 runs to train" in capsys.readouterr().out  # budget's full attention is that of its neighbour
    assert sorted(tmp_path.rglob("*")) == before


def test_runs_that_panels_share_count_once(tmp_path, capsys):
    assert main(["run", "ablations", "--size", "paper", "--dry-run", "--out", str(tmp_path)]) == 0
    assert "340 of 340 runs to train" in capsys.readouterr().out  # 20 panels of 20, of which 4 are the same


def test_a_dry_run_refuses_what_a_run_would(two, tmp_path, capsys):
    assert run(tmp_path, "model.widht=8", "--dry-run") == 2
    assert "did you mean 'width'" in capsys.readouterr().err
