"""TE-TNP's windows of ERA5 on the British Isles, March 2019: later days, and the other half of the area.

Run as ``python benchmarks/papers/era5.py --steps 5000``. Models train on 1 to 17 March west of 4 W and are scored on 18
to 31 March there, and on 1 to 17 March east of it; a Gaussian process is fitted to each task (100 steps of Adam, rate
0.05, as in the published configuration). All are scored on the same tasks. The data are one month of hourly 2 m
temperature and the geopotential (``--data``, ``--geopotential``), on the grid of ERA5: windows of 15 cells have 3.75
degrees, the paper's 7.5.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import replace
from pathlib import Path

import torch
from tables import COST, TEST_SEED, arguments, budget, cost, publish, read_scores, run, table, write_scores
from torch import nn

from geonp.nn.zoo.gp import GP
from geonp.training.data.reanalysis import Reanalysis
from geonp.training.recipe import Recipe, load

SHARED = Path("../shared/data")
WEST, EAST = (58.0, -10.0, 50.0, -4.0), (58.0, -3.75, 50.0, 2.0)
EARLY, LATE = ("2019-03-01", "2019-03-17"), ("2019-03-18", "2019-03-31")
SETS = {"later": (WEST, LATE), "elsewhere": (EAST, EARLY)}
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
    """Log-likelihood a target, in standardised units, of every batch of both held-out sets."""
    assert isinstance(recipe.data, Reanalysis)
    out = {}
    for name, (area, period) in SETS.items():
        data = replace(recipe.data, test_area=area, test_period=period).held_out()
        out[name] = []
        for i in range(batches):
            batch = data.batch(TEST_SEED, i, recipe.training.batch_size)
            predicted = network(batch["xc"], batch["yc"], batch["xt"], batch["context_mask"])
            out[name].append(float(predicted.log_prob(batch["yt"]).mean()))
    return out


def mean_and_error(found: list[float]) -> str:
    """Mean and its standard error."""
    return f"{statistics.fmean(found):.3f} ± {statistics.stdev(found) / len(found) ** 0.5:.3f}"


def main() -> None:
    parser = arguments(__doc__ or "", ["era5"], SIZES, test_batches=30)
    parser.add_argument("--data", type=Path, default=SHARED / "era5_t2m_uk_2019-03_hourly.nc")
    parser.add_argument("--geopotential", type=Path, default=SHARED / "era5_geopotential_global_0p25.nc")
    given = parser.parse_args()
    overrides = [f"data.path={given.data}", f"data.geopotential={given.geopotential}", "training.save_every_s=60"]
    overrides += [*PROTOCOL, f"data.area={list(WEST)}", f'data.period=["{EARLY[0]}", "{EARLY[1]}"]']
    overrides += [f"data.test_area={list(WEST)}", f'data.test_period=["{LATE[0]}", "{LATE[1]}"]']
    overrides += [f"training.validate_every={max(1, given.steps // 10)}", "training.validation_batches=8"]
    if given.batch_size:
        # of the process that is fitted too: all are scored on the same tasks
        overrides.append(f"training.batch_size={given.batch_size}")
    # wherever they lie
    given.source = f"{given.data.name} {given.geopotential.name}"
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
    kept, wanted = given.out / "era5-gp.json", {key: str(getattr(given, key)) for key in (*asked, "batch_size")}
    if not (fitted := read_scores(kept, wanted)) and not given.only_print:
        start = time.process_time()
        fitted = dict(scores(GP(steps=100, learning_rate=0.05), load("era5", overrides), given.test_batches))
        fitted["minutes"] = (time.process_time() - start) / 60
        write_scores(kept, fitted, wanted)
    if fitted:
        rows[FITTED] = fitted, ["-", f"{fitted['minutes']:.1f} to fit and score"]
    if rows:
        first = OURS if OURS in rows else next(iter(rows))
        best = rows[first][0]
        cells = [
            [
                label,
                *(mean_and_error(row[s]) for s in SETS),
                *(mean_and_error([a - b for a, b in zip(best[s], row[s], strict=True)]) for s in SETS),
                PUBLISHED.get(label, "-"),
                *paid,
            ]
            for label, (row, paid) in rows.items()
        ]
        ahead = [f"ahead, {s}" for s in SETS]
        head = table(["model", *SETS, *ahead, "paper: C / W / N Europe", *COST], cells)
        text = (
            f"`{OURS}` is TE-PT-TNP with the recipe's head in place of the paper's, which is in the row `TE-PT-TNP`. "
            f"Log-likelihood a target, and by how much {first} is ahead on the same batches:"
        )
        publish(given, found, "era5", budget(given, "windows of each set"), text, head)


if __name__ == "__main__":
    main()
