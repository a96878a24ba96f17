"""Additive attention of Fastformer, linear in time.

Reference:
    Wu et al., "Fastformer: Additive Attention Can Be All You Need",
    https://arxiv.org/abs/2108.09084
"""

import torch
from espnet2.asr.layers.fastformer import FastSelfAttention as ESPnetFastSelfAttention
from typeguard import typechecked

from espnet_fastformer.layers.chunks import ChunkedLayer
from espnet_fastformer.layers.modes import without_autocast
from espnet_fastformer.layers.padding import padding_of
from espnet_fastformer.layers.sums import divide, sum_over_chunks, total, weigh


class FastSelfAttention(ChunkedLayer, ESPnetFastSelfAttention):
    """Additive attention with ESPnet's parameters.

    Of each head (equations 3 to 6 of the paper; the last two as in the authors' code,
    with a residual connection of the queries)::

        alpha  = softmax_t(w_q . q_t / sqrt(d))
        q_bar  = sum_t alpha_t q_t
        p_t    = q_bar * k_t
        beta   = softmax_t(w_k . p_t / sqrt(d))
        k_bar  = sum_t beta_t p_t
        y_t    = W_t (k_bar * q_t) + b_t + q_t

    Softmaxes and sums over time are computed in float32 (float64 for float64 input)
    whatever the dtype of the input and of autocast.

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
        """Mix the frames of each utterance, or with those in the chunks that they see.

        In chunks, a key keeps the score that it had with the global query of its own
        chunk, so that no earlier frame has to be scored again::

            q_n   = sum over the queries up to chunk n, weighted by alpha
            p_t   = k_t * q_n                                for t in chunk n
            k_n   = sum over p_t up to chunk n, weighted by the scores of p_t
            y_t   = W_t (k_n * q_t) + b_t + q_t              for t in chunk n

        Args:
            xs_pad: Input (B, T, D), any floating-point dtype.
            mask: (B, 1, T), any dtype, non-zero on real frames; None if all are real.

        Returns:
            Output (B, T, D). Padded frames get values too, as in ESPnet, but
            contribute to no other frame.
        """
        padding = None if mask is None else padding_of(mask)
        query, key = self.query(xs_pad), self.key(xs_pad)
        key = self._scale(key, self._pool(query, self.query_att(query), padding))
        value = self._scale(query, self._pool(key, self.key_att(key), padding))
        return self.dropout(self.transform(value)) + query

    def _scale(self, x: torch.Tensor, mean: torch.Tensor) -> torch.Tensor:
        """Multiply (B, T, D) by one vector of each of N parts (B, N, D)."""
        mean = self.dropout(mean).to(x.dtype)
        if self.chunks is None:
            return x * mean
        chunks = x.unflatten(1, (-1, self.chunks.size))
        return (chunks * mean.unsqueeze(2)).flatten(1, 2)

    def _pool(
        self, x: torch.Tensor, scores: torch.Tensor, padding: torch.Tensor | None
    ) -> torch.Tensor:
        """Average what frames see, each head weighted by a softmax of its scores.

        Args:
            x: (B, T, D).
            scores: (B, T, H).
            padding: (B, 1, T), true on padding; None if there is none.

        Returns:
            (B, N, D) in at least float32, with N = 1 for whole utterances.
        """
        if self.chunks is None:
            return self._pool_all(x, scores, padding)[1]
        padding = None if padding is None else padding.mT
        with without_autocast(x.device):
            scores, size = self._scaled(scores), self.chunks.size
            frames = weigh(scores, x, padding, self.num_attention_heads, size)
            sums = sum_over_chunks(total(frames), self.chunks)
            return divide(sums, self.attention_head_size)

    def _scaled(self, scores: torch.Tensor) -> torch.Tensor:
        dtype = torch.promote_types(scores.dtype, torch.float32)
        return self.attention_head_size**-0.5 * scores.to(dtype)

    def _pool_all(
        self, x: torch.Tensor, scores: torch.Tensor, padding: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Do as :meth:`_pool` for utterances, and return the weights (B, H, T)."""
        heads = self.num_attention_heads
        with without_autocast(x.device):
            scores = self._scaled(scores)
            weights = softmax_over_time(scores.mT, padding)
            # Of all channels, since a copy of each head's costs more than the product.
            sums = torch.bmm(weights, x.to(scores.dtype)).unflatten(2, (heads, -1))
            sums = sums.diagonal(dim1=1, dim2=2).mT
        return weights, sums.flatten(1).unsqueeze(1)

    def attention_weights(
        self, xs_pad: torch.Tensor, mask: torch.Tensor | None = None
    ) -> dict[str, torch.Tensor]:
        """Return what the frames weigh in both sums over time, without dropout.

        Args:
            xs_pad: As in :meth:`forward`.
            mask: As in :meth:`forward`.

        Returns:
            ``alpha`` and ``beta``, each (B, H, T) in at least float32. They sum to one
            over the real frames and are zero on padding.
        """
        query, key = self.query(xs_pad), self.key(xs_pad)
        padding = None if mask is None else padding_of(mask)
        alpha, query_mean = self._pool_all(query, self.query_att(query), padding)
        key = key * query_mean.to(key.dtype)
        beta, _ = self._pool_all(key, self.key_att(key), padding)
        return {"alpha": alpha, "beta": beta}


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
