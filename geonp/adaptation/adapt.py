"""Adapt a model to one raster: search for its neighbourhood, then fine-tune its weights on the observed cells.

The context of a pretrained model suits rasters that are as homogeneous as most. In others, smaller tiles with less
context predict better, and some hundred steps of training teach the weights what is special about the raster. About a
fifth of the observed cells is held out: half of their tiles select the neighbourhood and the weights, the others test
whether the result is clearly better than the model, which is kept otherwise (:mod:`geonp.adaptation.validation`).
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Hashable, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from functools import partial
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor, nn

from geonp.adaptation.clock import Clock
from geonp.adaptation.crops import Crop, Masking, draw_task, fit_masking, hold_out, read_crops
from geonp.adaptation.search import Candidate, Search, search_neighbourhood
from geonp.adaptation.surroundings import Surroundings
from geonp.adaptation.validation import HoldOut, hide_held_out, require_others
from geonp.errors import InputError, OutputError, require_callable
from geonp.fill.domain import domain_of
from geonp.fill.doubts import warn_of_codes
from geonp.fill.kinds import check_numbers
from geonp.fill.missing import MissingLike
from geonp.fill.options import FillOptions
from geonp.fill.request import check_across, check_covariates, covariates_on, warn_of_refilling
from geonp.fill.variables import normalise
from geonp.inference import checkpoint
from geonp.inference.kernel import FillJob
from geonp.inference.predictor import Predictor, resolve
from geonp.io.location import check_writable
from geonp.raster.arrays import BoolArray, FloatArray
from geonp.raster.covariates import CovariateLike, named
from geonp.raster.nodata import units_in_memory
from geonp.raster.variable import Variable
from geonp.training.data.tasks import collate
from geonp.training.objective import beside, expected_nll, relative_crps
from geonp.training.optimisers import averaged_model


@dataclass(frozen=True)
class AdaptSettings:
    """Hold-out and optimisation."""

    held_out: float = 0.2  # fraction of the observed cells
    held_out_px: int = 64  # side of the squares with held-out patches: as wide as a tile with the frames of a task
    validations: int = 6  # during the training
    batch_size: int = 8
    n_targets: int = 192
    learning_rate: float = 8e-4
    betas: tuple[float, float] = (0.9, 0.98)
    warmup: float = 0.1  # fraction of the training
    crps_weight: float = 1.0  # of the CRPS, which is what candidates are compared by, in the loss
    clip: float = 1.0  # largest norm of the gradient
    averaging: float = 0.98  # decay of the moving average of weights: shorter than in pretraining, for few steps


SETTINGS = AdaptSettings()


@dataclass(frozen=True)
class Adapted(os.PathLike[str]):
    """A model adapted to a raster, to be passed as ``model`` to any function of geonp.

    Attributes
    ----------
    file : Path
        The checkpoint; its card is in the same folder.
    before, after : float
        Weighted mean CRPS of the model and of the adapted one on held-out cells that had no part in the training. In
        the units of the raster; for several variables, in standard deviations of each. Equal if nothing clearly better
        was found: then the checkpoint holds the model as it was.
    units : str
        Units of both.
    cells, steps : int
        Number of held-out cells that were scored, and of training steps of the weights.
    minutes : float
        Wall-clock time.
    slowdown : float
        Approximate factor by which a fill takes longer with the adapted model.
    across : str
        Dimension along which the adapted model regresses slices on each other, or empty.
    covariates : tuple of str
        Names of the covariates.
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
    covariates: tuple[str, ...] = ()

    def __fspath__(self) -> str:
        """Return the path of the checkpoint."""
        return str(self.file)

    @property
    def improved(self) -> bool:
        """Whether the checkpoint differs from the model it was made from."""
        return self.after < self.before


