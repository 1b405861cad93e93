"""infill(): the one orchestration. NumPy and dask arrays, the accessor and the command line all take this path."""

from __future__ import annotations

import math
import os
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import dask.array as da
import numpy as np
import numpy.typing as npt
import xarray as xr
from dask.system import CPU_COUNT

from geonp.errors import InputError
from geonp.fill.chunks import count_batches, fill_chunks, task_bytes
from geonp.fill.request import FillOptions, Raster, Request, prepare, spatial_last
from geonp.fill.samples import sample_chunks
from geonp.inference.kernel import quantile_of, record
from geonp.inference.parallel import WORKER_BYTES, number_of_cores, number_of_processes
from geonp.inference.predictor import TARGET_BUCKETS, batch_bytes
from geonp.inference.stack import KINDS
from geonp.raster.classes import annotate_classes, class_reader, codes
from geonp.raster.metadata import annotate, provenance
from geonp.raster.nodata import observed, reader
from geonp.raster.windows import CHUNK_PX

if TYPE_CHECKING:
    from typing import Unpack

__all__ = ["FillPlan", "infill", "plan", "planned", "processes_bytes", "template"]

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


def infill(
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
) -> xr.Dataset:
    """Fill the missing cells of a raster, with a standard error for each.

    Missing are NaN, infinities, the nodata value and what lies beyond CF's valid range. Each spatial slice is filled on
    its own, unless `across` names a dimension along which they tell about each other; time, band and other dimensions
    are looped over. The result does not depend on the chunks of `obj` or on `batch_size`, but for rounding: some 1e-5
    standard errors in float32, about a tenth at most in bfloat16.

    Parameters
    ----------
    obj : DataArray or Dataset
        With two spatial dimensions (see :meth:`geonp.raster.grid.Grid.from_xarray`) and any others. NumPy arrays are
        computed at once; dask arrays stay lazy and keep their chunks.
    model : str or path
        Name of a shipped model (``geonp models``), or the path of a ``.safetensors`` checkpoint.
    mask : DataArray or array of bool, optional
        ``(rows, columns)``, True where the raster is valid. Missing cells outside stay empty; observed ones keep their
        value but serve no other as context.
    max_distance : float, optional
        Leave cells empty that are farther than this from every observation, in cells.
    device : str, optional
        ``"cpu"``, ``"cuda"``, ...; the GPU by default where there is one.
    batch_size : int, optional
        Tiles in one forward pass; chosen from the free memory by default.
    seed : int
        Of the choice of far context.
    nodata : float, optional
        Value of missing cells, instead of the declared one.
    quantiles : sequence of float, optional
        Probabilities between 0 and 1 whose quantiles are added: ``[0.05, 0.95]`` are the ends of the 90 % interval.
    tails : bool
        Add the tails, which with mean and standard error make the whole distribution: see
        :mod:`geonp.inference.student`.
    samples : int
        Add so many joint samples of the filled cells: possible rasters, in which neighbouring cells differ as they do
        in truth, for what depends on several cells at once (a mean over a gap, a slope, a flow). Each cell is drawn
        on its own given all before it, so gaps must be small: see :data:`geonp.fill.samples.MAX_GAP`. Each slice is
        then held in memory whole, `samples` times.
    across : hashable, optional
        A dimension along which slices tell about each other, as ``"time"`` or ``"band"``: a missing cell that some of
        the eight nearest slices have is filled from these and its surroundings together, where that is surer than from
        the latter alone; see :mod:`geonp.inference.stack`. A slice without any observed cell stays empty. Models that
        :func:`geonp.adapt.adapt.adapt` found to profit do so by themselves, but for samples.

    Returns
    -------
    Dataset
        For each variable ``<name>``, filled, its observed cells bit-identical; ``<name>_standard_error``, in the same
        units, of a new measurement there (zero where observed); ``<name>_quantile`` along the dimension ``quantile``;
        ``<name>_tail``; ``<name>_sample`` along the dimension ``sample``, noise of a new measurement included;
        ``<name>_fill_flag``, see :class:`~geonp.raster.metadata.FillFlag`. Some 95 of 100 truths lie within
        1.96 standard errors of the filled value; for intervals of other levels ask for quantiles: errors may have
        heavier tails than a normal distribution. Other variables pass through. A DataArray without a name is called
        ``value``.

        A model of classes (``likelihood = "categorical"``) fills the CF flag variables that have as many
        ``flag_values`` as it has classes, in its order: ``<name>``, ``<name>_probability`` of each class along
        ``category``, and ``<name>_fill_flag``.

    Raises
    ------
    InputError
        For a raster, mask or option that cannot be used, or an array in memory without any observed cell; for a gap
        that is too large for samples, when computed.
    ModelError, CheckpointError
        For a model that does not exist or cannot be loaded.
    PredictionError
        When computed, if the model returns values that are not finite.
    """
    asked = prepare(
        obj,
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
    arrays = {name: _values(asked, asked.ds[name]) for name in asked.names}
    for name, array in arrays.items():
        if array.chunks is None and not np.isfinite(array.values).any():
            raise InputError(
                f"variable {name!r} has no observed cell, so there is nothing to fill from; "
                "check the nodata value, or leave the variable out"
            )
    parts = {name: _parts(asked, asked.ds[name]) for name in arrays}
    drawn = {name: _samples(asked, array, parts[name]) for name, array in arrays.items() if asked.samples}
    return _assembled(asked, parts, drawn, [name for name, array in arrays.items() if array.chunks is None])


def template(asked: Request) -> xr.Dataset:
    """What :func:`infill` gives, of zeros: dask arrays of a single chunk each, never to be computed."""
    parts = {}
    for name in asked.names:
        array = _values(asked, _without_data(asked.ds[name]))
        parts[name] = da.zeros(array.shape, dtype=record(array.dtype), chunks=-1)
    return _assembled(asked, parts, {})


def plan(obj: Raster, **options: Unpack[FillOptions]) -> FillPlan:
    """What :func:`infill` will do with the same arguments, found without reading data or filling anything.

    Gaps of up to :data:`COUNTED_CELLS` cells in memory are counted; else any tile may have some.

    Raises
    ------
    InputError, ModelError, CheckpointError
        As :func:`infill`.
    """
    return planned(prepare(obj, **options))


def planned(asked: Request, chunks: Mapping[Hashable, Mapping[Hashable, int]] | None = None) -> FillPlan:
    """The plan of what was asked for, its variables cut into `chunks` by name and dimension if these are given."""
    grid, job, card = asked.grid, asked.job, asked.card
    cut = chunks or {}
    arrays = [_values(asked, _without_data(asked.ds[name], cut.get(name))) for name in asked.names]
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
        * ((2 + len(asked.quantiles) + asked.samples) * itemsize + 4 * asked.tails + 4 * card.classes + 1),
    )


