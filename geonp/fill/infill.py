"""infill(): fill a raster in memory or on dask. The accessor and the command line call it too."""

from __future__ import annotations

import os
from collections.abc import Hashable, Mapping, Sequence
from datetime import UTC, datetime

import dask.array as da
import numpy as np
import numpy.typing as npt
import xarray as xr

from geonp.errors import InputError
from geonp.fill.graph import fill_chunks
from geonp.fill.options import FillOptions
from geonp.fill.outputs import ordered, result_arrays
from geonp.fill.plan import chunks_in_memory
from geonp.fill.request import Raster, Request, prepare
from geonp.fill.samples import sample_chunks
from geonp.raster.metadata import dataset_attrs
from geonp.raster.variable import Variable

__all__ = ["infill", "template"]


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
        Name of a shipped model (``geonp models``), or path of a ``.safetensors`` checkpoint.
    mask : DataArray or array of bool, optional
        Valid domain, ``(rows, columns)``, True where the raster is valid. Missing cells outside the domain stay empty;
        observed cells outside keep their value, but are not used as context.
    max_distance : float, optional
        Largest distance to an observation, in cells, at which a cell is filled. Cells farther away stay empty.
    device : str, optional
        Torch device, such as ``cpu`` or ``cuda``. By default a GPU if there is one.
    batch_size : int, optional
        Number of tiles in one forward pass. By default chosen from the free memory.
    seed : int
        Seed for sampling distant context points.
    nodata : float, optional
        Value of missing cells, used instead of the declared one.
    quantiles : sequence of float
        Probabilities between 0 and 1 of the quantiles to add. ``[0.05, 0.95]`` gives the ends of the 90 % interval.
    tails : bool
        Add the tail of the predictive distribution of each cell. With the mean and the standard error it defines the
        whole distribution, see :mod:`geonp.student`.
    samples : int
        Number of joint samples of the filled cells to add. A sample is a possible raster: neighbouring cells vary
        together, as needed for quantities of several cells (the mean over a gap, a slope, a flow). Cells are drawn one
        after another, each given all before it, so gaps must be small: see :data:`geonp.fill.samples.MAX_GAP`. Each
        slice is held in memory as a whole, `samples` times.
    across : hashable, optional
        Dimension along which slices are filled from each other, such as ``time`` or ``band``. A missing cell that some
        of the eight nearest slices observe is predicted from these slices and from its surroundings, and from its
        surroundings alone; the prediction with the smaller standard error is kept, see :mod:`geonp.inference.stack`. A
        slice without any observed cell stays empty. A model for which :func:`geonp.adapt` has found a dimension useful
        has it as its default, except for samples.

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
    request = prepare(obj, options)
    for variable in request.variables:
        if variable.source.chunks is None and not np.isfinite(variable.read(variable.source.values)).any():
            raise InputError(
                f"variable {variable.name!r} has no observed cell, so there is nothing to fill from; "
                "check the nodata value, or leave the variable out"
            )
    return _assembled(request, {variable.name: _filled(request, variable) for variable in request.variables})


def template(request: Request) -> xr.Dataset:
    """The Dataset that :func:`infill` gives, of zeros: dask arrays of a single chunk, which are never computed."""
    arrays = {}
    for variable in request.variables:
        found: dict[Hashable, xr.DataArray] = {}
        for output in request.outputs(variable):
            shape = (*(() if output.along is None else (output.along.size,)), *variable.shape)
            found[output.name] = output.array(variable, da.zeros(shape, dtype=output.dtype, chunks=-1))
        arrays[variable.name] = found
    return _assembled(request, arrays)


def _filled(request: Request, variable: Variable) -> dict[Hashable, xr.DataArray]:
    """The results of a variable: computed if it is in memory, otherwise lazy."""
    source, job = variable.spatial_last, request.job
    in_memory = source.chunks is None
    if in_memory:
        stored = da.from_array(source.values, chunks=chunks_in_memory(source.shape), name=False)
    else:
        stored = source.data
    domain = None if request.domain is None else da.asarray(request.domain).rechunk(stored.chunks[-2:])
    axis = variable.leading.index(job.across) if job.across in variable.leading else None
    result = fill_chunks(stored, domain, job, variable.read, axis)
    drawn = None
    if request.options.samples:
        values = stored.map_blocks(variable.read, dtype=variable.read.dtype)
        drawn = sample_chunks(values, result, domain, job, request.options.samples, str(variable.name))
    arrays = result_arrays(variable, request.outputs(variable), result, stored, drawn)
    return dict(xr.Dataset(arrays).compute().items()) if in_memory else arrays


def _assembled(request: Request, arrays: Mapping[Hashable, Mapping[Hashable, xr.DataArray]]) -> xr.Dataset:
    """The variables of the input that are not filled, and the results of the others, in the order of the input."""
    card, out = request.card, request.ds.drop_vars([variable.name for variable in request.variables])
    stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    for variable in request.variables:
        line = f"{stamp} geonp infill: {variable.label} filled by {card.name} {card.version}"
        attrs = dataset_attrs(out.attrs, line, card.name, card.version, card.sha256)
        out = out.assign(arrays[variable.name]).assign_attrs(attrs)
    return ordered(request.ds, out, arrays)
