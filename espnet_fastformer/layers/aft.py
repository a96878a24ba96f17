"""Attention Free Transformer: full, local, simple and conv.

Reference:
    Zhai et al., "An Attention Free Transformer", https://arxiv.org/abs/2105.14103

All forms compute, channel by channel (equation 2 of the paper)::

    y_t = sigmoid(q_t) * sum_t' exp(k_t' + w_tt') v_t' / sum_t' exp(k_t' + w_tt')

and differ in the position bias w. No form builds more than T x D values an utterance,
beside the T x T bias that AFT-full is defined by.
"""

from abc import abstractmethod
from collections.abc import Iterator
from functools import reduce

import torch
from torch.nn import functional as F
from typeguard import typechecked

from espnet_fastformer.layers.chunks import ChunkedLayer
from espnet_fastformer.layers.modes import is_exporting, without_autocast
from espnet_fastformer.layers.padding import padding_of
from espnet_fastformer.layers.pieces import by_pieces, pieces
from espnet_fastformer.layers.sums import (
    Sums,
    WholeUtterance,
    band_of_offsets,
    divide,
    exp_bias,
    greatest_key,
    key_weights,
    product,
    sum_by_filter,
    sum_by_offsets,
    sum_over_chunks,
    total,
    weigh,
)
from espnet_fastformer.options import check_heads, check_odd, check_sizes

NO_CHUNKS = "biases by absolute position cannot be summed in chunks"


