"""The options of a fill: names, types, defaults and descriptions, written down once.

:func:`geonp.infill`, :func:`geonp.fill_store`, their plans, the accessor and the command line have the same options.
They take the options as keyword arguments, typed by ``FillKeywords``; ``takes_fill_options`` puts the names, types,
defaults and descriptions of :class:`FillOptions` into their signatures and docstrings (:mod:`geonp.fill.signatures`).
"""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
import xarray as xr

from geonp.errors import InputError
from geonp.raster.arrays import BoolArray

if TYPE_CHECKING:
    from geonp.fill.missing import MissingLike
    from geonp.raster.covariates import CovariateLike

Pair = tuple[float | None, float | None]
Bounds = Pair | Literal["valid_range"] | Mapping[Hashable, Pair | Literal["valid_range"]]
"""Bounds of values, of all variables or by name; None where there is none."""

_FINGERPRINTED_ELSEWHERE = {"model", "missing", "mask", "covariates", "errors", "points", "point_errors", "device"}
_FINGERPRINTED_ELSEWHERE |= {"batch_size"}
"""Options whose value does not identify a result: what they hold has content, and batches change no result."""

RESULTS = (
    *("standard_error", "quantile", "exceedance", "tail", "latent", "latent_error", "warping", "sample"),
    *("class_probability", "probability", "fill_flag"),
)
"""Endings of the names of all results, in the order in which they follow the values."""


