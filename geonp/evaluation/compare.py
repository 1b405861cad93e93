"""Compare the model with classical methods on one raster: hide observed cells, fill them by each, score the fills."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import xarray as xr

from geonp.errors import InputError
from geonp.evaluation.baselines import METHODS, predict
from geonp.evaluation.comparison import OURS, Comparison, Prediction
from geonp.evaluation.holdout import HoldOut, hide, hide_like_own_gaps, hide_simulated
from geonp.fill.infill import infill
from geonp.inference.checkpoint import load_card
from geonp.inference.stack import beside
from geonp.raster.gaps import SIMULATORS
from geonp.raster.grid import Grid
from geonp.raster.metadata import UNNAMED, fill_variables
from geonp.raster.nodata import observed
from geonp.raster.windows import Window

__all__ = ["HOLDOUTS", "compare"]

FloatArray = npt.NDArray[np.floating[Any]]

HOLDOUTS = (*SIMULATORS, "gaps")
"""What can be hidden: simulated gaps, or the raster's own, moved."""

MOVES = 16


def compare(
    obj: xr.DataArray | xr.Dataset,
    *,
    holdout: str = "clouds",
    fraction: float = 0.25,
    model: str = "tnpkr-sa",
    baselines: Sequence[str] = METHODS,
    index: Mapping[str, int] | None = None,
    size: int = 512,
    seed: int = 0,
    nodata: float | None = None,
    device: str | None = None,
    batch_size: int | None = None,
    across: str | None = None,
    progress: Callable[[str], object] | None = None,
) -> Comparison:
    """Hide observed cells of a raster, fill them with the model and with baselines, and score the fills.

    One slice is evaluated. With `across`, the model also sees the slices beside it, of which nothing is hidden but what
    they lack: the baselines do not. A raster larger than `size` is cut: of nine cuts, spread evenly from its middle to
    its corners, the one with the most observed cells is taken (for ``"gaps"``, with the evenest share of observed and
    missing ones), or the middle one of several. The rest is not read, apart from these cuts.

    Parameters
    ----------
    obj : DataArray or Dataset
        With two spatial dimensions and any others; of a Dataset the first variable that can be filled.
    holdout : str
        One of :data:`HOLDOUTS`: kinds of simulated gaps (:data:`geonp.raster.gaps.SIMULATORS`), or ``"gaps"`` for the
        raster's own, moved elsewhere.
    fraction : float
        Share to hide, of all cells by simulated gaps, of the observed ones by own gaps. The latter are moved as
        often as half of it takes, up to 16 times; no gap is broken up, so that a large one may hide more.
    model, nodata, device, batch_size, across
        As in :func:`geonp.fill.infill.infill`.
    baselines : sequence of str
        Of :data:`geonp.evaluation.baselines.METHODS`.
    index : mapping of str to int, optional
        Position along dimensions other than the spatial ones, from 0; 0 for those not named.
    size : int
        Largest number of rows and of columns evaluated.
    seed : int
        Of what is hidden and of every method, at least 0.
    progress : callable, optional
        Called with the name of each method before it begins.

    Raises
    ------
    InputError
        For an option or a raster that cannot be used: without observed cells, without gaps to move, or where
        nothing or everything would be hidden.
    ModelError, CheckpointError
        For a model that does not exist or cannot be loaded.
    """
    _check_options(holdout, fraction, baselines, size)
    slice_, selection = _slice(obj, index or {}, nodata)
    cut, window = _cut(slice_, size, own_gaps=holdout == "gaps")
    test = _hide(cut, holdout, fraction, np.random.default_rng(seed))
    card = load_card(model)
    others = _others(obj, index or {}, nodata, window, across, card.neighbourhood.across)
    if others is not None:
        selection = ", ".join([*filter(None, [selection]), f"with those beside it along {others.dims[0]}"])
    predictions = {}
    for method in (OURS, *baselines):
        if progress is not None:
            progress(method)
        start = time.perf_counter()
        if method == OURS:
            hidden = cut.copy(data=test.values)
            found = _fill(hidden, others, model=model, seed=seed, device=device, batch_size=batch_size)
        else:
            mean, error = predict(method, test.values, np.random.default_rng(seed))
            found = mean, error, np.zeros_like(error)
        predictions[method] = Prediction(*found, time.perf_counter() - start)
    grid = Grid.from_xarray(cut)
    comparison = Comparison(
        name=str(cut.name),
        units=str(cut.attrs.get("units", "")),
        selection=selection,
        shape=(slice_.shape[0], slice_.shape[1]),
        window=window,
        y_up=grid.y_dim in cut.coords and grid.spacing[0] > 0,
        holdout=holdout,
        fraction=fraction,
        seed=seed,
        model={"model": card.name, "model_version": card.version, "weights_sha256": card.sha256},
        test=test,
        predictions=predictions,
    )
    if not comparison.scored.any():
        raise InputError(
            f"The model fills none of the {test.hidden.sum()} hidden cells of {cut.name!r}: all are farther from an "
            f"observation than it reaches. Choose a smaller fraction or another hold-out."
        )
    return comparison


