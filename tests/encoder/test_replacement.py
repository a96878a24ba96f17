import torch
from espnet2.asr.layers.cgmlp import ConvolutionalGatingMLP
from espnet2.legacy.nets.pytorch_backend.transformer.subsampling import (
    Conv2dSubsampling,
)

from espnet_fastformer import cpu
from espnet_fastformer.encoder.convolution import DepthwiseConv1d, PointwiseConv1d
from espnet_fastformer.encoder.replacement import replace_layers

CONVOLUTIONS = (DepthwiseConv1d, PointwiseConv1d)


def test_layers_of_espnet_keep_parameters_and_output():
    torch.manual_seed(0)
    for module, shape in (
        (ConvolutionalGatingMLP(16, 32, 7, 0.1, False, "identity"), (2, 30, 16)),
        (Conv2dSubsampling(20, 16, 0.1), (2, 30, 20)),
    ):
        parameters = dict(module.eval().named_parameters())
        x = torch.randn(shape)
        expected = module(x, None)
        for layers in (CONVOLUTIONS, cpu.CPU_LAYERS):
            replace_layers(module, layers)
            assert dict(module.named_parameters()).keys() == parameters.keys()
            for name, parameter in module.named_parameters():
                assert parameter is parameters[name]
            torch.testing.assert_close(module(x, None), expected)


def test_what_is_replaced():
    module = torch.nn.Sequential(
        torch.nn.Conv1d(8, 8, 3, padding=1, groups=8),
        torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.Dropout(0.1)),
        torch.nn.Conv1d(8, 4, 1),
        torch.nn.Conv1d(8, 8, 3),
        torch.nn.Linear(8, 8),
    )

    def kinds():
        return [type(layer) for layer in (module[0], *module[1], *module[2:])]

    rest = [torch.nn.Conv1d, torch.nn.Linear]
    replace_layers(module, CONVOLUTIONS)
    plain = [DepthwiseConv1d, torch.nn.Conv2d, torch.nn.Dropout, PointwiseConv1d]
    assert kinds() == plain + rest
    replace_layers(module, cpu.CPU_LAYERS)
    fast = [cpu.DepthwiseConv1d, cpu.Conv2d, cpu.Dropout, PointwiseConv1d]
    assert kinds() == fast + rest