@dataclass(frozen=True, eq=False, kw_only=True)
class FillOptions:
    """Checked options of a fill.

    Parameters
    ----------
    model : str or path
        Name of a shipped model (``geonp models``), or path of a ``.safetensors`` checkpoint.
    missing : str, array of bool, callable, or sequence of these, optional
        Conditions under which values count as missing, such as ``SCL=3,8,9``, ``SCL=cloud_shadow``,
        ``QA_PIXEL&0b11010``, ``cloud_prob>40`` or ``cloud_mask`` (not zero), or a preset: ``landsat-c2``,
        ``sentinel-2`` or ``modis``. They name variables or bands of the raster, which are then not filled: see
        :mod:`geonp.raster.flags`. Or an array of booleans, True where values are missing, or a function of the raster
        that returns one. A value is missing where any condition holds. Flags on another grid are read at the nearest
        cell.
    mask : DataArray, array of bool, path or GeoDataFrame, optional
        Valid domain, True where the raster is valid; ``(rows, columns)``; or polygons, such as a GeoPackage, GeoJSON or
        shapefile, that contain the centres of valid cells. Missing cells outside the domain stay empty; observed cells
        outside keep their value, but are not used as context.
    holes : bool
        Fill only holes: gaps that touch the edge of the raster in all slices, such as the corners around a tilted
        scene, stay empty. A gap is a set of missing cells within the `mask` that are connected by their edges.
    max_gap : int, optional
        Largest size of a gap that is filled, in cells: the number of rows and columns of the largest square of missing
        cells within it. For a stripe this is the width, as in xarray's ``interpolate_na``. A gap of a slice is filled
        as a whole or not at all; `max_distance` fills the part of a gap near data.
    max_distance : float, optional
        Largest distance to an observation, in cells, at which a cell is filled. Cells farther away stay empty. Where
        cells are not square, the unit is the height of a cell, or its width if that is smaller.
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
        whole distribution, see ``geonp.student``.
    exceed : sequence of float
        Thresholds, in the units of the values. For each, the probability that the value of a cell exceeds it is added.
    statistic : {"mean", "median"}
        Statistic of the predictive distribution that filled cells hold. Both are equal without `bounds`.
    bounds : tuple, "valid_range" or mapping, optional
        Bounds of the values, such as ``(0, None)`` for rain and ``(0, 1)`` for fractions; None where there is none, and
        ``"valid_range"`` for those of the CF attributes ``valid_range``, ``valid_min`` and ``valid_max``. A mapping
        gives the bounds of variables by name. All results then follow from one distribution within the bounds, which is
        skewed if the data are. Observations at a bound are censored: the latent value may lie beyond it.
    samples : int
        Number of joint samples of the filled cells to add. A sample is a possible raster with correlated errors, as
        needed for quantities of several cells (the mean over a gap, a slope, a flow). In each cell, samples have the
        distribution of the fill, measurement noise included. They depend on the seed, but not on the chunks or on
        their number: the first 10 of 100 samples equal 10 samples. The errors of different slices are independent.
    across : hashable or sequence of hashable, optional
        Dimensions along which slices are filled from each other, such as ``time`` or ``("time", "band")``;
        ``variables`` stands for the variables of a Dataset. A missing cell that is observed in some of the eight
        nearest slices is predicted twice: with these slices, and from its surroundings alone. The prediction with the
        smaller standard error gets nearly all the weight. Along a dimension with times, which may be irregular and of
        any calendar, the nearest slices are those nearest in time. A slice without any observed cell stays empty,
        unless `empty_slices`. An adapted model (:func:`geonp.adapt`) may set a default dimension.
    empty_slices : bool
        Fill cells with too few observations of their slice within reach, as on a date entirely under cloud, from the
        same cells in the 64 nearest slices along the first dimension of `across`, by a Gaussian process in time. It has
        a yearly and a daily cycle if the stack spans these. Such cells are flagged ``filled_across``.
    covariates : DataArray, Dataset, name, or sequence of these, optional
        Co-located fields that are known in the gaps, such as elevation for temperature: names of variables of the
        raster, which are then not filled, or arrays on its grid, static or along dimensions that they share with
        it. At most 16. Each variable of a Dataset, and each entry along other dimensions, is a covariate; classes are
        used as indicators. Gaps of covariates are filled from the covariates themselves. Units and order do not matter.
    covariate_resampling : str, optional
        Resample covariates on other grids or in other CRSs onto the grid of the raster: ``nearest``, ``bilinear``,
        ``cubic``, ``average``, ``mode`` or another method of GDAL. Classes are resampled by ``nearest`` or ``mode``. By
        default, other grids are refused.
    errors : DataArray or name, optional
        Known standard errors of the observations, in their units: a variable of the raster, which is then not filled,
        or an array on its grid. Observations with larger errors count less; those without a known error count as
        exact, with a warning. All keep their values. The standard error of a filled cell is that of a measurement
        without these errors. With ``"auto"``, the errors are those that the attribute ``ancillary_variables`` links,
        with a CF standard name that ends in ``standard_error``.
    points : DataFrame, Dataset or GeoDataFrame, optional
        Scattered measurements of the variable, such as those of buoys, that help to fill gaps. A table as for
        :func:`geonp.interpolate`, with a column named like the variable, and one for each other dimension, such as
        ``time``. If both have units, as in a column ``sst [degF]``, values are converted to those of the raster. Their
        offset from predictions of the raster alone is estimated and subtracted.
    point_errors : str, optional
        Column of known standard errors of the `points`; rows without one are not used. By default one standard error
        for all is estimated.
    smooth : bool
        Replace observations with known `errors` by estimates of the true values, with their standard errors, from all
        observations. They stay flagged as observed. By default, observed cells do not change.
    as_ : {"numbers", "classes", "counts"}, optional
        How to treat the values. By default, variables with CF ``flag_values`` or ``flag_meanings``, a palette, category
        names or a standard name such as ``area_type`` are classes, and all others are numbers. Each missing cell gets
        the most probable of the classes observed around it, with its probability. Counts are few distinct whole
        numbers, such as those of rare events: the probability of each is predicted as that of a class, and the filled
        value, its standard error, quantiles and exceedances are those of this distribution.
    class_probabilities : bool
        Add the probability of each class along the dimension ``category``.
    circular : bool
        Treat the values as directions in degrees, whose mean is circular: the mean of 350 and 10 is 0. By default,
        directions are variables whose CF ``standard_name``, or whose name with units of degrees, is a direction or an
        azimuth. They are filled as unit vectors, and their standard error is a circular standard deviation.

    Raises
    ------
    InputError
        For a value of the wrong type or out of range. `missing`, `mask`, `across`, `covariates`, `errors` and `device`
        are checked later, against the raster and the machine.
    """

    model: str | os.PathLike[str] = "tnpkr-sa"
    missing: MissingLike | Sequence[MissingLike] | None = None
    mask: xr.DataArray | BoolArray | str | os.PathLike[str] | None = None
    holes: bool = False
    max_gap: int | None = None
    max_distance: float | None = None
    device: str | None = None
    batch_size: int | None = None
    seed: int = 0
    nodata: float | None = None
    quantiles: Sequence[float] = ()
    tails: bool = False
    exceed: Sequence[float] = ()
    statistic: Literal["mean", "median"] = "mean"
    bounds: Bounds | None = None
    samples: int = 0
    across: Hashable | Sequence[Hashable] | None = None
    empty_slices: bool = False
    covariates: CovariateLike | Sequence[CovariateLike] | None = None
    covariate_resampling: str | None = None
    errors: CovariateLike | None = None
    points: Any = None
    point_errors: str | None = None
    smooth: bool = False
    as_: Literal["numbers", "classes", "counts"] | None = None
    class_probabilities: bool = False
    circular: bool = False

    @classmethod
    def of(cls, options: Mapping[str, Any], function: str) -> Self:
        """The options that a function is called with; raises TypeError, in its name, for one that it does not take."""
        known = [f.name for f in fields(cls)]
        for name in options:
            if name not in known:
                near = difflib.get_close_matches(name, known, 1)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                raise TypeError(f"{function}() got an unexpected keyword argument {name!r}{hint}")
        return cls(**options)

    def __post_init__(self) -> None:
        """Check the values, and convert them to plain types, so that equal options have equal fingerprints."""
        from geonp.raster.covariates import RESAMPLINGS  # with pyproj, which `import geonp` can do without

        if not isinstance(self.model, (str, os.PathLike)):
            raise InputError(f"model must be a name or the path of a .safetensors file, got {self.model!r}")
        if self.max_distance is not None and not (isinstance(self.max_distance, Real) and self.max_distance > 0):
            raise InputError(f"max_distance must be a positive number, got {self.max_distance!r}")
        if self.max_gap is not None and not (_is_integer(self.max_gap) and self.max_gap >= 1):
            raise InputError(f"max_gap must be a number of cells, at least 1, got {self.max_gap!r}")
        if self.batch_size is not None and not (_is_integer(self.batch_size) and self.batch_size >= 1):
            raise InputError(f"batch_size must be at least 1 tile, got {self.batch_size!r}")
        if not _is_integer(self.seed):
            raise InputError(f"seed must be an integer, got {self.seed!r}")
        if self.nodata is not None and not isinstance(self.nodata, Real):
            raise InputError(f"nodata must be a number, got {self.nodata!r}")
        levels = list(self.quantiles) if isinstance(self.quantiles, (Sequence, np.ndarray)) else [None]
        if not all(isinstance(q, Real) and 0 < q < 1 for q in levels):
            raise InputError(
                f"quantiles must be a sequence of numbers between 0 and 1, like [0.05, 0.95], got {self.quantiles!r}"
            )
        if len(set(levels)) < len(levels):
            raise InputError(f"quantiles must differ from each other, got {self.quantiles!r}")
        self._check_kinds()
        if self.statistic not in ("mean", "median"):
            raise InputError(f"statistic must be 'mean' or 'median', got {self.statistic!r}")
        if not _is_integer(self.samples) or self.samples < 0:
            raise InputError(f"samples must be the number of joint samples, 0 or more, got {self.samples!r}")
        if self.samples and self.smooth:
            raise InputError(
                "samples cannot be combined with smooth=True, which replaces observations: got "
                f"samples={self.samples}, expected one of the two"
            )
        if self.covariate_resampling not in (None, *RESAMPLINGS):
            raise InputError(
                f"covariate_resampling must be one of {', '.join(RESAMPLINGS)}, got {self.covariate_resampling!r}"
            )
        self._check_stack()
        plain = {
            "model": os.fspath(self.model),
            "across": self.dims or None,
            "empty_slices": bool(self.empty_slices),
            "max_distance": None if self.max_distance is None else float(self.max_distance),
            "seed": int(self.seed),
            "holes": bool(self.holes),
            "max_gap": None if self.max_gap is None else int(self.max_gap),
            "nodata": None if self.nodata is None else _plain(self.nodata),
            "quantiles": tuple(float(q) for q in self.quantiles),
            "tails": bool(self.tails),
            "smooth": bool(self.smooth),
            "class_probabilities": bool(self.class_probabilities),
            "circular": bool(self.circular),
            "exceed": _checked_thresholds(self.exceed),
            "bounds": _checked_bounds(self.bounds),
            "samples": int(self.samples),
            "covariates": (self.covariates or None) if isinstance(self.covariates, (list, tuple)) else self.covariates,
        }
        for name, value in plain.items():
            object.__setattr__(self, name, value)

    def _check_stack(self) -> None:
        """Check the options of slices that are filled from others."""
        if not isinstance(self.empty_slices, bool | np.bool_):
            raise InputError(f"empty_slices must be True or False, got {self.empty_slices!r}")
        for name in ("max_distance", "max_gap"):
            if self.empty_slices and getattr(self, name) is not None:
                raise InputError(
                    f"empty_slices cannot be combined with {name}, because it fills cells far from the observations of "
                    f"their slice: got {name}={getattr(self, name)!r}, expected one of the two"
                )
        if not all(isinstance(dim, Hashable) for dim in self.dims):
            raise InputError(f"across must be the name of a dimension or a list of names, got {self.across!r}")
        if len(set(self.dims)) < len(self.dims):
            raise InputError(f"across must name different dimensions, got {self.across!r}")

    def _check_kinds(self) -> None:
        """Check the options that are True or False, and those that say what values are."""
        for name in ("holes", "tails", "smooth", "class_probabilities", "circular"):
            if not isinstance(getattr(self, name), bool | np.bool_):
                raise InputError(f"{name} must be True or False, got {getattr(self, name)!r}")
        if self.smooth and self.errors is None:
            raise InputError("smooth=True needs known errors of the observations: got errors=None; give them")
        if self.as_ not in (None, "numbers", "classes", "counts") or (self.as_ and self.circular):
            raise InputError(
                f"as_ must be 'numbers', 'classes' or 'counts', and none of them with circular=True: got "
                f"{self.as_!r} with circular={self.circular}"
            )

    @property
    def dims(self) -> tuple[Hashable, ...]:
        """The dimensions of `across`."""
        found = () if self.across is None else self.across
        found = np.ravel(found).tolist() if isinstance(found, np.ndarray) else found
        return tuple(found) if isinstance(found, (list, tuple)) else (found,)

    @property
    def bare(self) -> FillOptions:
        """The options without arrays, for tasks: dask would compute those that it finds within them."""
        errors = "auto" if self.smooth else None
        return replace(self, missing=None, mask=None, covariates=None, errors=errors, points=None)

    @property
    def results(self) -> list[str]:
        """Endings of the names of the results of a variable of numbers, beside its values."""
        bounded = self.tails and self.bounds is not None
        left_out = {
            "quantile": not self.quantiles,
            "exceedance": not self.exceed,
            "tail": not self.tails,
            **dict.fromkeys(("latent", "latent_error", "warping"), not bounded),
            "sample": not self.samples,
        }
        return [name for name in RESULTS if "probability" not in name and not left_out.get(name)]

    def fingerprint(self) -> Mapping[str, object]:
        """The options whose values identify a result, by name."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name not in _FINGERPRINTED_ELSEWHERE}


def _checked_thresholds(exceed: object) -> tuple[float, ...]:
    thresholds: list[Any] = list(exceed) if isinstance(exceed, (Sequence, np.ndarray)) else [None]
    finite = all(isinstance(threshold, Real) and math.isfinite(threshold) for threshold in thresholds)
    if not finite or len(set(thresholds)) < len(thresholds):
        raise InputError(f"exceed must be a sequence of distinct thresholds, like [1, 10], got {exceed!r}")
    return tuple(map(float, thresholds))


def _checked_bounds(bounds: object) -> Bounds | None:
    """Bounds as pairs of floats and None. Raises InputError for anything else, and bounds that leave no values."""
    if isinstance(bounds, Mapping):
        return {name: _checked_bounds(pair) for name, pair in bounds.items()}  # type: ignore[misc]
    if bounds is None or (isinstance(bounds, str) and bounds == "valid_range"):
        return bounds  # type: ignore[return-value]
    pair = tuple(bounds) if isinstance(bounds, Sequence) and not isinstance(bounds, str) else ()
    known = [end for end in pair if end is not None]
    if len(pair) != 2 or not known or not all(isinstance(end, Real) and not math.isnan(end) for end in known):
        raise InputError(
            "bounds must be a smallest and a largest value, with None for an open end, like (0, None), or "
            f"'valid_range', or a mapping of names to these, got {bounds!r}"
        )
    low, high = (None if end is None or math.isinf(end) else float(end) for end in pair)
    if (low is None and high is None) or (low is not None and high is not None and not low < high):
        raise InputError(f"bounds must be finite on one side at least, and in ascending order, got {bounds!r}")
    return (low, high)


def _is_integer(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _plain(value: float) -> float:
    """A number as a Python int or float, so that large integers keep their digits."""
    return int(value) if isinstance(value, Integral) else float(value)
