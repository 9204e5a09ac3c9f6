"""A file that is damaged, or was made to do harm: one sentence that names it, and nothing written outside."""

import gzip
import json

import pytest
from two_tasks import find

from semfocus.cli import main
from semfocus.evidence.build import build_all
from semfocus.evidence.folder import add, load
from semfocus.lab.store import Store
from semfocus.training.files import StorageError


@pytest.fixture
def folder(lab, tmp_path):
    store = Store(lab, "two_tasks")
    run = next((store.path / "runs").iterdir())
    (run / "measured.json").write_text('{"a": 1.0}')
    return add(store, "quick", tmp_path / "results").path


def text_of(path):
    return gzip.decompress(path.read_bytes()).decode()


def write(path, text):
    path.write_bytes(gzip.compress(text.encode()))


FILES = ("manifest.json.gz", "runs.jsonl.gz", "curves.csv.gz", "measured.jsonl.gz")


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("harm", ["cut", "not compressed", "not text"])
def test_a_broken_file(folder, name, harm):
    path = folder / name
    whole = path.read_bytes()
    path.write_bytes(
        {"cut": whole[: len(whole) // 2], "not compressed": b"{}", "not text": gzip.compress(b"\xff")}[harm]
    )
    with pytest.raises(StorageError, match=name) as error:
        load(folder)
    assert "\n" not in str(error.value)
    assert "damaged" in str(error.value)


def without_last_line(text):
    return "".join(text.splitlines(keepends=True)[:-1])


@pytest.mark.parametrize(
    ("name", "harm"),
    [
        ("curves.csv.gz", without_last_line),
        ("curves.csv.gz", lambda text: text.replace(",", ";")),
        ("curves.csv.gz", lambda text: text + "0123456789abcdef,0,0.5\n"),
        ("curves.csv.gz", lambda text: text.replace("0.", "x.", 1)),
        ("curves.csv.gz", lambda text: text.replace(",0.5", ",inf")),
        ("curves.csv.gz", lambda text: text.split("\n", 1)[0] + "\n"),
        ("runs.jsonl.gz", without_last_line),
        ("runs.jsonl.gz", lambda text: text.replace('"finished"', '"diverged"', 1)),
        ("runs.jsonl.gz", lambda text: text.replace('"seconds":', '"minutes":')),
        ("runs.jsonl.gz", lambda text: text.replace('"even_pairs"', '"odd_pairs"')),
        ("runs.jsonl.gz", lambda text: "[]\n"),
        ("measured.jsonl.gz", lambda text: text.replace('{"a":1.0}', "[1]")),
        ("manifest.json.gz", lambda text: text.replace('"arms"', '"legs"')),
    ],
)
def test_a_file_that_does_not_fit_the_others(folder, name, harm):
    before = text_of(folder / name)
    write(folder / name, harm(before))
    assert text_of(folder / name) != before
    with pytest.raises(StorageError) as error:
        load(folder)
    assert "\n" not in str(error.value)
    assert str(folder) in str(error.value)


@pytest.mark.parametrize("evil", ["../../evil", "..", "/tmp/evil", "a/b", ""])
def test_names_from_files_never_become_paths_unchecked(folder, evil, tmp_path):
    manifest = json.loads(text_of(folder / "manifest.json.gz"))
    for field in ("study", "name"):
        write(folder / "manifest.json.gz", json.dumps({**manifest, field: evil}))
        with pytest.raises(StorageError):
            load(folder)
    run = next(iter(manifest["arms"][0]["runs"].values()))
    write(folder / "manifest.json.gz", json.dumps(manifest).replace(run, evil))
    with pytest.raises(StorageError):
        load(folder)
    write(folder / "manifest.json.gz", json.dumps(manifest))
    for name in ("runs.jsonl.gz", "curves.csv.gz"):
        before = text_of(folder / name)
        write(folder / name, before.replace(run, evil))
        with pytest.raises(StorageError):
            load(folder)
        write(folder / name, before)
    load(folder)
    assert not list(tmp_path.parent.rglob("evil"))


def test_a_folder_under_another_name(folder):
    folder.rename(folder.with_name("convergence-paper"))
    with pytest.raises(StorageError, match="rename the folder"):
        load(folder.with_name("convergence-paper"))


def test_a_folder_without_results(tmp_path, capsys):
    assert main(["results", "check", str(tmp_path), "0123456789abcdef"]) == 2
    assert "holds no results" in capsys.readouterr().err


def test_a_damaged_lab_adds_nothing(lab, tmp_path):
    store = Store(lab, "two_tasks")
    run = next((store.path / "runs").iterdir())
    (run / "config.json").write_text("{")
    with pytest.raises(StorageError, match=r"config\.json is damaged"):
        add(store, "quick", tmp_path / "results")
    assert not (tmp_path / "results").exists()


def test_too_much_is_said(folder, monkeypatch):
    monkeypatch.setattr("semfocus.evidence.build.MOST", 1000)
    with pytest.raises(StorageError, match="are to be kept"):
        build_all(folder.parent, find, lambda text: None)
