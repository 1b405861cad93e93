"""What lies beside a crop of a raster: other slices, other variables and covariates."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr

from geonp.fill.region import fill_covariate
from geonp.fill.request import VARIABLES
from geonp.fill.surroundings import Placement, Region
from geonp.inference.covariates import Columns, Layer
from geonp.inference.kernel import FillJob
from geonp.inference.stack import STACK, beside
from geonp.raster.arrays import BoolArray, FloatArray
from geonp.raster.covariates import Covariate
from geonp.raster.positions import positions
from geonp.raster.variable import Variable
from geonp.raster.windows import Window
from geonp.training.data.tasks import TaskCovariates

Rows = tuple[slice, ...]


@dataclass(frozen=True, eq=False)
class CovariateReader:
    """Reads covariates of the `variables` in crops, with their gaps filled from themselves, as in a fill."""

    covariates: Sequence[Covariate]
    variables: Mapping[Hashable, Variable]
    job: FillJob
    domain: Any

    def __call__(self, name: Hashable, index: tuple[int, ...], window: Rows) -> tuple[Layer, ...]:
        """The covariates of a crop of a variable."""
        rows, cols = window
        chunk, layers = Window(rows.start, rows.stop, cols.start, cols.stop), []
        for covariate in self.covariates:
            place = Placement.of(covariate, self.variables[name])
            lead = tuple(range(index[axis], index[axis] + 1) for axis in place.axes)
            result = fill_covariate(covariate, Region(lead, chunk), self.job, self.domain, chunk.shape)
            layers.append(place.layer(result[(0,) * len(lead)]))
        return tuple(layers)


@dataclass(frozen=True, eq=False)
class Surroundings:
    """What is read beside the crops of some variables.

    Attributes
    ----------
    arrays : mapping of name to DataArray
        As for :func:`geonp.adaptation.crops.read_crops`.
    dims : tuple of hashable or None
        Dimensions along which other slices are read, ``"variables"`` among them; by default all dimensions.
    covariates : CovariateReader or None
        Reads the covariates, if there are any.
    """

    arrays: Mapping[Hashable, xr.DataArray]
    dims: tuple[Hashable, ...] | None = None
    covariates: CovariateReader | None = None

    @classmethod
    def of(
        cls,
        variables: Sequence[Variable],
        dims: tuple[Hashable, ...],
        covariates: Sequence[Covariate],
        job: FillJob,
        domain: Any,
    ) -> Surroundings:
        """Other slices along `dims`, or all dimensions if there are none, and covariates of some variables."""
        reader = CovariateReader(covariates, {v.name: v for v in variables}, job, domain) if covariates else None
        return cls({variable.name: variable.observed for variable in variables}, dims or None, reader)

    def layers(self, name: Hashable, index: tuple[int, ...], window: Rows) -> tuple[Layer, ...]:
        """The covariates of a crop."""
        return () if self.covariates is None else self.covariates(name, index, window)

    def others(self, name: Hashable, index: tuple[int, ...], window: Rows, inside: BoolArray) -> dict[str, FloatArray]:
        """Values of other slices in a crop, by dimension; `inside` is its domain."""
        array, others = self.arrays[name], {}
        for axis, (dim, at) in enumerate(zip(array.dims, index, strict=False)):
            asked = self.dims is None or dim in self.dims
            # the card of a checkpoint holds its name
            if asked and isinstance(dim, str) and (near := beside(at, positions(array, dim))):
                values = np.asarray(array.data[(*index[:axis], near, *index[axis + 1 :], *window)])
                others[dim] = np.where(inside & np.isfinite(values), values, np.nan).astype(array.dtype)
        if self.dims is not None and VARIABLES in self.dims and (variables := self._variables(name, index, window)):
            stack = np.stack(variables)
            others[VARIABLES] = np.where(inside & np.isfinite(stack), stack, np.nan).astype(array.dtype)
        return others

    def _variables(self, name: Hashable, index: tuple[int, ...], window: Rows) -> list[FloatArray]:
        """The other variables in a crop that have no dimension that this one lacks."""
        array = self.arrays[name]
        place = dict(zip(array.dims, index, strict=False))
        rest = [other for key, other in self.arrays.items() if key != name and set(other.dims) <= set(array.dims)]
        return [
            np.asarray(other.data[(*(place[dim] for dim in other.dims[:-2]), *window)])
            for other in rest[: STACK.slices]
        ]


def beside_task(found: Columns | None, n_context: int) -> TaskCovariates | None:
    """Covariates of a task, without known errors of its context; None without any."""
    if found is None:
        return None
    (near, near_error), (there, there_error) = found.context.astype(np.float32), found.targets.astype(np.float32)
    return TaskCovariates(near, there, near_error, there_error, np.zeros(n_context, np.float32))
