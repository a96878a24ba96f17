"""Every task that takes our encoders: it learns two utterances and says them again."""

from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
import yaml
from espnet2.asr.transducer.rnnt_multi_blank.rnnt_multi_blank import RNNTLossNumba
from espnet2.bin.asr_inference import Speech2Text
from espnet2.bin.asr_inference_maskctc import Speech2Text as MaskCTC
from espnet2.bin.mt_inference import Text2Text
from espnet2.bin.s2t_inference import Speech2Text as S2T
from espnet2.bin.slu_inference import Speech2Understand
from espnet2.bin.st_inference import Speech2Text as ST
from espnet2.tasks.abs_task import AbsTask
from espnet2.tasks.asr import ASRTask
from espnet2.tasks.mt import MTTask
from espnet2.tasks.s2t import S2TTask
from espnet2.tasks.slu import SLUTask
from espnet2.tasks.ssl import SSLTask
from espnet2.tasks.st import STTask
from espnet2.torch_utils.set_all_random_seed import set_all_random_seed

from espnet_fastformer import register

TOKENS = ["<blank>", "<unk>", "<space>", *"ABCDEFGH", "<sos/eos>"]
PROMPT = ["<en>", "<asr>", "<notime>"]
S2T_TOKENS = [*TOKENS[:-1], *PROMPT, "<0.00>", "<0.60>"]
S2T_TOKENS += ["<na>", "<nospeech>", "<sos>", "<eos>", "<sop>"]
TEXTS = ["CAB", "A BED"]
SOURCES = ["FED A", "DEAF"]

NO_DROPOUT = {"dropout_rate": 0.0, "positional_dropout_rate": 0.0}
ENCODER = {
    "output_size": 32,
    "attention_heads": 2,
    "cgmlp_linear_units": 32,
    "cgmlp_conv_kernel": 7,
    "num_blocks": 2,
    "attention_dropout_rate": 0.0,
    **NO_DROPOUT,
}
DECODER = {
    "decoder": "transformer",
    "decoder_conf": {
        "attention_heads": 2,
        "linear_units": 32,
        "num_blocks": 1,
        "self_attention_dropout_rate": 0.0,
        "src_attention_dropout_rate": 0.0,
        **NO_DROPOUT,
    },
}
AUDIO = {
    "frontend": "default",
    "frontend_conf": {"n_fft": 512, "hop_length": 160, "n_mels": 20},
    "normalize": "utterance_mvn",
}
INTERCTC = {"interctc_layer_idx": [1], "interctc_use_conditioning": True}
SEARCH = {"beam_size": 2, "lm_weight": 0.0, "ngram_weight": 0.0, "maxlenratio": -8}

register()


def speech() -> list[torch.Tensor]:
    """Two tones of 0.6 s that have not even their spectra in common."""
    time = torch.arange(9600) / 16000
    rising = torch.sin(2 * torch.pi * (300 + 500 * time) * time)
    high = torch.sin(2 * torch.pi * 3000 * time) * torch.sin(20 * time)
    noise = torch.randn(2, len(time), generator=torch.Generator().manual_seed(0))
    return list(torch.stack([rising, high]) + 0.01 * noise)


def ids(texts: list[str], tokens: list[str] = TOKENS) -> list[torch.Tensor]:
    return [
        torch.tensor([tokens.index("<space>" if c == " " else c) for c in text])
        for text in texts
    ]