class AFT(ChunkedLayer, torch.nn.Module):
    """What all forms share: linear maps, weights of the keys, gate.

    Keys over the time of an utterance and position biases may span 100 each, as from
    -50 to 50, whatever the dtype of the input.

    Args:
        size: Number of channels D.
        key_size: Number of keys a frame: D, or one a head.
        dropout_rate: Dropout on the pooled values.
        use_out_proj: Whether a linear map follows the gate.
        heads: Number of heads H, if each has position biases of its own.
    """

    def __init__(
        self,
        size: int,
        key_size: int,
        dropout_rate: float,
        use_out_proj: bool,
        heads: int = 1,
    ):
        super().__init__()
        self.heads = heads
        self.linear_q = torch.nn.Linear(size, size)
        self.linear_k = torch.nn.Linear(size, key_size)
        self.linear_v = torch.nn.Linear(size, size)
        self.linear_out = torch.nn.Linear(size, size) if use_out_proj else None
        self.dropout = torch.nn.Dropout(dropout_rate)

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
        padding = None if mask is None else padding_of(mask).mT
        sums = self.weigh_values(key, value, padding)
        frames, value_size = query.size(1), query.size(2) // self.heads
        with without_autocast(query.device):
            parts = self.sum_over_keys(sums, frames)
            pooled = [divide(part, value_size) for part in parts]
        if self.chunks is not None:
            return self._gate(query, pooled[0])
        if len(pooled) == 1:
            return by_pieces(self._gate, query, pooled[0][:, :frames])
        queries = query.split(pooled[0].size(1), dim=1)
        pooled[-1] = pooled[-1][:, : queries[-1].size(1)]
        return torch.cat(list(map(self._gate, queries, pooled)), dim=1)

    def weigh_values(
        self,
        key: torch.Tensor,
        value: torch.Tensor,
        padding: torch.Tensor | None,
        zeros_around: tuple[int, int] = (0, 0),
    ) -> Sums:
        """Return exp(k) v and exp(k), up to a factor a key, for :meth:`sum_over_keys`.

        Args:
            key: (B, T, D).
            value: (B, T, D).
            padding: (B, T, 1), true on padding; None if there is none.
            zeros_around: Frames of zeros that are added before and after.
        """
        size = None if self.chunks is None else self.chunks.size
        key, value = self.linear_k(key), self.linear_v(value)
        return weigh(key, value, padding, self.heads, size, zeros_around)

    def _gate(self, query: torch.Tensor, pooled: torch.Tensor) -> torch.Tensor:
        """Multiply values pooled for all frames, for each chunk or for each frame."""
        gate = torch.sigmoid(self.linear_q(query))
        pooled = self.dropout(pooled.to(gate.dtype))
        if self.chunks is None:
            y = gate * pooled
        else:
            gate = gate.unflatten(1, (pooled.size(1), -1))
            y = (gate * pooled.unsqueeze(2)).flatten(1, 2)
        return y if self.linear_out is None else self.linear_out(y)

    @abstractmethod
    def sum_over_keys(self, sums: Sums, frames: int) -> Iterator[torch.Tensor]:
        """Sum over t' with the weights exp(w_tt'), up to a factor a query.

        Args:
            sums: What :meth:`weigh_values` returns.
            frames: Number of frames T.

        Yields:
            (B, H, some of N, C, V + K / H) in order, or (B, H, N, 1, V + K / H) that
            are the same for all frames of a chunk.

        Raises:
            ValueError: If there are chunks, which the biases do not know.
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
        with without_autocast(key.device):
            padding = None if mask is None else padding_of(mask).mT
            weights = key_weights(key, greatest_key(key, padding), padding)
            least = torch.finfo(weights.dtype).tiny  # Padding alone sums to zero.
            weights = weights / weights.sum(1, keepdim=True).clamp(min=least)
            return {"key_weights": weights.mT}

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

    def weigh_values(self, *inputs: torch.Tensor | None) -> Sums:
        """See :meth:`AFT.weigh_values`; summed at once, as all queries weigh alike."""
        if self.chunks is not None:
            return total(super().weigh_values(*inputs))
        weigh_values = super().weigh_values
        return reduce(
            Sums.plus, (total(weigh_values(*piece)) for _, piece in pieces(*inputs))
        )

    def sum_over_keys(self, sums: Sums, frames: int) -> Iterator[torch.Tensor]:
        """See :meth:`AFT.sum_over_keys`."""
        yield sum_over_chunks(sums, self.chunks)


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
        check_sizes(max_len=max_len, bias_rank=bias_rank)
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
        if not (self.simple or isinstance(self.position_bias, FactorizedBias)):
            torch.nn.init.ones_(self.position_bias)

    def sum_over_keys(self, sums: Sums, frames: int) -> Iterator[torch.Tensor]:
        """See :meth:`AFT.sum_over_keys`."""
        if self.chunks is not None:
            raise ValueError(f"{NO_CHUNKS}: AFT-full")
        if not is_exporting() and frames <= self.max_len:
            near, _ = exp_bias(self._bias(frames, sums.sums.dtype), has_rest=False)
            yield product(near[None, None], sums.sums)
        else:
            yield self._sum_beyond(sums.sums, frames)

    def _sum_beyond(self, sums: torch.Tensor, frames: int) -> torch.Tensor:
        """Sum (B, 1, 1, T, C) for T beyond ``max_len``, or for any T in one form."""
        if is_exporting():  # A slice from max_len on would be for longer T alone.
            near = F.pad(sums, (0, 0, 0, self.max_len))[:, :, :, : self.max_len]
            is_near = torch.arange(frames, device=sums.device) < self.max_len
            rest = sums.masked_fill(is_near[:, None], 0.0).sum(3, keepdim=True)
        else:
            near = sums[:, :, :, : self.max_len]
            rest = sums[:, :, :, self.max_len :].sum(3, keepdim=True)
        weights, rest_weight = exp_bias(self._bias(self.max_len, sums.dtype))
        biased = product(weights[None, None], near) + rest_weight * rest
        unbiased = sums.sum(3, keepdim=True).expand(-1, -1, -1, frames, -1)
        return torch.cat([biased, unbiased], dim=3)[:, :, :, :frames]

    def _bias(self, positions: int, dtype: torch.dtype) -> torch.Tensor:
        bias = self.position_bias
        if isinstance(bias, FactorizedBias):
            query, key = bias(positions, dtype)
            return query @ key.T
        return bias[:positions, :positions].to(dtype)

    def position_bias_matrix(
        self, frames: int, dtype: torch.dtype = torch.float32
    ) -> torch.Tensor:
        """See :meth:`AFT.position_bias_matrix`."""
        near = min(frames, self.max_len)
        bias = self._bias(near, dtype)
        return F.pad(bias, (0, frames - near, 0, frames - near)).unsqueeze(0)


class NearBias(AFT):
    """What forms share whose bias is by offset, and zero beyond some frames.

    Attributes:
        radius: Number of frames on each side with a bias.
    """

    radius: int

    @abstractmethod
    def bias_by_offset(self, dtype: torch.dtype) -> torch.Tensor:
        """Return the bias (H, 2 * radius + 1), entry j for t' - t = j - radius."""
        raise NotImplementedError

    def takes_filter(self) -> bool:
        """Return whether to sum in one form for all lengths."""
        return is_exporting()

    def weigh_values(
        self, key: torch.Tensor, value: torch.Tensor, padding: torch.Tensor | None
    ) -> Sums:
        """See :meth:`AFT.weigh_values`."""
        around = 0, 0
        if self.chunks is None and not self.takes_filter():
            around = WholeUtterance(key.size(1), self.radius).around
        return super().weigh_values(key, value, padding, around)

    def sum_over_keys(self, sums: Sums, frames: int) -> Iterator[torch.Tensor]:
        """See :meth:`AFT.sum_over_keys`."""
        bias = self.bias_by_offset(sums.sums.dtype)
        if self.chunks is not None:
            yield sum_by_offsets(bias, sums, self.chunks)
        elif self.takes_filter():
            yield sum_by_filter(bias, sums)
        else:
            yield from WholeUtterance(frames, self.radius).sum_by_offsets(bias, sums)

    def position_bias_matrix(
        self, frames: int, dtype: torch.dtype = torch.float32
    ) -> torch.Tensor:
        """See :meth:`AFT.position_bias_matrix`."""
        return band_of_offsets(self.bias_by_offset(dtype), frames)


