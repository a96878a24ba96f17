"""Everything of an encoder but its mixer."""

import inspect
import logging
from collections.abc import Callable, Sequence
from functools import cache, partial

import torch
from espnet2.asr.ctc import CTC
from espnet2.asr.encoder.abs_encoder import AbsEncoder
from espnet2.asr.encoder.contextual_block_conformer_encoder import (
    ContextualBlockConformerEncoder,
)
from espnet2.legacy.nets.pytorch_backend.transformer.layer_norm import LayerNorm
from espnet2.legacy.nets.pytorch_backend.transformer.repeat import repeat
from torch.utils.checkpoint import checkpoint
from typeguard import typechecked

from espnet_fastformer.cpu import CPU_LAYERS
from espnet_fastformer.encoder.blocks import BlockBuilder
from espnet_fastformer.encoder.checkpoint import report_mismatch
from espnet_fastformer.encoder.convolution import DepthwiseConv1d, PointwiseConv1d
from espnet_fastformer.encoder.input_layer import (
    SUBSAMPLING,
    build_input_layer,
    build_positional_encoding,
    check_lengths,
    receptive_field,
    subsample,
)
from espnet_fastformer.encoder.replacement import replace_layers
from espnet_fastformer.encoder.streaming import ChunkSizes, StreamingState
from espnet_fastformer.layers import pieces
from espnet_fastformer.layers.chunks import Chunks, in_chunks, pad_to_chunks
from espnet_fastformer.layers.modes import is_traced
from espnet_fastformer.layers.padding import share_padding
from espnet_fastformer.options import (
    check_block,
    check_numbers,
    check_rates,
    check_sizes,
)

# ESPnet's attentions that a mixer stands in for, and positions that only they can use.
_ATTENTION_TYPES = ("selfattn", "rel_selfattn", "legacy_rel_selfattn", "fast_selfattn")
_RELATIVE_POSITIONS = ("rel_pos", "legacy_rel_pos")


