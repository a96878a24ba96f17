"""From samples to words, for recordings of any length."""

import logging
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from espnet2.bin.asr_inference import Speech2Text
from typeguard import typechecked

from espnet_fastformer.encoder.input_layer import receptive_field
from espnet_fastformer.encoder.linear_time_encoder import LinearTimeEncoder
from espnet_fastformer.inference.ctc import (
    BLANK,
    WORDED,
    Span,
    collapse,
    group_words,
    part_at_pauses,
    silent_tokens,
)
from espnet_fastformer.inference.experiment import read_config
from espnet_fastformer.inference.features import (
    Recording,
    TooShortError,
    find_sound,
    normalize_features,
    prepare_recording,
)
from espnet_fastformer.inference.model import (
    check_parameters,
    explaining_failure,
    sampling_rate,
    speech_volume,
)
from espnet_fastformer.inference.transcript import Transcript, Word
from espnet_fastformer.inference.windows import encode_in_windows
from espnet_fastformer.layers import pieces

DTYPES = ("float64", "float32", "bfloat16", "float16")
_SPACE = "<space>"
# Seconds of blank that no word contains.
_PAUSE = 0.5


class Transcriber:
    """A trained model with one of this package's encoders.

    The encoder sees a recording in one pass and its CTC output is decoded greedily,
    both in time and memory that grow linearly with the recording.

    Args:
        asr_train_config: ``config.yaml`` of the training.
        asr_model_file: Parameters, ``*.pth``.
        device: Where to compute: ``cpu``, ``cuda``.
        dtype: ``float32`` or ``float64``, or the dtype of autocast in the encoder:
            ``bfloat16`` or ``float16``.
        pooling_window: Seconds of audio over which the encoder sums; None for all of
            it. The encoder then runs over windows of this length that overlap by half,
            and the middle half of each is used.
        beam_size: 1 for greedy search in the CTC output, more for ESPnet's own
            search, whose cost is not linear and which finds no word times.
        ctc_weight: Weight of the CTC output in ESPnet's search, if the model has one.

    Raises:
        ValueError: If the files make no model, or it does not fit the options.
        OSError: If a file is missing, be it one that the config names.
    """

    @typechecked
    def __init__(
        self,
        asr_train_config: str | Path,
        asr_model_file: str | Path,
        device: str = "cpu",
        dtype: str = "float32",
        pooling_window: float | None = None,
        beam_size: int = 1,
        ctc_weight: float = 0.3,
    ):
        if dtype not in DTYPES:
            raise ValueError(f"dtype must be one of {', '.join(DTYPES)}: {dtype!r}")
        if pooling_window is not None and not 0 < pooling_window < math.inf:
            raise ValueError(
                f"pooling_window must be a positive number of seconds: {pooling_window}"
            )
        self.device = torch.device(device)
        self.dtype = getattr(torch, dtype)
        self.pooling_window = pooling_window
        self.beam_size = beam_size
        self._sample_dtype = torch.promote_types(self.dtype, torch.float32)
        with explaining_failure(asr_train_config, asr_model_file):
            trained_with = read_config(asr_train_config).get("model_conf") or {}
            if trained_with.get("ctc_weight") == 0.0:
                ctc_weight = 0.0
            self.speech2text = Speech2Text(
                asr_train_config,
                asr_model_file,
                device=device,
                dtype=str(self._sample_dtype).removeprefix("torch."),
                beam_size=beam_size,
                ctc_weight=ctc_weight,
            )
        self.model = self.speech2text.asr_model
        check_parameters(self.model, asr_model_file)
        self._check_model()
        self.silent = silent_tokens(self.model)

        args = self.speech2text.asr_train_args
        self._token_type = args.token_type
        self._space = None
        #: What stands between two words.
        self.separator = " "
        if self._token_type == "char":
            if _SPACE in self.model.token_list:
                self._space = self.model.token_list.index(_SPACE)
            else:
                # As in Chinese, where nothing tells words apart: each character is one.
                self._token_type = "word"
                self.separator = ""
        self.volume = speech_volume(args)
        #: Sampling rate in Hz.
        self.fs = sampling_rate(args)
        self._size, self._stride = receptive_field(self.model.encoder.embed)

    def _check_model(self):
        model = self.model
        if not isinstance(model.encoder, LinearTimeEncoder):
            raise ValueError(
                f"the encoder is {type(model.encoder).__name__}, not fastformer or "
                "aft; espnet2.bin.asr_inference decodes such a model"
            )
        if model.frontend is None or model.postencoder is not None:
            raise ValueError("a model needs a frontend, and must have no postencoder")
        if self.speech2text.tokenizer is None:
            raise ValueError("the config names no token_type, or no bpemodel")
        # ESPnet opens the bpemodel only when it is needed.
        self.speech2text.tokenizer.tokens2text([])
        if self.beam_size == 1 and model.ctc is None:
            raise ValueError(
                "the model has no CTC output (ctc_weight: 0.0), so that greedy search "
                "cannot be done: use a larger beam_size"
            )
        if self.beam_size > 1 and model.decoder is None:
            raise ValueError(
                "the model has no decoder to search with: use beam_size 1, which "
                "decodes its CTC output"
            )

    def check_word_times(self):
        """Raise ValueError if this model, or its search, gives no word times."""
        if self.beam_size > 1:
            raise ValueError("word times need greedy search: beam_size 1")
        if self._token_type not in WORDED:
            raise ValueError(
                f"word times need token_type {', '.join(WORDED)}, but the model has "
                f"{self._token_type}"
            )

    @torch.no_grad()
    def __call__(
        self,
        speech: np.ndarray,
        word_times: bool = False,
        progress: Callable[[float], object] = lambda share: None,
    ) -> Transcript:
        """Transcribe a recording.

        Args:
            speech: Samples (N,) between -1 and 1, of floats, of rate ``fs``.
            word_times: Whether to find when each word was said.
            progress: Called again and again with the share of the work that was done
                since the last call.

        Returns:
            The transcript, empty (and a warning logged) if the recording is shorter
            than what one output frame sees, or has no sound.

        Raises:
            ValueError: If ``word_times`` cannot be had, or ``speech`` is anything else.
        """
        if word_times:
            self.check_word_times()
        samples = self.to_samples(speech)
        has_sound = find_sound(samples, self.fs)
        try:
            recording = prepare_recording(self.model, samples, self.fs, self.volume)
        except TooShortError as error:
            logging.warning("%s", error)
            return Transcript("", [] if word_times else None)
        if not has_sound.any():
            logging.warning("there is no sound, not even in the last bit of 16")
            return Transcript("", [] if word_times else None)
        if self.beam_size > 1:
            transcript = self._search(recording.samples)
            progress(1.0)
            return transcript

        path = self.best_path(recording, progress)
        frames = torch.arange(len(path), device=self.device)
        tenths = (10 * self.seconds(recording, frames)).long()
        path[~has_sound[tenths.clamp(max=len(has_sound) - 1)]] = BLANK
        spans = collapse(path.cpu(), self.silent)
        return self.spell(spans, word_times, recording)

    def to_samples(self, speech: np.ndarray) -> torch.Tensor:
        """Take samples (N,) of floats to the device and dtype of the frontend.

        Raises:
            ValueError: If they are anything else.
        """
        if speech.ndim != 1 or not np.issubdtype(speech.dtype, np.floating):
            raise ValueError(
                "speech must be samples (N,) of floats between -1 and 1, but it is "
                f"{speech.dtype} {speech.shape}"
            )
        return torch.from_numpy(speech).to(self.device, self._sample_dtype)

    def best_path(
        self, recording: Recording, progress: Callable[[float], object]
    ) -> torch.Tensor:
        """Find the most probable token of each output frame.

        Args:
            recording: What the model hears, whose features may be overwritten.
            progress: See ``__call__``.

        Returns:
            Tokens (T',).
        """
        model = self.model
        feats = normalize_features(model.normalize, recording.feats)
        if model.preencoder is not None:
            lengths = torch.tensor([feats.size(1)], device=self.device)
            feats, _ = model.preencoder(feats, lengths)
        window = None
        if self.pooling_window is not None:
            seconds_per_frame = self._stride * recording.seconds_per_feature
            window = max(round(self.pooling_window / seconds_per_frame), 1)
        options = {"ctc": model.ctc} if model.encoder.interctc_use_conditioning else {}
        with self.autocast():
            hidden = encode_in_windows(
                model.encoder, feats, window, progress, **options
            )
        hidden = hidden.to(self._sample_dtype)
        path = [
            model.ctc.argmax(x)[0] for x in hidden.split(pieces.FRAMES_AT_ONCE, dim=1)
        ]
        return torch.cat(path)

    def _search(self, samples: torch.Tensor) -> Transcript:
        with self.autocast():
            results = self.speech2text(samples)
        if isinstance(results, tuple):  # with the tokens of InterCTC layers
            results = results[0]
        return Transcript(results[0][0].strip())

    def start_of_last_word(self, spans: list[Span], recording: Recording) -> int:
        """Return the output frame in which the last word of tokens begins."""
        spans = self._part_at_pauses(spans, recording)
        tokens = self.speech2text.converter.ids2tokens([span.token for span in spans])
        words = group_words(tokens, self._token_type, _SPACE)
        return spans[words[-1][0]].start if words else spans[0].start

    def pause(self, recording: Recording) -> float:
        """Return the output frames of blank that no word contains."""
        return _PAUSE / (self._stride * recording.seconds_per_feature)

    def _part_at_pauses(self, spans: list[Span], recording: Recording) -> list[Span]:
        if self._space is None:
            return spans
        return part_at_pauses(spans, self._space, self.pause(recording))

    def spell(
        self, spans: list[Span], word_times: bool, recording: Recording
    ) -> Transcript:
        """Write tokens as text, and as words with times."""
        ids2tokens = self.speech2text.converter.ids2tokens
        tokens2text = self.speech2text.tokenizer.tokens2text
        spans = self._part_at_pauses(spans, recording)
        tokens = ids2tokens([span.token for span in spans])
        text = " ".join(tokens2text(tokens).split())
        if not word_times:
            return Transcript(text)

        words = [
            Word(
                tokens2text(tokens[i] for i in indices).strip(),
                round(self.seconds(recording, spans[indices[0]].start), 3),
                round(self.seconds(recording, spans[indices[-1]].end), 3),
            )
            for indices in group_words(tokens, self._token_type, _SPACE)
        ]
        return Transcript(text, [word for word in words if word.word])

    def seconds(self, recording: Recording, frame):
        """Return the middle of an output frame, or of several, in seconds."""
        # The stride that is an output frame's own lies in the middle of the features
        # that it sees.
        feature = frame * self._stride + (self._size - self._stride) / 2
        return recording.first_feature + feature * recording.seconds_per_feature

    def autocast(self) -> torch.autocast:
        """Return the context that encoders are called in."""
        enabled = self.dtype != self._sample_dtype
        return torch.autocast(self.device.type, dtype=self.dtype, enabled=enabled)
