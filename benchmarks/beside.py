"""What covariates and other slices are worth: CRPS relative to the same model without them.

Run as ``python benchmarks/beside.py [--run FOLDER] [--seeds 3] [--only covariates harmless stacks]``. With ``--run``
the weights are the averaged ones of a training run. Ratios are geometric means over the seeds of gaps.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import accuracy
import numpy as np
import numpy.typing as npt
import torch
import xarray as xr
from accuracy import Field, file_field, geometric
from across import stack
from adapt import STACKS

import geonp
from geonp.evaluation.holdout import HoldOut, hide_simulated
from geonp.evaluation.metrics import Scores, score
from geonp.inference import checkpoint
from geonp.inference.stack import beside
from geonp.nn.models import build

Array = npt.NDArray[np.float64]
GAPS = (("random", 0.9), ("clouds", 0.4))


def checkpoint_of(run: Path, folder: Path) -> str:
    """A checkpoint with the averaged weights of a run."""
    _, card = checkpoint.load_model("tnpkr-sa")
    network = build(card.architecture, card.config)
    network.load_state_dict(torch.load(run / "state.pt", weights_only=True)["averaged"])
    file = folder / f"{run.name}.safetensors"
    about = card.model_dump(include={"architecture", "config", "training", "scores"})
    checkpoint.save(
        network, file, name=run.name, version="0", description=str(run), neighbourhood=card.neighbourhood, **about
    )
    return str(file)


def fill(model: str, values: Field, covariates: list[Field]) -> Array:
    """Mean, standard deviation and tail of a raster, ``(3, rows, cols)``."""
    known = [xr.DataArray(field, dims=("y", "x"), name=f"c{n}") for n, field in enumerate(covariates)]
    filled = geonp.infill(xr.DataArray(values, dims=("y", "x"), name="f"), model=model, tails=True, covariates=known)
    return np.stack([filled[f"f{ending}"].values for ending in ("", "_standard_error", "_tail")])


def scored(test: HoldOut, filled: Array) -> Scores:
    """Scores of the hidden cells."""
    return score(test.truth, filled[0], filled[1], test.hidden & np.isfinite(filled[0]), filled[2])


def gridmet(folder: Path) -> tuple[Field, Field]:
    """Daily maximum temperature of the western US, and the elevation."""
    accuracy.SIDE = 250
    names = ("tmax_gridmet_conus_2019-01-21.nc", "air_temperature"), ("elevation_on_gridmet_conus.nc", "elevation")
    temperature, elevation = (file_field(*name, 150, 80)(folder)[:200] for name in names)
    return temperature, elevation


def era5(folder: Path, hour: int) -> tuple[Field, Field]:
    """Temperature of the British Isles at one hour, and the orography."""
    with xr.open_dataset(folder / "era5_t2m_uk_2019-03_hourly.nc") as ds:
        name = next(str(v) for v in ds.data_vars if ds[v].ndim == 3)
        t2m = ds[name].isel(time=hour).load()
    with xr.open_dataset(folder / "era5_geopotential_global_0p25.nc") as ds:
        surface = next(ds[v] for v in ds.data_vars if ds[v].ndim >= 2).squeeze().load()
    lon, lat = (next(c for c in t2m.dims if str(c).startswith(part)) for part in ("lon", "lat"))
    there = {lat: t2m[lat], lon: t2m[lon] % 360}
    return np.asarray(t2m.values, np.float32), np.asarray(surface.sel(there, method="nearest").values, np.float32)


def irrelevant(elevation: Field, rng: np.random.Generator) -> dict[str, Field]:
    """Covariates that have nothing to do with a field."""
    rows, cols = elevation.shape
    return {
        "shifted": np.roll(elevation, cols // 2, 1),
        "noise": rng.standard_normal(elevation.shape).astype(np.float32),
        "gradient": np.add.outer(np.arange(rows), np.arange(cols)).astype(np.float32),
        "flipped": elevation[::-1].copy(),
    }


def rows_of(
    model: str, name: str, truths: list[Field], sets: dict[str, list[Field]], seeds: int
) -> Iterator[tuple[str, str, str, list[float], list[float], float]]:
    """Ratios and coverages of each set of covariates under each kind of gaps, and the ratio of times."""
    for kind, fraction in GAPS:
        ratios: dict[str, list[float]] = {label: [] for label in sets}
        inside: dict[str, list[float]] = {label: [] for label in sets}
        spent: dict[str, list[float]] = {label: [] for label in sets}
        for seed in range(seeds):
            test = hide_simulated(truths[seed % len(truths)], kind, fraction, np.random.default_rng(seed))
            start = time.process_time()
            alone, cost = scored(test, fill(model, test.values, [])), time.process_time() - start
            for label, covariates in sets.items():
                start = time.process_time()
                found = scored(test, fill(model, test.values, covariates))
                spent[label].append((time.process_time() - start) / cost)
                ratios[label].append(found.crps / alone.crps)
                inside[label].append(found.coverage(0.95))
        for label in sets:
            yield name, f"{kind} {fraction:.0%}", label, ratios[label], inside[label], geometric(spent[label])


def of_covariates(model: str, folder: Path, seeds: int, *, harmless: bool) -> None:
    """Print a row for each field, kind of gaps and set of covariates."""
    temperature, elevation = gridmet(folder)
    others = irrelevant(elevation, np.random.default_rng(99))
    fields: list[tuple[str, list[Field], dict[str, list[Field]]]] = []
    if harmless:
        fields.append(("gridMET", [temperature], {label: [other] for label, other in others.items()}))
        for name in ("SST OSTIA", "Sentinel-2 band"):
            accuracy.SIDE = 128
            truth = accuracy.FIELDS[name](folder)
            there = irrelevant(elevation[: truth.shape[0], : truth.shape[1]], np.random.default_rng(99))
            fields.append((name, [truth], {label: [other] for label, other in there.items()}))
    else:
        right = {"elevation": [elevation], "elevation and four others": [elevation, *others.values()]}
        fields.append(("gridMET", [temperature], right))
        hours = [era5(folder, hour) for hour in (12, 252, 492)]
        fields.append(("ERA5 UK", [truth for truth, _ in hours], {"orography": [hours[0][1]]}))
    print("\n| field | gaps | covariates | CRPS / alone | worst | 95 % | CPU time / alone |")
    print("|---|---|---|---:|---:|---:|---:|")
    for name, truths, sets in fields:
        for field, gaps, label, ratios, inside, spent in rows_of(model, name, truths, sets, seeds):
            numbers = f"{geometric(ratios):.3f} | {max(ratios):.3f} | {np.mean(inside):.3f} | {spent:.2f}"
            print(f"| {field} | {gaps} | {label} | {numbers} |", flush=True)


def of_stacks(model: str, folder: Path, names: list[str], slices: int) -> None:
    """Print what the nearest slices are worth as covariates, beside ``across``."""
    print("\n| stack | gaps | across / alone | covariates / alone | ratio | 95 % across | 95 % |")
    print("|---|---|---:|---:|---:|---:|---:|")
    accuracy.SIDE = 128
    for seed, name in enumerate(names):
        truth = STACKS[name](folder)
        for kind in ("clouds", "persistent"):
            tests = stack(truth, kind, np.random.default_rng(seed))
            array = xr.DataArray(np.stack([test.values for test in tests]), dims=("slice", "y", "x"), name="field")
            chosen = np.unique(np.linspace(0, len(tests) - 1, min(slices, len(tests))).round().astype(int))
            lazy = geonp.infill(array.chunk({"slice": 1}), model=model, tails=True, across="slice")
            lazy = lazy.isel(slice=chosen).compute()
            rows = []
            for place, k in enumerate(chosen.tolist()):
                others = [tests[i].values for i in beside(k, range(len(tests)))]
                across = np.stack([lazy[f"field{ending}"].values[place] for ending in ("", "_standard_error", "_tail")])
                filled = fill(model, tests[k].values, []), across, fill(model, tests[k].values, others)
                base, *found = (scored(tests[k], each) for each in filled)
                rows.append([*(np.log(s.crps / base.crps) for s in found), *(s.coverage(0.95) for s in found)])
            means = np.mean(rows, 0)
            old, new = np.exp(means[:2])
            print(
                f"| {name} | {kind} | {old:.3f} | {new:.3f} | {new / old:.3f} | {means[2]:.3f} | {means[3]:.3f} |",
                flush=True,
            )


def main() -> None:
    """Print the tables that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="folder of the rasters")
    parser.add_argument("--run", type=Path, help="folder of a training run")
    parser.add_argument("--model", default="tnpkr-sa", help="name or path of a model")
    parser.add_argument("--seeds", type=int, default=3, help="draws of gaps")
    parser.add_argument("--slices", type=int, default=4, help="slices of each stack that are scored")
    parser.add_argument("--stacks", nargs="*", default=["NDVI", "ERA5 temperature", "Sentinel-2 band"], choices=STACKS)
    tables = ("covariates", "harmless", "stacks")
    parser.add_argument("--only", nargs="*", default=tables, choices=tables, help="which tables")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        model = arguments.model if arguments.run is None else checkpoint_of(arguments.run, Path(folder))
        for table in arguments.only:
            if table == "stacks":
                of_stacks(model, arguments.data, arguments.stacks, arguments.slices)
            else:
                of_covariates(model, arguments.data, arguments.seeds, harmless=table == "harmless")


if __name__ == "__main__":
    main()
