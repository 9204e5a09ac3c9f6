"""Diagnostics: what can be measured about attention on a batch. One file each; the file's stem is its name.

>>> import torch
>>> from semfocus import diagnostics, TopK
>>> q, k = torch.randn(2, 1, 4, 16, 8)  # batch 1, 4 heads, 16 tokens, width 8
>>> probe = diagnostics.Probe.of(q, k, TopK(5))
>>> sorted(diagnostics.get("dispersion").measure(probe)["pooled"])[:3]
['count', 'mean', 'q0']
"""

from __future__ import annotations

from ..registry import Registry
from .base import Diagnostic, PerQuery, Probe, Rows

__all__ = ["Diagnostic", "PerQuery", "Probe", "Rows", "get", "names", "registry"]

registry: Registry[Diagnostic] = Registry("diagnostic", "semfocus.diagnostics")
names, find, get = registry.names, registry.find, registry.get
