"""What the mixers of a model weigh, as ESPnet's attention plots ask for it."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial, wraps

import torch

from espnet_fastformer.layers.aft import AFT
from espnet_fastformer.layers.fastformer import FastSelfAttention

Weights = dict[str, torch.Tensor]


@contextmanager
def record_weights(
    model: torch.nn.Module, weights_of: Callable[..., Weights] | None = None
) -> Iterator[Weights]:
    """Record the weights of all mixers of a model while it runs.

    Nothing is computed or kept outside of this context.

    Args:
        model: Any module with mixers of this package in it.
        weights_of: Called as ``weights_of(mixer, *inputs)``, which returns a tensor
            (B, ...) for each name. The default is their ``attention_weights``.

    Yields:
        A dict from ``MODULE.NAME``, such as ``encoder.encoders.0.attn.alpha``, to what
        was computed in the last forward pass, on the CPU.
    """
    recorded = {}

    def record(name, mixer, args, kwargs, output) -> None:
        compute = weights_of or type(mixer).attention_weights
        for kind, weights in compute(mixer, *args, **kwargs).items():
            recorded[f"{name}.{kind}"] = weights.detach().cpu()

    hooks = [
        module.register_forward_hook(partial(record, name), with_kwargs=True)
        for name, module in model.named_modules()
        if isinstance(module, (AFT, FastSelfAttention))
    ]
    try:
        yield recorded
    finally:
        for hook in hooks:
            hook.remove()


def extend_calculate_all_attentions(calculate: Callable) -> Callable:
    """Make ESPnet's ``calculate_all_attentions`` return the mixers' weights too.

    Its trainer plots each array that it returns: here ``alpha`` and ``beta`` of
    Fastformer (H, T), ``key_weights`` of AFT (K, T), and its ``position_bias``
    (1 or H, T, T).

    Args:
        calculate: ESPnet's function.

    Returns:
        A function that is called as ESPnet's.
    """
    if hasattr(calculate, "shows_mixers"):
        return calculate

    @wraps(calculate)
    def calculate_all_attentions(model, batch):
        utterances = []

        def finish_utterance(*_) -> None:  # What a hook returns replaces the output.
            utterances.append(recorded.copy())
            recorded.clear()

        with record_weights(model, _weights_to_plot) as recorded:
            hook = model.register_forward_hook(finish_utterance)
            try:
                attentions = calculate(model, batch)
            finally:
                hook.remove()
        names = set.intersection(*map(set, utterances)) if utterances else ()
        for name in sorted(names):
            # As ESPnet does: a model may lay several streams of one utterance along B.
            attentions[name] = [weights[name].squeeze(0) for weights in utterances]
        return attentions

    calculate_all_attentions.shows_mixers = True
    return calculate_all_attentions


def _weights_to_plot(mixer: torch.nn.Module, *args, **kwargs) -> Weights:
    try:
        weights = mixer.attention_weights(*args, **kwargs)
        if isinstance(mixer, AFT):
            batch, _, frames = weights["key_weights"].shape
            bias = mixer.position_bias_matrix(frames)
            if bias is not None:
                weights["position_bias"] = bias.expand(batch, -1, -1, -1)
    except Exception as error:  # No picture is worth a training.
        logging.warning(
            "no picture of %s: %s: %s",
            type(mixer).__name__,
            type(error).__name__,
            error,
        )
        return {}
    return weights
