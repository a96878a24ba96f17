"""Encoder around the Attention Free Transformer."""

import torch
from typeguard import typechecked

from espnet_fastformer.encoder.linear_time_encoder import LinearTimeEncoder
from espnet_fastformer.layers.aft import AFTConv, AFTFull, AFTLocal, AFTSimple
from espnet_fastformer.options import check_heads, check_odd, check_sizes

_BIASES = {"full": ("factorized", "dense"), "local": ("offset", "factorized")}


class AFTEncoder(LinearTimeEncoder):
    """Blocks of ESPnet around a form of AFT (https://arxiv.org/abs/2105.14103).

    Args:
        input_size: Number of features F, or of tokens if ``input_layer`` is ``embed``.
        aft_type: ``full``, ``local``, ``simple`` (default: without position biases, and
            as accurate as the others in docs/accuracy.md) or ``conv``.
        aft_window_size: Window s of ``local``: frames with ``|t - t'| < s`` have a
            position bias.
        aft_kernel_size: Taps of ``conv``, odd; it has ``attention_heads`` filters.
        aft_bias: Position bias: ``offset`` (default) or ``factorized`` for ``local``,
            ``factorized`` (default) or ``dense`` for ``full``.
        aft_bias_rank: Rank of a factorised bias.
        aft_max_len: Number of positions, after subsampling, with a factorised or dense
            bias; those after it have bias zero.
        **encoder_conf: Options of
            :class:`~espnet_fastformer.encoder.linear_time_encoder.LinearTimeEncoder`.

    Raises:
        ValueError: If an option is unknown or out of range.
    """

    @typechecked
    def __init__(
        self,
        input_size: int,
        aft_type: str = "simple",
        aft_window_size: int = 32,
        aft_kernel_size: int = 31,
        aft_bias: str | None = None,
        aft_bias_rank: int = 64,
        aft_max_len: int = 1024,
        **encoder_conf,
    ):
        def mixer(
            size: int, attention_heads: int, dropout_rate: float
        ) -> torch.nn.Module:
            if aft_type == "simple":
                return AFTSimple(size, dropout_rate)
            if aft_type == "conv":
                check_heads(attention_heads, output_size=size)
                return AFTConv(
                    size,
                    dropout_rate,
                    attention_heads=attention_heads,
                    kernel_size=aft_kernel_size,
                )
            if aft_type == "local":
                return AFTLocal(
                    size,
                    dropout_rate,
                    window_size=aft_window_size,
                    bias=aft_bias or "offset",
                    bias_rank=aft_bias_rank,
                    max_len=aft_max_len,
                )
            if aft_type == "full":
                return AFTFull(
                    size,
                    dropout_rate,
                    max_len=aft_max_len,
                    bias=aft_bias or "factorized",
                    bias_rank=aft_bias_rank,
                )
            raise ValueError(
                f"aft_type must be full, local, simple or conv: {aft_type!r}"
            )

        check_sizes(
            aft_window_size=aft_window_size,
            aft_bias_rank=aft_bias_rank,
            aft_max_len=aft_max_len,
        )
        check_odd(aft_kernel_size=aft_kernel_size)
        biases = _BIASES.get(aft_type, ())
        if aft_bias is not None and aft_bias not in biases:
            raise ValueError(
                f"aft_bias must be {' or '.join(biases) or 'null'} with aft_type: "
                f"{aft_type}, but is {aft_bias!r}"
            )
        super().__init__(mixer, input_size, **encoder_conf)
        if aft_type == "full":
            self.refuse_streaming(
                "aft_type: full has biases by absolute position",
                "simple, conv or local",
            )
        if aft_bias == "factorized":
            self.refuse_streaming(
                "aft_bias: factorized goes by absolute position", "offset"
            )