class LinearTimeEncoder(AbsEncoder):
    """Blocks of ESPnet around a mixer that is linear in time.

    The options are those of ESPnet's E-Branchformer, with its defaults, and what the
    other blocks need beside them. Options of self-attention itself (``rel_pos_type``,
    ``zero_triu``, ``qk_norm``, ``use_flash_attn``, ``use_sdpa``) are accepted, so that
    a configuration written for ESPnet's encoders runs, and have no effect.

    Args:
        mixer: Called as ``mixer(output_size, attention_heads, attention_dropout_rate)``
            for each block.
        input_size: Number of features F, or of tokens if ``input_layer`` is ``embed``.
        output_size: Number of channels D.
        block_type: ``e_branchformer``, ``branchformer``, ``conformer`` or
            ``transformer``.
        attention_heads: Number of heads H.
        attention_layer_type: Accepted for configurations of ESPnet's encoders. A value
            other than the mixer's own gives a warning.
        pos_enc_layer_type: ``abs_pos``, ``scaled_abs_pos``, ``conv``, or ``none``.
            Relative positions belong to self-attention: ``rel_pos`` is replaced by
            ``abs_pos``, with a warning.
        rel_pos_type: No effect.
        cgmlp_linear_units: Channels of the convolutional gating MLP.
        cgmlp_conv_kernel: Its kernel size in frames, odd.
        use_linear_after_conv: Whether a linear map follows its convolution.
        gate_activation: Activation of its gate.
        num_blocks: Number of blocks.
        dropout_rate: Dropout in the blocks.
        positional_dropout_rate: Dropout after the positional encoding.
        attention_dropout_rate: Dropout in the mixer.
        input_layer: ``conv2d`` (4 frames to one), ``conv2d1``, ``conv2d2``,
            ``conv2d6``, ``conv2d8``, ``conv1d1``, ``conv1d2``, ``conv1d3``,
            ``linear``, ``embed`` or None.
        zero_triu: No effect.
        padding_idx: Padding token of the ``embed`` input layer.
        layer_drop_rate: Probability of skipping a block in training.
        max_pos_emb_len: Positions computed in advance; the table grows as needed.
        use_ffn: Whether an ``e_branchformer`` block has a feed-forward layer.
        macaron_ffn: Whether there is one before the mixer too.
        ffn_activation_type: Activation of the feed-forward layers and of the
            convolution of a ``conformer`` block.
        linear_units: Channels of the feed-forward layers.
        positionwise_layer_type: ``linear``.
        merge_conv_kernel: Kernel size in frames, odd, of the convolution that merges
            the branches of an ``e_branchformer`` block.
        interctc_layer_idx: Blocks, counted from one, whose output gets a CTC loss.
        interctc_use_conditioning: Whether its posteriors are added to the next input.
        qk_norm: No effect.
        use_flash_attn: No effect.
        gradient_checkpoint_layers: Blocks, counted from one, that are computed again in
            the backward pass to save memory; 0 is the input layer.
        use_sdpa: No effect.
        cnn_module_kernel: Kernel size in frames, odd, of a ``conformer`` block.
        stochastic_depth_rate: Probability of skipping a block's residual branches, one
            for all blocks or one each; not in an ``e_branchformer`` block.
        use_attn: Whether a ``branchformer`` block has a global branch (default True).
        use_cgmlp: Whether a ``branchformer`` block has a local branch (default True).
        merge_method: How a ``branchformer`` block merges them: ``concat`` (default),
            ``learned_ave`` or ``fixed_ave``.
        cgmlp_weight: Weight of its local branch for ``fixed_ave`` (default 0.5).
        attn_branch_drop_rate: Probability of dropping its global branch in training for
            ``learned_ave`` (default 0).
        dynamic_chunk_training: Whether to train on whole utterances and in chunks by
            turns, for a model that streams. The options of chunks have the names of
            ESPnet's transducer, ``block_size`` to ``look_ahead`` those of its
            contextual block encoders.
        short_chunk_threshold: Share of the batches that are in chunks.
        short_chunk_size: Greatest chunk size that is drawn, in frames after
            subsampling; the least is an eighth of it.
        num_left_chunks: Chunks before its own that a frame sees; None or a negative
            number for all.
        block_size: Chunk size of a stream, in frames after subsampling.
        hop_size: Equals ``block_size``; ESPnet's streaming recogniser asks for it.
        look_ahead: 0; ESPnet's streaming recogniser asks for it.
        compile: Whether to compile the blocks by ``torch.compile`` in training, for all
            lengths at once. Batches in chunks are not compiled.
        use_cpu_layers: Whether to take faster forms of ESPnet's layers on a CPU, see
            :mod:`espnet_fastformer.cpu`. Parameters and output are the same.

    Attributes:
        block_size: Chunk size of streams that begin.
        decoding_chunk_size: In what chunks :meth:`forward` encodes outside of training;
            None for whole utterances.

    Raises:
        ValueError: If an option is unknown, out of range or not of this block type.
    """

    #: ESPnet's name of the attention that the mixer is, if it has one.
    attention_layer_type: str | None = None

    def __init_subclass__(cls, **kwargs):
        """Show the shared options in the signature of every encoder.

        ESPnet's ``--print_config`` reads them there.
        """
        super().__init_subclass__(**kwargs)
        own = inspect.signature(cls.__init__).parameters
        shared = inspect.signature(LinearTimeEncoder.__init__).parameters
        parameters = {**own, **shared}
        for name in ("self", "mixer", "encoder_conf"):
            parameters.pop(name, None)
        cls.__signature__ = inspect.Signature(list(parameters.values()))

    @typechecked
    def __init__(
        self,
        mixer: Callable[[int, int, float], torch.nn.Module],
        input_size: int,
        output_size: int = 256,
        block_type: str = "e_branchformer",
        attention_heads: int = 4,
        attention_layer_type: str | None = None,
        pos_enc_layer_type: str | None = "abs_pos",
        rel_pos_type: str = "latest",
        cgmlp_linear_units: int = 2048,
        cgmlp_conv_kernel: int = 31,
        use_linear_after_conv: bool = False,
        gate_activation: str = "identity",
        num_blocks: int = 12,
        dropout_rate: float = 0.1,
        positional_dropout_rate: float = 0.1,
        attention_dropout_rate: float = 0.0,
        input_layer: str | None = "conv2d",
        zero_triu: bool = False,
        padding_idx: int = -1,
        layer_drop_rate: float = 0.0,
        max_pos_emb_len: int = 5000,
        use_ffn: bool = False,
        macaron_ffn: bool = False,
        ffn_activation_type: str = "swish",
        linear_units: int = 2048,
        positionwise_layer_type: str = "linear",
        merge_conv_kernel: int = 3,
        interctc_layer_idx: Sequence[int] | None = None,
        interctc_use_conditioning: bool = False,
        qk_norm: bool = False,
        use_flash_attn: bool = True,
        gradient_checkpoint_layers: Sequence[int] = (),
        use_sdpa: bool = False,
        cnn_module_kernel: int = 31,
        stochastic_depth_rate: float | Sequence[float] = 0.0,
        use_attn: bool | None = None,
        use_cgmlp: bool | None = None,
        merge_method: str | None = None,
        cgmlp_weight: float | Sequence[float] | None = None,
        attn_branch_drop_rate: float | Sequence[float] | None = None,
        dynamic_chunk_training: bool = False,
        short_chunk_threshold: float = 0.6,
        short_chunk_size: int = 32,
        num_left_chunks: int | None = None,
        block_size: int | None = None,
        hop_size: int | None = None,
        look_ahead: int | None = None,
        compile: bool = False,
        use_cpu_layers: bool = True,
    ):
        super().__init__()
        self._input_size = input_size
        self._output_size = output_size
        self._check_attention_options(attention_layer_type, rel_pos_type)
        check_sizes(
            output_size=output_size,
            attention_heads=attention_heads,
            num_blocks=num_blocks,
            cgmlp_linear_units=cgmlp_linear_units,
            linear_units=linear_units,
            max_pos_emb_len=max_pos_emb_len,
        )
        check_rates(
            dropout_rate=dropout_rate,
            positional_dropout_rate=positional_dropout_rate,
            attention_dropout_rate=attention_dropout_rate,
            layer_drop_rate=layer_drop_rate,
        )
        if positionwise_layer_type != "linear":
            raise ValueError(
                f"positionwise_layer_type must be linear: {positionwise_layer_type!r}"
            )

        if pos_enc_layer_type in _RELATIVE_POSITIONS:
            logging.warning(
                "pos_enc_layer_type: %s belongs to self-attention; abs_pos is used",
                pos_enc_layer_type,
            )
            pos_enc_layer_type = "abs_pos"
        pos_enc = build_positional_encoding(
            pos_enc_layer_type, output_size, positional_dropout_rate, max_pos_emb_len
        )
        # A convolution along time must not read padding, and ESPnet's input layers
        # do not hand their mask to the positional encoding.
        self.conv_pos_enc = pos_enc if pos_enc_layer_type == "conv" else None
        # ESPnet's Branchformer takes features of its own size as they are.
        as_they_are = block_type == "branchformer" and input_layer is None
        self.takes_tokens = input_layer == "embed"
        self.embed = build_input_layer(
            input_layer,
            input_size,
            output_size,
            dropout_rate,
            torch.nn.Identity() if self.conv_pos_enc or as_they_are else pos_enc,
            padding_idx,
        )

        builder = BlockBuilder(
            mixer=lambda: mixer(output_size, attention_heads, attention_dropout_rate),
            block_type=block_type,
            output_size=output_size,
            num_blocks=num_blocks,
            dropout_rate=dropout_rate,
            cgmlp_linear_units=cgmlp_linear_units,
            cgmlp_conv_kernel=cgmlp_conv_kernel,
            use_linear_after_conv=use_linear_after_conv,
            gate_activation=gate_activation,
            use_ffn=use_ffn,
            macaron_ffn=macaron_ffn,
            ffn_activation_type=ffn_activation_type,
            linear_units=linear_units,
            merge_conv_kernel=merge_conv_kernel,
            cnn_module_kernel=cnn_module_kernel,
            stochastic_depth_rate=stochastic_depth_rate,
            use_attn=use_attn,
            use_cgmlp=use_cgmlp,
            merge_method=merge_method,
            cgmlp_weight=cgmlp_weight,
            attn_branch_drop_rate=attn_branch_drop_rate,
        )
        self.compiles_blocks = compile
        for name in ("stochastic_depth_rate", "attn_branch_drop_rate"):
            if compile and any(builder.for_each_block(name, 0.0)):
                raise ValueError(
                    f"{name} cannot go with compile: true, as a graph has no branches; "
                    "layer_drop_rate, which skips whole blocks, can"
                )
        self.encoders = repeat(num_blocks, builder.build, layer_drop_rate)
        for part in (self.embed, self.encoders):
            replace_layers(part, (DepthwiseConv1d, PointwiseConv1d))
            if use_cpu_layers:
                replace_layers(part, CPU_LAYERS)
        self.after_norm = LayerNorm(output_size)
        self.layer_drop_rate = layer_drop_rate

        self.interctc_layer_idx = check_numbers(
            "interctc_layer_idx", interctc_layer_idx or [], 1, num_blocks - 1
        )
        self.interctc_use_conditioning = interctc_use_conditioning
        # Set by ESPnet's model, as it maps from the vocabulary.
        self.conditioning_layer: torch.nn.Module | None = None
        # As in ESPnet: Branchformers' blocks end in a norm of their own.
        self.normalize_interctc = block_type in ("conformer", "transformer")

        self.gradient_checkpoint_layers = check_numbers(
            "gradient_checkpoint_layers", gradient_checkpoint_layers, 0, num_blocks
        )

        self.chunk_sizes = None
        if dynamic_chunk_training:
            self.chunk_sizes = ChunkSizes(short_chunk_threshold, short_chunk_size)
        if num_left_chunks is not None and num_left_chunks < 0:
            num_left_chunks = None
        self.num_left_chunks = num_left_chunks
        check_block(block_size, hop_size, look_ahead)
        self.is_for_streams = dynamic_chunk_training or block_size is not None
        self.block_size = block_size or 16
        self.decoding_chunk_size = None
        self.no_streaming: str | None = None
        if pos_enc_layer_type == "conv":
            self.refuse_streaming("pos_enc_layer_type: conv reads later frames", "none")
        if merge_method == "learned_ave":
            self.refuse_streaming(
                "merge_method: learned_ave pools over the whole utterance", "concat"
            )
        if self.takes_tokens:
            self.refuse_streaming("input_layer: embed takes tokens", "conv2d")
        self.register_load_state_dict_pre_hook(report_mismatch)

    def refuse_streaming(self, reason: str, remedy: str):
        """Remember why this encoder cannot stream.

        Raises:
            ValueError: At once, if it is configured to.
        """
        self.no_streaming = (
            f"{reason}, which cannot be streamed or trained in chunks; take {remedy}"
        )
        if self.is_for_streams:
            raise ValueError(self.no_streaming)

    def _check_attention_options(
        self, attention_layer_type: str | None, rel_pos_type: str
    ):
        if attention_layer_type not in (None, *_ATTENTION_TYPES):
            raise ValueError(f"unknown attention_layer_type: {attention_layer_type!r}")
        if attention_layer_type not in (None, self.attention_layer_type):
            logging.warning(
                "attention_layer_type: %s is replaced by the mixer of %s",
                attention_layer_type,
                type(self).__name__,
            )
        if rel_pos_type not in ("latest", "legacy"):
            raise ValueError(f"rel_pos_type must be latest or legacy: {rel_pos_type!r}")

    def output_size(self) -> int:
        """Return the number of channels D."""
        return self._output_size

    def forward(
        self,
        xs_pad: torch.Tensor,
        ilens: torch.Tensor,
        prev_states: StreamingState | None = None,
        masks: torch.Tensor | None = None,
        ctc: CTC | None = None,
        max_layer: int | None = None,
        return_all_hs: bool = False,
        is_final: bool = True,
        infer_mode: bool = False,
    ) -> tuple[
        torch.Tensor | tuple[torch.Tensor, list], torch.Tensor, StreamingState | None
    ]:
        """Encode a batch of utterances, or with ``infer_mode`` go on with streams.

        Args:
            xs_pad: Features (B, T, F), or tokens (B, T).
            ilens: Number of frames of each utterance (B,).
            prev_states: State of the streams, see :meth:`forward_infer`.
            masks: (B, T), true on padding; None to take it from ``ilens``.
            ctc: Gives the posteriors for ``interctc_use_conditioning``.
            max_layer: Number of blocks to go through; None for all.
            return_all_hs: Whether to return the output of each block.
            is_final: Whether streams end, see :meth:`forward_infer`.
            infer_mode: Whether the input is the next part of streams.

        Returns:
            Output (B, T', D), or a tuple of it and of intermediate outputs: with
            ``return_all_hs`` a list of each block's (B, T', D), otherwise, where there
            is InterCTC, a list of (block counted from one, (B, T', D)). A block that
            layer drop skips hands its input on there, so that no loss is lost.
            Number of frames of each (B,).
            None; of streams their state.

        Raises:
            TooShortUttError: If subsampling leaves no frame of any utterance.
            ValueError: If conditioning lacks ``ctc``, tokens come in place of features
                or features in place of tokens, or streams differ in ``ilens``.
        """
        if infer_mode:
            if ilens is not None and (ilens != xs_pad.size(1)).any():
                raise ValueError(
                    "streams of a batch go on by equally many features: ilens must all "
                    f"be {xs_pad.size(1)}, but are {ilens.tolist()}"
                )
            return self.forward_infer(xs_pad, prev_states, is_final, ctc)
        if xs_pad.is_floating_point() == self.takes_tokens:
            raise ValueError(
                "input_layer: embed takes tokens, but the input is features"
                if self.takes_tokens
                else "the input is tokens, which input_layer: embed alone takes"
            )
        is_padded = True
        if not is_traced():
            # The one look at lengths, for which the host waits if a GPU holds them.
            shortest = int(ilens.min())
            check_lengths(self.embed, xs_pad, ilens, shortest)
            # With a mask and without are two graphs, and compiled it costs nothing.
            has_mask = masks is not None or self._compiles()
            is_padded = has_mask or shortest != xs_pad.size(1)
        if masks is None:
            frames = torch.arange(xs_pad.size(1), device=xs_pad.device)
            mask = frames < ilens.to(xs_pad.device).unsqueeze(1)
        else:
            mask = ~masks
        x, mask = self._call(0, self._embed, xs_pad, mask.unsqueeze(1))
        olens = mask.squeeze(1).sum(1)
        if not is_padded:
            mask = None  # Every layer would copy its input to change nothing.

        chunk_size = self.decoding_chunk_size
        if self.training:
            chunk_size = self.chunk_sizes and self.chunk_sizes.draw()
        options = (ctc, max_layer, return_all_hs)
        if chunk_size is None or chunk_size >= x.size(1):
            x, *intermediate = self._run_blocks(x, mask, None, *options)
        else:
            cut = chunk_size, self.num_left_chunks
            outs, _ = self._run_chunks(x, mask, cut, None, *options)
            x, *intermediate = outs
        if not return_all_hs:
            numbers = sorted(self.interctc_layer_idx)
            intermediate = list(zip(numbers, intermediate, strict=False))
        return (x, intermediate) if intermediate else x, olens, None

    @torch.no_grad()
    def forward_infer(
        self,
        xs_pad: torch.Tensor,
        prev_states: StreamingState | None = None,
        is_final: bool = True,
        ctc: CTC | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor, StreamingState | None]:
        """Encode what has become complete chunks of streams.

        In what parts a stream comes makes no difference: all its output together is
        that of :meth:`forward` with ``decoding_chunk_size = block_size``. It has no
        gradient, which would need all that was heard.

        Args:
            xs_pad: Next features of each stream (B, T, F); T may be 0.
            prev_states: What the call before returned; None at the beginning.
            is_final: Whether the streams end, so that their last chunk is encoded
                although it is not complete.
            ctc: Gives the posteriors for ``interctc_use_conditioning``.

        Returns:
            Output (B, T', D); T' may be 0.
            Number of frames of each, all T', (B,).
            State for the next call; None at the end.

        Raises:
            ValueError: If the encoder cannot stream, or the state does not fit.
        """
        state = prev_states or self.initial_state(len(xs_pad))
        state.check(xs_pad)
        xs_pad = torch.cat([state.features, xs_pad], dim=1)
        field, stride = receptive_field(self.embed)
        frames = max(0, (xs_pad.size(1) - field) // stride + 1)
        if not is_final:
            frames -= frames % state.block_size
        x = xs_pad.new_zeros(xs_pad.size(0), 0, self._output_size)
        if frames > 0:
            needed = xs_pad[:, : (frames - 1) * stride + field]
            x, state = self.forward_chunks(needed, state, ctc)
            # Copies: views would keep all that was encoded.
            state = state._replace(blocks=[part.clone() for part in state.blocks])
        olens = torch.full((x.size(0),), x.size(1), device=x.device)
        if is_final:
            return x, olens, None
        features = xs_pad[:, frames * stride :].clone()
        return x, olens, state._replace(features=features)

    def forward_chunks(
        self,
        xs_pad: torch.Tensor,
        state: StreamingState,
        ctc: CTC | None = None,
        mask: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, StreamingState]:
        """Encode the next chunks of streams.

        Args:
            xs_pad: All features that they are made of (B, T, F).
            state: What came before; its features are not read.
            ctc: Gives the posteriors for ``interctc_use_conditioning``.
            mask: (B, 1, T'), false on output frames after the end; None if there are
                none.

        Returns:
            Output (B, T', D), and the next state, with the features of ``state``.
        """
        cut = state.block_size, state.num_left_chunks
        chunks = Chunks(*cut, state.embed)
        are_real = xs_pad.new_ones(xs_pad.size(0), 1, xs_pad.size(1), dtype=torch.bool)
        with in_chunks(chunks):
            x, _ = self._embed(xs_pad, are_real)
        (x, *_), blocks = self._run_chunks(x, mask, cut, state.blocks, ctc)
        return x, state._replace(embed=chunks.next_states, blocks=blocks)

    def initial_state(
        self,
        batch_size: int,
        block_size: int | None = None,
        num_left_chunks: int | None = None,
    ) -> StreamingState:
        """Return the state of streams that are at their beginning.

        Args:
            batch_size: Number of streams B.
            block_size: Chunk size; None for that of the encoder.
            num_left_chunks: Chunks that a frame sees before its own, negative for all;
                None for as many as the encoder's option says.

        Raises:
            ValueError: If the encoder cannot stream, or an option is out of its range.
        """
        if self.no_streaming:
            raise ValueError(self.no_streaming)
        if block_size is None:
            block_size = self.block_size
        check_sizes(block_size=block_size)
        if num_left_chunks is None:
            num_left_chunks = self.num_left_chunks
        elif num_left_chunks < 0:
            num_left_chunks = None
        cut = block_size, num_left_chunks
        like = self.after_norm.weight
        field, _ = receptive_field(self.embed)
        features = like.new_zeros(batch_size, field, self._input_size)
        mask = torch.ones_like(features[:, None, :, 0], dtype=torch.bool)
        embed, blocks = Chunks(*cut), Chunks(*cut)
        with torch.no_grad(), in_chunks(embed):
            x, _ = self._embed(features, mask)
        x, mask = pad_to_chunks(x, None, block_size)
        with torch.no_grad(), in_chunks(blocks):
            for block in self.encoders:
                block(x, mask)
        states = embed.initial_states, blocks.initial_states
        return StreamingState(features[:, :0].clone(), *states, *cut)

    def _run_chunks(
        self,
        x: torch.Tensor,
        mask: torch.Tensor | None,
        cut: tuple[int, int | None],
        states: list[torch.Tensor] | None,
        *options,
    ) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Do as :meth:`_run_blocks` in chunks, from one state to the next.

        ``cut`` is their size, and how many earlier ones a frame sees.
        """
        frames, chunk_size = x.size(1), cut[0]
        x, mask = pad_to_chunks(x, mask, chunk_size)
        at_once = x.size(1)
        if pieces.is_long(at_once):
            at_once = max(1, pieces.FRAMES_AT_ONCE // chunk_size) * chunk_size
        parts = []
        for first in range(0, x.size(1), at_once):
            part = slice(first, first + at_once)
            chunks = Chunks(*cut, states)
            part_of_mask = None if mask is None else mask[..., part]
            parts.append(self._run_blocks(x[:, part], part_of_mask, chunks, *options))
            states = chunks.next_states
        outs = [torch.cat(same, 1)[:, :frames] for same in zip(*parts, strict=True)]
        return outs, chunks.next_states

    def _run_blocks(
        self,
        x: torch.Tensor,
        mask: torch.Tensor | None,
        chunks: Chunks | None,
        ctc: CTC | None = None,
        max_layer: int | None = None,
        return_all_hs: bool = False,
    ) -> list[torch.Tensor]:
        """Return the output (B, T, D) and after it the intermediate ones."""
        if mask is not None and not is_traced():
            share_padding(mask)
        intermediate = []
        for number, block in enumerate(self.encoders, start=1):
            if max_layer is not None and number > max_layer:
                break
            x, mask = self._call_or_drop(number, block, chunks, x, mask)
            if return_all_hs:
                intermediate.append(x)
            elif number in self.interctc_layer_idx:
                out = self.after_norm(x) if self.normalize_interctc else x
                intermediate.append(out)
                if self.interctc_use_conditioning:
                    if ctc is None or self.conditioning_layer is None:
                        raise ValueError(
                            "interctc_use_conditioning needs ctc and the model's "
                            "conditioning_layer"
                        )
                    x = x + self.conditioning_layer(ctc.softmax(out))
        return [self.after_norm(x), *intermediate]

    def _embed(
        self, xs_pad: torch.Tensor, mask: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if isinstance(self.embed, tuple(SUBSAMPLING.values())):
            x, mask = subsample(self.embed, xs_pad, mask)
        else:
            x = self.embed(xs_pad)
        if self.conv_pos_enc is not None:
            x = self.conv_pos_enc(x.masked_fill(~mask.transpose(1, 2), 0.0))
        return x, mask

    def _compiles(self) -> bool:
        # A graph of another compiler or exporter takes the blocks in by itself.
        return self.compiles_blocks and self.training and not is_traced()

    def _call(self, number: int, module: Callable, *args):
        if number in self.gradient_checkpoint_layers:
            return checkpoint(module, *args, use_reentrant=False)
        return module(*args)

    def _call_or_drop(
        self,
        number: int,
        block: torch.nn.Module,
        chunks: Chunks | None,
        x: torch.Tensor,
        mask: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        def call_in_chunks(x, mask):
            with in_chunks(chunks):
                return block(x, mask)

        if chunks is not None:
            call = call_in_chunks
        elif self._compiles():
            call = partial(_compiled_call(), block)
        else:
            call = block
        run = partial(self._call, number, call)
        if not self.training or self.layer_drop_rate == 0:
            return run(x, mask)
        is_dropped = torch.rand(1) < self.layer_drop_rate
        if is_traced():
            # A graph has no branches, so that it drops the block's output instead.
            out, mask = run(x, mask)
            return torch.where(is_dropped.to(x.device), x, out), mask
        return (x, mask) if is_dropped else run(x, mask)


@cache
def _compiled_call() -> Callable:
    """Return what calls a block by a graph, which blocks that are alike share.

    It belongs to no module, so that copies and checkpoints know nothing of it.
    """

    def call(
        block: torch.nn.Module, x: torch.Tensor, mask: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return block(x, mask)

    return torch.compile(call, dynamic=True)


# ESPnet's streaming recogniser takes encoders of this class, for their forward_infer.
ContextualBlockConformerEncoder.register(LinearTimeEncoder)
