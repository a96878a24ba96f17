import pytest

from benchmarks.exported_wer import COLUMNS, main
from benchmarks.results import Report
from espnet_fastformer.bin import export
from tests.inference.models import make_experiment

# Of which sherpa-onnx runs a file.
STREAMING = {
    "encoder_conf": {
        "block_type": "conformer",
        "num_blocks": 1,
        "input_layer": "conv2d",
        "pos_enc_layer_type": "none",
        "dynamic_chunk_training": True,
        "num_left_chunks": 2,
    },
    "frontend_conf": {"n_fft": 400, "win_length": 400, "hop_length": 160},
    "normalize": None,
}


def run(exp, corpus, files, output) -> Report:
    options = ["--exp", str(exp), "--corpus", str(corpus), "--subsets", "test"]
    main([*options, "--files", *map(str, files), "--output", str(output)])
    report = Report.load(output.with_suffix(".json"))
    assert report.title == "test: 3 utterances, 6 s"
    assert tuple(report.columns) == COLUMNS
    return report


def test_files_and_their_model(corpus, tmp_path, capsys):
    exp = make_experiment(tmp_path / "exp")
    exact = tmp_path / "model.pt2"
    export.main(["--exp", str(exp), "--format", "torch_export", "--output", str(exact)])
    model, file = run(exp, corpus, [exact], tmp_path / "result").rows
    assert [model[0], file[0]] == ["valid.cer_ctc.ave.pth", "model.pt2"]
    assert model[1:3] == file[1:3]
    assert model[3:6] == file[3:6] == ["0 of 3", "0.00%", "0 of 3"]
    assert float(model[1].rstrip("%")) > 0

    with pytest.raises(SystemExit):
        main(
            [
                *("--exp", str(exp), "--corpus", str(corpus)),
                *("--subsets", "other", "--files", str(exact)),
            ]
        )
    assert "other has no utterance" in capsys.readouterr().err


def test_streams_in_each_runtime(corpus, tmp_path, capsys):
    pytest.importorskip("sherpa_onnx")
    exp = make_experiment(tmp_path / "exp", **STREAMING)
    options = ["--format", "streaming_onnx", "--chunk_size", "8"]
    export.main(["--exp", str(exp), *options, "--output", str(tmp_path)])
    file = tmp_path / "model.onnx"
    rows = run(exp, corpus, [file], tmp_path / "result").rows
    assert [row[0] for row in rows] == [
        "valid.cer_ctc.ave.pth, chunks of 8 frames",
        "model.onnx",
        "model.onnx, features clipped",
        "model.onnx, and zeros after",
        "model.onnx in sherpa-onnx",
    ]
    model, exact, clipped, lengthened, in_sherpa = rows
    # Nothing in noise is so quiet as to be clipped.
    assert model[1:6] == exact[1:6] == clipped[1:6]
    # It is loud up to the ends, where there are other frames then.
    for row in (lengthened, in_sherpa):
        assert row[3] == "3 of 3"
        assert 0 < float(row[4].rstrip("%")) < 40

    with pytest.raises(SystemExit):
        run(exp, corpus, [file, tmp_path / "model.pt2"], tmp_path / "result")
    assert "must all be for whole utterances" in capsys.readouterr().err
