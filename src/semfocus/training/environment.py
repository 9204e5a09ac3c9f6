"""Where a result came from: commit, versions, hardware."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy
import torch

from .. import __version__


def describe(device: torch.device) -> dict[str, Any]:
    """Plain data for ``environment.json``."""
    on_gpu = device.type == "cuda"
    return {
        "semfocus": __version__,
        "commit": commit(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "cuda": torch.version.cuda if on_gpu else None,
        "system": f"{platform.system()} {platform.machine()}",
        "device": torch.cuda.get_device_name(device) if on_gpu else _cpu_name(),
        "cpus": os.cpu_count(),
    }


@lru_cache(maxsize=1)
def commit() -> str | None:
    """The commit of the sources, with "+" if they were changed; ``SEMFOCUS_COMMIT`` where there is no git."""
    if os.environ.get("SEMFOCUS_COMMIT"):
        return os.environ["SEMFOCUS_COMMIT"]

    def git(*words: str) -> str:
        return subprocess.run(
            ["git", *words], cwd=Path(__file__).parent, capture_output=True, text=True, check=True, timeout=10
        ).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", Path(__file__).name)  # installed inside someone else's repository?
        return git("rev-parse", "--short=12", "HEAD") + ("+" if git("status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def short(commit: object) -> str:
    """A commit as people write it.

    >>> short("6bcbd176a330"), short("6bcbd176a330+"), short(None)
    ('6bcbd17', '6bcbd17+', 'unknown')
    """
    text = str(commit or "unknown")
    return text[:7] + ("+" if text.endswith("+") else "")


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
