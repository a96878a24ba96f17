"""A model that takes audio chunk by chunk, as one graph with its state in and out.

Tensors and metadata are those of sherpa-onnx's streaming Zipformer with CTC, so that
its ``from_zipformer2_ctc`` runs the graph, and anything else that runs ONNX can too.
Of the caches that sherpa-onnx hands from call to call, whose shapes the metadata set,
the first holds the state of all layers.
"""

import math

import torch
from typeguard import typechecked

from espnet_fastformer.encoder.input_layer import receptive_field
from espnet_fastformer.encoder.streaming import StreamingState
from espnet_fastformer.export.module import CTCEncoder, normalize_padded
from espnet_fastformer.inference.ctc import BLANK

INPUTS = ("x", "state", "padding", *(f"unused_{i}" for i in range(5)), "frames")
OUTPUTS = ("log_probs", *(f"next_{name}" for name in INPUTS[1:]))
#: Dimension of each input that is the batch.
BATCH_DIMS = (0, 1, 1, 1, 1, 0, 0, 0, 0)

# With which sherpa-onnx computes features y of which ESPnet's are ln(10) * (4 y - 4).
_SCALE, _OFFSET = 1 / (4 * math.log(10)), 1.0


class StreamingCTCEncoder(torch.nn.Module):
    """Normalisation, encoder and CTC output for the next chunk of each of B streams.

    Args:
        module: The same for whole utterances; the chunk size is its encoder's
            ``block_size``.
        is_for_sherpa: Whether features come as sherpa-onnx computes them.

    Attributes:
        metadata: What sherpa-onnx, and others, read in the file beside the graph. The
            input is ESPnet's features times ``feats_scale`` plus ``feats_offset``: of a
            call ``T`` of them, from one call to the next ``decode_chunk_len`` on.
    """

    @typechecked
    def __init__(self, module: CTCEncoder, is_for_sherpa: bool):
        super().__init__()
        self.module = module
        field, stride = receptive_field(module.encoder.embed)
        chunk = module.encoder.block_size
        self.size, self.shift = field + (chunk - 1) * stride, chunk * stride
        self._state = module.encoder.initial_state(1)
        if not (self._state.embed or self._state.blocks):
            raise ValueError(
                "chunks that see nothing before them have no state to export: "
                "num_left_chunks must be at least 1"
            )
        self.register_buffer("initial", _flatten(self._state), persistent=False)
        blank = torch.full([module.ctc.ctc_lo.out_features], -torch.inf)
        blank[BLANK] = 0.0
        self.register_buffer("blank", blank, persistent=False)
        self.scale, self.offset = (_SCALE, _OFFSET) if is_for_sherpa else (1.0, 0.0)
        self.metadata = {
            "T": str(self.size),
            "decode_chunk_len": str(self.shift),
            "feats_scale": str(self.scale),
            "feats_offset": str(self.offset),
        }
        if is_for_sherpa:
            # The last four are what makes the other caches small.
            self.metadata |= {
                "feature": "whisper",
                "query_head_dims": str(self.initial.size(1)),
                "num_heads": "1",
                "num_encoder_layers": "1",
                "left_context_len": "1",
                "value_head_dims": "1",
                "encoder_dims": "2",
                "cnn_module_kernels": "2",
            }

    def caches(self, batch: int) -> list[torch.Tensor]:
        """Return all inputs but the features for B streams at their beginning."""
        size = self.initial.size(1)
        shapes = [(1, batch, size), (1, batch, 1, 1), (1, batch, 1), (1, batch, 1)]
        shapes += [(batch, 2, 1), (batch, 2, 1), (batch, 128, 3, 19)]
        caches = [torch.zeros(shape) for shape in shapes]
        return [*caches, torch.zeros(batch, dtype=torch.int64)]

    def forward(self, x: torch.Tensor, *caches: torch.Tensor) -> list[torch.Tensor]:
        """Compute the log-probabilities of the tokens in the next chunk.

        Args:
            x: Scaled features (B, ``size``, F), float32.
            caches: Named in ``INPUTS``, all zero at the beginning of a stream. The
                state (1, B, S); how many features at the end of the stream are padding
                (1, B, 1, 1), float32; five that have no use, and the number of features
                before these (B,), int64.

        Returns:
            Log-probabilities (B, C, V), certain of the blank where there is padding,
            and the caches of the next call.
        """
        module, encoder = self.module, self.module.encoder
        state, padding, *unused, frames = caches
        begins = frames.eq(0)[:, None]
        before = self._unflatten(torch.where(begins, self.initial, state[0]))
        feats = (x - self.offset) / self.scale
        missing = padding[0, :, 0].to(torch.int64)
        lengths = self.size - missing[:, 0]
        feats = normalize_padded(module.normalize, feats, lengths)
        if module.preencoder is not None:
            feats, _ = module.preencoder(feats, lengths)
        stride = self.shift // encoder.block_size
        ends = torch.arange(stride, self.shift + 1, stride, device=x.device)
        is_real = ends <= self.shift - missing
        hidden, after = encoder.forward_chunks(
            feats, before, ctc=module.ctc, mask=is_real[:, None]
        )
        log_probs = module.ctc.log_softmax(hidden)
        log_probs = torch.where(is_real[:, :, None], log_probs, self.blank)
        kept = [cache.clone() for cache in (padding, *unused)]
        return [log_probs, _flatten(after)[None], *kept, frames + self.shift]

    def _unflatten(self, flat: torch.Tensor) -> StreamingState:
        like = [*self._state.embed, *self._state.blocks]
        parts = flat.split([x.numel() for x in like], dim=1)
        parts = [
            part.reshape(-1, *x.shape[1:]).to(x.dtype)
            for part, x in zip(parts, like, strict=True)
        ]
        count = len(self._state.embed)
        return self._state._replace(embed=parts[:count], blocks=parts[count:])


def _flatten(state: StreamingState) -> torch.Tensor:
    """Put a state, but for its features, into one tensor (B, S) of float32."""
    parts = [x.reshape(x.size(0), -1) for x in (*state.embed, *state.blocks)]
    return torch.cat([x.to(torch.float32) for x in parts], dim=1)