def _check_options(holdout: str, fraction: float, baselines: Sequence[str], size: int) -> None:
    if holdout not in HOLDOUTS:
        raise InputError(f"Unknown hold-out: got {holdout!r}, expected one of {', '.join(HOLDOUTS)}.")
    if not 0 < fraction < 1:
        raise InputError(f"Wrong fraction: got {fraction!r}, expected a share to hide between 0 and 1, as 0.25.")
    if unknown := [method for method in baselines if method not in METHODS]:
        raise InputError(f"Unknown baseline: got {', '.join(unknown)}, expected some of {', '.join(METHODS)}.")
    if size < 2:
        raise InputError(f"Wrong size: got {size}, expected rows and columns to evaluate, at least 2.")


def _slice(obj: xr.DataArray | xr.Dataset, index: Mapping[str, int], nodata: float | None) -> tuple[xr.DataArray, str]:
    """The ``(y, x)`` slice to evaluate, with NaN where missing, and which it is in words."""
    array, grid, chosen = _selected(obj, index, nodata)
    found = observed(array.isel(chosen), nodata).transpose(grid.y_dim, grid.x_dim)
    words = [
        _position(found, str(dim), at) for dim, at in chosen.items() if array.sizes[dim] > 1 or dim in found.coords
    ]
    return found.rename(UNNAMED if array.name is None else str(array.name)), ", ".join(words)


def _selected(
    obj: xr.DataArray | xr.Dataset, index: Mapping[str, int], nodata: float | None
) -> tuple[xr.DataArray, Grid, dict[Hashable, int]]:
    """The variable to evaluate, its grid, and the position of the slice along each other dimension."""
    array = obj[fill_variables(obj, nodata)[0]] if isinstance(obj, xr.Dataset) else obj
    grid = Grid.from_xarray(array)
    sizes = {dim: n for dim, n in array.sizes.items() if dim not in (grid.y_dim, grid.x_dim)}
    for dim, position in index.items():
        if not 0 <= position < sizes.get(dim, 0):
            had = ", ".join(f"{name}=0 to {n - 1}" for name, n in sizes.items()) or "none, it is one slice"
            raise InputError(f"No slice {dim}={position}: expected {had}. Correct the index.")
    return array, grid, {dim: index.get(str(dim), 0) for dim in sizes}


def _position(found: xr.DataArray, dim: str, position: int) -> str:
    if dim not in found.coords:
        return f"{dim}={position}"
    value = found.coords[dim].values
    return f"{dim} {np.datetime_as_string(value.astype('M8[s]'), 'auto') if value.dtype.kind == 'M' else value}"


