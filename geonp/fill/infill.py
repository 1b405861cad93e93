"""infill(): fill a raster in memory or on dask. The accessor and the command line call it too.

The dask graph has one task per chunk, which reads the edges of its neighbours' chunks itself. The result has the chunks
of the raster, and does not depend on them.
"""

from __future__ import annotations

import itertools
import logging
from bisect import bisect_right
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Literal, Unpack

import dask.array as da
import numpy as np
import xarray as xr
from dask.base import tokenize
from dask.delayed import Delayed
from dask.highlevelgraph import HighLevelGraph

from geonp.fill.blocks import BlockSource
from geonp.fill.bounds import mapped, said, warping_array, warping_of
from geonp.fill.doubts import Watch, check_in_memory
from geonp.fill.elsewhere import Target, check_points, check_support, filled_at, onto
from geonp.fill.gaps import gap_size_mask, with_holes
from geonp.fill.measurements import with_measurements
from geonp.fill.options import FillOptions
from geonp.fill.outputs import ordered, result_arrays
from geonp.fill.region import alone, fill_region
from geonp.fill.report import warn_of_land
from geonp.fill.request import Request, prepare
from geonp.fill.signatures import FillKeywords, takes_fill_options
from geonp.fill.surroundings import Placement, Region
from geonp.fill.variables import Raster
from geonp.inference.batch_counts import most_batches
from geonp.inference.kernel import FillJob, as_read, result_dtype
from geonp.inference.warping import Warping
from geonp.raster.arrays import Array, BoolArray, StructArray
from geonp.raster.covariates import Covariate, check_values
from geonp.raster.metadata import FillFlag, Kind, dataset_attrs
from geonp.raster.nodata import Reader
from geonp.raster.variable import Variable
from geonp.raster.windows import CHUNKS, Piece, Window, pieces

logger = logging.getLogger(__name__)


