"""The blocks that can hold a mixer, made of ESPnet's own layer classes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from espnet2.asr.encoder.branchformer_encoder import BranchformerEncoderLayer
from espnet2.asr.encoder.e_branchformer_encoder import EBranchformerEncoderLayer
from espnet2.asr.layers.cgmlp import ConvolutionalGatingMLP
from espnet2.asr.layers.fastformer import FastSelfAttention
from espnet2.legacy.nets.pytorch_backend.conformer.convolution import ConvolutionModule
from espnet2.legacy.nets.pytorch_backend.conformer.encoder_layer import (
    EncoderLayer as ConformerEncoderLayer,
)
from espnet2.legacy.nets.pytorch_backend.nets_utils import get_activation
from espnet2.legacy.nets.pytorch_backend.transformer.encoder_layer import (
    EncoderLayer as TransformerEncoderLayer,
)
from espnet2.legacy.nets.pytorch_backend.transformer.positionwise_feed_forward import (
    PositionwiseFeedForward,
)

from espnet_fastformer.options import check_odd, check_rates

MERGE_METHODS = ("concat", "learned_ave", "fixed_ave")
BRANCHFORMER_OPTIONS = (
    "use_attn",
    "use_cgmlp",
    "merge_method",
    "cgmlp_weight",
    "attn_branch_drop_rate",
)


@dataclass
class BlockBuilder:
    """Builds the blocks of an encoder from its options.

    ``mixer`` makes the mixer of one block; all other fields are encoder options, see
    :class:`~espnet_fastformer.encoder.linear_time_encoder.LinearTimeEncoder`.

    Raises:
        ValueError: If an option is unknown, out of range or not of this block type.
    """

    mixer: Callable[[], torch.nn.Module]
    block_type: str
    output_size: int
    num_blocks: int
    dropout_rate: float
    cgmlp_linear_units: int
    cgmlp_conv_kernel: int
    use_linear_after_conv: bool
    gate_activation: str
    use_ffn: bool
    macaron_ffn: bool
    ffn_activation_type: str
    linear_units: int
    merge_conv_kernel: int
    cnn_module_kernel: int
    stochastic_depth_rate: float | Sequence[float]
    use_attn: bool | None
    use_cgmlp: bool | None
    merge_method: str | None
    cgmlp_weight: float | Sequence[float] | None
    attn_branch_drop_rate: float | Sequence[float] | None

    def __post_init__(self):
        """Check the options."""
        builders = {
            "e_branchformer": self.e_branchformer,
            "branchformer": self.branchformer,
            "conformer": self.conformer,
            "transformer": self.transformer,
        }
        if self.block_type not in builders:
            raise ValueError(
                f"block_type must be one of {', '.join(builders)}: {self.block_type!r}"
            )
        self.build = builders[self.block_type]

        for name in ("cgmlp_conv_kernel", "merge_conv_kernel", "cnn_module_kernel"):
            check_odd(**{name: getattr(self, name)})
        if self.cgmlp_linear_units % 2 != 0:
            raise ValueError(
                f"cgmlp_linear_units must be even, but is {self.cgmlp_linear_units}"
            )

        if self.block_type != "branchformer":
            for name in BRANCHFORMER_OPTIONS:
                if getattr(self, name) is not None:
                    raise ValueError(
                        f"{name} is an option of block_type: branchformer, but "
                        f"block_type is {self.block_type}"
                    )
        elif self.use_attn is False and self.use_cgmlp is False:
            raise ValueError("use_attn and use_cgmlp must not both be false")
        elif self.merge_method not in (None, *MERGE_METHODS):
            raise ValueError(
                f"merge_method must be one of {', '.join(MERGE_METHODS)}: "
                f"{self.merge_method!r}"
            )
        depth_rates = self.for_each_block("stochastic_depth_rate", 0.0)
        if 1 in depth_rates:
            raise ValueError(
                "stochastic_depth_rate must be below 1: ESPnet divides by the rest"
            )
        if self.block_type == "e_branchformer" and any(depth_rates):
            raise ValueError(
                "stochastic_depth_rate is no option of block_type: e_branchformer; "
                "layer_drop_rate skips whole blocks there"
            )

    def e_branchformer(self, index: int) -> EBranchformerEncoderLayer:
        """Build mixer and local branch in parallel, merged by a convolution."""
        return EBranchformerEncoderLayer(
            self.output_size,
            self.mixer(),
            self.cgmlp(),
            self.feed_forward() if self.use_ffn else None,
            self.feed_forward() if self.use_ffn and self.macaron_ffn else None,
            self.dropout_rate,
            self.merge_conv_kernel,
        )

    def branchformer(self, index: int) -> BranchformerEncoderLayer:
        """Build mixer and local branch in parallel, merged without one."""
        return BranchformerEncoderLayer(
            self.output_size,
            self.mixer() if self.use_attn is not False else None,
            self.cgmlp() if self.use_cgmlp is not False else None,
            self.dropout_rate,
            self.merge_method or "concat",
            self.for_each_block("cgmlp_weight", 0.5)[index],
            self.for_each_block("attn_branch_drop_rate", 0.0)[index],
            self.for_each_block("stochastic_depth_rate", 0.0)[index],
        )

    def conformer(self, index: int) -> ConformerEncoderLayer:
        """Build mixer, convolution and feed-forward layers in sequence."""
        return ConformerEncoderLayer(
            self.output_size,
            as_attention(self.mixer()),
            self.feed_forward(),
            self.feed_forward() if self.macaron_ffn else None,
            ConvolutionModule(
                self.output_size, self.cnn_module_kernel, self.ffn_activation()
            ),
            self.dropout_rate,
            stochastic_depth_rate=self.for_each_block("stochastic_depth_rate", 0.0)[
                index
            ],
        )

    def transformer(self, index: int) -> TransformerEncoderLayer:
        """Build mixer and feed-forward layer in sequence."""
        return TransformerEncoderLayer(
            self.output_size,
            as_attention(self.mixer()),
            self.feed_forward(),
            self.dropout_rate,
            stochastic_depth_rate=self.for_each_block("stochastic_depth_rate", 0.0)[
                index
            ],
        )

    def cgmlp(self) -> ConvolutionalGatingMLP:
        """Build a local branch."""
        if self.gate_activation != "identity":
            activation("gate_activation", self.gate_activation)
        return ConvolutionalGatingMLP(
            self.output_size,
            self.cgmlp_linear_units,
            self.cgmlp_conv_kernel,
            self.dropout_rate,
            self.use_linear_after_conv,
            self.gate_activation,
        )

    def feed_forward(self) -> PositionwiseFeedForward:
        """Build a feed-forward layer."""
        return PositionwiseFeedForward(
            self.output_size,
            self.linear_units,
            self.dropout_rate,
            self.ffn_activation(),
        )

    def ffn_activation(self) -> torch.nn.Module:
        """Build the activation of feed-forward layers."""
        return activation("ffn_activation_type", self.ffn_activation_type)

    def for_each_block(self, name: str, default: float) -> list[float]:
        """Return the option's value for each block."""
        value = getattr(self, name)
        if value is None:
            value = default
        values = [value] * self.num_blocks if isinstance(value, (int, float)) else value
        if len(values) != self.num_blocks or not all(
            isinstance(v, (int, float)) for v in values
        ):
            raise ValueError(
                f"{name} must be one number or num_blocks ({self.num_blocks}) of "
                f"them, but is {value}"
            )
        for v in values:
            check_rates(**{name: v})
        return [float(v) for v in values]


class AttentionCall(torch.nn.Module):
    """Lets ESPnet's Conformer and Transformer layers call FastSelfAttention.

    Those call ``attn(query, key, value, mask)``; the module takes ``(x, mask)``.
    """

    def __init__(self, mixer: FastSelfAttention):
        super().__init__()
        self.mixer = mixer

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
    ) -> torch.Tensor:
        """Mix the queries (B, T, D), which are keys and values too."""
        return self.mixer(query, mask)


def as_attention(mixer: torch.nn.Module) -> torch.nn.Module:
    """Return the mixer as a module called ``attn(query, key, value, mask)``."""
    return AttentionCall(mixer) if isinstance(mixer, FastSelfAttention) else mixer


def activation(option: str, name: str) -> torch.nn.Module:
    """Return ESPnet's activation of that name.

    Raises:
        ValueError: If ESPnet has none.
    """
    if name == "swish":
        return torch.nn.SiLU()  # The same as ESPnet's Swish, in half the passes.
    try:
        return get_activation(name)
    except KeyError:
        raise ValueError(f"{option} is unknown to ESPnet: {name!r}") from None
