"""TE-TNP's windows of ERA5 on the British Isles, March 2019: later days, and the other half of the area.

Run as ``python benchmarks/papers/era5.py --steps 5000``. Models train on 1 to 17 March west of 4 W and are scored on 18
to 31 March there, and on 1 to 17 March east of it; a Gaussian process is fitted to each task. The data are one month of
hourly 2 m temperature and the geopotential (``--data``, ``--geopotential``).
"""

from __future__ import annotations

import statistics
from dataclasses import replace
from pathlib import Path

import torch
from tables import TEST_SEED, arguments, plot, run, table
from torch import nn

from geonp.nn.gp import GP
from geonp.training.reanalysis import Reanalysis
from geonp.training.recipe import Recipe, load

SHARED = Path("../shared/data")
WEST, EAST = (58.0, -10.0, 50.0, -4.0), (58.0, -4.0, 50.0, 2.0)
EARLY, LATE = ("2019-03-01", "2019-03-17"), ("2019-03-18", "2019-03-31")
SETS = {"later": (WEST, LATE), "elsewhere": (EAST, EARLY)}
SIZES = {
    "CNP": {},
    "RCNP": {"dim": 32},
    "PT-TNP": {"dim": 32, "heads": 4, "n_pseudo": 128},
    "TE-PT-TNP": {"dim": 32, "heads": 4, "n_pseudo": 128},
}
"""Models and their widths, section F.4."""


@torch.no_grad()
def scores(network: nn.Module, recipe: Recipe, batches: int) -> dict[str, float]:
    """Log-likelihood a target in standardised units on both held-out sets, with standard errors over batches."""
    assert isinstance(recipe.data, Reanalysis)
    out = {}
    for name, (area, period) in SETS.items():
        data = replace(recipe.data, test_area=area, test_period=period).held_out()
        found = []
        for i in range(batches):
            batch = data.batch(TEST_SEED, i, recipe.training.batch_size)
            predicted = network(batch["xc"], batch["yc"], batch["xt"], batch["context_mask"])
            found.append(float(predicted.log_prob(batch["yt"]).mean()))
        out[name] = statistics.fmean(found)
        out[f"{name}_error"] = statistics.stdev(found) / len(found) ** 0.5
    return out


def main() -> None:
    parser = arguments(__doc__ or "", ["era5"], SIZES)
    parser.add_argument("--data", type=Path, default=SHARED / "era5_t2m_uk_2019-03_hourly.nc")
    parser.add_argument("--geopotential", type=Path, default=SHARED / "era5_geopotential_global_0p25.nc")
    parser.add_argument("--gp-batches", type=int, default=5, help="batches that a process is fitted to each task of")
    given = parser.parse_args()
    overrides = [f"data.path={given.data}", f"data.geopotential={given.geopotential}", "training.save_every_s=60"]
    overrides += [f"data.area={list(WEST)}", f'data.period=["{EARLY[0]}", "{EARLY[1]}"]']
    overrides += [f"data.test_area={list(WEST)}", f'data.test_period=["{LATE[0]}", "{LATE[1]}"]']
    overrides += [f"training.validate_every={max(1, given.steps // 10)}", "training.validation_batches=8"]

    def score(network: nn.Module, recipe: Recipe) -> dict[str, float]:
        return scores(network, recipe, given.test_batches)

    found = run(given, score, overrides, SIZES)
    rows = dict(found)
    if given.gp_batches > 1 and not given.only_print:
        rows["GP, fitted to each task"] = scores(
            GP(steps=100, learning_rate=0.05), load("era5", overrides), given.gp_batches
        )
    if rows:
        cells = [
            [label, *(f"{r[s]:.3f} ± {r[s + '_error']:.3f}" for s in SETS), f"{r.get('minutes', 0):.1f}"]
            for label, r in rows.items()
        ]
        print(table(["model", *SETS, "CPU minutes"], cells))
        plot(found, given.out / f"era5-{given.steps}.png", "era5")


if __name__ == "__main__":
    main()