def _batches(asked: Request, name: Hashable, cut: xr.DataArray) -> int:
    """How many batches fill a variable, at most, cut into chunks as `cut` is; counted slice by slice."""
    others = [dim for dim in cut.dims if dim not in (asked.grid.y_dim, asked.grid.x_dim)]
    found = 0
    for index in np.ndindex(*(asked.ds[name].sizes[dim] for dim in others)):
        values = _values(asked, asked.ds[name].isel(dict(zip(others, index, strict=True)))).values
        found += count_batches(values, cut.data.chunks[-2:], asked.job)
    return found


def _on_cpu(device: str) -> bool:
    return device.partition(":")[0] == "cpu"


def processes_bytes(n_batches: int, device: str) -> int:
    """Bytes that the processes take that so many batches start here, beside these; an upper bound."""
    return number_of_processes(n_batches) * WORKER_BYTES if _on_cpu(device) else 0


def _values(asked: Request, array: xr.DataArray) -> xr.DataArray:
    """What the model reads of a variable: numbers, or numbers of classes, NaN where missing, rows and columns last."""
    read = codes if asked.card.classes else observed
    return spatial_last(read(array, asked.nodata), asked.grid)


def _without_data(array: xr.DataArray, cut: Mapping[Hashable, int] | None = None) -> xr.DataArray:
    """`array` as a dask array, chunked as it will be filled, none of which is ever computed."""
    chunks: Any = array.chunks or _chunks_in_memory(array.shape)
    if cut is not None:
        chunks = tuple(cut[dim] for dim in array.dims)
    return array.copy(data=da.zeros(array.shape, chunks=chunks, dtype=array.dtype))


