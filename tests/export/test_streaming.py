import numpy as np
import pytest
import torch
from espnet2.asr.ctc import CTC
from espnet2.asr.preencoder.linear import LinearProjection
from espnet2.layers.global_mvn import GlobalMVN

from espnet_fastformer.export.kinds import KINDS
from espnet_fastformer.export.module import CTCEncoder
from espnet_fastformer.export.runtime import load
from espnet_fastformer.export.streaming import BATCH_DIMS, INPUTS, StreamingCTCEncoder
from espnet_fastformer.export.writers import WRITERS
from tests.encoder.encoders import BLOCK_TYPES, FEATURES, build, features, in_turn

MIXERS = ("fastformer", "aft-simple", "aft-conv", "aft-local")
CHUNK = 4
# A whole number of chunks, the shortest, ends inside a chunk, shorter than a frame.
LENGTHS = [2 * 16 + 3, 7, 83, 60, 5]
VOCABULARY = 11
STREAMING = [name for name, kind in KINDS.items() if kind.is_for_streams]


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def make(name, normalize=None, is_for_sherpa=False, **options) -> StreamingCTCEncoder:
    options = {"pos_enc_layer_type": "none", "num_blocks": 1} | options
    encoder = build(name, block_size=CHUNK, **options)
    encoder.conditioning_layer = torch.nn.Linear(VOCABULARY, 16)
    encoder.decoding_chunk_size = CHUNK
    module = CTCEncoder(encoder, CTC(VOCABULARY, 16), normalize).eval()
    return StreamingCTCEncoder(module, is_for_sherpa).eval()


