"""Directions in degrees in a window, filled as unit vectors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
from scipy import ndimage

from geonp.inference.covariates import Layer
from geonp.inference.kernel import FillJob, Inputs, fill_window
from geonp.raster.arrays import FloatArray, StructArray
from geonp.raster.metadata import FillFlag
from geonp.raster.windows import Window


def fill_directions(inputs: Inputs, chunk: Window, job: FillJob) -> StructArray:
    """Fill the missing cells of a chunk with directions, as :func:`geonp.inference.kernel.fill_window` with numbers.

    Sine and cosine are filled, and the direction is that of the predicted vector m. As the square of a unit vector is
    one, the mean resultant length of the new direction is R with ``R^2 = m^2 / (m^2 + v)``, where v is the sum of both
    variances. The standard error is the circular standard deviation ``sqrt(-2 ln R)`` (Mardia and Jupp, Directional
    Statistics, 2000, equation 2.3.14) in degrees. Filled directions are from 0 to 360, or from -180 to 180 if a
    direction observed within the reach of the context is negative.
    """
    values, others = inputs.values, inputs.others
    parts, read = [], None if inputs.far is None else cache(inputs.far)

    def component(of_angle: np.ufunc) -> Callable[[], FloatArray] | None:
        return None if read is None else lambda: of_angle(np.radians(read()))

    for of_angle, slope in ((np.sin, np.cos), (np.cos, np.sin)):
        layers = [_of_component(layer, slope(np.radians(values))) for layer in inputs.covariates]
        beside = None if others is None else of_angle(np.radians(others))
        of_part = Inputs(of_angle(np.radians(values)), inputs.domain_mask, beside, layers, component(of_angle))
        parts.append(fill_window(of_part, chunk, job))
    sine, cosine = parts
    core, filled = job.core(chunk), sine["flag"] == FillFlag.FILLED
    length = np.hypot(sine["value"], cosine["value"], dtype=np.float64)
    spread = np.hypot(sine["standard_error"], cosine["standard_error"], dtype=np.float64)
    angle = np.degrees(np.arctan2(sine["value"], cosine["value"], dtype=np.float64))
    result = sine.copy()
    result["value"] = np.where(filled, _in_range(angle, values, core, job), values[core])
    with np.errstate(divide="ignore", invalid="ignore"):
        error = np.degrees(np.sqrt(np.log1p((spread / length) ** 2)))
    result["standard_error"][filled] = np.minimum(error[filled], _LARGEST)
    result["tail"][filled] = np.maximum(sine["tail"], cosine["tail"])[filled]
    return result


_LARGEST = 1e3
"""Largest circular standard deviation, of directions that are all as likely, in degrees."""


def _of_component(layer: Layer, slope: FloatArray) -> Layer:
    """A covariate as it is; known errors of the directions as those of a component with this derivative."""
    return replace(layer, values=np.radians(layer.values) * np.abs(slope)) if layer.known_errors else layer


def _in_range(angle: FloatArray, values: FloatArray, core: tuple[slice, slice], job: FillJob) -> FloatArray:
    """Angles from -180 to 180 where an observation in reach is negative, from 0 to 360 elsewhere."""
    side = 2 * job.predictor.neighbourhood.reach_px + 1
    signed = ndimage.maximum_filter(values < 0, side, mode="constant")[core]
    return np.where(signed, angle, angle % 360)
