"""The arrays that come out of a fill: their names, dtypes, attributes, and how they follow from a result."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import dask.array as da
import numpy as np
import xarray as xr

from geonp.errors import InputError
from geonp.fill.options import RESULTS, FillOptions
from geonp.inference import student
from geonp.inference.kernel import within
from geonp.raster.arrays import Array
from geonp.raster.casting import exceeds, lattice_of
from geonp.raster.kinds import category_labels
from geonp.raster.metadata import GDAL_METADATA, FillFlag, Kind, ancillary_names, as_dataset
from geonp.raster.nodata import NODATA, PACKING, UNLIMITED, holds, limit_keys, other_nodata_keys, without
from geonp.raster.variable import ClassReader, Variable, labels

_TEMPERATURE_UNITS = {"k", "kelvin", "degc", "celsius", "degree_celsius", "degrees_celsius", "degf", "fahrenheit"}


@dataclass(frozen=True, eq=False)
class Output:
    """One array of the result of a variable.

    Attributes
    ----------
    from_result : callable
        ``from_result(result, stored)`` gives the array ``(..., rows, cols)`` from a result with the fields of
        :func:`geonp.inference.kernel.result_dtype` and the stored values of the same cells; picklable. With `along`,
        one array for each of its entries, ``(n, ..., rows, cols)``.
    along : Variable or None
        Coordinate of a dimension that comes before all others: quantile, sample or category.
    """

    name: str
    dtype: np.dtype[Any]
    attrs: Mapping[Any, Any]
    encoding: Mapping[str, Any]
    from_result: Callable[[Array, Array], Array]
    along: xr.Variable | None = None

    def data(self, result: Any, stored: Any) -> Any:
        """The array from a result in memory, or from a lazy one, with one task per chunk."""
        if not isinstance(result, da.Array):
            return self.from_result(result, stored)
        extra: dict[str, Any] = {}
        if self.along is not None:
            extra = {"new_axis": 0, "chunks": ((self.along.size,), *result.chunks)}
        empty = np.empty((0,) * (result.ndim + bool(extra)), self.dtype)
        return da.map_blocks(self.from_result, result, stored, dtype=self.dtype, meta=empty, **extra)

    def array(self, variable: Variable, data: Any) -> xr.DataArray:
        """`data` ``(..., rows, cols)`` with the dimensions and coordinates of the variable, attributes and encoding."""
        source = variable.source
        dims: tuple[Hashable, ...] = (*variable.leading, *variable.spatial)
        coords, order = dict(source.coords), source.dims
        if self.along is not None:
            (first,) = self.along.dims
            dims, order, coords[first] = (first, *dims), (first, *order), self.along
        array = xr.DataArray(xr.Variable(dims, data), coords).transpose(*order)
        array.attrs, array.encoding = dict(self.attrs), dict(self.encoding)
        return array


def outputs(variable: Variable, options: FillOptions, *, bounded: bool = False) -> tuple[Output, ...]:
    """The results of a variable, in the order in which they are written.

    A variable of numbers or directions has values, standard errors, flags, and any quantiles, probabilities of
    exceedance, tails and samples. A variable of classes has classes, their probabilities and flags. The results of a
    `bounded` variable have the fields of :func:`geonp.fill.bounds.mapped_dtype`, and latent values with their tails.
    """
    source, label, dtype = variable.source, variable.label, variable.read.dtype
    mapping = {key: value for key, value in variable.encoding.items() if key == "grid_mapping"}

    def output(
        result: str, function: Callable[..., Array], dtype: Any = dtype, along: xr.Variable | None = None
    ) -> Output:
        attrs = _result_attrs(source, label, result, variable.kind)
        if result == "fill_flag":
            attrs |= _flag_attrs(FillFlag.used(empty_slices=options.empty_slices))
        return Output(f"{label}_{result}", np.dtype(dtype), attrs, mapping, function, along)

    flag = output("fill_flag", partial(_part, name="flag"), np.int8)
    if variable.kind is Kind.CLASSES or isinstance(variable.read, ClassReader):
        if variable.kind is Kind.CLASSES:
            others = [output("probability", partial(_part, name="probability"), np.float32)]
        else:
            along = xr.Variable("category", labels(source), _CATEGORY)
            others = [output("probability", partial(_each, name="probability"), np.float32, along)]
        if variable.categories:
            names_ = xr.Variable("category", category_labels(source, variable.categories), _CATEGORY)
            every = partial(_each, name="class_probability")
            others.insert(0, output("class_probability", every, np.float32, names_))
        attrs = without(source.attrs, ("grid_mapping",))
        attrs["ancillary_variables"] = _linked(source, [other.name for other in (*others, flag)])
    else:
        error = output("standard_error", partial(_errors, lattice=lattice_of(source.dtype, variable.encoding)))
        quantile, exceedance, tail, sample = [], [], [], []
        if options.quantiles:
            levels = xr.Variable("quantile", np.array(options.quantiles), _LEVEL)
            quantile = [output("quantile", partial(_quantiles, levels=tuple(options.quantiles)), along=levels)]
        if options.tails:
            tail = [output("tail", partial(_part, name="tail"), np.float32)]
            tail += [output(part, partial(_part, name=part)) for part in ("latent", "latent_error") if bounded]
        if options.exceed:
            thresholds = xr.Variable("threshold", np.array(options.exceed), {"long_name": "threshold", **_kept(source)})
            function = partial(_exceedance, thresholds=tuple(options.exceed))
            exceedance = [output("exceedance", function, np.float32, thresholds)]
        if options.samples:
            numbers = xr.Variable("sample", np.arange(options.samples), _SAMPLE)
            sample = [output("sample", partial(_each, name="sample"), along=numbers)]
        others = [error, *quantile, *exceedance, *tail, *sample]
        names = [other.name for other in (error, flag, *tail, *quantile, *exceedance, *sample)]
        attrs = _value_attrs(source, variable.nodata, variable.limits, variable.encoding, names)
    values = Output(
        label, source.dtype, attrs, variable.encoding, partial(_values, fit=variable.fit, smooth=options.smooth)
    )
    return (values, *others, flag)


def result_arrays(
    variable: Variable, outputs_: Sequence[Output], result: Any, stored: Any
) -> dict[Hashable, xr.DataArray]:
    """The arrays of a variable by name, lazy if the result is."""
    return {output.name: output.array(variable, output.data(result, stored)) for output in outputs_}


def ordered(ds: xr.Dataset, out: xr.Dataset, results: Mapping[Hashable, Iterable[Hashable]]) -> xr.Dataset:
    """`out` with its variables in the order of `ds`, the results of each variable in its place."""
    names = (n for name in ds.data_vars for n in (name, *results.get(name, ())))
    kept = out[[name for name in dict.fromkeys(names) if name in out]]
    return kept.assign_coords({name: c for name, c in out.coords.items() if name not in kept.coords})  # such as bounds


def filled_names(ds: xr.Dataset) -> list[Hashable]:
    """Names of the variables of a result that were filled: those with a fill flag."""
    return [name for name in ds.data_vars if f"{name}_fill_flag" in ds]


def unbanded(ds: xr.Dataset) -> xr.Dataset:
    """A result that was read from the bands of a GeoTIFF as variables again; any other raster as it is."""
    (name, *others) = ds.data_vars or [None]
    bands = [] if name is None or others or "band_name" not in ds[name].coords else ds[name].coords["band_name"].values
    filled = {flag[1] for text in bands if (flag := re.match(r"(.+?)_fill_flag( |$)", str(text)))}
    if not filled:
        return ds
    # names may hold blanks, which also stand before the place of a slice
    known = [name + end for name in filled for end in ("", *(f"_{result}" for result in RESULTS))]
    found: dict[str, dict[str, xr.DataArray]] = {}
    for band, text in enumerate(map(str, bands)):
        said = [name for name in known if f"{text} ".startswith(f"{name} ")]
        label = max(said, key=len, default=text.partition(" ")[0])
        found.setdefault(label, {})[text.removeprefix(label).lstrip()] = _layer(ds[name].isel(band=band))
    stacked = {label: _stacked(layers) for label, layers in found.items()}
    return xr.Dataset(stacked, attrs=ds.attrs)


def _layer(band: xr.DataArray) -> xr.DataArray:
    """One band as a raster with the units of this band, and without a name that is that of the file."""
    layer = band.drop_vars(("band", "band_name"), errors="ignore")
    if re.sub(r"\W+", "_", str(layer.attrs.get("long_name", ""))).strip("_") == layer.name:
        del layer.attrs["long_name"]
    said = band.encoding.get(GDAL_METADATA, {}).get("bands", {})
    unit = said.get(int(band.coords["band"]), {}).get("unit") if "band" in band.coords else None
    return layer.assign_attrs({"units": unit} if unit else {})


def _stacked(layers: Mapping[str, xr.DataArray]) -> xr.DataArray:
    """Bands by their places, along a dimension of slices, and before it one of results, such as samples."""
    slices: dict[str, dict[str, xr.DataArray]] = {}
    for place, layer in layers.items():
        found = re.match(r"(?:((?:sample|quantile|threshold|category)=\S+) ?)?(.*)", place)
        assert found is not None
        slices.setdefault(found[2], {})[found[1] or ""] = layer
    each = {
        place: xr.concat(list(part.values()), xr.IndexVariable(next(iter(part)).partition("=")[0], list(part)))
        if "" not in part
        else part[""]
        for place, part in slices.items()
    }
    return each[""] if list(each) == [""] else xr.concat(list(each.values()), xr.IndexVariable("slice", list(each)))


def values_only(obj: xr.DataArray | xr.Dataset) -> xr.Dataset:
    """Select the filled values, without errors, flags, quantiles and other results of :func:`geonp.infill`.

    They have the dtype, attributes and coordinates of the raster that was filled, and stay lazy.
    :func:`geonp.write_raster` with `like` stores them as the file of that raster is.

    Parameters
    ----------
    obj : Dataset
        A result of :func:`geonp.infill`, or one that was opened from a file.

    Raises
    ------
    InputError
        For a raster that is no such result.

    Examples
    --------
    >>> dem = xr.DataArray(np.hypot(*np.mgrid[:24, :32]), dims=("y", "x"), name="height")
    >>> list(geonp.values_only(geonp.infill(dem.where(dem < 30))))
    ['height']
    """
    return without_results(unbanded(as_dataset(obj)))


def without_results(ds: xr.Dataset, results: Sequence[str] = RESULTS) -> xr.Dataset:
    """A result without some or, by default, all outputs other than the filled values; lazy if it is.

    Raises InputError for a raster that is no result.
    """
    filled = filled_names(ds)
    if not filled:
        raise InputError(
            f"there is no variable that was filled: got {', '.join(map(repr, ds.data_vars))}, expected the result of "
            "infill(), with a variable <name>_fill_flag"
        )
    dropped = [f"{name}_{result}" for name in filled for result in results]
    out = ds.drop_vars(dropped, errors="ignore")
    used = {dim for variable in out.data_vars.values() for dim in variable.dims}
    lost = {dim for name in dropped if name in ds for dim in ds[name].dims} - used
    out = out.drop_vars([name for name, coord in out.coords.items() if set(coord.dims) & lost]).copy()
    for name in filled:
        kept = [other for other in ancillary_names(out[name], (*out.variables, *dropped)) if other not in dropped]
        out[name].attrs = without(out[name].attrs, ("ancillary_variables",))
        out[name].attrs |= {"ancillary_variables": " ".join(kept)} if kept else {}
    return out


def _values(result: Array, stored: Array, fit: Callable[..., Array], smooth: bool) -> Array:
    changed = np.isin(result["flag"], (FillFlag.FILLED, FillFlag.FILLED_ACROSS))
    return fit(result["value"], changed | (result["standard_error"] > 0) if smooth else changed, stored)


def _part(result: Array, stored: Array, name: str) -> Array:
    return np.ascontiguousarray(result[name])


def _errors(result: Array, stored: Array, lattice: tuple[float, float] | None) -> Array:
    """Standard errors of the filled values as they are stored: rounding to the `lattice` is a part of them."""
    error = result["standard_error"].copy()  # the other outputs need that of the result
    if lattice is not None:
        offset, scale = lattice
        filled = error > 0
        packed = (result["value"][filled].astype(np.float64) - offset) / scale
        error[filled] = np.hypot(error[filled], scale * (np.rint(packed) - packed))
    return error


def _quantiles(result: Array, stored: Array, levels: tuple[float, ...]) -> Array:
    if "quantile" in (result.dtype.names or ()):
        return _each(result, stored, "quantile")
    # quantiles near the largest float32 overflow before they are limited
    of = [result[name].astype(np.float64) for name in ("value", "standard_error", "tail")]
    return np.stack([within(student.quantile(level, *of), result["value"].dtype) for level in levels])


def _exceedance(result: Array, stored: Array, thresholds: tuple[float, ...]) -> Array:
    if "exceedance" in (result.dtype.names or ()):
        return _each(result, stored, "exceedance")
    of = [result[name].astype(np.float64) for name in ("value", "standard_error", "tail")]
    above = [np.where(of[1] == 0, exceeds(result["value"], x), student.sf(x, *of)) for x in thresholds]
    return np.where(np.isnan(of[0]), np.nan, np.stack(above)).astype(np.float32)


def _each(result: Array, stored: Array, name: str) -> Array:
    return np.moveaxis(result[name], -1, 0)


def _value_attrs(
    source: xr.DataArray,
    nodata: tuple[float, ...],
    limits: tuple[float, float],
    encoding: Mapping[str, Any],
    ancillary: Sequence[str],
) -> dict[Any, Any]:
    """Attributes of the filled values, with the names of the `ancillary` results; `encoding` is what they will have."""
    # a valid range refers to stored values
    stored = np.dtype(source.encoding.get("dtype", source.dtype))
    kept = stored == encoding.get("dtype", source.dtype)
    given = source.attrs
    gone = *NODATA, *other_nodata_keys(given), "grid_mapping", "actual_range"
    attrs = without(given, (*gone, *(() if kept else limit_keys(given).values())))
    if source.dtype.kind in "iu" and not kept and limits != UNLIMITED:
        info = np.iinfo(source.dtype)
        attrs["valid_range"] = np.clip(limits, info.min, info.max).astype(source.dtype)
    held = [marker for marker in nodata if holds(source.dtype, marker)]
    if source.dtype.kind in "iu" and held:
        attrs["_FillValue"] = source.dtype.type(held[0])
    return {**attrs, "ancillary_variables": _linked(source, ancillary)}


def _linked(source: xr.DataArray, names: Sequence[str]) -> str:
    """``ancillary_variables`` of filled values: those of the source, and after them the others of `names`."""
    given = ancillary_names(source, names)
    return " ".join([*given, *(name for name in names if name not in given)])


def _result_attrs(source: xr.DataArray, label: str, result: str, kind: Kind) -> dict[str, Any]:
    """Attributes of a result beside the values: of ``standard_error``, ``fill_flag``, ``probability`` and so on.

    `label` stands for the ``long_name`` of the source if it has none.
    """
    title = source.attrs.get("long_name") or label
    if result == "standard_error":
        return _error_attrs(source, title, directions=kind is Kind.DIRECTIONS)
    if result == "fill_flag":
        return {"long_name": f"{title} fill flag", "standard_name": "status_flag"}
    if result == "tail":
        return {"long_name": f"{title}, inverse degrees of freedom of the Student distribution", "units": "1"}
    if "probability" in result:
        what = "probability" if kind is Kind.CLASSES and result == "probability" else "probability of each class"
        return {"long_name": f"{title}, {what}", "units": "1"}
    if result == "exceedance":
        return {"long_name": f"{title}, probability of a value above the threshold", "units": "1"}
    if result in _LATENT:
        return {"long_name": f"{title}, {_LATENT[result]}", "units": "1"}
    return {"long_name": f"{title}, {'joint sample' if result == 'sample' else result}", **_kept(source)}


_CATEGORY = {"long_name": "class"}
_SAMPLE = {"long_name": "number of the joint sample", "standard_name": "realization", "units": "1"}
_LEVEL = {"long_name": "probability of the quantile", "units": "1"}
_LATENT = {
    "latent": "mean of the Student distribution of latent values",
    "latent_error": "standard deviation of the Student distribution of latent values",
}


def _kept(source: xr.DataArray) -> dict[str, Any]:
    """Attributes of what has the units of the values."""
    return {key: source.attrs[key] for key in ("units", "units_metadata", *PACKING) if key in source.attrs}


def _flag_attrs(flags: Sequence[FillFlag]) -> dict[str, Any]:
    return {
        "flag_values": np.array([int(flag) for flag in flags], dtype=np.int8),
        "flag_meanings": " ".join(flag.name.lower() for flag in flags),
    }


def _error_attrs(source: xr.DataArray, title: str, *, directions: bool) -> dict[str, Any]:
    attrs: dict[str, Any] = {
        "long_name": f"{title} {'circular standard deviation' if directions else 'standard error'}"
    }
    if "standard_name" in source.attrs:
        attrs["standard_name"] = f"{source.attrs['standard_name']} standard_error"
    if "units" in source.attrs:
        attrs["units"] = source.attrs["units"]
        if str(attrs["units"]).lower() in _TEMPERATURE_UNITS:
            attrs["units_metadata"] = "temperature: difference"
    if "scale_factor" in source.attrs:  # stored values: a difference has the scale, but no offset
        attrs["scale_factor"] = abs(source.attrs["scale_factor"])
    return attrs