@takes_fill_options
def infill(
    obj: Raster,
    *,
    at: xr.DataArray | xr.Dataset | None = None,
    support: Literal["point", "cell"] = "point",
    **options: Unpack[FillKeywords],
) -> xr.Dataset:
    """Fill the missing cells of a raster, with a standard error for each.

    A cell is missing if it is NaN, infinite, the nodata value, or outside the CF valid range. Each slice along other
    dimensions, such as time and band, is filled on its own, unless `across` names dimensions along which slices are
    filled from each other. The result does not depend on the chunks of `obj` or on `batch_size`, apart from rounding:
    about 1e-5 of a standard error on CPUs, at most a tenth on GPUs, which compute in bfloat16.

    Parameters
    ----------
    obj : DataArray or Dataset
        With two spatial dimensions (y and x, latitude and longitude, or as CF attributes say) and any others. dask
        arrays stay lazy and keep their chunks; all other arrays are read and filled at once.
    at : DataArray or Dataset, optional
        Fill onto the grid of this raster, finer or coarser, in any CRS. By default the grid of `obj`.
    support : {"point", "cell"}
        On the grid of `at`, predict values at the centres of cells, or means over cells.
    **options
        Options of the fill, see :class:`geonp.fill.options.FillOptions`.

    Returns
    -------
    Dataset
        For each variable ``<name>``: the filled values, in its dtype, observed cells bit-identical;
        ``<name>_standard_error`` of a new measurement, zero where observed; ``<name>_quantile`` along ``quantile``;
        ``<name>_exceedance`` along ``threshold``; ``<name>_tail`` and, with `bounds`, ``<name>_latent``,
        ``<name>_latent_error`` and ``<name>_warping``, see ``geonp.student.Distribution``; ``<name>_sample`` along
        ``sample``, measurement noise included; and ``<name>_fill_flag`` (int8): 0 observed, 1 filled, 2 left empty as
        observations are too far or too few, 3 outside the mask, 4 failed (in stores), 5 filled from other slices only.
        Results are float32, or float64 for float64 and integers of at least 32 bits; all probabilities are float32.

        About 95 % of the true values lie within 1.96 standard errors. For other intervals ask for quantiles. Variables
        that are not filled pass through. A DataArray without a name is called ``value``.

        A classification model fills the CF flag variables that have its number of ``flag_values``, in its order. Then
        ``<name>_probability`` has the probability of each class along ``category``.

    Raises
    ------
    InputError
        For a raster, mask or option that cannot be used, or an array in memory without any observed cell.
    ModelError, CheckpointError
        For a model that does not exist or cannot be loaded.
    PredictionError
        When computed, if the model returns values that are not finite.

    Examples
    --------
    >>> dem = xr.DataArray(np.hypot(*np.mgrid[:24, :32]), dims=("y", "x"), name="height")
    >>> dem = dem.where((dem < 20) | (dem > 24))
    >>> filled = geonp.infill(dem)
    >>> list(filled)
    ['height', 'height_standard_error', 'height_fill_flag']
    >>> int(dem.isnull().sum()), int(filled["height"].isnull().sum())
    (141, 0)
    """
    check_support(support, at)
    request = with_holes(with_measurements(prepare(obj, FillOptions.of(options, "infill"))))
    logger.info("filling %s with %s", ", ".join(v.label for v in request.variables), request.card.name)
    useful = list(request.covariates)
    for variable in request.variables:
        if variable.source.chunks is None:
            check_in_memory(variable, request.domain, hint=variable.name not in request.bounds)
        for covariate in request.covariates:
            in_memory = variable.source.chunks is None and covariate.variable.source.chunks is None
            if in_memory and not check_values(covariate, variable):
                useful = [other for other in useful if other is not covariate]
    covariates = [(covariate, _covariate(request, covariate)) for covariate in useful]
    warpings, filled = warpings_of(request), {}
    if at is not None and not (target := onto(request, at)).same():
        return _elsewhere(obj, request, target, support, warpings, dict(options))
    for variable in request.variables:
        slices = request.beside(variable)[len(request.covariates) :]
        beside = [*covariates, *((other, _covariate(request, other)) for other in slices)]
        filled[variable.name] = _filled(request, variable, beside, warpings.get(variable.name))
        warn_of_land(filled[variable.name], variable)
    return _assembled(request, filled, warpings)


def _elsewhere(
    obj: Raster,
    request: Request,
    target: Target,
    support: str,
    warpings: Mapping[Hashable, Any],
    options: dict[str, Any],
) -> xr.Dataset:
    """The fill onto another grid than that of the raster."""
    without = replace(request, ds=target.without_raster(request), options=replace(request.options, samples=0))
    if support == "cell":
        from geonp.fill.cells import means_at  # which fills, too

        return _assembled(without, means_at(obj, request, target, options), {})
    check_points(request)
    found = {v.name: filled_at(request, target, v, warpings.get(v.name)) for v in request.variables}
    return _assembled(without, found, warpings)


def warpings_of(request: Request) -> dict[Hashable, Any]:
    """The map of each bounded variable, a dask ``Delayed`` of it if the variable is lazy."""
    return {v.name: warping_of(v, request.bounds[v.name]) for v in request.variables if v.name in request.bounds}


def template(request: Request, warpings: Mapping[Hashable, Warping] | None = None) -> xr.Dataset:
    """The Dataset that :func:`infill` gives, of zeros: dask arrays of a single chunk, which are never computed.

    `warpings` are the maps of bounded variables, which are not zeros.
    """
    arrays = {}
    for variable in request.variables:
        found: dict[Hashable, xr.DataArray] = {}
        for output in request.outputs(variable):
            shape = (() if output.along is None else output.along.shape) + variable.shape
            found[output.name] = output.array(variable, da.zeros(shape, dtype=output.dtype, chunks=-1))
        arrays[variable.name] = found
    return _assembled(request, arrays, {} if warpings is None else warpings)


