"""ESPnet's decoding, also greedy, through windows and in chunks.

ESPnet's search takes the square of a recording's length, and sees all of it at once.
"""

from __future__ import annotations

import logging
from typing import Any

import torch
from espnet2.asr.frontend.default import DefaultFrontend
from espnet2.bin.asr_inference import Speech2Text
from espnet2.legacy.nets.beam_search import Hypothesis

from espnet_fastformer.encoder.input_layer import receptive_field
from espnet_fastformer.encoder.linear_time_encoder import LinearTimeEncoder
from espnet_fastformer.inference.ctc import collapse, silent_tokens
from espnet_fastformer.inference.features import least_samples
from espnet_fastformer.inference.model import sampling_rate
from espnet_fastformer.inference.windows import encode_in_windows

logger = logging.getLogger(__name__)


class LongSpeech2Text(Speech2Text):
    """Decodes recordings that are too long for a search, or for an encoder.

    Args:
        best_path: Take the likeliest token of each frame of the CTC output and merge
            repeated ones, in time linear in the length of a recording. ESPnet's search
            sums all paths of a hypothesis, with a beam of 1 too, in time that grows
            with the square of the length.
        pooling_window: Seconds of audio that the encoder sees at once, as of
            :class:`~espnet_fastformer.inference.transcriber.Transcriber`; None for all
            of it.
        chunk_size: Frames after subsampling of the chunks that the encoder sees one
            after the other, as in a stream; None for whole utterances.
        num_left_chunks: Chunks that it sees before each; None for as many as in
            training.
        **options: Those of ESPnet's ``Speech2Text``.

    Raises:
        ValueError: The model has no CTC output for ``best_path``, a frontend that does
            not tell seconds for ``pooling_window``, or no encoder of this package for
            ``chunk_size``.
    """

    def __init__(
        self,
        best_path: bool = False,
        pooling_window: float | None = None,
        chunk_size: int | None = None,
        num_left_chunks: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        model = self.asr_model
        self.least_samples = least_samples(model)
        if best_path and model.ctc is None:
            raise ValueError(
                "best_path needs a CTC output, but the model was trained without one "
                "(model_conf: ctc_weight: 0.0)"
            )
        self.best_path = best_path
        if chunk_size is not None:
            if not isinstance(model.encoder, LinearTimeEncoder):
                raise ValueError(
                    "chunk_size needs encoder: fastformer or aft; this is "
                    f"{type(model.encoder).__name__}"
                )
            model.encoder.decoding_chunk_size = chunk_size
            if num_left_chunks is not None:
                model.encoder.num_left_chunks = num_left_chunks
        if pooling_window is not None:
            if not isinstance(model.frontend, DefaultFrontend):
                raise ValueError(
                    "pooling_window needs frontend: default, which tells how many "
                    f"features a second has; this is {type(model.frontend).__name__}"
                )
            _, stride = receptive_field(model.encoder.embed)
            hop = model.frontend.hop_length / sampling_rate(self.asr_train_args)
            window = max(1, round(pooling_window / (stride * hop)))
            model.encoder = WindowedEncoder(model.encoder, window)

    def __call__(self, speech: Any) -> Any:
        """Return the hypotheses for a recording (N,), or for each of a list of them.

        There are none for what is too short for the encoder, of which ESPnet would
        search the attention decoder all the same.
        """
        if not isinstance(speech, (list, tuple)):
            return [] if self._is_short(speech) else super().__call__(speech)
        is_short = [self._is_short(wave) for wave in speech]
        rest = [w for w, short in zip(speech, is_short, strict=True) if not short]
        results = iter(super().__call__(rest) if rest else [])
        return [[] if short else next(results) for short in is_short]

    def _is_short(self, speech: Any) -> bool:
        if len(speech) >= self.least_samples:
            return False
        logger.warning(
            "Nothing is recognized in %d samples: the encoder needs %d or more",
            len(speech),
            self.least_samples,
        )
        return True

    def _batch_decode_padded(
        self, speech: torch.Tensor, speech_lengths: torch.Tensor
    ) -> list[list[tuple[Any, ...]]]:
        if not self.best_path:
            return super()._batch_decode_padded(speech, speech_lengths)
        # One by one, since no search gains from all at once.
        results = []
        for wave, length in zip(speech, speech_lengths.tolist(), strict=True):
            result = self(wave[:length])
            # With what InterCTC layers say, which ESPnet leaves out in batches.
            results.append(result[0] if isinstance(result, tuple) else result)
        return results

    def _decode_single_sample(self, enc: torch.Tensor) -> list[tuple[Any, ...]]:
        if not self.best_path:
            return super()._decode_single_sample(enc)
        model = self.asr_model
        (path,) = model.ctc.argmax(enc[None])
        tokens = [span.token for span in collapse(path, silent_tokens(model))]
        # ESPnet takes the end off every hypothesis but a transducer's.
        end = [] if model.use_transducer_decoder else [model.eos]
        return self._hyps_to_results([Hypothesis([model.sos, *tokens, *end])])


class WindowedEncoder(torch.nn.Module):
    """Runs an encoder over windows, in the place of that encoder in ESPnet's model.

    Args:
        encoder: One of ESPnet's whose input layer has no padding.
        window: Output frames of a window.
    """

    def __init__(self, encoder: torch.nn.Module, window: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.window = window
        # ESPnet's model passes on its CTC output if this says so.
        self.interctc_use_conditioning = getattr(
            encoder, "interctc_use_conditioning", False
        )

    def forward(
        self, feats: torch.Tensor, lengths: torch.Tensor, **options: Any
    ) -> tuple[torch.Tensor, torch.Tensor, None]:
        """Encode features (1, T, F) into (1, T', D), without intermediate outputs.

        Raises:
            ValueError: There are several utterances.
        """
        if len(feats) > 1:
            raise ValueError("pooling_window needs batch_size: 1")
        out = encode_in_windows(self.encoder, feats, self.window, **options)
        return out, lengths.new_tensor([out.size(1)]), None
