"""TE-TNP's windows of ERA5: trained on one region, scored there and on others.

Run as ``python benchmarks/papers/era5.py --data europe.zarr --steps 5000`` for the paper's regions, or with ``--recipe
era5_british_isles`` for a month of a small area, with the data of ``--data`` and ``--geopotential``. Areas and days are
those of the recipe. Models are scored on the training area (on the held-out days if the recipe has some), and on each
test area (on the days of training). A Gaussian process is fitted to each task (100 steps of Adam, rate 0.05, as in the
published configuration). All are scored on the same tasks.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace
from pathlib import Path

import torch
from tables import (
    COST,
    TEST_SEED,
    arguments,
    budget,
    cost,
    mean_and_error,
    publish,
    read_scores,
    run,
    table,
    write_scores,
)
from torch import nn

from geonp.nn.zoo.gp import GP
from geonp.training.data.reanalysis import Reanalysis
from geonp.training.recipe import Recipe, load

NEEDED = {
    "era5": (
        "hourly 2 m temperature and geopotential of Europe in 2019, 0.4 GB in float32. Download it with a free account "
        "of https://cds.climate.copernicus.eu: geonp fetch era5 --area 62 -4 42 28 --start 2019-01-01 --end 2019-12-31 "
        "europe.zarr, and pass --data europe.zarr"
    ),
    "era5_british_isles": (
        "hourly 2 m temperature and geopotential of the British Isles in March 2019. Download it with a free account "
        "of https://cds.climate.copernicus.eu: geonp fetch era5 --area 58 -10 50 2 --start 2019-03-01 --end 2019-03-31 "
        "isles.zarr, and pass --data isles.zarr"
    ),
}
"""What each recipe needs, and where to get it."""

SHARED = Path("../shared/data")
OURS = "TE-PT-TNP, kriging head"
SIZES = {
    "CNP": {"encoder": [32] * 6, "decoder": [32] * 5},
    "RCNP": {"dim": 32},
    "PT-TNP": {"dim": 32, "heads": 4, "n_pseudo": 128},
    "TE-PT-TNP": {"dim": 32, "heads": 4, "n_pseudo": 128},
    OURS: {},
}
"""Models and their widths, section F.4, heads of attention as in the published configuration; ours is the recipe's."""
PROTOCOL = ["training.learning_rate=5e-4", "training.decay=0", "training.clip=0.5"]
"""The paper's, for all models."""

FITTED = "GP, fitted to each task"
PUBLISHED = {
    FITTED: "0.90 / 1.22 / 1.02",
    "CNP": "0.36 / -5.70 / -1.64",
    "RCNP": "0.96 / -0.09 / 0.34",
    "PT-TNP": "0.73 / -0.40 / -0.19",
    "TE-PT-TNP": "1.35 / 1.27 / 1.44",
}
"""Log-likelihood in central (trained), western and northern Europe, TE-TNP (ICML 2024), table 3."""


@torch.no_grad()
def scores(network: nn.Module, recipe: Recipe, batches: int) -> dict[str, list[float]]:
    """Log-likelihood a target, in standardised units, of every batch of each set."""
    assert isinstance(recipe.data, Reanalysis)
    out = {}
    for name, data in sets(recipe.data).items():
        out[name] = []
        for i in range(batches):
            batch = data.batch(TEST_SEED, i, recipe.training.batch_size)
            predicted = network(batch["xc"], batch["yc"], batch["xt"], batch["context_mask"])
            out[name].append(float(predicted.log_prob(batch["yt"]).mean()))
    return out


def sets(data: Reanalysis) -> dict[str, Reanalysis]:
    """Held-out data by name: the training area on the held-out days, and the test areas on the days of training."""
    found = {"training area": replace(data, test_area=data.area).held_out()}
    areas = data.held_out().areas
    for number, area in enumerate(areas, 1):
        name = "test area" if len(areas) == 1 else f"test area {number}"
        found[name] = replace(data, test_area=area, test_period=data.period).held_out()
    return found


