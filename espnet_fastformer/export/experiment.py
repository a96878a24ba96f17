"""What of an experiment an exported file is made of."""

from dataclasses import dataclass
from pathlib import Path

from espnet2.asr.frontend.abs_frontend import AbsFrontend

from espnet_fastformer.export.module import CTCEncoder
from espnet_fastformer.inference.ctc import BLANK
from espnet_fastformer.inference.model import load_model, sampling_rate, speech_volume


@dataclass
class Experiment:
    """A trained model, to be exported.

    Attributes:
        module: What is exported.
        frontend: What computes its input.
        num_feats: Number of features F.
        fs: Sampling rate in Hz.
        metadata: What a program needs beside the graph: token_list, token_type,
            blank_id of its CTC output, fs, and speech_volume_normalize, frontend and
            frontend_conf as in ESPnet's config.
    """

    module: CTCEncoder
    frontend: AbsFrontend
    num_feats: int
    fs: int
    metadata: dict[str, object]


def load_experiment(
    asr_train_config: str | Path, asr_model_file: str | Path
) -> Experiment:
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
    return Experiment(module, frontend, frontend.output_size(), fs, metadata)
