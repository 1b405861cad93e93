"""plan(): what a fill will do, found without reading data."""

from __future__ import annotations

import math
import os
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt
import xarray as xr
from dask.system import CPU_COUNT

from geonp.fill.chunks import count_batches, task_bytes
from geonp.fill.options import FillOptions
from geonp.fill.request import Raster, Request, prepare, values_of, without_data
from geonp.inference.parallel import WORKER_BYTES, number_of_cores, number_of_processes
from geonp.inference.predictor import TARGET_BUCKETS, batch_bytes
from geonp.inference.stack import KINDS

__all__ = ["FillPlan", "plan", "planned", "processes_bytes"]

LIBRARIES_BYTES = 450 * 2**20
"""What Python, torch and the kernels that it compiles take before any raster is read."""

COUNTED_CELLS = 2**24
"""Cells up to which a plan counts gaps: whether processes start, which take as much as all else, hangs on them."""


@dataclass(frozen=True)
class FillPlan:
    """What a fill will do; made without reading data.

    Attributes
    ----------
    variables : tuple of str
        Those that will be filled.
    shape, slices : tuple of int, int
        ``(rows, columns)``, and how many of such slices there are over all variables.
    chunk_px : tuple of int
        Rows and columns of the largest chunk.
    tile_px, halo_px, n_context : int
        Side of a tile, the farthest its context may come from, and the number of context points.
    tiles, batches : int
        All tiles, of which only those with gaps are computed; and in how many forward passes, at most.
    model, device, precision : str
    batch_size : int
        Tiles in one forward pass.
    peak_bytes : int
        Predicted peak memory, beside the input and a result held in memory.
    result_bytes : int
        Size of the result.
    """

    variables: tuple[str, ...]
    shape: tuple[int, int]
    slices: int
    chunk_px: tuple[int, int]
    tile_px: int
    halo_px: int
    n_context: int
    tiles: int
    batches: int
    model: str
    device: str
    precision: str
    batch_size: int
    peak_bytes: int
    result_bytes: int

    def summary(self) -> dict[str, object]:
        """The attributes as plain values, for printing or JSON."""
        return asdict(self)


def plan(
    obj: Raster,
    *,
    model: str | os.PathLike[str] = "tnpkr-sa",
    mask: xr.DataArray | npt.NDArray[np.bool_] | None = None,
    max_distance: float | None = None,
    device: str | None = None,
    batch_size: int | None = None,
    seed: int = 0,
    nodata: float | None = None,
    quantiles: Sequence[float] = (),
    tails: bool = False,
    samples: int = 0,
    across: Hashable | None = None,
) -> FillPlan:
    """Plan a fill: what :func:`geonp.infill` will do with the same arguments. No data are read, nothing is filled.

    Gaps are counted in arrays in memory of up to :data:`COUNTED_CELLS` cells; in others any tile may have some.

    Parameters
    ----------
    obj : DataArray or Dataset
    model, mask, max_distance, device, batch_size, seed, nodata, quantiles, tails, samples, across
        As in :func:`geonp.infill`.

    Raises
    ------
    InputError, ModelError, CheckpointError
        As :func:`geonp.infill`.
    """
    options = FillOptions(
        model=model,
        mask=mask,
        max_distance=max_distance,
        device=device,
        batch_size=batch_size,
        seed=seed,
        nodata=nodata,
        quantiles=quantiles,
        tails=tails,
        samples=samples,
        across=across,
    )
    return planned(prepare(obj, options))


def planned(asked: Request, chunks: Mapping[Hashable, Mapping[Hashable, int]] | None = None) -> FillPlan:
    """The plan of what was asked for, its variables cut into `chunks` by name and dimension if these are given."""
    grid, job, card, options = asked.grid, asked.job, asked.card, asked.options
    cut = chunks or {}
    arrays = [values_of(asked, without_data(asked.ds[name], cut.get(name))) for name in asked.names]
    predictor, size = job.predictor, job.predictor.neighbourhood.tile_px
    largest = [tuple(max(sizes) for sizes in array.data.chunks) for array in arrays]
    chunk = (max(sizes[-2] for sizes in largest), max(sizes[-1] for sizes in largest))
    itemsize = max(array.dtype.itemsize for array in arrays)
    slices = sum(int(np.prod(array.shape[:-2])) for array in arrays)
    cells = slices * grid.shape[0] * grid.shape[1]
    blocks = sum(math.prod(array.data.numblocks) for array in arrays)
    windows = min(CPU_COUNT, blocks)
    tiles = slices * -(-grid.shape[0] // size) * -(-grid.shape[1] // size)
    few = cells <= COUNTED_CELLS and all(asked.ds[name].variable._in_memory for name in asked.names)
    if few:
        n_batches = sum(_batches(asked, *of) for of in zip(asked.names, arrays, strict=True))
    else:
        n_batches = min(-(-tiles // predictor.batch_size) + blocks * len(TARGET_BUCKETS), tiles)
    n_batches *= 1 if job.across is None else KINDS + 2
    at_once = min(number_of_cores(), max(n_batches, 1)) if _on_cpu(predictor.device) else 1
    return FillPlan(
        variables=tuple(str(name) for name in asked.names),
        shape=grid.shape,
        slices=slices,
        chunk_px=chunk,
        tile_px=size,
        halo_px=job.frame,
        n_context=predictor.neighbourhood.n_context,
        tiles=tiles,
        batches=n_batches,
        model=predictor.model,
        device=predictor.device,
        precision=predictor.precision,
        batch_size=predictor.batch_size,
        peak_bytes=LIBRARIES_BYTES
        + at_once * batch_bytes(predictor.neighbourhood, predictor.batch_size, predictor.device)
        + windows * max(task_bytes(c, job, itemsize) for c in largest)
        + processes_bytes(n_batches, predictor.device),
        result_bytes=cells
        * ((2 + len(options.quantiles) + options.samples) * itemsize + 4 * options.tails + 4 * card.classes + 1),
    )


def _batches(asked: Request, name: Hashable, cut: xr.DataArray) -> int:
    """How many batches fill a variable, at most, cut into chunks as `cut` is; counted slice by slice."""
    others = [dim for dim in cut.dims if dim not in (asked.grid.y_dim, asked.grid.x_dim)]
    found = 0
    for index in np.ndindex(*(asked.ds[name].sizes[dim] for dim in others)):
        values = values_of(asked, asked.ds[name].isel(dict(zip(others, index, strict=True)))).values
        found += count_batches(values, cut.data.chunks[-2:], asked.job)
    return found


def _on_cpu(device: str) -> bool:
    return device.partition(":")[0] == "cpu"


def processes_bytes(n_batches: int, device: str) -> int:
    """Bytes that the processes take that so many batches start here, beside these; an upper bound."""
    return number_of_processes(n_batches) * WORKER_BYTES if _on_cpu(device) else 0
