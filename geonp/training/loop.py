"""The training loop: straight, resumable at the exact step, on one or several devices, with a learning curve."""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from tqdm import tqdm

from geonp.errors import InputError, MissingExtraError, RecipeError
from geonp.inference import checkpoint
from geonp.inference.parallel import memory_kept
from geonp.io.location import check_writable
from geonp.nn.models import build
from geonp.training import curve, interrupts
from geonp.training.objective import Objective, sampled_scores, scores
from geonp.training.optimisers import learning_rate, optimiser
from geonp.training.recipe import Recipe, differences
from geonp.training.sources import VALIDATION_SEED, check, draw, fingerprint, neighbourhood_of

if TYPE_CHECKING:
    from lightning_fabric import Fabric

__all__ = ["COLUMNS", "train"]

COLUMNS = ("step", "cpu_hours", "loss", "learning_rate", "gradient_norm")
"""Columns of the learning curve, before those of the held-out scores."""

SCORES = {
    "raster": ("nll", "kl", "crps_ratio", "coverage_95"),
    "numbers": ("nll", "rmse", "coverage_95"),
    "classes": ("nll", "accuracy"),
}
"""Held-out scores of :mod:`geonp.training.objective` by what is predicted."""

Batch = dict[str, Tensor]

# what several processes tell of their meeting, in each of them
for _name in ("distributed", "rank_zero"):
    logging.getLogger(f"lightning_fabric.utilities.{_name}").setLevel(logging.WARNING)


class _Batches(Dataset[Batch]):
    """Batch i is a function of the seed and i alone, so that a resumed run sees what an unbroken one would have.

    Of several processes, each takes its own of the `world` batches of a step.
    """

    def __init__(self, recipe: Recipe, seed: int, first: int, last: int, rank: int = 0, world: int = 1) -> None:
        self.recipe, self.seed, self.first, self.last = recipe, seed, first, last
        self.rank, self.world = rank, world

    def __len__(self) -> int:
        return max(self.last - self.first, 0)

    def __getitem__(self, index: int) -> Batch:
        return draw(self.recipe, self.seed, (self.first + index) * self.world + self.rank)


def train(
    recipe: Recipe,
    out: Path,
    *,
    resume: bool = False,
    workers: int = 1,
    progress: bool = True,
    device: str = "auto",
    devices: int = 1,
) -> Path:
    """Train a recipe and write ``out/<name>.safetensors`` with its card.

    ``out/curve.csv`` grows as training goes, ``out/curve.png`` shows it, ``out/state.pt`` is saved every few minutes
    and when the run is interrupted, which it heeds at the end of a step; a second interrupt ends it at once.
    Batches come from `workers` processes (0: from this one); the result does not depend on it.

    Parameters
    ----------
    device : str
        ``"cpu"``, ``"cuda"`` or ``"auto"``, the GPU where there is one.
    devices : int
        How many of them work together, each in a process of its own on its own batches: a step of n devices sees n
        times as many tasks.

    Returns
    -------
    Path
        The checkpoint.

    Raises
    ------
    RecipeError
        When `out` holds a run already and `resume` is not set, or the run there is of another recipe; where the model
        of the recipe cannot be built, or its data are not there.
    OutputError
        Where `out` cannot be written to.
    MissingExtraError
        Where lightning-fabric or matplotlib are not installed, which the extra ``geonp[train]`` brings.
    InputError
        For a device that this machine does not have.
    """
    state_file = out / "state.pt"
    if state_file.exists() and not resume:
        raise RecipeError(f"{out} holds a run already: resume it (--resume), or choose another folder")
    check(recipe)
    fabric = _fabric(device, devices)
    with _folder(out):
        launch: Any = fabric.launch
        if devices > 1:
            with interrupts.passed_on():
                finished = launch(_train, recipe, out, workers, progress)
        else:
            finished = launch(_train, recipe, out, workers, progress)
        if not finished:
            raise KeyboardInterrupt
    return out / f"{recipe.name}.safetensors"


@contextmanager
def _folder(out: Path) -> Iterator[None]:
    """Make the folder of a run, and see that it can be written to; what is empty when the run fails is removed."""
    made = [folder for folder in (out, *out.parents) if not folder.exists()]
    try:
        check_writable(out, "Expected one that is writable or can be made; choose another with --out.", make=True)
        yield
    except BaseException:
        for folder in made:
            with suppress(OSError):
                folder.rmdir()
        raise


def _fabric(device: str = "auto", devices: int = 1) -> Fabric:
    try:
        import matplotlib  # noqa: F401  # of the same extra: to be missed now, not when a curve is drawn
        from lightning_fabric import Fabric
        from lightning_fabric.strategies.ddp import DDPStrategy
    except ImportError as error:
        raise MissingExtraError(error.name or "lightning_fabric", "train") from error
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    n_found = {"cpu": os.cpu_count() or 1, "cuda": torch.cuda.device_count()}.get(device, 0)
    if not 1 <= devices <= n_found:
        raise InputError(
            f"cannot train on {devices} devices of kind {device!r}: this machine has {n_found}; "
            "choose cpu or cuda, and no more devices than there are"
        )
    if devices > 1:
        # some models have weights that some batches do not reach; of others torch says that they have none
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    several = DDPStrategy(start_method="spawn", find_unused_parameters=True)
    strategy = several if devices > 1 else "auto"
    return Fabric(accelerator=device, strategy=strategy, devices=devices)


