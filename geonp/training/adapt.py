"""Adapt a model to one raster: a short, careful training of the biases of its head on the raster's own observed cells.

About a fifth of them, in whole tiles, is held out of the training. Some of these tiles choose the weights to keep, and
whether the head takes scoring steps (:class:`geonp.nn.heads.KrigingHead`), the others say whether the result is clearly
better than the model as it was, which is kept if not.
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

import numpy as np
import numpy.typing as npt
import torch
import xarray as xr
from torch import Tensor, nn

from geonp import checkpoint
from geonp.errors import InputError, OutputError
from geonp.metadata import observed
from geonp.nn.heads import KrigingHead
from geonp.nn.models import build
from geonp.prediction import Predictor, resolve
from geonp.request import domain_of, normalise, spatial_last
from geonp.stores import check_writable
from geonp.training.crops import Crop, CropTask, Hiding, draw_task, hiding_for, read_crops
from geonp.training.objective import expected_nll
from geonp.training.verdict import BATCH_SIZE, Judge, appoint, clearly_less, make_batch, mean

__all__ = ["Adapted", "adapt"]

HELD_OUT = 0.2
VALIDATIONS = 10
PATIENCE = 4

SCORING_STEPS = 3
"""Of the head, where they make the model better."""

N_TARGETS = 96
LEARNING_RATE = 3e-3
WARMUP = 0.05
CLIP = 1.0
AVERAGING = 0.98


@dataclass(frozen=True)
class Adapted(os.PathLike[str]):
    """A model adapted to a raster; it can be given as ``model=`` to :func:`geonp.filling.infill`.

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
    """

    file: Path
    before: float
    after: float
    units: str
    cells: int
    steps: int
    minutes: float

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
    mask: xr.DataArray | npt.NDArray[np.bool_] | None = None,
    nodata: float | None = None,
    device: str | None = None,
    seed: int = 0,
    overwrite: bool = False,
    progress: Callable[[float, float], object] | None = None,
) -> Adapted:
    """Train a model further on the observed cells of a raster, and write it as a checkpoint of its own.

    Observed cells of one tile are hidden, a few at random or in the shape of the raster's gaps, and predicted from the
    rest. They are weighted to lie as far from it as the missing cells do (:class:`geonp.training.crops.Hiding`). All
    slices and variables are drawn from; of a raster larger than
    :data:`geonp.training.crops.MAX_CELLS` only parts are read. The weights kept are those with the least CRPS on
    held-out cells, and none but the model's own if they are no better on further held-out cells. Where it makes the
    model better, as on rasters unlike those of its training, the head also climbs the likelihood of each context
    farther: such a checkpoint says so (``scoring_steps`` in its card) and fills at some 0.9 of the speed.

    Parameters
    ----------
    obj : DataArray or Dataset
        As for :func:`geonp.filling.infill`; lazy arrays are read in parts.
    out : path
        The checkpoint to write, a ``.safetensors`` file; its card is written beside it.
    model, mask, nodata, device
        As in :func:`geonp.filling.infill`.
    minutes : float
        Wall-clock time to take, at most.
    steps : int, optional
        Take so many steps, however long it takes: the result is then the same each time on one machine.
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
    ds, names, grid = normalise(obj)
    domain = None if mask is None else domain_of(mask, grid)
    predictor, card = resolve(os.fspath(model), device, None)
    original = _adaptable(deepcopy(checkpoint.load_model(predictor.model)[0]), card).to(predictor.device)
    if card.classes or card.neighbourhood.axes:
        raise InputError(
            f"the model {card.name} cannot be adapted: it predicts classes, or reads the grid of its training; "
            "expected a model of numbers on any raster, for example tnpkr-sa"
        )
    rng = np.random.default_rng(seed)
    arrays = {name: spatial_last(observed(ds[name], nodata), grid) for name in names}
    crops = _comparable(read_crops(arrays, domain, HELD_OUT, predictor.neighbourhood.tile_px, rng))
    hiding = hiding_for(crops, predictor.neighbourhood, rng)
    judge = appoint(crops, hiding, predictor, rng)
    start = time.monotonic()
    before = judge.verdict(original)
    seconds = time.monotonic() - start
    own, *others = [_judged(network, judge) for network in (original, *_climbing(original, card, seed))]
    best = next((other for other in others if clearly_less(other[0], own[0])), own)
    # the verdict will be asked for once more
    clock.reserve(1.1 * seconds * best[1] / own[1])
    run = _Run(best[2], crops, hiding, predictor, rng)
    _train(run, mean(best[0]), mean(own[0]), judge, clock, progress)
    after = judge.verdict(run.best)
    better = clearly_less(after, before)
    found = Adapted(
        file=file,
        before=mean(before),
        after=mean(after if better else before),
        units=str(ds[names[0]].attrs.get("units", "")) if len(names) == 1 else "standard deviations",
        cells=judge.cells,
        steps=run.best_step if better else 0,
        minutes=round(clock.minutes, 2),
    )
    _write(run.best if better else original, found, predictor, card, names, seed)
    return found


