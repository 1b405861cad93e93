"""The result of an evaluation: predictions and scores of all methods on one raster, as data, text and tables."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from scipy import ndimage

from geonp.evaluation.holdout import HoldOut
from geonp.evaluation.metrics import LEVELS, Scores, score
from geonp.inference.student import half_width
from geonp.raster.windows import Window

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from geonp.fill.panels import Panel

__all__ = ["OURS", "RANKED", "WITH_COVARIATES", "Comparison", "Prediction"]

FloatArray = npt.NDArray[np.floating[Any]]
BoolArray = npt.NDArray[np.bool_]

OURS = "geonp"
"""Name of geonp among the methods."""

WITH_COVARIATES = f"{OURS} + covariates"
"""Name of geonp with covariates."""

RANKED = {"rmse": "RMSE", "mae": "MAE", "crps": "CRPS", "log_score": "log score", "interval_score": "interval score"}
"""Scores that methods are ranked by, smaller is better, with their headings."""

_COLUMNS = {"rmse": "RMSE", "mae": "MAE", "bias": "bias", **RANKED}
_DISTANCES_PX = (1, 2, 4, 8, 16, 32)  # upper ends of the classes of distance; the last class has none


@dataclass(frozen=True, eq=False)
class Prediction:
    """The fill of one method.

    Attributes
    ----------
    mean, error : array of float
        ``(y, x)``: filled values and standard errors, in the units of the raster.
    tail : array of float
        ``(y, x)``: tails of the predictive distributions, see :mod:`geonp.inference.student`; 0 for normal ones.
    seconds : float
        Elapsed time, including the loading of the model.
    """

    mean: FloatArray
    error: FloatArray
    tail: FloatArray
    seconds: float


@dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """Predictions of all methods for the hidden cells of one raster, and their scores. It prints as tables.

    Attributes
    ----------
    name, units, selection : str
        Name of the variable, its units, and the evaluated slice in words; the latter two may be empty.
    shape : tuple of int
        Rows and columns of the raster.
    window : Window
        The evaluated part: all of the raster, or a cut.
    y_up : bool
        True if the first row is the southernmost.
    holdout, fraction, seed : str, float, int
        Options of the hold-out, see :func:`geonp.evaluate`.
    model : mapping of str to str
        Name, version and hash of the model.
    test : HoldOut
        The evaluated part with and without its hidden cells.
    predictions : mapping of str to Prediction
        By method: geonp first, with covariates and without, then the baselines.
    """

    name: str
    units: str
    selection: str
    shape: tuple[int, int]
    window: Window
    y_up: bool
    holdout: str
    fraction: float
    seed: int
    model: Mapping[str, str]
    test: HoldOut
    predictions: Mapping[str, Prediction]

    @property
    def ours(self) -> str:
        """Name of the prediction of geonp that is compared: that with covariates, if there are any."""
        return WITH_COVARIATES if WITH_COVARIATES in self.predictions else OURS

    @cached_property
    def distance_px(self) -> FloatArray:
        """Distance of each cell to the nearest observed cell that is not hidden, ``(y, x)``, in cells."""
        return np.asarray(ndimage.distance_transform_edt(np.isnan(self.test.values)))

    @cached_property
    def scored(self) -> BoolArray:
        """Hidden cells that geonp filled, ``(y, x)``: all methods are scored on them."""
        return np.asarray(self.test.hidden & np.isfinite(self.predictions[self.ours].mean))

    @cached_property
    def by_distance(self) -> Mapping[str, Mapping[str, Scores]]:
        """Scores by method and by class of distance to the nearest observation, without empty classes."""
        level = np.searchsorted(_DISTANCES_PX, self.distance_px)
        ends = (0, *_DISTANCES_PX)
        names = [f"{low} to {high}" for low, high in itertools.pairwise(ends)] + [f"over {ends[-1]}"]
        cells = {name: self.scored & (level == i) for i, name in enumerate(names)}
        return {
            method: {name: score(self.test.truth, p.mean, p.error, c, p.tail) for name, c in cells.items() if c.any()}
            for method, p in self.predictions.items()
        }

    @cached_property
    def scores(self) -> Mapping[str, Scores]:
        """Scores by method over all scored cells."""
        return {method: sum(parts.values(), start=Scores()) for method, parts in self.by_distance.items()}

    def reliability(self, method: str, levels: Sequence[float]) -> FloatArray:
        """Share of the scored cells within the central interval of `method` at each of the `levels`."""
        p = self.predictions[method]
        residual = np.abs(p.mean - self.test.truth)[self.scored]
        error, tail = p.error[self.scored], p.tail[self.scored]
        return np.array([(residual <= half_width(error, tail, level)).mean() for level in levels])

    @cached_property
    def winners(self) -> Mapping[str, str]:
        """Best method by each score of :data:`RANKED`. Of equal methods, a baseline wins over geonp."""
        baselines_first = sorted(self.scores, key=lambda method: method == self.ours)
        return {name: min(baselines_first, key=lambda method: getattr(self.scores[method], name)) for name in RANKED}

    @property
    def verdict(self) -> str:
        """Text: the baselines that beat geonp, the scores by which geonp is the best, and its coverage."""
        ours, sentences = self.scores[self.ours], []
        for winner in dict.fromkeys(self.winners.values()):
            theirs = self.scores[winner]
            won = {name: title for name, title in RANKED.items() if self.winners[name] == winner}
            if winner == self.ours:
                sentences.append(f"{self.ours} is the best by {_listed(list(won.values()))}.")
            else:
                pairs = [
                    f"{title} ({getattr(theirs, n):.4g} against {getattr(ours, n):.4g})" for n, title in won.items()
                ]
                sentences.insert(0, f"{winner} beats {self.ours} by {_listed(pairs)}.")
        sentences.append(f"The 95% intervals of {self.ours} cover {ours.coverage(0.95):.1%} of the hidden cells.")
        if self.ours != OURS:
            change = ours.crps / self.scores[OURS].crps - 1
            sentences.append(f"Covariates {'lower' if change < 0 else 'raise'} the CRPS by {abs(change):.1%}.")
        return " ".join(sentences)

    @property
    def setting(self) -> str:
        """Text: the evaluated part of the raster, and the cells hidden from it."""
        test, w, (rows, cols) = self.test, self.window, self.shape
        variable = f"{self.name} ({self.units})" if self.units else self.name
        variable += f", {self.selection}" if self.selection else ""
        part = f"{rows} x {cols} cells."
        if w.shape != self.shape:
            part = (
                f"a cut of {w.shape[0]} x {w.shape[1]} cells, rows {w.row} to {w.row_end - 1} and "
                f"columns {w.col} to {w.col_end - 1} of {rows} x {cols}."
            )
        hidden, observed = int(test.hidden.sum()), int(np.isfinite(test.truth).sum())
        gaps = "The raster's own gaps, moved," if self.holdout == "gaps" else f"Simulated gaps ({self.holdout})"
        farthest = float(self.distance_px[test.hidden].max())
        text = (
            f"{variable}: {part} {gaps} hide {hidden:,} of {observed:,} observed cells, up to {farthest:.1f} cells "
            "from an observation."
        )
        empty = hidden - int(self.scored.sum())
        return f"{text} {self.ours} leaves {empty:,} of them empty; these are not scored." if empty else text

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
            "scores": {m: {**s.as_dict(), "seconds": self.predictions[m].seconds} for m, s in self.scores.items()},
            "by_distance": {m: {d: s.as_dict() for d, s in parts.items()} for m, parts in self.by_distance.items()},
            "winners": dict(self.winners),
            "verdict": self.verdict,
        }

    def rows(self) -> list[list[str]]:
        """Scores as text: a row of headings, and a row for each method."""
        smallest = min(s.rmse for s in self.scores.values())
        rows = [["method", *_COLUMNS.values(), *(f"{level:.0%} interval" for level in LEVELS), "seconds"]]
        for method, s in self.scores.items():
            values = [_number(getattr(s, name), 1.0 if name == "log_score" else smallest) for name in _COLUMNS]
            values += [f"{s.coverage(level):.1%}" for level in LEVELS]
            rows.append([method, *values, f"{self.predictions[method].seconds:.1f}"])
        return rows

    def distance_rows(self) -> list[list[str]]:
        """CRPS as text, by method and by distance to the nearest observation in cells."""
        crps = {method: [s.crps for s in parts.values()] for method, parts in self.by_distance.items()}
        smallest = [min(column) for column in zip(*crps.values(), strict=True)]
        parts = self.by_distance[self.ours]
        rows = [["cells away", *parts], ["cells scored", *(f"{s.cells:,}" for s in parts.values())]]
        return rows + [
            [method, *(_number(*pair) for pair in zip(values, smallest, strict=True))]
            for method, values in crps.items()
        ]

    def plot(self) -> Figure:
        """Draw maps of the raster with gaps, of the filled one, of the standard error and of the actual error.

        Returns
        -------
        matplotlib.figure.Figure
            A notebook shows it once.

        Raises
        ------
        MissingExtraError
            Without matplotlib.
        """
        from geonp.fill.panels import Frame, drawn

        rows, columns = self.test.truth.shape
        left, top = self.window.col - 0.5, self.window.row - 0.5
        lower, upper = (top, top + rows) if self.y_up else (top + rows, top)
        frame = Frame(1.0, ("column", "row"), (left, left + columns, lower, upper), not self.y_up, False)
        title = f"{self.name}, {self.selection}" if self.selection else self.name
        note = f"{self.holdout}, seed {self.seed}; {self.model['model']}"
        return drawn(self.panels(), frame, title, note)

    def panels(self) -> list[Panel]:
        """The maps of :meth:`plot`."""
        from geonp.fill.panels import Panel

        test, ours = self.test, self.predictions[self.ours]
        error = np.where(self.scored, ours.mean - test.truth, np.nan)
        spread = np.where(self.scored, ours.error, np.nan)
        low, high = np.nanquantile(test.truth, [0.01, 0.99])
        limit, wide = (float(np.nanquantile(np.abs(part), 0.99)) or 1.0 for part in (error, spread))
        value = {"vmin": low, "vmax": high, "cmap": "viridis"}
        around = {"vmin": -limit, "vmax": limit, "cmap": "RdBu_r"}
        return [
            Panel("With gaps", test.values[None], value, self.units, "both"),
            Panel(f"Filled by {self.ours}", ours.mean[None], value, self.units, "both"),
            Panel("Standard error", spread[None], {"vmin": 0, "vmax": wide, "cmap": "magma"}, self.units, "max"),
            Panel("Actual error", error[None], around, self.units, "both"),
        ]

    def table(self) -> str:
        """Scores, and the CRPS by distance to the nearest observation, as aligned text."""
        units = f" ({self.units})" if self.units else ""
        title = f"CRPS{units} by distance to the nearest observation:"
        return f"{_aligned(self.rows())}\n\n{title}\n{_aligned(self.distance_rows())}"

    def __repr__(self) -> str:
        return f"{self.setting}\n\n{self.table()}\n\n{self.verdict}"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:-1]) + " and " + names[-1] if len(names) > 1 else names[0]


def _number(value: float, scale: float) -> str:
    """`value` with as many decimals as give `scale` four significant digits, so that a column aligns."""
    if not 1e-4 <= abs(scale) < 1e7:
        return f"{value:.3e}"
    return f"{value:,.{max(0, 3 - math.floor(math.log10(abs(scale))))}f}"


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    """Columns of text, the first aligned left and the others right."""
    first, *others = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join([f"{row[0]:<{first}}", *(f"{text:>{n}}" for text, n in zip(row[1:], others, strict=True))])
        for row in rows
    )
