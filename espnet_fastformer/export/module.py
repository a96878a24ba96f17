"""What of a model goes into an exported file: from features to tokens."""

import torch
from espnet2.asr.ctc import CTC
from espnet2.asr.encoder.abs_encoder import AbsEncoder
from espnet2.asr.espnet_model import ESPnetASRModel
from espnet2.asr.preencoder.abs_preencoder import AbsPreEncoder
from espnet2.layers.abs_normalize import AbsNormalize
from espnet2.layers.global_mvn import GlobalMVN
from espnet2.layers.utterance_mvn import UtteranceMVN
from typeguard import typechecked

from espnet_fastformer.encoder.linear_time_encoder import LinearTimeEncoder
from espnet_fastformer.layers.aft import AFTLocal, FactorizedBias


class CTCEncoder(torch.nn.Module):
    """Normalisation, encoder and CTC output, as one graph for all lengths.

    Args:
        encoder: ESPnet's or one of this package.
        ctc: Its output layer.
        normalize: ``global_mvn``, ``utterance_mvn`` or None.
        preencoder: Between normalisation and encoder, or None.
    """

    @typechecked
    def __init__(
        self,
        encoder: AbsEncoder,
        ctc: CTC,
        normalize: AbsNormalize | None = None,
        preencoder: AbsPreEncoder | None = None,
    ):
        super().__init__()
        if not isinstance(normalize, (GlobalMVN, UtteranceMVN, type(None))):
            raise ValueError(
                f"{type(normalize).__name__} cannot be exported: normalize must be "
                "global_mvn, utterance_mvn or null"
            )
        self.normalize = normalize
        self.preencoder = preencoder
        self.encoder = encoder
        self.ctc = ctc

    @classmethod
    def from_model(cls, model: ESPnetASRModel) -> "CTCEncoder":
        """Take the parts of a trained model, in eval mode.

        Raises:
            ValueError: If it has no CTC output, or parts that cannot be exported.
        """
        if not isinstance(model.encoder, LinearTimeEncoder):
            raise ValueError(
                f"the encoder is {type(model.encoder).__name__}, not fastformer or aft"
            )
        if model.ctc is None:
            raise ValueError("the model has no CTC output (ctc_weight: 0.0)")
        if model.frontend is None or model.postencoder is not None:
            raise ValueError("a model needs a frontend, and must have no postencoder")
        if any(
            isinstance(layer, AFTLocal)
            and isinstance(layer.position_bias, FactorizedBias)
            for layer in model.encoder.modules()
        ):
            raise ValueError(
                "aft_type: local with aft_bias: factorized cannot be exported: train "
                "with aft_bias: offset"
            )
        return cls(model.encoder, model.ctc, model.normalize, model.preencoder).eval()

    def forward(
        self, feats: torch.Tensor, feats_lengths: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute the log-probabilities of the tokens.

        Args:
            feats: Output of the frontend (B, T, F), float32, padded with any numbers.
            feats_lengths: Number of frames of each utterance (B,), int64.

        Returns:
            Log-probabilities (B, T', V), float32.
            Number of frames of each (B,), int64; 0 if an utterance is too short.
        """
        feats = normalize_padded(self.normalize, feats, feats_lengths)
        if self.preencoder is not None:
            feats, feats_lengths = self.preencoder(feats, feats_lengths)
        needs_ctc = getattr(self.encoder, "interctc_use_conditioning", False)
        options = {"ctc": self.ctc} if needs_ctc else {}
        hidden, lengths, _ = self.encoder(feats, feats_lengths, **options)
        if isinstance(hidden, tuple):  # with the outputs of InterCTC layers
            hidden = hidden[0]
        return self.ctc.log_softmax(hidden), lengths


def normalize_padded(
    normalize: GlobalMVN | UtteranceMVN | None,
    feats: torch.Tensor,
    lengths: torch.Tensor,
) -> torch.Tensor:
    """Apply ESPnet's normalisation without its table of (T + 1)² for the padding.

    Args:
        normalize: ESPnet's layer, or None.
        feats: Features (B, T, F).
        lengths: Number of frames of each utterance (B,).

    Returns:
        Features (B, T, F), zero on padding as ESPnet's: maps of 8 bits take their scale
        from it too.
    """
    frames = torch.arange(feats.size(1), device=feats.device)
    is_padding = (frames >= lengths[:, None]).unsqueeze(-1)
    if normalize is None:
        return feats.masked_fill(is_padding, 0.0)
    if isinstance(normalize, GlobalMVN):
        mean, std = normalize.mean.to(feats), normalize.std.to(feats)
    else:
        count = lengths[:, None, None]

        def average(x: torch.Tensor) -> torch.Tensor:
            return x.masked_fill(is_padding, 0.0).sum(1, keepdim=True) / count

        mean = average(feats)
        variance = average((feats - mean).square())
        std = variance.sqrt().clamp(min=normalize.eps)
    if normalize.norm_means:
        feats = feats - mean
    if normalize.norm_vars:
        feats = feats / std
    return feats.masked_fill(is_padding, 0.0)
