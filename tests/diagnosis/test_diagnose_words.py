"""What diagnose says: in words, tables and files; what it refuses; and when it recommends."""

import csv
import math
import re

import pytest
import torch
from torch import nn

import semfocus
from semfocus.diagnosis import Candidate, Diagnosis, Evidence

SCORED = Candidate("kept mass", 49, 7, 0.55, (0.2, 0.7), 0.25, 2.0, -1.5, 0.1, 0.9)
ORIGIN = "study mechanism, size paper, 10 seeds, commit abc123"


class Sharp(nn.Module):
    """Two layers of attention: one with the scores it is given, one with them multiplied."""

    def __init__(self, factor):
        super().__init__()
        self.factor = factor
        self.attention = nn.ModuleList([nn.Identity(), nn.Identity()])

    def forward(self, scores):
        k = torch.eye(scores.shape[-1]).expand(*scores.shape[:2], -1, -1)
        semfocus.attention(scores, k, k, scale=1.0)
        return semfocus.attention(scores, k, k, scale=self.factor)


def diagnosed(factor=6.0, spread=1.0, evidence=None, ks=(2, 4, 16)):
    scores = spread * torch.randn(2, 3, 40, 40, generator=torch.Generator().manual_seed(0))
    return semfocus.diagnose(Sharp(factor), scores, ks=ks, evidence=evidence)


def of(*candidates, size="paper"):
    return Evidence("mechanism", size, 10, ("abc123",), candidates)


def test_the_layer_that_loses_least_is_named():
    found = diagnosed()
    text = found.words()
    assert [row["name"] for row in found.layers] == ["model", "model, call 2"]
    assert "Sharp: 2 attention layers, 3 heads each. A query sees 40.0 keys on average" in text
    assert "Layer 1 (model, call 2) would lose least (95 % from k = 4 on)" in text
    assert "layer 0 (model) most (below 95 % up to k = 16)" in text
    low, high = ([row[f"kept_mass_{k}"] for k in (2, 4, 16)] for row in found.layers)
    assert low[2] < 0.95
    assert high[0] < 0.95 <= high[1]
    mean = (low[2] + high[2]) / 2
    assert (
        f"The 16 best keys of a query hold {100 * mean:.1f} % of full attention's weight on average; with equal "
        in text
    )
    assert "they would hold 40.0 %" in text


def test_a_larger_scale_first_where_attention_is_nearly_uniform():
    flat = diagnosed(factor=1.0, spread=0.05).words()
    assert "All layers are nearly uniform (90 % or more)" in flat
    assert "Try a larger softmax scale first" in flat
    sharp = diagnosed(factor=3.0, spread=4.0).words()
    assert "no sign that a larger softmax scale should be tried first" in sharp
    assert "Try a larger" not in sharp
    mixed = diagnosed(factor=40.0, spread=0.2).words()
    assert "Layer 0 (model) is nearly uniform" in mixed


def test_names_of_modules_are_written_as_they_are():
    model = nn.Sequential()
    model.add_module("SelfAttn", Sharp(40.0))
    scores = 0.2 * torch.randn(2, 3, 40, 40, generator=torch.Generator().manual_seed(0))
    assert "Layer 0 (SelfAttn) is nearly uniform" in semfocus.diagnose(model, scores, ks=(2, 4)).words()


def test_vacuous_bounds_are_said_to_be():
    text = diagnosed().words()
    assert re.search(r"vacuous \(1/2 or more, .*\) for [\d.]+ % of the queries under full attention", text)
    assert "vacuous" in diagnosed().table()
    calm = diagnosed(factor=1.0, spread=1e-3)
    assert "for 0.0 % of the queries under full attention" in calm.words()


@pytest.mark.parametrize("evidence", [None, of(SCORED, size="quick")])
def test_without_a_score_it_describes_and_does_not_recommend(evidence):
    text = diagnosed(evidence=evidence).words()
    assert "No candidate has been scored at paper size" in text
    assert "no prediction of learning speed has yet beaten a constant on held-out tasks" in text
    assert "describes and does not recommend focus" in text
    assert "Recommended" not in text


def test_the_package_s_evidence_has_no_score_yet():
    evidence = Evidence.read()
    assert evidence == Evidence("mechanism", None, None, (), ())
    assert not evidence.counts


def test_a_candidate_that_does_not_beat_a_constant_recommends_nothing():
    worse = Candidate("entropy lost", 49, 7, 0.3, (-0.1, 0.5), 0.25, 2.0, -1.5, 0.1, 0.9)
    text = diagnosed(evidence=of(worse)).words()
    assert "None of 1 candidates beat a constant on held-out tasks for certain" in text
    assert f"'entropy lost', has skill +0.30 (interval -0.10 to +0.50) on 49 cases of 7 tasks ({ORIGIN})" in text
    assert "Recommended" not in text
    assert "No candidate could be scored" in diagnosed(evidence=of()).words()


