"""Evaluate a model on one raster: hide observed cells, fill them by the model and by baselines, score the fills."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr

from geonp.errors import InputError
from geonp.evaluation.baselines import ACROSS, METHODS, REGRESSION, linear_across, predict, requested
from geonp.evaluation.comparison import Comparison
from geonp.evaluation.holdout import HoldOut, hide_moved_gaps, hide_simulated
from geonp.evaluation.metrics import require_scorable
from geonp.evaluation.scored import OURS, WITH_COVARIATES, Prediction
from geonp.fill.infill import infill
from geonp.fill.missing import MissingLike, with_gaps
from geonp.fill.options import FillOptions
from geonp.fill.request import covariates_on
from geonp.inference.checkpoint import load_card
from geonp.inference.covariates import Layer
from geonp.inference.stack import beside
from geonp.raster.covariates import Covariate, CovariateLike, named, taken_by
from geonp.raster.directions import warn_of_directions
from geonp.raster.gaps import SIMULATORS
from geonp.raster.grid import Grid
from geonp.raster.kinds import is_classes
from geonp.raster.metadata import THEMATIC, UNNAMED
from geonp.raster.nodata import observed
from geonp.raster.positions import positions
from geonp.raster.variable import require_numbers
from geonp.raster.windows import Window

__all__ = ["HOLDOUTS", "evaluate"]

FloatArray = npt.NDArray[np.floating[Any]]

HOLDOUTS = (*SIMULATORS, "gaps")
"""Kinds of hold-outs: the simulated gaps, and the raster's own gaps, moved."""


def evaluate(
    obj: xr.DataArray | xr.Dataset,
    *,
    model: str | os.PathLike[str] = "tnpkr-sa",
    holdout: str = "clouds",
    fraction: float = 0.25,
    baselines: Sequence[str] | None = None,
    index: Mapping[Hashable, int] | None = None,
    size: int = 512,
    seed: int = 0,
    nodata: float | None = None,
    missing: MissingLike | Sequence[MissingLike] | None = None,
    device: str | None = None,
    batch_size: int | None = None,
    across: Hashable | Sequence[Hashable] | None = None,
    covariates: CovariateLike | Sequence[CovariateLike] | None = None,
    covariate_resampling: str | None = None,
    progress: Callable[[str], object] | None = None,
) -> Comparison:
    """Hide observed cells of a raster, fill them by the model and by baselines, and score the fills.

    One slice is evaluated. With `across`, the model also sees the neighbouring slices, where nothing is hidden; the
    baselines do not. With `covariates`, the model is evaluated with and without them, and beside regression kriging.
    Of a raster larger than `size` one cut is evaluated: of nine cuts, spread evenly from the centre
    to the corners, the one with the most observed cells (for the hold-out ``"gaps"``, with the share of observed cells
    nearest to one half); the most central one of equals. Nothing but these cuts is read.

    Parameters
    ----------
    obj : DataArray or Dataset
        Raster with two spatial dimensions and any number of others. Of a Dataset, the first variable that can be
        filled is evaluated.
    model : str or path
        Name of a shipped model (``geonp models``), or path of a ``.safetensors`` checkpoint.
    holdout : str
        Kind of hold-out, one of :data:`HOLDOUTS`: simulated gaps (:data:`geonp.raster.gaps.SIMULATORS`), or ``"gaps"``,
        the raster's own gaps moved to observed cells.
    fraction : float
        Share to hide, between 0 and 1: of all cells for simulated gaps, of the observed cells for ``"gaps"``. The
        latter are moved up to 16 times, until half of the share is hidden. No gap is split, so that a large one may
        hide more.
    baselines : sequence of str, optional
        Methods to compare with, of :data:`geonp.evaluation.baselines.METHODS`, and ``regression_kriging`` with
        covariates, and ``linear_across`` with `across`: linear interpolation along its first dimension. By default all.
    index : mapping of hashable to int, optional
        Position of the slice along the non-spatial dimensions, counted from 0. The default is 0 for each.
    size : int
        Largest number of rows and of columns evaluated, at least 2.
    seed : int
        Seed for the hold-out and for every method, at least 0.
    nodata : float, optional
        Value of missing cells, used instead of the declared one.
    missing : str, array of bool, callable, or sequence of these, optional
        Where values count as missing, as of :func:`geonp.infill`: what is under clouds is no truth, and never scored.
    device : str, optional
        Torch device, such as ``cpu`` or ``cuda``. By default a GPU if there is one.
    batch_size : int, optional
        Number of tiles in one forward pass. By default chosen from the free memory.
    across : hashable or sequence of hashable, optional
        Dimensions whose neighbouring slices the model sees, such as ``time``. By default the one that the model was
        adapted to, if any.
    covariates, covariate_resampling
        As of :func:`geonp.infill`.
    progress : callable, optional
        Called with the name of each method before it starts.

    Returns
    -------
    Comparison
        Predictions and scores of all methods. It prints as tables.

    Raises
    ------
    InputError
        For an option out of range, a raster without observed cells or without gaps to move, and where none or all of
        the observed cells would be hidden.
    ModelError, CheckpointError
        For an unknown model, or one that cannot be loaded.
    """
    given, model, dims = named(covariates), os.fspath(model), FillOptions(across=across).dims
    methods = [*METHODS, *([REGRESSION] if given else []), *([ACROSS] if dims else [])]
    baselines = requested(baselines, methods, "across")
    _check_options(holdout, fraction, size)
    chosen = _choose_slice(obj, index or {}, nodata, given, missing)
    array = chosen.observed()
    cut, window = _cut(array, size, own_gaps=holdout == "gaps")
    test = _hide(cut, holdout, fraction, np.random.default_rng(seed))
    card = load_card(model)
    neighbours = _neighbours(chosen, window, dims, card.neighbourhood.across)
    known = _covariates(given, covariate_resampling, obj, chosen, cut, window, neighbours)

    def fill(method: str) -> Prediction:
        if progress is not None:
            progress(method)
        start = time.perf_counter()
        if method in (OURS, WITH_COVARIATES):
            used = known if method == WITH_COVARIATES else None
            options = {"model": model, "seed": seed, "device": device, "batch_size": batch_size, "covariates": used}
            moments = _fill(cut.copy(data=test.values), neighbours, chosen, **options)
        elif method == ACROSS and neighbours is not None:
            moments = _across(test.values, neighbours, chosen)
        else:
            moments = _predict(method, test.values, seed, known)
        return Prediction(*moments, seconds=time.perf_counter() - start)

    comparison = Comparison(
        name=str(cut.name),
        units=str(cut.attrs.get("units", "")),
        selection=_describe(chosen, array, neighbours, known),
        shape=(array.shape[0], array.shape[1]),
        window=window,
        y_up=chosen.grid.y_dim in cut.coords and chosen.grid.spacing[0] > 0,
        holdout=holdout,
        fraction=fraction,
        seed=seed,
        model={"model": card.name, "model_version": card.version, "weights_sha256": card.sha256},
        test=test,
        predictions={method: fill(method) for method in (*([WITH_COVARIATES] if known else ()), OURS, *baselines)},
    )
    return _scored(comparison)