def _chunks_in_memory(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (*(1,) * (len(shape) - 2), *(min(n, CHUNK_PX[1]) for n in shape[-2:]))


def _parts(asked: Request, source: xr.DataArray) -> da.Array:
    """The lazy result for one variable, an array with the fields of :class:`~geonp.inference.kernel.Filled`."""
    data = _lazy(spatial_last(source, asked.grid))
    domain = None if asked.domain is None else da.asarray(asked.domain).rechunk(data.chunks[-2:])
    read = (class_reader if asked.card.classes else reader)(source, asked.nodata)
    leading = [dim for dim in source.dims if dim not in (asked.grid.y_dim, asked.grid.x_dim)]
    axis = leading.index(asked.job.across) if asked.job.across in leading else None
    return fill_chunks(data, domain, asked.job, read, axis)


def _samples(asked: Request, array: xr.DataArray, parts: da.Array) -> da.Array:
    """Lazy joint samples of what `parts` fills."""
    domain = None if asked.domain is None else da.asarray(asked.domain)
    return sample_chunks(_lazy(array), parts, domain, asked.job, asked.samples, str(array.name))


def _lazy(array: xr.DataArray) -> da.Array:
    """The values of an array as a dask array, cut as they will be filled."""
    in_memory = array.chunks is None
    lazy: da.Array = (
        da.from_array(array.values, chunks=_chunks_in_memory(array.shape), name=False) if in_memory else array.data
    )
    return lazy


def _assembled(
    asked: Request,
    parts: Mapping[Hashable, da.Array],
    drawn: Mapping[Hashable, da.Array],
    compute: Sequence[Hashable] = (),
) -> xr.Dataset:
    """The Dataset of the input's other variables and the annotated results, some of them computed."""
    ds = asked.ds
    out = ds.drop_vars(asked.names)
    for name in asked.names:
        filled = _annotated(asked, ds[name], parts[name], drawn.get(name), out.attrs)
        filled = filled.compute() if name in compute else filled
        out = out.assign(filled.data_vars).assign_attrs(filled.attrs)
    return out[_ordered(ds, out, asked.results)]


def _annotated(
    asked: Request, source: xr.DataArray, parts: da.Array, drawn: da.Array | None, attrs: Mapping[Any, Any]
) -> xr.Dataset:
    card = asked.card
    array = spatial_last(source, asked.grid)

    def shaped(data: da.Array) -> xr.DataArray:
        return array.copy(data=data).transpose(*source.dims)

    stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    line = f"{stamp} geonp infill: {source.name or 'value'} filled by {card.name} {card.version}"
    if card.classes:
        each = [shaped(parts["probability"][..., i]) for i in range(card.classes)]
        return annotate_classes(
            shaped(parts["value"]),
            xr.concat(each, "category", coords="minimal").transpose("category", *source.dims),
            shaped(parts["flag"]),
            source=source,
            provenance=provenance(card.name, card.version, card.sha256),
            history_line=line,
            nodata=asked.nodata,
            attrs=attrs,
        )
    extra = {"tail": shaped(parts["tail"])} if asked.tails else {}
    if asked.quantiles:
        dtype = parts.dtype["value"]
        levels = [shaped(da.map_blocks(quantile_of, parts, q, dtype=dtype)) for q in asked.quantiles]
        along = xr.Variable("quantile", np.array(asked.quantiles))
        extra["quantile"] = xr.concat(levels, along, coords="minimal").transpose("quantile", *source.dims)
    if drawn is not None:
        each = [shaped(drawn[i]) for i in range(len(drawn))]
        along = xr.Variable("sample", np.arange(len(each)), {"standard_name": "realization", "units": "1"})
        extra["sample"] = xr.concat(each, along, coords="minimal").transpose("sample", *source.dims)
    return annotate(
        shaped(parts["value"]),
        shaped(parts["standard_error"]),
        shaped(parts["flag"]),
        source=source,
        extra=extra,
        nodata=asked.nodata,
        model_name=card.name,
        model_version=card.version,
        weights_hash=card.sha256,
        history_line=line,
        attrs=attrs,
    )


def _ordered(ds: xr.Dataset, out: xr.Dataset, results: Sequence[str]) -> list[Hashable]:
    """Variables in the order of the input, each followed by its `results`."""
    # filling names its outputs with strings, whatever the name of the input was
    order = (n for name in ds.data_vars for n in (name, str(name), *(f"{name}_{result}" for result in results)))
    return [name for name in dict.fromkeys(order) if name in out]
