import pytest

from benchmarks.results import duration, number, size


@pytest.mark.parametrize(
    ("value", "text"),
    [(12345.6, "12,346"), (410, "410"), (4.1, "4.10"), (0.0417, "0.042"), (0, "0")],
)
def test_number(value, text):
    assert number(value) == text


def test_units():
    assert [duration(x) for x in (90.0, 0.0123, 4.5e-5)] == [
        "90.0 s",
        "12.3 ms",
        "45.0 µs",
    ]
    assert [size(x) for x in (2_500_000_000, 3_000_000)] == ["2.50 GB", "3.00 MB"]
