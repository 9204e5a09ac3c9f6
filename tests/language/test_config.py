"""Mistakes in the config of a language model are named."""

import pytest

from semfocus import Banded, TopK
from semfocus.language.config import LanguageConfig
from semfocus.training.strict import ConfigError


def test_plain_data_there_and_back(tiny):
    config = tiny(pattern={"name": "top_k", "k": 7}, seed=3, precision="bfloat16")
    assert config.pattern == TopK(7)
    assert LanguageConfig.from_dict(config.to_dict()) == config
    assert LanguageConfig.from_dict(config.to_dict()).hash == config.hash
    assert tiny(seed=4).hash != tiny(seed=3).hash


def test_a_run_is_known_by_the_content_of_its_text(tiny):
    assert tiny(corpus="/a", text={"sha256": "0f"}).hash == tiny(corpus="/b", text={"sha256": "0f"}).hash
    assert tiny(corpus="/a", text={"sha256": "0f"}).hash != tiny(corpus="/a", text={"sha256": "1f"}).hash


@pytest.mark.parametrize(
    ("sections", "says"),
    [
        ({"modle": {}}, "unknown field 'modle'; did you mean 'model'"),
        ({"model": {"widht": 3}}, "unknown field 'model.widht'; did you mean 'width'"),
        ({"model": {"heads": 3}}, "model.heads is 3; it must divide the width, 16, into even parts"),
        ({"model": {"attention_scale": 0.0}}, "model.attention_scale is 0.0"),
        ({"text": {"vocabulary": 300}}, "text.vocabulary is 300; bytes have 256"),
        ({"text": {"tokenizer": "bpe", "vocabulary": 100}}, "text.vocabulary is 100; it must be at least 256"),
        ({"text": {"tokenizer": "words"}}, "text.tokenizer is 'words'"),
        ({"text": {"megabytes": 0.0}}, "text.megabytes is 0.0"),
        ({"optimiser": {"learning_rate": -1.0}}, "optimiser.learning_rate is -1.0"),
        ({"train": {"tokens": 100}}, "train.tokens is 100; 4 epochs need at least 256"),
        ({"train": {"heldout": 10}}, "train.heldout is 10; one batch has 64 tokens"),
        ({"train": {"parallel": "dpp"}}, "train.parallel is 'dpp'; did you mean 'ddp'"),
        ({"pattern": {"name": "topk"}}, "pattern: unknown pattern 'topk'; did you mean 'top_k'"),
        ({"pattern": Banded(5, global_tokens=1)}, "a decoder has no global tokens"),
    ],
)
def test_mistakes(tiny, sections, says):
    with pytest.raises(ConfigError) as error:
        tiny(**sections)
    assert says in str(error.value)