def _train(fabric: Fabric, recipe: Recipe, out: Path, workers: int, progress: bool) -> bool:
    """One process of a run; the first writes for all. Whether the run came to its end, or else was interrupted."""
    options, leads = recipe.training, fabric.is_global_zero
    state_file, curve_file = out / "state.pt", out / "curve.csv"
    resumed = state_file.exists()
    run = _Run(recipe, fabric, resumed)
    if resumed:
        run.restore(_state(state_file, fabric), state_file)
    if leads:
        curve.cut(curve_file, run.step)
    data = _Batches(recipe, options.seed, run.step, options.steps, fabric.global_rank, fabric.world_size)
    # a generator of its own: the loader must not take from the random numbers of the models
    loader = DataLoader(
        data, batch_size=None, num_workers=workers, worker_init_fn=_begin_worker, generator=torch.Generator()
    )
    validation = [draw(recipe, VALIDATION_SEED, i) for i in range(options.validation_batches if leads else 0)]
    hidden = not (progress and leads)
    bar = tqdm(loader, initial=run.step, total=options.steps, disable=hidden, unit="step", mininterval=5)
    saved = time.monotonic()
    with memory_kept(), interrupts.awaited(one_of_several=fabric.world_size > 1) as asked:
        for batch in bar:
            row = run.optimise(batch)
            last = run.step == options.steps
            ends = not last and _any(fabric, asked.to_end)
            if leads:
                due = run.step % options.validate_every == 0 or last
                if due:
                    run.validate(validation)
                if due or run.step % 50 == 0:
                    curve.append(curve_file, run.columns, {**row, **(run.latest if due else {})})
                    bar.set_postfix(loss=f"{row['loss']:.3f}", nll=f"{run.latest.get('nll', math.nan):.3f}")
                if due:
                    curve.draw(curve_file)
                if time.monotonic() - saved > options.save_every_s or last or ends:
                    run.save(state_file)
                    saved = time.monotonic()
            if ends:
                return False
    if leads:
        run.publish(out)
    fabric.barrier()
    return True


def _state(file: Path, fabric: Fabric) -> dict[str, Any]:
    try:
        state: dict[str, Any] = torch.load(file, weights_only=True, map_location=fabric.device)
    except Exception as error:  # torch, pickle and zipfile have no common class for damage
        raise RecipeError(
            f"{file} cannot be read, so the run cannot go on from it ({type(error).__name__}): it is damaged, or no "
            "state of a run. Remove its folder, or train into another one, to begin again."
        ) from error
    return state


def _any(fabric: Fabric, asked: bool) -> bool:
    """Whether one of the processes of a run was asked to end: all must leave after the same step."""
    if fabric.world_size == 1:
        return asked
    total = fabric.all_reduce(torch.tensor(float(asked), device=fabric.device), reduce_op="sum")
    return float(total) > 0  # type: ignore[arg-type]  # of a tensor it is one


