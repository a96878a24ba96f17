import json

import pytest
import torch
from espnet2.asr.ctc import CTC
from espnet2.layers.utterance_mvn import UtteranceMVN

from espnet_fastformer.export.kinds import KINDS
from espnet_fastformer.export.module import CTCEncoder
from espnet_fastformer.export.runtime import load
from espnet_fastformer.export.writers import METADATA, WRITERS
from tests.encoder.encoders import BLOCK_TYPES, FEATURES, MOST_SLOW, build, features

# Alone and padded, as short as can be, and longer than aft_max_len after subsampling.
BATCHES = ([61], [11], [900], [163, 120, 7], [350, 349])
MVN = UtteranceMVN()
METADATA_IN = {"token_list": ["<blank>", "é", "<sos/eos>"], "blank_id": 0}


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def make(name, normalize=MVN, **options) -> CTCEncoder:
    options |= {"aft_max_len": 50} if name == "aft-full" else {}
    return CTCEncoder(build(name, **options), CTC(11, 16), normalize).eval()


def write(module, format, directory):
    path = directory / f"model{KINDS[format].suffix}"
    WRITERS[format](module, FEATURES, path, METADATA_IN)
    return path


@torch.no_grad()
def check(module, path, atol):
    exported = load(path)
    for batch in BATCHES:
        xs_pad, lengths = features(batch)
        expected, olens = module(xs_pad, lengths)
        # Of padding, which may have any values.
        xs_pad[torch.arange(xs_pad.size(1)) >= lengths[:, None]] = 1e6
        actual, actual_olens = exported(xs_pad, lengths)
        assert torch.equal(actual_olens, olens)
        for row, olen in enumerate(olens):
            torch.testing.assert_close(
                actual[row, :olen].exp(), expected[row, :olen].exp(), rtol=0, atol=atol
            )


@pytest.mark.parametrize("name", MOST_SLOW)
def test_onnx(name, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    module = make(name)
    path = write(module, "onnx", tmp_path)
    check(module, path, atol=1e-5)
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    session = onnxruntime.InferenceSession(path)
    properties = session.get_modelmeta().custom_metadata_map
    assert {key: json.loads(properties[key]) for key in METADATA_IN} == METADATA_IN
    assert [x.shape for x in session.get_inputs()] == [
        ["batch", "frames", FEATURES],
        ["batch"],
    ]


@pytest.mark.parametrize("name", MOST_SLOW)
def test_torch_export(name, tmp_path):
    module = make(name)
    path = write(module, "torch_export", tmp_path)
    check(module, path, atol=1e-5)
    extra = {METADATA: ""}
    torch.export.load(path, extra_files=extra)
    assert json.loads(extra[METADATA]) == METADATA_IN


def test_without_normalisation(tmp_path):
    module = make("fastformer", normalize=None)
    check(module, write(module, "torch_export", tmp_path), atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "block_type, options",
    [
        ("branchformer", {"pos_enc_layer_type": "scaled_abs_pos"}),
        ("conformer", {"pos_enc_layer_type": "conv", "input_layer": "conv1d3"}),
        ("transformer", {"pos_enc_layer_type": "none", "input_layer": "linear"}),
    ],
)
def test_blocks(block_type, options, tmp_path):
    assert block_type in BLOCK_TYPES
    module = make("fastformer", block_type=block_type, **options)
    check(module, write(module, "torch_export", tmp_path), atol=1e-5)


@pytest.mark.parametrize("name", ["fastformer", "aft-simple"])
def test_int8(name, tmp_path):
    onnx = pytest.importorskip("onnx")
    module = make(name)
    path = write(module, "int8", tmp_path)
    # Rounded, and so not exact, but close.
    check(module, path, atol=0.02)
    nodes = [node.op_type for node in onnx.load(path).graph.node]
    linear_maps = [m for m in module.modules() if isinstance(m, torch.nn.Linear)]
    # Of the five maps of additive attention, three meet other weights only.
    folded = 3 * len(module.encoder.encoders) if name == "fastformer" else 0
    assert nodes.count("MatMulInteger") == len(linear_maps) - folded
