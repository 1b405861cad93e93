"""Covariates of tiles: co-located fields in a window, and their columns at the context and the targets of a tile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from geonp.errors import InputError
from geonp.raster.arrays import FloatArray, IntArray
from geonp.raster.covariates import require_finite
from geonp.raster.kinds import CLASSES
from geonp.raster.known_errors import warn_of_known_errors


@dataclass(frozen=True, eq=False)
class Layer:
    """A covariate in a window, or at scattered places.

    Attributes
    ----------
    values : array
        ``(rows, cols)`` or ``(n,)``, NaN where unknown.
    errors : array or None
        Standard errors of the values; None if they are exact.
    classes : bool
        Whether the values are numbers of classes.
    known_errors : bool
        Whether the values are no covariate, but the known standard errors of the observations.
    slice : bool
        Whether the values are no covariate, but another slice, see :mod:`geonp.inference.stack`.
    """

    values: FloatArray
    errors: FloatArray | None = None
    classes: bool = False
    known_errors: bool = False
    slice: bool = False

    def at(self, index: IntArray) -> Layer:
        """The covariate at some of the places."""
        errors = None if self.errors is None else self.errors[index]
        return replace(self, values=self.values[index], errors=errors)

    def joined(self, other: Layer) -> Layer:
        """The covariate at these places, then at those of `other`, which has errors if this has."""
        errors = None
        if self.errors is not None and other.errors is not None:
            errors = np.concatenate([self.errors, other.errors])
        return replace(self, values=np.concatenate([self.values, other.values]), errors=errors)


@dataclass(frozen=True, eq=False)
class Columns:
    """Covariates of the points of a tile, ``(2, n, p)`` each: values, NaN where unknown, and their standard errors."""

    context: FloatArray
    targets: FloatArray


def columns(layers: Sequence[Layer], context: IntArray, targets: IntArray) -> Columns | None:
    """The covariates at flat indices of the layers; None without any.

    Classes become indicators of those that split the context most evenly, at most ``CLASSES.indicators``.
    """
    found = [pair for layer in layers if not layer.known_errors for pair in _columns_of(layer, context, targets)]
    if not found:
        return None
    near, there = (np.stack(part, -1) for part in zip(*found, strict=True))
    return Columns(near, there)


def with_slices(covariates: Columns | None, context: FloatArray, targets: FloatArray) -> Columns:
    """Covariates of a tile, and other slices ``(k, n)`` at its context and targets, without errors."""
    near, there = (_exact(values.T.astype(np.float64)) for values in (context, targets))
    if covariates is None:
        return Columns(near, there)
    return Columns(*(np.concatenate(p, -1) for p in ((covariates.context, near), (covariates.targets, there))))


def known_errors(layers: Sequence[Layer], context: IntArray, values: FloatArray) -> FloatArray | None:
    """Known standard errors of the context ``(n,)`` with these `values`, 0 where there is none; None without any.

    Raises InputError for negative and infinite ones: those of lazy arrays are seen here for the first time.
    """
    for layer in layers:
        if layer.known_errors:
            known = layer.values.ravel()[context].astype(np.float64)
            found = np.nan_to_num(known, posinf=np.inf)
            require_finite(int(np.isinf(found).sum()))
            if (found < 0).any():
                raise InputError(f"Known errors must not be negative: got {found.min():g}. Correct them.")
            warn_of_known_errors(known, values)
            return found
    return None


def _columns_of(layer: Layer, context: IntArray, targets: IntArray) -> list[tuple[FloatArray, FloatArray]]:
    """Values and errors ``(2, n)`` at context and targets for each column of a layer."""
    near, there = (layer.values.ravel()[cells].astype(np.float64) for cells in (context, targets))
    if layer.classes:
        classes, counts = np.unique(near[np.isfinite(near)], return_counts=True)
        evenness = counts * (np.isfinite(near).sum() - counts)
        # ties are broken by the number of the class
        chosen = classes[np.argsort(-evenness, kind="stable")][: CLASSES.indicators]
        return [(_indicator(near, one), _indicator(there, one)) for one in chosen]
    if layer.errors is None:
        return [(_exact(near), _exact(there))]
    errors = layer.errors.ravel()
    return [(np.stack([near, errors[context]]), np.stack([there, errors[targets]]))]


def _indicator(classes: FloatArray, one: float) -> FloatArray:
    return _exact(np.where(np.isfinite(classes), classes == one, np.nan))


def _exact(values: FloatArray) -> FloatArray:
    return np.stack([values, np.zeros_like(values)])


def padded(batch: Sequence[Columns | None], n_c: int, n_t: int) -> Columns | None:
    """The columns of a batch of tiles in one array, ``(2, batch, n, p)``: padding is unknown.

    None if no tile has any.
    """
    p = max((tile.context.shape[2] for tile in batch if tile is not None), default=0)
    if not p:
        return None
    context, targets = np.full((2, len(batch), n_c, p), np.nan), np.full((2, len(batch), n_t, p), np.nan)
    for k, tile in enumerate(batch):
        if tile is not None:
            for whole, part in ((context, tile.context), (targets, tile.targets)):
                whole[:, k, : part.shape[1], : part.shape[2]] = part
    return Columns(context, targets)