def _scored(comparison: Comparison) -> Comparison:
    """The comparison, after a check that it has cells to score."""
    if not comparison.scored.any():
        raise InputError(
            f"The model fills none of the {comparison.test.hidden.sum()} hidden cells of {comparison.name!r}: all are "
            "too far from an observation. Choose a smaller fraction or another hold-out."
        )
    return comparison


def _check_options(holdout: str, fraction: float, size: int) -> None:
    if holdout not in HOLDOUTS:
        raise InputError(f"Unknown hold-out: got {holdout!r}, expected one of {', '.join(HOLDOUTS)}.")
    if not 0 < fraction < 1:
        raise InputError(f"Wrong fraction: got {fraction!r}, expected a share to hide between 0 and 1, such as 0.25.")
    if size < 2:
        raise InputError(f"Wrong size: got {size}, expected a number of rows and columns to evaluate, at least 2.")


@dataclass(frozen=True, eq=False)
class _Slice:
    """One slice of a variable: the variable, its grid, and a position along each non-spatial dimension."""

    variable: xr.DataArray
    grid: Grid
    position: Mapping[Hashable, int]
    nodata: float | None

    def near(self, dim: Hashable) -> list[int]:
        """Positions of the slice and of its neighbours along a dimension."""
        place = self.position[dim]
        return sorted([place, *beside(place, positions(self.variable, dim))])

    def observed(self, position: Mapping[Hashable, int | Sequence[int]] | None = None) -> xr.DataArray:
        """The slice, or that at another `position`, as floats with NaN at missing cells; rows and columns last."""
        part = self.variable.isel({**self.position, **(position or {})})
        return observed(part, self.nodata).transpose(..., self.grid.y_dim, self.grid.x_dim)


