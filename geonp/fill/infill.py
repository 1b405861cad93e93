"""infill(): the one orchestration. NumPy and dask arrays, the accessor and the command line all take this path."""

from __future__ import annotations

import os
from collections.abc import Hashable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import dask.array as da
import numpy as np
import numpy.typing as npt
import xarray as xr

from geonp.errors import InputError
from geonp.fill.chunks import fill_chunks
from geonp.fill.options import FillOptions
from geonp.fill.request import Raster, Request, chunks_in_memory, prepare, spatial_last, values_of, without_data
from geonp.fill.samples import sample_chunks
from geonp.inference.kernel import quantile_of, record
from geonp.raster.classes import annotate_classes, class_reader
from geonp.raster.metadata import annotate, provenance
from geonp.raster.nodata import reader

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
    asked = prepare(obj, options)
    arrays = {name: values_of(asked, asked.ds[name]) for name in asked.names}
    for name, array in arrays.items():
        if array.chunks is None and not np.isfinite(array.values).any():
            raise InputError(
                f"variable {name!r} has no observed cell, so there is nothing to fill from; "
                "check the nodata value, or leave the variable out"
            )
    parts = {name: _parts(asked, asked.ds[name]) for name in arrays}
    drawn = {name: _samples(asked, array, parts[name]) for name, array in arrays.items() if asked.options.samples}
    return _assembled(asked, parts, drawn, [name for name, array in arrays.items() if array.chunks is None])


def template(asked: Request) -> xr.Dataset:
    """What :func:`infill` gives, of zeros: dask arrays of a single chunk each, never to be computed."""
    parts = {}
    for name in asked.names:
        array = values_of(asked, without_data(asked.ds[name]))
        parts[name] = da.zeros(array.shape, dtype=record(array.dtype), chunks=-1)
    return _assembled(asked, parts, {})


def _parts(asked: Request, source: xr.DataArray) -> da.Array:
    """The lazy result for one variable, an array with the fields of :class:`~geonp.inference.kernel.Filled`."""
    data = _lazy(spatial_last(source, asked.grid))
    domain = None if asked.domain is None else da.asarray(asked.domain).rechunk(data.chunks[-2:])
    read = (class_reader if asked.card.classes else reader)(source, asked.options.nodata)
    leading = [dim for dim in source.dims if dim not in (asked.grid.y_dim, asked.grid.x_dim)]
    axis = leading.index(asked.job.across) if asked.job.across in leading else None
    return fill_chunks(data, domain, asked.job, read, axis)


def _samples(asked: Request, array: xr.DataArray, parts: da.Array) -> da.Array:
    """Lazy joint samples of what `parts` fills."""
    domain = None if asked.domain is None else da.asarray(asked.domain)
    return sample_chunks(_lazy(array), parts, domain, asked.job, asked.options.samples, str(array.name))


def _lazy(array: xr.DataArray) -> da.Array:
    """The values of an array as a dask array, cut as they will be filled."""
    in_memory = array.chunks is None
    lazy: da.Array = (
        da.from_array(array.values, chunks=chunks_in_memory(array.shape), name=False) if in_memory else array.data
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
            nodata=asked.options.nodata,
            attrs=attrs,
        )
    extra = {"tail": shaped(parts["tail"])} if asked.options.tails else {}
    if asked.options.quantiles:
        dtype = parts.dtype["value"]
        levels = [shaped(da.map_blocks(quantile_of, parts, q, dtype=dtype)) for q in asked.options.quantiles]
        along = xr.Variable("quantile", np.array(asked.options.quantiles))
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
        nodata=asked.options.nodata,
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
