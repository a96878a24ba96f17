"""Additive attention of Fastformer, linear in time.

Reference:
    Wu et al., "Fastformer: Additive Attention Can Be All You Need",
    https://arxiv.org/abs/2108.09084
"""

import torch
from espnet2.asr.layers.fastformer import FastSelfAttention as ESPnetFastSelfAttention
from torch._subclasses.fake_tensor import FakeTensor
from typeguard import typechecked

from espnet_fastformer.layers.chunks import (
    ChunkedLayer,
    Chunks,
    sum_over_chunks,
    weigh_chunks,
)
from espnet_fastformer.layers.dropout import Dropout
from espnet_fastformer.layers.modes import (
    gradient,
    has_hooks,
    is_exporting,
    is_traced,
    without_autocast,
)
from espnet_fastformer.layers.padding import padding_of
from espnet_fastformer.layers.weighted_sum import divide


class FastSelfAttention(ChunkedLayer, ESPnetFastSelfAttention):
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
    input) whatever the dtype of the input and of autocast. Only plain
    ``torch.nn.Linear`` maps are folded: with adapters, parametrisations, quantisation
    or hooks on one of the five, all are called on the whole sequence, as in ESPnet.

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
        self.dropout = Dropout(dropout_rate)

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
        if self.chunks is not None:
            return self._forward_chunks(xs_pad, mask, self.chunks)
        # Folding saves passes over time, which bound a CPU, but starts more kernels.
        if xs_pad.device.type != "cpu" or not self._is_foldable():
            return self._forward_unfolded(xs_pad, mask)
        key_mean = self.pool(xs_pad, mask)  # (B, D)
        frames, size = xs_pad.shape[1:]
        is_random = self.dropout.training and self.dropout.p > 0
        # Folding a map of each utterance costs as much as applying it to D frames.
        # An exported graph has one form for all lengths, which can be quantised too,
        # and so has a compiled one in training, where compiling again takes minutes.
        has_one_form = is_exporting() or (self.training and is_traced())
        if has_one_form or frames <= size:
            query = self.query(xs_pad)
            value = query * key_mean.unsqueeze(1).to(query.dtype)
            return self.dropout(self.transform(value)) + query
        if is_random:
            query = self.query(xs_pad)
            weight, bias = self._fold_transform(key_mean)
            return self.dropout(batched_linear(query, weight, bias)) + query
        return batched_linear(xs_pad, *self._fold_output(key_mean))

    def _is_foldable(self) -> bool:
        linears = (self.query, self.query_att, self.key, self.key_att, self.transform)
        return (
            all(map(is_plain_linear, linears))
            and isinstance(self.dropout, torch.nn.Dropout)
            and not has_hooks(self.dropout)
        )

    def _forward_unfolded(
        self, xs_pad: torch.Tensor, mask: torch.Tensor | None
    ) -> torch.Tensor:
        """Call each map on the whole sequence, as ESPnet does."""
        query, key = self.query(xs_pad), self.key(xs_pad)
        _, pooled = self._pool_heads(query, self.query_att(query), mask)
        key = key * self.dropout(pooled).to(key.dtype)
        _, pooled = self._pool_heads(key, self.key_att(key), mask)
        value = query * self.dropout(pooled).to(query.dtype)
        return self.dropout(self.transform(value)) + query

    def _pool_heads(
        self, frames: torch.Tensor, scores: torch.Tensor, mask: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Sum each head's channels over time.

        Args:
            frames: What is summed (B, T, D).
            scores: (B, T, H).
            mask: As in :meth:`forward`.

        Returns:
            Weights (B, H, T) and sums (B, 1, D), heads concatenated, both in at least
            float32.
        """
        dtype = torch.promote_types(scores.dtype, torch.float32)
        padding = None if mask is None else padding_of(mask)
        heads = self.num_attention_heads
        with without_autocast(frames.device):
            scores = self.attention_head_size**-0.5 * scores.to(dtype).mT
            weights = softmax_over_time(scores, padding)  # (B, H, T)
            # Of all channels, since a copy of each head's costs more than the product.
            sums = torch.bmm(weights, frames.to(dtype)).unflatten(2, (heads, -1))
            sums = sums.diagonal(dim1=1, dim2=2).mT
        return weights, sums.flatten(1).unsqueeze(1)

    def _forward_chunks(
        self, xs_pad: torch.Tensor, mask: torch.Tensor | None, chunks: Chunks
    ) -> torch.Tensor:
        """Mix frames with those in the chunks that they see.

        The score of a key depends on the global query, which changes with every chunk.
        A key keeps the score that it had with the global query of its own chunk, so
        that no earlier frame has to be scored again::

            q_n   = sum over the queries up to chunk n, weighted by alpha
            p_t   = k_t * q_n                                for t in chunk n
            k_n   = sum over p_t up to chunk n, weighted by the scores of p_t
            y_t   = W_t (k_n * q_t) + q_t + b_t              for t in chunk n
        """
        padding = None if mask is None else padding_of(mask).mT

        def scale(x: torch.Tensor, mean: torch.Tensor) -> torch.Tensor:
            return (chunks.cut(x) * mean.to(x.dtype)).reshape(x.shape)

        query, key = self.query(xs_pad), self.key(xs_pad)
        key = scale(key, self._pool_chunks(query, self.query_att, padding, chunks))
        value = scale(query, self._pool_chunks(key, self.key_att, padding, chunks))
        return self.dropout(self.transform(value)) + query

    def _pool_chunks(
        self,
        x: torch.Tensor,
        linear: torch.nn.Module,
        padding: torch.Tensor | None,
        chunks: Chunks,
    ) -> torch.Tensor:
        """Average what the frames of a chunk see, weighted by a softmax of its scores.

        Args:
            x: (B, T, D).
            linear: Gives a score for each head.
            padding: (B, T, 1) or None.
            chunks: How time is cut.

        Returns:
            (B * N, 1, D) in at least float32.
        """
        scores = linear(x)
        with without_autocast(x.device):
            scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
            scores = self.attention_head_size**-0.5 * scores
            frames = weigh_chunks(scores, x, padding, self.num_attention_heads, chunks)
            sums = sum_over_chunks(frames, chunks).flatten(0, 1)
            return self.dropout(divide(sums, self.attention_head_size))

    def pool(
        self, xs_pad: torch.Tensor, mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return the global key of each utterance, (B, D), in at least float32."""
        with without_autocast(xs_pad.device):
            x = xs_pad.to(torch.promote_types(xs_pad.dtype, torch.float32))
            padding = None if mask is None else padding_of(mask)
            scale = self.attention_head_size**-0.5
            query_att, query_att_bias = affine(self.query_att, x)
            key_att, key_att_bias = affine(self.key_att, x)
            query, query_bias = affine(self.query, x)
            key, key_bias = affine(self.key, x)

            pooled = softmax_pool(
                x,
                (scale * query_att @ query).expand(x.size(0), -1, -1),
                # On a CPU, F.linear takes several times as long for a vector.
                scale * torch.addmv(query_att_bias, query_att, query_bias)[:, None],
                padding,
            )
            query_mean = self.dropout(
                self._project_heads(pooled, query, query_bias, padding)
            )

            scores = scale * key_att * query_mean.unsqueeze(1)  # (B, H, D)
            pooled = softmax_pool(
                x,
                scores @ key,
                (scores @ key_bias + scale * key_att_bias).unsqueeze(-1),
                padding,
            )
            return self.dropout(
                query_mean * self._project_heads(pooled, key, key_bias, padding)
            )

    def attention_weights(
        self, xs_pad: torch.Tensor, mask: torch.Tensor | None = None
    ) -> dict[str, torch.Tensor]:
        """Return what the frames weigh in both sums over time, without dropout.

        Calls the maps on the whole sequence, so it is for looking inside.

        Args:
            xs_pad: As in :meth:`forward`.
            mask: As in :meth:`forward`.

        Returns:
            ``alpha`` and ``beta``, each (B, H, T) in at least float32. They sum to one
            over the real frames and are zero on padding.
        """
        query, key = self.query(xs_pad), self.key(xs_pad)
        alpha, query_mean = self._pool_heads(query, self.query_att(query), mask)
        key = key * query_mean.to(key.dtype)
        beta, _ = self._pool_heads(key, self.key_att(key), mask)
        return {"alpha": alpha, "beta": beta}

    def _project_heads(
        self,
        pooled: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor,
        padding: torch.Tensor | None,
    ) -> torch.Tensor:
        """Apply each head's rows of a linear map to what that head pooled.

        Args:
            pooled: Weighted sums of the input (B, H, D).
            weight: (D, D).
            bias: (D,); not for utterances of padding alone, whose weights sum to zero.
            padding: (B, 1, T) or None.

        Returns:
            (B, D), heads concatenated.
        """
        heads = self.num_attention_heads
        bias = bias.view(heads, 1, -1)
        if padding is not None:
            bias = bias * (~padding).any(-1)
        out = torch.baddbmm(
            bias, pooled.transpose(0, 1), weight.view(heads, -1, weight.size(1)).mT
        )
        return out.transpose(0, 1).flatten(1)

    def _fold_transform(
        self, key_mean: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Fold transform(key_mean * q) into one map of q: W_t diag(k_bar) and b_t."""
        with without_autocast(key_mean.device):
            weight, bias = affine(self.transform, key_mean)
            return weight * key_mean.unsqueeze(1), bias.expand(len(key_mean), 1, -1)

    def _fold_output(self, key_mean: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Fold transform(key_mean * query(x)) + query(x) into one map of x.

        Args:
            key_mean: Global key (B, D).

        Returns:
            Weight (B, D, D) and bias (B, 1, D).
        """
        gate, bias = self._fold_transform(key_mean)
        with without_autocast(key_mean.device):
            weight, query_bias = affine(self.query, key_mean)
            bias = bias + (gate @ query_bias + query_bias).unsqueeze(1)
            return (gate @ weight).add_(weight), bias


def softmax_pool(
    x: torch.Tensor,
    score_weight: torch.Tensor,
    score_bias: torch.Tensor,
    padding: torch.Tensor | None,
) -> torch.Tensor:
    """Sum x over time, weighted by softmaxes of linear functions of x.

    Args:
        x: (B, T, D).
        score_weight: (B, H, D).
        score_bias: (B or 1, H, 1).
        padding: (B, 1, T), true on padding; None if there is none.

    Returns:
        (B, H, D); zero where all frames are padding.
    """
    if not is_traced():
        return SoftmaxPool.apply(x, score_weight, score_bias, padding)
    scores = torch.baddbmm(score_bias.mT, x, score_weight.mT).mT
    return torch.bmm(softmax_over_time(scores, padding), x)


class SoftmaxPool(torch.autograd.Function):
    """See :func:`softmax_pool`.

    The gradient of x is one matrix product, where that of each step apart would be two,
    and a sum of both.
    """

    @staticmethod
    def forward(ctx, x, score_weight, score_bias, padding):
        """Pool over time."""
        # With the long side of the product as its rows: twice as fast on a CPU.
        scores = torch.baddbmm(score_bias.mT, x, score_weight.mT).mT.contiguous()
        weights = softmax_over_time(scores, padding)
        ctx.save_for_backward(x, score_weight, weights)
        ctx.bias_shape = score_bias.shape
        return torch.bmm(weights, x)

    @staticmethod
    @gradient
    def backward(ctx, grad):
        """Return the gradients of x, score_weight and score_bias."""
        x, score_weight, weights = ctx.saved_tensors
        grad_weights = torch.bmm(x, grad.mT).mT.contiguous()
        mean = (weights * grad_weights).sum(-1, keepdim=True)
        grad_scores = weights * (grad_weights - mean)  # (B, H, T)
        grad_x = torch.bmm(
            torch.cat([weights, grad_scores], dim=1).mT,
            torch.cat([grad, score_weight], dim=1),
        )
        grad_bias = grad_scores.sum(-1, keepdim=True).sum_to_size(ctx.bias_shape)
        return grad_x, torch.bmm(grad_scores, x), grad_bias, None


def batched_linear(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor
) -> torch.Tensor:
    """Apply a linear map of its own to each utterance, in the dtype of x.

    Args:
        x: (B, T, D).
        weight: (B, D, D).
        bias: (B, 1, D).
    """
    return torch.baddbmm(bias.to(x.dtype), x, weight.to(x.dtype).mT)


def is_plain_linear(linear: torch.nn.Module) -> bool:
    """Return whether a call computes what weight and bias say, and nothing else."""
    if type(linear) is not torch.nn.Linear or has_hooks(linear):
        return False
    # Tensors of other classes may multiply in their own way; an exporter's do not.
    plain = (torch.Tensor, torch.nn.Parameter, FakeTensor)
    return type(linear.weight) in plain and type(linear.bias) in plain


def affine(
    linear: torch.nn.Linear, like: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return weight and bias of a linear map, in the dtype of ``like``."""
    return linear.weight.to(like.dtype), linear.bias.to(like.dtype)


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