def _adaptable(network: nn.Module, card: checkpoint.Card) -> nn.Module:
    if not _biases(network):
        raise InputError(
            f"the model {card.name} cannot be adapted: its architecture, {card.architecture}, has no head with biases "
            "to train; expected one that has, for example tnpkr-sa"
        )
    return network


def _biases(network: nn.Module) -> list[nn.Parameter]:
    """What is trained: a raster has too few tiles to teach more; training all weights made missing cells worse."""
    return [p for name, p in network.named_parameters() if name.startswith("head.") and p.ndim == 1]


def _climbing(network: nn.Module, card: checkpoint.Card, seed: int) -> list[nn.Module]:
    """The same model, its head with more scoring steps, as its last, if it can have any that it has not."""
    if not isinstance(network.head, KrigingHead) or len(network.head.priors) >= SCORING_STEPS:
        return []
    own = list(network.head.priors)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        other = build(card.architecture, {**card.config, "scoring_steps": SCORING_STEPS})
    other.load_state_dict({**other.state_dict(), **network.state_dict()})
    for prior in other.head.priors[len(own) :] if own else []:  # type: ignore[index, union-attr]
        prior.load_state_dict(own[-1].state_dict())
    return [other.to(next(network.parameters()).device).eval()]


def _judged(network: nn.Module, judge: Judge) -> tuple[Tensor, float, nn.Module]:
    """What the tiles that choose say, infinite where it fails, the seconds that it took, and the network."""
    start = time.monotonic()
    try:
        found = judge.choice(network)
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
        found = torch.tensor([[math.inf, 1.0]], dtype=torch.float64)
    return found, time.monotonic() - start, network


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
    """How much of the training is done: by steps where their number is given, else by the time."""

    def __init__(self, minutes: float, steps: int | None) -> None:
        self.start, self.budget_s, self.steps = time.monotonic(), 60 * minutes, steps

    @property
    def minutes(self) -> float:
        """Minutes since the start."""
        return (time.monotonic() - self.start) / 60

    def reserve(self, seconds: float) -> None:
        """Keep some of the time for what comes after the training."""
        self.budget_s -= seconds

    def done(self, step: int) -> float:
        """Share of the training that is done after so many steps; 1 at its end."""
        if self.steps is not None:
            return step / self.steps
        return min((time.monotonic() - self.start) / max(self.budget_s, 1e-9), 1.0)


