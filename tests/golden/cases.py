"""Golden results: small fills of every kind, and a table of all that they give, down to single bits.

::

    python tests/golden/cases.py hash > table.json        # dtypes, attributes, encodings, and SHA-256 of the values
    python tests/golden/cases.py compare table.json       # exit code 1 and each difference, if there is any
    python tests/golden/cases.py values values.npz        # the values themselves, rounded

``hash`` and ``compare`` take names of cases, too. A restructuring must leave the table as it is on one machine. Hashes
of floats differ between processors, so :mod:`test_golden` compares the values with a tolerance.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # inherited by the workers of clusters

import dask
import numpy as np
import numpy.typing as npt
import pandas as pd
import rasterio
import rioxarray  # noqa: F401
import torch
import xarray as xr
from click.testing import CliRunner
from rasterio.transform import from_origin

import geonp

CASES: dict[str, Callable[[Path], xr.Dataset]] = {}
"""By name: what each gives when it may write to a folder, which holds the checkpoints of :func:`save_models`."""

Table = dict[str, dict[str, Any]]
"""By variable (``""``: the Dataset): its dimensions, dtype, attributes, encoding and the hash of its values."""

CONFIG: dict[str, Any] = {
    "dim": 16,
    "heads": 2,
    "blocks": 1,
    "qk_dim": 16,
    "v_dim": 16,
    "v_hidden": 0,
    "ff_dim": 16,
    "embed_x": False,
}
NUMBERS = {
    **CONFIG,
    "kernels": "dictionary",
    "scales": [1.0, 4.0, 16.0],
    "directional_scales": [4.0],
    "statistics": True,
    "head": "kriging",
    "n_refine": 8,
}
CLASSES = {**CONFIG, "d_x": 2, "d_y": 3, "likelihood": "categorical"}
NEIGHBOURHOOD: dict[str, Any] = {
    "tile_px": 8,
    "halos_px": [8, 16],
    "n_context": 32,
    "min_context": 4,
    "thinning": 3.0,
}

VOLATILE = ("history", "geonp_job")
"""Attributes with the time of writing in them: only that they are there is compared."""

ENCODINGS = (
    *("_FillValue", "scale_factor", "add_offset", "grid_mapping", "coordinates", "dtype"),
    *("chunks", "shards", "compressors", "chunksizes", "zlib", "complevel", "shuffle", "fletcher32"),
)
"""What is compared of the encodings of Zarr, NetCDF and xarray."""


def case(make: Callable[[Path], xr.Dataset]) -> Callable[[Path], xr.Dataset]:
    """Register a case under the name of its function."""
    CASES[make.__name__] = make
    return make


# Models


def save_models(folder: Path) -> None:
    """Save tiny checkpoints: of numbers, the same as ``adapt`` would save it, and of classes.

    The weights are NumPy's random numbers, which are the same on all machines, as is then the hash of the weights.
    """
    from geonp.inference.checkpoint import save
    from geonp.nn.models import build

    adapted = {**NEIGHBOURHOOD, "tile_px": 4, "n_context": 24, "merge": 1, "across": "time"}
    base = {"base": "tiny", "base_version": "1", "raster": "value", "steps": 3, "seed": 0, "minutes": 0.1}
    axes = [[0.25, 0.0], [0.0, 0.25]]
    models: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
        "tiny": (NUMBERS, {**NEIGHBOURHOOD, "merge": 2}, {}),
        "adapted": (NUMBERS, adapted, base),
        "classes": (CLASSES, {**NEIGHBOURHOOD, "axes": axes}, {}),
    }
    for name, (config, neighbourhood, training) in models.items():
        rng = np.random.default_rng(len(name))
        network = build("tnp-kr", config)
        for p in network.parameters():
            noise = torch.from_numpy(rng.standard_normal(p.shape).astype(np.float32))
            if p.ndim < 2:
                p.data += 0.05 * noise
            else:  # some begin near zero, so that the head begins as a plain Gaussian process
                p.data = noise * (0.02 if float(p.detach().std()) < 0.01 else p.shape[-1] ** -0.5)
        about = {"name": name, "version": "1", "description": "for tests", "scores": {}, "training": training}
        save(
            network,
            folder / f"{name}.safetensors",
            architecture="tnp-kr",
            config=config,
            neighbourhood=neighbourhood,
            **about,
        )


def tiny(folder: Path, name: str = "tiny") -> dict[str, Any]:
    """Options of a fill with one of these models."""
    return {"model": folder / f"{name}.safetensors", "batch_size": 4}


# Data. Values are rounded, so that they do not depend on the machine's sine.


def smooth(*shape: int) -> npt.NDArray[np.float64]:
    """A smooth function of its place, plus some noise ``(..., rows, columns)``; slices resemble each other."""
    rng = np.random.default_rng(len(shape))
    y, x = np.arange(shape[-2])[:, None] / 6, np.arange(shape[-1]) / 8
    shift = np.arange(np.prod(shape[:-2], dtype=int)).reshape(*shape[:-2], 1, 1) / 4
    return np.round(15 + 4 * np.sin(y + shift) * np.cos(x) + 0.1 * rng.standard_normal(shape), 3)


def gaps(*shape: int, share: float = 0.3, seed: int = 0) -> npt.NDArray[np.bool_]:
    """Where cells are missing: some at random, and a block in the middle."""
    missing = np.random.default_rng(seed).random(shape) < share
    rows, columns = (slice(n // 3, n // 3 + n // 4) for n in shape[-2:])
    missing[..., rows, columns] = True
    return missing


def raster(*shape: int, share: float = 0.3) -> xr.DataArray:
    """Floats with gaps; projected coordinates in metres, and days if there are three dimensions."""
    values = np.where(gaps(*shape, share=share), np.nan, smooth(*shape)).astype(np.float32)
    y, x = 5_200_000.0 - 30 * np.arange(shape[-2]), 500_000.0 + 30 * np.arange(shape[-1])
    coords: dict[str, Any] = {"y": ("y", y, {"units": "m"}), "x": ("x", x, {"units": "m"})}
    if len(shape) == 3:
        coords["time"] = np.datetime64("2024-01-01", "ns") + np.arange(shape[0]) * np.timedelta64(1, "D")
    dims = ("time", "y", "x")[-len(shape) :]
    attrs = {"units": "degC", "long_name": "surface temperature", "standard_name": "surface_temperature"}
    return xr.DataArray(values, coords, dims, "sst", attrs)


def integers(*shape: int) -> xr.Dataset:
    """Integers with a nodata value, 16 bits and 8, and a variable without columns."""
    level = xr.DataArray(np.where(gaps(*shape), -999, smooth(*shape) * 100).astype(np.int16), dims=("y", "x"))
    level.attrs = {"_FillValue": np.int16(-999), "valid_range": np.array([-500, 1900], np.int16), "units": "cm"}
    count = xr.DataArray(np.where(gaps(*shape, seed=1), 255, smooth(*shape) * 5).astype(np.uint8), dims=("y", "x"))
    count.attrs = {"_FillValue": np.uint8(255)}
    return xr.Dataset({"level": level, "count": count, "height": ("y", np.arange(shape[0], dtype=np.float32))})


def states(*shape: int) -> xr.DataArray:
    """Three classes with gaps."""
    values = np.array([10, 20, 30], np.uint8)[np.digitize(smooth(*shape), [13.5, 16.5])]
    values[gaps(*shape)] = 0
    attrs = {"flag_values": np.array([10, 20, 30], np.uint8), "flag_meanings": "infected recovered susceptible"}
    coords = {"y": -np.arange(float(shape[0])), "x": np.arange(float(shape[1]))}
    return xr.DataArray(values, coords, ("y", "x"), "state", {**attrs, "_FillValue": np.uint8(0)})


def stations(n: int, size: float, west: float = 0.0, south: float = 0.0) -> pd.DataFrame:
    """Measurements in a square, two columns of values, some of them missing."""
    rng = np.random.default_rng(n)
    x, y = np.round(rng.uniform(0, size, (2, n)), 4)
    t = np.round(np.sin(7 * x / size) * np.cos(9 * y / size) + 0.05 * rng.standard_normal(n), 3)
    return pd.DataFrame({"x": x + west, "y": y + south, "t": t, "u": np.where(rng.random(n) < 0.2, np.nan, 3 * t + 1)})


def lattice(n: int, size: float, west: float, south: float) -> xr.DataArray:
    """An empty projected grid of ``n x n`` cells."""
    middle = (np.arange(n) + 0.5) * size / n
    grid = xr.DataArray(np.zeros((n, n), np.float32), {"y": south + middle[::-1], "x": west + middle}, ("y", "x"))
    return grid.rio.write_crs("EPSG:32633")


# In and out of files


def run(*arguments: Any) -> None:
    """Run geonp on the command line, in this process."""
    from geonp.cli.app import main

    result = CliRunner().invoke(main, [str(a) for a in arguments], catch_exceptions=False)
    if result.exit_code:
        raise RuntimeError(f"geonp {' '.join(map(str, arguments))}: {result.output}")


def fill(source: Path, target: Path, *options: Any, model: str = "tiny") -> Path:
    """``geonp fill`` with a tiny model."""
    weights = source.with_name(f"{model}.safetensors")
    run("fill", source, target, "--model", weights, "--batch-size", 4, "--quiet", *options)
    return target


def read_zarr(path: Path) -> xr.Dataset:
    """What a store holds, as it is stored."""
    return xr.open_zarr(path, decode_cf=False, consolidated=None).load()


def read_netcdf(path: Path) -> xr.Dataset:
    """What a NetCDF file holds, as it is stored."""
    with xr.open_dataset(path, engine="netcdf4", decode_cf=False) as ds:
        return ds.load()


def read_tiff(path: Path) -> xr.Dataset:
    """What a GeoTIFF holds, as it is stored: a variable for each band."""
    with rasterio.open(path) as file:
        profile = ("width", "height", "count", "blockxsize", "blockysize", "compress", "interleave", "tiled", "nodata")
        attrs = {key: str(file.profile.get(key)) for key in profile}
        attrs |= {"crs": str(file.crs), "transform": str(tuple(file.transform)), "overviews": str(file.overviews(1))}
        ds = xr.Dataset(attrs={**attrs, **file.tags(), "layout": str(file.tags(ns="IMAGE_STRUCTURE").get("LAYOUT"))})
        for k in file.indexes:
            about = {"description": file.descriptions[k - 1], "units": file.units[k - 1], **file.tags(k)}
            about |= {"scale": file.scales[k - 1], "offset": file.offsets[k - 1], "nodata": file.nodatavals[k - 1]}
            ds[f"band_{k}"] = ("y", "x"), file.read(k), {key: str(value) for key, value in about.items()}
    return ds


def write_tiff(path: Path, values: npt.NDArray[Any], nodata: float, names: tuple[str, ...]) -> Path:
    """Write bands ``(band, rows, columns)``."""
    n, height, width = values.shape
    profile = {"crs": "EPSG:32633", "transform": from_origin(500_000, 5_200_000, 30, 30), "dtype": values.dtype}
    with rasterio.open(path, "w", "GTiff", width, height, n, nodata=nodata, **profile) as file:
        file.write(values)
        file.descriptions = names
        file.update_tags(source="synthetic")
    return path


# In memory


@case
def memory(folder: Path) -> xr.Dataset:
    """A DataArray of floats."""
    return raster(32, 36).geonp.infill(**tiny(folder))


@case
def memory_integers(folder: Path) -> xr.Dataset:
    """A Dataset without coordinates of integers with nodata values and a valid range."""
    return integers(24, 28).geonp.infill(**tiny(folder), seed=3)


@case
def memory_nodata(folder: Path) -> xr.Dataset:
    """A given nodata value, float64, columns before rows, no name."""
    da = raster(24, 20).astype(np.float64).fillna(-1.0).transpose("x", "y").rename(None)
    return geonp.infill(da, **tiny(folder), nodata=-1)


@case
def limits(folder: Path) -> xr.Dataset:
    """A mask and a distance beyond which cells stay empty."""
    da = raster(30, 30)
    da[10:25, 12:] = np.nan
    mask = np.hypot(*(np.indices(da.shape) - 14.5)) < 15
    return da.geonp.infill(**tiny(folder), mask=da.copy(data=mask), max_distance=4.5)


@case
def around_the_globe(folder: Path) -> xr.Dataset:
    """Longitudes that go round."""
    lat, lon = np.arange(60.0, -61.0, -10.0), np.arange(0.0, 360.0, 10.0)
    attrs = {"lat": {"units": "degrees_north"}, "lon": {"units": "degrees_east"}}
    values = np.where(gaps(13, 36), np.nan, smooth(13, 36)).astype(np.float32)
    values[:, [0, 1, -1]] = np.nan
    coords = {"lat": ("lat", lat, attrs["lat"]), "lon": ("lon", lon, attrs["lon"])}
    return xr.DataArray(values, coords, ("lat", "lon"), "t").geonp.infill(**tiny(folder))


@case
def quantiles_and_tails(folder: Path) -> xr.Dataset:
    """Quantiles and tails."""
    return raster(2, 20, 20).geonp.infill(**tiny(folder), quantiles=[0.05, 0.5, 0.95], tails=True)


@case
def samples(folder: Path) -> xr.Dataset:
    """Joint samples of two slices."""
    return raster(2, 12, 12, share=0.15).geonp.infill(**tiny(folder), samples=2, seed=1)


@case
def across(folder: Path) -> xr.Dataset:
    """Slices of a stack, filled from each other."""
    return raster(5, 16, 20, share=0.5).geonp.infill(**tiny(folder), across="time", quantiles=[0.1])


@case
def adapted(folder: Path) -> xr.Dataset:
    """A model that adapt would have saved, with tiles of its own, along time by itself."""
    return raster(4, 16, 16, share=0.5).geonp.infill(**tiny(folder, "adapted"))


@case
def classes(folder: Path) -> xr.Dataset:
    """Classes, within a limit."""
    return states(24, 20).geonp.infill(**tiny(folder, "classes"), max_distance=3)


@case
def shipped(folder: Path) -> xr.Dataset:
    """The default model."""
    return raster(40, 36).geonp.infill(batch_size=4)


@case
def shipped_te_pt_tnp(folder: Path) -> xr.Dataset:
    """The other shipped model."""
    return raster(24, 24).geonp.infill(model="te-pt-tnp", batch_size=4, tails=True)


# Dask


@case
def dask_uneven(folder: Path) -> xr.Dataset:
    """Chunks that are no whole tiles."""
    return raster(32, 36).chunk(y=(7, 20, 5), x=13).geonp.infill(**tiny(folder))


@case
def dask_tiles(folder: Path) -> xr.Dataset:
    """Chunks of whole tiles and single slices, and a lazy mask."""
    mask = xr.DataArray(smooth(24, 32) > 12, dims=("y", "x")).chunk(y=8)
    lazy = raster(3, 24, 32).chunk(time=1, y=16, x=16)
    return lazy.geonp.infill(**tiny(folder), mask=mask, quantiles=[0.9], tails=True)


@case
def dask_across(folder: Path) -> xr.Dataset:
    """Slices of a stack in chunks of their own, filled from each other."""
    return raster(5, 16, 20, share=0.5).chunk(time=2, y=9).geonp.infill(**tiny(folder), across="time")


@case
def dask_samples(folder: Path) -> xr.Dataset:
    """Samples of a raster in chunks."""
    return raster(2, 12, 12, share=0.15).chunk(time=1, y=5).geonp.infill(**tiny(folder), samples=2)


@case
def dask_classes(folder: Path) -> xr.Dataset:
    """Classes in chunks."""
    return states(24, 20).chunk(y=7, x=20).geonp.infill(**tiny(folder, "classes"))


# Zarr


@case
def store(folder: Path) -> xr.Dataset:
    """A store filled from Python, with all that is stored beside the values."""
    ds = raster(2, 24, 28).rio.write_crs("EPSG:32633").to_dataset().assign_attrs(title="synthetic", history="made")
    target = folder / "store.zarr"
    ds.geonp.fill_store(target, chunks=16, **tiny(folder), quantiles=[0.1], tails=True, max_distance=5)
    return read_zarr(target)


@case
def zarr_plain(folder: Path) -> xr.Dataset:
    """From Zarr to Zarr."""
    raster(2, 30, 26).to_dataset().chunk(y=13).to_zarr(source := folder / "plain.in.zarr")
    return read_zarr(fill(source, folder / "plain.zarr", "--chunks", 16))


@case
def zarr_sharded(folder: Path) -> xr.Dataset:
    """Shards of four chunks, from a NetCDF file along time."""
    raster(3, 30, 26).to_netcdf(source := folder / "sharded.nc", engine="netcdf4")
    options = ("--chunks", 16, "--co", "sharded=yes", "--co", "chunk=8", "--across", "time")
    return read_zarr(fill(source, folder / "sharded.zarr", *options))


@case
def zarr_format_2(folder: Path) -> xr.Dataset:
    """The older format, of integers from a GeoTIFF."""
    values = np.where(gaps(1, 24, 24), -999, smooth(1, 24, 24) * 100).astype(np.int16)
    source = write_tiff(folder / "level.tif", values, -999, ("level",))
    return read_zarr(fill(source, folder / "format_2.zarr", "--chunks", 16, "--co", "zarr_format=2"))


@case
def zarr_adapted(folder: Path) -> xr.Dataset:
    """Units of a store with the adapted model."""
    raster(4, 16, 24, share=0.5).to_netcdf(source := folder / "adapted.nc", engine="netcdf4")
    return read_zarr(fill(source, folder / "adapted.zarr", "--chunks", 8, model="adapted"))


@case
def cluster(folder: Path) -> xr.Dataset:
    """A process of a local Dask cluster."""
    raster(2, 32, 32).to_netcdf(source := folder / "cluster.nc", engine="netcdf4")
    return read_zarr(fill(source, folder / "cluster.zarr", "--workers", 1, "--chunks", 16))


# Files


@case
def geotiff(folder: Path) -> xr.Dataset:
    """A cloud-optimised GeoTIFF of floats, with quantiles."""
    values = np.where(gaps(1, 24, 30), -9999, smooth(1, 24, 30)).astype(np.float32)
    source = write_tiff(folder / "float.tif", values, -9999, ("temperature",))
    return read_tiff(fill(source, folder / "float.out.tif", "--quantile", 0.25, "--max-distance", 6))


@case
def geotiff_bands(folder: Path) -> xr.Dataset:
    """A plain GeoTIFF of two of three bands of integers, within a mask."""
    values = np.where(gaps(3, 20, 22), 0, smooth(3, 20, 22) * 10).astype(np.uint16)
    source = write_tiff(folder / "bands.tif", values, 0, ("red", "green", "blue"))
    inside = (smooth(1, 20, 22) > 12.5).astype(np.uint8)
    mask = write_tiff(folder / "mask.tif", inside, 255, ("mask",))
    options = ("-b", 1, "-b", 3, "--mask", mask, "-f", "GTiff", "--co", "compress=deflate")
    return read_tiff(fill(source, folder / "bands.out.tif", *options))


@case
def netcdf_packed(folder: Path) -> xr.Dataset:
    """Packed integers, along time, with the reference system."""
    ds = raster(2, 24, 20).rio.write_crs("EPSG:32633").to_dataset().assign_attrs(title="synthetic")
    packing = {"dtype": "int16", "scale_factor": 0.01, "add_offset": 10.0, "_FillValue": np.int16(-32768)}
    ds.to_netcdf(source := folder / "packed.nc", engine="netcdf4", encoding={"sst": packing})
    return read_netcdf(fill(source, folder / "packed.out.nc", "--tails"))


@case
def netcdf_classes(folder: Path) -> xr.Dataset:
    """Classes from file to file."""
    states(20, 24).to_netcdf(source := folder / "states.nc", engine="netcdf4")
    return read_netcdf(fill(source, folder / "states.out.nc", model="classes"))


# Scattered measurements


@case
def points_to_grid(folder: Path) -> xr.Dataset:
    """Two columns of projected measurements to a grid."""
    table, grid = stations(300, 3e4, 4e5, 5e6), lattice(24, 3e4, 4e5, 5e6)
    options = {"values": ["t", "u"], "crs": "EPSG:32633", "quantiles": [0.1, 0.9], "max_distance": 2000}
    return geonp.interpolate(table, grid, **tiny(folder), **options)


@case
def points_to_lazy_grid(folder: Path) -> xr.Dataset:
    """Longitudes and latitudes to a projected grid in chunks."""
    table = stations(200, 0.4, 13.6, 45.1).rename(columns={"x": "lon", "y": "lat"})
    grid = lattice(20, 3e4, 4e5, 5e6).chunk(y=9, x=20)
    return geonp.interpolate(table, grid, **tiny(folder), values="t", tails=True)


@case
def points_to_places(folder: Path) -> xr.Dataset:
    """Places on the sphere, on both sides of the date line."""
    table = stations(300, 40.0, 160.0, 40.0).rename(columns={"x": "lon", "y": "lat"})
    table["lon"] = (table["lon"] + 180) % 360 - 180
    at = pd.DataFrame({"lon": np.append(np.linspace(165, 179, 15), np.linspace(-179, -165, 15)), "lat": 60.0})
    return geonp.interpolate(table, at, **tiny(folder), values="t", tails=True)


@case
def points_to_projected_places(folder: Path) -> xr.Dataset:
    """Projected places, by the default model."""
    return geonp.interpolate(stations(150, 50.0), stations(60, 50.0)[["x", "y"]], values=["u"], batch_size=4)


@case
def grid_netcdf(folder: Path) -> xr.Dataset:
    """``geonp grid`` from text to NetCDF."""
    stations(200, 5.0, 10.0, 45.0).rename(columns={"x": "lon", "y": "lat"}).to_csv(folder / "a.csv", index=False)
    options = ("--resolution", 0.25, "--value", "t", "--quantile", 0.9, "--model", folder / "tiny.safetensors")
    run("grid", folder / "a.csv", folder / "a.nc", *options, "--quiet")
    return read_netcdf(folder / "a.nc")


@case
def grid_geotiff(folder: Path) -> xr.Dataset:
    """``geonp grid`` to the grid of another raster, by the default model."""
    like = write_tiff(folder / "like.tif", np.ones((1, 18, 20), np.float32), -1, ("one",))
    stations(120, 600.0, 500_000.0, 5_199_400.0).to_csv(folder / "b.csv", index=False, sep=";")
    options = ("--like", like, "--crs", "EPSG:32633", "--value", "u", "--quiet")
    run("grid", folder / "b.csv", folder / "b.tif", *options)
    return read_tiff(folder / "b.tif")


# Tables


def results(names: list[str] | None = None) -> Iterator[tuple[str, xr.Dataset, Table]]:
    """Each case with what it gives and the table of that."""
    with TemporaryDirectory() as folder, one_thread():
        save_models(Path(folder))
        for name in names or CASES:
            yield name, *result(name, Path(folder))


def result(name: str, folder: Path) -> tuple[xr.Dataset, Table]:
    """What a case gives, and the table of that."""
    found = CASES[name](folder)
    chunks = {str(key): str(v.chunks) for key, v in found.variables.items() if v.chunks is not None}
    table = table_of(found.load())
    table[""]["chunks"] = chunks
    return found, table


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread, and no processes but those of clusters."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with dask.config.set(scheduler="synchronous", num_workers=1), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Consolidated metadata")
            warnings.filterwarnings("ignore", category=PendingDeprecationWarning, message="Use `@` matmul")
            yield
    finally:
        torch.set_num_threads(threads)


def table_of(ds: xr.Dataset) -> Table:
    """All that can be compared of a Dataset."""
    order = {"order": ", ".join(map(str, ds.data_vars))}
    table: Table = {"": {"attrs": attributes(ds.attrs), "sizes": {str(k): n for k, n in ds.sizes.items()}, **order}}
    for name, variable in ds.variables.items():
        values = np.ascontiguousarray(variable.values)
        content = repr(values.tolist()).encode() if values.dtype.kind in "OUT" else values.tobytes()
        encoding = {key: plain(variable.encoding[key]) for key in ENCODINGS if variable.encoding.get(key) is not None}
        table[str(name)] = {
            "dims": list(map(str, variable.dims)),
            "dtype": str(variable.dtype),
            "coordinate": name in ds.coords,
            "attrs": attributes(variable.attrs),
            "encoding": encoding,
            "sha256": hashlib.sha256(content).hexdigest(),
        }
    return table


def attributes(attrs: dict[Any, Any]) -> dict[str, str]:
    """Attributes with their types; of texts with the time in them only the number of lines."""
    return {
        str(key): f"{len(str(value).splitlines())} lines" if key in VOLATILE else plain(value)
        for key, value in attrs.items()
    }


def plain(value: Any) -> str:
    """A value with its type, the same in all releases of NumPy."""
    if isinstance(value, np.ndarray | np.generic):
        return f"{value.dtype} {value.tolist()!r}"
    if isinstance(value, str | np.dtype):
        return str(value)
    return f"{type(value).__name__} {value!r}"


def values_of(ds: xr.Dataset) -> Iterator[tuple[str, npt.NDArray[Any]]]:
    """Arrays of numbers that a tolerance is for; floats are rounded to less than 1e-4 of their range."""
    for name, da in ds.data_vars.items():
        if str(name).endswith("_fill_flag") or da.dtype.kind not in "iuf" or not da.ndim:
            continue
        values = da.values
        if values.dtype.kind == "f":
            step = 2.0 ** np.floor(np.log2((np.ptp(values[np.isfinite(values)]) or 1.0) * 1e-4))
            values = (np.round(values / step) * step).astype(np.float32)
        yield str(name), values


def differences(before: Any, after: Any, path: str = "") -> Iterator[str]:
    """Lines that say what differs between tables, and where."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in dict.fromkeys([*before, *after]):
            where = f"{path} / {key or 'Dataset'}" if path else key
            if key not in after:
                yield f"{where}: gone, was {short(before[key])}"
            elif key not in before:
                yield f"{where}: new, {short(after[key])}"
            else:
                yield from differences(before[key], after[key], where)
    elif before != after:
        yield f"{path}: was {short(before)}, is {short(after)}"


