"""Where a study's runs live: ``DIR/<study>/runs/<hash>/``, with a manifest for every question asked of them.

    DIR/<study>/runs/<hash>/          one run: config, environment, metrics, summary, weights
    DIR/<study>/manifests/<name>.json which runs belong together: arms, seeds, overrides, and the command that asks
    DIR/<study>/pages/<name>.html     the answer; beside it, in a folder of that name, its figures as SVG and CSV

``<name>`` is the size, with a short hash behind it where seeds or overrides are not the study's own. Several manifests
share runs, so a larger study never repeats what a smaller one did, and no page mixes sizes.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ..training.files import StorageError, explained, names_in, write_json
from ..training.locks import locked
from ..training.run_directory import RunDirectory
from ..training.strict import ConfigError
from .configs import Config, config_of
from .study import Arm

#: What may become part of a file name.
SAFE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")


@dataclass(frozen=True)
class Question:
    """A study as it was asked: its size, and what was changed."""

    study: str
    size: str
    seeds: int
    overrides: tuple[str, ...] = ()
    changed: bool = False  # seeds or overrides are not the study's own
    plugins: tuple[str, ...] = ()
    given_name: str = field(default="", compare=False)  # as a manifest has it: a plugin's file may be gone or changed

    @property
    def name(self) -> str:
        """The stem of its manifest and page."""
        if self.given_name or not self.changed:
            return self.given_name or self.size
        text = json.dumps([self.seeds, sorted(self.overrides), [_fingerprint(plugin) for plugin in self.plugins]])
        return f"{self.size}-{hashlib.sha256(text.encode()).hexdigest()[:6]}"

    @property
    def command(self) -> str:
        """What to type to ask it again, but for the folder."""
        words = ["semfocus", "run", self.study, "--size", self.size]
        if self.changed:
            words += ["--seeds", str(self.seeds), *self.overrides]
        for plugin in self.plugins:
            words += ["--plugin", plugin]
        return shlex.join(words)


@dataclass(frozen=True)
class Manifest:
    """A question with its arms and the names of their runs."""

    question: Question
    arms: tuple[Arm, ...]
    created: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    complete: bool = False  # runs, follow-ups and measurements are all there
    #: Names of runs as they were written, by panel, label and seed: pages outlive changes of the config's fields.
    recorded: Mapping[tuple[str, str, int], str] = field(default_factory=dict, compare=False)
    #: By panel and label, when an arm was planned; those left out when the question was.
    planned: Mapping[tuple[str, str], str] = field(default_factory=dict, compare=False)

    def configs(self) -> list[Config]:
        """Every run, arm by arm, seed by seed."""
        return [arm.with_seed(seed) for arm in self.arms for seed in self.seeds_of(arm)]

    def seeds_of(self, arm: Arm) -> tuple[int, ...]:
        return tuple(range(self.question.seeds)) if arm.seeds is None else arm.seeds

    def run_of(self, arm: Arm, seed: int) -> str:
        """The name of a run's folder."""
        return self.recorded.get((*arm.key, seed)) or arm.with_seed(seed).hash

    def to_dict(self) -> dict[str, Any]:
        question = self.question
        arms: list[dict[str, Any]] = [
            {
                "panel": arm.panel,
                "label": arm.label,
                "own_seeds": arm.seeds is not None,
                "runs": {str(seed): self.run_of(arm, seed) for seed in self.seeds_of(arm)},
                "config": arm.config.to_dict(),
                "planned": self.planned.get(arm.key, self.created),
            }
            for arm in self.arms
        ]
        return {
            "name": question.name,
            "study": question.study,
            "size": question.size,
            "seeds": question.seeds,
            "overrides": list(question.overrides),
            "changed": question.changed,
            "plugins": list(question.plugins),
            "command": question.command,
            "created": self.created,
            "complete": self.complete,
            "arms": [_without_date(arm, self.created) for arm in arms],
        }

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> Manifest:
        question = Question(
            study=data["study"],
            size=data["size"],
            seeds=data["seeds"],
            overrides=tuple(data["overrides"]),
            changed=data["changed"],
            plugins=tuple(data["plugins"]),
            given_name=safe(data["name"]) if data.get("name") else "",
        )
        arms: list[Arm] = []
        recorded: dict[tuple[str, str, int], str] = {}
        planned: dict[tuple[str, str], str] = {}
        for arm in data["arms"]:
            seeds = tuple(int(seed) for seed in arm["runs"]) if arm["own_seeds"] else None
            arms.append(Arm(arm["panel"], arm["label"], config_of(arm["config"]), seeds))
            recorded |= {(arm["panel"], arm["label"], int(seed)): safe(run) for seed, run in arm["runs"].items()}
            planned |= {(arm["panel"], arm["label"]): str(arm["planned"])} if "planned" in arm else {}
        if type(question.seeds) is not int or not isinstance(data["created"], str):
            raise TypeError(f"seeds is {question.seeds!r}, created {data['created']!r}")
        return Manifest(question, tuple(arms), data["created"], bool(data.get("complete")), recorded, planned)


