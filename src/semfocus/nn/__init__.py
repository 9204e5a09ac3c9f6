"""What users put into their own PyTorch models: an attention layer with a pattern, and a way to swap it in.

>>> import torch
>>> from semfocus import TopK
>>> encoder = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(8, 2, batch_first=True), 2)
>>> print(focus(encoder, TopK(5)))
top_k(k=5) in 2 of 2 attention layers
  0  layers.0.self_attn  MultiheadAttention
  1  layers.1.self_attn  MultiheadAttention
>>> unfocus(encoder)
('layers.0.self_attn', 'layers.1.self_attn')
"""

from __future__ import annotations

from .attention import MultiheadAttention
from .layers import Focused, Layer
from .swap import focus, unfocus

__all__ = ["Focused", "Layer", "MultiheadAttention", "focus", "unfocus"]
