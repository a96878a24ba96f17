"""Plain definitions of the mixers, for tests and benchmarks only.

Every function is the published formula written out in the dtype of its input. AFT
takes O(B * T**2 * D) memory here, so keep T small.

References:
    Wu et al. 2021, "Fastformer: Additive Attention Can Be All You Need",
    arXiv 2108.09084.
    Zhai et al. 2021, "An Attention Free Transformer", arXiv 2105.14103.
"""

import torch
from torch.nn.functional import pad

__all__ = [
    "aft",
    "chunk_mask",
    "chunked_convolution",
    "conv_filter",
    "dense_bias",
    "factorized_bias",
    "fast_self_attention",
    "offset_bias",
    "within_window",
]


def _masked_softmax(
    logits: torch.Tensor, mask: torch.Tensor | None, dim: int
) -> torch.Tensor:
    """Softmax over the entries that `mask` keeps; all zeros where it keeps none.

    The softmax subtracts the maximum of every slice along `dim`.

    Args:
        logits: Scores of any shape.
        mask: Broadcastable to `logits`, non-zero on the entries to keep.
        dim: Dimension to normalise.

    Returns:
        Weights of the shape of `logits`.
    """
    if mask is None:
        return logits.softmax(dim)
    padded = mask == 0
    # A slice without any kept entry is NaN until the second fill.
    weights = logits.masked_fill(padded, -torch.inf).softmax(dim)
    return weights.masked_fill(padded, 0)


