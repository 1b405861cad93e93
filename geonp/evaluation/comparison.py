"""What a comparison of methods on one raster found: predictions, scores, and what they say in words and tables."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import ndimage

from geonp.evaluation.holdout import HoldOut
from geonp.evaluation.metrics import LEVELS, Scores, score
from geonp.inference.student import half_width
from geonp.raster.windows import Window

__all__ = ["OURS", "RANKED", "Comparison", "Prediction"]

FloatArray = npt.NDArray[np.floating[Any]]
BoolArray = npt.NDArray[np.bool_]

OURS = "geonp"
"""Name of the model among the methods."""

RANKED = {
    "rmse": "RMSE",
    "mae": "MAE",
    "crps": "CRPS",
    "log_score": "log score",
    "interval_score": "interval score",
}
"""Scores by which methods are ranked, the smaller the better, with their names for people."""

_COLUMNS = {"rmse": "RMSE", "mae": "MAE", "bias": "bias", **RANKED}
_FARTHEST_PX = (1, 2, 4, 8, 16, 32)  # upper ends of the classes of distance; the last class has none


@dataclass(frozen=True, eq=False)
class Prediction:
    """What one method made of the raster.

    Attributes
    ----------
    mean, error : array of float
        ``(y, x)``, in the units of the raster: filled values and their standard errors.
    tail : array of float
        ``(y, x)``: tails of the predictive distributions, see :mod:`geonp.inference.student`; 0 for normal ones.
    seconds : float
        Time that it took, the loading of the model included.
    """

    mean: FloatArray
    error: FloatArray
    tail: FloatArray
    seconds: float


@dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """The predictions of all methods for the cells hidden from one raster, and their scores; printed as tables.

    Attributes
    ----------
    name, units, selection : str
        The variable, its units (empty if unknown) and, of more than one slice, which.
    shape : tuple of int
        Rows and columns of the raster.
    window : Window
        The part that was evaluated: all, or a cut.
    y_up : bool
        True where the first row is the southernmost.
    holdout, fraction, seed : str, float, int
        What was hidden; see :func:`geonp.evaluation.compare.compare`.
    model : mapping
        Name, version and hash of the model.
    test : HoldOut
        The evaluated part with and without its hidden cells.
    predictions : mapping of str to Prediction
        By method: :data:`OURS` first, then the baselines.
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

    @cached_property
    def distance_px(self) -> FloatArray:
        """``(y, x)``: distance of each cell to the nearest one left observed, in cells."""
        return np.asarray(ndimage.distance_transform_edt(np.isnan(self.test.values)))

    @cached_property
    def scored(self) -> BoolArray:
        """``(y, x)``: the hidden cells that the model filled, on which all methods are scored."""
        filled: BoolArray = self.test.hidden & np.isfinite(self.predictions[OURS].mean)
        return filled

    @cached_property
    def by_distance(self) -> Mapping[str, Mapping[str, Scores]]:
        """Scores by method and by class of distance to the nearest observation, those without a cell left out."""
        level = np.searchsorted(_FARTHEST_PX, self.distance_px)
        ends = (0, *_FARTHEST_PX)
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
        """Share of the scored cells within the central interval of each of `levels`, as predicted by `method`."""
        p = self.predictions[method]
        residual = np.abs(p.mean - self.test.truth)[self.scored]
        error, tail = p.error[self.scored], p.tail[self.scored]
        return np.array([(residual <= half_width(error, tail, level)).mean() for level in levels])

    @cached_property
    def winners(self) -> Mapping[str, str]:
        """The best method by each score of :data:`RANKED`; a baseline that does as well as the model wins."""
        contenders = sorted(self.scores, key=lambda method: method == OURS)
        return {name: min(contenders, key=lambda method: getattr(self.scores[method], name)) for name in RANKED}

    @property
    def verdict(self) -> str:
        """In words: which baselines beat the model, by which scores it is the best, and how often it is right."""
        ours, said = self.scores[OURS], []
        for winner in dict.fromkeys(self.winners.values()):
            theirs = self.scores[winner]
            won = {name: title for name, title in RANKED.items() if self.winners[name] == winner}
            if winner == OURS:
                said.append(f"{OURS} is the best by {_listed(list(won.values()))}.")
            else:
                pairs = [
                    f"{title} ({getattr(theirs, n):.4g} against {getattr(ours, n):.4g})" for n, title in won.items()
                ]
                said.insert(0, f"{winner} beats {OURS} by {_listed(pairs)}.")
        said.append(f"The 95% intervals of {OURS} cover {ours.coverage(0.95):.1%} of the hidden cells.")
        return " ".join(said)

    @property
    def setting(self) -> str:
        """In words: what was evaluated, and what was hidden from it."""
        test, (rows, columns) = self.test, self.shape
        of = f"{self.name} ({self.units})" if self.units else self.name
        of += f", {self.selection}" if self.selection else ""
        here = f"{of}: {rows} x {columns} cells."
        if self.window.shape != self.shape:
            w = self.window
            here = (
                f"{of}: a cut of {w.shape[0]} x {w.shape[1]} cells, rows {w.row} to {w.row_end - 1} and "
                f"columns {w.col} to {w.col_end - 1} of {rows} x {columns}."
            )
        hidden, known = int(test.hidden.sum()), int(np.isfinite(test.truth).sum())
        what = "The raster's own gaps, moved," if self.holdout == "gaps" else f"Simulated gaps ({self.holdout})"
        far = float(self.distance_px[test.hidden].max())
        text = f"{here} {what} hide {hidden:,} of {known:,} observed cells, up to {far:.1f} cells from an observation."
        left = hidden - int(self.scored.sum())
        return f"{text} {left:,} of them {OURS} leaves empty; they are not scored." if left else text

    def to_dict(self) -> dict[str, Any]:
        """Everything but the arrays as plain values, ready for JSON."""
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
        """The scores as text, a row for each method below one of headings."""
        unit = min(s.rmse for s in self.scores.values())
        covered = [f"{level:.0%} interval" for level in LEVELS]
        rows = [["method", *_COLUMNS.values(), *covered, "seconds"]]
        for method, s in self.scores.items():
            values = [_number(getattr(s, name), 1.0 if name == "log_score" else unit) for name in _COLUMNS]
            values += [f"{s.coverage(level):.1%}" for level in LEVELS]
            rows.append([method, *values, f"{self.predictions[method].seconds:.1f}"])
        return rows

    def distance_rows(self, name: str = "crps") -> list[list[str]]:
        """Score `name` of :data:`RANKED` as text, by method and distance to the nearest observation in cells."""
        found = {m: [getattr(s, name) for s in parts.values()] for m, parts in self.by_distance.items()}
        smallest = [min(abs(value) for value in column) for column in zip(*found.values(), strict=True)]
        parts = self.by_distance[OURS]
        rows = [["cells away", *parts], ["cells scored", *(f"{s.cells:,}" for s in parts.values())]]
        return rows + [
            [method, *(_number(*pair) for pair in zip(values, smallest, strict=True))]
            for method, values in found.items()
        ]

    def table(self) -> str:
        """The scores, and the CRPS by distance to the nearest observation, as aligned text."""
        units = f" ({self.units})" if self.units else ""
        title = f"CRPS{units} by distance to the nearest observation:"
        return f"{_aligned(self.rows())}\n\n{title}\n{_aligned(self.distance_rows())}"

    def __repr__(self) -> str:
        return f"{self.setting}\n\n{self.table()}\n\n{self.verdict}"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:-1]) + " and " + names[-1] if len(names) > 1 else names[0]


def _number(value: float, scale: float) -> str:
    """`value` with four significant digits of `scale`, so that the numbers of one column align."""
    if not 1e-4 <= abs(scale) < 1e7:
        return f"{value:.3e}"
    return f"{value:,.{max(0, 3 - math.floor(math.log10(abs(scale))))}f}"


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    """Columns of text, the first to the left and the others to the right."""
    first, *others = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join([f"{row[0]:<{first}}", *(f"{text:>{n}}" for text, n in zip(row[1:], others, strict=True))])
        for row in rows
    )