def _choose_slice(
    obj: xr.DataArray | xr.Dataset,
    index: Mapping[Hashable, int],
    nodata: float | None,
    covariates: Sequence[CovariateLike],
    missing: object,
) -> _Slice:
    if not isinstance(obj, (xr.DataArray, xr.Dataset)):
        raise InputError(
            f"obj must be a raster, a DataArray or Dataset: got {type(obj).__name__}. Evaluate measurements with "
            "geonp.cross_validate(table)."
        )
    grid = Grid.from_xarray(obj)
    taken = taken_by(covariates, obj) if isinstance(obj, xr.Dataset) else []
    ds, names, _, declared = with_gaps(obj, missing, nodata, taken)
    variable, nodata = ds[names[0]], None if names[0] in declared else nodata
    require_numbers(variable)
    warn_of_directions({str(variable.name): variable.attrs})
    sizes = {dim: n for dim, n in variable.sizes.items() if dim not in (grid.y_dim, grid.x_dim)}
    for dim, position in {**dict.fromkeys(sizes, 0), **index}.items():
        if not 0 <= position < sizes.get(dim, 0):
            expected = ", ".join(f"{name}=0 to {n - 1}" for name, n in sizes.items()) or "none, it is one slice"
            raise InputError(f"No slice {dim}={position}: expected {expected}. Correct the index.")
    name = UNNAMED if variable.name is None else str(variable.name)
    return _Slice(variable.rename(name), grid, {dim: index.get(dim, 0) for dim in sizes}, nodata)


def _describe(
    chosen: _Slice, array: xr.DataArray, neighbours: xr.DataArray | None, covariates: Sequence[xr.DataArray]
) -> str:
    """The position of the slice in words, such as ``time 2020-01-01``, and what is used beside it; may be empty."""
    parts = []
    for dim, position in chosen.position.items():
        if dim in array.coords:
            value = array.coords[dim].values
            label = np.datetime_as_string(value.astype("M8[s]"), "auto") if value.dtype.kind == "M" else value
            parts.append(f"{dim} {label}")
        elif chosen.variable.sizes[dim] > 1:
            parts.append(f"{dim}={position}")
    if neighbours is not None:
        parts.append(f"with neighbouring slices along {' and '.join(map(str, neighbours.dims[:-2]))}")
    if covariates:
        parts.append(f"with the covariates {', '.join(str(one.name) for one in covariates)}")
    return ", ".join(parts)


def _cut(array: xr.DataArray, size: int, *, own_gaps: bool) -> tuple[xr.DataArray, Window]:
    """The part of a ``(y, x)`` array to evaluate, in memory, and its window."""

    def worth(part: tuple[xr.DataArray, Window]) -> float:
        share = float(np.isfinite(part[0].values).mean())
        return share * (1 - share) if own_gaps else share

    def read(window: Window) -> tuple[xr.DataArray, Window]:
        return array[window.row : window.row_end, window.col : window.col_end].compute(), window

    rows, cols = (list(_ranges(n, size)) for n in array.shape)
    cut, window = max((read(Window(*row, *col)) for row, col in itertools.product(rows, cols)), key=worth)
    if not np.isfinite(cut.values).any():
        raise InputError(
            f"Variable {cut.name!r} has no observed cell: all {cut.size} of rows {window.row} to {window.row_end - 1} "
            f"and columns {window.col} to {window.col_end - 1} are missing, expected some observed. Check the nodata "
            f"value, or choose another slice (index) or part (bbox)."
        )
    if own_gaps and np.isfinite(cut.values).all():
        raise InputError(
            f"Variable {cut.name!r} has no gaps to move: got 0 missing of {cut.size} cells, expected some. Check the "
            f"nodata value, or choose another slice (index) or hold-out: {', '.join(SIMULATORS)}."
        )
    require_scorable(cut.values, cut.name)
    return cut, window


