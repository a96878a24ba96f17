"""Put what the other commands measured into docs/benchmarks.md, with plots.

    python -m benchmarks.document benchmarks/results/{targets,encoders,layers}.json

Writes between the two marks of the page, where sections of other commands stay as they
are. Plots time and memory of encoders.
Results of a command that was run in parts, each with an --output of its own, are put
together if their files follow one another; of what was measured twice, the last counts.
"""

import argparse
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot as plt  # noqa: E402

from benchmarks.measure import Result  # noqa: E402
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
PLOTTED_SETTING = ("inference", "float32")
THEIRS = "e_branchformer-"
PLOTTED_NAMES = {
    f"{THEIRS}rel_selfattn": "C3",
    f"{THEIRS}rel_selfattn-sdpa": "C1",
    f"{THEIRS}fast_selfattn": "C4",
    "fastformer": "C0",
    "aft-simple": "C2",
}
# Of a logarithmic axis: the factor between two names below one another.
LINE_SPACING = 1.6


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


def read_sections(body: str) -> dict[str, str]:
    """Return the sections between the marks by their titles."""
    parts = re.split(r"^## ", body.removesuffix(MARKS[1]), flags=re.MULTILINE)[1:]
    return {part.partition("\n")[0]: f"## {part}".strip() for part in parts}


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


def plot(report: Report, path: Path) -> None:
    """Plot time and memory of some encoders against the length of the audio.

    Args:
        report: With results of encoders.
        path: Image to write.
    """
    results = [
        r
        for r in report.results
        if (r.mode, r.dtype) == PLOTTED_SETTING and r.name in PLOTTED_NAMES
    ]
    if not results:
        raise ValueError(f"no results in {', '.join(PLOTTED_SETTING)} to plot")
    figure, axes = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    lengths = sorted({r.audio for r in results})
    for ax, quantity in zip(axes, ("time [s]", "memory [GB]"), strict=True):
        ends = {}
        for name, color in PLOTTED_NAMES.items():
            done = [r for r in results if r.name == name and r.failure is None]
            done.sort(key=lambda r: r.audio)
            if done:
                x = [r.audio for r in done]
                y = [
                    r.median if quantity.startswith("time") else r.memory / 1e9
                    for r in done
                ]
                style = "--" if name.startswith(THEIRS) else "-"
                ax.plot(x, y, style, marker=".", color=color)
                ends[name] = (x[-1], y[-1])
        ax.set(xscale="log", yscale="log", xlabel="audio [s]", ylabel=quantity)
        ax.set_xticks(lengths, [f"{audio:g}" for audio in lengths], minor=False)
        ax.minorticks_off()
        ax.grid(alpha=0.3)
        label_ends(ax, ends)
    machine = report.machine
    figure.suptitle(
        f"{', '.join(PLOTTED_SETTING)}: {machine['processor']}, "
        f"{machine['threads']} threads, {machine['memory']}. Dashed: ESPnet's "
        "E-Branchformer; lines end where the next length fails",
        fontsize="small",
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def label_ends(ax, ends: Mapping[str, tuple[float, float]]) -> None:
    """Write the names of lines beside their ends, below one another."""
    lowest = {}
    for name, (x, y) in sorted(ends.items(), key=lambda end: -end[1][1]):
        place = min(y, lowest.get(x, math.inf) / LINE_SPACING)
        lowest[x] = place
        ax.annotate(
            name.removeprefix(THEIRS),
            (x, place),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            fontsize="small",
            color=PLOTTED_NAMES[name],
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1},
        )
    left, right = ax.get_xlim()
    ax.set_xlim(left, right * 4)  # Room for the names.


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

    text = options.page.read_text(encoding="utf-8")
    sections = read_sections(text[len(head) : len(text) - len(tail)])
    for path, report in reports.items():
        text = section(report)
        if report.title == PLOTTED:
            image = options.page.parent / "images" / f"{path.stem}.png"
            plot(report, image)
            label = "time and memory against the length of the audio"
            text += f"\n\n![{label}](images/{image.name})"
        sections[report.title] = text
    body = "\n\n".join([MARKS[0], *sections.values(), MARKS[1]])
    options.page.write_text(head + body + tail, encoding="utf-8")


if __name__ == "__main__":
    main()
