"""Pictures of a fill: observations, filled values, standard errors and flags; for stacks, by date."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import xarray as xr

from geonp.errors import InputError, OutputError
from geonp.fill.outputs import filled_names, unbanded
from geonp.fill.panels import PICTURE, Frame, Panel, Places, drawn, require_matplotlib
from geonp.io.location import check_writable, written
from geonp.raster.arrays import FloatArray
from geonp.raster.dimensions import has_coordinate
from geonp.raster.grid import Grid
from geonp.raster.kinds import category_labels, is_classes, is_direction
from geonp.raster.metadata import GDAL_METADATA, FillFlag, as_dataset, listed_names
from geonp.raster.nodata import declared_nodata, observed, units_in_memory
from geonp.raster.surface import surface_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_FLAGS = {
    FillFlag.OBSERVED: "#dfe3e8",
    FillFlag.FILLED: "#2f72b8",
    FillFlag.BEYOND_LIMIT: "#f0a63c",
    FillFlag.OUTSIDE_DOMAIN: "#8b939e",
    FillFlag.FAILED: "#c8323c",
    FillFlag.FILLED_ACROSS: "#7a4fb0",
}

FORMATS = (".png", ".jpg", ".jpeg", ".pdf", ".svg", ".webp")
"""Extensions of pictures."""


def plot(
    obj: xr.DataArray | xr.Dataset,
    *,
    variable: Hashable | None = None,
    index: Mapping[Hashable, int] | None = None,
    slices: int = PICTURE.slices,
    points: tuple[npt.ArrayLike, npt.ArrayLike, npt.ArrayLike] | None = None,
) -> Figure:
    """Draw a fill: observations, filled values, standard errors and flags.

    Maps have the coordinates of the raster. Colour bars have its units, and range from the 1st to the 99th percentile.
    Directions have a circular colour map, classes the colours of their palette, values of both signs a diverging colour
    map. For a stack, a strip of slices is drawn, one column for each. Large rasters are thinned to at most 1,000 rows
    and columns, so that little memory is needed.

    Parameters
    ----------
    obj : Dataset or DataArray
        A result of :func:`geonp.infill` or :func:`geonp.interpolate`, or any other raster, of which only the values
        are drawn.
    variable : hashable, optional
        Variable to draw. By default the first that was filled.
    index : mapping of hashable to int, optional
        Position of the slice along non-spatial dimensions, counted from 0. By default, several slices along time, or
        else along the first dimension with several entries, are drawn, at the first entry of all other dimensions.
    slices : int
        Largest number of slices, evenly spaced.
    points : tuple of array, optional
        Coordinates x and y, and values, of the measurements that the raster was interpolated from. They are drawn, too.

    Returns
    -------
    matplotlib.figure.Figure
        To write it to a file: ``figure.savefig("fill.png")``. A notebook shows it if it is the last line of a cell,
        without a semicolon, or by ``display(figure)``; ``pyplot.show()`` does not know it.

    Raises
    ------
    InputError
        For a variable, dimension or position that does not exist.
    MissingExtraError
        Without matplotlib.

    Examples
    --------
    >>> dem = xr.DataArray(np.hypot(*np.mgrid[:24, :32]), dims=("y", "x"), name="height")
    >>> figure = geonp.plot(geonp.infill(dem.where(dem < 30)))
    >>> figure.savefig("fill.png")
    """
    require_matplotlib()
    ds = unbanded(as_dataset(obj))
    name = _chosen(ds, variable)
    whole = Grid.from_xarray(ds)
    grid = whole if whole.spans(ds[name]) else Grid.from_xarray(ds[name])
    along, labels, parts = _selected(ds, name, grid, index or {}, slices)
    frame = _frame(ds[name], grid)
    places = None
    if points is not None:
        x, y, values = (np.asarray(part, np.float64) for part in points)
        places = Places(x, y, values)
    panels = _panels(ds, name, parts, places)
    title = str(ds[name].attrs.get("long_name", name))
    if along is None:
        title = ", ".join([title, *filter(None, labels)])
    model = ds.attrs.get("geonp_model")
    return drawn(panels, frame, title, f"filled by {model}" if model else "", labels if along is not None else None)


def check_picture(path: str | Path, *, overwrite: bool = False) -> None:
    """Check that a picture can be drawn and written to `path`, before work starts.

    Raises MissingExtraError without matplotlib. Raises OutputError for an unknown extension, an existing file (unless
    `overwrite`), or a folder that is not writable.
    """
    require_matplotlib()
    path = Path(path)
    if path.suffix.lower() not in FORMATS:
        raise OutputError(
            f"Unknown format of a picture: got {str(path)!r}, expected a name that ends in {', '.join(FORMATS)}."
        )
    if path.exists() and not overwrite:
        raise OutputError(f"The picture exists: {str(path)!r}. Choose another name, or pass overwrite (--overwrite).")
    check_writable(path.parent, "Expected an existing, writable folder.")


def frame_of_part(part: xr.DataArray) -> Frame | None:
    """The place of a part of a raster ``(rows, columns)``; None without even coordinates."""
    grid = Grid.from_xarray(part)
    return None if grid.bounds is None else _frame(part, grid)


def save_picture(figure: Figure, path: str | Path) -> None:
    """Write a figure to `path`, which appears when it is complete; its extension says the format.

    Raises OutputError if it cannot be written.
    """
    path = Path(path)
    with written(path, "picture") as temporary:
        figure.savefig(temporary, format=path.suffix[1:].lower(), dpi=PICTURE.dpi)


def _chosen(ds: xr.Dataset, variable: Hashable | None) -> Hashable:
    rasters = [name for name, da in ds.data_vars.items() if da.ndim >= 2 and da.dtype.kind in "iufb"]
    known = [*filled_names(ds), *rasters]
    if variable is None and known:
        return known[0]
    if variable not in rasters:
        raise InputError(
            f"no raster {variable!r} to draw: got {', '.join(map(repr, ds.data_vars)) or 'no variables'}, expected "
            "one of the rasters of the Dataset"
        )
    return variable


def _selected(
    ds: xr.Dataset, name: Hashable, grid: Grid, index: Mapping[Hashable, int], slices: int
) -> tuple[Hashable | None, list[str], dict[str, FloatArray]]:
    """The dimension of a strip, labels of its slices, and thinned arrays ``(slices, rows, columns)`` by content."""
    da = ds[name]
    leading = [dim for dim in da.dims if dim not in grid.dims]
    if unknown := [dim for dim in index if dim not in leading]:
        raise InputError(f"no dimension {unknown[0]!r}: got index={dict(index)}, expected some of {leading}")
    for dim, position in index.items():
        if not -da.sizes[dim] <= position < da.sizes[dim]:
            raise InputError(f"no slice {position} along {dim!r}, which has {da.sizes[dim]}, counted from 0")
    open_ = [dim for dim in leading if dim not in index and da.sizes[dim] > 1]
    times = [dim for dim in open_ if dim in da.coords and da.coords[dim].dtype.kind == "M"]
    along = next(iter([*times, *open_]), None)
    steps = {dim: slice(None, None, -(-da.sizes[dim] // PICTURE.side_px)) for dim in grid.dims}
    where: dict[Hashable, Any] = {**steps, **{dim: index.get(dim, 0) for dim in leading if dim != along}}
    if along is not None:
        n = da.sizes[along]
        where[along] = np.unique(np.linspace(0, n - 1, min(n, slices)).round().astype(int))
    names = {"value": str(name), "error": f"{name}_standard_error", "flag": f"{name}_fill_flag"}
    names["probability"] = f"{name}_probability"
    found = {what: ds[each] for what, each in names.items() if each in ds}
    found["value"] = da
    cut = {what: each.isel({d: at for d, at in where.items() if d in each.dims}) for what, each in found.items()}
    cut = {what: each for what, each in cut.items() if what != "probability" or each.ndim == cut["value"].ndim}
    loaded = xr.Dataset(
        {what: each.drop_vars(set(each.coords) - {*leading, *each.xindexes}) for what, each in cut.items()}
    ).compute()
    order = ([] if along is None else [along]) + [*grid.dims]
    arrays = {what: _floats(each).transpose(*order).values for what, each in loaded.items()}
    shape = (-1, *arrays["value"].shape[-2:])
    labels = _labels(cut["value"], along, leading)
    return along, labels, {str(what): array.reshape(shape) for what, array in arrays.items()}


def _floats(da: xr.DataArray) -> xr.DataArray:
    if da.name != "value" or da.dtype.kind == "b":
        return da.astype(np.float64)
    return observed(da) if da.dtype.kind == "f" or declared_nodata(da) else da.astype(np.float64)


def _labels(da: xr.DataArray, along: Hashable | None, leading: Sequence[Hashable]) -> list[str]:
    """The label of each slice of a strip, or of the single one."""
    named = {dim: da.coords.get("band_name") if dim == "band" else None for dim in leading}
    of = {dim: da.coords[dim] if name is None else name for dim, name in named.items() if dim in da.coords}
    if along is None:
        return [", ".join(f"{dim} {_text(label.values)}" for dim, label in of.items())]
    if along not in of:
        return [f"{along} {position}" for position in range(da.sizes[along])]
    return [_text(value) for value in of[along].values]


def _text(value: Any) -> str:
    value = np.asarray(value)
    if value.dtype.kind == "M":
        text = str(np.datetime_as_string(value, unit="m")).replace("T", " ")
        return text.removesuffix(" 00:00")
    return f"{value:g}" if value.dtype.kind == "f" else str(value)


def _panels(ds: xr.Dataset, name: Hashable, parts: Mapping[str, FloatArray], points: Places | None) -> list[Panel]:
    """The panels of a variable: those that its results and its kind allow."""
    da, values, flags = ds[name], parts["value"], parts.get("flag")
    units = units_in_memory(da.attrs)
    was_seen = np.isfinite(values) if flags is None else flags == FillFlag.OBSERVED
    before = np.where(was_seen, values, np.nan)
    style = _style_of(ds, name, values if points is None else np.concatenate([values.ravel(), points.values]))
    panels = []
    if points is not None:
        panels.append(Panel("Measurements", np.full_like(values, np.nan), label=units, places=points, **style))
    elif flags is not None and was_seen.any() and not np.array_equal(was_seen, np.isfinite(values)):
        panels.append(Panel("Observed", before, label=units, **style))
    panels.append(
        Panel(
            "Values" if flags is None else "Filled" if points is None else "Interpolated", values, label=units, **style
        )
    )
    error = parts.get("error", np.full_like(values, np.nan))
    error = np.where(was_seen & (error == 0), np.nan, error)
    if np.isfinite(error).any():
        wide = _quantile(error, 1 - PICTURE.tails) or 1.0
        unit = units_in_memory({"units": units, **ds[f"{name}_standard_error"].attrs})
        panels.append(Panel("Standard error", error, {"vmin": 0, "vmax": wide, "cmap": "magma"}, unit, "max"))
    if (probability := parts.get("probability")) is not None:
        sure = np.where(was_seen, np.nan, probability)
        panels.append(Panel("Probability of the class", sure, {"vmin": 0, "vmax": 1, "cmap": "magma"}))
    if flags is not None and (np.unique(flags).size > 1 or not np.isfinite(values).any()):
        found = [flag for flag in FillFlag if (flags == flag).any()]
        shares = [f"{flag.name.lower().replace('_', ' ')}\n{_percent((flags == flag).mean())}" for flag in found]
        colours = {"classes": np.array(found, np.float64), "colours": [_FLAGS[flag] for flag in found]}
        panels.append(Panel("Flag", flags, colours, names=shares))
    return panels


def _percent(share: float) -> str:
    if share == 1:
        return "100%"
    return f"{share:.1%}" if 0.001 <= share < 0.9995 else "< 0.1%" if share < 0.5 else "> 99.9%"


def _style_of(ds: xr.Dataset, name: Hashable, values: FloatArray) -> dict[str, Any]:
    """Colour map, limits and what lies beyond them; of classes, numbers of colours and names."""
    da = ds[name]
    said = {kind: listed_names(ds.attrs.get(f"geonp_{kind}", ""), ds.variables) for kind in ("classes", "directions")}
    if str(name) in said["classes"] or is_classes(da):
        return _class_style(da, np.unique(values[np.isfinite(values)]))
    if str(name) in said["directions"] or is_direction(str(name), da.attrs):
        low = -180.0 if np.nanmin(values, initial=0.0) < 0 else 0.0
        return {"style": {"vmin": low, "vmax": low + 360.0, "cmap": "twilight"}}
    low, high = _quantile(values, PICTURE.tails), _quantile(values, 1 - PICTURE.tails)
    low, high = (low, high) if low < high else (low - 0.5, high + 0.5)
    if low < 0 < high and min(-low, high) >= PICTURE.balance * max(-low, high):
        most = max(-low, high)
        return {"style": {"vmin": -most, "vmax": most, "cmap": "RdBu_r"}, "extend": "both"}
    finite = values[np.isfinite(values)]
    beyond = bool(finite.size and finite.min() < low), bool(finite.size and finite.max() > high)
    extend = {(True, True): "both", (True, False): "min", (False, True): "max"}.get(beyond, "neither")
    return {"style": {"vmin": low, "vmax": high, "cmap": "viridis"}, "extend": extend}


def _quantile(values: FloatArray, level: float) -> float:
    finite = values[np.isfinite(values)]
    return float(np.quantile(finite, level)) if finite.size else 0.0


def _class_style(da: xr.DataArray, classes: FloatArray) -> dict[str, Any]:
    """The colours of a palette, or distinct ones, with the names of the classes."""
    import matplotlib

    bands = da.encoding.get(GDAL_METADATA, {}).get("bands", {})
    palette: Mapping[int, Any] = next((band["palette"] for band in bands.values() if "palette" in band), {})
    many = classes.size > PICTURE.named
    map_ = matplotlib.colormaps["turbo" if many else "tab20" if classes.size > 10 else "tab10"]
    colours = [
        tuple(part / 255 for part in palette[int(value)][:3])
        if int(value) in palette
        else map_(k / max(1, classes.size - 1) if many else k)
        for k, value in enumerate(classes)
    ]
    names = [str(one).replace("_", " ") for one in category_labels(da, tuple(classes.tolist()))]
    step = -(-len(names) // PICTURE.named) or 1
    shown = [text if k % step == 0 else "" for k, text in enumerate(names)]
    return {"style": {"classes": classes, "colours": colours}, "names": shown}


def _frame(da: xr.DataArray, grid: Grid) -> Frame:
    """The place of the cells, in degrees, kilometres or the unit of the coordinates; without even ones, in cells.

    North is up, also where rows of two-dimensional latitudes run northwards.
    """
    rows, cols = grid.shape
    bounds = grid.bounds
    if bounds is None and not (all(grid.placed) and all(has_coordinate(da, dim) for dim in grid.dims)):
        surface = surface_of(da, grid)
        northwards = surface is not None and surface.curvilinear and np.nanmean(np.diff(surface.y, axis=0)) > 0
        ends = (-0.5, rows - 0.5) if northwards else (rows - 0.5, -0.5)
        return Frame(1.0, ("column", "row"), (-0.5, cols - 0.5, *ends), not northwards, False)
    names = [str(da.coords[dim].attrs.get("units", "")) for dim in (grid.x_dim, grid.y_dim)]
    if bounds is None:
        step = [-(-n // PICTURE.side_px) for n in grid.shape]
        y, x = (da.coords[dim].values.astype(np.float64)[::n] for dim, n in zip(grid.dims, step, strict=True))
        extent = (float(x.min()), float(x.max()), float(y.min()), float(y.max()))
        centres: tuple[FloatArray, FloatArray] | None = (y, x)
    else:
        west, south, east, north = bounds
        extent, centres = (west, east, south, north), None
    upper, flipped = grid.spacing[0] < 0, grid.spacing[1] < 0
    if grid.geographic:
        middle = math.radians(min(80.0, abs(extent[2] + extent[3]) / 2))
        return Frame(1 / math.cos(middle), ("", ""), extent, upper, flipped, degrees=True, centres=centres)
    metres = grid.crs is not None or set(names) & {"m", "metre", "meter", "metres", "meters"}
    scale = 1000.0 if metres and max(map(abs, extent)) >= 1e4 else 1.0
    unit = "km" if scale > 1 else "m" if metres else names[0]
    labels = tuple(f"{dim} ({unit})" if unit else str(dim) for dim in (grid.x_dim, grid.y_dim))
    west, east, south, north = (end / scale for end in extent)
    return Frame(1.0, labels, (west, east, south, north), upper, flipped, scale=scale, centres=centres)  # type: ignore[arg-type]