def _ranges(cells: int, size: int) -> Iterator[tuple[int, int]]:
    """Half-open ranges of `size` cells along one dimension: at the centre, the start and the end."""
    spare = max(cells - size, 0)
    for start in dict.fromkeys([spare // 2, 0, spare]):
        yield start, min(start + size, cells)


def _hide(cut: xr.DataArray, holdout: str, fraction: float, rng: np.random.Generator) -> HoldOut:
    try:
        if holdout == "gaps":
            return hide_moved_gaps(cut.values, fraction, rng)
        return hide_simulated(cut.values, holdout, fraction, rng)
    except InputError as error:
        raise InputError(
            f"Nothing of {cut.name!r} can be scored with the hold-out {holdout!r}: {error}. Choose another fraction, "
            f"seed or hold-out."
        ) from error


def _neighbours(chosen: _Slice, window: Window, across: Sequence[Hashable], default: str) -> xr.DataArray | None:
    """The slice and its neighbours in the window, ``(..., y, x)`` in memory; `default` is the dimension of the model.

    With several dimensions, it has the slices of all combinations, of which a fill reads those along one dimension.
    """
    for dim in across:
        if dim not in chosen.position:
            expected = " or ".join(map(repr, chosen.position)) or "none, it is one slice"
            raise InputError(f"No slices along across={dim!r}: expected {expected}.")
    near = {dim: chosen.near(dim) for dim in across or [default] if dim in chosen.position}
    near = {dim: places for dim, places in near.items() if len(places) > 1}
    if not near:
        return None
    slices = chosen.observed(near).transpose(*near, ...)
    return slices[..., window.row : window.row_end, window.col : window.col_end].compute()


def _covariates(
    given: Sequence[CovariateLike],
    resampling: str | None,
    obj: xr.DataArray | xr.Dataset,
    chosen: _Slice,
    cut: xr.DataArray,
    window: Window,
    neighbours: xr.DataArray | None,
) -> list[xr.DataArray]:
    """The covariates of the cut, in memory; those that vary along the dimension of the neighbours with their slices."""
    ds = obj if isinstance(obj, xr.Dataset) else obj.to_dataset(name=chosen.variable.name)
    near = () if neighbours is None else neighbours.dims[:-2]
    return [
        _covariate(covariate, chosen, cut, window, near)
        for covariate in covariates_on(chosen.grid, given, ds, resampling)
    ]


def _covariate(
    covariate: Covariate, chosen: _Slice, cut: xr.DataArray, window: Window, near: Sequence[Hashable]
) -> xr.DataArray:
    variable, position = covariate.variable, dict(chosen.position)
    if apart := [dim for dim in variable.leading if dim not in position]:
        raise InputError(
            f"The covariate {variable.label!r} varies along {apart[0]!r}, but {cut.name!r} does not: got dimensions "
            f"{variable.source.dims}, expected at most {chosen.variable.dims}. Select one entry."
        )
    places = {dim: chosen.near(dim) if dim in near else position[dim] for dim in variable.leading}
    part = variable.spatial_last.isel(places)[..., window.row : window.row_end, window.col : window.col_end]
    values = variable.read(part.values)
    if np.array_equal(values, cut.values, equal_nan=True):
        raise InputError(
            f"The covariate {variable.label!r} is {cut.name!r} itself, which the hidden cells could be read from. "
            "Leave it out, or give another variable."
        )
    return xr.DataArray(values, dims=part.dims, name=variable.label, attrs=THEMATIC if covariate.classes else {})


def _predict(
    method: str, values: FloatArray, seed: int, covariates: Sequence[xr.DataArray]
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Means, standard errors and tails of a baseline, each ``(y, x)``; of slices of a covariate, the last is used."""
    last = [array.values.reshape(-1, *values.shape)[-1] for array in covariates]
    layers = [Layer(there, classes=is_classes(array)) for there, array in zip(last, covariates, strict=True)]
    mean, error = predict(method, values, np.random.default_rng(seed), layers)
    return mean, error, np.zeros_like(error)


def _across(values: FloatArray, neighbours: xr.DataArray, chosen: _Slice) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Means, standard errors and tails of the interpolation along the first dimension of the neighbours."""
    first, *others = neighbours.dims[:-2]
    stack = neighbours.isel({dim: chosen.near(dim).index(chosen.position[dim]) for dim in others})
    place = chosen.near(first).index(chosen.position[first])
    where = np.array(positions(stack, first))
    rest = np.arange(len(where)) != place
    mean, error = linear_across(values, stack.values[rest], where[rest], where[place])
    return mean, error, np.zeros_like(error)


def _fill(
    cut: xr.DataArray, neighbours: xr.DataArray | None, chosen: _Slice, **options: Any
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Means, standard errors and tails of the model, each ``(y, x)``."""
    options |= {"tails": True, "as_": "numbers"}
    if neighbours is None:
        filled = infill(cut, **options)
    else:
        dims = neighbours.dims[:-2]
        place = {dim: chosen.near(dim).index(chosen.position[dim]) for dim in dims}
        stack = neighbours.copy(deep=True).rename(cut.name)
        stack[place] = cut.values
        filled = infill(stack.chunk(dict.fromkeys(dims, 1)), across=dims, **options).isel(place).compute()
    mean, error, tail = (filled[f"{cut.name}{suffix}"].values for suffix in ("", "_standard_error", "_tail"))
    return mean, error, tail