def adapt(
    obj: xr.DataArray | xr.Dataset,
    *,
    out: str | os.PathLike[str] = "adapted.safetensors",
    model: str | os.PathLike[str] = "tnpkr-sa",
    minutes: float = 5.0,
    steps: int | None = None,
    closer: bool = True,
    mask: xr.DataArray | BoolArray | str | os.PathLike[str] | None = None,
    nodata: float | None = None,
    missing: MissingLike | Sequence[MissingLike] | None = None,
    device: str | None = None,
    seed: int = 0,
    across: Hashable | Sequence[Hashable] | None = None,
    covariates: CovariateLike | Sequence[CovariateLike] | None = None,
    covariate_resampling: str | None = None,
    overwrite: bool = False,
    progress: Callable[[float, float], object] | None = None,
) -> Adapted:
    """Fine-tune a model on the observed cells of a raster, and write it as a checkpoint.

    If the raster has several slices, regression on other slices (`across` of :func:`geonp.infill`) is tried first. If
    it is clearly better, the weights are kept, and fills with the checkpoint use this dimension by default. Then, with
    `closer`, smaller neighbourhoods are tried: single tiles, smaller tiles, less context. Then all weights are trained
    to predict hidden cells, single ones or patches in the shape of the gaps of the raster, weighted by their distance
    from the context (:class:`geonp.adaptation.crops.Masking`). Large rasters are read in part
    (:class:`geonp.adaptation.crops.CropSettings`). The neighbourhood and weights with the smallest validation CRPS are
    written if they are clearly better on further held-out cells, and otherwise those of the model.

    With `covariates`, the model is trained and scored with them: give them to fills with the adapted model, too.

    Parameters
    ----------
    obj : DataArray or Dataset
        Raster as for :func:`geonp.infill`; lazy arrays are read in parts.
    out : str or path
        The ``.safetensors`` file to write; its card is written to the same folder.
    model : str or path
        Model to start from.
    minutes : float
        Time limit (wall-clock).
    steps : int, optional
        Number of training steps, instead of a time limit. The result is then reproducible on one machine.
    closer : bool
        Also try smaller neighbourhoods, with which fills take longer (``slowdown`` of the result).
    mask, nodata, missing, device
        As for :func:`geonp.infill`.
    seed : int
        Seed for the hold-out and for the training, at least 0.
    across : hashable or sequence of hashable, optional
        Dimensions along which regression on other slices is tried, ``"variables"`` for the other variables of a
        Dataset; the best one is kept. By default all dimensions of the raster.
    covariates, covariate_resampling
        As for :func:`geonp.infill`.
    overwrite : bool
        Replace `out` if it exists.
    progress : callable, optional
        Called with the fraction of the training that is done, and the validation CRPS relative to that of the model.

    Returns
    -------
    Adapted
        Scores before and after; can be passed as `model` to any function of geonp.

    Raises
    ------
    InputError
        For a raster or option that cannot be used, or too few observed cells.
    OutputError
        If `out` exists or cannot be written.
    ModelError, CheckpointError
        If the model does not exist or cannot be loaded.

    Examples
    --------
    >>> y, x = np.mgrid[:48, :56]
    >>> dem = xr.DataArray(np.sin(y / 5) * np.cos(x / 7), dims=("y", "x"), name="height")
    >>> adapted = geonp.adapt(dem, out="my.safetensors", minutes=10)
    >>> geonp.infill(dem.where(dem < 0.5), model=adapted).attrs["geonp_model"]
    'my'
    """
    clock, file = Clock(*_checked(minutes, steps, seed, progress)), _checked_out(Path(out), overwrite)
    options = FillOptions(nodata=nodata, missing=missing, across=across, covariate_resampling=covariate_resampling)
    given = named(covariates)
    ds, grid, variables, _ = normalise(obj, options, covariates=given)
    check_numbers(variables)
    check_across(options.dims, variables)
    names, domain = [v.name for v in variables], None if mask is None else domain_of(mask, grid)
    predictor, card = _load(model, device)
    known = covariates_on(grid, given, ds, covariate_resampling)
    check_covariates(known, variables, card)
    rng = np.random.default_rng(seed)
    job = FillJob(predictor, grid.shape, grid.periodic_x, max_distance=None, seed=0)
    around = Surroundings.of(variables, options.dims, known, job, domain)
    read = read_crops(around.arrays, domain, rng, around)
    require_others([covariate.variable.label for covariate in known], read)
    _warn_of_doubts(ds, variables, read)
    crops, masking, held_out = _split(_comparable(read), predictor, rng)
    search, network = Search(held_out, card), deepcopy(checkpoint.load_model(predictor.model)[0])
    search.score(network, predictor.neighbourhood)  # not timed: the first fill starts processes and compiles kernels
    own = search.score(network, predictor.neighbourhood)
    start = trained = search_neighbourhood(search, own, held_out.dims, closer=closer, done=lambda: clock.done(0))
    if start.neighbourhood.across not in held_out.dims:
        clock.begin(reserve_s=1.0 + 1.1 * start.seconds)  # for the last validation, and for writing
        draw = partial(_batch, crops, start, masking, predictor.device, rng)
        trained = _train(start, draw, predictor.device, search, clock, own, progress)
    best = next((each for each in (trained, start) if each.scores.clearly_below(own.scores)), own)
    adapted = Adapted(
        file=file,
        before=own.scores.test,
        after=best.scores.test,
        units="standard deviations" if len(names) > 1 else units_in_memory(ds[names[0]].attrs),
        cells=held_out.cells,
        steps=best.step,
        minutes=round(clock.minutes, 2),
        slowdown=1.0 if best.neighbourhood == own.neighbourhood else round(start.seconds / own.seconds, 2),
        across=best.neighbourhood.across,
        covariates=tuple(covariate.variable.label for covariate in known),
    )
    _write(best, adapted, card, names, seed)
    return adapted


