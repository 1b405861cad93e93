"""Methods that others wrote, on the same hidden cells as geonp: scores, seconds and memory.

Run as ``python benchmarks/peers.py [--data ../shared/data] [--size 64] [--methods geonp pykrige gstools ...]``. Each
peer needs its package (extra ``peers``); those that are not installed are left out and named. Every method runs in a
process of its own: the memory is the peak of that process, with its packages; the seconds are those of all its
threads on the processor, after the imports. Settings are the defaults of each peer; variograms and covariances are
fitted as its documentation does it.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from geonp.evaluation.holdout import hide_simulated
from geonp.evaluation.metrics import score

Array = NDArray[np.float64]
Prediction = tuple[Array, Array | None]
"""Values at the hidden cells, and their standard errors if the method has any."""

CASES = {
    "terrain": ("dem_oetztal_srtm_3arcsec.tif", None),
    "sea surface temperature": ("sst_oisst_global_2deg_1981-12-31.nc", "sst"),
    "vegetation index": ("ndvi_sentinel2_slovenia_clouds_2015_2017.nc", None),
}
GAPS = {"clouds": 0.3, "random": 0.5}
NEIGHBOURS = 32
LARGEST_SAMPLE = 2000
"""Observations of methods without neighbourhoods."""
SAMPLES = 50


def of_geonp(values: Array, hidden: NDArray[np.bool_]) -> Prediction:
    """The default model."""
    filled = xr.DataArray(values.astype(np.float32), dims=("y", "x"), name="v").geonp.infill()
    return filled["v"].values[hidden], filled["v_standard_error"].values[hidden]


def of_rioxarray(values: Array, hidden: NDArray[np.bool_]) -> Prediction:
    """``rio.interpolate_na``, linear; nearest outside of the hull."""
    import rioxarray  # noqa: F401

    raster = xr.DataArray(values, {"y": np.arange(len(values)), "x": np.arange(values.shape[1])}, ("y", "x"))
    raster = raster.rio.write_crs("EPSG:3857").rio.write_nodata(np.nan)
    linear = raster.rio.interpolate_na("linear")
    return linear.fillna(raster.rio.interpolate_na("nearest")).values[hidden], None


def of_pykrige(values: Array, hidden: NDArray[np.bool_]) -> Prediction:
    """Ordinary kriging with an exponential variogram and a moving window."""
    from pykrige.ok import OrdinaryKriging

    rows, columns, known = _known(values)
    krige = OrdinaryKriging(columns, rows, known, variogram_model="exponential", nlags=20)
    y, x = np.nonzero(hidden)
    mean, variance = krige.execute("points", x.astype(float), y.astype(float), backend="C", n_closest_points=NEIGHBOURS)
    return np.asarray(mean), np.sqrt(np.maximum(variance, 0))


def of_gstools(values: Array, hidden: NDArray[np.bool_]) -> Prediction:
    """Ordinary kriging with a fitted exponential covariance, of a sample: it has no neighbourhoods."""
    import gstools

    rows, columns, known = _known(values, LARGEST_SAMPLE)
    middle, scale = known.mean(), known.std()  # its fit of values of another scale does not converge
    known = (known - middle) / scale
    bins, gamma = gstools.vario_estimate((columns, rows), known)
    model = gstools.Exponential(dim=2)
    model.fit_variogram(bins, gamma, nugget=True)
    y, x = np.nonzero(hidden)
    mean, variance = gstools.krige.Ordinary(model, (columns, rows), known)((x.astype(float), y.astype(float)))
    return middle + scale * np.asarray(mean), scale * np.sqrt(np.maximum(variance, 0) + model.nugget)


def _gstlearn(values: Array, hidden: NDArray[np.bool_]) -> tuple[Any, ...]:
    """Observations, targets, a model fitted to their variogram and a moving neighbourhood."""
    import gstlearn
    import pandas as pd

    def table(rows: Array, columns: Array, **more: Array) -> Any:
        found = gstlearn.Db_fromPandas(pd.DataFrame({"x": columns, "y": rows, **more}))
        found.setLocators(["x", "y"], gstlearn.ELoc.X)
        return found

    rows, columns, known = _known(values)
    observed, targets = table(rows, columns, z=known), table(*np.nonzero(hidden))
    observed.setLocator("z", gstlearn.ELoc.Z)
    half = max(values.shape) / 2
    variogram = gstlearn.Vario.create(gstlearn.VarioParam.createOmniDirection(20, half / 20))
    variogram.compute(observed)
    model = gstlearn.Model()
    model.fit(variogram, [gstlearn.ECov.NUGGET, gstlearn.ECov.EXPONENTIAL, gstlearn.ECov.CUBIC])
    model.setDriftIRF(0)
    return observed, targets, model, gstlearn.NeighMoving.create(False, NEIGHBOURS, 2 * half)


def of_gstlearn(values: Array, hidden: NDArray[np.bool_]) -> Prediction:
    """Ordinary kriging with a moving neighbourhood; nugget, exponential and cubic structures fitted by itself."""
    import gstlearn

    observed, targets, model, neighbours = _gstlearn(values, hidden)
    gstlearn.kriging(observed, targets, model, neighbours)
    return targets["Kriging.z.estim"], targets["Kriging.z.stdev"]


def of_simulation(values: Array, hidden: NDArray[np.bool_]) -> Prediction:
    """Conditional simulation of gstlearn by turning bands: mean and spread of the samples."""
    import gstlearn

    observed, targets, model, neighbours = _gstlearn(values, hidden)
    gstlearn.simtub(observed, targets, model, neighbours, SAMPLES)
    samples = np.stack([targets[f"Simu.z.S{number}"] for number in range(1, SAMPLES + 1)])
    return samples.mean(0), samples.std(0, ddof=1)


def of_samples(values: Array, hidden: NDArray[np.bool_]) -> Prediction:
    """Joint samples of geonp: their mean and spread."""
    filled = xr.DataArray(values.astype(np.float32), dims=("y", "x"), name="v").geonp.infill(samples=SAMPLES)
    samples = filled["v_sample"].transpose("sample", "y", "x").values[:, hidden]
    return samples.mean(0), samples.std(0, ddof=1)


def of_gpboost(values: Array, hidden: NDArray[np.bool_]) -> Prediction:
    """A Matérn process with smoothness 1.5 and noise, by maximum likelihood, in Vecchia's approximation."""
    import gpboost

    rows, columns, known = _known(values)
    process = gpboost.GPModel(
        gp_coords=np.stack([columns, rows], 1), cov_function="matern", cov_fct_shape=1.5, gp_approx="vecchia"
    )
    process.fit(y=known, X=np.ones((len(known), 1)))
    targets = np.stack(np.nonzero(hidden)[::-1], 1).astype(float)
    found = process.predict(gp_coords_pred=targets, X_pred=np.ones((len(targets), 1)), predict_var=True)
    return found["mu"], np.sqrt(found["var"])


