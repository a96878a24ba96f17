"""Downloads that go on where they were interrupted, as ESPnet3's do not."""

from __future__ import annotations

from pathlib import Path

TIMEOUT_SECONDS = 60
RETRIES = 5


def download(url: str, path: Path) -> None:
    """Download a file, or the rest of it.

    Args:
        url: Where it is published.
        path: Where it goes.

    Raises:
        ModuleNotFoundError: The download library is missing.
    """
    try:
        import gdown
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"{url} is downloaded by gdown: pip install 'espnet-fastformer[recipe]'"
        ) from error
    gdown.download(
        url,
        str(path),
        resume=True,
        retries=RETRIES,
        timeout=TIMEOUT_SECONDS,
        use_cookies=False,
    )
