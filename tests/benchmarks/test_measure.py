import math
from functools import partial

import pytest

from benchmarks.measure import Case, Settings, measure, sweep
from tests.benchmarks.workloads import (
    SIZE,
    ByLength,
    Piecewise,
    Square,
    case,
    channels_first,
    compile_square,
    depthwise,
    learned_inputs,
)

SETTINGS = Settings(threads=1, rounds=2, fewest_rounds=2, memory_limit=400_000_000)


def test_counts_operations_and_memory():
    megabytes = 100
    small, large, training = measure(
        [
            case(Square),
            case(partial(Square, megabytes * 1_000_000 // 4)),
            case(Square, mode="training"),
        ],
        SETTINGS,
    )
    product = 2 * (2 * 40) * SIZE**2
    assert small.operations == large.operations == product
    assert training.operations == 2 * product
    assert large.memory - small.memory == pytest.approx(megabytes * 1e6, rel=0.2)
    for result in (small, large, training):
        assert result.failure is None
        assert len(result.seconds) == 2
        lower, median, upper = result.quartiles
        assert 0 < lower <= median <= upper
        assert 0 < result.share_of_peak < math.inf


def test_counts_grouped_convolutions_and_attention():
    forward, training = measure(
        [
            Case("conv", depthwise, channels_first, 2, 40, 4.0, mode=mode)
            for mode in ("inference", "training")
        ],
        SETTINGS,
    )
    assert forward.operations == 2 * 2 * SIZE * 40 * 5
    # Of the weight alone: the input needs no gradient.
    assert training.operations == 2 * forward.operations


def test_pieces_of_an_input_that_would_need_a_gradient():
    result, training = measure(
        [
            Case("pieces", Piecewise, learned_inputs, 2, 40, 4.0, mode=mode)
            for mode in ("inference", "training")
        ],
        SETTINGS,
    )
    assert result.failure is None
    assert result.operations == 2 * (2 * 40) * SIZE**2
    # Of the weight and of the input.
    assert training.operations == 3 * result.operations


def test_compiling_is_not_measured():
    (result,) = measure([case(compile_square, 100)], SETTINGS, with_operations=False)
    assert result.failure is None
    assert result.memory < 50e6


def test_a_competitor_without_memory_is_a_row():
    greedy = partial(Square, 10**9)
    result, other = measure([case(greedy), case(Square)], SETTINGS)
    assert result.failure == "out of memory"
    assert math.isnan(result.median)
    assert other.failure is None


def test_a_slow_competitor_is_a_row():
    (result,) = measure([case(Square)], Settings(threads=1, time_limit=0.0))
    assert result.failure == "over 0 s"


def test_who_failed_is_left_out_at_greater_lengths():
    recorded = []
    sweep(
        [[case(ByLength, frames), case(Square, frames)] for frames in (50, 100, 200)],
        SETTINGS,
        recorded.append,
    )
    failures = [[result.failure for result in results] for results in recorded]
    assert failures == [
        [None, None],
        ["RuntimeError: too / long", None],
        ["RuntimeError: too / long at 10 s", None],
    ]
