"""TNP-KR's SIR epidemics: classes of cells at one budget, and zero-shot on larger lattices.

Run as ``python benchmarks/papers/sir.py --steps 5000 --sides 64 128 256 --filled 1024``. Larger lattices have the same
distance of cells; all their cells are targets, as in the paper, or so many of the missing ones as
``--larger-targets`` says, which has the same expectation. In one pass a lattice of 1024 cells takes hours on a
CPU: ``--filled`` gives it to ``geonp fill`` with the checkpoint, which reads it tile by tile, and scores the missing
cells. Every batch is of another epidemic. The paper's targets include the context, whose classes are known, and more of
it at 64 x 64 than on larger lattices: the missing cells alone compare.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xarray as xr
from tables import (
    SECOND_HAND,
    TEST_SEED,
    add_seeds,
    arguments,
    budget,
    publish,
    read_scores,
    report,
    run,
    several,
    table,
    write_scores,
)
from torch import nn

from geonp.training.data.epidemics import Epidemic
from geonp.training.recipe import Recipe
from geonp.training.sources import draw

PUBLISHED = {"TNP-KR-SA, invariant": 0.190, "TNP-D": 0.191, "ConvCNP": 0.196}
"""NLL at 64 x 64 and 100,000 steps, arXiv 2411.12502 version 2, second-hand and not checked."""

OURS = "TNP-KR-SA, means"
"""The model of the recipe; the paper's has no kernels of several scales, and no means by them."""

INVARIANT = "TNP-KR-SA, invariant"
"""The paper's model."""

PUBLISHED_1024 = {INVARIANT: 0.307, "TNP-KR-DKA": 1.144, "TNP-KR-PERF": 1.457, "NP": 27.2, "CNP": 27.2}
"""NLL at 1024 x 1024, there; the other models did not fit into its GPU."""

MODELS = ["CNP", "NP", "CANP", "ANP", "TNP-D", "ConvCNP", "TNP-KR-DKA", "TNP-KR-PERF", INVARIANT, OURS]
"""Those of the paper, and ours. The bootstrap's residuals are not defined for classes."""

LARGER = {
    128: Epidemic(side=128, extent=4.0, frames=50, n_context=(512, 2047), n_targets=0),
    256: Epidemic(side=256, extent=8.0, frames=75, n_context=(2048, 8191), n_targets=0),
    1024: Epidemic(side=1024, extent=32.0, frames=200, n_context=(31744, 131071), n_targets=0),
}
"""The paper's larger lattices."""

WINDOW, BORDER = 256, 64
"""Cells of the side of a window that is filled, and of its border that is not scored."""

FILLED_CONTEXT = 100_000
"""Observed cells of a frame of 1024 x 1024 that is filled; in proportion on smaller ones."""


