"""The page of a study: tables, pictures, and the numbers as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from benchmarks.measure import Result
from benchmarks.results import duration, machine_line, read_around, size, table
from benchmarks.scores import Difference, Errors

from .results import RowResult

MARKS = ("<!-- study -->", "<!-- end of study -->")


@dataclass(frozen=True)
class NotRun:
    """Trainings that are not finished.

    Attributes:
        rows: Names of rows.
        seeds: The seeds of each.
        command: What runs them.
    """

    rows: Sequence[str]
    seeds: Sequence[int]
    command: str


def write_page(
    page: Path,
    rows: Sequence[RowResult],
    reference: str,
    subsets: Sequence[str],
    joined: Mapping[str, Sequence[str]],
    facts: Mapping[str, Any],
    not_run: Sequence[NotRun],
) -> str:
    """Write ``page``, the pictures below ``images`` and the numbers to a JSON file.

    What the page has outside of its two marks is left as it is.

    Args:
        page: Markdown file.
        rows: All rows with a training that has finished or failed.
        reference: Name of the one that the others are compared with.
        subsets: Test subsets.
        joined: By test subset, its name where it is decoded like the long recordings
            that are made of it, and theirs.
        facts: ``machine``, ``commands`` and ``settings``.
        not_run: What is not finished.

    Returns:
        The tables.

    Raises:
        ValueError: The page has no such marks.
    """
    head, tail = read_around_marks(page)
    base = next((row for row in rows if row.name == reference), None)
    names = [*subsets, *(name for names in joined.values() for name in names)]
    compared = {
        row.name: {name: row.against(base, name) if base else None for name in names}
        for row in rows
    }
    parts = ["\n".join(f"- {key}: {value}" for key, value in facts["settings"].items())]
    parts.append("```sh\n" + "\n".join(facts["commands"]) + "\n```")
    for subset in subsets:
        parts += [f"### {subset}", _error_table(rows, subset, compared)]
    parts += ["### Cost", _cost_table(rows)]
    for subset, (apart, *longer) in joined.items():
        scored = [name for name in longer if any(row.seeds(name) for row in rows)]
        if scored:
            parts += [f"### {subset}, joined", _joined_table(rows, apart, scored)]
    failures = [
        f"- {row.name}, seed {seed}: {reason}"
        for row in rows
        for seed, reason in row.failures.items()
    ]
    if failures:
        parts += ["### Failed", "\n".join(failures)]
    if not_run:
        parts.append("### Not trained")
    for missing in not_run:
        seeds = ", ".join(map(str, missing.seeds))
        parts.append(
            f"Seed{'s' * (len(missing.seeds) > 1)} {seeds} of "
            f"{', '.join(missing.rows)}:\n\n```sh\n{missing.command}\n```"
        )
    numbers = [_numbers(row, names, compared[row.name]) for row in rows]
    picture = page.parent / "images" / f"{page.stem}.png"
    if plot_errors(numbers, reference, subsets, picture):
        parts.append(f"![error rates](images/{picture.name})")
    parts.append(machine_line(facts["machine"]))
    text = "\n\n".join(parts)

    page.parent.mkdir(parents=True, exist_ok=True)
    body = f"{MARKS[0]}\n\n{text}\n\n{MARKS[1]}"
    page.write_text(head + body + tail, encoding="utf-8")
    content = {
        **facts,
        "reference": reference,
        "rows": numbers,
        "not_run": [asdict(missing) for missing in not_run],
    }
    page.with_suffix(".json").write_text(
        json.dumps(content, indent=1) + "\n", encoding="utf-8"
    )
    return text


def read_around_marks(page: Path) -> tuple[str, str]:
    """Return what a page has outside of its two marks, or a new page has.

    Raises:
        ValueError: There is such a page, but it lacks them.
    """
    return read_around(page, MARKS) if page.is_file() else ("# Accuracy\n\n", "\n")


def plot_errors(
    rows: Sequence[Mapping[str, Any]],
    reference: str,
    subsets: Sequence[str],
    path: Path,
) -> bool:
    """Draw each encoder's CER with the interval of its difference from the reference's.

    Args:
        rows: Numbers of each row, as in the JSON file.
        reference: Name of the row whose CER is a line.
        subsets: Test subsets, a panel each.
        path: Image to write.

    Returns:
        Whether there was something to draw.
    """
    base = next((row["scores"] for row in rows if row["name"] == reference), {})
    drawn = [row for row in rows if row["name"] != reference and row["scores"]]
    panels = [subset for subset in subsets if subset in base]
    if not drawn or not panels:
        return False
    size = (4.5 * len(panels) + 1.5, 0.28 * len(drawn) + 1.2)
    figure = Figure(size, layout="constrained")
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axis, subset in zip(axes, panels, strict=True):
        zero = base[subset]["CER"]
        axis.axvline(zero, color="black", linestyle="--")
        for place, row in enumerate(drawn):
            difference = row["scores"].get(subset, {}).get("CER_difference")
            if difference is not None:
                value = zero + difference["value"]
                axis.plot(value, place, "o", color="C0", markersize=4)
                if difference["low"] is not None:
                    ends = [zero + difference["low"], zero + difference["high"]]
                    axis.plot(ends, [place, place], color="C0")
        axis.set(title=subset, xlabel="CER [%]")
        axis.set_yticks(range(len(drawn)), [row["name"] for row in drawn])
        axis.grid(alpha=0.3, axis="x")
    axes[0].invert_yaxis()
    figure.suptitle(f"dashed: {reference}", fontsize="small")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    return True


def _error_table(
    rows: Sequence[RowResult],
    subset: str,
    compared: Mapping[str, Mapping[str, Difference | None]],
) -> str:
    header = ["encoder", "parameters", "seeds", "CER", "difference", "WER"]
    lines = []
    for row in rows:
        errors = row.errors(subset)
        line = [row.name, f"{row.parameters:,}", str(len(row.seeds(subset)))]
        if errors is None:
            lines.append([*line, "failed" if row.failures else "not finished", "", ""])
            continue
        by_seed = [row.trainings[seed].errors[subset] for seed in row.seeds(subset)]
        lines.append(
            [
                *line,
                _rate(errors, by_seed, "character_error_rate"),
                _difference(compared[row.name][subset]),
                _rate(errors, by_seed, "word_error_rate"),
            ]
        )
    return table(header, lines)


def _cost_table(rows: Sequence[RowResult]) -> str:
    lengths = list(dict.fromkeys(r.audio for row in rows for r in row.speed[1:]))
    header = ["encoder", "updates", "time an update", "memory an update"]
    header += [f"encoder, real-time factor at {audio:g} s" for audio in lengths]
    lines = []
    for row in rows:
        line = [row.name, f"{row.updates:,}"]
        update = row.update
        if update is None:
            line += ["", ""]
        else:
            line += [update.failure or duration(update.median), size(update.memory)]
        encoded = {result.audio: result for result in row.speed[1:]}
        line += [_real_time_factor(encoded.get(audio)) for audio in lengths]
        lines.append(line)
    return table(header, lines)


def _joined_table(rows: Sequence[RowResult], apart: str, longer: Sequence[str]) -> str:
    lines = []
    for row in rows:
        single = row.errors(apart)
        line = [row.name]
        line.append(f"{single.character_error_rate:.1f}" if single else "")
        for name in longer:
            seeds = sorted({*row.seeds(apart)} & {*row.seeds(name)})
            if not seeds:
                line.append("")
                continue
            rate, base = (
                row.errors(part, seeds).character_error_rate for part in (name, apart)
            )
            change = f" ({rate / base - 1:+.0%})" if base else ""
            line.append(f"{rate:.1f}{change}".replace("%", " %"))
        lines.append(line)
    header = ["CER of", "one by one", *longer]
    return table(header, lines)


def _rate(errors: Errors, by_seed: Sequence[Errors], rate: str) -> str:
    text = f"{getattr(errors, rate):.1f}"
    if len(by_seed) > 1:
        text += f" ({', '.join(f'{getattr(e, rate):.1f}' for e in by_seed)})"
    return text


def _difference(difference: Difference | None) -> str:
    if difference is None:
        return ""
    text = f"{difference.value:+z.1f}"
    if difference.low is not None:
        text += f" [{difference.low:+z.1f}, {difference.high:+z.1f}]"
    return text


def _real_time_factor(result: Result | None) -> str:
    if result is None or result.failure:
        return "" if result is None else result.failure
    return f"{result.median / result.audio:.2g}"


def _numbers(
    row: RowResult,
    names: Sequence[str],
    compared: Mapping[str, Difference | None],
) -> dict[str, Any]:
    def rates(errors: Errors) -> dict[str, float]:
        return {"CER": errors.character_error_rate, "WER": errors.word_error_rate}

    scores = {}
    for name in names:
        errors = row.errors(name)
        if errors is not None:
            difference = compared[name]
            scores[name] = {
                **rates(errors),
                "CER_difference": asdict(difference) if difference else None,
                "seeds": {
                    seed: rates(row.trainings[seed].errors[name])
                    for seed in row.seeds(name)
                },
            }
    update = row.update
    return {
        "name": row.name,
        "parameters": row.parameters,
        "updates": row.updates,
        "config": row.config,
        "scores": scores,
        "failures": row.failures,
        "update_seconds": None if update is None else _finite(update.median),
        "update_memory": None if update is None else update.memory,
        "real_time_factor": {
            f"{result.audio:g}": _finite(result.median / result.audio)
            for result in row.speed[1:]
        },
        "curve": row.curve(),
    }


def _finite(value: float) -> float | None:
    return None if math.isnan(value) else value
