"""Rows of a table of measurements whose values or places may stand for missing ones."""

from __future__ import annotations

import numpy as np

from geonp.errors import warn
from geonp.io.measurements import Table
from geonp.raster.sentinels import SENTINELS, Extremes, suspects


def warn_of_doubtful_rows(table: Table) -> None:
    """Warn of usual nodata values that are far from all other values, or are both coordinates of a place far away."""
    for name in table.values:
        values = table.values[name][table.usable(name)].astype(np.float64)
        for nodata, n in suspects([Extremes.of(values)]).items():
            warn(
                f"column {name!r} holds {nodata:g}, far from all other values, in {n} rows, which are used as they "
                "are. If they are missing, leave these cells empty."
            )
    _warn_of_marks(table)


def _warn_of_marks(table: Table) -> None:
    """Warn of places such as 0 N, 0 E, which stand for unknown ones."""
    used = np.any([table.usable(name) for name in table.values], axis=0) if table.values else np.zeros(0, bool)
    xy = table.xy[used]
    marked = (xy[:, 0] == xy[:, 1]) & np.isin(xy[:, 0], SENTINELS.values)
    for mark in np.unique(xy[marked, 0]):
        others = xy[~marked]
        if not len(others):
            return
        low, high = others.min(0), others.max(0)
        if np.maximum(low - mark, mark - high).max() > SENTINELS.apart * max((high - low).max(), 1e-9):
            warn(
                f"{int((xy[marked, 0] == mark).sum())} measurements lie at {table.x}={mark:g}, {table.y}={mark:g}, far "
                "from all others, and are used there. If their places are unknown, leave these rows out."
            )
