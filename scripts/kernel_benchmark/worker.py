"""Parts of the benchmark that may take too long: a process of their own with a time limit.

A worker prints each finished row as one line of JSON after a mark; what it printed before its time
was over counts. Everything else that it prints is kept to explain a failure.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from typing import Any

from kernel_benchmark.report import Row

MARK = "@row "


def emit(rows: Iterable[Row]) -> None:
    """Print rows as they come."""
    for row in rows:
        print(MARK + json.dumps(row), flush=True)


def collect(script: str, arguments: list[str], limit_s: float) -> tuple[list[Row], str | None]:
    """Run this benchmark's script as a worker.

    Args:
        script: path of the script.
        arguments: its arguments.
        limit_s: seconds after which it is stopped.

    Returns:
        The rows that it finished, and why there are no more: None if it came to its end.
    """
    command = [sys.executable, script, *arguments]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,  # its helpers must end with it, or they disturb later timings
    )
    reason = None
    try:
        output, _ = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        reason = f"not finished in {limit_s:.0f} s"
    rows, rest = parse(output)
    if reason is None and process.returncode:
        reason = f"failed: {rest[-1][:160] if rest else f'exit code {process.returncode}'}"
    return rows, reason


def parse(output: str) -> tuple[list[Row], list[str]]:
    """Rows in what a worker printed, and the other lines; a row that was cut off is none."""
    rows: list[dict[str, Any]] = []
    rest = []
    for line in output.splitlines():
        if not line.startswith(MARK):
            if line.strip():
                rest.append(line.strip())
            continue
        try:
            rows.append(json.loads(line.removeprefix(MARK)))
        except json.JSONDecodeError:
            rest.append("a row was cut off")
    return rows, rest
