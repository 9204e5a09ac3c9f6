"""Text for training and validation: a user's own file, or the Python sources that are on every machine.

Nothing is downloaded. A corpus is known by the SHA-256 hash of its two texts, which every result records: the sources
differ from machine to machine.
"""

from __future__ import annotations

import codecs
import hashlib
import os
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

from ..training.strict import ConfigError

#: Share of the text that is held out for validation.
HELDOUT = 0.1
#: No package gives more than this share of the text: some are as large as all others together.
PACKAGE_SHARE = 0.15
#: Copies of other packages, which would put one package on both sides of the split.
COPIES = {"_vendor", "_vendored", "vendor", "vendored", "site-packages", "dist-packages", "__pycache__"}
MEGABYTE = 1_000_000
#: Bytes of a character in UTF-8, at most.
LONGEST = 4
#: Characters of a hash that are enough for a person.
SHOWN = 12


@dataclass(frozen=True)
class Corpus:
    """Two texts that have no package in common."""

    train: str
    heldout: str
    source: str  # where it is from, in words

    @cached_property
    def sha256(self) -> str:
        """Of both texts and of where one ends."""
        parts = [text.encode() for text in (self.train, self.heldout)]
        return hashlib.sha256(b"%d\n" % len(parts[0]) + parts[0] + parts[1]).hexdigest()


def refuse_another(field: str, planned: str, found: str) -> None:
    """A run has the text it was planned with, known by its hash, or none at all; empty: not planned yet."""
    if planned not in ("", found):
        named = planned if len(planned) <= SHOWN else f"{planned[:SHOWN]}..."
        raise ConfigError(
            f"{field} is {named}; the text is another one now ({found[:SHOWN]}...): bring the old one back, or run the "
            "study into another folder (a hash that was given by hand may be left out)"
        )


@lru_cache(maxsize=4)
def load(corpus: str, megabytes: float) -> Corpus:
    """The corpus in a file (its first megabytes), or with an empty name the Python sources of this machine."""
    return of_file(Path(corpus), megabytes) if corpus else of_packages(installed(), megabytes)


def read_text(path: Path, field: str, characters: int | None = None) -> str:
    """A UTF-8 file that is not empty, or its first characters; ``field`` is what the user calls it."""
    wanted = None if characters is None else LONGEST * (characters + 1)  # one more: a byte order mark
    try:
        if path.exists() and not (path.is_file() or path.is_dir()):  # it may never end, or be read only once
            raise ConfigError(f"{field} is {str(path)!r}; it is not a plain file, write the text into one")
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size  # read(n) takes n bytes of memory, however short the file
            data = file.read(wanted if wanted is None else min(wanted, size))
    except OSError as error:
        raise ConfigError(f"{field} is {str(path)!r}; it cannot be read: {error.strerror or error}") from None
    try:
        decoder = codecs.getincrementaldecoder("utf-8-sig")()
        text = decoder.decode(data, final=len(data) != wanted)
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{field} is {str(path)!r}; byte {error.start} of it is not UTF-8 (convert it with iconv -t UTF-8)"
        ) from None
    if not text.strip():
        raise ConfigError(f"{field} is {str(path)!r}; it is empty, give a file with text in it")
    return text[:characters]


def of_file(path: Path, megabytes: float) -> Corpus:
    """A file's text; its end, from a line's beginning on, is held out.

    Where lines are so long that less than half of what is wanted would be left, it is cut anywhere.
    """
    text = read_text(path, "corpus", round(megabytes * MEGABYTE))
    wanted = round((1 - HELDOUT) * len(text))
    cut = text.find("\n", wanted) + 1
    if not cut or len(text) - cut < (len(text) - wanted) / 2:
        cut = wanted
    return Corpus(text[:cut], text[cut:], f"the file {path.name}")


def installed() -> dict[str, list[Path]]:
    """Every Python file of the standard library and of the installed packages, by top-level name."""
    paths = sysconfig.get_paths()
    found: dict[str, list[Path]] = {}
    for root in dict.fromkeys(Path(paths[key]) for key in ("stdlib", "purelib", "platlib")):
        for top in sorted(root.iterdir()) if root.is_dir() else ():
            if top.name not in COPIES and (top.is_dir() or top.suffix == ".py"):
                found.setdefault(top.stem, []).append(top)
    return found


def of_packages(packages: dict[str, list[Path]], megabytes: float) -> Corpus:
    """About so many megabytes of sources, equal files once, every package wholly on one side of the split.

    Packages come in the order of their names' hashes, so neither side is all of one kind.
    """
    limit = round(megabytes * MEGABYTE)
    seen: set[bytes] = set()
    parts: dict[str, str] = {}
    total = 0
    for name in sorted(packages, key=lambda name: hashlib.sha256(name.encode()).digest()):
        text = "".join(_sources(packages[name], seen, min(round(PACKAGE_SHARE * limit), limit - total)))
        if text:
            parts[name] = text
            total += len(text)
        if total >= limit:
            break
    return _divided(parts)


def _sources(tops: Sequence[Path], seen: set[bytes], limit: int) -> Iterator[str]:
    """New files of one package, up to so many characters; what is not UTF-8 is left out."""
    for path in (file for top in tops for file in _files(top)):
        try:
            data = path.read_bytes()
            text = data.decode()
        except (OSError, UnicodeDecodeError):
            continue
        digest = hashlib.sha256(data).digest()
        if digest in seen or not text.strip():
            continue
        seen.add(digest)
        yield text[:limit]
        limit -= len(text)
        if limit <= 0:
            return


def _files(top: Path) -> Iterator[Path]:
    if top.is_file():
        yield top
        return
    for path in sorted(top.rglob("*.py")):
        if not COPIES & set(path.relative_to(top).parts[:-1]):
            yield path


def _divided(parts: dict[str, str]) -> Corpus:
    """Packages are held out, first come first, until they make up their share; none that is larger than the share."""
    if len(parts) < 2:
        raise ConfigError("there are no Python sources on this machine to train on; give a text with corpus=FILE")
    room = max(HELDOUT * sum(map(len, parts.values())), min(map(len, parts.values())))
    heldout = []
    for name, text in parts.items():
        if len(text) <= room:
            heldout.append(name)
            room -= len(text)
    train = [name for name in parts if name not in heldout]
    texts = ["".join(parts[name] for name in names) for names in (train, heldout)]
    source = f"Python sources: {len(train)} packages to train on, {len(heldout)} others for validation"
    return Corpus(texts[0], texts[1], source)
