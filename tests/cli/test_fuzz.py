"""A few of the damaged files of benchmarks/fuzz.py: no traceback, no hang, nothing half-written that looks complete."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "fuzz.py"


@pytest.mark.skipif(sys.platform != "linux", reason="needs fork and limits of memory")
def test_damaged_files_are_refused_or_read() -> None:
    command = [sys.executable, SCRIPT, "--cases", "14", "--seed", "11"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    counted = [line.split() for line in done.stdout.splitlines()[-7:]]
    assert [sum(map(int, numbers)) for _, *numbers in counted] == [2] * 7
    assert sum(int(numbers[0]) for _, *numbers in counted) > 1  # not all are refused