class Store:
    """One study's folder."""

    def __init__(self, root: Path, study: str) -> None:
        self.path = root / safe(study)

    def run(self, run: str) -> RunDirectory:
        return RunDirectory(self.path, run)

    def manifest_path(self, name: str) -> Path:
        return self.path / "manifests" / f"{safe(name)}.json"

    def page_path(self, name: str) -> Path:
        return self.path / "pages" / f"{safe(name)}.html"

    def write(
        self,
        manifest: Manifest,
        more: Sequence[Arm] = (),
        complete: Callable[[Manifest], bool] = lambda written: False,
    ) -> Manifest:
        """Writes a manifest with ``more`` arms, and those that other processes have added since it was read.

        ``complete`` is asked of what is written.
        """
        with locked(self.path):
            there = self._with_news(manifest)
            known = {arm.key for arm in there.arms}
            written = replace(there, arms=(*there.arms, *(a for a in more if a.key not in known)))
            written = replace(written, complete=complete(written))
            write_json(self.manifest_path(manifest.question.name), written.to_dict())
        return written

    def _with_news(self, manifest: Manifest) -> Manifest:
        """Arms are only ever added at the end; a manifest that begins otherwise is of another plan, and replaced."""
        try:
            there = self.manifest(manifest.question.name)
        except StorageError:  # none yet, or damaged
            return manifest
        if there.arms[: len(manifest.arms)] != manifest.arms:
            return manifest
        return replace(manifest, arms=there.arms, planned=there.planned)

    def add_manifest(self, theirs: Mapping[str, Any]) -> None:
        """Joins another lab's manifest with ours (``merged_manifest``); one of ours that is damaged is replaced."""
        path = self.manifest_path(str(theirs["name"]))
        ours = None
        try:
            ours = json.loads(path.read_bytes()) if path.exists() else None
            merged = dict(theirs) if ours is None else merged_manifest(theirs, ours)
        except (ValueError, KeyError, TypeError, AttributeError):
            merged = dict(theirs)
        # Names of plugins may not be known here.
        with suppress(ConfigError) if merged.get("plugins") else nullcontext():
            Manifest.from_dict(merged)
        if merged != ours:
            write_json(path, merged)

    def names(self) -> list[str]:
        """Of all manifests."""
        files = names_in(self.path / "manifests")
        return sorted(name.removesuffix(".json") for name in files if name.endswith(".json"))

    def manifest(self, name: str) -> Manifest:
        path = self.manifest_path(name)
        try:
            return Manifest.from_dict(json.loads(path.read_text(encoding="utf-8")))
        except OSError as error:
            raise StorageError(f"cannot read {path}: {error.strerror or error}") from None
        except ConfigError as error:
            raise StorageError(f"{path}: {error}{_plugins_in(path)}") from None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise StorageError(f"{path} is damaged ({type(error).__name__}: {error}); run the study again") from None


#: What else of a manifest belongs to its plan, beside its arms.
PLANNED = ("seeds", "overrides", "changed", "plugins", "command")


