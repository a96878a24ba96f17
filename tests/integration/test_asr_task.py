"""ESPnet's ASR task, model and decoder around our encoders."""

import pytest
import torch
import yaml
from espnet2.bin.asr_inference import Speech2Text
from espnet2.tasks.asr import ASRTask

from espnet_fastformer import register

TOKENS = ["<blank>", "<unk>", *"ABCDEFGHIJ", "<space>", "<sos/eos>"]
ENCODERS = {
    "fastformer": {},
    "aft-full": {"aft_type": "full", "aft_max_len": 64, "aft_bias_rank": 4},
    "aft-local": {"aft_type": "local", "aft_window_size": 8},
    "aft-simple": {"aft_type": "simple"},
    "aft-conv": {"aft_type": "conv", "aft_kernel_size": 15},
}
every_encoder = pytest.mark.parametrize("name", ENCODERS)

register()


def configuration(name: str, **options) -> dict:
    return {
        "token_type": "char",
        "token_list": TOKENS,
        "init": "xavier_uniform",
        "frontend": "default",
        "frontend_conf": {"n_fft": 512, "hop_length": 160, "n_mels": 20},
        "normalize": "utterance_mvn",
        "encoder": name.split("-")[0],
        "encoder_conf": {
            "output_size": 32,
            "attention_heads": 2,
            "cgmlp_linear_units": 64,
            "linear_units": 64,
            "num_blocks": 3,
            **ENCODERS[name],
            **options,
        },
        "decoder": "transformer",
        "decoder_conf": {"attention_heads": 2, "linear_units": 64, "num_blocks": 1},
        "model_conf": {"ctc_weight": 0.3, "lsm_weight": 0.1},
    }


def build(config: dict, path) -> torch.nn.Module:
    """Build the model by the task's own parser, and save all options as ESPnet does."""
    path.write_text(yaml.safe_dump(config))
    args = ASRTask.get_parser().parse_args(["--config", str(path)])
    path.write_text(yaml.safe_dump(vars(args)))
    return ASRTask.build_model(args)


def speech(seconds: list[float]) -> list[torch.Tensor]:
    """Noise whose colour changes, so that the utterances differ.

    It ends in silence: ESPnet's STFT mirrors the end of the longest utterance of a
    batch, and of an utterance alone, but reads the padding of the others.
    """
    return [
        torch.nn.functional.pad(
            torch.randn(int(16000 * s)).cumsum(0).remainder(1 + i) - 0.5, (0, 512)
        )
        for i, s in enumerate(seconds)
    ]


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@every_encoder
@pytest.mark.parametrize(
    "options",
    [
        {},
        {
            "interctc_layer_idx": [1, 2],
            "interctc_use_conditioning": True,
            "layer_drop_rate": 0.3,
        },
    ],
)
def test_loss_and_backward(name, options, tmp_path):
    config = configuration(name, **options)
    if options:
        config["model_conf"]["interctc_weight"] = 0.3
    model = build(config, tmp_path / "config.yaml").train()
    waves = speech([1.0, 0.7, 0.5])
    text = torch.randint(2, 12, (3, 6))
    loss, stats, _ = model(
        speech=torch.nn.utils.rnn.pad_sequence(waves, batch_first=True),
        speech_lengths=torch.tensor([len(wave) for wave in waves]),
        text=text,
        text_lengths=torch.tensor([6, 4, 2]),
    )
    assert loss.isfinite()
    if options:
        assert {"loss_interctc_layer1", "loss_interctc_layer2"} <= stats.keys()
    loss.backward()
    for key, parameter in model.named_parameters():
        if parameter.grad is None:
            # Only layer drop takes a whole block out of a step.
            assert options and key.startswith("encoder.encoders."), key
        else:
            assert parameter.grad.isfinite().all(), key


@every_encoder
def test_batch_decoding_gives_the_same_transcripts(name, tmp_path):
    config = configuration(name)
    model = build(config, tmp_path / "config.yaml")
    # Larger logits than a new model's, so that no two hypotheses tie.
    with torch.no_grad():
        model.decoder.output_layer.weight.mul_(10)
        model.ctc.ctc_lo.weight.mul_(10)
    torch.save(model.state_dict(), tmp_path / "model.pth")
    waves = speech([1.0, 0.4, 2.3, 0.7, 1.6])

    def decode(batch_size):
        decoder = Speech2Text(
            tmp_path / "config.yaml",
            tmp_path / "model.pth",
            batch_size=batch_size,
            beam_size=3,
            ctc_weight=0.3,
            maxlenratio=-12,
        )
        if batch_size == 1:
            return [decoder(wave)[0] for wave in waves]
        return [results[0] for results in decoder(waves)]

    alone = decode(1)
    together = decode(len(waves))
    texts = [text for text, *_ in alone]
    assert len(set(texts)) > 1 and all(texts)
    assert [text for text, *_ in together] == texts
    for (*_, one), (*_, other) in zip(alone, together, strict=True):
        assert float(one.score) == pytest.approx(float(other.score), abs=1e-3)
