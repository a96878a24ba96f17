"""The files in conf/, given to ESPnet2 as its users give them."""

from pathlib import Path

import pytest
import torch
import yaml
from espnet2.bin import asr_inference, asr_inference_streaming
from espnet2.tasks.asr import ASRTask

import espnet_fastformer

CONF_DIR = Path(__file__).parents[1] / "conf"
TRAINING = sorted(CONF_DIR.glob("train_asr_*.yaml"))
DECODING = sorted(CONF_DIR.glob("decode_*.yaml"))
SAMPLE_RATE = 16000
ENCODERS = {
    "fastformer": espnet_fastformer.FastformerEncoder,
    "aft": espnet_fastformer.AFTEncoder,
}


def name(path: Path) -> str:
    return path.stem


def build_model(*options: str):
    args = ASRTask.get_parser().parse_args([*options, "--token_type", "char"])
    return args, ASRTask.build_model(args)


def count(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.fixture(scope="module")
def token_list(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("conf") / "tokens.txt"
    path.write_text("\n".join(["<blank>", "<unk>", "<space>", *"abcdefg", "<sos/eos>"]))
    return str(path)


@pytest.fixture(scope="module")
def e_branchformer_sizes(token_list) -> dict[str, int]:
    """Encoder parameters of ESPnet's librispeech_100 and librispeech recipes."""
    conf = {
        "attention_layer_type": "rel_selfattn",
        "pos_enc_layer_type": "rel_pos",
        "rel_pos_type": "latest",
        "linear_units": 1024,
        "use_ffn": True,
        "macaron_ffn": True,
        "cgmlp_linear_units": 1024,
        "merge_conv_kernel": 31,
    }
    large = {
        "output_size": 512,
        "attention_heads": 8,
        "num_blocks": 17,
        "cgmlp_linear_units": 3072,
    }

    def size(conf) -> int:
        options = ["--token_list", token_list, "--encoder", "e_branchformer"]
        for key, value in conf.items():
            options += ["--encoder_conf", f"{key}={value}"]
        return count(build_model(*options, "--model_conf", "ctc_weight=1.0")[1].encoder)

    with torch.device("meta"):
        return {"": size(conf), "large": size({**conf, **large})}


def test_conf_covers_both_families():
    variants = {name(path).removeprefix("train_asr_") for path in TRAINING}
    aft_types = {f"aft_{form}" for form in ("full", "local", "simple", "conv")}
    # One family: they differ in one line from the other.
    streaming = {f"{p}streaming_aft{s}" for p in ("", "ctc_") for s in ("", "_small")}
    assert variants == {"fastformer"} | aft_types | streaming | {
        f"{prefix}{encoder}{suffix}"
        for encoder in ENCODERS
        for prefix, suffix in (
            ("ctc_", ""),
            ("transducer_", ""),
            ("", "_small"),
            ("ctc_", "_small"),
            ("", "_large"),
        )
    }


@pytest.mark.parametrize("config", TRAINING, ids=name)
def test_training_config_makes_a_model_that_learns(
    config, token_list, e_branchformer_sizes
):
    torch.manual_seed(0)
    variant = config.stem.split("_")
    options = ["--config", str(config), "--token_list", token_list]
    if "large" in variant:
        # A dropped layer learns nothing in the one step below.
        options += ["--encoder_conf", "layer_drop_rate=0.0"]
        options += ["--decoder_conf", "layer_drop_rate=0.0"]
    if "streaming" in variant:
        options += ["--normalize", "none"]  # There are no statistics.
    with torch.device("meta"):
        args, model = build_model(*options)
    assert type(model.encoder) is ENCODERS[args.encoder]
    assert args.encoder in variant
    if "small" in variant:
        assert count(model) < 3e6
    else:
        expected = e_branchformer_sizes["large" if "large" in variant else ""]
        assert count(model.encoder) == pytest.approx(expected, rel=0.12)

    # All blocks are alike.
    options += ["--encoder_conf", "num_blocks=2"]
    if args.decoder == "transformer":
        options += ["--decoder_conf", "num_blocks=1"]
    _, model = build_model(*options)
    speech = torch.randn(2, SAMPLE_RATE)
    lengths = torch.tensor([SAMPLE_RATE, SAMPLE_RATE - 3000])
    text = torch.randint(3, 10, (2, 4))
    text_lengths = torch.tensor([4, 3])
    if model.use_transducer_decoder and not torch.cuda.is_available():
        # ESPnet's multi-blank loss runs on GPUs alone.
        check_transducer(model, speech, lengths, text)
        return
    device = "cuda" if model.use_transducer_decoder else "cpu"
    model.to(device)
    batch = [tensor.to(device) for tensor in (speech, lengths, text, text_lengths)]
    loss, stats, weight = model(*batch)
    assert torch.isfinite(loss) and weight == 2
    loss.backward()
    untrained = [
        key
        for key, parameter in model.named_parameters()
        if parameter.grad is None or not torch.isfinite(parameter.grad).all()
    ]
    assert not untrained
    assert (stats["loss_ctc"] is not None) == (model.ctc is not None)
    # The training has to be able to tell which checkpoints are best.
    model.eval()
    with torch.no_grad():
        _, stats, _ = model(*batch)
    for phase, criterion, _ in args.best_model_criterion:
        assert phase == "valid" and stats[criterion] is not None


def check_transducer(model, speech, lengths, text):
    """Score all pairs of a frame and a token, blanks of one and two frames included."""
    encoded, encoded_lengths = model.encode(speech, lengths)
    scores = model.joint_network(encoded.unsqueeze(2), model.decoder(text).unsqueeze(1))
    num_frames = int(encoded_lengths.max())
    assert scores.shape == (2, num_frames, text.size(1), len(model.token_list))
    assert model.token_list[:2] == ["<blank2>", "<blank>"]
    assert torch.isfinite(scores).all()


@pytest.mark.parametrize("config", DECODING, ids=name)
def test_decoding_config_is_known_to_espnet(config):
    is_streaming = "streaming" in config.stem
    command = asr_inference_streaming if is_streaming else asr_inference
    args = command.get_parser().parse_args(
        ["--config", str(config)]
        + ["--output_dir", "decode", "--data_path_and_name_and_type", "a,speech,sound"]
        + ["--asr_train_config", "config.yaml", "--asr_model_file", "model.pth"]
    )
    beam_sizes = {"decode_asr": 20, "decode_asr_streaming": 10}
    assert args.beam_size == beam_sizes.get(config.stem, 1)
    assert args.lm_weight == 0.0


def test_transducers_blanks_are_no_text(token_list, tmp_path):
    options = ["--encoder_conf", "num_blocks=1", "--token_list", token_list]
    config = CONF_DIR / "train_asr_transducer_fastformer.yaml"
    args, model = build_model("--config", str(config), *options)
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(vars(args)))

    def recognize(token: str) -> list[str]:
        """Decode with a model that expects this token everywhere."""
        with torch.no_grad():
            bias = model.joint_network.lin_out.bias.zero_()
            bias[model.token_list.index(token)] = 100
        torch.save(model.state_dict(), tmp_path / "model.pth")
        search = yaml.safe_load((CONF_DIR / "decode_transducer.yaml").read_text())
        recognizer = asr_inference.Speech2Text(
            tmp_path / "config.yaml", tmp_path / "model.pth", **search
        )
        ((_, tokens, *_),) = recognizer(torch.randn(SAMPLE_RATE // 2))
        return tokens

    assert recognize("<blank>") == []
    assert recognize("<blank2>") == []
    assert set(recognize("a")) == {"a"}
