"""The plan of a fill: tiles, batches and memory, found without reading data."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import asdict, dataclass
from typing import Unpack

import dask.array as da
import numpy as np
from dask.system import CPU_COUNT

from geonp.fill.infill import chunks_in_memory, count_batches
from geonp.fill.options import FillOptions
from geonp.fill.request import Request, prepare
from geonp.fill.signatures import FillKeywords, takes_fill_options
from geonp.fill.variables import Raster
from geonp.inference.batches import BATCHES, batch_bytes
from geonp.inference.kernel import FillJob, result_dtype
from geonp.inference.noise import NOISE
from geonp.inference.parallel import PROCESSES, number_of_cores, number_of_processes
from geonp.inference.series import SERIES
from geonp.inference.simulation import JOINT
from geonp.inference.stack import STACK
from geonp.raster.kinds import CLASSES, flag_values_of
from geonp.raster.metadata import Kind
from geonp.raster.parts import MEMORY, PARTS
from geonp.raster.variable import Variable
from geonp.raster.windows import Window


@dataclass(frozen=True, repr=False)
class FillPlan:
    """The plan of a fill.

    Attributes
    ----------
    variables : tuple of str
        Variables that will be filled.
    shape, slices : tuple of int, int
        ``(rows, columns)``, and the number of such slices of all variables.
    chunk_px : tuple of int
        Rows and columns of the largest chunk.
    tile_px, halo_px, n_context : int
        Side of a tile and width of the frame that is read around it, in cells, and number of context points.
    tiles, batches : int
        Number of all tiles, of which only those with gaps are computed, and largest number of forward passes.
    model, device, precision : str
    batch_size : int
        Largest number of tiles in a forward pass.
    peak_bytes : int
        Predicted peak memory, without an input or a result held in memory.
    result_bytes : int
        Size of the result.
    missing, flagged : mapping or None
        Numbers of missing cells by variable, where they were counted, and of those that flags mark as missing.
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
    missing: Mapping[str, int] | None = None
    flagged: Mapping[str, int] | None = None

    def summary(self) -> dict[str, object]:
        """The attributes as plain values, for printing or JSON."""
        return asdict(self)

    def __repr__(self) -> str:
        """One line for each attribute."""
        rows = readable(self)
        return "\n".join(["<geonp.FillPlan>", *(f"    {key:<{max(map(len, rows))}}  {rows[key]}" for key in rows)])


def readable(plan: FillPlan) -> dict[str, str]:
    """The attributes of a plan as text: names and shapes without brackets, numbers of missing cells in words, MiB."""
    missing, flagged = plan.missing, plan.flagged or {}

    def said(name: str, n: int) -> str:
        if not n:
            return f"nothing in {name}"
        return f"{n:,} cells of {name}" + (f", {flagged[name]:,} by flags" if flagged.get(name) else "")

    uncounted = f"not counted: more than {PARTS.counted_cells // 2**20} million cells, or not in memory"
    words = {
        "variables": ", ".join(plan.variables),
        "missing": uncounted if missing is None else "; ".join(said(*each) for each in missing.items()),
    }
    words |= {name: " x ".join(map(str, getattr(plan, name))) for name in ("shape", "chunk_px")}
    sizes = {name: getattr(plan, name) for name in ("peak_bytes", "result_bytes")}
    words |= {name: f"{size} ({size / 2**20:,.1f} MiB)" for name, size in sizes.items()}
    return {name: words.get(name, str(value)) for name, value in plan.summary().items() if name != "flagged"}


@takes_fill_options
def plan(obj: Raster, **options: Unpack[FillKeywords]) -> FillPlan:
    """Plan what :func:`geonp.infill` will do with the same arguments, without reading or filling data.

    In arrays in memory of up to ``PARTS.counted_cells`` cells, gaps are counted; in others, every tile may have gaps.

    Parameters
    ----------
    obj : DataArray or Dataset
    **options
        Options of the fill, as for :func:`geonp.infill`.

    Raises
    ------
    InputError, ModelError, CheckpointError
        As for :func:`geonp.infill`.

    Examples
    --------
    >>> sst = xr.DataArray(np.full((500, 800), np.nan), dims=("lat", "lon"), name="sst")
    >>> plan = geonp.plan(sst, device="cpu")
    >>> plan.shape, plan.missing, plan.model
    ((500, 800), {'sst': 400000}, 'tnpkr-sa')
    """
    return planned(prepare(obj, FillOptions.of(options, "plan")))