class _Run:
    """The training: weights as they are, averaged, and the best so far; only biases of the head are changed."""

    def __init__(
        self, original: nn.Module, crops: list[Crop], hiding: Hiding, predictor: Predictor, rng: np.random.Generator
    ) -> None:
        self.crops, self.hiding, self.predictor, self.rng = crops, hiding, predictor, rng
        self.network = deepcopy(original).train().requires_grad_(False)
        self.averaged, self.best = deepcopy(original), deepcopy(original)
        biases = _biases(self.network)
        for bias in biases:
            bias.requires_grad_(True)
        self.optimiser = torch.optim.AdamW(biases, lr=LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.0)
        self.step = self.best_step = 0

    def optimise(self, rate: float) -> None:
        """One step on fresh tasks, in float32."""
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        tasks = [self._draw() for _ in range(BATCH_SIZE)]
        arrays = make_batch(tasks, self.hiding, self.predictor.neighbourhood.n_context, N_TARGETS)
        batch = {key: value.to(self.predictor.device) for key, value in arrays.items()}
        predicted = self.network(batch["xc"], batch["yc"], batch["xt"], batch["context_mask"])
        self.optimiser.zero_grad(set_to_none=True)
        expected_nll(predicted, batch).backward()
        norm = nn.utils.clip_grad_norm_(self.network.parameters(), CLIP)
        if bool(torch.isfinite(norm)):
            self.optimiser.step()
        self.step += 1
        decay = min(AVERAGING, (1 + self.step) / (10 + self.step))
        with torch.no_grad():
            for average, now in zip(self.averaged.parameters(), self.network.parameters(), strict=True):
                average.lerp_(now, 1 - decay)

    def _draw(self) -> CropTask:
        task = draw_task(self.crops, self.predictor.neighbourhood, self.hiding, N_TARGETS, self.rng)
        if task is None:
            raise InputError(
                "nothing can be learned from this raster: no gap could be laid upon observed cells with enough others, "
                "of differing values, around it; use the model as it is"
            )
        return task

    def keep(self) -> None:
        """Take the averaged weights for the best."""
        self.best, self.best_step = deepcopy(self.averaged), self.step


def _train(
    run: _Run, first: float, own: float, judge: Judge, clock: _Clock, progress: Callable[[float, float], object] | None
) -> None:
    """Train until the time is up or validation has been getting no better than `first`; `own` is the model's CRPS."""
    best, validations, in_vain = first, 0, 0
    while in_vain < PATIENCE and (done := clock.done(run.step)) < 1:
        try:
            run.optimise(learning_rate(done))
        except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
            return  # the weights have diverged: what was best before stays
        done = clock.done(run.step)
        if int(done * VALIDATIONS) == validations:
            continue
        validations = int(done * VALIDATIONS)
        score = mean(_judged(run.averaged, judge)[0])
        in_vain += 1
        if score < best:
            best, in_vain = score, 0
            run.keep()
        if progress is not None:
            progress(done, score / own)


def learning_rate(done: float) -> float:
    """Linear warm-up over the first of the training, then a cosine to zero."""
    return LEARNING_RATE * min(1.0, (done + 0.1 * WARMUP) / WARMUP) * 0.5 * (1 + math.cos(math.pi * done))


def _write(
    network: nn.Module, found: Adapted, predictor: Predictor, card: checkpoint.Card, names: list[Hashable], seed: int
) -> None:
    raster = ", ".join(map(str, names))
    steps = len(network.head.priors) if isinstance(network.head, KrigingHead) else 0
    checkpoint.save(
        network,
        found.file,
        name=found.file.stem,
        version=card.version,
        description=f"{card.name} adapted to {raster}" if found.improved else f"{card.name}, the same as for {raster}",
        architecture=card.architecture,
        config={**card.config, "scoring_steps": steps} if steps else card.config,
        neighbourhood=asdict(card.neighbourhood),
        training={
            "base": card.name,
            "base_version": card.version,
            "base_sha256": card.sha256,
            "base_training": card.training,
            "raster": raster,
            "steps": found.steps,
            "seed": seed,
            "minutes": found.minutes,
            "learning_rate": LEARNING_RATE,
        },
        scores={"crps_before": found.before, "crps_after": found.after},
    )
