"""A trained model with all of its parameters."""

import logging
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import humanfriendly
import torch
from espnet2.layers.abs_normalize import AbsNormalize
from espnet2.layers.utterance_mvn import UtteranceMVN
from espnet2.tasks.asr import ASRTask
from espnet2.torch_utils.safe_torch_load import safe_torch_load
from espnet2.train.abs_espnet_model import AbsESPnetModel

from espnet_fastformer.encoder.linear_time_encoder import LinearTimeEncoder


def load_model(
    asr_train_config: str | Path, asr_model_file: str | Path
) -> tuple[AbsESPnetModel, Namespace]:
    """Load a model on the CPU.

    Args:
        asr_train_config: ``config.yaml`` of the training.
        asr_model_file: Parameters, ``*.pth``.

    Returns:
        The model, and the options that it was trained with.

    Raises:
        ValueError: If the files make no model.
        OSError: If a file is missing, be it one that the config names.
    """
    with explaining_failure(asr_train_config, asr_model_file):
        model, args = ASRTask.build_model_from_file(
            asr_train_config, asr_model_file, "cpu"
        )
    check_parameters(model, asr_model_file)
    return model, args


@contextmanager
def explaining_failure(
    asr_train_config: str | Path, asr_model_file: str | Path
) -> Iterator[None]:
    """Raise ValueError for whatever a config or file can lead ESPnet to."""
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        read_parameters(asr_model_file)
        raise ValueError(
            f"{asr_train_config} and {asr_model_file} make no model: {error!r}"
        ) from error


def sampling_rate(args: Namespace) -> int:
    """Return the sampling rate in Hz of the audio that a model was trained on."""
    return humanfriendly.parse_size(str(args.frontend_conf.get("fs", 16000)))


def speech_volume(args: Namespace) -> float | None:
    """Return the largest sample of each recording in training; None if as recorded."""
    return getattr(args, "speech_volume_normalize", None)


def check_streaming(
    encoder: LinearTimeEncoder, normalize: AbsNormalize | None, volume: float | None
) -> None:
    """Check that a model can stream, and warn if it was not trained to.

    Args:
        encoder: Its encoder.
        normalize: Its normalisation.
        volume: As of :func:`speech_volume`.

    Raises:
        ValueError: If it cannot.
    """
    if encoder.no_streaming:
        raise ValueError(encoder.no_streaming)
    if isinstance(normalize, UtteranceMVN):
        raise ValueError(
            "normalize: utterance_mvn takes the mean of a whole utterance, which a "
            "stream has not: train with normalize: global_mvn"
        )
    if volume is not None:
        raise ValueError(
            "speech_volume_normalize goes by the loudest sample of a recording, which "
            "a stream does not know: train without it"
        )
    if encoder.chunk_sizes is None:
        logging.warning(
            "the encoder was trained on whole utterances alone, and will make many "
            "errors in chunks: train it with dynamic_chunk_training: true"
        )


def read_parameters(path: str | Path) -> dict[str, torch.Tensor]:
    """Read a file of parameters, of ESPnet's training or Lightning's.

    Raises:
        ValueError: If it holds something else, or parameters that are no numbers.
        OSError: If it cannot be read.
    """
    try:
        content = safe_torch_load(path, map_location="cpu")
    except OSError:
        raise
    except Exception as error:  # of zip, pickle, PyTorch or ESPnet
        raise ValueError(f"{path} holds no parameters: {error}") from error
    if isinstance(content, dict):
        content = content.get("state_dict", content)
    if not isinstance(content, dict) or not all(
        isinstance(value, torch.Tensor) for value in content.values()
    ):
        raise ValueError(f"{path} holds no parameters, but {type(content).__name__}")
    for name, value in content.items():
        if not value.isfinite().all():
            raise ValueError(
                f"{path}: {name} is infinite or no number, so its training failed"
            )
    return content


def check_parameters(model: torch.nn.Module, path: str | Path) -> None:
    """Check that a file has all parameters of a model; ESPnet loads what matches.

    Raises:
        ValueError: If one is missing. Those that the model has not are logged.
    """
    given, wanted = read_parameters(path).keys(), model.state_dict().keys()
    if missing := [name for name in wanted if name not in given]:
        raise ValueError(
            f"{path} is not of this config: it lacks {len(missing)} of {len(wanted)} "
            f"parameters, such as {missing[0]}"
        )
    if unused := [name for name in given if name not in wanted]:
        logging.warning(
            "%s: the config has no use for %d parameters, such as %s",
            path,
            len(unused),
            unused[0],
        )