def fast_self_attention(
    layer: torch.nn.Module, x: torch.Tensor, mask: torch.Tensor | None = None
) -> torch.Tensor:
    """Additive attention of Fastformer, without dropout.

    Per head of d channels, with value = query as the paper shares them and logits that
    see the channels of all heads as in the authors' code:

        alpha = softmax_t(W_qa q_t / sqrt(d))    global query = sum_t alpha_t q_t
        p_t = global query * k_t
        beta = softmax_t(W_ka p_t / sqrt(d))     global key = sum_t beta_t p_t
        y_t = W_t (global key * q_t) + q_t

    Where frames see different others, both sums are those over what t sees, and p_t
    has the global query of t.

    Args:
        layer: Holder of the linear maps `query`, `query_att`, `key`, `key_att` and
            `transform`: ours or ESPnet's FastSelfAttention.
        x: Input (B, T, D).
        mask: (B, 1, T), non-zero on real frames, or (B, T, T), non-zero where frame t
            sees frame t'.

    Returns:
        Output (B, T, D).
    """
    heads = layer.query_att.out_features

    def pool(frames: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        scale = (frames.size(2) / heads) ** -0.5
        logits = scale * logits.transpose(1, 2).unsqueeze(2)  # (B, H, 1, T')
        seen = None if mask is None else mask.unsqueeze(1)  # (B, 1, 1 or T, T')
        weights = _masked_softmax(logits, seen, dim=3)
        per_head = frames.unflatten(2, (heads, -1))  # (B, T', H, d)
        pooled = torch.einsum("bhqt,bthd->bqhd", weights, per_head)
        return pooled.flatten(2)  # (B, 1 or T, D)

    q, k = layer.query(x), layer.key(x)
    p = k * pool(q, layer.query_att(q))
    return layer.transform(q * pool(p, layer.key_att(p))) + q


def aft(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    bias: torch.Tensor,
    mask: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attention Free Transformer on projected inputs, without dropout.

        y_t = sigmoid(q_t) * sum_t' exp(k_t' + w_tt') v_t' / sum_t' exp(k_t' + w_tt')

    The bias makes the form: AFT-full any w; AFT-local w within a window and zero
    outside of it; AFT-simple w = 0; AFT-conv one w a head that depends on t' - t alone.

    Args:
        q: Queries (B, T, D).
        k: Keys, one a channel (B, T, D) or one a head (B, T, H).
        v: Values (B, T, D).
        bias: w, broadcastable to (T, T), or to (H, T, T) with a matrix a head.
        mask: (B, 1, T), non-zero on real frames, or (B, T, T), non-zero where frame t
            sees frame t'.

    Returns:
        Output (B, T, D). An utterance without any real frame gives zeros.
    """
    size = q.size(2)
    k = k.repeat_interleave(size // k.size(2), dim=2)
    if bias.dim() == 3:
        bias = bias.repeat_interleave(size // bias.size(0), dim=0)
        bias = bias.permute(1, 2, 0)  # (T, T, D)
    else:
        bias = bias.unsqueeze(-1)
    keep = None if mask is None else mask.unsqueeze(-1)  # (B, 1, T, 1)
    weights = _masked_softmax(k.unsqueeze(1) + bias, keep, dim=2)  # (B, T, T', D)
    return q.sigmoid() * (weights * v.unsqueeze(1)).sum(2)


def dense_bias(table: torch.Tensor, length: int) -> torch.Tensor:
    """Position bias w_tt' = table_tt'; zero where t or t' is beyond the table.

    Args:
        table: (N, N).
        length: Number of frames T.

    Returns:
        Bias (T, T).
    """
    table = table[:length, :length]
    missing = length - table.size(0)
    return pad(table, (0, missing, 0, missing))


def factorized_bias(
    query: torch.Tensor, key: torch.Tensor, length: int
) -> torch.Tensor:
    """Position bias w_tt' = query_t . key_t'; zero where t or t' is beyond the tables.

    Args:
        query: u of the paper, (N, rank).
        key: v of the paper, (N, rank).
        length: Number of frames T.

    Returns:
        Bias (T, T).
    """
    return dense_bias(query @ key.T, length)


def offset_bias(taps: torch.Tensor, length: int) -> torch.Tensor:
    """Position bias that depends on the offset t' - t only; zero beyond the taps.

    Args:
        taps: (..., K) with K odd; tap j belongs to the offset j - (K - 1) / 2.
        length: Number of frames T.

    Returns:
        Bias (..., T, T).
    """
    width = taps.size(-1)
    frames = torch.arange(length, device=taps.device)
    tap = frames - frames[:, None] + (width - 1) // 2  # (T, T')
    bias = taps[..., tap.clamp(0, width - 1)]
    return bias.where((tap >= 0) & (tap < width), 0)


def within_window(bias: torch.Tensor, window_size: int) -> torch.Tensor:
    """Zero the position bias where |t - t'| >= s, as AFT-local does.

    Args:
        bias: (T, T).
        window_size: s of the paper, in frames.

    Returns:
        Bias (T, T).
    """
    return bias.tril(window_size - 1).triu(1 - window_size)


def conv_filter(
    weight: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor
) -> torch.Tensor:
    """Reparameterised filter of AFT-conv, gamma * (w - mean(w)) / std(w) + beta.

    Args:
        weight: One filter a head (H, K).
        scale: gamma (H, 1).
        shift: beta (H, 1).

    Returns:
        Filter (H, K), to be spread over frames by `offset_bias`.
    """
    centred = weight - weight.mean(1, keepdim=True)
    std = (centred.square().mean(1, keepdim=True) + 1e-12).sqrt()
    return scale * centred / std + shift


def chunk_mask(length: int, chunk_size: int, num_left: int | None) -> torch.Tensor:
    """Which frames each frame sees: its own chunk, and those before it.

    Args:
        length: Number of frames T.
        chunk_size: Frames of a chunk.
        num_left: Number of earlier chunks that are seen; None for all.

    Returns:
        (T, T), true where frame t sees frame t'.
    """
    chunk = torch.arange(length) // chunk_size
    back = chunk[:, None] - chunk
    return (back >= 0) & (back <= (length if num_left is None else num_left))


def chunked_convolution(
    conv: torch.nn.Conv1d, x: torch.Tensor, chunk_size: int
) -> torch.Tensor:
    """Convolution along time that reads zeros in place of later chunks.

    Args:
        conv: Keeps the length.
        x: (B, D, T).
        chunk_size: Frames of a chunk.

    Returns:
        (B, D, T).
    """
    chunks = []
    for first in range(0, x.size(2), chunk_size):
        seen = x[:, :, : first + chunk_size]
        missing = x.size(2) - seen.size(2)
        chunks.append(conv(pad(seen, (0, missing)))[:, :, first : first + chunk_size])
    return torch.cat(chunks, dim=2)
