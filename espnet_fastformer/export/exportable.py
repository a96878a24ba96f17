"""What of a trained model an exported file is made of."""

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from espnet2.asr.frontend.abs_frontend import AbsFrontend

from espnet_fastformer.export import sherpa
from espnet_fastformer.export.module import CTCEncoder
from espnet_fastformer.export.streaming import StreamingCTCEncoder
from espnet_fastformer.inference.ctc import BLANK
from espnet_fastformer.inference.model import (
    check_streaming,
    load_model,
    sampling_rate,
    speech_volume,
)
from espnet_fastformer.options import check_sizes


class OneByOne(CTCEncoder):
    """Encodes each utterance of a batch as if it were alone: what streams give."""

    def forward(
        self, feats: torch.Tensor, feats_lengths: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See :meth:`CTCEncoder.forward`."""
        outs, olens = zip(
            *(
                super(OneByOne, self).forward(row[None, :length], length[None])
                for row, length in zip(feats, feats_lengths, strict=True)
            ),
            strict=True,
        )
        rows = [out[0] for out in outs]
        padded = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        return padded, torch.cat(olens)


@dataclass
class Exportable:
    """A trained model, to be exported.

    Attributes:
        module: What is exported.
        reference: What a file computes over whole utterances.
        frontend: What computes its input.
        num_feats: Number of features F.
        fs: Sampling rate in Hz.
        metadata: What a program needs beside the graph: token_list, token_type,
            blank_id of its CTC output, fs, and speech_volume_normalize, frontend and
            frontend_conf as in ESPnet's config.
        why_not_sherpa: Why sherpa-onnx cannot run a file for streams, if it cannot.
    """

    module: torch.nn.Module
    reference: CTCEncoder
    frontend: AbsFrontend
    num_feats: int
    fs: int
    metadata: dict[str, object]
    why_not_sherpa: str | None = None


def load_exportable(
    asr_train_config: str | Path, asr_model_file: str | Path
) -> Exportable:
    """Load a model on the CPU.

    Args:
        asr_train_config: ``config.yaml`` of the training.
        asr_model_file: Parameters, ``*.pth``.

    Raises:
        ValueError: If the files make no model, or it cannot be exported.
        OSError: If a file is missing, be it one that the config names.
    """
    model, args = load_model(asr_train_config, asr_model_file)
    module = CTCEncoder.from_model(model)
    fs = sampling_rate(args)
    metadata = {
        "token_list": model.token_list,
        "token_type": args.token_type,
        "blank_id": BLANK,
        "fs": fs,
        "speech_volume_normalize": speech_volume(args),
        "frontend": args.frontend,
        "frontend_conf": args.frontend_conf,
    }
    frontend = model.frontend.eval()
    return Exportable(module, module, frontend, frontend.output_size(), fs, metadata)


def for_streams(model: Exportable, chunk_size: int | None = None) -> Exportable:
    """Return what is exported to take audio chunk by chunk.

    Args:
        model: The same for whole utterances.
        chunk_size: Frames of a chunk; None for the encoder's ``block_size``.

    Raises:
        ValueError: If the model cannot stream, or the chunk size is not positive.
    """
    module = model.module
    encoder = module.encoder
    volume = model.metadata["speech_volume_normalize"]
    check_streaming(encoder, module.normalize, volume)
    if chunk_size is not None:
        check_sizes(chunk_size=chunk_size)
        encoder.block_size = chunk_size
    encoder.decoding_chunk_size = encoder.block_size
    reason = sherpa.why_not(model.frontend, model.fs, encoder)
    return replace(
        model,
        module=StreamingCTCEncoder(module, is_for_sherpa=reason is None).eval(),
        reference=OneByOne(encoder, module.ctc, module.normalize, module.preencoder),
        why_not_sherpa=reason,
    )
