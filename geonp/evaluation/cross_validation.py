"""The result of a cross-validation of measurements: predictions of each from the other folds, scores and maps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from geonp.evaluation.folds import FOLDS, SETTINGS
from geonp.evaluation.scored import Scored
from geonp.raster.arrays import BoolArray, FloatArray

if TYPE_CHECKING:
    from geonp.fill.panels import Frame, Panel


RESULTS = ("fold", "distance", "predicted", "standard_error", "scored")
"""Columns of results beside those of the measurements and of the baselines."""


@dataclass(frozen=True, eq=False, repr=False)
class CrossValidation(Scored):
    """Predictions of every measurement from the other folds by all methods, and their scores. It prints as tables.

    Attributes
    ----------
    name, units, selection, holdout, seed, model, predictions
        See :class:`geonp.evaluation.scored.Scored`. Predictions are ``(n,)``, one for each row of `measurements`.
    measurements : DataFrame
        The measurements: coordinates, time if there is one, value, `fold` and `distance` to the nearest measurement of
        another fold (at the same time).
    x, y, time : str
        Names of its columns of coordinates and, or None, of times.
    geographic : bool
        Whether the coordinates are longitudes and latitudes in degrees. Distances are then in km.
    wanted : array of bool
        The measurements to score, ``(n,)``: those at the times that were asked for.
    """

    measurements: pd.DataFrame
    x: str
    y: str
    time: str | None
    geographic: bool
    wanted: BoolArray

    scored_name = "measurements"

    @property
    def truth(self) -> FloatArray:
        """The measurements ``(n,)``."""
        return self.measurements[self.name].to_numpy(np.float64)

    @cached_property
    def scored(self) -> BoolArray:
        """Measurements ``(n,)`` that every method predicted."""
        return np.asarray(self.wanted & np.isfinite([p.mean + p.error for p in self.predictions.values()]).all(0))

    @property
    def distance(self) -> FloatArray:
        """Distances ``(n,)`` to the nearest measurement of another fold, at the same time."""
        return self.measurements["distance"].to_numpy(np.float64)

    @property
    def distance_unit(self) -> str:
        """Kilometres, or the unit of the coordinates."""
        return "km" if self.geographic else "units"

    @cached_property
    def distance_ends(self) -> Sequence[float]:
        """Upper ends of the classes of distance, 1, 2 or 5 times a power of ten; the last class has none."""
        low, high = np.quantile(self.distance[self.scored], [0.05, 1.0])
        first, last = np.floor(np.log10([max(low, 1e-6 * high, 1e-300), max(high, 1e-300)])).astype(int)
        powers = range(first, last + 1)
        steps = [step * 10.0**power for power in powers for step in (1, 2, 5)]
        ends = [end for end in steps if low < end < high][: SETTINGS.classes - 1]
        return ends or [float(high)]

    @property
    def folds(self) -> int:
        """Number of folds."""
        return int(self.measurements["fold"].nunique())

    @property
    def note(self) -> str:
        """Hold-out, folds and seed."""
        return f"{FOLDS[self.holdout].lower()}, {self.folds} folds, seed {self.seed}"

    @property
    def setting(self) -> str:
        """Text: the measurements, their folds, and how far they are from those that are known."""
        variable = f"{self.name} ({self.units})" if self.units else self.name
        variable += f", {self.selection}" if self.selection else ""
        places = len(self.by_place)
        times = ""
        if self.time is not None:
            dates = self.measurements.loc[self.wanted, self.time].nunique()
            times = f" and {dates:,} {'time' if dates == 1 else 'times'}"
        distance = self.distance[self.scored]
        unit = f" {self.distance_unit}" if self.geographic else ""
        text = (
            f"{variable}: {self.wanted.sum():,} measurements at {places:,} places{times}. {FOLDS[self.holdout]}, "
            f"{self.folds:,} in all: each measurement is predicted from the other folds, the nearest one of which is "
            f"{np.median(distance):.3g}{unit} away (median; at most {distance.max():.3g}{unit})."
        )
        left = int(self.wanted.sum() - self.scored.sum())
        return f"{text} {left:,} of them cannot be predicted; these are not scored." if left else text

    @cached_property
    def by_place(self) -> pd.DataFrame:
        """Means of each place over its scored measurements: value, prediction, error, RMSE and standard error."""
        p = self.predictions[self.ours]
        frame = self.measurements.loc[self.scored, [self.x, self.y]].assign(
            value=self.truth[self.scored], predicted=p.mean[self.scored], standard_error=p.error[self.scored]
        )
        frame["error"] = frame["predicted"] - frame["value"]
        frame["square"] = frame["error"] ** 2
        means = frame.groupby([self.x, self.y], sort=False).mean().reset_index()
        return means.assign(rmse=np.sqrt(means.pop("square")))

    @property
    def doubtful(self) -> pd.DataFrame:
        """The measurements that lie farthest outside of their intervals, with the number of standard errors."""
        p = self.predictions[self.ours]
        frame = self.to_frame()[self.scored]
        beyond = p.beyond(self.truth)[self.scored]
        columns = [self.x, self.y, *([self.time] if self.time else []), self.name, "predicted", "standard_error"]
        frame = frame[columns].assign(interval_halves=beyond)
        return frame[beyond > 1].nlargest(SETTINGS.doubtful, "interval_halves")

    def to_frame(self) -> pd.DataFrame:
        """The measurements with prediction and standard error of geonp, and the predictions of the baselines.

        The column ``scored`` is True for those that are scored: at the requested times, and predicted by every method.
        """
        ours = self.predictions[self.ours]
        others = {method: p.mean for method, p in self.predictions.items() if method != self.ours}
        return self.measurements.assign(predicted=ours.mean, standard_error=ours.error, scored=self.scored, **others)

    def to_dict(self) -> dict[str, Any]:
        """Everything except the measurements, as plain values for JSON."""
        return {
            "variable": self.name,
            "units": self.units,
            "selection": self.selection,
            "holdout": self.holdout,
            "folds": self.folds,
            "seed": self.seed,
            **self.model,
            "measurements": int(self.wanted.sum()),
            "places": len(self.by_place),
            "scored_measurements": int(self.scored.sum()),
            "distance_unit": self.distance_unit,
            **self.scores_as_dict(),
            "doubtful": self.doubtful.astype(object).map(_plain).to_dict("records"),
        }

    @property
    def frame(self) -> Frame:
        """Extent of the maps."""
        from geonp.fill.panels import Frame

        xy = self.by_place[[self.x, self.y]].to_numpy(np.float64)
        (west, south), (east, north) = xy.min(0), xy.max(0)
        margin = 0.04 * max(east - west, north - south) or 1.0
        aspect = 1 / max(0.1, np.cos(np.radians((south + north) / 2))) if self.geographic else 1.0
        extent = (west - margin, east + margin, south - margin, north + margin)
        labels = ("", "") if self.geographic else (self.x, self.y)
        return Frame(float(aspect), labels, extent, False, False, self.geographic)

    def panels(self) -> list[Panel]:
        """The maps of :meth:`plot`; of several times, means of each place and the root mean square error."""
        from geonp.fill.panels import Panel, Places

        means = self.by_place
        x, y = (means[name].to_numpy(np.float64) for name in (self.x, self.y))
        several = self.time is not None or len(means) < self.scored.sum()
        low, high = np.quantile(means["value"], [0.01, 0.99])
        value = {"vmin": low, "vmax": high, "cmap": "viridis"}
        # one scale: where both maps have one colour, standard errors are right
        wide = float(np.quantile(means[["standard_error", "rmse"]], 0.99)) or 1.0
        limit = float(np.quantile(means["error"].abs(), 0.99)) or 1.0
        spread = {"vmin": 0, "vmax": wide, "cmap": "magma"}
        around = {"vmin": -limit, "vmax": limit, "cmap": "RdBu_r"}

        def panel(title: str, column: str, style: dict[str, Any], extend: str) -> Panel:
            places = Places(x, y, means[column].to_numpy(np.float64), outlined=True)
            return Panel(title, np.full((1, 1, 1), np.nan), style, self.units, extend, places=places)

        return [
            panel("Measured, mean of each place" if several else "Measured", "value", value, "both"),
            panel(f"Predicted by {self.ours} from other folds", "predicted", value, "both"),
            panel("Standard error, mean" if several else "Standard error", "standard_error", spread, "max"),
            panel("Root mean square error", "rmse", spread, "max")
            if several
            else panel("Actual error", "error", around, "both"),
        ]


def _plain(value: Any) -> Any:
    """A value for JSON."""
    if isinstance(value, float | np.floating):
        return float(f"{value:.6g}")
    return value if isinstance(value, int | str) else str(value).removesuffix(" 00:00:00")
