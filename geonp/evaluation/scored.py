"""The result of every evaluation: predictions of several methods for hidden values, and their scores."""

from __future__ import annotations

import html
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from geonp.evaluation.bounded import Parts, beyond_within, covered_within, score_within
from geonp.evaluation.metrics import LEVELS, Scores, score
from geonp.inference.student import half_width
from geonp.raster.arrays import BoolArray, FloatArray

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from geonp.fill.panels import Frame, Panel


OURS = "geonp"
"""Name of geonp among the methods."""

WITH_COVARIATES = f"{OURS} + covariates"
"""Name of geonp with covariates."""

WITH_SLICES = f"{OURS} + across"
"""Name of geonp with neighbouring slices."""

WITH_BOTH = f"{OURS} + covariates + across"
"""Name of geonp with both."""

VARIANTS = (WITH_BOTH, WITH_SLICES, WITH_COVARIATES, OURS)
"""Names of all variants of geonp, those that use most first."""

_ADDED = {WITH_BOTH: "Both", WITH_SLICES: "Other slices", WITH_COVARIATES: "Covariates"}

RANKED = {"rmse": "RMSE", "mae": "MAE", "crps": "CRPS", "log_score": "log score", "interval_score": "interval score"}
"""Scores that methods are ranked by, smaller is better, with their headings."""


@dataclass(frozen=True)
class VerdictSettings:
    """Settings of verdicts."""

    alike: float = 0.01
    """Methods whose scores differ by less, relatively, or by less in the log score, are about as good."""


VERDICT = VerdictSettings()


@dataclass(frozen=True, eq=False)
class Prediction:
    """The predictions of one method, in arrays of one shape.

    Attributes
    ----------
    mean, error : array of float
        Predicted values and standard errors, in the units of the data.
    tail : array of float
        Tails of the predictive distributions, see :mod:`geonp.inference.student`; 0 for normal ones.
    seconds : float
        Elapsed time, including the loading of the model.
    within : sequence of pairs
        With bounds: masks of values, and their distributions within the bounds.
    """

    mean: FloatArray
    error: FloatArray
    tail: FloatArray
    seconds: float
    within: Parts = ()

    def score(self, truth: FloatArray, where: BoolArray) -> Scores:
        """Sums of the scores of some values."""
        if self.within:
            return score_within(truth, self.mean, where, self.within)
        return score(truth, self.mean, self.error, where, self.tail)

    def beyond(self, truth: FloatArray) -> FloatArray:
        """Distance of true values from the median, as a multiple of that of the end of the central 95% interval."""
        if self.within:
            return beyond_within(truth, self.within)
        return np.asarray(np.abs(self.mean - truth) / half_width(self.error, self.tail, 0.95))

    def covered(self, truth: FloatArray, where: BoolArray, level: float) -> BoolArray:
        """Whether the central intervals of a level hold the true values, in no particular order."""
        if self.within:
            return covered_within(truth, where, self.within, level)
        return np.abs(self.mean - truth)[where] <= half_width(self.error[where], self.tail[where], level)