def _load(model: str | os.PathLike[str], device: str | None) -> tuple[Predictor, checkpoint.Card]:
    """The model, if it can be adapted."""
    predictor, card = resolve(os.fspath(model), device, None)
    if card.classes or card.neighbourhood.axes:
        raise InputError(
            f"the model {card.name} cannot be adapted: it predicts classes, or works only on the grid that it was "
            "trained on; expected a model of numbers on any raster, for example tnpkr-sa"
        )
    return predictor, card


def _checked(minutes: float, steps: int | None, seed: int, progress: object) -> tuple[float, int | None]:
    require_callable(progress)
    if not (isinstance(minutes, Real) and 0 < minutes < math.inf):
        raise InputError(f"minutes must be a positive number, got {minutes!r}")
    if steps is not None and not (isinstance(steps, Integral) and steps > 0):
        raise InputError(f"steps must be a positive integer, or None to use minutes, got {steps!r}")
    if not (isinstance(seed, Integral) and seed >= 0):
        raise InputError(f"seed must be an integer of at least 0, got {seed!r}")
    return float(minutes), None if steps is None else int(steps)


def _checked_out(file: Path, overwrite: bool) -> Path:
    """The file of a checkpoint, if it can be written."""
    if file.suffix != ".safetensors":
        raise OutputError(f"Unknown checkpoint format: got {str(file)!r}, expected a name that ends in .safetensors.")
    for path in (file, file.with_suffix(".json")):
        if path.is_dir() or (path.exists() and not overwrite):
            raise OutputError(f"The output exists: {str(path)!r}. Choose another name or pass overwrite (--overwrite).")
    check_writable(file.parent, "Expected an existing, writable folder.")
    return file


def _warn_of_doubts(ds: xr.Dataset, variables: Sequence[Variable], crops: Sequence[Crop]) -> None:
    """Warn of variables that are results of a fill, or may hold codes of classes."""
    warn_of_refilling(ds, [variable.label for variable in variables])
    for variable in variables:
        warn_of_codes(variable.source, [crop.values for crop in crops if crop.variable == variable.name], "adapted to")


def _comparable(crops: list[Crop]) -> list[Crop]:
    """Divide the values of several variables by the standard deviation of each."""
    values: dict[Hashable, list[FloatArray]] = {}
    for crop in crops:
        values.setdefault(crop.variable, []).append(crop.values.ravel())
    if len(values) == 1:
        return crops
    spread = {name: float(np.nanstd(np.concatenate(parts), dtype=np.float64)) for name, parts in values.items()}
    return [replace(crop, values=crop.values / (spread[crop.variable] or 1.0)) for crop in crops]


