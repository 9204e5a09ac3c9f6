import pytest

from semfocus.language.config import LanguageConfig
from semfocus.training.strict import laid_over

TINY = {
    "text": {"megabytes": 0.2},
    "model": {"width": 16, "blocks": 2, "heads": 2, "context": 16},
    "train": {"tokens": 1280, "batch": 4, "epochs": 4, "heldout": 128, "diagnose": 2},
}


@pytest.fixture
def tiny():
    """A config of a model that trains in a moment, with anything laid over it."""
    return lambda **sections: LanguageConfig.from_dict(laid_over(TINY, sections))
