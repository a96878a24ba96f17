"""Prints the rows that ESPnet reads of sclite's report: `sclite -r REF trn -h HYP trn`.

The words are aligned by jiwer, which ESPnet3 scores with. sclite weighs substitutions
otherwise, so that it can count a few more or less of them.
"""

import sys
from pathlib import Path

import jiwer


def read_trn(path: str) -> list[str]:
    """Return the texts, each of which ends in `(speaker-utterance)`."""
    return [line.rpartition("(")[0].strip() for line in Path(path).open()]


options = dict(zip(sys.argv, sys.argv[1:], strict=False))
references, hypotheses = read_trn(options["-r"]), read_trn(options["-h"])
aligned = jiwer.process_words(references, hypotheses)
num_words = aligned.hits + aligned.substitutions + aligned.deletions
errors = aligned.substitutions + aligned.deletions + aligned.insertions
counts = (
    aligned.hits,
    aligned.substitutions,
    aligned.deletions,
    aligned.insertions,
    errors,
)
wrong = sum(
    reference.split() != hypothesis.split()
    for reference, hypothesis in zip(references, hypotheses, strict=True)
)
percentages = [100 * count / num_words for count in counts]
percentages.append(100 * wrong / len(references))
print("| SPKR    | # Snt # Wrd | Corr   Sub   Del   Ins   Err S.Err |")
print(
    f"| Sum/Avg | {len(references):5} {num_words:5} |",
    *(f"{percentage:5.1f}" for percentage in percentages),
    "|",
)
