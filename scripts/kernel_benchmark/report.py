"""Tables for the reader, and one JSON file with all that a number needs beside it."""

import contextlib
import json
import os
import platform
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

Row = dict[str, Any]

SHARES = ("floor", "goal_floor", "ceiling", "spread")  # columns of parts of one


def render(rows: Sequence[Row]) -> str:
    """A markdown table; its columns are the keys of all rows in the order of their first use."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    cells = [[cell(column, row.get(column)) for column in columns] for row in rows]
    lines = [columns, ["---"] * len(columns), *cells]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def cell(column: str, value: Any) -> str:
    """A value as the table shows it: shares in percent, other numbers with three digits."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "NO"
    if isinstance(value, float):
        return f"{100 * value:.0f}%" if column in SHARES else three_digits(value)
    if isinstance(value, int):
        return f"{value:,}"
    return str(value).replace("|", "/")


def three_digits(value: float) -> str:
    """A number with three significant digits and no exponent: 12,300; 1.23; 0.0123."""
    if value == 0 or not 0 < abs(value) < 1000:  # NaN too
        return f"{value:,.0f}"
    digits = 2
    while abs(value) < 10 ** (2 - digits) and digits < 9:
        digits += 1
    while abs(value) >= 10 ** (3 - digits) and digits > 0:
        digits -= 1
    return f"{value:.{digits}f}"


def write_json(path: Path, content: Any) -> None:
    """Replace a file whole: readers see the old content or the new, never a part."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w") as file:
            json.dump(content, file, indent=1)
            file.write("\n")
        Path(temporary).replace(path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            Path(temporary).unlink()
        raise


def circumstances(commit: str | None) -> dict[str, Any]:
    """Machine, versions, commit and command of this run.

    Args:
        commit: what to call the code if it is no checkout; None asks git.
    """
    import torch

    return {
        **_gpu(),
        "host": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "triton": installed("triton"),
        "fla-core": installed("fla-core"),
        "commit": commit or checkout(),
        "command": shlex.join(["python", *sys.argv]),
    }


def _gpu() -> dict[str, Any]:
    """What is known about the first GPU, if there is one."""
    import torch

    if not torch.cuda.is_available():
        return {}
    device = torch.cuda.get_device_properties(0)
    return {
        "gpu": device.name,
        "gpu_gib": round(device.total_memory / 2**30, 1),
        "capability": f"{device.major}.{device.minor}",
        "multiprocessors": device.multi_processor_count,
    }


def installed(name: str) -> str:
    """Version of a package."""
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def checkout() -> str:
    """The commit of this checkout, marked if files differ from it."""
    git = ["git", "-C", str(Path(__file__).parent)]
    try:
        commit = subprocess.run(
            [*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True
        ).stdout.strip()
        changed = subprocess.run(
            [*git, "status", "--porcelain"], capture_output=True, text=True, check=True
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return f"{commit}{' with changes' if changed else ''}"
