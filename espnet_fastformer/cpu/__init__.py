"""Layers that compute what those of the encoders do, faster on a CPU.

They have the same parameters and names, and on other devices run as those do.
``use_cpu_layers: false`` leaves them out.
"""

from espnet_fastformer.cpu.cgmlp import ConvolutionalGatingMLP
from espnet_fastformer.cpu.conv2d import Conv2d
from espnet_fastformer.cpu.depthwise_conv import DepthwiseConv1d
from espnet_fastformer.cpu.dropout import Dropout
from espnet_fastformer.cpu.fastformer import FoldedFastSelfAttention
from espnet_fastformer.cpu.feed_forward import PositionwiseFeedForward

CPU_LAYERS = (
    Conv2d,
    ConvolutionalGatingMLP,
    DepthwiseConv1d,
    Dropout,
    FoldedFastSelfAttention,
    PositionwiseFeedForward,
)