def merged_manifest(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """The second manifest, with the arms that only the first one has; an arm of both has the runs of both.

    Where they were planned otherwise, the plan that was made later stands, whichever comes first here. An arm has a
    date of its own where it was planned at another time than the whole.
    """
    before = {(arm["panel"], arm["label"]): arm for arm in map(_dated(old), old["arms"])}
    dates = _last_plan(old), _last_plan(new)
    new_is_later = dates[1] >= dates[0]
    later = new if new_is_later else old
    agree = all(old.get(name) == new.get(name) for name in PLANNED)
    arms = []
    for arm in map(_dated(new), new["arms"]):
        known = before.pop((arm["panel"], arm["label"]), arm)
        same = known["config"] == arm["config"]
        own_is_later = arm["planned"] >= known["planned"]
        agree &= same
        both = {**arm, "runs": {**known["runs"], **arm["runs"]}, "planned": max(arm["planned"], known["planned"])}
        arms.append(both if same else arm if own_is_later else known)
    complete = bool((new if agree else later).get("complete"))
    complete |= agree and bool(old.get("complete")) and len(arms) == len(old["arms"])
    lasting = {(arm["panel"], arm["label"]): arm["config"] for arm in later["arms"]}
    mixed = not agree and any(lasting.get((arm["panel"], arm["label"])) != arm["config"] for arm in arms)
    created = min(str(old["created"]), str(new["created"])) if agree else max(dates)
    return {
        **new,
        **{name: later[name] for name in PLANNED if name in later},
        "created": created,
        "complete": complete and not before and not mixed,
        "arms": [_without_date(arm, created) for arm in (*arms, *before.values())],
    }


def _last_plan(manifest: Mapping[str, Any]) -> str:
    """When the latest of its arms was planned: the manifest's own date is that of the first plan that says the same."""
    return max(str(manifest["created"]), *(str(arm.get("planned", "")) for arm in manifest["arms"]), "")


def _dated(manifest: Mapping[str, Any]) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """Arms with the date of their plan, which is the manifest's where they have none of their own."""
    return lambda arm: {**arm, "planned": str(arm.get("planned", manifest["created"]))}


def _without_date(arm: Mapping[str, Any], created: str) -> dict[str, Any]:
    """An arm as it is written: without the date that its manifest has."""
    return {name: value for name, value in arm.items() if name != "planned" or value != created}


def _plugins_in(path: Path) -> str:
    """What else to say where a manifest names something unknown: the plugins that it was written with."""
    try:
        plugins = json.loads(path.read_text(encoding="utf-8"))["plugins"]
        return (
            f"; it was run with {shlex.join(word for file in plugins for word in ('--plugin', file))}"
            if plugins
            else ""
        )
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def _fingerprint(plugin: str) -> str:
    """Another file of the same name is another plugin."""
    try:
        return hashlib.sha256(Path(plugin).read_bytes()).hexdigest()
    except OSError:
        return plugin


def safe(name: str) -> str:
    """A name that may become a file name; anything else is refused."""
    if not SAFE.fullmatch(name):
        raise StorageError(f"{name!r} cannot be part of a file name")
    return name


def is_store(directory: Path) -> bool:
    """Is this the folder of one study? Else studies may be under it."""
    return (directory / "manifests").is_dir()


def stores(directory: Path) -> list[Store]:
    """The studies under a folder, or the one that the folder is."""
    found: Sequence[Path]
    with explained(directory, "read"):
        if not directory.is_dir():
            raise StorageError(f"{directory}: no such folder")
    if is_store(directory):
        found = [directory]
    else:
        found = sorted(path.parent for path in directory.glob("*/manifests") if path.is_dir())
    if not found:
        for path in directory.iterdir():  # glob passes over what it may not read
            if path.is_dir() and not os.access(path, os.R_OK | os.X_OK):
                raise StorageError(f"cannot read {path}: Permission denied")
        raise StorageError(f"{directory} holds no study; `semfocus run STUDY --out {directory}` would put one there")
    return [Store(path.resolve().parent, path.resolve().name) for path in found]
