"""A picture of what an encoder weighs in a recording. Needs matplotlib."""

from collections import defaultdict

import torch
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import MaxNLocator

from espnet_fastformer.inference.inspection import Inspection
from espnet_fastformer.layers.aft import AFT, AFTFull, AFTLocal, FactorizedBias

# Positions of which a matrix of all pairs is shown.
_POSITIONS = 1000
# Characters of a title.
_TITLE = 80
_LABELS = {"alpha": "α", "beta": "β", "key_weights": "key weights"}


def draw(inspection: Inspection, encoder: torch.nn.Module, title: str) -> Figure:
    """Draw the weights of each block over time, under the spectrogram.

    Beside the key weights of AFT stands its position bias: by offset where it is the
    same everywhere, else of all pairs of positions. Panels of a kind share one scale.

    Args:
        inspection: What the encoder weighed.
        encoder: The encoder.
        title: Title of the picture.

    Returns:
        The picture.
    """
    # Channels need more room than heads.
    heights = [2, *(2 if len(w) > 16 else 1 for w in inspection.weights.values())]
    has_bias = any(
        isinstance(module, AFT) and module.position_bias_matrix(1) is not None
        for module in encoder.modules()
    )
    # A figure of its own, without pyplot, needs no display.
    figure = Figure((14 if has_bias else 11, sum(heights)), layout="constrained")
    grid = figure.add_gridspec(
        len(heights),
        2 if has_bias else 1,
        height_ratios=heights,
        width_ratios=[4, 1] if has_bias else [1],
    )
    top = figure.add_subplot(grid[0, 0])
    _draw_image(top, inspection.features, inspection.feature_span, origin="lower")
    # Names of files may have dollars, which would be mathematics, and anything else.
    title = "".join(
        c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in title
    )
    if len(title) > _TITLE:
        title = f"{title[: _TITLE // 2]}…{title[-_TITLE // 2 :]}"
    top.set_title(title, parse_math=False)
    top.set_ylabel(inspection.feature)

    images = defaultdict(list)
    bias = None
    for row, (name, weights) in enumerate(inspection.weights.items(), start=1):
        module, _, kind = name.rpartition(".")
        mixer = encoder.get_submodule(module)
        block = int(module.split(".")[1]) + 1
        axis = figure.add_subplot(grid[row, 0], sharex=top)
        image = _draw_image(
            axis, weights, inspection.frame_span, norm=PowerNorm(0.5, vmin=0.0)
        )
        images[kind].append(image)
        axis.tick_params(labelbottom=row == len(heights) - 1)
        is_per_head = (
            kind != "key_weights" or len(weights) < mixer.linear_q.out_features
        )
        axis.set(
            title=f"block {block}: {_LABELS[kind]}",
            ylabel="head" if is_per_head else "channel",
        )
        figure.colorbar(image, ax=axis, pad=0.01, label="weight")
        if has_bias:
            span = inspection.frame_span[1] - inspection.frame_span[0]
            bias = figure.add_subplot(grid[row, 1], sharey=bias)
            seconds = span / inspection.frames
            images["bias"] += _draw_bias(bias, mixer, inspection.frames, seconds)
    axis.set_xlabel("time [s]")
    for of_kind in images.values():
        limits = [image.get_clim() for image in of_kind]
        for image in of_kind:
            image.set_clim(
                min(low for low, _ in limits), max(high for _, high in limits)
            )
    return figure


def _draw_image(
    axis: Axes, values: torch.Tensor, span: tuple[float, float], **options
) -> AxesImage:
    extent = (*span, len(values) - 0.5, -0.5)
    if options.get("origin") == "lower":
        extent = (*span, -0.5, len(values) - 0.5)
    axis.yaxis.set_major_locator(MaxNLocator(4, integer=True))
    return axis.imshow(
        values.numpy(), aspect="auto", interpolation="nearest", extent=extent, **options
    )


def _draw_bias(axis: Axes, mixer: AFT, frames: int, seconds: float) -> list[AxesImage]:
    """Draw w: of the pairs of t (down) and t' (across), or by t' - t for each head."""
    axis.set_title("position bias")
    match mixer:
        case AFTFull() | AFTLocal(position_bias=FactorizedBias()):
            positions = min(frames, _POSITIONS)
            end = positions * seconds
            image = axis.imshow(
                mixer.position_bias_matrix(positions)[0].detach().numpy(),
                aspect="auto",
                extent=(0, end, end, 0),
            )
            axis.figure.colorbar(image, ax=axis, label="w")
            axis.set(xlabel="t' [s]", ylabel="t [s]")
            return [image]
        case _:
            window = mixer.position_bias_matrix(2 * mixer.radius + 1)
            offsets = torch.arange(-mixer.radius, mixer.radius + 1) * seconds
            axis.plot(offsets, window[:, mixer.radius].detach().T)
            axis.axvline(0.0, color="grey", linewidth=0.5)
            axis.set(xlabel="t' - t [s]", ylabel="w")
            return []