def _filled(
    request: Request, variable: Variable, covariates: Sequence[tuple[Covariate, da.Array]], warping: Any = None
) -> dict[Hashable, xr.DataArray]:
    """The results of a variable: computed if it is in memory, otherwise lazy."""
    source, job = variable.spatial_last, request.job.of(variable)
    in_memory = source.chunks is None
    if in_memory:
        stored = da.from_array(source.values, chunks=chunks_in_memory(source.shape), name=False)
    else:
        stored = source.data
    chunks, stored = stored.chunks, _cut(stored, job)
    domain = None if request.domain is None else da.asarray(request.domain).rechunk(stored.chunks[-2:])
    beside = [(Placement.of(covariate, variable), data) for covariate, data in covariates]
    watch = None if in_memory else Watch.over(variable, stored.npartitions, hint=warping is None)
    size_mask = gap_size_mask(request, variable)
    size_mask = None if size_mask is None else da.asarray(size_mask).rechunk(stored.chunks)
    result = _fill_chunks(variable, stored, domain, job, beside, warping, watch, size_mask).rechunk(chunks)
    if warping is not None:
        result = mapped(result, warping, request.options.bare)
    arrays = result_arrays(variable, request.outputs(variable), result, stored.rechunk(chunks))
    return dict(xr.Dataset(arrays).compute().items()) if in_memory else arrays


def _assembled(
    request: Request, arrays: Mapping[Hashable, Mapping[Hashable, xr.DataArray]], warpings: Mapping[Hashable, Any]
) -> xr.Dataset:
    """The variables of the input that are not filled, and the results of the others, in the order of the input."""
    card, out = request.card, request.ds.drop_vars([variable.name for variable in request.variables])
    attrs, found = out.attrs, dict[Hashable, dict[Hashable, xr.DataArray]]()
    coords, results = dict[Hashable, xr.Variable](), dict[Hashable, xr.Variable]()
    for variable in request.variables:
        what = "and smoothed " * request.options.smooth + f"as {variable.kind} " * (variable.kind is not Kind.NUMBERS)
        line = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ} geonp infill: "
        line += f"{variable.label} filled {what}by {card.name} {card.version}"
        attrs = dataset_attrs(attrs, line, card.name, card.version, card.sha256)
        if names := [covariate.variable.label for covariate in request.covariates if not covariate.known_errors]:
            attrs["geonp_covariates"] = " ".join(names)
        if across := [str(a.dim) for a in request.job.across]:
            attrs["geonp_across"] = " ".join(across)
        if request.flags is not None and (texts := [text for text, _ in request.flags.sources if text]):
            attrs["geonp_missing"] = "; ".join(texts)
        if series := request.job.series:
            attrs["geonp_empty_slices"] = f"filled across {series.dim}"
        if errors := [covariate.variable.label for covariate in request.covariates if covariate.known_errors]:
            attrs["geonp_errors"] = errors[0]
        for kind in (Kind.CLASSES, Kind.DIRECTIONS, Kind.COUNTS):
            if names := [one.label for one in request.variables if one.kind is kind]:
                attrs[f"geonp_{kind}"] = " ".join(names)
        attrs |= said(request.options, request.bounds)
        found[variable.name] = dict(arrays[variable.name])
        if request.options.tails and variable.name in warpings:
            found[variable.name][f"{variable.label}_warping"] = warping_array(variable, warpings[variable.name])
        # of arrays, xarray would align the indexes, and drop single levels of them
        for name, array in found[variable.name].items():
            results[name] = array.variable
            coords |= {dim: coord.variable for dim, coord in array.coords.items() if dim not in out.coords}
    return ordered(request.ds, out.assign_coords(coords).assign(results).assign_attrs(attrs), found)


