"""Faster layers in the place of those that ESPnet's classes are made of."""

import torch

from espnet_fastformer.layers.conv2d import Conv2d
from espnet_fastformer.layers.depthwise_conv import DepthwiseConv1d
from espnet_fastformer.layers.dropout import Dropout
from espnet_fastformer.layers.pointwise_conv import PointwiseConv1d

FASTER_LAYERS = (Conv2d, DepthwiseConv1d, Dropout, PointwiseConv1d)


def replace_layers(module: torch.nn.Module) -> torch.nn.Module:
    """Replace what there is a faster layer for, keeping parameters and names."""
    for parent in list(module.modules()):
        for name, child in parent.named_children():
            for layer in FASTER_LAYERS:
                fast = layer.replacing(child)
                if fast is not None:
                    setattr(parent, name, fast)
    return module
