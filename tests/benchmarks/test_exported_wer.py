import pytest

from benchmarks.exported_wer import COLUMNS, main
from benchmarks.results import Report
from espnet_fastformer.bin import export
from tests.inference.models import make_experiment


def test_files_and_their_model(corpus, tmp_path, capsys):
    exp = make_experiment(tmp_path / "exp")
    exact = tmp_path / "model.pt2"
    export.main(["--exp", str(exp), "--format", "torch_export", "--output", str(exact)])
    result = tmp_path / "result"
    options = ["--exp", str(exp), "--corpus", str(corpus), "--subsets", "test"]
    main([*options, "--files", str(exact), "--output", str(result)])
    report = Report.load(result.with_suffix(".json"))
    assert report.title == "test: 3 utterances, 6 s"
    assert tuple(report.columns) == COLUMNS
    model, file = report.rows
    assert [model[0], file[0]] == ["valid.cer_ctc.ave.pth", "model.pt2"]
    assert model[1:3] == file[1:3]
    assert float(model[1].rstrip("%")) > 0

    with pytest.raises(SystemExit):
        main([*options, "other", "--files", str(exact)])
    assert "other has no utterance" in capsys.readouterr().err
