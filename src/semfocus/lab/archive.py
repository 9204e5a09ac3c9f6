"""A store as archives that travel: ordinary zip files of limited size, each of whole runs.

``pack`` writes x.zip and, where one is not enough, x.part2.zip and so on; ``unpack`` reads them all. Only runs that
are over travel, and what is in the store already stays as it is. Nothing in an archive is executed or unpickled, and
only names that a store has are written.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ..training.files import StorageError, explained, finite, names_in, write_atomic, write_json
from ..training.locks import in_training, locked
from ..training.run_directory import RUN_NAME, SNAPSHOT, SNAPSHOTS, WEIGHTS, RunDirectory
from .results import MEASURED
from .store import SAFE, Store, is_store, stores

#: Bytes of an archive.
LARGEST = 15_000_000
#: A file of a store that claims to be larger than this is refused.
LARGEST_FILE = 500_000_000
#: More bytes than a zip file spends on an entry beside its name (twice) and content.
OVERHEAD = 200
PACKED = "packed.json"
RUN_FILES = ("config.json", "environment.json", "metrics.jsonl", "probe.jsonl", "summary.json", MEASURED, WEIGHTS)
NAME = SAFE.pattern
ALLOWED = re.compile(
    rf"(?P<study>{NAME})/(?:runs/(?P<run>{RUN_NAME.pattern})/(?P<file>(?:{SNAPSHOTS}/)?{NAME})"
    rf"|manifests/{NAME}\.json|clock\.json)"
)
#: What became of a run of an archive.
Fate = Literal["added", "there", "left"]


@dataclass(frozen=True)
class Packed:
    """What was written or read."""

    files: tuple[Path, ...]
    runs: int
    skipped: int  # not over, or there already
    left: int = 0  # of what was read: in training here, or only parts of runs that are not here


def pack(directory: Path, file: Path, *, weights: bool = True, only_new: bool = False) -> Packed:
    """Writes all finished runs under a folder; with ``only_new`` the runs and files that no earlier ``pack`` wrote."""
    if only_new and file.exists():
        raise StorageError(
            f"{file} exists, and what it holds would be in no archive; choose another name for what is new"
        )
    writer = _Writer(file)
    try:
        counts = [_pack_store(writer, store, weights, only_new) for store in stores(directory)]
        return Packed(writer.close(), sum(runs for runs, _ in counts), sum(skipped for _, skipped in counts))
    finally:
        writer.clean_up()


def _pack_store(writer: _Writer, store: Store, weights: bool, only_new: bool) -> tuple[int, int]:
    """How many runs were written, and how many are not over."""
    runs = skipped = 0
    known = _packed(store)
    new: set[str] = set()
    for folder in (store.path / "runs" / name for name in names_in(store.path / "runs")):
        if not RUN_NAME.fullmatch(folder.name):
            continue
        if not (folder / "summary.json").is_file():
            skipped += 1
            continue
        store.run(folder.name).summary()  # a damaged one would keep whole ones out wherever it arrives
        own = f"{folder.name}:{_training(folder)}"
        marks = {f"{own}/{name}:{_size(folder / name)}": name for name in _names(store, folder, weights)}
        chosen = [name for mark, name in marks.items() if not (only_new and mark in known)]
        if chosen:
            chosen = list(dict.fromkeys(["summary.json", *chosen]))  # by which another training is told from this one
            writer.add([(f"{store.path.name}/runs/{folder.name}/{name}", folder / name) for name in chosen])
            runs += 1
        new |= marks.keys()
    rest = [*(store.manifest_path(name) for name in store.names()), store.path / "clock.json"]
    writer.add([(f"{store.path.name}/{path.relative_to(store.path)}", path) for path in rest if path.is_file()])
    writer.after.append((store, sorted(known | new)))
    return runs, skipped


def _content(path: Path) -> bytes:
    with explained(path, "read"):
        return path.read_bytes()


def _training(folder: Path) -> str:
    """By which a run that was trained again is told from the first one, though its files may be as large."""
    known = [_content(path) for name in ("environment.json", "summary.json") if (path := folder / name).is_file()]
    return f"{zlib.crc32(b''.join(known)):08x}"


def _size(path: Path) -> int:
    with explained(path, "read"):
        return path.stat().st_size


def _names(store: Store, folder: Path, weights: bool) -> list[str]:
    """The files of a run that travel; snapshots are weights."""
    plain = [name for name in RUN_FILES if (folder / name).is_file() and (weights or name != WEIGHTS)]
    return plain + (list(store.run(folder.name).snapshots().values()) if weights else [])


def _known(name: str) -> bool:
    return name in RUN_FILES or SNAPSHOT.fullmatch(name) is not None


def _packed(store: Store) -> set[str]:
    try:
        return set(json.loads((store.path / PACKED).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return set()


class _Writer:
    """Zip files, a new one whenever the next run would make the last too large. They appear only once all are whole."""

    def __init__(self, file: Path) -> None:
        if file.suffix != ".zip":
            raise StorageError(f"{file} must end in .zip")
        self.file = file
        self.after: list[tuple[Store, list[str]]] = []  # to be remembered as packed, at the end
        self.parts: list[tuple[Path, zipfile.ZipFile]] = []
        self.size = 0  # of the last part, at most

    def add(self, entries: Sequence[tuple[str, Path]]) -> None:
        """One run, whole."""
        data = [(name, _content(path)) for name, path in entries]
        with explained(self.file, "write"):
            size = sum(len(zlib.compress(content, 9)) + 2 * len(name) + OVERHEAD for name, content in data)
            if size > LARGEST:
                raise StorageError(f"{entries[0][0]} alone is larger than {LARGEST:,} bytes; pack without weights")
            if data and (not self.parts or self.size + size > LARGEST):
                self._new()
            for name, content in data:
                self.parts[-1][1].writestr(name, content)
            self.size += size

    def _new(self) -> None:
        self.file.parent.mkdir(parents=True, exist_ok=True)
        path = self.file.with_name(f".{self.file.name}.{os.getpid()}.{len(self.parts) + 1}.tmp")
        self.parts.append((path, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9)))
        self.size = OVERHEAD

    def close(self) -> tuple[Path, ...]:
        if not self.parts:
            raise StorageError("there is nothing to pack")
        names = [part_name(self.file, number) for number in range(1, len(self.parts) + 1)]
        with explained(self.file, "write"):
            for (part, archive), name in zip(self.parts, names, strict=True):
                archive.close()
                os.replace(part, name)
            number = len(names) + 1  # parts of an earlier, larger pack must not be taken for this one's
            while (stale := part_name(self.file, number)).is_file():
                stale.unlink()
                number += 1
        for store, runs in self.after:
            write_json(store.path / PACKED, runs)
        return tuple(names)

    def clean_up(self) -> None:
        """After a failure nothing is left behind."""
        for path, archive in self.parts:
            with suppress(OSError):  # it writes its table of contents, for which a full disk has no room
                archive.close()
            path.unlink(missing_ok=True)


def part_name(file: Path, number: int) -> Path:
    """``x.zip``, ``x.part2.zip``, ``x.part3.zip``."""
    return file if number == 1 else file.with_name(f"{file.stem}.part{number}{file.suffix}")


def parts_of(file: Path) -> Iterator[Path]:
    """An archive and the parts that follow it."""
    number = 1
    while (path := part_name(file, number)).is_file():
        yield path
        number += 1
    if number == 1:
        raise StorageError(f"{file}: no such file")


def unpack(file: Path, directory: Path) -> Packed:
    """Adds an archive's runs and manifests to the stores under a folder. What is finished there is left as it is.

    The folder may be a store itself, as for ``pack``: then the archive must hold that study alone.
    """
    files = tuple(parts_of(file))
    study = directory.resolve().name if is_store(directory) else None
    root = directory if study is None else directory.resolve().parent
    done: Counter[Fate] = Counter()
    for path in files:
        try:
            with zipfile.ZipFile(path) as archive:
                done += _unpack_one(archive, path, root, study)
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:  # encrypted, too
            raise StorageError(f"{path} is damaged, or not one of ours ({error})") from None
    return Packed(files, done["added"], done["there"], done["left"])


def _unpack_one(archive: zipfile.ZipFile, path: Path, directory: Path, study: str | None) -> Counter[Fate]:
    runs: dict[tuple[str, str], dict[str, zipfile.ZipInfo]] = {}
    rest: list[zipfile.ZipInfo] = []
    for item in archive.infolist():
        match = ALLOWED.fullmatch(item.filename)
        if match is None or (match["file"] and not _known(match["file"])) or item.file_size > LARGEST_FILE:
            raise StorageError(
                f"{path} holds {item.filename!r}, which is no file of a store; nothing of it was written"
            )
        if study not in (None, match["study"]):
            raise StorageError(
                f"{path} holds the study {match['study']!r}, and {directory / study} is another one; nothing of it was "
                f"written (unpacked into {directory} it stands beside that)"
            )
        if match["run"]:
            runs.setdefault((match["study"], match["run"]), {})[match["file"]] = item
        else:
            rest.append(item)
    if (damaged := archive.testzip()) is not None:
        raise StorageError(f"{path} is damaged ({damaged}); nothing of it was written")
    done: Counter[Fate] = Counter()
    for (name, run), items in runs.items():
        done[_add_run(archive, items, directory / name, run)] += 1
    for item in rest:
        target = directory / item.filename
        with locked(directory / Path(item.filename).parts[0]):
            _add_table(target, archive.read(item))
    return done


def _add_run(archive: zipfile.ZipFile, items: dict[str, zipfile.ZipInfo], store: Path, run: str) -> Fate:
    """A whole run or none of it, written beside its place and then renamed; to one that is there, what it lacks.

    A run that is being trained here is left to its trainer.
    """
    target = store / "runs" / run
    if "summary.json" not in items:
        return "left"
    with locked(store), explained(target, "write"):
        here = RunDirectory(store, run)
        if _is_over(here):
            content = {name: archive.read(item) for name, item in items.items()}
            if _table(content["summary.json"]) == here.summary():
                _complete(target, content)
            return "there"
        if "config.json" not in items or run in in_training(store):  # what was measured on a run is no run
            return "left"
        arriving = store / f".arriving-{run}-{os.getpid()}"
        shutil.rmtree(arriving, ignore_errors=True)
        for name, item in items.items():
            write_atomic(arriving / name, archive.read(item))
        shutil.rmtree(target, ignore_errors=True)  # begun here, finished elsewhere
        target.parent.mkdir(exist_ok=True)
        os.replace(arriving, target)
    return "added"


def _complete(target: Path, content: dict[str, bytes]) -> None:
    """Adds the files that a run lacks, all of one training; and what was measured on it since."""
    for name, data in content.items():
        path = target / name
        if not path.exists():
            write_atomic(path, data)
        elif name == MEASURED and not (theirs := _table(data)).keys() <= (ours := _table(path.read_bytes())).keys():
            write_json(path, finite({**theirs, **ours}))


def _table(data: bytes) -> dict[str, Any]:
    """Nothing where it is damaged."""
    try:
        found = json.loads(data)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _is_over(run: RunDirectory) -> bool:
    """A run whose end cannot be read is not."""
    try:
        return run.is_finished() and bool(run.summary())
    except StorageError:
        return False


def _add_table(target: Path, data: bytes) -> None:
    """A manifest or the clock: new ones are written; to those that are there, what they lack is added."""
    try:
        theirs = json.loads(data)
        if target.name != "clock.json":
            if theirs["name"] == target.stem:
                Store(target.parents[2], target.parents[1].name).add_manifest(theirs)
            return
        ours = json.loads(target.read_bytes()) if target.exists() else {}
        devices = theirs.keys() | ours.keys()
        merged = {device: {**theirs.get(device, {}), **ours.get(device, {})} for device in sorted(devices)}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return  # not what it should be: ours stays
    if merged != ours:
        write_json(target, finite(merged))
