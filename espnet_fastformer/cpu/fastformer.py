"""Fastformer's additive attention in fewer passes over time."""

import torch
from torch._subclasses.fake_tensor import FakeTensor

from espnet_fastformer.encoder.replacement import Replacement
from espnet_fastformer.layers.fastformer import FastSelfAttention, softmax_over_time
from espnet_fastformer.layers.modes import (
    gradient,
    has_hooks,
    is_exporting,
    is_traced,
    without_autocast,
)
from espnet_fastformer.layers.padding import padding_of


class FoldedFastSelfAttention(Replacement, FastSelfAttention):
    """Additive attention whose maps of whole sequences are folded into small matrices.

    Between its two softmaxes the module is linear in its input ``x``, so that exactly::

        alpha  = softmax_t(x (W_qa W_q)^T / sqrt(d))     one score a head and frame
        q_bar  = W_q (sum_t alpha_t x_t) + b_q
        beta   = softmax_t(x ((W_ka * q_bar) W_k)^T / sqrt(d))
        k_bar  = q_bar * (W_k (sum_t beta_t x_t) + b_k)
        y      = x ((W_t diag(k_bar) + I) W_q)^T + const

    One or two products of size T x D x D remain where the definition has three. That
    saves passes over time, which bound a CPU, but starts more kernels. Of 60 s it takes
    0.5 of the time at inference and 0.7 in training, as benchmarks.layers measures it
    against ``fastformer-unfolded``. Only plain ``torch.nn.Linear`` maps are folded:
    with adapters, parametrisations, quantisation or hooks on one of the five, all are
    called on the whole sequence.
    """

    replaces = FastSelfAttention

    def forward(
        self, xs_pad: torch.Tensor, mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        """See :meth:`FastSelfAttention.forward`."""
        is_on_cpu = xs_pad.device.type == "cpu"
        if self.chunks is not None or not is_on_cpu or not self._is_foldable():
            return super().forward(xs_pad, mask)
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
