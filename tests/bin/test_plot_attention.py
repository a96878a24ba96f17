import os
import sys

import matplotlib.image
import numpy as np
import pytest
import soundfile
from espnet2.tasks.asr import ASRTask

from espnet_fastformer.bin import main, plot_attention
from espnet_fastformer.encoder.fastformer_encoder import FastformerEncoder
from espnet_fastformer.inference.inspection import inspect_recording
from espnet_fastformer.inference.inspection_figure import draw
from tests.inference.models import make_experiment, noise

FORMS = {
    "fastformer": {},
    "aft": {"aft_type": "conv"},
    "aft-full": {"aft_type": "full"},
    "aft-local": {"aft_type": "local", "aft_window_size": 8},
    "aft-local-factorized": {"aft_type": "local", "aft_bias": "factorized"},
    "aft-simple": {"aft_type": "simple"},
}


@pytest.fixture(scope="module")
def exps(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    return {
        name: make_experiment(root / name, conf, encoder=name.split("-")[0])
        for name, conf in FORMS.items()
    }


@pytest.fixture(autouse=True)
def audio(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    soundfile.write("talk.wav", noise(2), 16000)
    soundfile.write("telephone.flac", noise(2)[::2], 8000)
    soundfile.write("short.wav", noise(0.02), 16000)
    (tmp_path / "text.wav").write_text("no audio")
    return tmp_path


def run(exp, *args) -> int:
    return plot_attention.main(["--exp", str(exp), *args])


@pytest.mark.parametrize("name", ["fastformer", "aft-full"])
def test_picture(name, exps, audio):
    assert run(exps[name], "talk.wav", "-o", "new/picture.png") == 0
    picture = matplotlib.image.imread("new/picture.png")
    assert picture.shape[0] > 400 and np.unique(picture[..., 1]).size > 100


def test_name_and_rate_of_the_audio(exps, audio):
    assert run(exps["fastformer"], "telephone.flac") == 0
    assert [path.name for path in audio.glob("*.png")] == ["telephone.png"]
    assert main.main(["plot_attention", "--exp", str(exps["aft"]), "talk.wav"]) == 0
    assert (audio / "talk.png").stat().st_size


@pytest.mark.parametrize(
    "name",
    [
        "price_$5.wav",
        "$\\frac{a$.wav",
        "日本\n.wav",
        "x" * 250 + ".wav",
        b"caf\xe9.wav",
    ],
)
@pytest.mark.filterwarnings("error")
def test_any_name(name, exps, audio, capsys):
    name = os.fsdecode(name)
    (audio / "talk.wav").rename(name)
    assert run(exps["fastformer"], name) == 0
    (picture,) = audio.glob("*.png")
    assert picture.stem == name.removesuffix(".wav")
    assert capsys.readouterr().err.startswith("wrote ")
    # The name does not squeeze what it names.
    assert matplotlib.image.imread(picture).shape[1] == 11 * 120


def test_an_error_of_the_model_is_one_line(exps, monkeypatch, capsys):
    def fail(*_):
        raise MemoryError("no 130 GB\nat line 5")

    monkeypatch.setattr(FastformerEncoder, "forward", fail)
    assert run(exps["fastformer"], "talk.wav") == 1
    assert capsys.readouterr().err.endswith("cannot draw talk.wav: no 130 GB\n")


def test_volume_is_normalised_as_in_training(audio):
    options = {"speech_volume_normalize": 0.5, "normalize": None}
    exp = make_experiment(audio / "exp", **options)
    for name, factor in (("loud", 1), ("low", 1 / 8)):
        (audio / name).mkdir()
        soundfile.write(f"{name}/talk.wav", factor * noise(1), 16000, "FLOAT")
        assert run(exp, f"{name}/talk.wav", "-o", f"{name}.png") == 0
    loud, low = (matplotlib.image.imread(f"{name}.png") for name in ("loud", "low"))
    np.testing.assert_array_equal(low, loud)


@pytest.mark.parametrize("name", FORMS)
def test_panels_show_the_weights(name, exps):
    exp = exps[name]
    model, _ = ASRTask.build_model_from_file(
        exp / "config.yaml", exp / "valid.cer_ctc.ave.pth"
    )
    inspection = inspect_recording(model, noise(2), 16000)
    figure = draw(inspection, model.encoder, "a title")
    panels = {axes.get_title(): axes for axes in figure.axes if axes.get_title()}
    assert panels["a title"].get_ylabel() == "mel band"
    kinds = ["α", "β"] if name == "fastformer" else ["key weights"]
    titles = [f"block {block}: {kind}" for block in (1, 2) for kind in kinds]
    has_bias = name not in ("fastformer", "aft-simple")
    assert panels.keys() == {"a title", *titles, *["position bias"] * has_bias}
    shown = dict(zip(titles, inspection.weights.values(), strict=True))
    for title, weights in shown.items():
        (image,) = panels[title].images
        np.testing.assert_allclose(image.get_array(), weights)
        assert image.get_extent()[:2] == list(inspection.frame_span)
        assert panels[title].get_ylabel() == (
            "head" if len(weights) == 2 else "channel"
        )
    assert panels[titles[-1]].get_xlabel() == "time [s]"
    for kind in kinds:
        of_kind = [title for title in titles if title.endswith(kind)]
        most = max(shown[title].max().item() for title in of_kind)
        for title in of_kind:
            (image,) = panels[title].images
            assert image.get_clim() == (0.0, pytest.approx(most))
    if has_bias:
        biases = [axes for axes in figure.axes if axes.get_title() == "position bias"]
        assert len(biases) == 2
        assert len({axes.get_ylim() for axes in biases}) == 1
        assert len({image.get_clim() for axes in biases for image in axes.images}) < 2
        bias = panels["position bias"]  # of the last block
        mixer = model.encoder.encoders[1].attn
        matrix = mixer.position_bias_matrix(inspection.frames).detach().numpy()
        if name in ("aft", "aft-local"):
            lines = [line for line in bias.lines if len(line.get_xdata()) > 2]
            middle = inspection.frames // 2
            for line, head in zip(lines, matrix, strict=True):
                offsets = np.round(np.array(line.get_xdata()) / 0.03).astype(int)
                np.testing.assert_allclose(
                    line.get_ydata(), head[middle, middle + offsets], rtol=1e-5
                )
        else:
            np.testing.assert_allclose(bias.images[0].get_array(), matrix[0])


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["talk.wav"], "--exp is needed"),
        (["--exp", "nowhere", "talk.wav"], "nowhere/config.yaml"),
        (["--exp", "EXP", "talk.wav", "-o", "talk.mp3"], "talk.mp3 must end in one of"),
        (["--exp", "EXP", "talk.wav", "-o", "talk"], "talk must end in one of"),
        (["--exp", "EXP", "talk.wav", "-o", "text.wav/a.png"], "to text.wav: File exi"),
        (["--exp", "EXP", "short.wav"], "0.02 s of audio are too short"),
    ],
)
def test_wrong_options_are_named(args, message, exps, capsys):
    exp = str(exps["fastformer"])
    with pytest.raises(SystemExit) as caught:
        plot_attention.main([exp if arg == "EXP" else arg for arg in args])
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["text.wav"], "cannot read text.wav: Format not recognised."),
        (["missing.wav"], "cannot read missing.wav: No such file or directory"),
    ],
)
def test_files_that_fail_are_named(args, message, exps, capsys):
    assert run(exps["fastformer"], *args) == 1
    assert message in capsys.readouterr().err


def test_missing_matplotlib_is_named(exps, monkeypatch, capsys):
    for module in [m for m in sys.modules if m.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(SystemExit):
        run(exps["fastformer"], "talk.wav")
    assert "pip install 'espnet-fastformer[plot]'" in capsys.readouterr().err
