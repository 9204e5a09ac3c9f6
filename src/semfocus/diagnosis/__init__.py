"""Should my model focus? ``diagnose`` measures any model's attention and says so in words, a table and a page.

The description is measured. A prediction of learning speed is added only if it has beaten a constant on tasks that were
left out; ``evidence.json`` holds the scores.
"""

from __future__ import annotations

from .evidence import Candidate, Evidence, evidence_from
from .examine import diagnose
from .result import Diagnosis

__all__ = ["Candidate", "Diagnosis", "Evidence", "diagnose", "evidence_from"]
