"""Fields of several times: each from its own measurements and, where others know more, from those around it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any

import dask.array as da
import numpy as np

from geonp.inference.covariates import Layer
from geonp.inference.kernel import FillJob, as_read
from geonp.inference.stack import beside
from geonp.raster.arrays import IntArray, StructArray
from geonp.raster.metadata import FillFlag
from geonp.scattered.across_times import ACROSS_TIMES, Asked, Moments
from geonp.scattered.networks import NETWORK, Network, mixed
from geonp.scattered.prediction import Question, answered, predicted
from geonp.scattered.squares import Observations
from geonp.scattered.targets import Target, of_places


def predicted_across(
    asked: Asked,
    moments: Moments,
    target: Target,
    layers: Sequence[Layer],
    job: FillJob,
    progress: Callable[[int, int], object] | None = None,
) -> Any:
    """Results of :func:`~geonp.scattered.prediction.predicted` in the shape of ``asked.template(target)``.

    `layers` are the covariates of the target. Times of moving places with too few measurements stay empty.
    """
    of_times = _on_grid if target.on_grid else _at_places
    found: list[Any] = []
    for parts in of_times(asked, moments, target, layers, job):
        found += parts
        if progress is not None:
            progress(len(found), asked.wanted.size)
    if target.template.chunks is not None:
        return da.stack(found)
    if asked.place_times is None:
        return np.stack(found).reshape(-1, *target.template.shape)
    out = np.empty(len(asked.place_times), found[0].dtype)
    for index, values in zip(asked.rows(target).values(), found, strict=True):
        out[index] = values
    return out


def _on_grid(
    asked: Asked, moments: Moments, target: Target, layers: Sequence[Layer], job: FillJob
) -> Iterator[list[Any]]:
    """The field of each wanted time, one by one."""
    fields, inner = Network(moments, job).fields(target) if moments.network else None, replace(job, max_distance=None)
    for time in asked.wanted.tolist():
        part = moments.parts[time]
        own = predicted(target, part, layers, job) if moments.usable(time, job) else None
        if fields is not None:
            yield [fields(time, layers, own)]
        elif own is None:
            yield [_empty(target, part)]
        elif window := _pooled_times(moments, time, job):
            pool = _pooled(moments, window)
            (near_pool,) = answered([Question(part.xy, pool, part.covariates)], inner)
            there_pool = predicted(target, pool, layers, inner)
            changed = predicted(target, _differences(part, near_pool), layers, inner)
            yield [_blockwise(_summed, target, own, there_pool, changed)]
        else:
            yield [own]


def _at_places(
    asked: Asked, moments: Moments, target: Target, layers: Sequence[Layer], job: FillJob
) -> Iterator[list[StructArray]]:
    """The results of each wanted time, at its places, of several times together."""
    rows = asked.rows(target)
    network = Network(moments, job) if moments.network else None
    together = max(1, min(ACROSS_TIMES.together, ACROSS_TIMES.most_places // len(target.places)))
    for first in range(0, asked.wanted.size, together):
        times = asked.wanted[first : first + together].tolist()
        usable = [time for time in times if moments.usable(time, job)]
        out = _alone_at(usable, moments, target, rows, layers, job, network)
        if network is None:
            moving = {time: window for time in usable if (window := _pooled_times(moments, time, job))}
            for time, (others, changed) in _changed_at(moving, moments, target, rows, layers, job).items():
                out[time] = _summed(out[time], others, changed)
        for time in times:
            part, places = moments.parts[time], target.places[rows[time]]
            if network is not None:
                there = [layer.at(rows[time]) for layer in layers]
                out[time] = network.at(places, time, there, out.get(time))
            elif time not in out:
                out[time] = _empty(of_places(places, geographic=target.geographic), part)
        yield [out[time] for time in times]


def _alone_at(
    times: Sequence[int],
    moments: Moments,
    target: Target,
    rows: dict[int, IntArray],
    layers: Sequence[Layer],
    job: FillJob,
    network: Network | None,
) -> dict[int, StructArray]:
    """At the places of some times, the fields of their own measurements.

    At places of the network, levels are a covariate, as elevation would be: those of other places are less well known.
    """
    questions, of = [], []
    for time in times:
        part, index = moments.parts[time], rows[time]
        known = np.zeros(index.size, bool) if network is None else network.measured(target.places[index])
        for mask in (known, ~known):
            if mask.any():
                there, own = [layer.at(index[mask]) for layer in layers], part
                if network is not None and mask is known:
                    own = replace(part, covariates=(*part.covariates, network.levels(part.xy, time)))
                    there.append(network.levels(target.places[index[mask]], time))
                questions.append(Question(target.places[index[mask]], own, there))
                of.append((time, mask, 1.0 if own is part else NETWORK.seen))
    out: dict[int, StructArray] = {}
    for (time, mask, factor), found in zip(of, answered(questions, job), strict=True):
        found["standard_error"] *= factor
        out.setdefault(time, np.empty(mask.size, found.dtype))[mask] = found
    return out


def _changed_at(
    moving: dict[int, list[int]],
    moments: Moments,
    target: Target,
    rows: dict[int, IntArray],
    layers: Sequence[Layer],
    job: FillJob,
) -> dict[int, tuple[StructArray, StructArray]]:
    """At the places of some times, what the other times of their windows give, and the field of the differences."""
    pooled, differences = [], []
    for time, window in moving.items():
        part, index = moments.parts[time], rows[time]
        columns = [a.joined(b.at(index)) for a, b in zip(part.covariates, layers, strict=True)]
        pooled.append(Question(np.concatenate([part.xy, target.places[index]]), _pooled(moments, window), columns))
    given = []
    for time, both in zip(moving, answered(pooled, replace(job, max_distance=None)), strict=True):
        part, index = moments.parts[time], rows[time]
        near, there = both[: len(part.xy)], both[len(part.xy) :]
        given.append(there)
        columns = [layer.at(index) for layer in layers]
        differences.append(Question(target.places[index], _differences(part, near), columns))
    return dict(zip(moving, zip(given, answered(differences, job), strict=True), strict=True))


def _pooled_times(moments: Moments, time: int, job: FillJob) -> list[int]:
    """The nearest other times, if they have enough measurements for a field."""
    nearest = beside(time, moments.positions, min(ACROSS_TIMES.pooled, len(moments.parts) - 1))
    enough = sum(moments.parts[other].values.size for other in nearest) >= job.predictor.neighbourhood.min_context
    return nearest if enough else []


def _pooled(moments: Moments, times: Sequence[int]) -> Observations:
    """The measurements of several times as those of one."""
    parts = [moments.parts[time] for time in times]
    errors = [part.errors for part in parts if part.errors is not None]
    covariates = [reduce(Layer.joined, columns) for columns in zip(*(part.covariates for part in parts), strict=True)]
    return replace(
        parts[0],
        xy=np.concatenate([part.xy for part in parts]),
        values=np.concatenate([part.values for part in parts]),
        covariates=tuple(covariates),
        errors=np.concatenate(errors) if errors else None,
    )


def _differences(part: Observations, others: StructArray) -> Observations:
    """Differences of measurements from what other times give at their places, with the errors of both."""
    own = 0.0 if part.errors is None else part.errors
    errors = np.hypot(others["standard_error"].astype(np.float64), own)
    return replace(part, values=(part.values - others["value"]).astype(part.values.dtype), errors=errors)


def _summed(alone: StructArray, others: StructArray, changed: StructArray) -> StructArray:
    """The field of other times and that of the differences from it, in a weighted mean with a field `alone`."""
    across = changed.copy()
    across["value"] = others["value"] + changed["value"]
    across["standard_error"] = np.hypot(others["standard_error"], changed["standard_error"])
    return mixed(alone, across)


def _blockwise(function: Callable[..., Any], target: Target, *fields: Any) -> Any:
    """A function of fields at a target, lazy on a lazy grid."""
    if target.template.chunks is None:
        return function(*fields)
    return da.map_blocks(function, *fields, dtype=fields[0].dtype)


def _empty(target: Target, part: Observations) -> Any:
    """A field without values."""
    empty = as_read(np.full((), np.nan, np.result_type(part.values.dtype, np.float32)), FillFlag.BEYOND_LIMIT)
    chunks = target.template.chunks
    if chunks is None:
        return np.broadcast_to(empty, target.template.shape)
    return da.full(target.template.shape, empty, dtype=empty.dtype, chunks=chunks)
