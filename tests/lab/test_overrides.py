"""Overrides and configs: what is wrong is refused by name, in one sentence, whatever it is."""

import random
import string

import pytest

from semfocus import studies
from semfocus.cli import main
from semfocus.lab.overrides import changed, overridden, parse
from semfocus.studies.convergence import Convergence
from semfocus.training.protocol import RunConfig
from semfocus.training.strict import ConfigError


def arms():
    return Convergence().runs("smoke")


def test_values_have_types():
    assert parse("a.b=3") == (("a", "b"), 3)
    assert parse("a=1e-3") == (("a",), 1e-3)
    assert parse("a=true") == (("a",), True)
    assert parse("a=gelu") == (("a",), "gelu")
    assert parse('a="3"') == (("a",), "3")
    assert parse("a=1_000") == (("a",), 1000)
    assert parse("a=b=c") == (("a",), "b=c")
    assert parse("a=null") == (("a",), None)


def test_overrides_are_laid_over_every_arm():
    found = overridden(
        Convergence(), "smoke", arms(), ["model.width=16", "optimiser.name=adam", "task.length=9", "precision=tf32"]
    )
    assert {a.config.model.width for a in found} == {16}
    assert {a.config.optimiser.name for a in found} == {"adam"}
    assert {a.config.task.length for a in found} == {9}
    assert [a.label for a in found] == [a.label for a in arms()]


@pytest.mark.parametrize(
    "key", ["pattern", "pattern.k", "task.name", "seed", "model.attention_scale", "model", "task", "preset"]
)
def test_what_the_study_varies_is_refused(key):
    with pytest.raises(ConfigError, match="cannot be overridden"):
        overridden(Convergence(), "smoke", arms(), [f"{key}=1"])


def malformed(generator, count):
    """Overrides with one mistake each: unknown keys, wrong types, impossible values, broken syntax."""
    config = arms()[0].config.to_dict()
    known = [(section, field) for section in ("model", "optimiser", "data", "train") for field in config[section]]
    known = [pair for pair in known if pair not in (("model", "attention_scale"), ("data", "pad_multiple"))]
    texts = set()
    while len(texts) < count:
        section, field = generator.choice(known)
        kind = generator.randrange(7)
        if kind == 0:  # a typing error in the field
            spot = generator.randrange(len(field))
            field = field[:spot] + generator.choice(string.ascii_lowercase) + field[spot + 1 :] + "x"
            texts.add(f"{section}.{field}=1")
        elif kind == 1:  # ... in the section
            texts.add(f"{section}{generator.choice(string.ascii_lowercase)}.{field}=1")
        elif kind == 2:  # a wrong type
            texts.add(f"{section}.{field}={generator.choice(['[1]', '{}', '[[1, 2], 3]', '{a = 1}'])}")
        elif kind == 3:  # an impossible value
            texts.add(f"{section}.{field}={generator.choice(['-3', '-1e9', 'NaN', 'Infinity', '-Infinity'])}")
        elif kind == 4:  # a field of a field
            texts.add(f"{section}.{field}.{generator.choice(['x', 'deep.er'])}={generator.randrange(9)}")
        elif kind == 5:  # no assignment at all
            texts.add(
                generator.choice([section, f"{section}.{field}", f"={field}", f".{field}=1", f"{section}..{field}=2"])
            )
        else:  # noise
            noise = "".join(generator.choice(string.printable) for _ in range(generator.randrange(1, 12)))
            texts.add(f"{section}.{field}={noise!r}")
    return sorted(texts)


#: Mistakes that are none: the value happens to be legal for its field.
def is_legal(text):
    try:
        path, value = parse(text)
        changed(arms()[0].config, [(path, value)])
        return True
    except ConfigError:
        return False


def test_200_malformed_overrides_are_refused_by_name(tmp_path, capsys):
    generator = random.Random(20260101)
    refused = 0
    for text in malformed(generator, 260):
        if is_legal(text):
            continue
        status = main(["run", "convergence", "--size", "smoke", "--device", "cpu", "--out", str(tmp_path), text])
        error = capsys.readouterr().err
        assert status == 2, text
        assert "Traceback" not in error
        assert error.startswith("semfocus: ")
        assert error.count("\n") == 1, error
        # It names what was wrong: the key, some part of it, or the text itself.
        key = text.partition("=")[0]
        assert any(part in error for part in (key, text, *filter(None, key.split(".")))), (text, error)
        refused += 1
    assert refused >= 200
    assert not list(tmp_path.iterdir())  # nothing was begun


def complaint(data):
    """What is said of a config; None if it is a legal one."""
    try:
        RunConfig.from_dict(data)
    except ConfigError as error:
        return str(error)
    return None


