"""Where text comes from: files of the user's, and packages that are wholly on one side of the split."""

import tracemalloc
from pathlib import Path

import pytest

from semfocus.text import corpus
from semfocus.text.corpus import Corpus, installed, of_file, of_packages
from semfocus.training.strict import ConfigError


@pytest.fixture
def packages(tmp_path):
    """Thirty packages of two files each; every file names its package. One has copies of others."""
    found = {}
    for number in range(30):
        top = tmp_path / f"pack{number}"
        (top / "inner").mkdir(parents=True)
        (top / "a.py").write_text(f"# pack{number} first {'x' * 200}\n")
        (top / "inner" / "b.py").write_text(f"# pack{number} second {'y' * 200}\n")
        found[top.name] = [top]
    (tmp_path / "pack3" / "copy.py").write_text((tmp_path / "pack5" / "a.py").read_text())
    (tmp_path / "pack4" / "_vendor").mkdir()
    (tmp_path / "pack4" / "_vendor" / "pack6.py").write_text("# vendored\n")
    (tmp_path / "pack7" / "latin.py").write_bytes(b"# \xe9\n")
    return found


def test_no_package_is_on_both_sides_and_no_file_is_there_twice(packages):
    made = of_packages(packages, 1.0)
    everything = made.train + made.heldout
    for number in range(30):
        name = f"# pack{number} "
        assert (name in made.train) != (name in made.heldout)
        assert everything.count(f"{name}first") == everything.count(f"{name}second") == 1
    assert "vendored" not in everything
    assert 0 < len(made.heldout) <= 0.1 * len(everything)


def test_equal_sources_equal_hash_and_another_file_another_hash(packages, tmp_path):
    before = of_packages(packages, 1.0).sha256
    assert of_packages(dict(reversed(packages.items())), 1.0).sha256 == before
    (tmp_path / "pack9" / "new.py").write_text("print(1)\n")
    assert of_packages(packages, 1.0).sha256 != before
    assert Corpus("ab", "c", "").sha256 != Corpus("a", "bc", "").sha256


def test_the_text_is_as_long_as_asked_and_no_package_takes_more_than_its_share(packages, tmp_path):
    (tmp_path / "pack0" / "huge.py").write_text("# huge\n" + "z" * 100_000)
    made = of_packages(packages, 0.008)
    assert len(made.train) + len(made.heldout) == 8000
    assert (made.train + made.heldout).count("z") < 1200


def test_a_short_file_takes_no_more_memory_than_it_has(tmp_path):
    (tmp_path / "short.txt").write_text("some words\n" * 100)
    tracemalloc.start()
    made = of_file(tmp_path / "short.txt", 1000)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(made.train) + len(made.heldout) == 1100
    assert peak < 1_000_000


def test_this_machine_has_enough_sources():
    names = installed()
    assert {"json", "asyncio", "torch", "numpy"} <= names.keys()
    made = corpus.load("", 0.3)
    assert len(made.train) > 250_000
    assert corpus.load("", 0.3).sha256 == made.sha256


def test_a_machine_without_sources_is_told_what_to_do(tmp_path):
    with pytest.raises(ConfigError, match="corpus=FILE"):
        of_packages({}, 1.0)


def test_a_file_is_cut_at_a_line(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("".join(f"line {i}\n" for i in range(100)), encoding="utf-8")
    made = of_file(path, 1.0)
    assert made.train.endswith("\n")
    assert made.heldout.startswith("line ")
    assert made.train + made.heldout == path.read_text()
    assert 0.05 < len(made.heldout) / len(path.read_text()) <= 0.1
    path.write_text("a" * 95 + "\n" + "a" * 4)  # a line is too long: what is left is less than half of a tenth
    assert (len(of_file(path, 1.0).train), len(of_file(path, 1.0).heldout)) == (90, 10)
    path.write_text("a" * 100)
    assert (len(of_file(path, 1.0).train), len(of_file(path, 1.0).heldout)) == (90, 10)


def test_of_a_long_file_only_the_beginning_is_read(tmp_path):
    path = tmp_path / "long.txt"
    text = "\ufeff" + "ä€🎉b" * 100
    path.write_bytes(text.encode() + b"a" * 5000 + b"\xff")  # what is not UTF-8 comes far behind
    for characters in range(1, 20):
        made = of_file(path, characters / 1_000_000)
        assert made.train + made.heldout == text[1 : characters + 1]


def test_what_is_no_plain_file_is_refused(tmp_path):
    """It may never end, or give its text only once."""
    for path, says in (("/dev/null", "it is not a plain file"), (tmp_path, "Is a directory"), ("x" * 300, "too long")):
        with pytest.raises(ConfigError, match=says):
            of_file(Path(path), 1.0)


@pytest.mark.parametrize(
    ("content", "says"), [(b"\xff\xfe", "byte 0 of it is not UTF-8"), (b"", "it is empty"), (b" \n", "it is empty")]
)
def test_a_file_that_will_not_do_is_refused(tmp_path, content, says):
    path = tmp_path / "bad.txt"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=f"corpus is .*bad.txt'; {says}"):
        of_file(path, 1.0)
    with pytest.raises(ConfigError, match="No such file"):
        of_file(tmp_path / "gone.txt", 1.0)
