"""Features of a recording of any length, in memory that grows with them alone."""

import torch
from espnet2.asr.frontend.abs_frontend import AbsFrontend
from espnet2.asr.frontend.default import DefaultFrontend
from espnet2.layers.abs_normalize import AbsNormalize

FRAMES_AT_ONCE = 2000


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
        Features (1, T, F); T is 0 where there is no window of samples.
    """
    if not _is_framewise(frontend):
        return _call(frontend, speech)
    stft = frontend.stft
    hop = stft.hop_length
    before = stft.n_fft // 2 if stft.center else 0
    after = stft.n_fft - before
    frames = (len(speech) + 2 * before - stft.n_fft) // hop + 1
    if frames < 1 or len(speech) <= before:
        return speech.new_zeros(1, 0, frontend.output_size())
    # One frame more than the window needs, as what is mirrored must be longer than it.
    context = -(-before // hop) + 1
    pieces = []
    for start in range(0, frames, FRAMES_AT_ONCE):
        stop = min(start + FRAMES_AT_ONCE, frames)
        first = max(start - context, 0)
        piece = speech[first * hop : (stop - 1) * hop + after]
        pieces.append(_call(frontend, piece)[:, start - first : stop - first])
    return torch.cat(pieces, dim=1)


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


def _is_framewise(frontend: AbsFrontend) -> bool:
    return (
        type(frontend) is DefaultFrontend
        and frontend.stft is not None
        and not getattr(frontend.frontend, "use_wpe", False)
        and not getattr(frontend.frontend, "use_beamformer", False)
    )


def _call(frontend: AbsFrontend, speech: torch.Tensor) -> torch.Tensor:
    lengths = torch.tensor([len(speech)], device=speech.device)
    return frontend(speech.unsqueeze(0), lengths)[0]
