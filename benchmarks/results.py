"""What a command writes: measurements and the machine, as JSON and as Markdown."""

import datetime
import json
import math
import os
import platform
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path

import torch

from benchmarks.measure import Result, Settings

PACKAGES = ("espnet", "espnet-fastformer", "torch")
COLUMNS = (
    "mode",
    "dtype",
    "batch",
    "audio",
    "time",
    "quartiles",
    "memory",
    "GFLOP",
    "GFLOP/s",
    "of peak",
)


@dataclass
class Report:
    """The measurements of one command.

    Attributes:
        title: Heading of the Markdown.
        machine: What :func:`describe_machine` says.
        results: What was measured.
        rows: Cells of a table of the command's own, if it has one, under ``columns``.
    """

    title: str
    machine: dict[str, str]
    results: list[Result] = field(default_factory=list)
    columns: Sequence[str] = ()
    rows: list[Sequence[str]] = field(default_factory=list)

    @classmethod
    def load(cls, path: Path) -> "Report":
        """Read the JSON that :meth:`save` wrote.

        Raises:
            ValueError: If the file is something else.
        """
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            content["results"] = [Result(**result) for result in content["results"]]
            return cls(**content)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"{path} is not the JSON of a benchmark: {error}"
            ) from None

    def save(self, path: Path) -> None:
        """Write ``path``.json and ``path``.md."""
        path.parent.mkdir(parents=True, exist_ok=True)
        content = json.dumps(asdict(self), indent=1)
        path.with_suffix(".json").write_text(f"{content}\n", encoding="utf-8")
        path.with_suffix(".md").write_text(self.markdown(), encoding="utf-8")

    def markdown(self) -> str:
        """Return heading, machine and tables."""
        parts = [f"# {self.title}", machine_line(self.machine)]
        if self.rows:
            parts.append(table(self.columns, self.rows))
        if self.results:
            parts.append(table(("what", *COLUMNS), map(cells, self.results)))
        return "\n\n".join(parts) + "\n"


def describe_machine(settings: Settings) -> dict[str, str]:
    """Return what the numbers depend on, but for the code that is measured."""
    machine = {
        "processor": _processor(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "cores": str(os.cpu_count()),
        "threads": str(settings.threads),
        "memory": _main_memory(),
    }
    if settings.device == "cuda":
        properties = torch.cuda.get_device_properties(0)
        machine["GPU"] = f"{properties.name}, {size(properties.total_memory)}"
        machine["CUDA"] = torch.version.cuda
    machine["system"] = f"{platform.system()} {platform.release()}"
    machine["Python"] = platform.python_version()
    machine |= {package: version(package) for package in PACKAGES}
    machine["date"] = datetime.date.today().isoformat()
    return machine


def machine_line(machine: dict[str, str]) -> str:
    """Return the machine in one line of Markdown."""
    return ", ".join(f"{key} {value}" for key, value in machine.items()) + "."


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def cells(result: Result) -> list[str]:
    """Return a result as cells under its name and :data:`COLUMNS`."""
    lower, median, upper = result.quartiles
    return [
        result.name,
        result.mode,
        result.dtype,
        str(result.batch),
        f"{result.audio:g} s",
        result.failure or duration(median),
        "" if result.failure else f"{duration(lower)} to {duration(upper)}",
        size(result.memory),
        number((result.operations or math.nan) / 1e9),
        number(result.speed / 1e9),
        percent(result.share_of_peak),
    ]


def read_around(page: Path, marks: tuple[str, str]) -> tuple[str, str]:
    """Return what a page has before its first mark and after its second.

    Raises:
        ValueError: It lacks one of them.
    """
    before, mark, rest = page.read_text(encoding="utf-8").partition(marks[0])
    _, end, after = rest.partition(marks[1])
    if not (mark and end):
        raise ValueError(f"{page} lacks the lines {marks[0]} and {marks[1]}")
    return before, after


def duration(seconds: float) -> str:
    """Return seconds with three digits, or nothing for NaN."""
    if math.isnan(seconds):
        return ""
    for unit, name in ((1.0, "s"), (1e-3, "ms")):
        if seconds >= unit:
            return f"{number(seconds / unit)} {name}"
    return f"{number(seconds / 1e-6)} µs"


def size(count: int | None) -> str:
    """Return bytes in MB or GB, or nothing for None."""
    if count is None:
        return ""
    return f"{number(count / 1e9)} GB" if count >= 1e9 else f"{number(count / 1e6)} MB"


def percent(share: float) -> str:
    """Return a share in percent, or nothing for NaN."""
    return "" if math.isnan(share) else f"{share:.0%}".replace("%", " %")


def number(value: float) -> str:
    """Return three digits without an exponent, or nothing for NaN."""
    if math.isnan(value):
        return ""
    if value == 0:
        return "0"
    decimals = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{min(decimals, 3)}f}"


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _main_memory() -> str:
    try:
        return size(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (OSError, ValueError):
        return "unknown"