def planned(
    request: Request, chunks: Mapping[Hashable, Mapping[Hashable, int]] | None = None, *, count: bool = False
) -> FillPlan:
    """The plan of a request; its variables are cut into `chunks` by name and dimension if these are given.

    With `count`, missing cells are also counted in rasters of as many cells that are not in memory.
    """
    job, predictor, shape = request.job, request.job.predictor, request.grid.shape
    cuts = {v.name: _chunks(v, None if chunks is None else chunks[v.name]) for v in request.variables}
    largest = [tuple(max(sizes) for sizes in cut) for cut in cuts.values()]
    itemsize = max(variable.read.dtype.itemsize for variable in request.variables)
    slices = sum(variable.slices for variable in request.variables)
    cells, size = slices * shape[0] * shape[1], predictor.neighbourhood.tile_px
    blocks = sum(math.prod(map(len, cut)) for cut in cuts.values())
    tiles = slices * -(-shape[0] // size) * -(-shape[1] // size)
    in_memory = all(variable.source.variable._in_memory for variable in request.variables)
    missing, flagged = _counts(request) if cells <= PARTS.counted_cells and (in_memory or count) else (None, None)
    if cells <= PARTS.counted_cells and in_memory:
        batches = sum(_batches(variable, cuts[variable.name], job) for variable in request.variables)
    else:
        batches = min(-(-tiles // predictor.batch_size) + blocks * len(BATCHES.buckets), tiles)
    batches *= STACK.groups + 2 if job.across else 1
    at_once = min(number_of_cores(), max(batches, 1)) if _on_cpu(predictor.device) else 1
    options = request.options
    latent = 2 * bool(options.tails and request.bounds)
    numbers = 2 + latent + len(options.quantiles) + options.samples
    result = numbers * itemsize + 4 * options.tails + 4 * len(options.exceed) + 4 * predictor.classes + 1
    result += 4 * max(len(variable.categories) for variable in request.variables)
    return FillPlan(
        variables=tuple(str(variable.name) for variable in request.variables),
        shape=shape,
        slices=slices,
        chunk_px=(max(sizes[-2] for sizes in largest), max(sizes[-1] for sizes in largest)),
        tile_px=size,
        halo_px=job.frame,
        n_context=predictor.neighbourhood.n_context,
        tiles=tiles,
        batches=batches,
        model=predictor.model,
        device=predictor.device,
        precision=predictor.precision,
        batch_size=predictor.batch_size,
        peak_bytes=MEMORY.libraries
        + at_once * batch_bytes(predictor.neighbourhood, predictor.batch_size, predictor.device)
        + min(CPU_COUNT, blocks) * max(_task_bytes(sizes, request, itemsize) for sizes in largest)
        + processes_bytes(batches, predictor.device, samples=options.samples > 0)
        + _gaps_bytes(request, in_strips=chunks is not None),
        result_bytes=cells * result,
        missing=missing,
        flagged=flagged,
    )


def _counts(request: Request) -> tuple[dict[str, int], dict[str, int]]:
    """Numbers of missing cells by variable, and of those that flags mark as missing."""
    missing, flagged = {}, {}
    for variable in request.variables:
        missing[variable.label] = int(variable.observed.isnull().sum())
        if request.flags is not None and request.flags.masks:
            flagged[variable.label] = int(request.flags.flagged(variable.source).sum())
    return missing, flagged


def _gaps_bytes(request: Request, *, in_strips: bool) -> int:
    """Upper bound of the memory in which gaps are looked at as a whole."""
    options, (rows, cols) = request.options, request.grid.shape
    if not options.holes and options.max_gap is None:
        return 0
    # beside the strips, a bit for each cell at most
    return MEMORY.gap * min(rows * cols, PARTS.cells + cols * (options.max_gap or 0) if in_strips else rows * cols) + (
        rows * cols * (1 + sum(variable.slices for variable in request.variables if options.max_gap)) // 8
    )


def processes_bytes(batches: int, device: str, *, samples: bool) -> int:
    """Upper bound of the memory of the processes that are started for so many batches."""
    each = PROCESSES.bytes_each + (NOISE.memory + MEMORY.simulation if samples else 0)
    return number_of_processes(batches) * each if _on_cpu(device) else 0


def _chunks(variable: Variable, cut: Mapping[Hashable, int] | None) -> tuple[tuple[int, ...], ...]:
    """Sizes of the chunks along each dimension, rows and columns last."""
    sizes, lazy = variable.shape, variable.spatial_last.chunks
    if cut is None and lazy is not None:
        return lazy
    dims = (*variable.leading, *variable.spatial)
    asked = chunks_in_memory(sizes) if cut is None else tuple(cut[dim] for dim in dims)
    return da.core.normalize_chunks(asked, sizes)  # type: ignore[no-any-return]


def _batches(variable: Variable, chunks: tuple[tuple[int, ...], ...], job: FillJob) -> int:
    """Upper bound of the batches that fill a variable in memory, counted slice by slice."""
    total, values = 0, variable.spatial_last.values
    for index in np.ndindex(values.shape[:-2]):
        total += count_batches(np.isnan(variable.read(values[index])), chunks[-2:], job)
    return total


def _task_bytes(chunk: tuple[int, ...], request: Request, itemsize: int) -> int:
    """Upper bound of the memory of one task without its batches: windows, neighbouring blocks and the result."""
    job = request.job
    slices, (rows, cols) = math.prod(chunk[:-2]), chunk[-2:]
    whole = Window(0, rows, 0, cols)
    # towards a pole windows have more columns, and either end may be there
    ends = [0] if job.surface is None else [0, job.shape[0] - rows]
    window = max(math.prod(job.window(Window(row, row + rows, 0, cols)).shape) for row in ends)
    # of one slice at a time: values, their mask, and what the blocks are summed from
    far = math.prod(job.far_window(whole).shape) * (itemsize + 40) if job.predictor.neighbourhood.far else 0
    held, kept, stacked = min(9 * rows * cols, window) if slices > 1 else 0, slices, 0
    if job.across:
        # windows of all slices that are read, and copies of them; the chunks before and after may be held whole
        others = STACK.slices * len(job.across) + (0 if job.series is None else SERIES.slices)
        others *= slices if len(chunk) > 3 else 1
        held, kept = min(9 * rows * cols, window), 3 * slices + others
        stacked = 3 * (slices + others) * itemsize
    mapped = (2 + len(request.options.quantiles)) * itemsize + 4 * len(request.options.exceed) if request.bounds else 0
    classes = max(map(_classes, request.variables))
    every = 4 * (job.predictor.classes + max(len(variable.categories) for variable in request.variables))
    result = slices * rows * cols * (2 * itemsize + 5 + every + mapped)
    # each covariate once as filled, for all slices if it changes, and once as it is used
    beside = max(map(request.beside, request.variables), key=len)
    layers = sum(1 + (slices if covariate.variable.leading else 1) for covariate in beside)
    known = layers * window * result_dtype(np.dtype(np.float64)).itemsize
    used = window * (4 * itemsize + 80 + stacked + 8 * classes)
    return max(used, far) + kept * held * itemsize + result + known + _sample_bytes(chunk, request, itemsize)


def _sample_bytes(chunk: tuple[int, ...], request: Request, itemsize: int) -> int:
    """Upper bound of the memory for the samples of one task: errors of one slice, and values of all slices, twice."""
    if not request.options.samples:
        return 0
    n, cells = request.options.samples, math.prod(chunk[-2:])
    copies = 3 if request.bounds else 2
    return 8 * (n + JOINT.pilots) * cells + copies * n * math.prod(chunk) * itemsize + NOISE.memory


def _classes(variable: Variable) -> int:
    """Number of classes whose probabilities are held for a window; 32 if it is unknown."""
    if variable.kind not in (Kind.CLASSES, Kind.COUNTS):
        return 0
    return len(variable.categories or flag_values_of(variable.source)) or CLASSES.named


def _on_cpu(device: str) -> bool:
    return device.partition(":")[0] == "cpu"
