import pytest

from espnet_fastformer.export.sherpa import write_tokens


@pytest.mark.parametrize(
    "token_type, token_list, lines",
    [
        (
            "char",
            ["<blank>", "<unk>", "<space>", "é", "<sos/eos>"],
            ["<blank> 0", "<unk> 1", "▁ 2", "é 3", "<sos/eos> 4"],
        ),
        ("bpe", ["<blank>", "▁THE", "S"], ["<blank> 0", "▁THE 1", "S 2"]),
        ("word", ["<blank>", "THE", "CAT"], ["<blank> 0", "▁THE 1", "▁CAT 2"]),
        # sherpa-onnx takes <blk> for the blank, whatever else is called <blank>.
        ("char", ["<blank2>", "<blank>", "A"], ["<blk> 0", "<blank> 1", "A 2"]),
    ],
)
def test_tokens(token_type, token_list, lines, tmp_path):
    path = tmp_path / "tokens.txt"
    write_tokens(path, token_list, token_type)
    assert path.read_text(encoding="utf-8").splitlines() == lines
