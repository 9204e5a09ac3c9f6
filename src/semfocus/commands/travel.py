"""``semfocus pack`` and ``semfocus unpack``"""

from __future__ import annotations

import argparse
import shlex

from .common import need_lab, one_sentence


def pack_store(options: argparse.Namespace) -> int:
    need_lab()
    from ..lab.archive import pack

    with one_sentence():
        packed = pack(options.directory, options.file, weights=not options.without_weights, only_new=options.new)
    for file in packed.files:
        print(f"{file}  {file.stat().st_size / 1e6:.1f} MB")
    print(f"{packed.runs} runs packed, {packed.skipped} not over yet")
    return 0


def unpack_store(options: argparse.Namespace) -> int:
    need_lab()
    from ..lab.archive import unpack

    with one_sentence():
        unpacked = unpack(options.file, options.directory)
    print(f"{unpacked.runs} runs added to {options.directory}, {unpacked.skipped} were there already")
    if unpacked.left:
        print(f"{unpacked.left} left out: in training here, or only a part of them is in the archive")
    print(f"semfocus report {shlex.quote(str(options.directory))} writes their pages")
    return 0
