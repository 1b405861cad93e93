"""Evaluate a model on one raster: hide observed cells, fill them by the model and by baselines, score the fills."""

from __future__ import annotations

import itertools
import os
import time
import warnings
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np
import xarray as xr

from geonp.errors import InputError, require_callable
from geonp.evaluation.across import ACROSS_METHODS, HARMONIC, predict_across
from geonp.evaluation.baselines import METHODS, REGRESSION, drawn_from, predict, requested
from geonp.evaluation.bounded import cut_off, limits_of
from geonp.evaluation.comparison import Comparison
from geonp.evaluation.holdout import HoldOut, hide_moved_gaps, hide_simulated
from geonp.evaluation.metrics import require_scorable
from geonp.evaluation.scored import OURS, WITH_BOTH, WITH_COVARIATES, WITH_SLICES, Prediction
from geonp.evaluation.slices import Moments, Neighbours, Slice, choose_slice, moments, neighbours_of
from geonp.fill.bounds import Limits
from geonp.fill.doubts import warn_of_codes
from geonp.fill.infill import infill
from geonp.fill.missing import MissingLike
from geonp.fill.options import Bounds, FillOptions
from geonp.fill.picture import frame_of_part
from geonp.fill.request import covariates_on
from geonp.inference.checkpoint import load_card
from geonp.inference.covariates import Layer
from geonp.raster.arrays import FloatArray
from geonp.raster.covariates import Covariate, CovariateLike, named
from geonp.raster.dimensions import has_coordinate
from geonp.raster.gaps import SIMULATORS
from geonp.raster.kinds import is_classes
from geonp.raster.metadata import THEMATIC
from geonp.raster.nodata import units_in_memory
from geonp.raster.windows import Window

SLICE = "slice"
"""The hold-out of a whole slice."""

HOLDOUTS = (*SIMULATORS, "gaps", SLICE)
"""Kinds of hold-outs: the simulated gaps, the raster's own gaps, moved, and a whole slice."""

