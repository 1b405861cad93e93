"""Between a raster block and the point sets that models read: bounded context, coordinates, standardisation.

Training and filling select and standardise context with the functions of this module, and with nothing else: what a
model sees in use is what it saw in training.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from scipy import ndimage

from geonp.errors import InputError
from geonp.inference.thinning import curve, thinned
from geonp.raster.grid import Grid

__all__ = [
    "Neighbourhood",
    "Standardised",
    "halo_for",
    "overlaps",
    "select_context",
    "standardise",
]

BoolArray = npt.NDArray[np.bool_]
FloatArray = npt.NDArray[np.floating]
IntArray = npt.NDArray[np.intp]


@dataclass(frozen=True)
class Neighbourhood:
    """How much of its surroundings a tile sees; part of a checkpoint, since training must agree with use.

    Attributes
    ----------
    tile_px : int
        Side of a tile, cells.
    halos_px : tuple of int
        Widths of the frame around a tile that context may come from, rising; a wider one is used only where the
        narrower holds fewer than `n_context` observations.
    n_context : int
        Context points of a tile, at most.
    min_context : int
        A tile with fewer observations in reach is left empty: no honest standard error comes from less.
    thinning : float
        How fast context thins out with distance, see :func:`geonp.inference.thinning.thinned`.
    overlap_px : int
        How far a tile's predictions reach into its neighbours at most, see :func:`overlaps`.
    merge : int
        Where their context has room for it, up to ``merge x merge`` tiles are filled as one, see
        :func:`geonp.inference.tiling.groups`: 1, 2, 4 and so on.
    axes : tuple of tuple of float
        For each input of the model, how much it grows from row to row and from column to column. Empty: its inputs are
        the numbers of rows and columns.
    spacing : tuple of float
        What `axes` are for: how much latitude and longitude grow from row to row and from column to column, degrees.
        Empty: they are for any raster.
    standard : tuple of float
        Mean and standard deviation that values are standardised by. Empty: those of the context.
    across : str
        Of rasters that have this dimension slices tell about each other along it, see :mod:`geonp.inference.stack`.
        Empty: they do not, unless it is asked for.
    """

    tile_px: int = 16
    halos_px: tuple[int, ...] = (56, 112)
    n_context: int = 256
    min_context: int = 4
    thinning: float = 3.0
    overlap_px: int = 4
    merge: int = 1
    axes: tuple[tuple[float, float], ...] = ()
    spacing: tuple[float, float] | tuple[()] = ()
    standard: tuple[float, float] | tuple[()] = ()
    across: str = ""

    def __post_init__(self) -> None:
        if self.merge < 1 or self.merge & (self.merge - 1):
            raise ValueError(f"merge must be 1, 2, 4 or another power of two, got {self.merge}")

    @property
    def reach_px(self) -> int:
        """The widest halo: nothing farther from a tile is ever read for it."""
        return self.halos_px[-1]

    def on(self, grid: Grid) -> Neighbourhood:
        """The same, with axes that grow as the coordinates of `grid` do.

        Its rows and columns run as they run there, whatever the order in training; where the coordinates are degrees
        they are as far apart, too. Along a dimension without coordinates the raster is taken for one on the grid of
        training.

        Raises
        ------
        InputError
            Where the coordinates are not evenly spaced.
        """
        if not self.spacing:
            return self
        for dim, even in zip((grid.y_dim, grid.x_dim), grid.even, strict=True):
            if not even:
                raise InputError(
                    f"The coordinate {dim!r} is not evenly spaced, as this model needs it: got cells that are off by "
                    f"more than 1 % of a step, expected equal steps (longitudes in degrees may wrap). Interpolate the "
                    f"raster to an even grid, or drop_vars({dim!r}) to fill it as on the grid of training."
                )
        factors = np.divide(grid.spacing, self.spacing)
        if not grid.geographic:
            factors = np.sign(factors)
        factors = np.where(grid.placed, factors, 1.0)
        # what float32 coordinates are off by is no other spacing
        near = np.abs(np.abs(factors) - 1) < 0.01
        down, across = np.where(near, np.sign(factors), factors).tolist()
        return replace(self, axes=tuple((a * down, b * across) for a, b in self.axes))


def halo_for(observed_mask: BoolArray, neighbourhood: Neighbourhood) -> int:
    """The narrowest halo that holds enough context, from the mask of a tile with its widest halo around it."""
    for halo in neighbourhood.halos_px[:-1]:
        cut = neighbourhood.reach_px - halo
        inner = observed_mask[cut : observed_mask.shape[0] - cut, cut : observed_mask.shape[1] - cut]
        if np.count_nonzero(inner) >= neighbourhood.n_context:
            return halo
    return neighbourhood.reach_px


def select_context(
    observed_mask: BoolArray, target_mask: BoolArray, neighbourhood: Neighbourhood, start: float = 0.5
) -> IntArray:
    """Choose the context of a tile: all that is near, ever less of what is far, evenly spread.

    Of the observed cells, `n_context` are taken by :func:`geonp.inference.thinning.thinned` along a curve through the
    window, d their distance from the nearest target. So a gap sees its shores in detail, and all of them, at any size.

    Parameters
    ----------
    observed_mask, target_mask : array
        ``(rows, cols)`` of one window: which cells have values, and which are targets, at least one.
    start : float
        See :func:`geonp.inference.thinning.thinned`.

    Returns
    -------
    array of int
        Flat indices into the window, rising; at most ``n_context``.
    """
    if np.count_nonzero(observed_mask) <= neighbourhood.n_context:
        return np.flatnonzero(observed_mask)
    order = _order_of(observed_mask)
    candidates = order[observed_mask.ravel()[order]]
    distance = ndimage.distance_transform_edt(~target_mask).ravel()[candidates]
    return np.sort(candidates[thinned(distance, neighbourhood.n_context, neighbourhood.thinning, start)])


def _order_of(observed_mask: BoolArray) -> IntArray:
    """Flat indices of a window's cells along a curve, which turns with the window.

    It is mirrored and transposed by the first moments of the observed cells, so that it turns with them unless one is
    zero or both are equal.
    """
    down, across = (
        int(observed_mask.sum(1 - axis) @ (2 * np.arange(n) - n + 1)) for axis, n in enumerate(observed_mask.shape)
    )
    return _turned_order(observed_mask.shape, down < 0, across < 0, abs(down) < abs(across))


@lru_cache(maxsize=64)
def _turned_order(shape: tuple[int, int], flip_rows: bool, flip_cols: bool, swap: bool) -> IntArray:
    cells = np.arange(shape[0] * shape[1]).reshape(shape)[:: -1 if flip_rows else 1, :: -1 if flip_cols else 1]
    cells = cells.T if swap else cells
    height, width = cells.shape
    order = cells.ravel()[np.argsort(curve(np.arange(height)[:, None], np.arange(width)), axis=None)]
    order.setflags(write=False)
    return order


def overlaps(observed_mask: BoolArray, neighbourhood: Neighbourhood) -> IntArray:
    """How far, in cells, the predictions of tiles reach out to each cell to be blended without a seam.

    One more than its distance from the nearest observation, in king's moves: tiles that see the same shore agree about
    the cells next to it, and differ most about what is far from all data.

    Returns
    -------
    array of int
        Like `observed_mask`, up to ``overlap_px``.
    """
    if not observed_mask.any():
        return np.full(observed_mask.shape, neighbourhood.overlap_px)
    distance = ndimage.distance_transform_cdt(~observed_mask, "chessboard")
    return np.asarray(np.minimum(distance + 1, neighbourhood.overlap_px), np.intp)


@dataclass(frozen=True)
class Standardised:
    """Values in units of their own spread: ``value = loc + scale * z``."""

    z: npt.NDArray[np.float32]
    loc: float
    scale: float


def standardise(
    values: FloatArray, standard: tuple[float, float] | tuple[()] = (), background: FloatArray | None = None
) -> Standardised:
    """Subtract the mean of a tile's context and divide by its standard deviation, in float64; or by those given.

    Equal values have no spread; their scale is what their dtype resolves at their magnitude (of float64 a bit less, for
    the rounding of the mean), so that a constant field is filled with the constant and a negligible standard error.
    With a `background`, it is what the values have beyond it that is standardised.
    """
    resolution = 1e-7 if values.dtype.itemsize <= 4 else 1e-13
    values = values.astype(np.float64, copy=False)
    magnitude = float(np.abs(values).max())
    values = values if background is None else values - background
    if standard:
        loc, scale = standard
        return Standardised(((values - loc) / scale).astype(np.float32), loc, scale)
    loc = float(values.mean())
    smallest = max(magnitude * resolution, 1e-30)
    scale = max(float(values.std()), smallest)
    return Standardised(((values - loc) / scale).astype(np.float32), loc, scale)
