"""Attention Free Transformer: full, local, simple and conv.

Reference:
    Zhai et al., "An Attention Free Transformer", https://arxiv.org/abs/2105.14103

All forms compute, channel by channel (equation 2 of the paper)::

    y_t = sigmoid(q_t) * sum_t' exp(k_t' + w_tt') v_t' / sum_t' exp(k_t' + w_tt')

and differ in the position bias w. No form builds more than T x D values an utterance,
beside the T x T bias that AFT-full is defined by.
"""

from abc import abstractmethod

import torch
from torch.nn import functional as F
from typeguard import typechecked

from espnet_fastformer.layers.dropout import Dropout

# exp(k) and exp(w) meet only in a matrix product, so each is shifted by its own
# maximum. If the largest sum k + w of a query lies far below max(k) + max(w), the
# product of two factors in [0, 1] underflows though its share is large. Factors around
# exp(30) instead keep float32 exact for k and w that span 100 each, and leave a factor
# of 1e12 for the values and the number of frames. Then no denominator is below
# exp(2 * 30 - 100); the bound keeps gradients finite beyond that.
_CENTRE = 30.0
_LEAST_DENOMINATOR = 1e-19

# Frames that AFT-local and AFT-conv treat as one block, unless the window is wider.
_BLOCK = 64


class AFT(torch.nn.Module):
    """What all forms share: linear maps, weights of the keys, gate.

    Keys over the time of an utterance and position biases may span 100 each, as from
    -50 to 50, whatever the dtype of the input.

    Args:
        size: Number of channels D.
        key_size: Number of keys a frame: D, or one a head.
        dropout_rate: Dropout on the pooled values.
        use_out_proj: Whether a linear map follows the gate.
    """

    def __init__(
        self, size: int, key_size: int, dropout_rate: float, use_out_proj: bool
    ):
        super().__init__()
        self.linear_q = torch.nn.Linear(size, size)
        self.linear_k = torch.nn.Linear(size, key_size)
        self.linear_v = torch.nn.Linear(size, size)
        self.linear_out = torch.nn.Linear(size, size) if use_out_proj else None
        self.dropout = Dropout(dropout_rate)

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Pool the values over time and gate them by the query.

        Args:
            query: (B, T, D), any floating-point dtype.
            key: (B, T, D).
            value: (B, T, D).
            mask: (B, 1, T), any dtype, non-zero on real frames; None if all are real.

        Returns:
            Output (B, T, D). An utterance of padding alone pools to zero.

        Raises:
            ValueError: If the mask differs between queries, as a causal one does.
        """
        if mask is not None and (mask.dim() != 3 or mask.size(1) != 1):
            raise ValueError(
                f"mask must have shape (batch, 1, time), but has {tuple(mask.shape)}"
            )
        query = self.linear_q(query)
        key = self.linear_k(key)
        value = self.linear_v(value)

        with torch.autocast(query.device.type, enabled=False):
            dtype = torch.promote_types(value.dtype, torch.float32)
            pooled = self.pool(key_weights(key.to(dtype), mask), value.to(dtype))
        y = torch.sigmoid(query) * self.dropout(pooled.to(query.dtype))
        return y if self.linear_out is None else self.linear_out(y)

    @abstractmethod
    def pool(self, key_weights: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """Return the values averaged with the weights exp(k_t' + w_tt') over t'.

        Args:
            key_weights: exp(k) up to a factor a channel (B, T, K), zero on padding,
                float32 or float64.
            value: (B, T, D) in the same dtype.

        Returns:
            (B, T, D), or (B, 1, D) if it is the same for all frames.
        """
        raise NotImplementedError

    def attention_weights(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None = None,
    ) -> dict[str, torch.Tensor]:
        """Return what the frames weigh by their keys alone, without position bias.

        The arguments are those of :meth:`forward`.

        Returns:
            ``key_weights``: softmax of the keys over time (B, K, T) in at least
            float32. They sum to one over the real frames and are zero on padding.
        """
        key = self.linear_k(key)
        with torch.autocast(key.device.type, enabled=False):
            dtype = torch.promote_types(key.dtype, torch.float32)
            weights = key_weights(key.to(dtype), mask)
            return {"key_weights": divide(weights, weights.sum(1, keepdim=True)).mT}

    def position_bias_matrix(
        self, frames: int, dtype: torch.dtype = torch.float32
    ) -> torch.Tensor | None:
        """Return the position bias w of all pairs of positions, for looking inside.

        Args:
            frames: Number of frames T.
            dtype: That of the result.

        Returns:
            (1, T, T), or (H, T, T) with a filter a head; None where there is none.
        """
        return None

    def espnet_initialization_fn(self):
        """Initialise the position biases, after ESPnet's ``init:`` overwrote them."""


