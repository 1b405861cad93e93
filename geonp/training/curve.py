"""The learning curve of a run: a CSV file, and its plot.

Not lightning-fabric's CSVLogger, which deletes the file of an earlier run where a resumed run has to append to it.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

from geonp.io.location import replacing


def append(file: Path, columns: Sequence[str], row: Mapping[str, float]) -> None:
    """Append a row; a new file begins with a header."""
    new = not file.exists()
    with file.open("a", newline="", encoding="utf-8") as handle:
        writer = csv.DictWriter(handle, columns, restval="")
        if new:
            writer.writeheader()
        writer.writerow(row)


def truncate(file: Path, step: int) -> None:
    """Remove rows after `step`, which a resumed run writes again, and incomplete rows; at step 0 remove the file."""
    lines = file.read_bytes().splitlines(keepends=True) if file.exists() else []
    if step == 0 or not lines or not lines[0].endswith(b"\n"):
        file.unlink(missing_ok=True)
        return
    steps = [line.partition(b",")[0] for line in lines]
    kept = [
        line
        for line, row_step in zip(lines[1:], steps[1:], strict=True)
        if line.endswith(b"\n") and row_step.isdigit() and int(row_step) <= step
    ]
    if len(kept) < len(lines) - 1:
        with replacing(file) as temporary:
            temporary.write_bytes(b"".join([lines[0], *kept]))


def plot(file: Path) -> Path:
    """Plot training loss and held-out NLL against steps to a PNG file beside `file`."""
    from matplotlib.figure import Figure

    with file.open(newline="", encoding="utf-8") as handle:
        rows = list(csv.DictReader(handle))
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for column, label in (("loss", "training, smoothed"), ("nll", "held-out tasks")):
        points = [(int(row["step"]), float(row[column])) for row in rows if row.get(column)]
        if points:
            axes.plot(*zip(*points, strict=True), marker="." if column == "nll" else "", label=label)
    axes.set(xlabel="step", ylabel="negative log density per target")
    axes.grid(alpha=0.3)
    axes.legend()
    picture = file.with_suffix(".png")
    with replacing(picture) as temporary:
        figure.savefig(temporary, format="png")
    return picture
