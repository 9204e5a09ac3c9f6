"""The model: one transformer, written once, with a leading axis for a population of models."""

from .config import ModelConfig
from .transformer import Transformer

__all__ = ["ModelConfig", "Transformer"]