@torch.no_grad()
def class_nll(network: nn.Module, recipe: Recipe, batches: int, sample: int = 0) -> dict[str, float]:
    """Mean NLL of all targets and of those that are no context, with standard errors over epidemics.

    With `sample`, of that many of the latter (they are in random order) instead of all: the expectation is the same.
    """
    assert isinstance(recipe.data, Epidemic)
    size = recipe.training.batch_size
    deals = max(1, recipe.data.frames // size)
    every, missing = [], []
    for i in range(batches):
        batch = draw(recipe, TEST_SEED, i * deals)
        known, cells = batch["context_mask"].sum(1, keepdim=True), batch["yt"].shape[1]
        xt, yt = (batch[key][:, : int(known.max()) + sample if sample else cells] for key in ("xt", "yt"))
        loss = -network(batch["xc"], batch["yc"], xt, batch["context_mask"]).log_prob(yt)
        hidden = torch.arange(loss.shape[1]) >= known
        share = float(known.float().mean()) / cells
        every.append(float(share * loss[~hidden].mean() + (1 - share) * loss[hidden].mean()))
        missing.append(float(loss[hidden].mean()))
    out = {}
    for name, found in (("nll", every), ("missing", missing)):
        out[name], out["error" if name == "nll" else f"{name}_error"] = (
            statistics.fmean(found),
            statistics.stdev(found) / len(found) ** 0.5,
        )
    return out


def scores(
    network: nn.Module, recipe: Recipe, batches: int, sides: list[int], larger: int, sample: int
) -> dict[str, float]:
    """Scores at 64 x 64 on `batches` batches, and on `larger` frames of every other side."""
    out = class_nll(network, recipe, batches)
    single = recipe.training.model_copy(update={"batch_size": 1})
    for side in sides:
        if side in LARGER:
            start = time.perf_counter()
            other = recipe.model_copy(update={"data": replace(LARGER[side]), "training": single})
            found = class_nll(network, other, larger, sample)
            out |= {f"{side}_{name}": value for name, value in found.items()}
            out[f"{side}_s"] = (time.perf_counter() - start) / larger
    return out


def filled(file: Path, side: int, frames: int) -> dict[str, float]:
    """NLL of windows of frames of as many epidemics, filled by ``geonp fill``; seconds and peak memory of a fill.

    Of a lattice of more than 256 cells a random window of 256 x 256 cells is filled, and its cells that are 64 or more
    from the border are scored: a fill reads no farther. Observed cells keep their class, so that their loss is zero;
    the score of all cells has them in it, as the paper's has, that of the missing ones has not. The scores of a frame
    are kept beside the checkpoint, and not computed again.
    """
    folder, found = file.with_name(f"filled{side}"), []
    folder.mkdir(exist_ok=True)
    for i in range(frames):
        kept = folder / f"{i}.json"
        if not kept.exists():
            kept.write_text(json.dumps(_filled_window(file, side, i)))
        found.append(json.loads(kept.read_text()))
    out = {"context": FILLED_CONTEXT * side**2 // 1024**2, "frames": frames}
    for key in ("nll", "all", "seconds", "gb"):
        values = [window[key] for window in found]
        out[key] = statistics.fmean(values)
        if key in ("nll", "all") and frames > 1:
            out[f"{key}_error"] = statistics.stdev(values) / frames**0.5
    return out


def _filled_window(file: Path, side: int, index: int) -> dict[str, float]:
    epidemic = LARGER[side]
    n_context = FILLED_CONTEXT * side**2 // 1024**2
    batch = replace(epidemic, n_context=(n_context, n_context)).batch(TEST_SEED, index * epidemic.frames, 1)
    cells = ((batch["xt"][0] / epidemic.extent + 1) / 2 * (side - 1)).round().long().numpy()
    truth = np.zeros((side, side), np.uint8)
    truth[tuple(cells.T)] = batch["yt"][0]
    missing = np.ones((side, side), bool)
    missing[tuple(cells[:n_context].T)] = False
    inside = np.s_[:, :]
    if side > WINDOW:
        top, left = np.random.default_rng([TEST_SEED, index]).integers(side - WINDOW, size=2, endpoint=True)
        truth, missing = (a[top : top + WINDOW, left : left + WINDOW] for a in (truth, missing))
        inside = np.s_[BORDER:-BORDER, BORDER:-BORDER]
    attrs = {"flag_values": np.arange(3, dtype=np.uint8), "flag_meanings": "infected recovered susceptible"}
    attrs["_FillValue"] = np.uint8(255)
    frame = xr.DataArray(np.where(missing, 255, truth).astype(np.uint8), dims=("y", "x"), name="state", attrs=attrs)
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "in.nc"), Path(folder, "out.nc")
        frame.to_netcdf(source)
        start = "from geonp.cli.app import main; main()"
        command = [sys.executable, "-c", start, "fill", source, target, "--model", file, "--json"]
        told = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
        with xr.open_dataset(target) as ds:
            probability = ds.state_probability.transpose("y", "x", "category").values
    chance = np.take_along_axis(probability, truth[..., None].astype(int), -1)[..., 0]
    loss, hidden = -np.log(np.maximum(chance, 1e-12))[inside], missing[inside]
    return {
        "nll": float(loss[hidden].mean()),
        "all": float(np.where(hidden, loss, 0.0).mean()),
        "seconds": told["seconds"],
        "gb": told["peak_memory_bytes"] / 2**30,
    }


def main() -> None:
    parser = add_seeds(arguments(__doc__ or "", ["sir"], MODELS))
    parser.add_argument("--sides", type=int, nargs="*", default=[64, 128, 256], choices=[64, *LARGER])
    parser.add_argument("--larger-frames", type=several, default=10)
    parser.add_argument("--larger-targets", type=int, default=0, help="missing cells of each, at random; 0 for all")
    parser.add_argument("--filled", type=int, nargs="*", default=[], choices=[*LARGER])
    parser.add_argument("--filled-frames", type=int, default=30, help="frames of as many epidemics for --filled")
    given = parser.parse_args()
    if given.filled and OURS not in given.models:
        parser.error(f"--filled is of {OURS!r} alone: add it to --models")
    asked = ("test_batches", "sides", "larger_frames", "larger_targets")
    every = max(1, given.steps // 10)
    found = run(
        given,
        lambda network, recipe: scores(network, recipe, *(getattr(given, name) for name in asked)),
        [f"training.validate_every={every}", "training.validation_batches=8", "training.save_every_s=60"],
        {key: {"likelihood": "categorical"} for key in given.models},
        asked=asked,
    )
    if found or given.unfinished:
        publish(given, found, "sir", *page(given, found))


def page(given: argparse.Namespace, found: dict[str, dict[str, Any]]) -> list[str]:
    """Texts and tables; lattices that are still to be filled are."""
    of = f"{given.larger_targets:,} missing cells each, drawn at random" if given.larger_targets else "all cells"
    larger = (
        f"Zero-shot: NLL of {given.larger_frames} frames of as many epidemics (predicted: the context and {of}), "
        "seconds a frame, and what the paper has of all cells (second-hand, not checked)."
    )
    published = {64: PUBLISHED, 1024: PUBLISHED_1024}
    rows = [
        [
            label,
            side,
            *(f"{r[p + k]:.3f} ± {r[p + e]:.3f}" for k, e in KEYS),
            f"{r[p + 's']:.1f}" if p else "-",
            published.get(side, {}).get(label, "-"),
        ]
        for label, r in found.items()
        for side, p in ((s, f"{s}_" if s in LARGER else "") for s in given.sides)
    ]
    trained = (
        f"{budget(given, paper=(100_000, 8))} All are trained as the recipe is (AdamW, a warm-up, a rate that falls to "
        f"zero), which is not the paper's way (Yogi). `{OURS}` is the recipe's model, `{INVARIANT}` the paper's."
    )
    parts = [trained, report(found, {SECOND_HAND: PUBLISHED})]
    parts += [larger] * any(side in LARGER for side in given.sides)
    parts.append(table(["model", "side", "all cells", "missing cells", "seconds", "paper"], rows))
    for side in given.filled if OURS in found else ():
        folder = Path(found[OURS]["folder"])
        kept, wanted = folder / f"filled{side}.json", {"context": str(FILLED_CONTEXT)}
        if given.filled_frames > 1:
            wanted["frames"] = str(given.filled_frames)
        if not read_scores(kept, wanted):
            if given.only_print or not (folder / "sir.safetensors").exists():
                print(f"# {OURS}: no scores of filling {side} x {side} in {folder}", file=sys.stderr)
                continue
            write_scores(kept, filled(folder / "sir.safetensors", side, given.filled_frames), wanted)
        parts.append(_filled_text(side, read_scores(kept, wanted)))
    return parts


def _filled_text(side: int, row: dict[str, float]) -> str:
    # a score without a number of frames is of one whole frame, and of all its cells as observed ones are kept
    every = row.get("all", row["nll"] * (1 - row["context"] / side**2))
    frames = f"{row['frames']:.0f} frames" if "frames" in row else "one frame, so without an error"
    part = f"; of each a window of {WINDOW} x {WINDOW} cells, the border of {BORDER} not scored"
    part *= side > WINDOW and "frames" in row
    missing, full = (
        f"{value:.4f}" + (f" ± {row[f'{key}_error']:.4f}" if f"{key}_error" in row else "")
        for key, value in (("nll", row["nll"]), ("all", every))
    )
    return (
        f"{side} x {side} by `geonp fill` with {OURS} from {row['context']:,.0f} cells, {frames}{part}: "
        f"NLL {missing} of the missing cells, {full} of all cells (the observed ones are kept, with a loss of zero); "
        f"{row['seconds']:.0f} s and {row['gb']:.2g} GiB each."
    )


KEYS = (("nll", "error"), ("missing", "missing_error"))

if __name__ == "__main__":
    main()
