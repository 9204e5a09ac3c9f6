"""Run configs: presets, round trips, and every mistake named."""

import copy
import dataclasses
import json
import random
import tomllib

import pytest

from semfocus import Banded, Full, TopK, tasks
from semfocus.training import ConfigError, RunConfig, paper
from semfocus.training.protocol import RECIPES

MINIMAL = {"task": {"name": "even_pairs"}, "pattern": {"name": "top_k", "k": 5}}


def test_the_paper_s_values():
    run = paper("even_pairs", TopK(9), seed=3)
    assert (run.task.length, run.length) == (40, 45)  # padded to a multiple of k
    assert (run.optimiser.name, run.optimiser.learning_rate, run.optimiser.decay, run.optimiser.clip) == (
        "sgd",
        0.1,
        0.9995,
        0.5,
    )
    assert (run.train.epochs, run.train.batch, run.data.train, run.data.heldout) == (100, 25, 5000, 2000)
    assert (run.model.width, run.model.mlp_width, run.model.heads, run.model.blocks, run.model.dropout) == (
        64,
        64,
        1,
        5,
        0.01,
    )
    assert (run.model.mask_padding, run.model.pool_padding, run.data_seed) == (False, True, 3)
    listops = paper("listops", Banded(9, global_tokens=1), seed=3)
    assert (listops.model.blocks, listops.optimiser.learning_rate, listops.optimiser.decay) == (10, 1.0, 0.99)
    assert (listops.data_seed, listops.length) == (0, 603)  # one data set for all seeds
    assert {name: recipe.epochs for name, recipe in RECIPES.items()} == {
        "listops": 200,
        "even_pairs": 100,
        "stack_manipulation": 200,
        "missing_duplicate_string": 250,
        "modular_arithmetic_brackets": 600,
        "solve_equation": 600,
        "cycle_navigation": 750,
        "parity_check": 1000,
    }


def test_outside_the_preset_padding_is_masked():
    run = RunConfig.from_dict(MINIMAL)
    assert (run.model.mask_padding, run.model.pool_padding, run.data.pad_multiple) == (True, False, 1)


@pytest.mark.parametrize("task", tasks.names())
def test_every_task_has_a_config_that_survives_a_round_trip(task):
    for pattern in (Full(), TopK(5, sinks=1), Banded(5, global_tokens=1)):
        run = paper(task, pattern, seed=2, model={"read_out": "tape"})
        again = RunConfig.from_dict(json.loads(json.dumps(run.to_dict())))
        assert again == run
        assert again.hash == run.hash
        assert run.model_config().outputs == run.task.make().output_length(run.task.length)


def test_the_hash_names_the_run():
    run = RunConfig.from_dict(MINIMAL)
    assert run.hash == RunConfig.from_dict(copy.deepcopy(MINIMAL)).hash
    assert len({run.hash, *(dataclasses.replace(run, seed=seed).hash for seed in range(1, 5))}) == 5
    assert dataclasses.replace(run, pattern=TopK(6)).hash != run.hash


def test_options_written_out_are_the_same_run():
    short = RunConfig.from_dict({"task": {"name": "modular_arithmetic_brackets"}})
    long = RunConfig.from_dict({"task": {"name": "modular_arithmetic_brackets", "options": {"multiplication": True}}})
    assert short == long
    assert short.hash == long.hash


def test_files(tmp_path):
    toml = 'seed = 4\npreset = "paper"\n[task]\nname = "parity_check"\n[pattern]\nname = "banded"\nwidth = 5\n'
    (tmp_path / "run.toml").write_text(toml)
    (tmp_path / "run.json").write_text(json.dumps(tomllib.loads(toml)))
    assert RunConfig.load(tmp_path / "run.toml") == RunConfig.load(tmp_path / "run.json")
    assert RunConfig.load(tmp_path / "run.toml") == paper("parity_check", Banded(5), seed=4)
    (tmp_path / "bad.toml").write_text("task = [")
    (tmp_path / "bad.json").write_text("[1, 2")
    (tmp_path / "latin.toml").write_bytes(b"\xff\xfe")
    for name in ("bad.toml", "bad.json", "latin.toml", "missing.toml"):
        with pytest.raises(ConfigError, match=name):
            RunConfig.load(tmp_path / name)