def of_xrspatial(values: Array, hidden: NDArray[np.bool_]) -> Prediction:
    """``xrspatial.kriging`` of a sample: it has no neighbourhoods."""
    import xrspatial

    rows, columns, known = _known(values, LARGEST_SAMPLE)
    axes = {"y": np.arange(float(len(values))), "x": np.arange(float(values.shape[1]))}
    mean, variance = xrspatial.kriging(
        columns, rows, known, xr.DataArray(values, axes, ("y", "x")), return_variance=True
    )
    return mean.values[hidden], np.sqrt(np.maximum(variance.values[hidden], 0))


def of_pyinterp(values: Array, hidden: NDArray[np.bool_]) -> Prediction:
    """Gauss-Seidel relaxation, which its documentation uses for gaps of grids."""
    import pyinterp.fill

    filled = values.copy()
    pyinterp.fill.gauss_seidel(filled, num_threads=1)
    return filled[hidden], None


def of_dct_pls(values: Array, hidden: NDArray[np.bool_]) -> Prediction:
    """Penalised least squares by cosine transforms, after Wang & Garcia (2012); Python has no package of it."""
    from scipy.fft import dctn, idctn
    from scipy.ndimage import distance_transform_edt

    known = np.isfinite(values)
    nearest = distance_transform_edt(~known, return_distances=False, return_indices=True)
    data = np.where(known, values, 0)
    found = values[tuple(nearest)]
    parts = (2 - 2 * np.cos(np.pi * np.arange(length) / length) for length in values.shape)
    penalty = np.add.outer(*parts) ** 2
    for smoothness in np.logspace(3, -6, 100):
        residual = np.where(known, data - found, 0) + found
        found = 2 * idctn(dctn(residual, norm="ortho") / (1 + smoothness * penalty), norm="ortho") - found
    return found[hidden], None


