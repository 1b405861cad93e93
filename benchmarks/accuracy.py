"""Accuracy on real rasters, as ratios to kriging and to the best classical method.

Run as ``python benchmarks/accuracy.py [--model tnpkr-sa] [--data ../shared/data]``. Missing rasters are skipped. Fields
are cuts of up to 256 x 256 cells; hidden cells are scored. No model was trained on these rasters. Earlier scores on
Jacksboro and on SST stripes led to two choices (the likelihood step, smoothed fields in the prior), see RESULTS.md; the
air temperature and the Landsat band were added later and led to none.

With ``--small``, small gaps are filled instead, as by the faster method for them.

A model without a network, :func:`no_network`, shows what the network is worth; the paper's own model, where its weights
are installed or given by ``--paper``, what the kriging head is worth.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import xarray as xr
from matplotlib.cbook import get_sample_data
from scipy import ndimage

import geonp
from geonp.evaluation.baselines import predict
from geonp.evaluation.holdout import HoldOut, hide, hide_simulated
from geonp.evaluation.metrics import Scores, score
from geonp.inference import checkpoint
from geonp.inference.student import half_width
from geonp.io.files import open_raster
from geonp.nn.models import build
from geonp.training.data.small_gaps import SmallGaps, holes

Field = npt.NDArray[np.float32]
Curve = npt.NDArray[np.float64]

GAPS = (("random", 0.5), ("random", 0.9), ("random", 0.98), ("clouds", 0.3), ("clouds", 0.6), ("stripes", 0.3))
SMALL_GAPS = (("random", 0.03), ("random", 0.1), ("specks", 0.1), ("holes", 0.08))
"""Specks are squares of 3 x 3 cells, and holes have 4 to 40 cells."""
BASELINES = ("linear", "gdal", "thin_plate", "kriging")
NO_NETWORK = "no network"
PAPER = "the paper's model"
PAPER_MODEL = "tnpkr-sa-paper"
"""TNP-KR-SA as published, trained by the recipe ``tnpkr_sa_paper``."""
SCORING_STEPS = 10
"""Steps of the model without a network."""
SIDE = 256
PACKAGED = Path(str(resources.files("hvsampledata"))) / "_data"
LEVELS = np.array([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95])


def file_field(name: str, variable: str, row: int = 0, col: int = 0, **index: int) -> Callable[[Path], Field]:
    """Function that reads a cut of one variable of a raster file."""

    def read(folder: Path) -> Field:
        array = open_raster(folder / name, variables=[variable], nodata=None)[variable]
        array = array.isel(index)
        return np.asarray(array[..., row : row + SIDE, col : col + SIDE].values.squeeze(), np.float32)

    return read


def jacksboro(_: Path) -> Field:
    """Terrain that ships with matplotlib."""
    with np.load(get_sample_data("jacksboro_fault_dem.npz", asfileobj=False)) as file:
        return np.asarray(file["elevation"][:SIDE, :SIDE], np.float32)


def air_temperature(_: Path) -> Field:
    """Reanalysis that ships with hvsampledata: 25 x 53 cells of 2.5 degrees."""
    with xr.open_dataset(PACKAGED / "air_temperature_small.nc") as ds:
        return np.asarray(ds["air"][0].values, np.float32)


def landsat(_: Path) -> Field:
    """Band of the Landsat composite that ships with hvsampledata: 8-bit integers, 237 x 215 cells."""
    return np.asarray(open_raster(PACKAGED / "landsat_rgb.tif")["landsat_rgb"].isel(band=0).values, np.float32)


FIELDS: dict[str, Callable[[Path], Field]] = {
    "DEM Jacksboro": jacksboro,
    "DEM Oetztal": file_field("dem_oetztal_srtm_3arcsec.tif", "dem_oetztal_srtm_3arcsec", 90, 150),
    "DEM Iowa": file_field("dem_iowa_3m_ragged_border.tif", "dem_iowa_3m_ragged_border", 0, 0),
    "SST OSTIA": file_field("sst_ostia_global_0p25_2017-06-05_07.nc", "analysed_sst", 230, 560, time=0),
    "gridMET tmax": file_field("tmax_gridmet_conus_2019-01-21.nc", "air_temperature", 8, 279),
    "ERA5 orography": file_field("era5_geopotential_global_0p25.nc", "geopotential", 120, 0),
    "chlorophyll": file_field("chlorophyll_olci_northsea_2017.nc", "conc_chl", 257, 582, time=0),
    "Sentinel-2 band": file_field("sentinel2_6band_200x300.nc", "reflectance", band=3),
    "air temperature": air_temperature,
    "Landsat band": landsat,
    "NDVI": file_field("ndvi_sentinel2_slovenia_clouds_2015_2017.nc", "ndvi", time=10),
}


def no_network(model: str, folder: Path, scoring_steps: int = SCORING_STEPS) -> Path:
    """Write a checkpoint of the covariance family of a kriging head without a network.

    It has no layers, and all weights of its head are zero. So the covariance starts at constant parameters, Fisher
    scoring with a constant prior fits it to the context of each tile, and the prediction is that of the Gaussian
    process: nothing is learned. Tiles and contexts are those of `model`.
    """
    config = {"dim": 1, "heads": 1, "blocks": 0, "qk_dim": 1, "v_dim": 1, "v_hidden": 0, "ff_dim": 1, "embed_x": False}
    config |= {"embed_hidden": (), "head": "kriging", "refine_steps": 0, "scoring_steps": scoring_steps}
    network = build("tnp-kr", config)
    for weights in network.parameters():
        torch.nn.init.zeros_(weights)
    # next to no inverse degrees of freedom: a normal distribution
    network.head.correction[-1].bias.data[-1] = -30.0  # type: ignore[union-attr, index]
    file = folder / "no_network.safetensors"
    about = {"name": NO_NETWORK, "version": "1", "description": "no network", "training": {}, "scores": {}}
    neighbourhood = checkpoint.load_card(model).neighbourhood
    checkpoint.save(network, file, architecture="tnp-kr", config=config, neighbourhood=neighbourhood, **about)
    return file


def hidden(truth: Field, kind: str, fraction: float, rng: np.random.Generator) -> HoldOut:
    """Hide cells of a field."""
    if kind == "specks":
        return hide(truth, ndimage.binary_dilation(rng.random(truth.shape) < fraction / 9, np.ones((3, 3), bool)))
    if kind == "holes":
        return hide(truth, holes(rng, truth.shape, fraction, SmallGaps().hole))
    return hide_simulated(truth, kind, fraction, rng)


def cases(
    folder: Path, fields: Collection[str] = FIELDS, gaps: Sequence[tuple[str, float]] = GAPS
) -> Iterator[tuple[str, str, HoldOut]]:
    """Name of each field, kind of gaps, and hold-out."""
    for seed, (name, read) in enumerate(FIELDS.items()):
        if name not in fields:
            continue
        try:
            truth = read(folder)
        except geonp.GeonpError as error:
            print(f"skipped: {name}: {error}")
            continue
        for kind, fraction in gaps:
            yield name, f"{kind} {fraction:.0%}", hidden(truth, kind, fraction, np.random.default_rng(seed))


def run(test: HoldOut, models: dict[str, str | Path]) -> tuple[dict[str, tuple[Scores, float]], Curve]:
    """Scores and seconds of each method and model, and the coverage of the last model at each of :data:`LEVELS`."""
    results = {}
    for method in (*BASELINES, *models):
        start = time.perf_counter()
        if method in models:
            field = xr.DataArray(test.values, dims=("y", "x"), name="field")
            out = geonp.infill(field, model=models[method], tails=True)
            mean, error, tail = (out[f"field{ending}"].values for ending in ("", "_standard_error", "_tail"))
        else:
            mean, error = predict(method, test.values, np.random.default_rng(0))
            tail = np.zeros_like(error)
        seconds = time.perf_counter() - start
        scored = test.hidden & np.isfinite(mean)
        results[method] = score(test.truth, mean, error, scored, tail), seconds
    residual, error, tail = np.abs(test.truth - mean)[scored], error[scored], tail[scored]
    return results, np.array([(residual <= half_width(error, tail, level)).mean() for level in LEVELS])


def heaton(folder: Path, models: dict[str, str | Path]) -> None:
    """Print the scores on the simulated field and the hidden cells of the competition of Heaton et al. (2019)."""
    try:
        ds = open_raster(folder / "heaton2018_simulated.nc")
    except geonp.GeonpError as error:
        print(f"skipped: Heaton et al.: {error}")
        return
    test = HoldOut(ds["temp_train"].values, ds["temp_full"].values, ds["test_mask"].values == 1)
    results, _ = run(test, models)
    print("\n| Heaton et al. | RMSE | MAE | CRPS | 95 % interval score | coverage | s |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for method in ("geonp", *(name for name in models if name != "geonp"), "kriging"):
        scores, seconds = results[method]
        cells = [scores.rmse, scores.mae, scores.crps, scores.interval_score, scores.coverage(0.95)]
        print(f"| {method} | {' | '.join(f'{cell:.4f}' for cell in cells)} | {seconds:.0f} |", flush=True)


def geometric(values: list[float]) -> float:
    """Geometric mean."""
    return float(np.exp(np.mean(np.log(values))))


def compare(
    data: Path,
    models: dict[str, str | Path],
    fields: Collection[str] = FIELDS,
    gaps: Sequence[tuple[str, float]] = GAPS,
) -> list[dict[str, Any]]:
    """Print the scores of each case and a summary; return all scores."""
    print(
        "| field | gaps | RMSE / kriging | / best classical | / no network | CRPS / kriging | / no network | coverage "
        "| kriging's | s | kriging's |"
    )
    print("|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|")
    rows, everything, curves, spent = [], [], [], []
    papers: list[tuple[float, float]] = []
    for name, kind, test in cases(data, fields, gaps):
        results, curve = run(test, models)
        curves.append(curve)
        (ours, seconds), (kriging, kriging_seconds) = results["geonp"], results["kriging"]
        plain = results[NO_NETWORK][0]
        if PAPER in models:
            papers.append((ours.crps / results[PAPER][0].crps, ours.rmse / results[PAPER][0].rmse))
        spent.append((ours.cells, seconds, kriging_seconds))
        best = min(results[b][0].rmse for b in BASELINES)
        rmse = ours.rmse / kriging.rmse, ours.rmse / best, ours.rmse / plain.rmse
        rows.append((*rmse, ours.crps / kriging.crps, ours.crps / plain.crps, ours.coverage(0.95)))
        cells = [f"{v:.3f}" for v in (*rows[-1], kriging.coverage(0.95))]
        print(f"| {name} | {kind} | {' | '.join(cells)} | {seconds:.1f} | {kriging_seconds:.1f} |", flush=True)
        everything.append({"field": name, "gaps": kind, **{m: s.as_dict() for m, (s, _) in results.items()}})
    rmse, best_rmse, plain_rmse, crps, plain_crps, coverage = (list(column) for column in zip(*rows, strict=True))
    reliability = np.abs(np.mean(curves, axis=0) - LEVELS)
    cells, seconds, kriging_seconds = (sum(column) for column in zip(*spent, strict=True))
    summary = {
        "cases": f"{len(rows)}",
        "RMSE / kriging's, geometric mean": f"{geometric(rmse):.3f}",
        "RMSE / that of the best classical method of each case": f"{geometric(best_rmse):.3f}",
        "CRPS / kriging's, geometric mean": f"{geometric(crps):.3f}",
        "CRPS / kriging's, worst case": f"{max(crps):.3f}",
        "CRPS / that without a network, geometric mean": f"{geometric(plain_crps):.3f}",
        "RMSE / that without a network, geometric mean": f"{geometric(plain_rmse):.3f}",
        "cases with a CRPS below kriging's": f"{np.mean(np.array(crps) < 1):.0%}",
        "coverage of the 95 % interval, mean": f"{np.mean(coverage):.3f}",
        "coverage, lowest and highest": f"{min(coverage):.3f}, {max(coverage):.3f}",
        "mean reliability curve, greatest distance from the diagonal": f"{reliability.max():.3f}",
        "its mean distance from the diagonal": f"{reliability.mean():.3f}",
        "cells scored": f"{cells:,}",
        "cells a second over all cases": f"{cells / seconds:,.0f}",
        "kriging's": f"{cells / kriging_seconds:,.0f}",
    }
    if papers:
        crps, rmse = (list(column) for column in zip(*papers, strict=True))
        summary[f"CRPS / that of {PAPER}, geometric mean"] = f"{geometric(crps):.3f}"
        summary[f"RMSE / that of {PAPER}, geometric mean"] = f"{geometric(rmse):.3f}"
        summary[f"cases with a CRPS below that of {PAPER}"] = f"{np.mean(np.array(crps) < 1):.0%}"
    print("\n| summary | |\n|---|---:|")
    print("\n".join(f"| {name} | {value} |" for name, value in summary.items()))
    return everything


def main() -> None:
    """Print the scores of each case, and a summary."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tnpkr-sa", help="name or path of a checkpoint")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="folder of the rasters")
    parser.add_argument("--json", type=Path, help="also write all scores to this file")
    installed = PAPER_MODEL if PAPER_MODEL in checkpoint.available() else None
    parser.add_argument(
        "--paper", default=installed, help="name or path of the paper's own model; default: if installed"
    )
    parser.add_argument("--fields", nargs="*", choices=FIELDS, default=list(FIELDS), metavar="FIELD")
    parser.add_argument("--small", action="store_true", help="small gaps instead: 3 and 10 %% at random, specks, holes")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        models: dict[str, str | Path] = {NO_NETWORK: no_network(arguments.model, Path(folder))}
        if arguments.paper:
            models[PAPER] = arguments.paper
        models["geonp"] = arguments.model
        everything = compare(arguments.data, models, arguments.fields, SMALL_GAPS if arguments.small else GAPS)
        if not arguments.small:
            heaton(arguments.data, models)
    if arguments.json:
        arguments.json.write_text(json.dumps(everything, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