def batch(**sequences: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    """Pad as ESPnet's collate function does."""
    padded = {}
    for name, tensors in sequences.items():
        value = 0.0 if name == "speech" else -1
        padded[name] = torch.nn.utils.rnn.pad_sequence(tensors, True, value)
        padded[f"{name}_lengths"] = torch.tensor([len(tensor) for tensor in tensors])
    return padded


def s2t_batch() -> dict[str, torch.Tensor]:
    prompt = torch.tensor([S2T_TOKENS.index(token) for token in PROMPT])
    texts = ids(TEXTS, S2T_TOKENS)
    return batch(
        speech=speech(),
        text=[torch.cat([prompt, text]) for text in texts],
        text_prev=[torch.tensor([S2T_TOKENS.index("<na>")])] * 2,
        text_ctc=texts,
    )


class Case(NamedTuple):
    """A model, what it learns, and how ESPnet's inference of its task says it."""

    task: type[AbsTask]
    config: dict
    batch: Callable[[], dict[str, torch.Tensor]]
    recognize: Callable[[Path, Path], list]


def asr_batch() -> dict[str, torch.Tensor]:
    return batch(speech=speech(), text=ids(TEXTS))


def hypotheses(inference: Callable, inputs: list[torch.Tensor]) -> list[list[str]]:
    best = []
    for x in inputs:
        results = inference(x)
        if isinstance(results, tuple):  # with the tokens of InterCTC layers
            results = results[0]
        best.append(results[0][1])
    return best


def with_speech(inference: type, **options) -> Callable[[Path, Path], list]:
    return lambda *files: hypotheses(inference(*files, **options), speech())


def with_text(*files: Path) -> list:
    return hypotheses(Text2Text(*files, ctc_weight=0.0, **SEARCH), ids(SOURCES))


ASR = {"token_list": TOKENS, "token_type": "char", **AUDIO}
CASES = {
    "asr": Case(
        ASRTask,
        {**ASR, **DECODER, "model_conf": {"ctc_weight": 0.3}},
        asr_batch,
        with_speech(Speech2Text, ctc_weight=0.3, **SEARCH),
    ),
    "asr-ctc": Case(
        ASRTask,
        {**ASR, "model_conf": {"ctc_weight": 1.0}},
        asr_batch,
        with_speech(Speech2Text, ctc_weight=1.0, **SEARCH),
    ),
    "asr-interctc": Case(
        ASRTask,
        {
            **ASR,
            **DECODER,
            "encoder_conf": INTERCTC,
            "model_conf": {"ctc_weight": 0.3, "interctc_weight": 0.5},
        },
        asr_batch,
        with_speech(Speech2Text, ctc_weight=0.3, **SEARCH),
    ),
    "asr-transducer": Case(
        ASRTask,
        {
            **ASR,
            "token_list": ["<blank2>", *TOKENS],
            "encoder_conf": {"input_layer": "conv2d6"},
            "decoder": "transducer",
            "decoder_conf": {"hidden_size": 32, "dropout": 0.0, "dropout_embed": 0.0},
            "joint_net_conf": {"joint_space_size": 32},
            "model_conf": {"ctc_weight": 0.0, "transducer_multi_blank_durations": [2]},
        },
        lambda: batch(speech=speech(), text=[text + 1 for text in ids(TEXTS)]),
        with_speech(Speech2Text, lm_weight=0.0, transducer_conf={"search_type": "mbg"}),
    ),
    "asr-maskctc": Case(
        ASRTask,
        {**ASR, **DECODER, "model": "maskctc", "decoder": "mlm"},
        asr_batch,
        with_speech(MaskCTC),
    ),
    "st": Case(
        STTask,
        {
            **ASR,
            **DECODER,
            "src_token_list": TOKENS,
            "src_token_type": "char",
            "extra_asr_decoder": "transformer",
            "extra_asr_decoder_conf": DECODER["decoder_conf"],
            "model_conf": {"asr_weight": 0.3, "mtlalpha": 0.5},
        },
        lambda: batch(speech=speech(), text=ids(TEXTS), src_text=ids(SOURCES)),
        with_speech(ST, **SEARCH),
    ),
    "slu": Case(
        SLUTask,
        {
            **ASR,
            **DECODER,
            "transcript_token_list": TOKENS,
            "model_conf": {"ctc_weight": 0.3},
        },
        asr_batch,
        with_speech(Speech2Understand, ctc_weight=0.3, **SEARCH),
    ),
    "s2t": Case(
        S2TTask,
        {
            **ASR,
            **DECODER,
            "token_list": S2T_TOKENS,
            "model_conf": {"ctc_weight": 0.3},
            "preprocessor_conf": {
                "notime_symbol": "<notime>",
                "first_time_symbol": "<0.00>",
                "last_time_symbol": "<0.60>",
                "fs": 16000,
                "speech_length": 0.6,
            },
        },
        s2t_batch,
        with_speech(S2T, lang_sym="<en>", task_sym="<asr>", **SEARCH),
    ),
    "mt": Case(
        MTTask,
        {
            **DECODER,
            "token_list": TOKENS,
            "src_token_list": TOKENS,
            "token_type": "char",
            "src_token_type": "char",
            "input_size": len(TOKENS),
            "encoder_conf": {"input_layer": "embed", "padding_idx": len(TOKENS) - 1},
        },
        lambda: batch(src_text=ids(SOURCES), text=ids(TEXTS)),
        with_text,
    ),
    "mt-frontend": Case(
        MTTask,
        {
            **DECODER,
            "token_list": TOKENS,
            "src_token_list": TOKENS,
            "token_type": "char",
            "src_token_type": "char",
            "frontend_conf": {"embed_dim": 32},
            "encoder_conf": {"input_layer": None},
        },
        lambda: batch(src_text=ids(SOURCES), text=ids(TEXTS)),
        with_text,
    ),
}


def build(task: type[AbsTask], config: dict, encoder: str, path: Path):
    """Build a model by its task's own parser, and save all options as ESPnet does."""
    config = {
        "init": "xavier_uniform",
        **config,
        "encoder": encoder,
        "encoder_conf": ENCODER | config.get("encoder_conf", {}),
    }
    path.write_text(yaml.safe_dump(config))
    args = task.get_parser().parse_args(["--config", str(path)])
    path.write_text(yaml.safe_dump(vars(args)))
    set_all_random_seed(0)  # Mask-CTC draws its masks from NumPy.
    return task.build_model(args)


def learn(model: torch.nn.Module, batch: dict, steps: int = 60) -> list[float]:
    """Train all parameters on one batch, and return the losses."""
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    losses = []
    for step in range(steps):
        loss, stats, weight = model.train()(**{k: v.clone() for k, v in batch.items()})
        optimizer.zero_grad()
        loss.backward()
        if step == 0:
            for name, parameter in model.named_parameters():
                assert parameter.grad is not None, name
                assert parameter.grad.isfinite().all(), name
        torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        losses.append(loss.item())
    return losses


# What a task asks of encoders is not the mixer's business: they take turns.
@pytest.mark.parametrize("name, encoder", zip(CASES, cycle(["fastformer", "aft"])))
def test_what_was_learned_is_recognized(name, encoder, tmp_path):
    case = CASES[name]
    model = build(case.task, case.config, encoder, tmp_path / "config.yaml")
    if getattr(model, "use_transducer_decoder", False):
        # ESPnet's multi-blank loss runs on GPUs alone, its plain one anywhere.
        model.criterion_transducer = RNNTLossNumba(blank=model.blank_id)
    learn(model, case.batch())
    torch.save(model.state_dict(), tmp_path / "model.pth")
    recognized = case.recognize(tmp_path / "config.yaml", tmp_path / "model.pth")
    prompt = PROMPT if name == "s2t" else []
    assert recognized == [
        prompt + ["<space>" if c == " " else c for c in text] for text in TEXTS
    ]


def test_ssl_model_learns_to_fill_in_what_is_masked(tmp_path):
    config = {
        **AUDIO,
        "token_list": list("ABCD"),
        "preencoder": "linear",
        "preencoder_conf": {"output_size": 32},
        "encoder_conf": {"input_layer": None, "pos_enc_layer_type": "conv"},
        "loss": [{"name": "hubert", "conf": {"num_classes": 4, "final_dim": 16}}],
        "util": [{"name": "mask", "conf": {"mask_prob": 0.3, "mask_length": 3}}],
    }
    model = build(SSLTask, config, "aft", tmp_path / "config.yaml")
    # A token a frame: those of an utterance's halves.
    tokens = torch.arange(4).reshape(2, 2).repeat_interleave(31, dim=1)[:, :61]
    losses = learn(model, batch(speech=speech(), text=list(tokens)))
    assert sum(losses[-5:]) < 0.2 * sum(losses[:5])

    torch.save(model.state_dict(), tmp_path / "model.pth")
    loaded, _ = SSLTask.build_model_from_file(
        tmp_path / "config.yaml", tmp_path / "model.pth"
    )
    # ESPnet's STFT mirrors the end of an utterance alone: here, silence like padding.
    long, short = speech()[0], torch.nn.functional.pad(speech()[1][:4800], (0, 512))
    with torch.no_grad():
        out, hidden, olens = loaded.eval().inference_encode(
            *batch(speech=[long, short]).values()
        )
        alone, _, _ = loaded.inference_encode(*batch(speech=[short]).values())
    assert olens.tolist() == [61, 34] and len(hidden) == ENCODER["num_blocks"]
    torch.testing.assert_close(loaded.encoder.after_norm(hidden[-1]), out)
    torch.testing.assert_close(out[1, :34], alone[0], rtol=1e-4, atol=1e-4)