def _cut(array: xr.DataArray, size: int, *, own_gaps: bool) -> tuple[xr.DataArray, Window]:
    """The part of a ``(y, x)`` array to evaluate, in memory, and where it lies."""

    def worth(found: tuple[xr.DataArray, Window]) -> float:
        share = float(np.isfinite(found[0].values).mean())
        return share * (1 - share) if own_gaps else share

    def read(window: Window) -> tuple[xr.DataArray, Window]:
        rows, columns = slice(window.row, window.row_end), slice(window.col, window.col_end)
        return array[rows, columns].compute(), window

    ends = [list(_stretches(n, size)) for n in array.shape]
    cut, window = max((read(Window(*y, *x)) for y, x in itertools.product(*ends)), key=worth)
    if not np.isfinite(cut.values).any():
        raise InputError(
            f"Variable {cut.name!r} has no observed cell: all {cut.size} of rows {window.row} to {window.row_end - 1} "
            f"and columns {window.col} to {window.col_end - 1} are missing, expected some observed. Check the nodata "
            f"value, or choose another slice (index) or part (bbox)."
        )
    if own_gaps and np.isfinite(cut.values).all():
        raise InputError(
            f"Variable {cut.name!r} has no gaps that could be moved: got 0 missing of {cut.size} cells, expected some. "
            f"Check the nodata value, or choose another slice (index) or hold-out: {', '.join(SIMULATORS)}."
        )
    return cut, window


def _stretches(cells: int, size: int) -> Iterator[tuple[int, int]]:
    """Where to cut `size` out of `cells` along one dimension: in the middle, at the beginning and at the end."""
    spare = max(cells - size, 0)
    for start in dict.fromkeys([spare // 2, 0, spare]):
        yield start, min(start + size, cells)


def _hide(cut: xr.DataArray, holdout: str, fraction: float, rng: np.random.Generator) -> HoldOut:
    try:
        if holdout == "gaps":
            return _hide_own_gaps(cut.values, fraction, rng)
        return hide_simulated(cut.values, holdout, fraction, rng)
    except InputError as error:
        raise InputError(
            f"Nothing of {cut.name!r} can be scored with the hold-out {holdout!r}: {error}. Choose another fraction, "
            f"seed or hold-out."
        ) from error


def _hide_own_gaps(truth: FloatArray, fraction: float, rng: np.random.Generator) -> HoldOut:
    """Move the gaps of `truth` until they hide at least half of the `fraction` of its observed cells."""
    known = np.isfinite(truth)
    hidden = np.zeros_like(known)
    for _ in range(MOVES):
        hidden |= hide_like_own_gaps(truth, rng, fraction - hidden.sum() / known.sum()).hidden
        if hidden.sum() >= fraction / 2 * known.sum():
            break
    return hide(truth, hidden | ~known)


def _others(
    obj: xr.DataArray | xr.Dataset,
    index: Mapping[str, int],
    nodata: float | None,
    window: Window,
    across: str | None,
    usual: str,
) -> xr.DataArray | None:
    """What slices beside the evaluated one hold in the window ``(slices, y, x)``; `usual` is the model's dimension."""
    array, grid, chosen = _selected(obj, index, nodata)
    if across is not None and across not in chosen:
        raise InputError(
            f"No slices along across={across!r}: expected {' or '.join(map(repr, chosen)) or 'none, it is one slice'}."
        )
    dim = across or usual
    near = beside(chosen[dim], array.sizes[dim]) if dim in chosen else []
    if not near:
        return None
    rows, columns = slice(window.row, window.row_end), slice(window.col, window.col_end)
    found = observed(array.isel({**chosen, dim: near}), nodata).transpose(dim, grid.y_dim, grid.x_dim)
    return found[:, rows, columns].compute()


def _fill(cut: xr.DataArray, others: xr.DataArray | None, **options: Any) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Means, standard errors and tails of the model."""
    if others is None:
        out = infill(cut, tails=True, **options)
    else:
        dim = others.dims[0]
        values = np.concatenate([others.values, cut.values[None].astype(others.dtype)])
        coords = {name: cut.coords[name] for name in cut.dims if name in cut.coords}
        stack = xr.DataArray(values, coords, (dim, *cut.dims), cut.name, cut.attrs).chunk({dim: 1})
        out = infill(stack, tails=True, across=dim, **options).isel({dim: -1}).compute()
    mean, error, tail = (out[f"{cut.name}{ending}"].values for ending in ("", "_standard_error", "_tail"))
    return mean, error, tail
