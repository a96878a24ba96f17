"""What a model's encoder weighs in a recording."""

from dataclasses import dataclass

import numpy as np
import torch
from espnet2.asr.frontend.default import DefaultFrontend
from espnet2.train.abs_espnet_model import AbsESPnetModel
from torch.nn.functional import adaptive_max_pool1d

from espnet_fastformer.attention_weights import Weights, record_weights
from espnet_fastformer.encoder.input_layer import receptive_field
from espnet_fastformer.encoder.linear_time_encoder import LinearTimeEncoder
from espnet_fastformer.inference.features import normalize_features, prepare_recording

# What a picture can show. A narrow peak must not vanish between two of them.
_COLUMNS = 2000


@dataclass
class Inspection:
    """Pictures with time along the last axis.

    Of a long recording, a column holds the largest values of the frames around it.

    Attributes:
        features: What the frontend gives (F, columns).
        feature: What each of its rows is.
        feature_span: Start and end of ``features`` in seconds.
        weights: The mixers' weights (H or D, columns) by ``MODULE.NAME``, such as
            ``encoders.0.attn.alpha``.
        frame_span: Start and end of the weights in seconds.
        frames: Number of frames T that the mixers see.
    """

    features: torch.Tensor
    feature: str
    feature_span: tuple[float, float]
    weights: Weights
    frame_span: tuple[float, float]
    frames: int


@torch.no_grad()
def inspect_recording(
    model: AbsESPnetModel, speech: np.ndarray, fs: int, volume: float | None = None
) -> Inspection:
    """Run the encoder of a model and keep what it weighs.

    Args:
        model: ESPnet's model for speech.
        speech: Samples (N,) between -1 and 1, float32.
        fs: Sampling rate of the model, in Hz.
        volume: ESPnet's ``speech_volume_normalize`` of the training.

    Returns:
        The features and the weights.

    Raises:
        ValueError: If the encoder has nothing to show, or the recording is too short.
    """
    encoder = model.encoder.eval()
    if not isinstance(encoder, LinearTimeEncoder):
        raise ValueError(
            f"the encoder is {type(encoder).__name__}, not fastformer or aft"
        )
    if model.frontend is None:
        raise ValueError("the model has no frontend, so that it takes no audio")
    _, feats, seconds, first = prepare_recording(
        model, torch.from_numpy(speech), fs, volume
    )
    size, stride = receptive_field(encoder.embed)
    # The stride that is an output frame's own lies in the middle of what it sees.
    spectrogram = _columns(feats.mT)
    feature_span = (first - seconds / 2, first + (feats.size(1) - 0.5) * seconds)
    feats = normalize_features(model.normalize, feats)
    lengths = torch.tensor([feats.size(1)])
    if model.preencoder is not None:
        feats, lengths = model.preencoder(feats, lengths)
    options = {"ctc": model.ctc} if encoder.interctc_use_conditioning else {}

    def weights_of(mixer, *args, **kwargs) -> Weights:
        weights = mixer.attention_weights(*args, **kwargs)
        return {name: _columns(w) for name, w in weights.items()}

    with record_weights(encoder, weights_of) as recorded:
        _, frames, _ = encoder(feats, lengths, **options)
    if not recorded:
        raise ValueError("no block of the encoder has a mixer (use_attn: false)")
    start = (size - stride) / 2 - 0.5
    end = start + frames.item() * stride
    return Inspection(
        spectrogram[0],
        "mel band" if isinstance(model.frontend, DefaultFrontend) else "feature",
        feature_span,
        {name: weights[0] for name, weights in recorded.items()},
        (first + start * seconds, first + end * seconds),
        frames.item(),
    )


def _columns(x: torch.Tensor) -> torch.Tensor:
    return adaptive_max_pool1d(x, min(x.size(-1), _COLUMNS))
