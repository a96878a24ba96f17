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

import torch
from torch.nn import functional as F
from typeguard import typechecked

from espnet_fastformer.layers.chunks import (
    ChunkedLayer,
    Chunks,
    Sums,
    sum_over_chunks,
    sum_over_chunks_by_offsets,
    weigh_chunks,
)
from espnet_fastformer.layers.dropout import Dropout
from espnet_fastformer.layers.modes import is_exporting, without_autocast
from espnet_fastformer.layers.padding import padding_of
from espnet_fastformer.layers.pieces import by_pieces, is_long, pieces
from espnet_fastformer.layers.weighted_sum import (
    Blocks,
    divide,
    exp_bias,
    greatest_key,
    key_weights,
    sum_by_filter,
    weigh_values,
    weighted_sum,
    weighted_sum_by_pieces,
)


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

    NO_CHUNKS = "biases by absolute position cannot be summed in chunks"

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
        padding = None if mask is None else padding_of(mask).mT
        if self.chunks is not None:
            return self._forward_chunks(query, key, value, padding, self.chunks)
        blocks = self.blocks(key.size(1))
        sums = self._weigh(key, value, padding, blocks)
        value_size = value.size(2) // self.heads
        with without_autocast(sums.device):
            pooled = [
                divide(part, value_size) for part in self.sum_over_keys(sums, blocks)
            ]
        if len(pooled) == 1:
            return by_pieces(self._gate, query, pooled[0])
        queries = query.split([part.size(1) for part in pooled], dim=1)
        return torch.cat(list(map(self._gate, queries, pooled)), dim=1)

    def _forward_chunks(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        padding: torch.Tensor | None,
        chunks: Chunks,
    ) -> torch.Tensor:
        key, value = self.linear_k(key), self.linear_v(value)
        with without_autocast(key.device):
            frames = weigh_chunks(key, value, padding, self.heads, chunks)
            sums = self.sum_over_chunks(frames, chunks).flatten(0, 1)
            pooled = divide(sums, value.size(2) // self.heads)
        return self._gate(chunks.cut(query), pooled).reshape(query.shape)

    def _weigh(
        self,
        key: torch.Tensor,
        value: torch.Tensor,
        padding: torch.Tensor | None,
        blocks: Blocks,
    ) -> torch.Tensor:
        key = self.linear_k(key)
        top = greatest_key(key, padding)
        if not is_long(key.size(1)):
            value = self.linear_v(value)
            return weigh_values(key, value, top, padding, self.heads, blocks)
        weighed = (
            weigh_values(key, self.linear_v(value), top, padding, self.heads)
            for _, (key, value, padding) in pieces(key, value, padding)
        )
        return self.collect(weighed, blocks)

    def collect(self, weighed: Iterator[torch.Tensor], blocks: Blocks) -> torch.Tensor:
        """Put together what :meth:`sum_over_keys` gets, from pieces in order."""
        return blocks.join(weighed)

    def _gate(self, query: torch.Tensor, pooled: torch.Tensor) -> torch.Tensor:
        query = self.linear_q(query)
        y = torch.sigmoid(query) * self.dropout(pooled.to(query.dtype))
        return y if self.linear_out is None else self.linear_out(y)

    def blocks(self, frames: int) -> Blocks:
        """Return how time is cut: here not at all."""
        return Blocks(frames, frames)

    @abstractmethod
    def sum_over_keys(
        self, sums: torch.Tensor, blocks: Blocks
    ) -> Iterator[torch.Tensor]:
        """Sum over t' with the weights exp(w_tt'), up to a factor a query.

        Args:
            sums: exp(k) v and exp(k), up to a factor a key, (B, H, T, C), in float32 or
                float64, with zeros on padding and where ``blocks`` asks for them.
            blocks: How time is cut.

        Yields:
            (B, H, some of T, C) in order, or one (B, H, 1, C) that is the same for all
            frames.
        """
        raise NotImplementedError

    @abstractmethod
    def sum_over_chunks(self, frames: Sums, chunks: Chunks) -> torch.Tensor:
        """Do as :meth:`sum_over_keys` over the keys in the chunks that a frame sees.

        Args:
            frames: exp(k) v and exp(k) of each frame.
            chunks: How time is cut.

        Returns:
            (B, N, H, C, V + K / H), or (B, N, H, 1, V + K / H) that is the same for all
            frames of a chunk.
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

    def sum_over_keys(
        self, sums: torch.Tensor, blocks: Blocks
    ) -> Iterator[torch.Tensor]:
        """See :meth:`AFT.sum_over_keys`."""
        yield sums.sum(2, keepdim=True)

    def sum_over_chunks(self, frames: Sums, chunks: Chunks) -> torch.Tensor:
        """See :meth:`AFT.sum_over_chunks`."""
        return sum_over_chunks(frames, chunks)

    def collect(self, weighed: Iterator[torch.Tensor], blocks: Blocks) -> torch.Tensor:
        """See :meth:`AFT.collect`: a sum is all that is needed."""
        return sum(piece.sum(2, keepdim=True) for piece in weighed)


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
        if not (self.simple or isinstance(self.position_bias, FactorizedBias)):
            torch.nn.init.ones_(self.position_bias)

    def sum_over_keys(
        self, sums: torch.Tensor, blocks: Blocks
    ) -> Iterator[torch.Tensor]:
        """See :meth:`AFT.sum_over_keys`."""
        if is_exporting():
            yield self._sum_any_length(sums)
            return
        frames = sums.size(2)
        near = min(frames, self.max_len)
        if frames == near:
            bias = self._bias(frames, sums.dtype)
            yield weighted_sum(bias[None, None], sums, blocks)
        else:
            # All keys without a bias are as one whose bias is zero.
            bias = F.pad(self._bias(near, sums.dtype), (0, 1))
            rest = sums[:, :, near:].sum(2, keepdim=True)
            keys = torch.cat([sums[:, :, :near], rest], dim=2)
            biased = weighted_sum(bias[None, None], keys, Blocks(near, near))
            unbiased = keys.sum(2, keepdim=True).expand(-1, -1, frames - near, -1)
            yield torch.cat([biased, unbiased], dim=2)

    def sum_over_chunks(self, frames: Sums, chunks: Chunks) -> torch.Tensor:
        """See :meth:`AFT.sum_over_chunks`: its biases know no chunks."""
        raise ValueError(f"{self.NO_CHUNKS}: AFT-full")

    def _sum_any_length(self, sums: torch.Tensor) -> torch.Tensor:
        """Sum (B, 1, T, C) in one form for all lengths.

        It always takes the product of ``max_len`` positions.
        """
        frames = sums.size(2)
        is_near = torch.arange(frames, device=sums.device) < self.max_len
        near = F.pad(sums, (0, 0, 0, self.max_len))[:, :, : self.max_len]
        rest = sums.masked_fill(is_near[:, None], 0.0).sum(2, keepdim=True)
        bias = self._bias(self.max_len, sums.dtype)
        bias_weights, rest_weight = exp_bias(bias, has_rest=True)
        biased = torch.matmul(bias_weights, near) + rest_weight * rest
        unbiased = sums.sum(2, keepdim=True).expand(-1, -1, frames, -1)
        return torch.cat([biased, unbiased], dim=2)[:, :, :frames]

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
        if not isinstance(self.position_bias, FactorizedBias):
            torch.nn.init.normal_(self.position_bias, std=0.01)

    def blocks(self, frames: int) -> Blocks:
        """Return how time is cut."""
        return blocks_of_window(frames, self.radius)

    def sum_over_keys(
        self, sums: torch.Tensor, blocks: Blocks
    ) -> Iterator[torch.Tensor]:
        """See :meth:`AFT.sum_over_keys`."""
        bias = self.position_bias
        if not isinstance(bias, FactorizedBias):
            yield from sum_by_offsets(bias.to(sums.dtype)[None], sums, blocks)
        elif torch.compiler.is_exporting():
            raise ValueError(
                "AFT-local with a factorized bias cannot be exported, but with "
                "bias='offset'"
            )
        else:
            query, key = bias(blocks.frames, sums.dtype)
            band = blocks.band_of_factors(query, key, self.radius)
            yield from sum_by_blocks(band, sums, blocks)

    def sum_over_chunks(self, frames: Sums, chunks: Chunks) -> torch.Tensor:
        """See :meth:`AFT.sum_over_chunks`."""
        if isinstance(self.position_bias, FactorizedBias):
            raise ValueError(f"{self.NO_CHUNKS}: AFT-local with bias='factorized'")
        bias = self.position_bias.to(frames.sums.dtype)[None]
        return sum_over_chunks_by_offsets(bias, frames, chunks)

    def position_bias_matrix(
        self, frames: int, dtype: torch.dtype = torch.float32
    ) -> torch.Tensor:
        """See :meth:`AFT.position_bias_matrix`."""
        if isinstance(self.position_bias, FactorizedBias):
            query, key = self.position_bias(frames, dtype)
            bias = query @ key.T
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

    def blocks(self, frames: int) -> Blocks:
        """Return how time is cut."""
        return blocks_of_window(frames, self.radius)

    def sum_over_keys(
        self, sums: torch.Tensor, blocks: Blocks
    ) -> Iterator[torch.Tensor]:
        """See :meth:`AFT.sum_over_keys`."""
        yield from sum_by_offsets(self._filters(sums.dtype), sums, blocks)

    def sum_over_chunks(self, frames: Sums, chunks: Chunks) -> torch.Tensor:
        """See :meth:`AFT.sum_over_chunks`."""
        bias = self._filters(frames.sums.dtype)
        return sum_over_chunks_by_offsets(bias, frames, chunks)

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

    def forward(
        self, frames: int, dtype: torch.dtype
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return u and v of the first positions, each (frames, rank)."""
        # Copies: of a sharded parameter, a view ends with this call.
        return tuple(
            F.pad(factor[:frames].to(dtype), (0, 0, 0, max(0, frames - len(factor))))
            for factor in (self.query, self.key)
        )


def blocks_of_window(frames: int, radius: int) -> Blocks:
    """Return how time is cut for windows: not at all in an exported graph."""
    return Blocks(frames, frames if is_exporting() else radius)


def sum_by_offsets(
    bias: torch.Tensor, sums: torch.Tensor, blocks: Blocks
) -> Iterator[torch.Tensor]:
    """Sum as :meth:`AFT.sum_over_keys` with a bias (H, 2 * radius + 1) by offset."""
    if is_exporting():
        yield sum_by_filter(bias, sums)
    else:
        yield from sum_by_blocks(blocks.band_of_offsets(bias), sums, blocks)


def sum_by_blocks(
    bias: torch.Tensor, sums: torch.Tensor, blocks: Blocks
) -> Iterator[torch.Tensor]:
    """Sum as :meth:`AFT.sum_over_keys` with a bias (H, N or 1, L, W) by block."""
    if blocks.count > 1 and is_long(blocks.frames):
        yield from weighted_sum_by_pieces(bias, sums, blocks)
    else:
        yield weighted_sum(bias, sums, blocks)


def matrix_of_offsets(bias: torch.Tensor, frames: int) -> torch.Tensor:
    """Lay out a bias (H, 2 * radius + 1) by offset over all pairs, (H, T, T)."""
    return Blocks(frames, frames).band_of_offsets(bias).squeeze(1)


def check_positive(**options: int):
    """Raise ValueError that names the first option below one."""
    for name, value in options.items():
        if value < 1:
            raise ValueError(f"{name} must be at least 1, but is {value}")
