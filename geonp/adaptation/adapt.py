"""Adapt a model to one raster: how closely it looks, and a short training on the raster's own observed cells.

A pretrained model takes a raster for as homogeneous as most are. Where it is not, smaller tiles and less context tell
more; and some hundred steps teach its weights what is special about the raster. About a fifth of the observed cells is
held out: half of their tiles choose the look and the weights to keep, the others say whether the result is clearly
better than the model as it was, which is kept if not (:mod:`geonp.adaptation.validation`).
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Hashable
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from numbers import Integral, Real
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import xarray as xr
from torch import Tensor, nn

from geonp.adaptation.crops import Crop, Hiding, draw_task, hiding_for, hold_out, read_crops
from geonp.adaptation.search import Trial, Trials, best_look
from geonp.adaptation.validation import appoint
from geonp.errors import InputError, OutputError
from geonp.fill.request import domain_of, normalise
from geonp.inference import checkpoint
from geonp.inference.predictor import resolve
from geonp.io.location import check_writable
from geonp.raster.nodata import observed
from geonp.training.data.tasks import collate
from geonp.training.objective import expected_nll, relative_crps

__all__ = ["Adapted", "adapt"]

HELD_OUT = 0.2
HELD_OUT_PX = 64
"""Side of the squares that a patch of gaps is held out from: so wide that it is as deep as they are."""

VALIDATIONS = 6

BATCH_SIZE = 8
N_TARGETS = 192
LEARNING_RATE = 8e-4
CRPS_WEIGHT = 1.0
WARMUP = 0.1
CLIP = 1.0
AVERAGING = 0.98


@dataclass(frozen=True)
class Adapted(os.PathLike[str]):
    """A model adapted to a raster; it can be given as ``model=`` to :func:`geonp.fill.infill.infill`.

    Attributes
    ----------
    file : Path
        The checkpoint, its card beside it.
    before, after : float
        CRPS of the model and of the adapted one on held-out cells that had no part in the training, weighted like the
        missing cells. In the units of the raster; of several variables in the standard deviations of each. Equal if
        nothing better was found: then the checkpoint holds the model as it was.
    units : str
        Of both.
    cells, steps : int
        Predictions of held-out cells that they are the mean of; training steps that the weights have had.
    minutes : float
        Wall-clock time.
    slowdown : float
        How many times as long filling takes with the adapted model, about.
    across : str
        The dimension along which the adapted model lets slices tell about each other, or nothing.
    """

    file: Path
    before: float
    after: float
    units: str
    cells: int
    steps: int
    minutes: float
    slowdown: float
    across: str

    def __fspath__(self) -> str:
        """Return the path of the checkpoint."""
        return str(self.file)

    @property
    def improved(self) -> bool:
        """Whether the checkpoint is another than the model it was made from."""
        return self.after < self.before


def adapt(
    obj: xr.DataArray | xr.Dataset,
    *,
    out: str | os.PathLike[str] = "adapted.safetensors",
    model: str | os.PathLike[str] = "tnpkr-sa",
    minutes: float = 5.0,
    steps: int | None = None,
    closer: bool = True,
    mask: xr.DataArray | npt.NDArray[np.bool_] | None = None,
    nodata: float | None = None,
    device: str | None = None,
    seed: int = 0,
    overwrite: bool = False,
    progress: Callable[[float, float], object] | None = None,
) -> Adapted:
    """Train a model further on the observed cells of a raster, and write it as a checkpoint of its own.

    First, of a raster of several slices it is tried whether they tell about each other (`across` of
    :func:`geonp.fill.infill.infill`): a model that profits keeps its weights, and fills rasters with that dimension so.
    Then closer looks are tried, unless `closer` is False: no merged tiles, smaller tiles, less context for each. Then
    all weights are trained: observed cells of one tile are hidden, a few at random or in the shape of the raster's
    gaps, and predicted from the rest. They are weighted to lie as far from it as the missing cells do
    (:class:`geonp.adaptation.crops.Hiding`). All slices and variables are drawn from; of a raster larger than
    :data:`geonp.adaptation.crops.MAX_CELLS` only parts are read. The look and the weights kept are those with the least
    CRPS on held-out cells, and none but the model's own if they are not clearly better on further held-out cells.

    Parameters
    ----------
    obj : DataArray or Dataset
        As for :func:`geonp.fill.infill.infill`; lazy arrays are read in parts.
    out : path
        The checkpoint to write, a ``.safetensors`` file; its card is written beside it.
    model, mask, nodata, device
        As in :func:`geonp.fill.infill.infill`.
    minutes : float
        Wall-clock time to take, at most.
    steps : int, optional
        Take so many steps, however long it takes: the result is then the same each time on one machine.
    closer : bool
        Also try closer looks, with which filling takes some times as long (``slowdown`` of the result).
    seed : int
        Of what is held out and trained on, at least 0.
    overwrite : bool
        Replace `out` if it exists.
    progress : callable, optional
        Called now and then with the share that is done and the CRPS over the model's own, on the tiles that choose.

    Raises
    ------
    InputError
        For a raster or option that cannot be used, or too few observed cells.
    OutputError
        For an `out` that exists or cannot be written.
    ModelError, CheckpointError
        For a model that does not exist or cannot be loaded.
    """
    clock = _Clock(*_checked(minutes, steps, seed))
    file = Path(out)
    _check_out(file, overwrite)
    ds, grid, variables = normalise(obj, nodata=nodata)
    names = [variable.name for variable in variables]
    domain = None if mask is None else domain_of(mask, grid)
    predictor, card = resolve(os.fspath(model), device, None)
    if card.classes or card.neighbourhood.axes:
        raise InputError(
            f"the model {card.name} cannot be adapted: it predicts classes, or reads the grid of its training; "
            "expected a model of numbers on any raster, for example tnpkr-sa"
        )
    rng = np.random.default_rng(seed)
    arrays = {variable.name: observed(variable.spatial_last, nodata) for variable in variables}
    crops = _comparable(read_crops(arrays, domain, rng))
    hiding = hiding_for(crops, predictor.neighbourhood, rng)
    crops = hold_out(crops, hiding, HELD_OUT, HELD_OUT_PX, rng)
    judge = appoint(crops, hiding, predictor.neighbourhood, predictor.device, rng)
    with TemporaryDirectory() as folder:
        trials = Trials(Path(folder), judge, card)
        network = deepcopy(checkpoint.load_model(predictor.model)[0])
        # the first fill also starts processes and compiles kernels
        trials.of(network, predictor.neighbourhood)
        own = trials.of(network, predictor.neighbourhood)
        look = best_look(trials, own, judge.dims, closer=closer, done=lambda: clock.done(0))
        found = look
        if look.neighbourhood.across not in judge.dims:
            run = _Run(look, crops, hiding, predictor.device, rng)
            # for the last verdict, and for writing
            clock.begin(1.0 + 1.1 * look.seconds)
            found = _train(run, own, trials, clock, progress)
    best = next((trial for trial in (found, look) if trial.verdict.clearly_below(own.verdict)), own)
    adapted = Adapted(
        file=file,
        before=own.verdict.crps,
        after=best.verdict.crps,
        units=str(ds[names[0]].attrs.get("units", "")) if len(names) == 1 else "standard deviations",
        cells=judge.cells,
        steps=best.step,
        minutes=round(clock.minutes, 2),
        slowdown=1.0 if best.neighbourhood == own.neighbourhood else round(look.seconds / own.seconds, 2),
        across=best.neighbourhood.across,
    )
    _write(best, adapted, card, names, seed)
    return adapted


def _checked(minutes: float, steps: int | None, seed: int) -> tuple[float, int | None]:
    if not (isinstance(minutes, Real) and 0 < minutes < math.inf):
        raise InputError(f"minutes must be a positive number, got {minutes!r}")
    if steps is not None and not (isinstance(steps, Integral) and steps > 0):
        raise InputError(f"steps must be a positive integer, or None to go by the minutes, got {steps!r}")
    if not (isinstance(seed, Integral) and seed >= 0):
        raise InputError(f"seed must be an integer of at least 0, got {seed!r}")
    return float(minutes), None if steps is None else int(steps)


def _check_out(file: Path, overwrite: bool) -> None:
    """Check that a checkpoint can be written, before any work is done for it."""
    if file.suffix != ".safetensors":
        raise OutputError(f"Unknown checkpoint format: got {str(file)!r}, expected a name that ends in .safetensors.")
    for path in (file, file.with_suffix(".json")):
        if path.is_dir() or (path.exists() and not overwrite):
            raise OutputError(f"The output exists: {str(path)!r}. Choose another name or pass overwrite (--overwrite).")
    check_writable(file.parent, "Expected an existing, writable folder.")


def _comparable(crops: list[Crop]) -> list[Crop]:
    """Of several variables, the values over the standard deviation of each; those of a single one as they are."""
    values: dict[Hashable, list[npt.NDArray[np.floating]]] = {}
    for crop in crops:
        values.setdefault(crop.variable, []).append(crop.values.ravel())
    if len(values) == 1:
        return crops
    spread = {name: float(np.nanstd(np.concatenate(parts), dtype=np.float64)) for name, parts in values.items()}
    return [replace(crop, values=crop.values / (spread[crop.variable] or 1.0)) for crop in crops]


class _Clock:
    """How much of the search, then of the training, is done: by steps where their number is given, else by the time."""

    def __init__(self, minutes: float, steps: int | None) -> None:
        self.start = self.begun = time.monotonic()
        self.budget_s, self.steps = 60 * minutes, steps

    @property
    def minutes(self) -> float:
        """Minutes since the start."""
        return (time.monotonic() - self.start) / 60

    def begin(self, reserve_s: float) -> None:
        """Begin the training, in what is left of the time but for so many seconds."""
        self.begun = time.monotonic()
        self.budget_s -= reserve_s

    def done(self, step: int) -> float:
        """Share of what has begun that is done, after so many steps of training; 1 at its end."""
        if self.steps is not None:
            return step / self.steps
        left = self.start + self.budget_s - self.begun
        return min((time.monotonic() - self.begun) / left, 1.0) if left > 0 else 1.0


class _Run:
    """The training: weights as they are, and averaged."""

    def __init__(self, look: Trial, crops: list[Crop], hiding: Hiding, device: str, rng: np.random.Generator) -> None:
        self.look, self.crops, self.hiding, self.device, self.rng = look, crops, hiding, device, rng
        self.network = deepcopy(look.network).to(device).train().requires_grad_(True)
        self.averaged = deepcopy(self.network).requires_grad_(False)
        self.optimiser = torch.optim.AdamW(self.network.parameters(), betas=(0.9, 0.98), weight_decay=0.0)
        self.step = 0

    def optimise(self, rate: float) -> None:
        """One step on fresh tasks, in float32."""
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        batch = self._draw()
        predicted = self.network(batch["xc"], batch["yc"], batch["xt"], batch["context_mask"])
        loss = expected_nll(predicted, batch) + CRPS_WEIGHT * relative_crps(predicted, batch)
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.network.parameters(), CLIP)
        if bool(torch.isfinite(norm)):
            self.optimiser.step()
        self.step += 1
        decay = min(AVERAGING, (1 + self.step) / (10 + self.step))
        with torch.no_grad():
            for average, now in zip(self.averaged.parameters(), self.network.parameters(), strict=True):
                average.lerp_(now, 1 - decay)

    def _draw(self) -> dict[str, Tensor]:
        """Tasks as tensors, with the weight of each target: zero for padding, larger where the values vary more."""
        neighbourhood = self.look.neighbourhood
        tasks = [draw_task(self.crops, neighbourhood, self.hiding, N_TARGETS, self.rng) for _ in range(BATCH_SIZE)]
        drawn = [task for task in tasks if task is not None]
        if len(drawn) < len(tasks):
            raise InputError(
                "nothing can be learned from this raster: no gap could be laid upon observed cells with enough others, "
                "of differing values, around it; use the model as it is"
            )
        arrays: dict[str, Any] = dict(collate(list(drawn), neighbourhood.n_context, N_TARGETS))
        arrays["weight"] = np.zeros(arrays["mean"].shape, np.float32)
        for row, task in zip(arrays["weight"], drawn, strict=True):
            row[: task.distance.size] = self.hiding.weigh(task.distance)
        arrays["scale"] = np.array([task.scale for task in drawn], np.float32)
        return {key: torch.from_numpy(value).to(self.device) for key, value in arrays.items()}


def _train(
    run: _Run, own: Trial, trials: Trials, clock: _Clock, progress: Callable[[float, float], object] | None
) -> Trial:
    """Train until the time is up; what was best at some validation is returned, the look where nothing was better.

    Weights in the middle of the training are noisy, and tell little of those at its end: it is not stopped early.
    """
    best, validations = run.look, 0
    done = clock.done(0)
    while done < 1:
        try:
            run.optimise(learning_rate(done))
        except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
            break  # the weights have diverged: what was best before stays
        done = clock.done(run.step)
        if int(done * VALIDATIONS) == validations:
            continue
        validations = int(done * VALIDATIONS)
        trial = trials.of(run.averaged, run.look.neighbourhood, run.step)
        if trial.verdict.choice < best.verdict.choice:
            best = trial
        if progress is not None:
            progress(done, trial.verdict.choice / own.verdict.choice)
        done = clock.done(run.step)
    return best


def learning_rate(done: float) -> float:
    """Linear warm-up over the first of the training, then a cosine to zero."""
    return LEARNING_RATE * min(1.0, (done + 0.1 * WARMUP) / WARMUP) * 0.5 * (1 + math.cos(math.pi * done))


def _write(best: Trial, adapted: Adapted, card: checkpoint.Card, names: list[Hashable], seed: int) -> None:
    raster = ", ".join(map(str, names))
    about = f"{card.name} adapted to {raster}" if adapted.improved else f"{card.name}, the same as for {raster}"
    checkpoint.save(
        best.network,
        adapted.file,
        name=adapted.file.stem,
        version=card.version,
        description=about,
        architecture=card.architecture,
        config=card.config,
        neighbourhood=asdict(best.neighbourhood),
        training={
            "base": card.name,
            "base_version": card.version,
            "base_sha256": card.sha256,
            "base_training": card.training,
            "raster": raster,
            "steps": adapted.steps,
            "seed": seed,
            "minutes": adapted.minutes,
            "learning_rate": LEARNING_RATE,
        },
        scores={"crps_before": adapted.before, "crps_after": adapted.after, "slowdown": adapted.slowdown},
    )
