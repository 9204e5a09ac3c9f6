"""diagnose does not change the model, and keeps no square matrix."""

import copy
import threading

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import semfocus
from semfocus import Full, ModelConfig, RandomK, TopK, Transformer, functional
from semfocus.diagnosis.watch import Call, watching
from semfocus.diagnostics import Probe
from semfocus.nn import focus, unfocus

pytestmark = [
    pytest.mark.filterwarnings("ignore:enable_nested_tensor is True:UserWarning"),
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning"),
]


class Counting(nn.Module):
    """Attention with all kinds of state, that may fail behind its attention."""

    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, nhead=2, dim_feedforward=8, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.norm = nn.BatchNorm1d(8)
        self.register_buffer("calls", torch.zeros(()))
        self.lengths, self.last = [], None
        self.fails = False

    def forward(self, x):
        self.calls += 1
        self.last = x
        self.lengths.append(x.shape[1])
        out = self.norm(self.encoder(x).mean(1))
        if self.fails:
            raise RuntimeError("after the attention")
        return out


def encoder():
    return Counting(), (torch.randn(2, 9, 8),)


def transformer():
    config = ModelConfig(vocabulary=5, classes=2, width=8, mlp_width=8, blocks=2)
    return Transformer(config, RandomK(3)), (torch.randint(0, 5, (2, 9)),)


def llama(**settings):
    transformers = pytest.importorskip("transformers", reason="semfocus[hf] is not installed")
    sizes = {"vocab_size": 23, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 2}
    config = transformers.LlamaConfig(**sizes, num_attention_heads=2, **settings)
    return transformers.LlamaForCausalLM(config), (torch.randint(0, 23, (2, 9)),)


def own_pattern():
    semfocus.hf.register()
    return llama(attn_implementation="semfocus_top_k", semfocus={"k": 2})


def focused():
    model, inputs = encoder()
    focus(model, TopK(2), layers=[1])
    return model, inputs


MAKERS = [encoder, transformer, llama, own_pattern, focused]


def state(model):
    """Everything that could have been changed."""
    modules = {}
    for name, module in model.named_modules():
        held = {key: value for key, value in vars(module).items() if not key.startswith("_") or "semfocus" in key}
        hooks = (len(module._forward_hooks), len(module._forward_pre_hooks))
        implementation = getattr(getattr(module, "config", None), "_attn_implementation", None)
        lists = {key: list(value) for key, value in held.items() if isinstance(value, list)}
        ids = {key: id(value) for key, value in held.items()}
        modules[name] = (type(module), module.training, hooks, implementation, lists, ids)
    return modules, {name: id(p) for name, p in model.named_parameters()}


@pytest.mark.parametrize("fails", [False, True], ids=["", "after an error"])
@pytest.mark.parametrize("training", [False, True], ids=["evaluating", "training"])
@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
def test_the_model_is_what_it_was(make, training, fails, monkeypatch):
    torch.manual_seed(0)
    model, inputs = make()
    model.train(training)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    tensors, random = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    before, attend = state(model), functional.attend
    expected = copy.deepcopy(model)(*inputs)
    expected = getattr(expected, "logits", expected)
    torch.set_rng_state(random)
    if fails:
        torch.manual_seed(1)
        random = torch.get_rng_state()
        handle = list(model.modules())[-1].register_forward_hook(lambda *_: torch.rand(3) / 0 + undefined)  # noqa: F821
        before = state(model)
        with pytest.raises(NameError):
            semfocus.diagnose(model, inputs)
        assert state(model) == before
        handle.remove()
    else:
        semfocus.diagnose(model, inputs)
        assert state(model) == before
    assert torch.equal(torch.get_rng_state(), random)
    assert functional.attend is attend
    assert torch.is_grad_enabled()
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, tensors[name]), name
    assert all(torch.equal(p.grad, torch.ones_like(p)) for p in model.parameters())
    torch.manual_seed(0)
    make()
    after = model(*inputs)
    assert torch.equal(getattr(after, "logits", after), expected)  # bitwise


class Merging(nn.Linear):
    """An adapter that folds its change into the weights when it is told to evaluate."""

    def train(self, mode=True):
        if self.training and not mode:
            self.weight.data += 1.0
        return super().train(mode)


def test_switching_to_evaluation_changes_no_weight():
    model, (x,) = encoder()
    model.encoder.layers[0].linear1 = Merging(8, 8)
    before = copy.deepcopy(model.state_dict())
    semfocus.diagnose(model, x)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_unfocus_still_restores():
    model, inputs = focused()
    semfocus.diagnose(model, inputs)
    assert unfocus(model) == ("encoder.layers.1.self_attn",)
    assert {type(m) for m in model.modules() if isinstance(m, nn.MultiheadAttention)} == {nn.MultiheadAttention}