def described(data: Reanalysis) -> str:
    """Where and when the sets are."""
    lines = []
    for name, held_out in sets(data).items():
        north, west, south, east = held_out.test_area
        days = " to ".join(held_out.test_period) or "all days"
        lines.append(f"{name} {south:g} to {north:g} N, {west:g} to {east:g} E, {days}")
    return f"Sets: {'; '.join(lines)}."


def parsed() -> argparse.Namespace:
    """Arguments; the data are those of the shared folder where there are some."""
    parser = arguments(__doc__ or "", NEEDED, SIZES, test_batches=30)
    parser.add_argument("--data", type=Path, help="Zarr store or NetCDF file")
    parser.add_argument("--geopotential", type=Path, help="file of the geopotential, if it is another")
    given = parser.parse_args()
    if given.data is None and given.recipe == "era5_british_isles":
        given.data = SHARED / "era5_t2m_uk_2019-03_hourly.nc"
        given.geopotential = SHARED / "era5_geopotential_global_0p25.nc"
    return given


def main() -> None:
    given = parsed()
    absent = [str(file) for file in (given.data, given.geopotential) if file is not None and not file.exists()]
    if not given.only_print and (given.data is None or absent):
        # the other tables do not need it
        missing = f"no file {', '.join(absent)}" if absent else "no --data"
        print(f"# {given.recipe}: skipped, {missing}; it needs {NEEDED[given.recipe]}", file=sys.stderr)
        return
    overrides = [*PROTOCOL, "training.save_every_s=60"]
    overrides += [f"data.path={given.data}"] * (given.data is not None)
    overrides += [f"data.geopotential={given.geopotential}"] * (given.geopotential is not None)
    overrides += [f"training.validate_every={max(1, given.steps // 10)}", "training.validation_batches=8"]
    if given.batch_size:
        # of the process that is fitted too: all are scored on the same tasks
        overrides.append(f"training.batch_size={given.batch_size}")
    recipe = load(given.recipe, overrides)
    assert isinstance(recipe.data, Reanalysis)
    # wherever they lie
    given.source = " ".join(file.name for file in (given.data, given.geopotential) if file is not None)
    asked = ("test_batches", "source")
    found = run(
        given,
        lambda network, recipe: scores(network, recipe, given.test_batches),
        overrides,
        SIZES,
        "scores.json",
        asked,
    )
    rows = {label: (row, cost(row)) for label, row in found.items()}
    kept, wanted = (
        given.out / f"{given.recipe}-gp.json",
        {key: str(getattr(given, key)) for key in (*asked, "batch_size")},
    )
    if not (fitted := read_scores(kept, wanted)) and not given.only_print:
        start = time.process_time()
        fitted = dict(scores(GP(steps=100, learning_rate=0.05), recipe, given.test_batches))
        fitted["minutes"] = (time.process_time() - start) / 60
        write_scores(kept, fitted, wanted)
    if fitted:
        rows[FITTED] = fitted, ["-", f"{fitted['minutes']:.1f} to fit and score"]
    if rows:
        first = OURS if OURS in rows else next(iter(rows))
        best, names = rows[first][0], list(sets(recipe.data))
        cells = [
            [
                label,
                *(mean_and_error(row[s]) for s in names),
                *(mean_and_error([a - b for a, b in zip(best[s], row[s], strict=True)]) for s in names),
                PUBLISHED.get(label, "-"),
                *paid,
            ]
            for label, (row, paid) in rows.items()
        ]
        ahead = [f"ahead, {s}" for s in names]
        head = table(["model", *names, *ahead, "paper, table 3: C / W / N Europe", *COST], cells)
        text = (
            f"{described(recipe.data)} `{OURS}` is TE-PT-TNP with the recipe's head in place of the paper's, which is "
            f"in the row `TE-PT-TNP`. Log-likelihood a target, and by how much {first} is ahead on the same batches:"
        )
        publish(given, found, given.recipe, budget(given, "windows of each set", (500_000, 8)), text, head)


if __name__ == "__main__":
    main()
