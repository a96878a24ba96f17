"""Put what the other commands measured into docs/benchmarks.md, with plots.

    python -m benchmarks.document benchmarks/results/{targets,encoders,layers}.json

Replaces what the page has between its two marks. Plots time and memory of encoders.
Results of a command that was run in parts, each with an --output of its own, are put
together if their files follow one another; of what was measured twice, the last counts.
"""

import argparse
import math
from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot as plt  # noqa: E402

from benchmarks.measure import MODES, Result  # noqa: E402
from benchmarks.results import (  # noqa: E402
    Report,
    duration,
    machine_line,
    percent,
    read_around,
    size,
    table,
)

PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"
MARKS = ("<!-- results -->", "<!-- end of results -->")
PLOTTED = "Encoders"
PLOTTED_DTYPE = "float32"


def section(report: Report) -> str:
    """Return the results of a command as Markdown, without plots."""
    parts = [f"## {report.title}", machine_line(report.machine)]
    if report.rows:
        parts.append(table(report.columns, report.rows))
    else:
        settings = dict.fromkeys((r.mode, r.dtype, r.batch) for r in report.results)
        for setting in settings:
            mode, dtype, batch = setting
            results = [
                r for r in report.results if (r.mode, r.dtype, r.batch) == setting
            ]
            parts += [f"### {mode}, {dtype}, batch of {batch}", by_length(results)]
    return "\n\n".join(parts)


def join(first: Sequence[Result], second: Sequence[Result]) -> list[Result]:
    """Return all results, of the same case the second."""
    joined = {(r.name, r.mode, r.dtype, r.batch, r.audio): r for r in (*first, *second)}
    return list(joined.values())


def by_length(results: Sequence[Result]) -> str:
    """Return a table with a row for each competitor and a column for each length."""
    lengths = sorted({result.audio for result in results})
    found = {(result.name, result.audio): result for result in results}
    rows = [
        [name, *(cell(found.get((name, audio))) for audio in lengths)]
        for name in dict.fromkeys(result.name for result in results)
    ]
    return table(["", *(f"{audio:g} s" for audio in lengths)], rows)


def cell(result: Result | None) -> str:
    """Return median time with its spread, memory and share of the peak."""
    if result is None or result.failure:
        return "" if result is None else result.failure
    lower, median, upper = result.quartiles
    spread = percent((upper - lower) / 2 / median)
    lines = [f"{duration(median)} ±{spread}", size(result.memory)]
    if not math.isnan(result.share_of_peak):
        lines.append(f"{percent(result.share_of_peak)} of peak")
    return "<br>".join(lines)


def plot(report: Report, quantity: str, path: Path) -> None:
    """Plot a quantity against the length of the audio, a panel for each mode.

    Args:
        report: With results of encoders.
        quantity: ``time`` or ``memory``.
        path: Image to write.
    """
    results = [r for r in report.results if r.dtype == PLOTTED_DTYPE]
    modes = [mode for mode in MODES if any(r.mode == mode for r in results)]
    if not modes:
        raise ValueError(f"no results in {PLOTTED_DTYPE} to plot")
    figure, axes = plt.subplots(
        1, len(modes), figsize=(5.5 * len(modes), 4.5), squeeze=False, sharey=True
    )
    names = list(dict.fromkeys(r.name for r in results))
    for ax, mode in zip(axes[0], modes, strict=True):
        for index, name in enumerate(names):
            line = sorted(
                (r for r in results if (r.name, r.mode) == (name, mode)),
                key=lambda r: r.audio,
            )
            draw(ax, line, quantity, color=f"C{index}")
        ax.set(xscale="log", yscale="log", title=mode, xlabel="audio [s]")
        lengths = sorted({r.audio for r in results})
        ax.set_xticks(lengths, [f"{audio:g}" for audio in lengths], minor=False)
        ax.minorticks_off()
        ax.grid(alpha=0.3)
    axes[0][0].set_ylabel("time [s]" if quantity == "time" else "memory [GB]")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", fontsize="small")
    figure.set_layout_engine("constrained")
    figure.suptitle("A cross ends what fails at the next length", fontsize="small")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def draw(ax, line: Sequence[Result], quantity: str, color: str) -> None:
    """Draw one competitor; dashed if it is ESPnet's."""
    done = [result for result in line if result.failure is None]
    if not done:
        return
    x = [result.audio for result in done]
    is_ours = done[0].name.startswith(("fastformer", "aft"))
    style = {"color": color, "linestyle": "-" if is_ours else "--"}
    if quantity == "time":
        lower, y, upper = zip(*(result.quartiles for result in done), strict=True)
        ax.fill_between(x, lower, upper, color=color, alpha=0.2, linewidth=0)
    else:
        y = [result.memory / 1e9 for result in done]
    ax.plot(x, y, marker=".", label=done[0].name, **style)
    if len(done) < len(line):
        ax.plot(x[-1], y[-1], marker="x", markersize=9, color=color)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.document",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "results", nargs="+", type=Path, help="JSON files, in the order of the page"
    )
    parser.add_argument(
        "--page", type=Path, default=PAGE, help="default: docs/benchmarks.md"
    )
    options = parser.parse_args(argv)
    try:
        head, tail = read_around(options.page, MARKS)
    except (OSError, ValueError) as error:
        parser.error(str(error))

    reports: dict[Path, Report] = {}
    for path in options.results:
        try:
            report = Report.load(path)
        except (OSError, ValueError) as error:
            parser.error(str(error))
        before = next(reversed(reports.values()), None)
        if before and report.results and before.title == report.title:
            before.results = join(before.results, report.results)
        else:
            reports[path] = report

    sections = []
    for path, report in reports.items():
        text = section(report)
        if report.title == PLOTTED:
            for quantity in ("time", "memory"):
                image = options.page.parent / "images" / f"{path.stem}_{quantity}.png"
                plot(report, quantity, image)
                label = f"{quantity} against the length of the audio"
                text += f"\n\n![{label}](images/{image.name})"
        sections.append(text)
    body = "\n\n".join([MARKS[0], *sections, MARKS[1]])
    options.page.write_text(head + body + tail, encoding="utf-8")


if __name__ == "__main__":
    main()