class AFTLocal(NearBias):
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
        check_sizes(window_size=window_size, bias_rank=bias_rank, max_len=max_len)
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
        if not isinstance(self.position_bias, FactorizedBias):
            torch.nn.init.normal_(self.position_bias, std=0.01)

    def bias_by_offset(self, dtype: torch.dtype) -> torch.Tensor:
        """See :meth:`NearBias.bias_by_offset`."""
        return self.position_bias.to(dtype)[None]

    def takes_filter(self) -> bool:
        """See :meth:`NearBias.takes_filter`."""
        is_factorized = isinstance(self.position_bias, FactorizedBias)
        return not is_factorized and super().takes_filter()

    def sum_over_keys(self, sums: Sums, frames: int) -> Iterator[torch.Tensor]:
        """See :meth:`AFT.sum_over_keys`."""
        if not isinstance(self.position_bias, FactorizedBias):
            yield from super().sum_over_keys(sums, frames)
            return
        if self.chunks is not None:
            raise ValueError(f"{NO_CHUNKS}: AFT-local with bias='factorized'")
        if torch.compiler.is_exporting():
            raise ValueError(
                "AFT-local with a factorized bias cannot be exported, but with "
                "bias='offset'"
            )
        factors = self.position_bias(frames, sums.sums.dtype)
        whole = WholeUtterance(frames, self.radius)
        yield from whole.sum_by_factors(*factors, self.radius, sums)

    def position_bias_matrix(
        self, frames: int, dtype: torch.dtype = torch.float32
    ) -> torch.Tensor:
        """See :meth:`AFT.position_bias_matrix`."""
        if not isinstance(self.position_bias, FactorizedBias):
            return super().position_bias_matrix(frames, dtype)
        query, key = self.position_bias(frames, dtype)
        bias = query @ key.T
        return bias.tril(self.radius).triu(-self.radius).unsqueeze(0)


class AFTConv(NearBias):
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
        check_sizes(attention_heads=attention_heads)
        check_heads(attention_heads, size=size)
        check_odd(kernel_size=kernel_size)
        super().__init__(
            size, attention_heads, dropout_rate, use_out_proj, heads=attention_heads
        )
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

    def bias_by_offset(self, dtype: torch.dtype) -> torch.Tensor:
        """See :meth:`NearBias.bias_by_offset`."""
        weight = self.filter_weight.to(dtype)
        normalized = F.layer_norm(weight, weight.shape[-1:], eps=1e-12)
        filters = self.filter_scale.to(dtype) * normalized
        return filters + self.filter_shift.to(dtype)


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

    def forward(
        self, frames: int, dtype: torch.dtype
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return u and v of the first positions, each (frames, rank)."""
        # Copies: of a sharded parameter, a view ends with this call.
        return tuple(
            F.pad(factor[:frames].to(dtype), (0, 0, 0, max(0, frames - len(factor))))
            for factor in (self.query, self.key)
        )