def chunks_in_memory(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Chunks in which an array in memory is filled; rows and columns last."""
    return (*(1,) * (len(shape) - 2), *(min(n, CHUNKS.largest_px) for n in shape[-2:]))


def _fill_chunks(
    variable: Variable,
    data: da.Array,
    domain: da.Array | None,
    job: FillJob,
    covariates: Sequence[tuple[Placement, da.Array]] = (),
    warping: Any = None,
    watch: Watch | None = None,
    size_mask: da.Array | None = None,
) -> da.Array:
    """A lazy array with the fields of :func:`geonp.inference.kernel.result_dtype`, in the chunks of `data`.

    Parameters
    ----------
    data : dask array
        Stored values of the variable ``(..., rows, cols)``.
    domain : dask array or None
        ``(rows, cols)``: True where a value may be.
    covariates : sequence
        The place of each covariate, and the result of its own fill.
    warping : Warping or dask Delayed, optional
        Map of bounded values.
    watch : Watch, optional
        Looks at the blocks for doubtful values.
    size_mask : dask array, optional
        In the chunks of `data`: False in gaps larger than `max_gap`.
    """
    read, lazy = variable.read, isinstance(warping, Delayed)
    job, key = (job, warping.key) if lazy else (replace(job, warping=warping), None)
    *lead, y_chunks, x_chunks = data.chunks
    beside = [
        (place, result.rechunk((*(lead[axis] for axis in place.axes), y_chunks, x_chunks)))
        for place, result in covariates
    ]
    names = [(place, result.name) for place, result in beside]
    masks_ = [mask for mask in (domain, size_mask) if mask is not None]
    name = "geonp-fill-" + tokenize(data.name, [mask.name for mask in masks_], job, read, names, key)
    edges = [[0, *itertools.accumulate(sizes)] for sizes in lead]
    blocks = [_with_neighbours(variable, block, edges, job) for block in np.ndindex(data.numblocks[:-2])]
    graph: dict[Any, Any] = {}
    for (i, j), chunk in _windows(y_chunks, x_chunks):
        rows, cols = (pieces(*of) for of in zip(job.cells(chunk), (y_chunks, x_chunks), strict=True))
        masks = None if domain is None else _keys(domain, (), rows, cols)
        for (block, *others), slices in blocks:
            stack = [_keys(data, n, rows, cols) for n in (block, *others)]
            starts = [tuple(edge[k] for edge, k in zip(edges, n, strict=True)) for n in (block, *others)]
            region, own = replace(slices, chunk=chunk), (data.name, *block, i, j)
            near = [[place, _keys(result, tuple(block[k] for k in place.axes), rows, cols)] for place, result in beside]
            around = _around(data, domain, job, chunk, block) if job.predictor.neighbourhood.far else None
            small = None if size_mask is None else _keys(size_mask, block, rows, cols)
            parts = own, stack, starts, masks, rows, cols, near, around, small
            graph[(name, *block, i, j)] = (_fill, region, job, key, watch, (*block, i, j), read, *parts)
    sources: list[Any] = [data, *masks_, *(result for _, result in beside)]
    sources += [warping] if lazy else []
    layers = HighLevelGraph.from_collections(name, graph, dependencies=sources)
    return da.Array(layers, name, data.chunks, dtype=result_dtype(read.dtype, job))


def _cut(data: da.Array, job: FillJob) -> da.Array:
    """`data` with a border of chunks at the column where tiles begin."""
    edges = sorted({0, *itertools.accumulate(data.chunks[-1]), job.first_col})
    cut: da.Array = data.rechunk((*data.chunks[:-1], tuple(b - a for a, b in itertools.pairwise(edges))))
    return cut


def _around(data: da.Array, domain: da.Array | None, job: FillJob, chunk: Window, block: tuple[int, ...]) -> list[Any]:
    """Keys of the blocks that the far window of a chunk touches, and their parts: a ``FarBlocks`` of the region."""
    rows, cols = (pieces(*of) for of in zip(job.far_cells(chunk), data.chunks[-2:], strict=True))
    masks = None if domain is None else _keys(domain, (), rows, cols)
    return [_keys(data, block, rows, cols), masks, rows, cols]


def _keys(array: da.Array, block: tuple[int, ...], rows: Sequence[Piece], cols: Sequence[Piece]) -> list[list[Any]]:
    """Keys of the chunks of `array` that hold the parts of rows and columns, at `block` of its leading dimensions."""
    return [[(array.name, *block, row.chunk, col.chunk) for col in cols] for row in rows]


def _with_neighbours(
    variable: Variable, block: tuple[int, ...], edges: Sequence[Sequence[int]], job: FillJob
) -> tuple[list[tuple[int, ...]], Region]:
    """The numbers of a block along the leading dimensions and of those with neighbouring slices; and its slices.

    The slices are a region whose rows and columns are left open. `edges` are the first slices of all blocks along each
    leading dimension, and the number of slices.
    """
    lead = tuple(range(edge[k], edge[k + 1]) for edge, k in zip(edges, block, strict=True))
    region = Region.of(variable, lead, Window(0, 0, 0, 0), job)
    numbers = [block]
    for axis, near in (*region.beside, *region.series):
        along = {bisect_right(edges[axis], k) - 1 for k in itertools.chain(*near)} - {block[axis]}
        numbers += [(*block[:axis], k, *block[axis + 1 :]) for k in sorted(along)]
    return list(dict.fromkeys(numbers)), region


def _covariate(request: Request, covariate: Covariate) -> da.Array:
    """The result of filling the gaps of a covariate from itself, in memory if the covariate is."""
    source, read = covariate.variable.spatial_last, covariate.variable.read
    in_memory = source.chunks is None
    chunks = chunks_in_memory(source.shape)
    data: da.Array = da.from_array(source.values, chunks=chunks, name=False) if in_memory else source.data
    data = _cut(data, request.job)
    if covariate.as_read:
        dtype = result_dtype(read.dtype)
        result: da.Array = da.map_blocks(_as_read, data, read, dtype=dtype, meta=np.empty((0,) * data.ndim, dtype))
    else:
        domain = None if request.domain is None else da.asarray(request.domain).rechunk(data.chunks[-2:])
        watch = None if in_memory else Watch.over(covariate.variable, data.npartitions, hint=False)
        result = _fill_chunks(covariate.variable, data, domain, alone(request.job), watch=watch)
    if in_memory:
        result = da.from_array(result.compute(), chunks=data.chunks, name=False)
    return result


def _as_read(stored: Array, read: Reader) -> Array:
    return as_read(read(stored), FillFlag.OBSERVED)


def _fill(
    region: Region, job: FillJob, warping: Warping | None, watch: Watch | None, place: Any, *parts: Any
) -> StructArray:
    job = job if warping is None else replace(job, warping=warping)
    source = BlockSource(region, job, *parts)
    if watch is not None:
        watch.see(tuple(place), *source.in_domain())
    return fill_region(region, source, job)[0]


def count_batches(missing: BoolArray, chunks: Sequence[tuple[int, ...]], job: FillJob) -> int:
    """Upper bound of the batches that fill a slice, from its mask of missing cells ``(rows, cols)`` and its chunks."""
    total = 0
    for _, chunk in _windows(*chunks):
        if missing[chunk.row : chunk.row_end, chunk.col : chunk.col_end].any():
            rows, cols = job.cells(chunk)
            within = (rows >= 0)[:, None] & (cols >= 0)
            there = missing[np.ix_(rows, cols)]
            total += most_batches(within & there, within & ~there, chunk, job)
    return total


def _windows(y_chunks: tuple[int, ...], x_chunks: tuple[int, ...]) -> Iterator[tuple[tuple[int, int], Window]]:
    """The numbers of each chunk along both dimensions, and its cells."""
    bounds = [list(itertools.pairwise(itertools.accumulate(sizes, initial=0))) for sizes in (y_chunks, x_chunks)]
    for (i, rows), (j, cols) in itertools.product(*map(enumerate, bounds)):
        yield (i, j), Window(*rows, *cols)