@torch.no_grad()
def stream(module, feats, lengths):
    """Run streams of one batch to their ends."""
    stride = module.shift // CHUNK
    olens = ((lengths - module.size + module.shift) // stride).clamp(min=0)
    feats = torch.nn.functional.pad(feats, (0, 0, 0, module.size))
    x = feats * module.scale + module.offset
    caches = module.caches(len(x))
    outs = []
    for start in range(0, int(olens.max()) * stride, module.shift):
        missing = (start + module.size - lengths).clamp(0, module.size)
        caches[INPUTS.index("padding") - 1][0, :, 0, 0] = missing
        log_probs, *caches = module(x[:, start : start + module.size], *caches)
        outs.append(log_probs)
    return torch.cat(outs, 1), olens


@torch.no_grad()
def check(module, log_probs, olens, feats, lengths):
    for row, (olen, length) in enumerate(zip(olens, lengths, strict=True)):
        assert olen == max(0, (length - 3) // 4)
        if olen > 0:
            alone = feats[row : row + 1, :length]
            expected, _ = module.module(alone, length[None])
            torch.testing.assert_close(
                log_probs[row : row + 1, :olen], expected, rtol=0, atol=1e-4
            )
        assert log_probs[row, olen:].argmax(-1).eq(0).all()


OPTIONS = [{}, {"num_left_chunks": 2}, {"pos_enc_layer_type": "abs_pos"}]


@pytest.mark.parametrize(
    "name, block_type, options", in_turn(OPTIONS, MIXERS, BLOCK_TYPES)
)
def test_streams_give_the_whole_in_chunks(name, block_type, options):
    module = make(name, block_type=block_type, num_blocks=2, **options)
    inputs = features(LENGTHS)
    check(module, *stream(module, *inputs), *inputs)


def test_features_are_scaled_back_and_normalised(tmp_path):
    stats = torch.rand(2, FEATURES)
    np.savez(tmp_path / "stats.npz", count=1, sum=stats[0], sum_square=stats[1] + 1)
    module = make("aft-simple", GlobalMVN(tmp_path / "stats.npz"), is_for_sherpa=True)
    inputs = features(LENGTHS)
    assert module.scale != 1.0
    check(module, *stream(module, *inputs), *inputs)


def test_preencoder_is_part_of_it():
    module = make("aft-simple")
    module.module.preencoder = LinearProjection(FEATURES, FEATURES).eval()
    inputs = features(LENGTHS)
    check(module, *stream(module, *inputs), *inputs)


def test_chunks_without_a_state_are_refused():
    with pytest.raises(ValueError, match="num_left_chunks must be at least 1"):
        make("aft-simple", block_type="transformer", num_left_chunks=0)


def test_conditioning_is_part_of_it():
    options = {"interctc_layer_idx": [1], "interctc_use_conditioning": True}
    module = make("fastformer", num_blocks=2, **options)
    inputs = features(LENGTHS)
    check(module, *stream(module, *inputs), *inputs)
    torch.nn.init.normal_(module.module.encoder.conditioning_layer.weight)
    log_probs, olens = stream(module, *inputs)
    with pytest.raises(AssertionError):
        torch.nn.init.zeros_(module.module.encoder.conditioning_layer.weight)
        check(module, log_probs, olens, *inputs)


ONNX = [
    ("fastformer", {"block_type": "conformer", "num_left_chunks": 2}),
    ("aft-simple", {"num_blocks": 2, "pos_enc_layer_type": "abs_pos"}),
    ("aft-conv", {"block_type": "branchformer", "num_left_chunks": 3}),
    ("aft-local", {"block_type": "transformer", "input_layer": "conv2d2"}),
]


@pytest.mark.parametrize(
    "name, options",
    [ONNX[0], *(pytest.param(*case, marks=pytest.mark.slow) for case in ONNX[1:])],
)
def test_onnx(name, options, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    module = make(name, **options)
    path = tmp_path / "model.onnx"
    WRITERS["streaming_onnx"](module, FEATURES, path, {"token_list": ["<blank>"]})
    feats, lengths = features(LENGTHS)
    log_probs, olens = load(path)(feats, lengths)
    expected, expected_olens = stream(module, feats, lengths)
    assert torch.equal(olens, expected_olens)
    for row, olen in enumerate(olens):
        torch.testing.assert_close(
            log_probs[row, :olen], expected[row, :olen], rtol=0, atol=1e-4
        )

    # Two streams in one call, of which one began earlier, are what each is alone.
    session = onnxruntime.InferenceSession(path)

    def call(chunk, caches):
        inputs = dict(zip(INPUTS, [chunk.numpy(), *caches], strict=True))
        return session.run(None, inputs)

    chunks = torch.randn(4, 1, module.size, FEATURES)
    caches = fresh = [cache.numpy() for cache in module.caches(1)]
    alone, states = [], []
    for chunk in chunks:
        states.append(caches)
        log_probs, *caches = call(chunk, caches)
        alone.append(log_probs)
    joined = [
        np.concatenate(pair, axis=dim)
        for dim, *pair in zip(BATCH_DIMS[1:], states[2], fresh, strict=True)
    ]
    log_probs, *joined = call(chunks[[2, 0], 0], joined)
    np.testing.assert_allclose(log_probs, np.concatenate(alone)[[2, 0]], atol=1e-5)
    log_probs, *joined = call(chunks[[3, 1], 0], joined)
    np.testing.assert_allclose(log_probs, np.concatenate(alone)[[3, 1]], atol=1e-5)


@pytest.mark.slow
def test_int8(tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    module = make("aft-simple", is_for_sherpa=True)
    paths = [tmp_path / f"{format}.onnx" for format in STREAMING]
    for format, path in zip(STREAMING, paths, strict=True):
        WRITERS[format](module, FEATURES, path, {"token_list": ["<blank>"]})
    exact, rounded = map(onnxruntime.InferenceSession, paths)
    for tensors in ("get_inputs", "get_outputs"):
        shapes = [
            [(x.name, x.shape, x.type) for x in getattr(session, tensors)()]
            for session in (exact, rounded)
        ]
        assert shapes[0] == shapes[1]
    metadata = rounded.get_modelmeta().custom_metadata_map
    assert exact.get_modelmeta().custom_metadata_map.items() <= metadata.items()
    feats, lengths = features([120])
    outs = [load(path)(feats, lengths)[0].exp() for path in paths]
    assert not torch.equal(*outs)
    torch.testing.assert_close(*outs, rtol=0, atol=0.02)