def test_the_model_s_own_error_says_which_call():
    model, inputs = encoder()
    model.fails = True
    with pytest.raises(RuntimeError, match="after the attention") as caught:
        semfocus.diagnose(model, inputs)
    assert caught.value.__notes__ == ["raised while diagnose called Counting(float32[2, 9, 8])"]
    assert (model.lengths, float(model.calls), model.last) == ([], 0.0, None)
    with pytest.raises(TypeError) as caught:
        semfocus.diagnose(model, {"y": inputs[0], "text": "no"})
    assert caught.value.__notes__ == ["raised while diagnose called Counting(y=float32[2, 9, 8], text=str)"]


def test_attention_of_other_threads_is_not_seen():
    seen: list[Call] = []
    model, (x,) = encoder()
    q = torch.randn(1, 1, 4, 4)
    with watching(model, seen.append):
        other = threading.Thread(target=lambda: semfocus.attention(q, q, q))
        other.start()
        other.join()
        semfocus.attention(q, q, q)  # outside the model
        model(x)
    assert [call.name for call in seen] == ["encoder.layers.0.self_attn", "encoder.layers.1.self_attn"]


def test_a_compiled_model_is_looked_at_uncompiled():
    torch.manual_seed(0)
    model, (x,) = encoder()

    def refuse(graph, inputs):
        raise AssertionError("it was compiled")

    found = semfocus.diagnose(torch.compile(model, backend=refuse), x, ks=(2,))
    assert found.model == "Counting"
    wanted = semfocus.diagnose(model, x, ks=(2,))
    assert found.rows == wanted.rows
    model.encoder.layers[0] = torch.compile(model.encoder.layers[0], backend=refuse)
    found = semfocus.diagnose(model, x, ks=(2,))
    assert [row["kept_mass_2"] for row in found.rows] == [row["kept_mass_2"] for row in wanted.rows]


class Largest(TorchDispatchMode):
    """The largest piece of memory behind any result."""

    bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor):
                self.bytes = max(self.bytes, tensor.untyped_storage().nbytes())
        return out


@pytest.mark.parametrize("padded", [False, True])
def test_no_square_matrix_for_long_inputs(padded):
    length = 4096
    layer = nn.TransformerEncoderLayer(8, nhead=1, dim_feedforward=8, batch_first=True)
    model = nn.TransformerEncoder(layer, 1)
    padding = torch.arange(length)[None] >= length - 5 if padded else None
    with Largest() as largest:
        found = semfocus.diagnose(
            model, {"src": torch.randn(1, length, 8), "src_key_padding_mask": padding}, ks=(8, 64)
        )
    assert found.layers[0]["queries"] == length - 5 * padded
    assert 0 < largest.bytes <= 2**24 + length  # one chunk of scores in float32
    assert largest.bytes <= length**2 + length  # not even one byte per pair


def test_chunks_do_not_change_the_numbers(monkeypatch):
    torch.manual_seed(0)
    model, (x,) = encoder()
    whole = semfocus.diagnose(model, x, ks=(2, 5))
    monkeypatch.setattr("semfocus.diagnosis.measure.CHUNK_ELEMENTS", 2 * 2 * 9 * 4)  # four queries at a time
    cut = semfocus.diagnose(model, x, ks=(2, 5))
    for row, wanted in zip(cut.rows, whole.rows, strict=True):
        for name, value in wanted.items():
            if not name.startswith("ratio"):  # other noise
                same = pytest.approx(value, rel=1e-5) if isinstance(value, float) else value
                assert row[name] == same, name


def test_a_sample_of_queries_is_spread_over_chunks(monkeypatch):
    monkeypatch.setattr("semfocus.diagnosis.measure.CHUNK_ELEMENTS", 100 * 7)
    monkeypatch.setattr("semfocus.diagnosis.measure.SAMPLED", 20)
    monkeypatch.setattr("semfocus.diagnosis.measure.POSITIONS", 4)
    model = Transformer(ModelConfig(vocabulary=5, classes=2, width=8, mlp_width=8, blocks=1), Full())
    tokens = torch.randint(0, 5, (1, 100))
    calls = []
    with watching(model, calls.append):
        model(tokens)
    found = semfocus.diagnosis.measure.measure(calls[0].problem, [4], None)
    assert found.values["delta_s"].shape == (1, 100)
    assert found.sampled["delta_s"].tolist() == [found.values["delta_s"][0, ::5].tolist()]


@pytest.mark.parametrize("batch", [1, 30, 600])
def test_a_sample_of_a_large_batch_has_all_positions(batch):
    q, k = torch.randn(2, batch, 2, 20, 4).unbind(0)
    problem = Probe.of(q, k, is_causal=True).problems[0]
    found = semfocus.diagnosis.measure.measure(problem, [4], None)
    keys = found.values["keys"].reshape(2, batch, 20)  # of a causal query: its position + 1
    sample = found.sampled["keys"]
    assert set(sample[0].tolist()) == set(keys[0, 0].tolist())
    counts = np.unique(sample[0], return_counts=True)[1]
    assert counts.min() == counts.max()
    assert min(batch * 20, 512) <= sample.shape[1] <= 640