_NEEDS = {
    REGRESSION: "covariates",
    **dict.fromkeys(ACROSS_METHODS, "across"),
    HARMONIC: "across, and a stack that spans a year or several days",
}
"""What baselines need that are not always there."""


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
    empty_slices: bool = False,
    bounds: Bounds | None = None,
    covariates: CovariateLike | Sequence[CovariateLike] | None = None,
    covariate_resampling: str | None = None,
    progress: Callable[[str], object] | None = None,
) -> Comparison:
    """Hide observed cells of a raster, fill them by the model and by classical methods, and score the fills.

    One slice is evaluated. With `covariates`, `across` or both, the model is evaluated with and without them. Nothing
    is hidden in neighbouring slices. In a raster larger than `size`, one window is evaluated: among nine windows,
    spread evenly from the centre to the corners, the one with the most observed cells (for the hold-out ``"gaps"``,
    with the share of observed cells nearest to one half), and the most central of equals. Only these windows are read.

    Parameters
    ----------
    obj : DataArray or Dataset
        Raster with two spatial dimensions and any number of others. In a Dataset, the first variable that can be
        filled is evaluated.
    model : str or path
        Name of a shipped model (``geonp models``), or path of a ``.safetensors`` checkpoint.
    holdout : str
        Cells to hide, one of :data:`HOLDOUTS`: simulated gaps (:data:`geonp.raster.gaps.SIMULATORS`); ``"gaps"``, the
        gaps of the raster, moved to observed cells; or ``"slice"``, the whole slice.
    fraction : float
        Share to hide, between 0 and 1: of all cells for simulated gaps, of the observed cells for ``"gaps"``. The
        latter are moved up to 16 times, until half of the share is hidden. Gaps are not split, so that a large gap may
        hide more.
    baselines : sequence of str, optional
        Methods to compare with. By default all: those of :data:`geonp.evaluation.baselines.METHODS`, with covariates
        ``regression_kriging``, and with `across` those of :data:`geonp.evaluation.across.ACROSS_METHODS`, which use the
        64 nearest slices along its first dimension.
    index : mapping of hashable to int, optional
        Position of the slice along the non-spatial dimensions, counted from 0. The default is 0 for each.
    size : int
        Largest number of rows and of columns evaluated, at least 2.
    seed : int
        Seed for the hold-out and for every method, at least 0.
    nodata : float, optional
        Value of missing cells, used instead of the declared one.
    missing : str, array of bool, callable, or sequence of these, optional
        Where values count as missing, as for :func:`geonp.infill`. They are not used as true values.
    device : str, optional
        Torch device, such as ``cpu`` or ``cuda``. By default a GPU if there is one.
    batch_size : int, optional
        Number of tiles in one forward pass. By default chosen from the free memory.
    across : hashable or sequence of hashable, optional
        Dimensions whose neighbouring slices the model uses, such as ``time``; ``"variables"`` for the other variables
        of a Dataset. By default the dimension that the model was adapted to, if any.
    empty_slices : bool
        As for :func:`geonp.infill`. Needed for the hold-out ``"slice"``.
    bounds : tuple, "valid_range" or mapping, optional
        As for :func:`geonp.infill`. Scores of the model are those of its distributions within the bounds. The values
        and distributions of the baselines are censored at the bounds, which never makes them worse. There is no log
        score.
    covariates, covariate_resampling
        As for :func:`geonp.infill`.
    progress : callable, optional
        Called with the name of each method before it starts.

    Returns
    -------
    Comparison
        Predictions and scores of all methods. It prints as tables.

    Raises
    ------
    InputError
        For an option out of range, a raster without observed cells or without gaps to move, and if none or all of
        the observed cells would be hidden.
    ModelError, CheckpointError
        For an unknown model, or one that cannot be loaded.

    Examples
    --------
    >>> dem = xr.DataArray(np.hypot(*np.mgrid[:24, :32]), dims=("y", "x"), name="height")
    >>> comparison = geonp.evaluate(dem, holdout="random", baselines=["nearest", "linear"])
    >>> comparison.scores["geonp"].rmse < comparison.scores["nearest"].rmse
    True
    """
    require_callable(progress)
    given, model = named(covariates), os.fspath(model)
    asked = FillOptions(across=across, empty_slices=empty_slices, bounds=bounds)
    _check_options(holdout, fraction, size, given, empty_slices=empty_slices)
    chosen = choose_slice(obj, index or {}, nodata, given, missing)
    array = chosen.observed()
    cut, window = _cut(array, size, own_gaps=holdout == "gaps")
    warn_of_codes(cut, [cut.values], "evaluated")
    test, card = _hide(cut, holdout, fraction, drawn_from(seed)), load_card(model)
    neighbours = neighbours_of(chosen, window, asked.dims, card.neighbourhood.across, empty_slices=empty_slices)
    known = _covariates(given, covariate_resampling, obj, chosen, cut, window, neighbours)
    baselines = requested(baselines, _methods(holdout, given, neighbours), _NEEDS)
    options = {"model": model, "seed": seed, "device": device, "batch_size": batch_size}
    limits = limits_of(asked.bounds, chosen.variables)
    methods = _Methods(cut.copy(data=test.values), neighbours, known, empty_slices, options, limits)

    def fill(method: str) -> Prediction:
        if progress is not None:
            progress(method)
        return methods.prediction(method)

    ours = _variants(holdout, bool(known), neighbours is not None)
    comparison = Comparison(
        name=str(cut.name),
        units=units_in_memory(cut.attrs),
        selection=_describe(chosen, array, neighbours, known),
        shape=(array.shape[0], array.shape[1]),
        window=window,
        y_up=has_coordinate(cut, chosen.grid.y_dim) and chosen.grid.spacing[0] > 0,
        holdout=holdout,
        fraction=fraction,
        seed=seed,
        model={"model": card.name, "model_version": card.version, "weights_sha256": card.sha256},
        test=test,
        place=frame_of_part(cut),
        predictions={method: fill(method) for method in (*ours, *baselines)},
    )
    return _scored(comparison)


