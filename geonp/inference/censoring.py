"""Latent values of tiles and windows: those of observations at the bounds are censored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from geonp.inference.covariates import Layer
from geonp.inference.predictor import Predictor
from geonp.inference.stitching import Tile
from geonp.inference.warping import Warping, uncensored
from geonp.raster.arrays import FloatArray


def latent(values: FloatArray, layers: Sequence[Layer], warping: Warping | None) -> tuple[FloatArray, Sequence[Layer]]:
    """Latent values of a window, and its layers with errors of latent values as known errors; as they are if None."""
    if warping is None:
        return values, layers
    layers = [
        replace(layer, values=warping.error_to_latent(values, layer.values)) if layer.known_errors else layer
        for layer in layers
    ]
    return warping.to_latent(values), layers


def without_piles(tile: Tile, warping: Warping | None, predictor: Predictor) -> Tile:
    """A tile with estimates of censored values, and their errors if the model can use them; as it is if None."""
    if warping is None:
        return tile
    values, errors = uncensored(tile.yc, tile.xc, warping)
    if errors is None or not predictor.covariates:
        return replace(tile, yc=values)
    known = 0.0 if tile.errors is None else np.where(errors > 0, 0.0, tile.errors)
    return replace(tile, yc=values, errors=errors + known)
