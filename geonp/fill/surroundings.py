"""Data beside the values of a region that it is filled from: neighbouring slices and covariates."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from geonp.inference.covariates import Layer
from geonp.inference.kernel import FillJob
from geonp.inference.series import SERIES
from geonp.inference.stack import Across, beside, first_positioned
from geonp.raster.arrays import Array
from geonp.raster.covariates import Covariate
from geonp.raster.variable import Variable
from geonp.raster.windows import Window

Index = tuple[int, ...]
"""Number of a slice along each leading dimension."""

Along = tuple[int, tuple[tuple[int, ...], ...]]
"""A leading dimension, and for each slice of a region along it the numbers of other slices."""


@dataclass(frozen=True)
class Region:
    """Slices along the leading dimensions of a variable, and a chunk of rows and columns.

    `beside` has a pair for each leading dimension whose neighbouring slices are used: its axis, and the indices of the
    neighbours of each slice of the region along it. `series` has such a pair for the slices that cells are predicted
    from which no observation of their slice reaches, or none, and `positioned` for
    the neighbours along the first dimension whose slices have positions.
    """

    lead: tuple[range, ...]
    chunk: Window
    beside: tuple[Along, ...] = ()
    series: tuple[Along, ...] = ()
    positioned: tuple[Along, ...] = ()

    @classmethod
    def of(cls, variable: Variable, lead: tuple[range, ...], chunk: Window, job: FillJob) -> Region:
        """A region of a variable, with neighbouring slices along those dimensions of the job that it has."""

        def along(dims: Iterable[Across | None], slices: int | None = None) -> Iterator[Along]:
            for dim in dims:
                if dim is not None and dim.dim in variable.leading:
                    axis = variable.leading.index(dim.dim)
                    yield axis, tuple(tuple(beside(k, dim.positions, slices)) for k in lead[axis])

        near, series = along(job.across), along([job.series], SERIES.slices)
        return cls(lead, chunk, tuple(near), tuple(series), tuple(along([first_positioned(job.across)])))

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the leading dimensions, then rows and columns."""
        return (*map(len, self.lead), *self.chunk.shape)

    def neighbours(self, index: Index) -> list[Index]:
        """Indices of the neighbouring slices of a slice."""
        return self._along(index, self.beside)

    def informing(self, index: Index) -> list[Index]:
        """Indices of the slices that cells of a slice are predicted from which no observation of it reaches."""
        return self._along(index, self.series)

    def positioned_neighbours(self, index: Index) -> list[Index]:
        """Indices of the neighbouring slices along the first dimension whose slices have positions."""
        return self._along(index, self.positioned)

    def _along(self, index: Index, axes: tuple[Along, ...]) -> list[Index]:
        return [
            (*index[:axis], k, *index[axis + 1 :])
            for axis, near in axes
            for k in near[index[axis] - self.lead[axis].start]
        ]

    @property
    def around(self) -> list[tuple[range, ...]]:
        """Neighbouring slices outside of the region, as consecutive ones along each leading dimension."""
        found = []
        for axis, near in self.beside:
            others = sorted(set(itertools.chain(*near)) - set(self.lead[axis]))
            # consecutive numbers have the same difference from their place
            for _, run in itertools.groupby(enumerate(others), lambda pair: pair[1] - pair[0]):
                (_, first), *rest = run
                part = range(first, first + len(rest) + 1)
                found.append((*self.lead[:axis], part, *self.lead[axis + 1 :]))
        return found


@dataclass(frozen=True)
class Placement:
    """Where the blocks of a covariate belong: its dimensions among the leading ones of the variable."""

    axes: tuple[int, ...]
    classes: bool
    known_errors: bool
    slice: bool

    @classmethod
    def of(cls, covariate: Covariate, variable: Variable) -> Placement:
        """The place of a covariate of a variable."""
        return cls(covariate.axes(variable), covariate.classes, covariate.known_errors, covariate.slice)

    def within(self, index: Index, first: Sequence[int]) -> Index:
        """Index in a block or region that begins at the slice `first` of the variable."""
        return tuple(index[axis] - first[axis] for axis in self.axes)

    def layer(self, result: Array) -> Layer:
        """The covariate in a window, from the result of its own fill."""
        exact = self.classes or self.known_errors or self.slice
        errors = None if exact else result["standard_error"]
        return Layer(result["value"], errors, self.classes, self.known_errors, self.slice)
