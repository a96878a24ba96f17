"""Features of a recording of any length, in memory that grows with them alone."""

from typing import NamedTuple

import torch
from espnet2.asr.frontend.abs_frontend import AbsFrontend
from espnet2.asr.frontend.default import DefaultFrontend
from espnet2.layers.abs_normalize import AbsNormalize
from espnet2.layers.stft import Stft
from espnet2.train.abs_espnet_model import AbsESPnetModel
from torch.nn.functional import max_pool1d, pad

from espnet_fastformer.encoder.input_layer import receptive_field
from espnet_fastformer.layers import pieces

# Samples that every frontend takes: 0.1 s at the 16 kHz of pretrained ones, which fail
# on less than their window and do not tell it.
LEAST_SAMPLES = 1600
# Of 16-bit audio, up and down: what dither adds to silence.
_LAST_BIT = 2 / 2**15
#: Tenths of a second within which :func:`find_sound` looks for it.
SOUND_REACH = 5


class TooShortError(ValueError):
    """Raised when a recording is shorter than what one output frame sees."""


class Recording(NamedTuple):
    """A recording as a model hears it.

    Attributes:
        samples: Samples (N,) at the volume of the training.
        feats: Output of the frontend (1, T, F).
        seconds_per_feature: From one feature to the next.
        first_feature: Middle of the first feature in seconds.
    """

    samples: torch.Tensor
    feats: torch.Tensor
    seconds_per_feature: float
    first_feature: float = 0.0


def prepare_recording(
    model: AbsESPnetModel, samples: torch.Tensor, fs: int, volume: float | None
) -> Recording:
    """Do what training did before normalisation and encoder.

    Args:
        model: ESPnet's model, with a frontend.
        samples: Samples (N,) between -1 and 1, float32.
        fs: Sampling rate of the model, in Hz.
        volume: Largest sample, from ESPnet's ``speech_volume_normalize``; None to leave
            them as they are.

    Raises:
        TooShortError: If the encoder would give no frame.
    """
    if volume is not None and samples.any():
        samples = samples * (volume / samples.abs().max())
    feats = extract_features(model.frontend, samples)
    frames, (size, _) = feats.size(1), receptive_field(model.encoder.embed)
    if frames < size:
        raise TooShortError(
            f"{len(samples) / fs:.2f} s of audio are too short: they give {frames} of "
            f"the {size} features that the encoder needs"
        )
    if not isinstance(model.frontend, DefaultFrontend):
        # Not all have a hop_length, and Whisper's is half of what it should be.
        return Recording(samples, feats, len(samples) / fs / frames)
    stft = model.frontend.stft
    is_padded = stft is None or stft.center
    first = 0.0 if is_padded else stft.n_fft / 2 / fs
    return Recording(samples, feats, model.frontend.hop_length / fs, first)


def find_sound(samples: torch.Tensor, fs: int) -> torch.Tensor:
    """Tell where there is sound: more than the last bit of 16-bit audio.

    A model says words of digital silence, which no training shows it.

    Args:
        samples: Samples (N,) between -1 and 1.
        fs: Their sampling rate, in Hz.

    Returns:
        For each tenth of a second (ceil(10 N / fs),) whether there is sound in it or in
        the half second before, as the tokens of CTC may come later than their sound.
    """
    block = fs // 10
    if len(samples) == 0:
        return samples.new_zeros(0, dtype=torch.bool)
    ends = samples[-1:].expand(-len(samples) % block)
    blocks = torch.cat([samples, ends]).view(-1, block)
    is_sound = blocks.amax(1) - blocks.amin(1) > _LAST_BIT
    heard = pad(is_sound[None].float(), (SOUND_REACH, 0))
    return max_pool1d(heard, SOUND_REACH + 1, stride=1)[0] > 0


def least_samples(model: AbsESPnetModel) -> int:
    """Return how many samples the encoder needs to give one frame.

    Args:
        model: ESPnet's model. For another frontend than ESPnet's default one, the
            result is 0.1 s at 16 kHz, whatever the encoder.
    """
    stft = getattr(model.frontend, "stft", None)
    if type(model.frontend) is not DefaultFrontend or stft is None:
        return LEAST_SAMPLES
    size, _ = receptive_field(getattr(model.encoder, "embed", None))
    before = _samples_before(stft)
    # Of no more samples than it mirrors, the STFT makes no frame at all.
    return max((size - 1) * stft.hop_length + stft.n_fft - 2 * before, before + 1)


def extract_features(frontend: AbsFrontend, speech: torch.Tensor) -> torch.Tensor:
    """Compute ESPnet's features, those of its default frontend in overlapping pieces.

    ESPnet masks padding by a table of (T + 1)², 130 GB for an hour. Here each piece is
    cut out with the samples around it that its frames see, so that only the ends of the
    recording are mirrored, as in the whole.

    Args:
        frontend: ESPnet's frontend. All but the default one, and that one with
            dereverberation or beamforming, are given the whole recording.
        speech: Samples (N,).

    Returns:
        Features (1, T, F); T is 0 where there is no window of samples, or less than
        0.1 s at 16 kHz for a frontend that does not tell its window.
    """
    if type(frontend) is not DefaultFrontend or frontend.stft is None:
        if len(speech) < LEAST_SAMPLES:
            return speech.new_zeros(1, 0, frontend.output_size())
        return call_frontend(frontend, speech)
    stft = frontend.stft
    hop = stft.hop_length
    before = _samples_before(stft)
    after = stft.n_fft - before
    frames = (len(speech) + 2 * before - stft.n_fft) // hop + 1
    if frames < 1 or len(speech) <= before:
        return speech.new_zeros(1, 0, frontend.output_size())
    if not is_framewise(frontend):
        return call_frontend(frontend, speech)
    # To mirror samples, the STFT needs one more: hence another frame before, and, for
    # the first frame alone, another sample after.
    context = -(-before // hop) + 1
    parts = []
    for start in range(0, frames, pieces.FRAMES_AT_ONCE):
        stop = min(start + pieces.FRAMES_AT_ONCE, frames)
        first = max(start - context, 0)
        piece = speech[first * hop : (stop - 1) * hop + after + 1]
        parts.append(call_frontend(frontend, piece)[:, start - first : stop - first])
    return torch.cat(parts, dim=1)


def normalize_features(normalize: AbsNormalize | None, feats: torch.Tensor):
    """Apply ESPnet's global_mvn or utterance_mvn over a whole recording.

    Args:
        normalize: ESPnet's layer, or None.
        feats: Features (1, T, F), which may be overwritten.

    Returns:
        Features (1, T, F).
    """
    if normalize is None or feats.size(1) == 0:
        return feats
    # For more than three axes ESPnet masks padding without that table.
    lengths = torch.tensor([feats.size(1)], device=feats.device)
    return normalize(feats.unsqueeze(2), lengths)[0].squeeze(2)


def _samples_before(stft: Stft) -> int:
    """Return how many samples before its own place a frame sees."""
    return stft.n_fft // 2 if stft.center else 0


def is_framewise(frontend: DefaultFrontend) -> bool:
    """Return whether a feature depends on its own window alone."""
    enhancement = frontend.frontend
    return not (
        getattr(enhancement, "use_wpe", False)
        or getattr(enhancement, "use_beamformer", False)
    )


def call_frontend(frontend: AbsFrontend, speech: torch.Tensor) -> torch.Tensor:
    """Return the features (1, T, F) of samples (N,)."""
    lengths = torch.tensor([len(speech)], device=speech.device)
    return frontend(speech.unsqueeze(0), lengths)[0]