class _Run:
    """Everything that must survive an interruption."""

    def __init__(self, recipe: Recipe, fabric: Fabric | None = None, resumed: bool = False) -> None:
        options = recipe.training
        torch.manual_seed(options.seed)
        self.recipe, self.options, self.fabric = recipe, options, fabric or _fabric()
        self.network = build(recipe.model.architecture, recipe.model.config)
        if options.start and not resumed:
            checkpoint.start_from(self.network, options.start)
        self.averaged = deepcopy(self.network).eval().requires_grad_(False).to(self.fabric.device)
        self.objective, self.optimiser = self.fabric.setup(
            Objective(self.network, options.precision, options.mean_weight), optimiser(self.network, options)
        )
        self.data = fingerprint(recipe)
        self.step, self.cpu_s = 0, 0.0
        self.loss = torch.full((), math.nan, device=self.fabric.device)
        self.latest: dict[str, float] = {}
        self.best: dict[str, Any] = {}

    @property
    def columns(self) -> tuple[str, ...]:
        """Of the learning curve."""
        if self.recipe.data.kind == "raster":
            return COLUMNS + SCORES["raster"]
        return COLUMNS + SCORES["classes" if "likelihood" in self.recipe.model.config else "numbers"]

    def optimise(self, batch: Batch) -> dict[str, float]:
        """One step; the row of the learning curve."""
        start = time.process_time()
        rate = learning_rate(self.step, self.options)
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        # what a model draws in a step is a function of seed, step and device, as the batches are
        noise = np.random.SeedSequence([self.options.seed, self.step, self.fabric.global_rank])
        torch.manual_seed(int(noise.generate_state(1)[0]))
        self.network.train()
        loss = self.objective(self.fabric.to_device(batch))
        self.optimiser.zero_grad(set_to_none=True)
        self.fabric.backward(loss)
        norm = nn.utils.clip_grad_norm_(self.network.parameters(), self.options.clip)
        if bool(torch.isfinite(norm)):
            self.optimiser.step()
        self.step += 1
        decay = min(self.options.averaging, (1 + self.step) / (10 + self.step))
        with torch.no_grad():
            for mean, now in zip(self.averaged.parameters(), self.network.parameters(), strict=True):
                mean.lerp_(now, 1 - decay)
            self.loss = _smoothed(self.loss, loss.detach())
        self.cpu_s += time.process_time() - start
        return {
            "step": self.step,
            "cpu_hours": round(self.cpu_s / 3600, 4),
            "loss": round(float(self.loss), 5),
            "learning_rate": rate,
            "gradient_norm": round(float(norm), 4),
        }

    def validate(self, batches: list[Batch]) -> None:
        """Score the averaged weights, and keep them aside if they are the best so far and the recipe wants those."""
        score = scores if self.recipe.data.kind == "raster" else sampled_scores
        self.latest = score(self.averaged, batches)
        if self.options.keep == "best" and self.latest["nll"] < self.best.get("scores", {"nll": math.inf})["nll"]:
            weights = {key: value.clone() for key, value in self.averaged.state_dict().items()}
            self.best = {"scores": self.latest, "weights": weights, "step": self.step}

    def save(self, file: Path) -> None:
        """Write the state by replacing the file, so that an interruption leaves the last one."""
        state = {
            "recipe": self.recipe.model_dump_json(),
            "devices": self.fabric.world_size,
            "data": self.data,
            "network": self.network.state_dict(),
            "averaged": self.averaged.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "step": self.step,
            "cpu_s": self.cpu_s,
            "loss": self.loss,
            "latest": self.latest,
            "best": self.best,
        }
        temporary = file.with_suffix(".tmp")
        with temporary.open("wb") as handle:
            torch.save(state, handle)
            # else the name may reach the disk before what it names
            handle.flush()
            os.fsync(handle.fileno())
        os.replace(temporary, file)

    def restore(self, state: dict[str, Any], file: Path) -> None:
        """Take up a saved state of the same run; how long it lasts and how often it is looked at may have changed."""
        changed = differences(state["recipe"], self.recipe)
        devices = (state.get("devices", self.fabric.world_size), self.fabric.world_size)
        if devices[0] != devices[1]:
            changed.append(f"--devices was {devices[0]}, now is {devices[1]}")
        if state.get("data", self.data) != self.data:
            changed.append("the values at data.path or data.geopotential are not those it began with")
        if changed:
            raise RecipeError(
                f"{file} was written by another recipe: {'; '.join(changed)}; set back what differs to go on with that "
                "run, or choose another folder for a new one"
            )
        if self.options.steps < state["step"]:
            raise RecipeError(
                f"training.steps: got {self.options.steps}, but the run in {file} is at step {state['step']} already; "
                "expected as many or more"
            )
        self.network.load_state_dict(state["network"])
        self.averaged.load_state_dict(state["averaged"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.step, self.cpu_s, self.loss = state["step"], state["cpu_s"], state["loss"]
        self.latest, self.best = state.get("latest", {}), state.get("best", {})

    def publish(self, out: Path) -> Path:
        """Write the averaged weights as a checkpoint."""
        file = out / f"{self.recipe.name}.safetensors"
        recipe = self.recipe.model_dump(mode="json")
        source = {"prior": recipe["prior"]} if self.recipe.data.kind == "raster" else {"data": recipe["data"]}
        network = self.averaged
        if self.best:
            network = deepcopy(network)
            network.load_state_dict(self.best["weights"])
        checkpoint.save(
            network.cpu(),
            file,
            name=self.recipe.name,
            version="1",
            description=self.recipe.description,
            architecture=self.recipe.model.architecture,
            config=self.recipe.model.config,
            neighbourhood=neighbourhood_of(self.recipe),
            training={
                **self.options.model_dump(),
                **source,
                "steps_done": self.step,
                "cpu_hours": round(self.cpu_s / 3600, 2),
            },
            # JSON knows no NaN
            scores={key: value for key, value in self.best.get("scores", self.latest).items() if math.isfinite(value)},
        )
        return file


def _smoothed(mean: Tensor, loss: Tensor) -> Tensor:
    """The running mean of the losses, none of which is NaN; a loss that is not finite leaves it as it is."""
    following = torch.where(mean.isfinite(), mean.lerp(loss, 0.02), loss)
    return torch.where(loss.isfinite(), following, mean)


def _begin_worker(_: int) -> None:
    torch.set_num_threads(1)
    interrupts.default_in_worker()
