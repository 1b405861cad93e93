"""Tolerances of coordinates, limits and units, which files round."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Tolerances:
    """How far numbers may be off that should be equal."""

    step: float = 0.01
    """Coordinates and steps, as a share of a step: float32 longitudes of 1 km grids are off by 0.2 %."""
    square: float = 0.1
    """Sides of square cells, as a share of one."""
    same_cells: float = 1e-3
    """Cells of equal grids, in cells, over the whole grid."""
    place: float = 1e-6
    """Places at the edge of a raster, in cells."""
    repeats: int = 2
    """Cells of one place in a grid: its last columns may repeat the first."""
    distance: float = 1e-9
    """Distances equal to the largest one, as a share of it."""
    box: float = 1e-9
    """Longitudes at the edge of a box, as a share of a turn: 359.9 and -0.1 differ after rounding."""
    label: float = 1e-6
    """A coordinate by which a slice is selected, as a share of it: 0.1 in float32 is 0.100000001. At most 1/4 step."""
    limit: float = 1e-6
    """A limit near an integer, which is this integer with a rounding error, in units of stored integers."""
    constant: float = 1e-6
    """Deviations or the range of a constant covariate, as a share of its largest value: rounding in float32."""
    unit: float = 1e-4
    """Factors between equal units: files say foot for the US survey foot."""
    shift: float = 0.1
    """Cells of equal grids, in cells, beyond which they may be those of other places."""
    joined: float = 0.1
    """Rows that differ by rounding are so much closer than the largest step: others are rows of a fine grid."""
    samples: float = 1e-3
    """Samples of an observed cell may be rounded by this part of the largest value."""


TOLERANCES = Tolerances()
"""The tolerances in use."""