def _scored(comparison: Comparison) -> Comparison:
    """The comparison, after a check that it has cells to score."""
    if not comparison.scored.any():
        why = "all are too far from an observation. Choose a smaller fraction or another hold-out."
        if comparison.holdout == SLICE:
            why = "none of them has enough observations in other slices. Take a stack of more slices."
        raise InputError(
            f"The model fills none of the {comparison.test.hidden.sum()} hidden cells of {comparison.name!r}: {why}"
        )
    return comparison


def _check_options(
    holdout: str, fraction: float, size: int, covariates: Sequence[CovariateLike], *, empty_slices: bool
) -> None:
    if holdout not in HOLDOUTS:
        raise InputError(f"Unknown hold-out: got {holdout!r}, expected one of {', '.join(HOLDOUTS)}.")
    if not 0 < fraction < 1:
        raise InputError(f"Wrong fraction: got {fraction!r}, expected a share to hide between 0 and 1, such as 0.25.")
    if not isinstance(size, Integral) or size < 2:
        raise InputError(f"Wrong size: got {size!r}, expected a number of rows and columns to evaluate, at least 2.")
    if holdout == SLICE and not empty_slices:
        raise InputError(
            f"The hold-out {SLICE!r} hides a whole slice, which other slices fill only with empty_slices: got "
            "empty_slices=False. Give across='time' and empty_slices=True (--across time --empty-slices)."
        )
    if holdout == SLICE and covariates:
        raise InputError(
            f"A whole slice is filled from other slices alone: got covariates with the hold-out {SLICE!r}. Leave "
            "one of them out."
        )


def _methods(holdout: str, covariates: Sequence[CovariateLike], neighbours: Neighbours | None) -> list[str]:
    """The baselines of an evaluation."""
    stack = None if neighbours is None else neighbours.stack
    across = [] if stack is None else [name for name in ACROSS_METHODS if name != HARMONIC or stack.periods]
    return across if holdout == SLICE else [*METHODS, *([REGRESSION] if covariates else []), *across]


def _variants(holdout: str, covariates: bool, across: bool) -> list[str]:
    """The variants of the model, those that use most first."""
    ours = [WITH_BOTH] if covariates and across else []
    ours += [WITH_SLICES] if across else []
    return ours if holdout == SLICE else [*ours, *([WITH_COVARIATES] if covariates else []), OURS]


