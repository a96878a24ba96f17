import numpy as np
import pytest
import torch
from espnet2.asr.ctc import CTC
from espnet2.asr.encoder.e_branchformer_encoder import EBranchformerEncoder
from espnet2.asr.preencoder.linear import LinearProjection
from espnet2.layers.abs_normalize import AbsNormalize
from espnet2.layers.global_mvn import GlobalMVN
from espnet2.layers.utterance_mvn import UtteranceMVN
from espnet2.tasks.asr import ASRTask

from espnet_fastformer.export.module import CTCEncoder, normalize_padded
from tests.encoder.encoders import FEATURES, features
from tests.inference.models import make_experiment, noise


@pytest.fixture
def stats_file(tmp_path):
    frames = np.random.default_rng(0).normal(3.0, 2.0, (50, FEATURES))
    path = tmp_path / "feats_stats.npz"
    sums = {"sum": frames.sum(0), "sum_square": (frames**2).sum(0)}
    np.savez(path, count=len(frames), **sums)
    return path


@pytest.mark.parametrize("norm_means", [True, False])
@pytest.mark.parametrize("norm_vars", [True, False])
@pytest.mark.parametrize("cls", [GlobalMVN, UtteranceMVN])
def test_normalisation_is_espnets(cls, norm_means, norm_vars, stats_file):
    args = [stats_file] if cls is GlobalMVN else []
    layer = cls(*args, norm_means=norm_means, norm_vars=norm_vars)
    xs_pad, lengths = features([40, 17, 1])
    xs_pad = 2 * xs_pad + 1
    expected, _ = layer(xs_pad.clone(), lengths)
    xs_pad[1, 17:] = float("nan")
    actual = normalize_padded(layer, xs_pad, lengths)
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("encoder", ["fastformer", "aft"])
@pytest.mark.parametrize(
    "encoder_conf", [{}, {"interctc_layer_idx": [1], "interctc_use_conditioning": True}]
)
@torch.no_grad()
def test_output_is_the_models(encoder, encoder_conf, tmp_path):
    exp = make_experiment(tmp_path / "exp", encoder_conf, encoder=encoder)
    model, _ = ASRTask.build_model_from_file(
        exp / "config.yaml", exp / "valid.cer_ctc.ave.pth"
    )
    model.eval()
    speech = torch.from_numpy(noise(2))[None].repeat(2, 1)
    lengths = torch.tensor([32000, 20000])
    hidden, olens = model.encode(speech, lengths)
    hidden = hidden[0] if isinstance(hidden, tuple) else hidden
    expected = model.ctc.log_softmax(hidden)

    feats, feats_lengths = model._extract_feats(speech, lengths)
    actual, actual_olens = CTCEncoder.from_model(model)(feats, feats_lengths)
    assert torch.equal(actual_olens, olens)
    for row, olen in enumerate(olens):
        torch.testing.assert_close(
            actual[row, :olen], expected[row, :olen], rtol=1e-4, atol=1e-4
        )


@torch.no_grad()
def test_preencoder_comes_after_normalisation():
    encoder = EBranchformerEncoder(8, 16, num_blocks=1, cgmlp_linear_units=16).eval()
    ctc = CTC(5, 16).eval()
    preencoder = LinearProjection(FEATURES, 8).eval()
    module = CTCEncoder(encoder, ctc, UtteranceMVN(), preencoder)
    xs_pad, lengths = features([40, 33])
    actual, olens = module(xs_pad, lengths)
    normalized, _ = UtteranceMVN()(xs_pad.clone(), lengths)
    hidden, expected_olens, _ = encoder(preencoder(normalized, lengths)[0], lengths)
    torch.testing.assert_close(actual[0], ctc.log_softmax(hidden)[0])
    assert torch.equal(olens, expected_olens)


class Unknown(AbsNormalize):
    def forward(self, x, ilens=None):
        raise NotImplementedError


def test_what_cannot_be_exported_is_named(tmp_path):
    encoder = EBranchformerEncoder(8, 16, num_blocks=1, cgmlp_linear_units=16)
    with pytest.raises(ValueError, match="Unknown cannot be exported"):
        CTCEncoder(encoder, CTC(5, 16), Unknown())

    exp = make_experiment(tmp_path / "exp")
    model, _ = ASRTask.build_model_from_file(
        exp / "config.yaml", exp / "valid.cer_ctc.ave.pth"
    )
    model.encoder, ours = encoder, model.encoder
    with pytest.raises(ValueError, match="EBranchformerEncoder, not fastformer or aft"):
        CTCEncoder.from_model(model)
    model.encoder, model.ctc, ctc = ours, None, model.ctc
    with pytest.raises(ValueError, match="no CTC output"):
        CTCEncoder.from_model(model)
    model.ctc, model.frontend = ctc, None
    with pytest.raises(ValueError, match="needs a frontend"):
        CTCEncoder.from_model(model)


def test_a_bias_that_cannot_be_exported_is_named(tmp_path):
    conf = {"aft_type": "local", "aft_bias": "factorized"}
    exp = make_experiment(tmp_path / "exp", conf, encoder="aft")
    model, _ = ASRTask.build_model_from_file(
        exp / "config.yaml", exp / "valid.cer_ctc.ave.pth"
    )
    with pytest.raises(ValueError, match="factorized cannot .* aft_bias: offset"):
        CTCEncoder.from_model(model)
