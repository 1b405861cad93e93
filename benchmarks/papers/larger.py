"""The tables at a larger equal budget, one run at a time, on an idle core: start it again, and it continues.

Run as ``python benchmarks/papers/larger.py --hours 8``. The three one-dimensional processes are trained for 10,000
steps of 16 tasks with seven models each, then SIR at the recipe's budget with four. Cheap models come first. After
``--hours`` the current run is interrupted; its state is saved. ``--only-print`` writes the pages, which name the runs
that are not finished.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent
PROCESSES = ("gp1d_rbf", "gp1d_matern32", "gp1d_periodic")
MODELS = ("CNP", "CANP", "TNP-D", "TNP-KR-DKA", "TNP-KR-SA", "TNP-KR-PERF", "ConvCNP")
OURS = "TNP-KR-SA, means"
EPIDEMICS = (OURS, "TNP-KR-SA, invariant", "TNP-D", "ConvCNP")
FILLED = ("--filled", "1024")
"""Windows of 30 frames of 1024 x 1024 cells, with the recipe's model."""
STEPS, BATCH = 10_000, 16


def runs() -> Iterator[list[str]]:
    """Commands that train and score one model each, and skip it if it is done."""
    for model in MODELS:
        for recipe in PROCESSES:
            yield [*process(recipe), "--models", model]
    for model in EPIDEMICS:
        yield [*epidemics(), "--models", model, *(FILLED if model == OURS else ())]


def process(recipe: str) -> list[str]:
    """Script and arguments of the table of a process."""
    return ["gp.py", "--recipe", recipe, "--steps", str(STEPS), "--batch-size", str(BATCH)]


def epidemics() -> list[str]:
    """Script and arguments of the table of SIR."""
    return ["sir.py", "--steps", "1600", "--test-batches", "200", "--sides", "64", "128", "--larger-frames", "30"]


def pages() -> Iterator[list[str]]:
    """Commands that write the pages of what is finished."""
    for recipe in PROCESSES:
        yield [*process(recipe), "--models", *MODELS, "--page", f"{recipe}-{STEPS}x{BATCH}", "--only-print"]
    yield [*epidemics(), "--models", *EPIDEMICS, *FILLED, "--only-print"]


def main() -> int:
    """Run what is not finished until the time is over, then write the pages."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=float, default=24.0, help="when to stop")
    parser.add_argument("--out", type=Path, default=Path("runs/papers"), help="folder of the runs")
    parser.add_argument("--pages", type=Path, help="folder of the pages; default: larger, in that of the runs")
    parser.add_argument("--only-print", action="store_true", help="write the pages of what is finished, train none")
    given = parser.parse_args()
    folder = given.pages or given.out / "larger"
    end = time.monotonic() + 3600 * given.hours
    for arguments in () if given.only_print else runs():
        # the page of one model is of no interest
        if run(arguments, given.out, given.out / "single", end) is None:
            print("# out of time; start again to continue", flush=True)
            break
    codes = [run(arguments, given.out, folder, None) for arguments in pages()]
    return max(code or 0 for code in codes)


def run(arguments: list[str], out: Path, page: Path, end: float | None) -> int | None:
    """Exit status of a script; None if it was interrupted at `end` because its time was over."""
    script, *rest = arguments
    command = [sys.executable, str(HERE / script), *rest, "--out", str(out), "--pages", str(page)]
    print(f"# {' '.join(command[1:])}", flush=True)
    with subprocess.Popen(command) as child:
        try:
            return child.wait(None if end is None else max(end - time.monotonic(), 0.0))
        except subprocess.TimeoutExpired:
            # training saves its state after the current step
            child.send_signal(signal.SIGTERM)
            child.wait()
            return None


if __name__ == "__main__":
    sys.exit(main())
