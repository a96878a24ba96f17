"""From samples to words while a recording is going on, in constant memory."""

import numpy as np
import torch
from espnet2.asr.frontend.default import DefaultFrontend
from typeguard import typechecked

from espnet_fastformer.inference.ctc import BLANK, Span
from espnet_fastformer.inference.features import (
    SOUND_REACH,
    Recording,
    call_frontend,
    find_sound,
    is_framewise,
    normalize_features,
)
from espnet_fastformer.inference.model import check_streaming
from espnet_fastformer.inference.transcriber import Transcriber
from espnet_fastformer.inference.transcript import Transcript
from espnet_fastformer.options import check_sizes


class FeatureStream:
    """Features of a recording that comes in pieces, the same as those of the whole.

    Args:
        frontend: ESPnet's default frontend, without enhancement.

    Raises:
        ValueError: If it is another one.
    """

    def __init__(self, frontend: torch.nn.Module):
        if (
            type(frontend) is not DefaultFrontend
            or frontend.stft is None
            or not is_framewise(frontend)
        ):
            raise ValueError(
                "streaming needs frontend: default, without dereverberation or "
                f"beamforming; this is {type(frontend).__name__}"
            )
        self.frontend = frontend
        stft = frontend.stft
        self.hop = stft.hop_length
        self.before = stft.n_fft // 2 if stft.center else 0
        self.after = stft.n_fft - self.before
        self.context = -(-self.before // self.hop)
        self.samples = torch.zeros(0)  # From the first frame on that is seen again.
        self.first = 0
        self.frames = 0

    def __call__(self, samples: torch.Tensor, is_final: bool) -> torch.Tensor:
        """Return the features (1, T, F) that the next samples (N,) complete.

        Those at the end mirror it, and are there if ``is_final``.
        """
        self.samples = torch.cat([self.samples.to(samples), samples])
        length = self.first * self.hop + len(self.samples)
        window = 2 * self.before if is_final else self.before
        stop = (length + window - self.before - self.after) // self.hop + 1
        # What is mirrored must be longer than the mirror image.
        if stop <= self.frames or length <= self.before:
            return samples.new_zeros(1, 0, self.frontend.output_size())
        feats = call_frontend(self.frontend, self.samples)[
            :, self.frames - self.first : stop - self.first
        ]
        self.frames = stop
        # To mirror samples, the STFT needs one more: hence another frame before.
        first = max(stop - self.context - 1, 0)
        self.samples = self.samples[(first - self.first) * self.hop :].clone()
        self.first = first
        return feats


class StreamingTranscriber:
    """One recording that is transcribed as it comes; what is said is never changed.

    Args:
        transcriber: With the model, whose encoder can stream.
        chunk_size: Output frames that are encoded together; None for the
            ``block_size`` of the model.
        num_left_chunks: Chunks that each sees before it, negative for all; None for as
            many as in training.

    Raises:
        ValueError: If the model cannot be streamed, or a chunk size is not positive.
    """

    @typechecked
    def __init__(
        self,
        transcriber: Transcriber,
        chunk_size: int | None = None,
        num_left_chunks: int | None = None,
    ):
        model = transcriber.model
        transcriber.check_word_times()
        check_streaming(model.encoder, model.normalize, transcriber.volume)
        if model.preencoder is not None:
            raise ValueError("streaming knows no preencoder")
        if chunk_size is not None:
            check_sizes(chunk_size=chunk_size)
        self.transcriber = transcriber
        self._features = FeatureStream(model.frontend)
        self._state = model.encoder.initial_state(1, chunk_size, num_left_chunks)
        self._has_ended = False
        self._options = {}
        if model.encoder.interctc_use_conditioning:
            self._options["ctc"] = model.ctc
        stft = model.frontend.stft
        first = 0.0 if stft.center else stft.n_fft / 2 / transcriber.fs
        self._recording = Recording(
            None, None, self._features.hop / transcriber.fs, first
        )
        self._samples = torch.zeros(0)  # From this tenth of a second on.
        self._tenth = 0
        self._frame = 0
        self._token = BLANK
        self._spans: list[Span] = []

    @torch.no_grad()
    def __call__(self, speech: np.ndarray, is_final: bool = False) -> Transcript:
        """Take the next samples, and return the words that are complete by now.

        Args:
            speech: Samples (N,) between -1 and 1, of floats, of the transcriber's
                ``fs``; N may be 0.
            is_final: Whether the recording ends, so that its last word is complete.

        Returns:
            Words with times, in the order in which they were said.

        Raises:
            ValueError: If the recording has ended before.
        """
        if self._has_ended:
            raise ValueError(
                "the recording has ended: the next one needs a StreamingTranscriber of "
                "its own"
            )
        self._has_ended = is_final
        transcriber = self.transcriber
        samples = transcriber.to_samples(speech)
        self._samples = torch.cat([self._samples.to(samples), samples])
        feats = self._features(samples, is_final)
        feats = normalize_features(transcriber.model.normalize, feats)
        with transcriber.autocast():
            hidden, _, self._state = transcriber.model.encoder.forward_infer(
                feats, self._state, is_final, **self._options
            )
        if hidden.size(1) > 0:
            path = transcriber.model.ctc.argmax(hidden.to(samples.dtype))[0]
            self._read(self._silence(path))
        return self._spell(is_final)

    def _silence(self, path: torch.Tensor) -> torch.Tensor:
        """Let there be no tokens in digital silence, as in whole recordings."""
        frames = self._frame + torch.arange(len(path), device=path.device)
        seconds = self.transcriber.seconds(self._recording, frames)
        has_sound = find_sound(self._samples, self.transcriber.fs)
        tenths = (10 * seconds).long() - self._tenth
        path[~has_sound[tenths.clamp(0, len(has_sound) - 1)]] = BLANK
        heard = max(0, int(tenths[-1]) - SOUND_REACH)
        self._samples = self._samples[heard * (self.transcriber.fs // 10) :].clone()
        self._tenth += heard
        return path

    def _read(self, path: torch.Tensor) -> None:
        """Merge repeated tokens, also with those of the calls before."""
        for token in path.tolist():
            if token not in self.transcriber.silent:
                if token != self._token:
                    self._spans.append(Span(token, self._frame, self._frame))
                # It goes on only while its word does, so that it is still here.
                self._spans[-1] = self._spans[-1]._replace(end=self._frame + 1)
            self._token = token
            self._frame += 1

    def _spell(self, is_final: bool) -> Transcript:
        """Return what is complete: all but the last word, unless a pause follows it."""
        transcriber = self.transcriber
        complete = self._spans
        pause = transcriber.pause(self._recording)
        if not is_final and complete and self._frame - complete[-1].end <= pause:
            start = transcriber.start_of_last_word(complete, self._recording)
            complete = [span for span in complete if span.start < start]
        self._spans = self._spans[len(complete) :]
        return transcriber.spell(complete, True, self._recording)
