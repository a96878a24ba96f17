"""Encoder around Fastformer's additive attention."""

from typeguard import typechecked

from espnet_fastformer.encoder.linear_time_encoder import LinearTimeEncoder
from espnet_fastformer.layers.fastformer import FastSelfAttention
from espnet_fastformer.options import check_heads


class FastformerEncoder(LinearTimeEncoder):
    """Blocks of ESPnet around additive attention (https://arxiv.org/abs/2108.09084).

    With ``block_type: e_branchformer`` or ``branchformer`` it has the parameters and
    gives the output of ESPnet's encoder of that name with ``attention_layer_type:
    fast_selfattn``.

    Args:
        input_size: Number of features F, or of tokens if ``input_layer`` is ``embed``.
        **encoder_conf: Options of
            :class:`~espnet_fastformer.encoder.linear_time_encoder.LinearTimeEncoder`.
    """

    attention_layer_type = "fast_selfattn"

    @typechecked
    def __init__(self, input_size: int, **encoder_conf):
        super().__init__(build_mixer, input_size, **encoder_conf)


def build_mixer(
    output_size: int, attention_heads: int, dropout_rate: float
) -> FastSelfAttention:
    """Build the additive attention of one block."""
    check_heads(attention_heads, output_size=output_size)
    return FastSelfAttention(output_size, attention_heads, dropout_rate)