def _split(crops: list[Crop], predictor: Predictor, rng: np.random.Generator) -> tuple[list[Crop], Masking, HoldOut]:
    """Crops to train on, the gaps to simulate in them, and the cells held out for validation."""
    masking = fit_masking(crops, predictor.neighbourhood, rng)
    crops = hold_out(crops, masking, SETTINGS.held_out, SETTINGS.held_out_px, rng)
    return crops, masking, hide_held_out(crops, masking, predictor.neighbourhood, predictor.device, rng)


def _train(
    start: Candidate,
    draw: Callable[[], dict[str, Tensor]],
    device: str,
    search: Search,
    clock: Clock,
    own: Candidate,
    progress: Callable[[float, float], object] | None,
) -> Candidate:
    """Train until the time is up, in float32; return the best candidate of all validations, `start` among them.

    Training is not stopped early: weights in its middle are noisy, and predict little about those at its end.
    """
    network = deepcopy(start.network).to(device).train().requires_grad_(True)
    averaged = averaged_model(network, SETTINGS.averaging)
    optimiser = torch.optim.AdamW(network.parameters(), betas=SETTINGS.betas, weight_decay=0.0)
    best, step, validations = start, 0, 0
    done = clock.done(0)
    while done < 1:
        batch = draw()
        for group in optimiser.param_groups:
            group["lr"] = _learning_rate(done)
        try:
            predicted = network(batch["xc"], batch["yc"], batch["xt"], batch["context_mask"], **beside(batch))
            loss = expected_nll(predicted, batch) + SETTINGS.crps_weight * relative_crps(predicted, batch)
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
        except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
            break  # the weights have diverged; the best candidate remains
        if bool(torch.isfinite(nn.utils.clip_grad_norm_(network.parameters(), SETTINGS.clip))):
            optimiser.step()
        averaged.update_parameters(network)
        step += 1
        done = clock.done(step)
        if int(done * SETTINGS.validations) == validations:
            continue
        validations = int(done * SETTINGS.validations)
        candidate = search.score(averaged.module, start.neighbourhood, step)
        if candidate.scores.validation < best.scores.validation:
            best = candidate
        if progress is not None:
            progress(done, candidate.scores.validation / own.scores.validation)
        done = clock.done(step)
    return best


def _learning_rate(done: float) -> float:
    """Linear warm-up, then a cosine to zero, by the fraction of the training that is done.

    Not a scheduler of torch, which counts steps: their number is unknown when training is limited by time.
    """
    warmup = min(1.0, (done + 0.1 * SETTINGS.warmup) / SETTINGS.warmup)
    return SETTINGS.learning_rate * warmup * 0.5 * (1 + math.cos(math.pi * done))


def _batch(
    crops: list[Crop], start: Candidate, masking: Masking, device: str, rng: np.random.Generator
) -> dict[str, Tensor]:
    """Draw tasks, with the weight of each target, 0 for padding, and the scale of each task."""
    n_targets, neighbourhood = SETTINGS.n_targets, start.neighbourhood
    drawn = [draw_task(crops, neighbourhood, masking, n_targets, rng) for _ in range(SETTINGS.batch_size)]
    tasks = [task for task in drawn if task is not None]
    if len(tasks) < len(drawn):
        raise InputError(
            "cannot train on this raster: simulated gaps leave too few observed cells with different values around "
            "them; use the model as it is"
        )
    arrays: dict[str, Any] = dict(collate(list(tasks), neighbourhood.n_context, n_targets))
    arrays["weight"] = np.zeros(arrays["mean"].shape, np.float32)
    for row, task in zip(arrays["weight"], tasks, strict=True):
        row[: task.distance.size] = masking.weights(task.distance)
    arrays["scale"] = np.array([task.scale for task in tasks], np.float32)
    return {key: torch.from_numpy(value).to(device) for key, value in arrays.items()}


def _write(best: Candidate, adapted: Adapted, card: checkpoint.Card, names: list[Hashable], seed: int) -> None:
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
            **({"covariates": list(adapted.covariates)} if adapted.covariates else {}),
            "steps": adapted.steps,
            "seed": int(seed),
            "minutes": adapted.minutes,
            "learning_rate": SETTINGS.learning_rate,
        },
        scores={"crps_before": adapted.before, "crps_after": adapted.after, "slowdown": adapted.slowdown},
    )