def short(value: Any) -> str:
    """A text that fits on a line."""
    text = json.dumps(value)
    return text if len(text) < 160 else f"{text[:160]}..."


def main() -> int:
    """Hash, compare, or write values."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("hash", "compare", "values"))
    parser.add_argument("file", nargs="?", help="table to compare with, or values to write")
    parser.add_argument("--case", action="append", choices=list(CASES), help="only this case; repeatable")
    asked = parser.parse_args()
    if asked.command != "hash" and asked.file is None:
        parser.error(f"{asked.command} needs a file")
    found = results(asked.case)
    if asked.command == "hash":
        about = {"commit": commit(), "processor": processor()}
        print(json.dumps({**about, "cases": {name: table for name, _, table in found}}, indent=1))
        return 0
    if asked.command == "values":
        arrays = {f"{case}/{name}": values for case, ds, _ in found for name, values in values_of(ds)}
        np.savez_compressed(asked.file, **arrays)
        return 0
    before = json.loads(Path(asked.file).read_text())
    if before["processor"] != processor():
        print(f"Hashes of floats differ between processors: {before['processor']}, here {processor()}", file=sys.stderr)
    n = 0
    for name, _, table in found:
        lines = list(differences(before["cases"].get(name, {}), table, name))
        n += len(lines)
        print("\n".join(lines) if lines else f"{name}: the same", flush=True)
    print(f"{n} differences" if n else "no differences")
    return int(n > 0)


def commit() -> str:
    """Hash of the commit that is checked out."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def processor() -> str:
    """Name of the processor, as far as it is known."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


if __name__ == "__main__":
    sys.exit(main())