def test_a_candidate_that_beats_a_constant_recommends_with_its_score():
    found = diagnosed(evidence=of(SCORED))
    text = found.words()
    predicted = {k: 2.0 - 1.5 * x for k, x in found.candidates["kept mass"].items() if 0.1 <= x <= 0.9}
    k = max(predicted, key=predicted.get)
    assert predicted[k] > 0
    assert f"Recommended: try TopK({k}). It is predicted to learn {math.exp(predicted[k]):.2f} times as fast" in text
    assert "a typical error of a factor of 1.28" in text
    assert (
        "Score of this prediction: skill +0.55 (interval +0.20 to +0.70) against a constant on held-out tasks" in text
    )
    assert f"49 cases of 7 tasks ({ORIGIN})" in text
    assert "measured before training" in text
    assert "does not recommend" not in text


def test_a_prediction_of_slower_learning_is_no_recommendation():
    slower = Candidate("kept mass", 49, 7, 0.55, (0.2, 0.7), 0.25, -1.0, 0.0, 0.0, 1.0)
    text = diagnosed(evidence=of(slower)).words()
    assert "Focus is not recommended" in text
    assert "at 0.37 times the speed of full attention" in text


def test_no_recommendation_beyond_what_was_scored():
    far = Candidate("kept mass", 49, 7, 0.55, (0.2, 0.7), 0.25, 2.0, -1.5, 5.0, 6.0)
    text = diagnosed(evidence=of(far)).words()
    assert "No recommendation: 'kept mass' is" in text
    assert "outside what it was scored on (5 to 6)" in text
    other = Candidate("log gradient norm ratio, first epoch", 49, 7, 0.55, (0.2, 0.7), 0.25, 2.0, -1.5, 5.0, 6.0)
    assert "attention alone does not tell their values" in diagnosed(evidence=of(other)).words()


def test_tables_fit_a_hundred_columns():
    found = diagnosed(ks=range(1, 21))
    for text in (found.table(), found.table(heads=False), str(found)):
        assert max(map(len, text.splitlines())) <= 100
    assert found.table().count("\n") > found.table(heads=False).count("\n")
    assert "k=20" in found.table()
    assert str(found).replace("\n", " ").split() == found.words().split()


def test_the_csv_has_every_row_and_column(tmp_path):
    found = diagnosed()
    with open(found.to_csv(tmp_path / "new" / "found.csv"), newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(found.rows) == 2 * 4
    assert list(rows[0]) == list(found.rows[0])
    assert [float(row["kept_mass_4"]) for row in rows] == [row["kept_mass_4"] for row in found.rows]
    assert rows[0]["head"] == ""
    assert [path.name for path in tmp_path.rglob("*.csv")] == ["found.csv"]  # no temporary file is left


def test_the_candidates_are_those_of_the_study(monkeypatch):
    """By the study's own functions, from the diagnostics of the same scores."""
    from semfocus import Full, ModelConfig, TopK, Transformer, diagnostics
    from semfocus.studies.mechanism import CANDIDATES

    config = ModelConfig(vocabulary=5, classes=2, width=8, mlp_width=8, blocks=2, heads=2)
    model, tokens = Transformer(config, Full()), torch.randint(0, 5, (4, 10))
    found = semfocus.diagnose(model, tokens, ks=(3,))
    probe = diagnostics.Probe.of_model(model, tokens)

    class Fake:
        def __init__(self, pattern):
            self.probe = probe.with_pattern(pattern)

        def diagnostic(self, epoch, name, quantity):
            return diagnostics.get(name).measure(self.probe)["pooled"][quantity]

    assert found.candidates.keys() < CANDIDATES.keys()
    for name, values in found.candidates.items():
        assert values[3] == pytest.approx(CANDIDATES[name](Fake(Full()), Fake(TopK(3))), rel=1e-4), name


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"model": 3}, "model is a int; it must be a torch.nn.Module"),
        ({"inputs": [1]}, "inputs is a list; it must be a tensor, a tuple"),
        ({"inputs": {"past_key_values": 1}}, "inputs holds past_key_values"),
        ({"ks": ()}, "ks is empty"),
        ({"ks": 5}, "ks is 5; it must be a list"),
        ({"ks": (0,)}, "ks is 0; it must be an integer of at least 1"),
        ({"ks": (2.5,)}, "ks is 2.5"),
        ({"model": nn.Linear(2, 2)}, "Linear has no attention that diagnose can see; it sees torch.nn.Multihead"),
        ({"model": nn.LazyLinear(2)}, "model has lazy parameters"),
    ],
)
def test_what_is_refused(arguments, message):
    usual = {"model": nn.Linear(2, 2), "inputs": torch.ones(2, 2)}
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        semfocus.diagnose(**(usual | arguments))
    assert "\n" not in str(caught.value)


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_compiled_scripts_are_refused():
    with pytest.raises(ValueError, match="model is a ScriptModule, whose attention cannot be seen"):
        semfocus.diagnose(torch.jit.script(nn.Linear(2, 2)), torch.ones(2, 2))