BAD = [
    ({"task": {"name": "evn_pairs"}}, ["task.name", "'evn_pairs'", "'even_pairs'"]),
    ({"task": {}}, ["task.name"]),
    ({}, ["task.name"]),
    ({"task": {"name": "even_pairs", "lenght": 3}}, ["task.lenght", "'length'"]),
    ({"task": {"name": "even_pairs", "length": 0}}, ["task.length is 0", "1"]),
    ({"task": {"name": "listops", "options": {"max_depht": 3}}}, ["task.options", "'max_depht'", "'max_depth'"]),
    ({"task": {"name": "even_pairs"}, "model": {"width": "64"}}, ["model.width is '64'", "whole number"]),
    ({"task": {"name": "even_pairs"}, "model": {"width": True}}, ["model.width is True"]),
    ({"task": {"name": "even_pairs"}, "model": {"width": 2.0}}, ["model.width is 2.0"]),
    ({"task": {"name": "even_pairs"}, "model": {"activation": "rel"}}, ["model.activation", "'relu'"]),
    ({"task": {"name": "even_pairs"}, "model": {"mask_padding": 1}}, ["model.mask_padding is 1", "true or false"]),
    ({"task": {"name": "even_pairs"}, "model": 3}, ["model is 3"]),
    ({"task": {"name": "even_pairs"}, "optimizer": {}}, ["'optimizer'", "'optimiser'"]),
    ({"task": {"name": "even_pairs"}, "optimiser": {"learning_rate": 0}}, ["optimiser.learning_rate is 0.0"]),
    (
        {"task": {"name": "even_pairs"}, "optimiser": {"learning_rate": float("nan")}},
        ["optimiser.learning_rate is nan"],
    ),
    ({"task": {"name": "even_pairs"}, "optimiser": {"clip": float("inf")}}, ["optimiser.clip is inf", "finite"]),
    ({"task": {"name": "even_pairs"}, "optimiser": {"decay": 1.5}}, ["optimiser.decay is 1.5"]),
    ({"task": {"name": "even_pairs"}, "optimiser": {"name": "sdg"}}, ["optimiser.name", "'sgd'"]),
    ({"task": {"name": "even_pairs"}, "pattern": {"name": "topk", "k": 5}}, ["'topk'", "'top_k'"]),
    ({"task": {"name": "even_pairs"}, "pattern": {"name": "top_k", "k": 0}}, ["pattern", "k is 0"]),
    ({"task": {"name": "even_pairs"}, "pattern": {"name": "top_k"}}, ["pattern", "needs k"]),
    ({"task": {"name": "even_pairs"}, "pattern": "top_k"}, ["pattern is 'top_k'"]),
    ({"task": {"name": "even_pairs"}, "train": {"epochs": 2.5}}, ["train.epochs is 2.5"]),
    ({"task": {"name": "even_pairs"}, "train": {"epochs": -1}}, ["train.epochs is -1"]),
    ({"task": {"name": "even_pairs"}, "data": {"train": 10}}, ["train.batch is 25", "10"]),
    ({"task": {"name": "even_pairs"}, "data": {"seed": "x"}}, ["data.seed is 'x'"]),
    ({"task": {"name": "even_pairs"}, "data": {"train": 60, "twin": 61}}, ["data.twin is 61", "train, 60"]),
    ({"task": {"name": "even_pairs"}, "data": {"twin": -1}}, ["data.twin is -1"]),
    ({"task": {"name": "even_pairs"}, "train": {"keep_weights_every": -1}}, ["train.keep_weights_every is -1"]),
    ({"task": {"name": "even_pairs"}, "seed": -1}, ["seed is -1"]),
    ({"task": {"name": "even_pairs"}, "precision": "fp8"}, ["precision", "'fp8'"]),
    ({"task": {"name": "even_pairs"}, "preset": "papre"}, ["preset", "'paper'"]),
    (5, ["5"]),
]


@pytest.mark.parametrize(("data", "words"), BAD, ids=range(len(BAD)))
def test_mistakes_are_named(data, words):
    with pytest.raises(ConfigError) as caught:
        RunConfig.from_dict(data)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_random_damage_is_refused_by_name():
    """Misspell a key or spoil a value anywhere in a full config: always a ConfigError that names the place."""
    rng = random.Random(0)
    full = paper("even_pairs", TopK(5)).to_dict()
    for _ in range(200):
        data = copy.deepcopy(full)
        section = rng.choice([name for name, value in data.items() if isinstance(value, dict)])
        key = rng.choice([name for name in data[section] if name != "options"])
        if rng.random() < 0.5:
            damaged = key + rng.choice("xyz_")
            data[section][damaged] = data[section].pop(key)
        else:
            damaged = key
            data[section][key] = rng.choice([object(), [], {}, -7.5, "nonsense"])
        with pytest.raises(ConfigError) as caught:
            RunConfig.from_dict(data)
        assert section in str(caught.value) or key in str(caught.value), (section, key, str(caught.value))