def test_200_malformed_configs_are_refused_by_name(tmp_path, capsys):
    generator = random.Random(7)
    good = arms()[0].config.to_dict()
    refused = 0
    while refused < 200:
        data = {name: dict(value) if isinstance(value, dict) else value for name, value in good.items()}
        section = generator.choice(list(data))
        table = data[section]
        junk = generator.choice([None, [], {}, "x", -1, 1.5, True, "", [1], {"a": 1}, 1e308, -0.5])
        if isinstance(table, dict) and table and generator.random() < 0.8:
            field = generator.choice(list(table))
            if generator.random() < 0.4:
                table[field + generator.choice("abxyz")] = table.pop(field)
            else:
                table[field] = junk
        else:
            data[section] = junk
        sentence = complaint(data)
        if sentence is not None:
            assert "\n" not in sentence
            assert len(sentence) < 400
            refused += 1


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["run", "convergance"], ["'convergence'"]),
        (["run", "convergence", "--size", "quik"], ["size", "'quick'"]),
        (["run", "convergence", "model.widht=3"], ["model.widht", "'width'"]),
        (["run", "convergence", "model.width=tall"], ["model.width", "'tall'"]),
        (["run", "convergence", "train.epochs=0"], ["train.epochs"]),
        (["run", "convergence", 'train={"epochs": 3}'], ["train cannot be replaced", "train.epochs=3"]),
        (["run", "convergence", 'train={"keep_weights": true}'], ["override its fields: train.keep_weights=true"]),
        (["run", "convergence", "--on", "moon"], ["--on", "'moon'"]),
        (["run", "convergence", "--plugin", "none.py"], ["none.py"]),
        (["resume", "nowhere"], ["nowhere"]),
        (["status", "nowhere"], ["nowhere"]),
        (["report", "nowhere"], ["nowhere"]),
        (["pack", "nowhere", "x.zip"], ["nowhere"]),
        (["unpack", "none.zip", "x"], ["none.zip"]),
        (["show", "topk(5)"], ["'top_k'"]),
        (["show", "top_k(kk=5)"], ["'kk'"]),
        (["show", "top_k(0)"], ["k is 0"]),
        (["run", "convergence", "model.width=8", "model.width=16"], ["model.width", "twice"]),
        (["status", "x" * 5000], ["cannot read"]),
        (["show", "__import__('os').system('x')"], ["pattern"]),
    ],
)
def test_mistakes_on_the_command_line(words, named, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    error = capsys.readouterr().err
    assert all(name in error for name in named), error
    assert error.count("\n") == 1


def test_every_study_refuses_what_it_varies():
    for name in studies.names():
        study = studies.get(name)
        for key in study.varies:
            with pytest.raises(ConfigError, match="cannot be overridden"):
                overridden(study, "smoke", study.runs("smoke"), [f"{key}=1"])


BROKEN = """
import semfocus
from semfocus.lab.study import Size, Study, arm
from semfocus.patterns.full import Full

@semfocus.register
class Mine(Study):
    "Is it? Refuted by nothing."
    SIZES
    def runs(self, size):
        RUNS
    def claims(self, results):
        CLAIMS
"""
GOOD = {
    "SIZES": 'sizes = {"smoke": Size("s", seeds=2)}',
    "RUNS": 'return [arm("even_pairs", Full(), {})]',
    "CLAIMS": "return []",
}


@pytest.mark.parametrize(
    ("part", "text", "named"),
    [
        ("RUNS", 'return {}["x"]', "Mine.runs: KeyError: 'x' (FILE:11)"),
        ("RUNS", "return None", "Mine.runs gave None; it must give a list of Arms"),
        ("RUNS", "return []", "no runs"),
        ("RUNS", 'return [arm("even_pairs", Full(), {"train": {"epoch": 1}})]', "'train.epoch'"),
        (
            "SIZES",
            GOOD["SIZES"] + '\n    def foreseen(self, size):\n        return [arm("even_pairs", Full(), {})]',
            "two arms 'full' in panel 'even_pairs'",
        ),
        ("CLAIMS", "return 1 / 0", "Mine.claims: ZeroDivisionError: division by zero (FILE:13)"),
        ("CLAIMS", "return None", "Mine.claims gave None; it must give a list of Claims"),
        ("CLAIMS", 'return [results.arm("a", "b")]', "Mine.claims: KeyError: ('a', 'b') (FILE:13)"),
        ("SIZES", "pass", "sizes"),
        ("SIZES", 'sizes = {"smoke": 3}', "Mine.sizes['smoke'] is 3; it must be a Size"),
        ("SIZES", "def follow_up(self, size): return []", "Mine.follow_up must take (self, size, results)"),
        ("SIZES", "raise SystemExit(3)", "SystemExit"),
    ],
)
def test_mistakes_in_a_study_of_one_s_own(tmp_path, capsys, part, text, named):
    code = BROKEN
    for name, good in GOOD.items():
        code = code.replace(name, text if name == part else good)
    (tmp_path / "mine.py").write_text(code)
    words = ["run", "mine", "--size", "smoke", "--plugin", str(tmp_path / "mine.py"), "--out", str(tmp_path / "lab")]
    assert main(words) == 2
    error = capsys.readouterr().err
    assert named.replace("FILE", str(tmp_path / "mine.py")) in error
    assert error.count("\n") == 1
    assert not (tmp_path / "lab").exists()