class Changed(nn.MultiheadAttention):
    pass


class Three(nn.Module):
    """One layer that can be watched, one that cannot, one that is not called."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = nn.MultiheadAttention(8, 2), Changed(8, 2), nn.MultiheadAttention(8, 2)

    def forward(self, x):
        return self.second(*[self.first(x, x, x)[0]] * 3)[0]


def test_what_was_not_seen_is_said():
    found = semfocus.diagnose(Three(), torch.randn(6, 2, 8), ks=(2,))
    assert [row["name"] for row in found.layers] == ["first"]
    assert "in their own way: second (Changed)." in found.words()
    assert "Not called with these inputs: third." in found.words()
    with pytest.raises(ValueError, match=r"can see \(model \(Changed\) cannot be watched\)"):
        semfocus.diagnose(Changed(8, 2), (torch.randn(6, 2, 8),) * 3)


def test_unseen_hugging_face_attention_is_refused():
    transformers = pytest.importorskip("transformers", reason="semfocus[hf] is not installed")
    config = transformers.BloomConfig(vocab_size=9, hidden_size=8, n_layer=1, n_head=2)
    with pytest.raises(ValueError, match="does not go through transformers' AttentionInterface"):
        semfocus.diagnose(transformers.BloomForCausalLM(config), torch.ones(1, 4, dtype=torch.long))


def test_inputs_of_a_tokenizer():
    """BatchEncoding is a mapping that is no dict."""
    transformers = pytest.importorskip("transformers", reason="semfocus[hf] is not installed")
    sizes = {"vocab_size": 9, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    model = transformers.BertModel(transformers.BertConfig(**sizes, num_attention_heads=2))
    mask = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
    inputs = transformers.BatchEncoding({"input_ids": torch.ones(2, 5, dtype=torch.long), "attention_mask": mask})
    found = semfocus.diagnose(model, inputs, ks=(2,))
    assert found.layers[0]["queries"] == 2 * 8
    assert found.layers[0]["keys"] == pytest.approx((3 * 3 + 5 * 5) / 8)


def test_queries_that_see_nothing_are_left_out():
    layer, x = nn.MultiheadAttention(8, 2, batch_first=True), torch.randn(2, 4, 8)
    hidden = torch.ones(2, 4, dtype=torch.bool)
    with pytest.raises(ValueError, match="has no query that sees a key"):
        semfocus.diagnose(layer, {"query": x, "key": x, "value": x, "key_padding_mask": hidden})
    hidden[0] = False
    found = semfocus.diagnose(layer, {"query": x, "key": x, "value": x, "key_padding_mask": hidden}, ks=(2,))
    assert isinstance(found, Diagnosis)
    assert found.layers[0]["queries"] == 2 * 4


def test_an_empty_batch_is_called_that():
    layer = nn.TransformerEncoderLayer(8, nhead=2, dim_feedforward=8, batch_first=True)
    with pytest.raises(ValueError, match="called without queries or keys"):
        semfocus.diagnose(layer, torch.randn(0, 5, 8))


def test_numbers_that_are_not_finite_are_no_diagnosis():
    layer = torch.nn.TransformerEncoderLayer(8, nhead=2, dim_feedforward=8, batch_first=True)
    with pytest.raises(ValueError, match=r"nothing to diagnose.*layers\.0\.self_attn.*not finite"):
        semfocus.diagnose(torch.nn.TransformerEncoder(layer, 1), torch.full((1, 5, 8), torch.nan))
    with pytest.raises(ValueError, match=r"nothing to diagnose.*layers\.0\.self_attn.*scores may not be finite"):
        semfocus.diagnose(torch.nn.TransformerEncoder(layer, 1), 1e30 * torch.randn(1, 5, 8))


def test_a_bound_is_not_called_vacuous_that_the_weights_exceed():
    """Scores so flat that noise exchanges top-k's keys: its weights then move by far more than 1/2."""
    scores = 0.03 * torch.randn(2, 3, 40, 40, generator=torch.Generator().manual_seed(1))
    found = semfocus.diagnose(Sharp(1.0), scores, ks=(8,))
    for row in found.layers:
        assert row["xi_h_8"] > row["ratio_8"] > 0.5
        assert row["vacuous_8"] < 0.05
    assert "vacuous " not in found.table().partition("ratio top-k")[2]
