"""Doubtful values of a raster, of which a fill warns: undeclared nodata, piles at what may be a bound, wrong limits.

They are looked for in parts, as a raster is read: at once in memory, by the units of a store, or by the blocks of a
dask array, whose process warns as soon as a block shows them.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import uuid4

import numpy as np
import xarray as xr

from geonp.errors import InputError, warn
from geonp.raster.arrays import Array, BoolArray, FloatArray
from geonp.raster.kinds import CLASSES, is_named_as_classes
from geonp.raster.metadata import UNNAMED, Kind
from geonp.raster.nodata import EXACT, PACKING, UNLIMITED, Reader, packing
from geonp.raster.sentinels import SENTINELS, Extremes, sentinels_of, suspects, warn_of_sentinels
from geonp.raster.variable import ClassReader, Variable


@dataclass(frozen=True)
class DoubtSettings:
    """Settings of the search for doubtful values."""

    pile: float = 0.1
    """A smaller share of equal values at the end of their range is no pile."""
    apart: int = 20
    """With fewer distinct values, equal ones are no pile, and those beyond the limits may be nodata."""
    fewest: int = 500
    """Among fewer observed cells, equal values may be chance."""
    sampled: int = 2**12
    """Number of observed values in which piles are searched for: those of journals are kept small."""
    least: int = 32
    """Smallest number of them in a part."""
    invalid: float = 0.5
    """A smaller share of values beyond the valid limits is not doubted."""
    compared: int = 2**16
    """Number of cells in rows whose neighbours are compared."""
    jumps: float = 0.2
    """If a larger share of neighbours that differ are no neighbours among the distinct values, these may be classes."""
    common: float = 0.7
    """Where a smaller share of whole numbers are equal, the others are no rare events."""
    alone: float = 0.5
    """Events lie alone if neighbours differ in more than this share of the pairs in which independent ones would."""


DOUBTS = DoubtSettings()


@dataclass(frozen=True, eq=False)
class Glance:
    """Signs of doubtful values in a part of a variable.

    Attributes
    ----------
    extremes : Extremes
        Of the observed values.
    sample : array
        Some of the observed values.
    observed, invalid, kinds : int
        Number of observed values, of values beyond the valid limits, and of distinct ones in a sample of the latter.
    pairs, steps, jumps : int
        Of few distinct whole numbers, the number of pairs of neighbours, of those that differ, and of those between
        whose values lies another one.
    """

    extremes: Extremes
    sample: Array
    observed: int
    invalid: int
    kinds: int
    pairs: int = 0
    steps: int = 0
    jumps: int = 0

    @classmethod
    def at(cls, stored: Array, observed_mask: BoolArray, variable: Variable, parts: int = 1) -> Glance:
        """Look at the stored values of one of so many parts of a variable."""
        observed, room = stored[observed_mask], max(DOUBTS.least, DOUBTS.sampled // parts)
        limits = variable.read.limits if isinstance(variable.read, Reader) else UNLIMITED
        invalid = observed[:0]
        if limits != UNLIMITED:
            others = stored[~observed_mask & np.isfinite(stored)]
            invalid = others[~np.isin(others, variable.nodata)]
        extremes = Extremes.of(observed, sentinels_of(variable.source))
        kinds, sample = np.unique(_some(invalid, room)).size, _some(observed, room)
        return cls(
            extremes, sample, observed.size, invalid.size, kinds, *_steps(stored, observed_mask, np.unique(sample))
        )

    def as_json(self) -> dict[str, Any]:
        """The glance as JSON, for a record."""
        counts = [[value, n] for value, n in self.extremes.counts.items()]
        ends = [self.extremes.least, self.extremes.greatest]
        return {
            "extremes": [counts, *ends],
            "sample": self.sample.tolist(),
            "invalid": [self.invalid, self.kinds],
            "steps": [self.pairs, self.steps, self.jumps],
        }

    @classmethod
    def of_record(cls, record: Mapping[str, Any]) -> Glance:
        """The glance of a unit, from its record."""
        seen = record.get("glance", {})
        counts, least, greatest = seen.get("extremes", ([], math.inf, -math.inf))
        sample = np.array(seen.get("sample", []), np.float64)
        numbers = *seen.get("invalid", (0, 0)), *seen.get("steps", (0, 0, 0))
        return cls(Extremes(dict(counts), least, greatest), sample, record["observed"], *numbers)


def _some(values: Array, room: int) -> Array:
    """About so many of the values: an odd stride takes all columns of a raster."""
    return values[:: values.size // room | 1]


def _steps(stored: Array, observed_mask: BoolArray, values: Array) -> tuple[int, int, int]:
    """Numbers of neighbours in a row, of those that differ, and of those that are none among the distinct `values`.

    Zeros unless these are few whole numbers.
    """
    if not _few_integers(values):
        return 0, 0, 0
    if stored.ndim > 1:
        rows = (..., slice(None, None, max(1, stored.size // DOUBTS.compared)), slice(None))
        stored, observed_mask = stored[rows], observed_mask[rows]
    steps = np.abs(np.diff(np.searchsorted(values, stored)))[observed_mask[..., 1:] & observed_mask[..., :-1]]
    return steps.size, int(np.count_nonzero(steps)), int(np.count_nonzero(steps > 1))


def warn_of_doubts(variable: Variable, glances: Iterable[Glance], *, hint: bool, known: Container[float] = ()) -> None:
    """Warn of the doubtful values that all parts of a variable show together, except those `known`.

    With `hint`, also of piles of equal values at what may be a bound.
    """
    glances = list(glances)
    if isinstance(variable.read, ClassReader) or not glances:
        return
    found = suspects(glance.extremes for glance in glances)
    warn_of_sentinels(variable.source, {value: n for value, n in found.items() if value not in known})
    _warn_of_rounding(variable, glances)
    observed, invalid = sum(glance.observed for glance in glances), sum(glance.invalid for glance in glances)
    if invalid > DOUBTS.invalid * (observed + invalid) and max(glance.kinds for glance in glances) >= DOUBTS.apart:
        low, high = variable.limits
        warn(
            f"{variable.label}: {invalid / (observed + invalid):.0%} of the values are outside the valid range "
            f"{low:g} to {high:g} that the raster declares, and count as missing. Integer limits refer to stored "
            "values (CF conventions): correct valid_range, valid_min and valid_max, or remove them."
        )
    if hint and variable.kind is Kind.NUMBERS:
        _warn_of_few_numbers(variable, glances)
        _warn_of_pile(variable.label, np.concatenate([glance.sample for glance in glances]), found)


def check_in_memory(variable: Variable, domain: Any, *, hint: bool = False) -> None:
    """Check that a variable has an observed cell, and warn of doubtful values within the domain.

    Raises InputError if it has none.
    """
    stored = variable.spatial_last.values
    observed_mask = np.isfinite(variable.read(stored))
    if not observed_mask.any():
        raise InputError(
            f"variable {variable.name!r} has no observed cell, so there is nothing to fill from; "
            f"{_invalid(variable, stored) or 'check the nodata value, or leave the variable out'}"
        )
    hint &= not observed_mask.all()
    if isinstance(domain, np.ndarray):
        stored, observed_mask = stored[..., domain], observed_mask[..., domain]
        if not observed_mask.any():
            warn(
                f"{variable.label}: no observed cell lies within the mask (--mask), so that its missing cells stay "
                "empty. It must be True, or not 0, where the raster is valid, in observed cells, too."
            )
    warn_of_doubts(variable, [Glance.at(stored, observed_mask, variable)], hint=hint)


def _invalid(variable: Variable, stored: Array) -> str:
    """What to do about values that are all beyond the valid range, such as that of other units; empty without any."""
    found = stored[np.isfinite(stored) & ~np.isin(stored, variable.nodata)]
    if variable.limits == UNLIMITED or not found.size:
        return ""
    low, high = variable.limits
    return (
        f"its values, from {found.min():g} to {found.max():g}, are outside of the valid range {low:g} to {high:g} that "
        "its attributes declare, as after a conversion of units: correct valid_range, valid_min and valid_max, or "
        "remove them"
    )


def _warn_of_rounding(variable: Variable, glances: list[Glance]) -> None:
    """Warn that integers beyond 2^53 are rounded: files of integers with missing cells are read as floats."""
    stored = np.dtype(variable.encoding.get("dtype", variable.source.dtype))
    ends = [abs(end) for glance in glances for end in (glance.extremes.least, glance.extremes.greatest)]
    largest = max((end for end in ends if np.isfinite(end)), default=0.0)
    plain = packing(variable.source.encoding) == packing({})
    if stored.kind in "iu" and variable.source.dtype.kind == "f" and plain and largest > EXACT:
        warn(
            f"{variable.label}: integers beyond 2^53 are read as floats of 64 bits, so that those of the result are "
            f"rounded to multiples of {np.spacing(largest):.0f}, observed cells too. To keep them, fill in Python what "
            "xr.open_dataset(..., mask_and_scale=False) reads."
        )


def _warn_of_few_numbers(variable: Variable, glances: list[Glance]) -> None:
    """Warn of rare events and of codes in a variable that is filled as numbers."""
    if variable.sure:
        return
    if events := _rare_events(glances):
        warn(
            f"{variable.label}: filled as numbers, but {events}. Single events are taken for noise: filled values are "
            "too small, and standard errors far too small. as_='counts' (--as counts) predicts the probability of each "
            "count; as_='numbers' (--as numbers) turns this warning off."
        )
    elif doubt := _doubt_of_codes(variable.source, glances):
        warn(
            f"{variable.label}: filled as numbers, but {doubt}. If these are classes, say so with as_='classes' (--as "
            "classes); if they are numbers, with as_='numbers' (--as numbers)."
        )


def warn_of_codes(source: xr.DataArray, parts: Iterable[FloatArray], use: str) -> None:
    """Warn of codes and rare events in parts ``(rows, columns)`` of a raster, NaN where missing.

    Their `use` is not filling.
    """
    glances = []
    for part in parts:
        mask = np.isfinite(part)
        sample = _some(part[mask], DOUBTS.sampled)
        glances.append(Glance(Extremes.of(sample, ()), sample, 0, 0, 0, *_steps(part, mask, np.unique(sample))))
    if not glances:
        return
    used = f"{UNNAMED if source.name is None else source.name}: {use} as numbers, but"
    if events := _rare_events(glances):
        warn(
            f"{used} {events}. Single events are taken for noise: predictions are too small, and standard errors far "
            "too small. infill(as_='counts') (geonp fill --as counts) predicts the probability of each count."
        )
    elif doubt := _doubt_of_codes(source, glances):
        warn(
            f"{used} {doubt}. If these are classes, leave them out: the mean of two classes is another class. "
            "infill(as_='classes') (geonp fill --as classes) fills them."
        )


def _doubt_of_codes(source: xr.DataArray, glances: list[Glance]) -> str:
    """Why a raster may hold codes: a few distinct whole numbers among which it jumps, or named like those; or empty."""
    sample = np.concatenate([glance.sample for glance in glances])
    values, named = np.unique(sample), is_named_as_classes(source)
    few = values.size > 2 and _few_integers(values)  # two are a state
    if "units" in source.attrs or sample.size < DOUBTS.fewest or not few:
        return ""
    steps, jumps = sum(glance.steps for glance in glances), sum(glance.jumps for glance in glances)
    held = f"holds {values.size} distinct whole numbers from {values[0]:g} to {values[-1]:g}, and"
    if named:  # of integers with such a name there is a warning before they are read
        return f"{held} has the name of classes" if source.dtype.kind == "f" else ""
    return f"{held} jumps among them from cell to cell as codes of classes do" if jumps > DOUBTS.jumps * steps else ""


def _rare_events(glances: list[Glance]) -> str:
    """Why a raster may hold rare events: most of its whole numbers are equal, and the others lie apart; or empty."""
    sample = np.concatenate([glance.sample for glance in glances])
    values, counts = np.unique(sample, return_counts=True)
    if sample.size < DOUBTS.fewest or not _few_integers(values):
        return ""
    shares = counts / sample.size
    # of neighbours that have nothing to do with each other
    expected = sum(glance.pairs for glance in glances) * (1 - float(np.sum(shares**2)))
    apart = sum(glance.steps for glance in glances) > DOUBTS.alone * max(expected, DOUBTS.least)
    if shares.max() < DOUBTS.common or not apart:
        return ""
    return f"{shares.max():.0%} of the observed values are {values[shares.argmax()]:g}, and most others lie alone"


def _few_integers(values: Array) -> bool:
    """Whether distinct values may be codes of classes or counts."""
    return bool(1 < values.size <= CLASSES.named and (values == np.rint(values)).all())


def _warn_of_pile(label: str, sample: Array, missing: Container[float]) -> None:
    """Warn of many equal values at the end of the range of the observed ones, which may be a bound."""
    values, counts = np.unique(sample, return_counts=True)
    if sample.size < DOUBTS.fewest or values.size < DOUBTS.apart:
        return
    for end, what, pair, flag in ((0, "smallest", "({}, None)", "{},"), (-1, "largest", "(None, {})", ",{}")):
        others = np.delete(counts, end)
        if values[end] in missing or (
            values[end] and np.isclose(values[end], SENTINELS.values, rtol=1e-6, atol=0).any()
        ):
            continue  # more likely missing, of which there is a warning
        if counts[end] >= DOUBTS.pile * sample.size and counts[end] > 3 * others.max():
            value = f"{values[end]:g}"
            warn(
                f"{label}: {counts[end] / sample.size:.0%} of the observed values are {value}, the {what}. "
                f"If none can be {'smaller' if end == 0 else 'larger'}, ask for bounds={pair.format(value)} "
                f"(--bounds {flag.format(value)})."
            )


@dataclass(frozen=True, eq=False)
class Watch:
    """Looks at the blocks of a dask array as they are read, and warns once of the doubtful values they show.

    A process that reads all blocks warns as an array in memory would. One that reads some of them, for a part of the
    raster or as a worker of a cluster, warns of nodata values that a block shows by itself; a worker that has read a
    quarter of the blocks takes them for the whole.

    Attributes
    ----------
    variable : Variable
        Its source has metadata, but no values.
    blocks : int
        Number of blocks.
    hint : bool
        Whether to warn of piles of equal values.
    pid, token
        The process that made the watch, and a name for what was seen.
    """

    variable: Variable
    blocks: int
    hint: bool
    pid: int = field(default_factory=os.getpid)
    token: str = field(default_factory=lambda: uuid4().hex)

    @classmethod
    def over(cls, variable: Variable, blocks: int, *, hint: bool) -> Watch:
        """The watch over a lazy variable."""
        source = variable.source
        bare = xr.DataArray(np.empty((0,) * source.ndim, source.dtype), dims=source.dims, name=source.name)
        bare.attrs = {key: source.attrs[key] for key in ("units", "long_name") if key in source.attrs}
        bare.encoding = {key: source.encoding[key] for key in PACKING if key in source.encoding}
        return cls(replace(variable, source=bare), blocks, hint)

    def see(self, place: tuple[int, ...], stored: Array, observed_mask: BoolArray) -> None:
        """Look at the block at a place, unless it was seen before."""
        with _lock:
            seen = _seen.setdefault(self.token, _Seen())
            if seen.complete or place in seen.glances:
                return
        glance = Glance.at(stored, observed_mask, self.variable, self.blocks)
        with _lock:
            seen.glances[place] = glance
            seen.extremes = Extremes.together([seen.extremes, glance.extremes])
            found = suspects([seen.extremes])
            # a part may hold 0 far from its other values where the whole does not
            shown = {value: found[value] for value in suspects([glance.extremes]) if value in found and value}
            glances, known = list(seen.glances.values()), set(seen.warned)
            seen.warned |= set(shown)
            enough = self.blocks if os.getpid() == self.pid else max(1, self.blocks // 4)
            seen.complete = len(glances) >= enough
            if seen.complete:
                seen.glances.clear()
        if seen.complete:
            warn_of_doubts(self.variable, glances, hint=self.hint, known=known)
            if len(glances) == self.blocks and not any(glance.observed for glance in glances):
                label = self.variable.label
                warn(f"{label} has no value anywhere: all cells are missing. Check its nodata value and the mask.")
        elif not isinstance(self.variable.read, ClassReader):
            new = {value: n for value, n in shown.items() if value not in known}
            warn_of_sentinels(self.variable.source, new, part=True)


@dataclass(eq=False)
class _Seen:
    """The blocks of a watch that a process has seen, and the values it has warned of."""

    glances: dict[tuple[int, ...], Glance] = field(default_factory=dict)
    extremes: Extremes = field(default_factory=lambda: Extremes({}, math.inf, -math.inf))
    warned: set[float] = field(default_factory=set)
    complete: bool = False


_seen: dict[str, _Seen] = {}
_lock = threading.Lock()
