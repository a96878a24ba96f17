"""Additive attention of Fastformer, linear in time.

Reference:
    Wu et al., "Fastformer: Additive Attention Can Be All You Need",
    https://arxiv.org/abs/2108.09084
"""

import torch
from espnet2.asr.layers.fastformer import FastSelfAttention as ESPnetFastSelfAttention
from torch.nn import functional as F
from typeguard import typechecked


class FastSelfAttention(ESPnetFastSelfAttention):
    """Additive attention with ESPnet's parameters, in fewer passes over time.

    Between its two softmaxes the module is linear in its input ``x``, so that the
    projections of whole sequences can be folded into small matrices, exactly::

        alpha  = softmax_t(x (W_qa W_q)^T / sqrt(d))     one score a head and frame
        q_bar  = W_q (sum_t alpha_t x_t) + b_q
        beta   = softmax_t(x ((W_ka * q_bar) W_k)^T / sqrt(d))
        k_bar  = q_bar * (W_k (sum_t beta_t x_t) + b_k)
        y      = x ((W_t diag(k_bar) + I) W_q)^T + const

    One or two products of size T x D x D remain where the definition has three.
    Scores, softmaxes and sums over time are computed in float32 (float64 for float64
    input) whatever the dtype of the input and of autocast.

    It is a subclass of ESPnet's module, because ESPnet's layer classes recognise that
    one by ``isinstance`` and call it as ``attn(x, mask)``.

    Args:
        size: Number of channels D.
        attention_heads: Number of heads H.
        dropout_rate: Dropout on both pooled vectors and on the transform's output.

    Raises:
        ValueError: If ``size`` is not a multiple of ``attention_heads``.
    """

    @typechecked
    def __init__(self, size: int, attention_heads: int, dropout_rate: float):
        super().__init__(size, attention_heads, dropout_rate)

    def forward(
        self, xs_pad: torch.Tensor, mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Mix the frames of each utterance.

        Args:
            xs_pad: Input (B, T, D), any floating-point dtype.
            mask: (B, 1, T), any dtype, non-zero on real frames; None if all are real.

        Returns:
            Output (B, T, D). Padded frames get values too, as in ESPnet, but
            contribute to no other frame.
        """
        key_mean = self.pool(xs_pad, mask)  # (B, D)

        transform_is_random = self.training and self.dropout.p > 0
        frames, size = xs_pad.shape[1:]
        if transform_is_random or frames <= size:
            query = self.query(xs_pad)
            value = query * key_mean.unsqueeze(1).to(query.dtype)
            return self.dropout(self.transform(value)) + query

        weight, bias = self._fold_output(key_mean)
        dtype = xs_pad.dtype
        return torch.baddbmm(bias.to(dtype), xs_pad, weight.to(dtype))

    def pool(
        self, xs_pad: torch.Tensor, mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return the global key of each utterance, (B, D), in at least float32."""
        with torch.autocast(xs_pad.device.type, enabled=False):
            x = xs_pad.to(torch.promote_types(xs_pad.dtype, torch.float32))
            heads, head_size = self.num_attention_heads, self.attention_head_size
            padding = None if mask is None else mask.eq(0)
            scale = head_size**-0.5
            query, query_att, key, key_att = (
                affine(linear, x)
                for linear in (self.query, self.query_att, self.key, self.key_att)
            )

            def pool_heads(weights, linear):
                # A head's weights sum to one, or to zero if all frames are padding.
                weight, bias = (p.view(heads, head_size, -1) for p in linear)
                pooled = torch.matmul(weights, x).unsqueeze(-1)  # (B, H, D, 1)
                total = weights.sum(-1)[..., None, None]
                return (torch.matmul(weight, pooled) + bias * total).flatten(1)

            scores = F.linear(
                x,
                scale * (query_att[0] @ query[0]),
                scale * (query_att[0] @ query[1] + query_att[1]),
            ).transpose(1, 2)
            alpha = softmax_over_time(scores, padding)  # (B, H, T)
            query_mean = self.dropout(pool_heads(alpha, query))  # (B, D)

            key_score = scale * key_att[0] * query_mean.unsqueeze(1)  # (B, H, D)
            scores = torch.baddbmm(
                (key_score @ key[1] + scale * key_att[1]).unsqueeze(-1),
                key_score @ key[0],
                x.transpose(1, 2),
            )
            beta = softmax_over_time(scores, padding)  # (B, H, T)
            return self.dropout(query_mean * pool_heads(beta, key))

    def _fold_output(self, key_mean: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Fold transform(key_mean * query(x)) + query(x) into one map of x.

        Args:
            key_mean: Global key (B, D).

        Returns:
            Weight (B, D, D), to be multiplied from the right, and bias (B, 1, D).
        """
        with torch.autocast(key_mean.device.type, enabled=False):
            query_weight, query_bias = affine(self.query, key_mean)
            transform_weight, transform_bias = affine(self.transform, key_mean)
            # W_t diag(k_bar) + I
            gate = transform_weight * key_mean.unsqueeze(1)
            gate = gate + torch.eye(gate.size(-1), dtype=gate.dtype, device=gate.device)
            weight = torch.matmul(gate, query_weight).transpose(1, 2)
            return weight, (gate @ query_bias + transform_bias).unsqueeze(1)


def affine(
    linear: torch.nn.Module, like: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return weight and bias of a linear map, in the dtype and device of ``like``.

    Quantisation and low-rank adapters put modules of their own in the place of a
    ``torch.nn.Linear``; what those compute is read off the basis vectors.
    """
    if type(linear) is torch.nn.Linear:
        return linear.weight.to(like.dtype), linear.bias.to(like.dtype)
    dtype = getattr(linear.weight, "dtype", torch.float32)
    basis = torch.eye(linear.in_features, dtype=dtype, device=like.device)
    bias = linear(torch.zeros_like(basis[:1])).to(like.dtype)
    return (linear(basis).to(like.dtype) - bias).T, bias[0]


def softmax_over_time(
    scores: torch.Tensor, padding: torch.Tensor | None
) -> torch.Tensor:
    """Softmax over the last axis in which padded frames get weight zero.

    Args:
        scores: (B, H, T).
        padding: (B, 1, T), true on padding; None if there is none.

    Returns:
        Weights (B, H, T) that sum to one, or to zero where all frames are padding.
    """
    if padding is None:
        return scores.softmax(-1)
    lowest = torch.finfo(scores.dtype).min
    weights = scores.masked_fill(padding, lowest).softmax(-1)
    return weights.masked_fill(padding, 0.0)
