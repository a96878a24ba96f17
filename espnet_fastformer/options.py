"""Checks of options, whose messages name the option."""

from collections.abc import Sequence


def check_sizes(**options: int) -> None:
    """Raise ValueError that names the first option that is no number from 1 on."""
    for name, value in options.items():
        # To Python, true is 1.
        if isinstance(value, bool) or value < 1:
            raise ValueError(f"{name} must be at least 1, but is {value}")


def check_odd(**options: int) -> None:
    """Raise ValueError that names the first size that is even or below 1."""
    check_sizes(**options)
    for name, value in options.items():
        if value % 2 == 0:
            raise ValueError(f"{name} must be odd, but is {value}")


def check_heads(attention_heads: int, **options: int) -> None:
    """Raise ValueError that names the first size that heads cannot share."""
    for name, value in options.items():
        if value % attention_heads != 0:
            raise ValueError(
                f"{name} ({value}) must be a multiple of attention_heads "
                f"({attention_heads})"
            )


def check_rates(**options: float) -> None:
    """Raise ValueError that names the first option that is no share or probability."""
    for name, value in options.items():
        if isinstance(value, bool) or not 0 <= value <= 1:
            raise ValueError(f"{name} must be between 0 and 1, but is {value}")


def check_numbers(name: str, values: Sequence[int], first: int, last: int) -> list[int]:
    """Return whole numbers from ``first`` to ``last`` as a list.

    Raises:
        ValueError: If there is anything else.
    """
    numbers = list(values)
    if any(type(n) is not int or not first <= n <= last for n in numbers):
        raise ValueError(
            f"{name} must be whole numbers between {first} and {last}, but is {numbers}"
        )
    return numbers


def check_block(
    block_size: int | None, hop_size: int | None, look_ahead: int | None
) -> None:
    """Raise ValueError if these options of a stream do not agree."""
    if block_size is not None:
        check_sizes(block_size=block_size)
    if hop_size not in (None, block_size):
        raise ValueError(
            f"hop_size must equal block_size ({block_size}), but is {hop_size}"
        )
    if look_ahead not in (None, 0):
        raise ValueError(f"look_ahead must be 0, but is {look_ahead}")
