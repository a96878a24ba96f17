"""Models on a GPU, or on the device that stands in for one, against the CPU."""

import copy
from pathlib import Path

import pytest
import torch
from espnet2.main_funcs.calculate_all_attentions import calculate_all_attentions
from espnet2.tasks.asr import ASRTask

from espnet_fastformer.inference.transcriber import Transcriber
from tests.inference.models import TRANSDUCER, make_experiment, noise

NO_DROPOUT = {
    "dropout_rate": 0.0,
    "positional_dropout_rate": 0.0,
    "attention_dropout_rate": 0.0,
}
DECODER = {
    "decoder": "transformer",
    "decoder_conf": {
        "attention_heads": 2,
        "linear_units": 16,
        "num_blocks": 1,
        "dropout_rate": 0.0,
        "positional_dropout_rate": 0.0,
        "self_attention_dropout_rate": 0.0,
        "src_attention_dropout_rate": 0.0,
    },
    "model_conf": {"ctc_weight": 0.5},
}
#: ESPnet's loss of transducers, and its search with CTC, know the CPU and CUDA alone.
MODELS = {"ctc": {}, "hybrid": DECODER}


@pytest.fixture(scope="module", params=MODELS)
def experiment(request, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("model") / request.param
    return make_experiment(path, NO_DROPOUT, **MODELS[request.param])


def files(experiment: Path) -> tuple[Path, Path]:
    return experiment / "config.yaml", experiment / "valid.cer_ctc.ave.pth"


def make_batch(device: torch.device) -> dict[str, torch.Tensor]:
    """Make two utterances."""
    batch = {
        "speech": torch.from_numpy(noise(2)).view(2, -1),
        "speech_lengths": torch.tensor([16000, 12000]),
        "text": torch.tensor([[3, 5, 2, 6], [7, 4, -1, -1]]),
        "text_lengths": torch.tensor([4, 2]),
    }
    return {key: x.to(device) for key, x in batch.items()}


def test_optimiser_step(experiment, accelerator):
    model, _ = ASRTask.build_model_from_file(*files(experiment), "cpu")
    losses, parameters = [], []
    for device in (torch.device("cpu"), accelerator):
        there = copy.deepcopy(model).train().to(device)
        optimizer = torch.optim.SGD(there.parameters(), lr=0.1)
        loss, _, _ = there(**make_batch(device))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(there.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
        parameters.append({k: p.detach().cpu() for k, p in there.named_parameters()})
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
    before = dict(model.named_parameters())
    for key, expected in parameters[0].items():
        torch.testing.assert_close(parameters[1][key], expected, rtol=1e-3, atol=1e-4)
    assert any(not torch.equal(p, before[k]) for k, p in parameters[1].items())


@pytest.mark.parametrize("options", [{}, {"pooling_window": 1.5}], ids=str)
def test_transcription(experiment, options, accelerator):
    speech = noise(5)
    expected = Transcriber(*files(experiment), **options)(speech, word_times=True)
    there = Transcriber(*files(experiment), device=accelerator.type, **options)
    assert len(expected.text.split()) > 3
    assert there(speech, word_times=True) == expected


@pytest.mark.parametrize(
    "kind, options",
    [(DECODER, {"ctc_weight": 0.0}), (TRANSDUCER, {})],
    ids=["decoder", "transducer"],
)
def test_beam_search(kind, options, tmp_path, accelerator):
    experiment = make_experiment(tmp_path / "exp", **kind)
    options = {"beam_size": 2, **options}
    expected = Transcriber(*files(experiment), **options)(noise(1))
    there = Transcriber(*files(experiment), device=accelerator.type, **options)
    assert expected.text and there(noise(1)) == expected


@pytest.mark.parametrize("encoder", ["fastformer", "aft"])
def test_attention_plots(encoder, tmp_path, accelerator):
    experiment = make_experiment(tmp_path / "exp", encoder=encoder, **DECODER)
    model, _ = ASRTask.build_model_from_file(*files(experiment), "cpu")
    model.eval()
    expected = calculate_all_attentions(model, make_batch(torch.device("cpu")))
    actual = calculate_all_attentions(model.to(accelerator), make_batch(accelerator))
    assert actual.keys() == expected.keys()
    places = {key.partition(".")[0] for key in expected}
    assert places == {"encoder", "decoder"}
    for key, utterances in expected.items():
        for one, other in zip(actual[key], utterances, strict=True):
            torch.testing.assert_close(one.cpu(), other, rtol=1e-4, atol=1e-5)
