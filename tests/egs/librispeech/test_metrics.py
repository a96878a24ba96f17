"""Error counts behind the error rates."""

from src import metrics

REFERENCES = ["A B C D", "A B", "A"]
HYPOTHESES = ["A X C", "A B", "B A C"]


def test_word_errors():
    metric = metrics.WER()
    # In two batches, as for a large test set.
    metric.update(ref=REFERENCES[:1], hyp=HYPOTHESES[:1])
    metric.update(ref=REFERENCES[1:], hyp=HYPOTHESES[1:])
    assert metric.compute() == {
        "WER_Snt": 3,
        "WER_Wrd": 7,
        "WER_Corr": 71.4,
        "WER_Sub": 14.3,
        "WER_Del": 14.3,
        "WER_Ins": 28.6,
        "WER_Err": 57.1,
        "WER_SErr": 66.7,
    }


def test_character_errors_count_spaces():
    metric = metrics.CER()
    metric.update(ref=["AB CD"], hyp=["ABCD"])
    counts = metric.compute()
    assert counts["CER_Wrd"] == 5
    assert counts["CER_Del"] == counts["CER_Err"] == 20.0
    assert counts["CER_SErr"] == 100.0