METHODS = {
    "geonp": (of_geonp, "geonp"),
    "rio.interpolate_na": (of_rioxarray, "rioxarray"),
    "DCT-PLS": (of_dct_pls, "scipy.fft"),
    "pyinterp": (of_pyinterp, "pyinterp"),
    "xarray-spatial": (of_xrspatial, "xrspatial"),
    "pykrige": (of_pykrige, "pykrige"),
    "gstools": (of_gstools, "gstools"),
    "gstlearn": (of_gstlearn, "gstlearn"),
    "gpboost": (of_gpboost, "gpboost"),
    "geonp, samples": (of_samples, "geonp"),
    "gstlearn, samples": (of_simulation, "gstlearn"),
}
"""Functions, and the packages that they need."""


def _known(values: Array, most: int | None = None) -> tuple[Array, Array, Array]:
    """Rows, columns and values of the observed cells; of at most `most`, at random."""
    rows, columns = np.nonzero(np.isfinite(values))
    if most is not None and len(rows) > most:
        kept = np.random.default_rng(0).choice(len(rows), most, replace=False)
        rows, columns = rows[kept], columns[kept]
    return rows.astype(float), columns.astype(float), values[rows, columns].astype(float)


def raster_of(folder: Path, name: str, size: int) -> Array:
    """The middle of the raster of a case, of its first slice."""
    import geonp

    file, variable = CASES[name]
    ds = geonp.open_raster(folder / file, chunks=None)
    if name == "vegetation index":
        variable = next(str(key) for key in ds if "ndvi" in str(key).lower())
    values = ds[variable or next(iter(ds))].values
    while values.ndim > 2:
        values = values[np.argmax(np.isfinite(values).mean(axis=tuple(range(1, values.ndim))))]
    rows, columns = ((length - min(length, size)) // 2 for length in values.shape)
    return values[rows : rows + size, columns : columns + size].astype(np.float64)


def one(folder: Path, name: str, gaps: str, method: str, size: int) -> dict[str, float]:
    """Scores of one method on one case, and what it took."""
    import geonp  # noqa: F401

    test = hide_simulated(raster_of(folder, name, size), gaps, GAPS[gaps], np.random.default_rng(0))
    hidden = np.isnan(test.values) & np.isfinite(test.truth)
    run, package = METHODS[method]
    importlib.import_module("torch" if package == "geonp" else package)
    start = time.process_time()
    mean, error = run(test.values, hidden)
    took = time.process_time() - start
    truth = test.truth[hidden]
    found = {"rmse": float(np.sqrt(np.mean((mean - truth) ** 2))), "mae": float(np.mean(np.abs(mean - truth)))}
    if error is not None:
        scores = score(truth, mean, np.maximum(error, 1e-9))
        found |= {"crps": float(scores.crps), "coverage": float(np.mean(np.abs(mean - truth) <= 1.96 * error))}
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return found | {"seconds": took, "mib": memory}


def main() -> None:
    """Print a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="folder of the rasters")
    parser.add_argument("--size", type=int, default=64, help="rows and columns of the cuts")
    parser.add_argument("--methods", nargs="*", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--one", nargs=3, help="case, gaps and method: print its numbers as JSON")
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(one(arguments.data, *arguments.one, arguments.size)))
        return
    absent = [name for name in arguments.methods if importlib.util.find_spec(METHODS[name][1]) is None]
    if absent:
        print(f"Not installed, and left out: {', '.join(absent)}. pip install 'geonp[peers]'", file=sys.stderr)
    print(
        "| raster | gaps | method | RMSE | MAE | CRPS | 95 % | CPU seconds | MiB |\n"
        "|---|---|---|---:|---:|---:|---:|---:|---:|",
        flush=True,
    )
    for name in CASES:
        for gaps in GAPS:
            for method in (name for name in arguments.methods if name not in absent):
                command = [sys.executable, __file__, "--data", arguments.data, "--size", arguments.size]
                command += ["--one", name, gaps, method]
                done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
                if done.returncode:
                    print(f"| {name} | {gaps} | {method} | {done.stderr.strip().splitlines()[-1]} |")
                    continue
                found = json.loads(done.stdout.splitlines()[-1])
                cells = [f"{found[key]:.4g}" if key in found else "" for key in ("rmse", "mae", "crps")]
                cells += [f"{found['coverage']:.1%}" if "coverage" in found else "", f"{found['seconds']:.1f}"]
                print("| " + " | ".join([name, gaps, method, *cells, f"{found['mib']:.0f}"]) + " |", flush=True)


if __name__ == "__main__":
    main()
