"""Training: a typed config per run, and a trainer that trains many runs as one population."""

from .protocol import RunConfig, paper
from .strict import ConfigError

__all__ = ["ConfigError", "RunConfig", "paper"]
