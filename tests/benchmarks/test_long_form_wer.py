import pytest

from benchmarks.corpus import draw, read_corpus
from benchmarks.long_form_wer import decode_each, decode_joined, main
from tests.inference.models import make_experiment


def test_joined_and_one_by_one(corpus, tmp_path):
    exp = make_experiment(tmp_path / "exp")
    options = {
        "asr_train_config": exp / "config.yaml",
        "asr_model_file": exp / "valid.cer_ctc.ave.pth",
    }
    texts = read_corpus(corpus, ["test"])
    utterances = list(draw(texts, 6, (0.1, 0.2), seed=0))
    each = decode_each(utterances, options)
    joined = decode_joined(utterances, options)
    windows = decode_joined(utterances, {**options, "pooling_window": 1.0})
    assert len({each.text, joined.text, windows.text}) == 3
    assert all(len(d.text.split()) > 3 for d in (each, joined, windows))
    alone = decode_joined(utterances[:1], options)
    assert alone.memory > 1e8


def test_missing_subset_is_named(corpus, tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(["--exp", str(tmp_path), "--corpus", str(corpus), "--subsets", "dev"])
    assert f"{corpus / 'dev'} has no utterance" in capsys.readouterr().err
