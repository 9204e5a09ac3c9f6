"""What is refused, in one sentence that names the argument, its value and what would do."""

import pytest
import torch

import semfocus
from semfocus import Banded, TopK, attention

Q = torch.zeros(2, 4, 3, 8)
BAD = [
    (lambda: attention(Q.int(), Q, Q), ["query", "int32"]),
    (lambda: attention(Q, Q.double(), Q), ["key", "float64"]),
    (lambda: attention(Q[0, 0], Q[0, 0], Q[0, 0]), ["query", "(3, 8)"]),
    (lambda: attention([1.0], Q, Q), ["query is of type list"]),
    (lambda: attention(Q.to_sparse(), Q, Q), ["query is a sparse tensor"]),
    (lambda: attention(Q, Q, Q, is_causal=torch.ones(3, 3)), ["is_causal is torch.float32 (3, 3)", "attn_mask"]),
    (lambda: attention(Q, Q, Q, is_causal="false"), ["is_causal is 'false'", "True or False"]),
    (lambda: attention(Q, Q, Q, TopK(2), None, 0.0, 0.125), ["is_causal is 0.125"]),
    (lambda: attention(Q, Q, Q, enable_gqa="no"), ["enable_gqa is 'no'"]),
    (lambda: attention(Q, Q, Q, return_weights=1), ["return_weights is 1"]),
    (lambda: attention(Q, Q, Q, torch.ones(3, 3).bool()), ["pattern is torch.bool (3, 3)", "attn_mask"]),
    (lambda: attention(Q, Q, Q, query_offset=2**70), ["query_offset is 1180", "2^62"]),
    (lambda: attention(Q, Q, Q, query_offset=2**63 - 3), ["query_offset is 9223", "2^62"]),
    (lambda: semfocus.nn.unfocus("a"), ["model is a str"]),
    (lambda: semfocus.nn.MultiheadAttention(8, 4.0), ["num_heads is 4.0"]),
    (lambda: semfocus.nn.MultiheadAttention(8, 4)(Q[0], None, Q[0]), ["key is a NoneType"]),
    (lambda: semfocus.diagnose(torch.nn.MultiheadAttention(8, 4), Q[0], member=1), ["member is 1", "population"]),
    (lambda: semfocus.patterns.parse("top_k(**{'k': 5})"), ["write a name"]),
    (lambda: attention(Q, Q[..., :4], Q), ["key", "4", "8"]),
    (lambda: attention(Q, Q, Q[..., :2, :]), ["value", "(2, 4, 2, 8)"]),
    (lambda: attention(Q, Q[:, :2], Q[:, :2]), ["key", "(2, 2, 3, 8)"]),
    (lambda: attention(Q, Q[:, :3], Q[:, :3], enable_gqa=True), ["3 heads", "divide", "4"]),
    (lambda: attention(Q, Q, Q, 5), ["pattern is 5", "TopK(5)"]),
    (lambda: attention(Q, Q, Q, attn_mask=torch.ones(3, 4).bool()), ["attn_mask", "(3, 4)", "(2, 4, 3, 3)"]),
    (lambda: attention(Q, Q, Q, attn_mask=torch.ones(3, 3).long()), ["attn_mask", "int64"]),
    (lambda: attention(Q, Q, Q, attn_mask=torch.ones(1, 2, 4, 3, 3)), ["attn_mask", "(1, 2, 4, 3, 3)"]),
    (lambda: attention(Q, Q, Q, dropout_p=1.5), ["dropout_p is 1.5", "[0, 1]"]),
    (lambda: attention(Q, Q, Q, query_offset=0.5), ["query_offset is 0.5"]),
    (lambda: attention(Q, Q, Q, dropout_p=None), ["dropout_p is None"]),
    (lambda: attention(Q, Q, Q, dropout_p=True), ["dropout_p is True"]),
    (lambda: attention(Q, Q, Q, scale=float("nan")), ["scale is nan"]),
    (lambda: attention(Q, Q, Q, scale=float("-inf")), ["scale is -inf"]),
    (lambda: attention(Q, Q, Q, scale="x"), ["scale is 'x'"]),
    (lambda: attention(Q, Q, Q, generator=3), ["generator is 3"]),
    (lambda: attention(Q, Q, Q, Banded(3, global_tokens=1), query_offset=1), ["query_offset is 1", "global"]),
    (lambda: attention(Q, Q, Q, implementation="refrence"), ["'refrence'", "'reference'"]),
    (lambda: attention(Q, Q, Q, TopK(2), implementation="sdpa"), ["sdpa", "top_k(k=2)"]),
    (lambda: attention(Q, Q, Q, dropout_p=0.1, implementation="sdpa"), ["sdpa", "dropout"]),
    (lambda: attention(Q, Q, Q, Banded(3, global_tokens=1), is_causal=True), ["global_tokens is 1", "is_causal"]),
    (lambda: attention(Q, Q[..., :2, :], Q[..., :2, :], Banded(3, global_tokens=1)), ["global_tokens", "3 queries"]),
    (lambda: attention(Q, Q, Q, Banded(3, global_tokens=4)), ["global_tokens is 4", "3"]),
]


@pytest.mark.parametrize(("call", "words"), BAD, ids=range(len(BAD)))
def test_bad_input_is_named(call, words):
    with pytest.raises(ValueError) as caught:
        call()
    assert all(word in str(caught.value) for word in words), str(caught.value)