@dataclass(frozen=True, eq=False, repr=False)
class Scored:
    """Predictions of all methods for hidden values, and their scores. It prints as tables.

    Attributes
    ----------
    name, units, selection : str
        Name of the variable, its units, and the evaluated part in words; the latter two may be empty.
    holdout, seed : str, int
        What was hidden, and the seed.
    model : mapping of str to str
        Name, version and hash of the model.
    predictions : mapping of str to Prediction
        By method: geonp first, with covariates and other slices and without, then the baselines.
    """

    name: str
    units: str
    selection: str
    holdout: str
    seed: int
    model: Mapping[str, str]
    predictions: Mapping[str, Prediction]

    scored_name: ClassVar[str]
    """Name of the scored values, as a plural."""

    @property
    def truth(self) -> FloatArray:
        """True values, in the shape of the predictions."""
        raise NotImplementedError

    @property
    def scored(self) -> BoolArray:
        """Hidden values that all variants of geonp predicted: all methods are scored on them."""
        raise NotImplementedError

    @property
    def distance(self) -> FloatArray:
        """Distances to the nearest value that was not hidden, in :attr:`distance_unit`."""
        raise NotImplementedError

    @property
    def distance_unit(self) -> str:
        """Unit of the distances."""
        raise NotImplementedError

    @property
    def distance_ends(self) -> Sequence[float]:
        """Upper ends of the classes of distance; the last class has none."""
        raise NotImplementedError

    @property
    def setting(self) -> str:
        """Text: the evaluated data, and the hidden part of them."""
        raise NotImplementedError

    @property
    def note(self) -> str:
        """Options of the evaluation in words."""
        raise NotImplementedError

    def to_dict(self) -> dict[str, Any]:
        """Everything except the arrays, as plain values for JSON."""
        raise NotImplementedError

    def plot(self) -> Figure:
        """Draw maps of the values, the predictions, the standard errors and the actual errors.

        Raises MissingExtraError without matplotlib.
        """
        from geonp.fill.panels import drawn

        title = f"{self.name}, {self.selection}" if self.selection else self.name
        return drawn(self.panels(), self.frame, title, f"{self.caption}; {self.model['model']}")

    @property
    def caption(self) -> str:
        """The hold-out, in a few words, below the maps."""
        return self.note

    @property
    def frame(self) -> Frame:
        """Extent of the maps."""
        raise NotImplementedError

    def panels(self) -> list[Panel]:
        """The maps of :meth:`plot`."""
        raise NotImplementedError

    @property
    def ours(self) -> str:
        """Name of the prediction of geonp that is compared: that with all that is beside the gap."""
        return next(name for name in VARIANTS if name in self.predictions)

    @cached_property
    def by_distance(self) -> Mapping[str, Mapping[str, Scores]]:
        """Scores by method and by class of distance to the nearest observation, without empty classes."""
        level = np.searchsorted(self.distance_ends, self.distance)
        ends = (0, *self.distance_ends)
        names = [f"{low:g} to {high:g}" for low, high in itertools.pairwise(ends)] + [f"over {ends[-1]:g}"]
        parts = {name: self.scored & (level == i) for i, name in enumerate(names)}
        return {
            method: {name: p.score(self.truth, c) for name, c in parts.items() if c.any()}
            for method, p in self.predictions.items()
        }

    @cached_property
    def scores(self) -> Mapping[str, Scores]:
        """Scores by method over all that is scored."""
        return {method: sum(parts.values(), start=Scores()) for method, parts in self.by_distance.items()}

    def reliability(self, method: str, levels: Sequence[float]) -> FloatArray:
        """Share of the scored values within the central interval of `method` at each of the `levels`."""
        p = self.predictions[method]
        return np.array([p.covered(self.truth, self.scored, level).mean() for level in levels])

    @property
    def ranked(self) -> Mapping[str, str]:
        """The scores of :data:`RANKED` that methods have; without the log score if values have bounds."""
        bounded = any(p.within for p in self.predictions.values())
        return {name: title for name, title in RANKED.items() if not (bounded and name == "log_score")}

    @cached_property
    def winners(self) -> Mapping[str, str]:
        """Best method by each score of :attr:`ranked`. Of equal methods, a baseline wins over geonp."""
        baselines_first = sorted(self.scores, key=lambda method: method == self.ours)
        return {
            name: min(baselines_first, key=lambda method: getattr(self.scores[method], name)) for name in self.ranked
        }

    @cached_property
    def beaten(self) -> bool:
        """Whether a baseline is better than geonp by one of the scores, by more than :data:`VERDICT`."""
        return any(better for _, better in self._rivals.values())

    @cached_property
    def _rivals(self) -> Mapping[str, tuple[str, bool | None]]:
        """The best baseline by each score; whether it is better than geonp, None if both are about as good."""
        found: dict[str, tuple[str, bool | None]] = {}
        for name in self.ranked:
            values = {method: float(getattr(scores, name)) for method, scores in self.scores.items()}
            ours = values.pop(self.ours)
            rival = min(values, key=values.__getitem__, default=self.ours)
            theirs = values.get(rival, math.inf)
            tolerance = (
                {"rel_tol": 0.0, "abs_tol": VERDICT.alike} if name == "log_score" else {"rel_tol": VERDICT.alike}
            )
            found[name] = rival, None if math.isclose(ours, theirs, **tolerance) else theirs < ours
        return found

    @property
    def verdict(self) -> str:
        """Text: the baselines that beat geonp, those as good, the scores by which it is the best, and its coverage."""
        ours = self.scores[self.ours]
        lost, alike, won = dict[str, list[str]](), dict[str, list[str]](), list[str]()
        for name, (rival, better) in self._rivals.items():
            title = self.ranked[name]
            if better is False:
                won.append(title)
            elif better is None:
                alike.setdefault(rival, []).append(title)
            else:
                pair = f"{getattr(self.scores[rival], name):.4g} against {getattr(ours, name):.4g}"
                lost.setdefault(rival, []).append(f"{title} ({pair})")
        sentences = [f"{rival} beats {self.ours} by {_listed(pairs)}." for rival, pairs in lost.items()]
        sentences += [
            f"{self.ours} is about as good as {rival} by {_listed(titles)}." for rival, titles in alike.items()
        ]
        if won:
            sentences.append(f"{self.ours} is the best by {_listed(won)}.")
        sentences.append(
            f"The 95% intervals of {self.ours} cover {ours.coverage(0.95):.1%} of the hidden {self.scored_name}."
        )
        for name, what in _ADDED.items() if OURS in self.scores else ():
            if name in self.scores:
                change = self.scores[name].crps / self.scores[OURS].crps - 1
                effect = f"{'lower' if change < 0 else 'raise'} the CRPS by {abs(change):.1%}"
                sentences.append(f"{what} {'do not change the CRPS' if effect.endswith(' 0.0%') else effect}.")
        return " ".join(sentences)

    def scores_as_dict(self) -> dict[str, Any]:
        """Scores, those by distance, and the best methods, as plain values for JSON."""
        return {
            "scores": {m: {**s.as_dict(), "seconds": self.predictions[m].seconds} for m, s in self.scores.items()},
            "by_distance": {m: {d: s.as_dict() for d, s in parts.items()} for m, parts in self.by_distance.items()},
            "winners": dict(self.winners),
            "verdict": self.verdict,
        }

    def rows(self) -> list[list[str]]:
        """Scores as text: a row of headings, and a row for each method."""
        smallest = min(s.rmse for s in self.scores.values())
        columns = {"rmse": "RMSE", "mae": "MAE", "bias": "bias", **self.ranked}
        rows = [["method", *columns.values(), *(f"{level:.0%} interval" for level in LEVELS), "seconds"]]
        for method, s in self.scores.items():
            values = [_number(getattr(s, name), 1.0 if name == "log_score" else smallest) for name in columns]
            values += [f"{s.coverage(level):.1%}" for level in LEVELS]
            rows.append([method, *values, f"{self.predictions[method].seconds:.1f}"])
        return rows

    def distance_rows(self) -> list[list[str]]:
        """CRPS and our coverage as text, by distance to the nearest value that was not hidden."""
        crps = {method: [s.crps for s in parts.values()] for method, parts in self.by_distance.items()}
        smallest = [min(column) for column in zip(*crps.values(), strict=True)]
        parts = self.by_distance[self.ours]
        rows = [
            [f"{self.distance_unit} away", *parts],
            [f"{self.scored_name} scored", *(f"{s.cells:,}" for s in parts.values())],
        ]
        rows += [
            [method, *(_number(*pair) for pair in zip(values, smallest, strict=True))]
            for method, values in crps.items()
        ]
        return [*rows, [f"95% interval of {self.ours}", *(f"{s.coverage(0.95):.1%}" for s in parts.values())]]

    def table(self) -> str:
        """Scores, and the CRPS by distance to the nearest observation, as aligned text."""
        units = f" ({self.units})" if self.units else ""
        title = f"CRPS{units} by distance to the nearest observation:"
        return f"{_aligned(self.rows())}\n\n{title}\n{_aligned(self.distance_rows())}"

    def __repr__(self) -> str:
        return f"{self.setting}\n\n{self.table()}\n\n{self.verdict}"

    def _repr_html_(self) -> str:
        """In a notebook, whose lines are shorter than those of the table: it is scrolled, and not wrapped."""
        table = f'<pre style="white-space: pre; overflow-x: auto">{html.escape(self.table())}</pre>'
        return f"<p>{html.escape(self.setting)}</p>\n{table}\n<p>{html.escape(self.verdict)}</p>"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:-1]) + " and " + names[-1] if len(names) > 1 else names[0]


def _number(value: float, scale: float) -> str:
    """`value` with as many decimals as give `scale` four significant digits, so that a column aligns."""
    if not 1e-4 <= abs(scale) < 1e7 or abs(value) >= 1e12:
        return f"{value:.3e}"
    return f"{value:,.{max(0, 3 - math.floor(math.log10(abs(scale))))}f}"


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    """Columns of text, the first aligned left and the others right."""
    first, *others = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join([f"{row[0]:<{first}}", *(f"{text:>{n}}" for text, n in zip(row[1:], others, strict=True))])
        for row in rows
    )