def _describe(
    chosen: Slice, array: xr.DataArray, neighbours: Neighbours | None, covariates: Sequence[xr.DataArray]
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
        parts.append(f"with {neighbours.text}")
    if covariates:
        parts.append(
            f"with the covariate{'s' * (len(covariates) > 1)} {', '.join(str(one.name) for one in covariates)}"
        )
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
    if holdout == SLICE:
        return HoldOut(np.full_like(cut.values, np.nan), cut.values, np.isfinite(cut.values))
    try:
        if holdout == "gaps":
            return hide_moved_gaps(cut.values, fraction, rng)
        return hide_simulated(cut.values, holdout, fraction, rng)
    except InputError as error:
        raise InputError(
            f"Nothing of {cut.name!r} can be scored with the hold-out {holdout!r}: {error}. Choose another fraction, "
            f"seed or hold-out."
        ) from error


def _covariates(
    given: Sequence[CovariateLike],
    resampling: str | None,
    obj: xr.DataArray | xr.Dataset,
    chosen: Slice,
    cut: xr.DataArray,
    window: Window,
    neighbours: Neighbours | None,
) -> list[xr.DataArray]:
    """The covariates of the cut, in memory; those that vary along the dimension of the neighbours with their slices."""
    ds = obj if isinstance(obj, xr.Dataset) else obj.to_dataset(name=chosen.variable.name)
    near = {} if neighbours is None else neighbours.near
    return [
        _covariate(covariate, chosen, cut, window, near)
        for covariate in covariates_on(chosen.grid, given, ds, resampling)
    ]


def _covariate(
    covariate: Covariate, chosen: Slice, cut: xr.DataArray, window: Window, near: Mapping[Hashable, Sequence[int]]
) -> xr.DataArray:
    variable, position = covariate.variable, dict(chosen.position)
    if apart := [dim for dim in variable.leading if dim not in position]:
        raise InputError(
            f"The covariate {variable.label!r} varies along {apart[0]!r}, but {cut.name!r} does not: got dimensions "
            f"{variable.source.dims}, expected at most {chosen.variable.dims}. Select one entry."
        )
    places = {dim: near.get(dim, position[dim]) for dim in variable.leading}
    part = variable.spatial_last.isel(places)[..., window.row : window.row_end, window.col : window.col_end]
    values = variable.read(part.values)
    if np.array_equal(values, cut.values, equal_nan=True):
        raise InputError(
            f"The covariate {variable.label!r} is {cut.name!r} itself, which the hidden cells could be read from. "
            "Leave it out, or give another variable."
        )
    return xr.DataArray(values, dims=part.dims, name=variable.label, attrs=THEMATIC if covariate.classes else {})


@dataclass(frozen=True, eq=False)
class _Methods:
    """All methods on one slice; its hidden cells are NaN in `values`."""

    values: xr.DataArray
    neighbours: Neighbours | None
    covariates: Sequence[xr.DataArray]
    empty_slices: bool
    options: Mapping[str, Any]
    limits: Mapping[str, Limits]

    def prediction(self, method: str) -> Prediction:
        """The slice filled by a method, and the time that it took."""
        start = time.perf_counter()
        mean, error, tail, within = self._filled(method)
        return Prediction(mean, error, tail, time.perf_counter() - start, within)

    def _filled(self, method: str) -> Moments:
        options, beside = {**self.options, "tails": True, "as_": "numbers"}, self.neighbours
        if method in (WITH_SLICES, WITH_BOTH) and beside is not None:
            used = self.covariates if method == WITH_BOTH else None
            options["bounds"] = self._bounds(beside.ds)
            return beside.fill(self.values.values, covariates=used, empty_slices=self.empty_slices, **options)
        # those of the slice, without those of its neighbours
        place = {} if beside is None else beside.place
        known = [one.isel({d: n for d, n in place.items() if d in one.dims}, drop=True) for one in self.covariates]
        if method in (OURS, WITH_COVARIATES):
            used = known if method == WITH_COVARIATES else None
            options["bounds"] = self._bounds([self.values.name])
            with warnings.catch_warnings():
                if known:  # without them on purpose
                    warnings.filterwarnings("ignore", ".* was adapted with the covariates ")
                filled = infill(self.values, covariates=used, **options)
            return moments(filled, self.values.name)
        mean, error = self._baseline(method, known)
        if (limits := self.limits.get(str(self.values.name))) is None:
            return mean, error, np.zeros_like(error), ()
        mean, within = cut_off(mean, error, limits)
        return mean, error, np.zeros_like(error), within

    def _bounds(self, filled: Iterable[Hashable]) -> dict[str, Limits] | None:
        """The bounds of the variables that are filled."""
        return {str(name): self.limits[str(name)] for name in filled if str(name) in self.limits} or None

    def _baseline(self, method: str, known: Sequence[xr.DataArray]) -> tuple[FloatArray, FloatArray]:
        """Means and standard errors of a classical method."""
        beside = self.neighbours
        rng = np.random.default_rng(self.options["seed"])
        if method in ACROSS_METHODS and beside is not None and beside.stack is not None:
            return predict_across(method, self.values.values, beside.stack, rng)
        layers = [Layer(array.values, classes=is_classes(array)) for array in known]
        return predict(method, self.values.values, rng, layers)
