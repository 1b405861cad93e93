"""The result of an evaluation: predictions and scores of all methods on one raster, with maps."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import ndimage

from geonp.evaluation.holdout import HoldOut
from geonp.evaluation.scored import OURS, VARIANTS, Scored
from geonp.raster.arrays import BoolArray, FloatArray
from geonp.raster.windows import Window

if TYPE_CHECKING:
    from geonp.fill.panels import Frame, Panel


@dataclass(frozen=True, eq=False, repr=False)
class Comparison(Scored):
    """Predictions of all methods for the hidden cells of one raster, and their scores. It prints as tables.

    Attributes
    ----------
    name, units, selection, holdout, seed, model, predictions
        See :class:`geonp.evaluation.scored.Scored`. Predictions are ``(y, x)``.
    shape : tuple of int
        Rows and columns of the raster.
    window : Window
        The evaluated part: all of the raster, or a part of it.
    y_up : bool
        True if the first row is the southernmost.
    fraction : float
        Share of the cells to hide, see :func:`geonp.evaluate`.
    test : HoldOut
        The evaluated part with and without its hidden cells.
    place : Frame, optional
        Where the evaluated part is on maps. By default they have rows and columns.
    """

    shape: tuple[int, int]
    window: Window
    y_up: bool
    fraction: float
    test: HoldOut
    place: Frame | None = None

    scored_name = "cells"
    distance_unit = "cells"
    distance_ends = (1, 2, 4, 8, 16, 32)

    @property
    def truth(self) -> FloatArray:
        """The evaluated part before hiding, ``(y, x)``."""
        return self.test.truth

    @property
    def distance(self) -> FloatArray:
        """Same as :attr:`distance_px`."""
        return self.distance_px

    @property
    def note(self) -> str:
        """Fraction and seed."""
        return f"fraction {self.fraction:g}, seed {self.seed}"

    @cached_property
    def distance_px(self) -> FloatArray:
        """Distance of each cell to the nearest observed cell that is not hidden, ``(y, x)``, in cells.

        Infinite if all of the slice is hidden.
        """
        missing = np.isnan(self.test.values)
        if missing.all():
            return np.full(missing.shape, np.inf)
        return np.asarray(ndimage.distance_transform_edt(missing))

    @cached_property
    def scored(self) -> BoolArray:
        """Hidden cells ``(y, x)`` that geonp filled both with and without other slices and covariates."""
        ours = [p.mean for name, p in self.predictions.items() if name in VARIANTS]
        return np.asarray(self.test.hidden & np.isfinite(ours).all(0))

    @property
    def setting(self) -> str:
        """Text: the evaluated part of the raster, and the cells hidden from it."""
        test, w, (rows, cols) = self.test, self.window, self.shape
        variable = f"{self.name} ({self.units})" if self.units else self.name
        variable += f", {self.selection}" if self.selection else ""
        part = f"{rows} x {cols} cells."
        if w.shape != self.shape:
            part = (
                f"a window of {w.shape[0]} x {w.shape[1]} cells, rows {w.row} to {w.row_end - 1} and "
                f"columns {w.col} to {w.col_end - 1} of {rows} x {cols}."
            )
        hidden, observed = int(test.hidden.sum()), int(np.isfinite(test.truth).sum())
        gaps = "The raster's own gaps, moved," if self.holdout == "gaps" else f"Simulated gaps ({self.holdout})"
        farthest = float(self.distance_px[test.hidden].max())
        if np.isinf(farthest):
            text = f"{variable}: {part} All {hidden:,} observed cells of the slice are hidden."
        else:
            text = (
                f"{variable}: {part} {gaps} hide {hidden:,} of {observed:,} observed cells, up to {farthest:.1f} cells "
                "from an observation."
            )
        empty = hidden - int(self.scored.sum())
        return f"{text} {OURS} leaves {empty:,} of them empty; these are not scored." if empty else text

    def to_dict(self) -> dict[str, Any]:
        """Everything except the arrays, as plain values for JSON."""
        test = self.test
        return {
            "variable": self.name,
            "units": self.units,
            "selection": self.selection,
            "shape": list(self.shape),
            "window": asdict(self.window),
            "holdout": self.holdout,
            "fraction": self.fraction,
            "seed": self.seed,
            **self.model,
            "observed_cells": int(np.isfinite(test.truth).sum()),
            "hidden_cells": int(test.hidden.sum()),
            "scored_cells": int(self.scored.sum()),
            **self.scores_as_dict(),
        }

    @property
    def caption(self) -> str:
        """The hold-out and its seed."""
        return f"{self.holdout}, seed {self.seed}"

    @property
    def frame(self) -> Frame:
        """The coordinates of the window, or its rows and columns."""
        from geonp.fill.panels import Frame

        if self.place is not None:
            return self.place
        rows, columns = self.test.truth.shape
        left, top = self.window.col - 0.5, self.window.row - 0.5
        lower, upper = (top, top + rows) if self.y_up else (top + rows, top)
        return Frame(1.0, ("column", "row"), (left, left + columns, lower, upper), not self.y_up, False)

    def panels(self) -> list[Panel]:
        """The maps of :meth:`plot`."""
        from geonp.fill.panels import Panel

        test, ours = self.test, self.predictions[self.ours]
        error = np.where(self.scored, ours.mean - test.truth, np.nan)
        spread = np.where(self.scored, ours.error, np.nan)
        low, high = np.nanquantile(test.truth, [0.01, 0.99])
        limit, wide = (float(np.nanquantile(np.abs(part), 0.99)) or 1.0 for part in (error, spread))
        value = {"vmin": low, "vmax": high, "cmap": "viridis"}
        left = np.isfinite(test.values).any()
        title, shown = ("With gaps", test.values) if left else ("The hidden slice", test.truth)
        first = Panel(title, shown[None], value, self.units, "both")
        around = {"vmin": -limit, "vmax": limit, "cmap": "RdBu_r"}
        return [
            first,
            Panel(f"Filled by {self.ours}", ours.mean[None], value, self.units, "both"),
            Panel("Standard error", spread[None], {"vmin": 0, "vmax": wide, "cmap": "magma"}, self.units, "max"),
            Panel("Actual error", error[None], around, self.units, "both"),
        ]