class AFTSimple(AFT):
    """AFT without position bias (section 3.3): one average for all frames.

    Args:
        size: Number of channels D.
        dropout_rate: Dropout on the pooled values.
        use_out_proj: Whether a linear map follows the gate.
    """

    @typechecked
    def __init__(self, size: int, dropout_rate: float = 0.0, use_out_proj: bool = True):
        super().__init__(size, size, dropout_rate, use_out_proj)

    def pool(self, key_weights: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """See :meth:`AFT.pool`."""
        return divide(
            (key_weights * value).sum(1, keepdim=True),
            key_weights.sum(1, keepdim=True),
        )


class AFTFull(AFT):
    """AFT with a learned bias for every pair of positions (section 3.1).

    Queries and keys at positions from ``max_len`` on have bias zero, so that any
    length works. One matrix product of size max_len x max_len x 2D an utterance; the
    rest is linear in time.

    Args:
        size: Number of channels D.
        dropout_rate: Dropout on the pooled values.
        use_out_proj: Whether a linear map follows the gate.
        max_len: Number of positions with a bias.
        bias: ``factorized``: w_tt' = u_t . v_t'; ``dense``: one parameter a pair.
        bias_rank: Length of u_t and v_t'.
        simple: Fix a dense bias at zero instead of learning it from one.

    Raises:
        ValueError: If an option is out of its range.
    """

    @typechecked
    def __init__(
        self,
        size: int,
        dropout_rate: float = 0.0,
        use_out_proj: bool = True,
        max_len: int = 1024,
        bias: str = "factorized",
        bias_rank: int = 64,
        simple: bool = False,
    ):
        super().__init__(size, size, dropout_rate, use_out_proj)
        check_positive(max_len=max_len, bias_rank=bias_rank)
        if simple and bias != "dense":
            raise ValueError("simple=True fixes a dense bias: it needs bias='dense'")
        self.max_len = max_len
        self.simple = simple
        if bias == "factorized":
            self.position_bias = FactorizedBias(max_len, bias_rank)
        elif bias == "dense":
            ones = torch.ones(max_len, max_len)
            if simple:
                self.register_buffer("position_bias", ones.zero_())
            else:
                self.position_bias = torch.nn.Parameter(ones)
        else:
            raise ValueError(f"bias must be factorized or dense, but is {bias!r}")

    def espnet_initialization_fn(self):
        """Initialise a dense bias to one; a factorised one does it by itself."""
        if isinstance(self.position_bias, torch.nn.Parameter):
            torch.nn.init.ones_(self.position_bias)

    def pool(self, key_weights: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """See :meth:`AFT.pool`."""
        if torch.compiler.is_exporting():
            return self._pool_any_length(weighted_values(key_weights, value))
        frames = value.size(1)
        near = min(frames, self.max_len)
        bias = self._bias(near, value.dtype)

        # The pairs without a bias share one weight, exp(0), in each row.
        sums = weighted_values(key_weights, value)  # (B, T, 2D)
        bias_weights, rest_weight = exp_bias(bias, has_rest=frames > near)
        pooled = torch.matmul(bias_weights, sums[:, :near])
        if frames > near:
            rest = sums[:, near:].sum(1, keepdim=True)
            pooled = pooled + rest_weight * rest
            unbiased = sums[:, :near].sum(1, keepdim=True) + rest
            pooled = torch.cat([pooled, unbiased.expand(-1, frames - near, -1)], dim=1)
        return divide(*pooled.chunk(2, dim=-1))

    def _pool_any_length(self, sums: torch.Tensor) -> torch.Tensor:
        """Pool exp(k) v and exp(k) (B, T, 2D) in one form for all lengths.

        It always takes the product of ``max_len`` positions.
        """
        frames = sums.size(1)
        is_near = torch.arange(frames, device=sums.device) < self.max_len
        near = F.pad(sums, (0, 0, 0, self.max_len))[:, : self.max_len]
        rest = sums.masked_fill(is_near[:, None], 0.0).sum(1, keepdim=True)
        bias = self._bias(self.max_len, sums.dtype)
        bias_weights, rest_weight = exp_bias(bias, has_rest=True)
        pooled = torch.matmul(bias_weights, near) + rest_weight * rest
        unbiased = sums.sum(1, keepdim=True).expand(-1, frames, -1)
        pooled = torch.cat([pooled, unbiased], dim=1)[:, :frames]
        return divide(*pooled.chunk(2, dim=-1))

    def _bias(self, positions: int, dtype: torch.dtype) -> torch.Tensor:
        if isinstance(self.position_bias, FactorizedBias):
            return self.position_bias(positions, dtype)
        return self.position_bias[:positions, :positions].to(dtype)

    def position_bias_matrix(
        self, frames: int, dtype: torch.dtype = torch.float32
    ) -> torch.Tensor:
        """See :meth:`AFT.position_bias_matrix`."""
        near = min(frames, self.max_len)
        bias = self._bias(near, dtype)
        return F.pad(bias, (0, frames - near, 0, frames - near)).unsqueeze(0)


class AFTLocal(AFT):
    """AFT with a bias for near frames only (section 3.2), linear in time.

    w_tt' is learned where ``|t - t'| < window_size`` and zero elsewhere: the sum still
    runs over the whole utterance.

    Args:
        size: Number of channels D.
        dropout_rate: Dropout on the pooled values.
        use_out_proj: Whether a linear map follows the gate.
        window_size: Window s in frames.
        bias: ``offset``: one parameter for each t' - t, for any length;
            ``factorized``: w_tt' = u_t . v_t' by absolute position, as in the paper.
        bias_rank: Length of u_t and v_t'.
        max_len: Number of positions with a bias, if it is factorised.

    Raises:
        ValueError: If an option is out of its range.
    """

    @typechecked
    def __init__(
        self,
        size: int,
        dropout_rate: float = 0.0,
        use_out_proj: bool = True,
        window_size: int = 32,
        bias: str = "offset",
        bias_rank: int = 64,
        max_len: int = 1024,
    ):
        super().__init__(size, size, dropout_rate, use_out_proj)
        check_positive(window_size=window_size, bias_rank=bias_rank, max_len=max_len)
        self.radius = window_size - 1
        if bias == "offset":
            self.position_bias = torch.nn.Parameter(torch.empty(2 * self.radius + 1))
        elif bias == "factorized":
            self.position_bias = FactorizedBias(max_len, bias_rank)
        else:
            raise ValueError(f"bias must be offset or factorized, but is {bias!r}")
        self.espnet_initialization_fn()

    def espnet_initialization_fn(self):
        """Initialise a bias by offset; a factorised one does it by itself."""
        if isinstance(self.position_bias, torch.nn.Parameter):
            torch.nn.init.normal_(self.position_bias, std=0.01)

    def pool(self, key_weights: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """See :meth:`AFT.pool`."""
        sums = weighted_values(key_weights, value).unsqueeze(1)  # (B, 1, T, 2D)
        if isinstance(self.position_bias, FactorizedBias):
            if torch.compiler.is_exporting():
                raise ValueError(
                    "AFT-local with a factorized bias cannot be exported, but with "
                    "bias='offset'"
                )
            blocks = Blocks(value.size(1), self.radius)
            factors = self.position_bias.factors(value.size(1), value.dtype)
            pooled = blocks.weighted_sum(blocks.band_of_factors(*factors), sums)
        else:
            pooled = sum_by_offsets(self.position_bias.to(value.dtype)[None], sums)
        pooled = pooled.squeeze(1)
        return divide(*pooled.chunk(2, dim=-1))

    def position_bias_matrix(
        self, frames: int, dtype: torch.dtype = torch.float32
    ) -> torch.Tensor:
        """See :meth:`AFT.position_bias_matrix`."""
        if isinstance(self.position_bias, FactorizedBias):
            bias = self.position_bias(frames, dtype)
            return bias.tril(self.radius).triu(-self.radius).unsqueeze(0)
        return matrix_of_offsets(self.position_bias.to(dtype)[None], frames)


class AFTConv(AFT):
    """AFT with a bias by offset and one key a head (section 3.4), linear in time.

    The bias is a filter of ``kernel_size`` taps a head and zero elsewhere, learned as
    gamma (w - mean(w)) / std(w) + beta with gamma = beta = 0 at the start, where the
    form is AFT-simple with one key a head.

    Args:
        size: Number of channels D.
        dropout_rate: Dropout on the pooled values.
        use_out_proj: Whether a linear map follows the gate.
        attention_heads: Number of heads H.
        kernel_size: Number of taps K, odd.

    Raises:
        ValueError: If an option is out of its range.
    """

    @typechecked
    def __init__(
        self,
        size: int,
        dropout_rate: float = 0.0,
        use_out_proj: bool = True,
        attention_heads: int = 4,
        kernel_size: int = 31,
    ):
        check_positive(attention_heads=attention_heads, kernel_size=kernel_size)
        if size % attention_heads != 0:
            raise ValueError(
                f"size ({size}) must be a multiple of attention_heads "
                f"({attention_heads})"
            )
        if kernel_size % 2 == 0:
            raise ValueError(f"kernel_size must be odd, but is {kernel_size}")
        super().__init__(size, attention_heads, dropout_rate, use_out_proj)
        self.radius = (kernel_size - 1) // 2
        self.filter_weight = torch.nn.Parameter(
            torch.empty(attention_heads, kernel_size)
        )
        self.filter_scale = torch.nn.Parameter(torch.empty(attention_heads, 1))
        self.filter_shift = torch.nn.Parameter(torch.empty(attention_heads, 1))
        self.espnet_initialization_fn()

    def espnet_initialization_fn(self):
        """Initialise the filters, so that each bias is zero."""
        torch.nn.init.normal_(self.filter_weight)
        torch.nn.init.zeros_(self.filter_scale)
        torch.nn.init.zeros_(self.filter_shift)

    def pool(self, key_weights: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """See :meth:`AFT.pool`."""
        batch, frames, heads = key_weights.shape
        value = value.view(batch, frames, heads, -1).transpose(1, 2)
        key_weights = key_weights.transpose(1, 2).unsqueeze(-1)
        sums = weighted_values(key_weights, value)  # (B, H, T, D / H + 1)
        pooled = sum_by_offsets(self._filters(value.dtype), sums)
        pooled = divide(pooled[..., :-1], pooled[..., -1:])
        return pooled.transpose(1, 2).flatten(2)

    def _filters(self, dtype: torch.dtype) -> torch.Tensor:
        weight = self.filter_weight.to(dtype)
        normalized = F.layer_norm(weight, weight.shape[-1:], eps=1e-12)
        filters = self.filter_scale.to(dtype) * normalized
        return filters + self.filter_shift.to(dtype)  # (H, K)

    def position_bias_matrix(
        self, frames: int, dtype: torch.dtype = torch.float32
    ) -> torch.Tensor:
        """See :meth:`AFT.position_bias_matrix`."""
        return matrix_of_offsets(self._filters(dtype), frames)


class FactorizedBias(torch.nn.Module):
    """Position bias w_tt' = u_t . v_t' of low rank (section 3.1 of the paper).

    Args:
        max_len: Number of positions; those after it have bias zero.
        rank: Length of u_t and v_t'.
    """

    def __init__(self, max_len: int, rank: int):
        super().__init__()
        self.query = torch.nn.Parameter(torch.empty(max_len, rank))
        self.key = torch.nn.Parameter(torch.empty(max_len, rank))
        self.espnet_initialization_fn()

    def espnet_initialization_fn(self):
        """Initialise both factors from N(0, 0.01^2), as the paper does."""
        torch.nn.init.normal_(self.query, std=0.01)
        torch.nn.init.normal_(self.key, std=0.01)

    def factors(
        self, frames: int, dtype: torch.dtype
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return u and v of the first positions, each (frames, rank)."""
        missing = max(0, frames - self.query.size(0))
        return tuple(
            F.pad(factor[:frames].to(dtype), (0, 0, 0, missing))
            for factor in (self.query, self.key)
        )

    def forward(self, frames: int, dtype: torch.dtype) -> torch.Tensor:
        """Return the bias of the first positions, (frames, frames)."""
        query, key = self.factors(frames, dtype)
        return query @ key.T


class Blocks:
    """An utterance cut into blocks so wide that a window reaches one block further.

    A sum over all keys, of which those within ``radius`` frames have a weight of their
    own and the rest share one, is then a product with three small matrices a block
    and one sum over the blocks before and after those. Adding what lies inside and
    outside the window, instead of correcting the sum over all keys by (exp(w) - 1),
    leaves no cancellation: every term of a denominator is positive.

    Args:
        frames: Number of frames T.
        radius: Number of frames on each side of a query with a bias of their own.
    """

    def __init__(self, frames: int, radius: int):
        self.frames = frames
        self.radius = radius
        self.length = max(min(radius, frames), _BLOCK)
        self.count = -(-frames // self.length)

    def cut(self, x: torch.Tensor) -> torch.Tensor:
        """Cut (..., T, C) into (..., N, L, C), with zeros after the last frame."""
        missing = self.count * self.length - self.frames
        return F.pad(x, (0, 0, 0, missing)).unflatten(-2, (self.count, self.length))

    def band_of_offsets(self, bias: torch.Tensor) -> torch.Tensor:
        """Lay out a bias by offset over a block's queries and their three blocks.

        Args:
            bias: (H, 2 * radius + 1), entry j for t' - t = j - radius.

        Returns:
            (H, 1, L, 3L), zero outside the band.
        """
        offset = self._offsets(bias.device)
        taps = bias[:, (offset + self.radius).clamp(0, 2 * self.radius)]
        return taps.masked_fill(offset.abs() > self.radius, 0.0).unsqueeze(1)

    def band_of_factors(self, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        """Lay out the bias u_t . v_t' of every block.

        Args:
            query: u (T, rank).
            key: v (T, rank).

        Returns:
            (1, N, L, 3L), zero outside the band.
        """
        key = F.pad(self.cut(key), (0, 0, 0, 0, 1, 1))
        key = torch.cat([key[:-2], key[1:-1], key[2:]], dim=1)  # (N, 3L, rank)
        band = torch.matmul(self.cut(query), key.transpose(1, 2))
        outside = self._offsets(band.device).abs() > self.radius
        return band.masked_fill(outside, 0.0).unsqueeze(0)

    def weighted_sum(self, bias: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Sum over all keys with weights exp(bias), up to a factor a query.

        Args:
            bias: Bias of each block's queries for the keys of three blocks,
                (H, N or 1, L, 3L); all other keys have bias zero.
            x: What is summed (B, H, T, C), zero on padding.

        Returns:
            (B, H, T, C).
        """
        near, far = exp_bias(bias, has_rest=True)
        before, here, after = near.chunk(3, dim=-1)
        x = self.cut(x)  # (B, H, N, L, C)
        out = torch.matmul(here, x)
        if self.count > 1:
            # A bias of its own for each block: the first has none before it.
            before, after = (
                (before, after) if near.size(1) == 1 else (before[:, 1:], after[:, :-1])
            )
            out = out + shift(torch.matmul(before, x[:, :, :-1]), 1)
            out = out + shift(torch.matmul(after, x[:, :, 1:]), -1)
        if self.count > 2:
            block_sum = x.sum(-2, keepdim=True)
            earlier = block_sum[:, :, :-2].cumsum(2)
            later = block_sum[:, :, 2:].flip(2).cumsum(2).flip(2)
            out = out + far * (shift(earlier, 2) + shift(later, -2))
        return out.flatten(2, 3)[:, :, : self.frames]

    def _offsets(self, device: torch.device) -> torch.Tensor:
        """Return t' - t for a block's queries and its three blocks' keys, (L, 3L)."""
        query = torch.arange(self.length, device=device)
        key = torch.arange(-self.length, 2 * self.length, device=device)
        return key - query[:, None]


def sum_by_offsets(bias: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Sum over all keys with weights exp(bias), up to a factor a head.

    Args:
        bias: (H, 2 * radius + 1), entry j for t' - t = j - radius; zero elsewhere.
        x: What is summed (B, H, T, C), zero on padding.

    Returns:
        (B, H, T, C).
    """
    frames, radius = x.size(2), bias.size(1) // 2
    if not torch.compiler.is_exporting():
        blocks = Blocks(frames, radius)
        return blocks.weighted_sum(blocks.band_of_offsets(bias), x)
    # In one form for all lengths: a convolution, and sums of all before and after it.
    near, far = exp_bias(bias, has_rest=True)
    rows = x.permute(0, 3, 1, 2).flatten(0, 1)  # (B * C, H, T)
    rows = F.conv1d(rows, near.unsqueeze(1), padding=radius, groups=bias.size(0))
    out = rows.unflatten(0, (-1, x.size(3))).permute(0, 2, 3, 1)
    gap = (0, 0, radius + 1, 0)
    before = F.pad(x.cumsum(2), gap)[:, :, :frames]
    after = F.pad(x.flip(2).cumsum(2), gap)[:, :, :frames].flip(2)
    return out + far.unsqueeze(1) * (before + after)


def key_weights(key: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """Return exp(k - max k + a constant) over time, zero on padding.

    Args:
        key: (B, T, K), float32 or float64.
        mask: (B, 1, T), non-zero on real frames, or None.
    """
    if mask is not None:
        key = key.masked_fill(mask.eq(0).transpose(1, 2), float("-inf"))
    # The maximum cancels, so it needs no gradient; -inf is that of padding alone.
    top = key.detach().amax(1, keepdim=True)
    return torch.exp(key - top.masked_fill(top == float("-inf"), 0.0) + _CENTRE)


def exp_bias(bias: torch.Tensor, has_rest: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Return exp(w - max w + a constant) for each query.

    Args:
        bias: w (..., queries, keys).
        has_rest: Whether there are further keys, of bias zero.

    Returns:
        The weights (..., queries, keys), and that of further keys (..., queries, 1).
    """
    top = bias.detach().amax(-1, keepdim=True)
    if has_rest:
        top = top.clamp(min=0.0)
    return torch.exp(bias - top + _CENTRE), torch.exp(_CENTRE - top)


def matrix_of_offsets(bias: torch.Tensor, frames: int) -> torch.Tensor:
    """Lay out a bias by offset over all pairs of frames.

    Args:
        bias: (H, 2 * radius + 1), entry j for t' - t = j - radius.
        frames: Number of frames T.

    Returns:
        (H, T, T), zero outside the band.
    """
    missing = frames - 1 - bias.size(-1) // 2  # Negative where the band is wider.
    return F.pad(bias, (missing, missing)).unfold(-1, frames, 1).flip(-2)


def weighted_values(key_weights: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Lay exp(k) v and exp(k) side by side, as both are summed alike."""
    return torch.cat([key_weights * value, key_weights], dim=-1)


def divide(numerator: torch.Tensor, denominator: torch.Tensor) -> torch.Tensor:
    """Divide, with zero where nothing was summed."""
    return numerator / denominator.clamp(min=_LEAST_DENOMINATOR)


def shift(blocks: torch.Tensor, places: int) -> torch.Tensor:
    """Move (B, H, N, L, C) by some blocks, later if positive, with zeros behind."""
    padding = (places, 0) if places > 0 else (0, -places)
    return F.pad(blocks, (0, 0, 0, 0, *padding))


def check_positive(**options: int):
    """Raise ValueError that names the first option below one."""
    for name, value in options.items():
        if value < 1:
            raise ValueError(f"{name} must be at least 1, but is {value}")
