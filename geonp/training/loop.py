"""The training loop: resumable at the exact step, on one or several devices, with a learning curve."""

from __future__ import annotations

import logging
import math
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from tqdm import tqdm

from geonp.errors import InputError, RecipeError, from_extra
from geonp.inference import checkpoint
from geonp.io.location import check_writable, replacing
from geonp.nn.models import build
from geonp.training import curve, interrupts
from geonp.training.batch import Batch
from geonp.training.objective import Objective, sampled_scores, scores
from geonp.training.optimisers import averaged_model, freeze_all_but, learning_rate, optimiser
from geonp.training.patches import patch_scores
from geonp.training.recipe import Recipe, differences
from geonp.training.sources import VALIDATION_SEED, check, draw, fingerprint, neighbourhood_of

if TYPE_CHECKING:
    from lightning_fabric import Fabric

COLUMNS = ("step", "cpu_hours", "loss", "learning_rate", "gradient_norm")
"""Columns of the learning curve, before those of the held-out scores."""
SCORES = {
    "raster": ("nll", "kl", "crps_ratio", "coverage_95"),
    "numbers": ("nll", "rmse", "coverage_95"),
    "classes": ("nll", "accuracy"),
    "small_gaps": ("nll", "coverage_95"),
}
"""Held-out scores of :mod:`geonp.training.objective`, by the kind of targets."""


@dataclass(frozen=True)
class _Reporting:
    curve_every: int = 50  # steps from one row of the learning curve to the next, beside those of validations
    smoothing: float = 0.02  # weight of the last loss in the running mean, which spans about as many steps as a row
    refresh_s: float = 5.0  # of the progress bar: logs of batch systems stay short


_REPORTING = _Reporting()

if "--multiprocessing-fork" in sys.orig_argv:
    # a process that `train` started, which would print how it finds the others
    for _name in ("distributed", "rank_zero"):
        logging.getLogger(f"lightning_fabric.utilities.{_name}").setLevel(logging.WARNING)


@dataclass(frozen=True)
class _Batches(Dataset[Batch]):
    """Batches of the steps from `first` to `last`, for the process `rank` of `world` processes.

    Each batch depends on the seed and its index alone, so that a resumed run sees the batches of an uninterrupted run.
    """

    recipe: Recipe
    seed: int
    first: int
    last: int
    rank: int
    world: int

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
    """Train a recipe and write the checkpoint ``out/<name>.safetensors`` with its card.

    The learning curve is appended to ``out/curve.csv`` and plotted to ``out/curve.png``. The state is saved to
    ``out/state.pt`` every few minutes, and after the current step of an interrupted run; a second interrupt does not
    wait for it.

    Parameters
    ----------
    recipe : Recipe
        Model, data and optimisation.
    out : Path
        Folder of the run.
    resume : bool
        Continue the run in `out`, if there is one.
    workers : int
        Number of processes that make batches; with 0 the training process makes them. The result does not depend on it.
    progress : bool
        Show a progress bar on stderr.
    device : str
        ``"cpu"``, ``"cuda"``, or ``"auto"`` for the GPU if there is one.
    devices : int
        Number of devices, each driven by its own process with its own batches: a step of n devices sees n times as many
        tasks.

    Returns
    -------
    Path
        The checkpoint.

    Raises
    ------
    RecipeError
        If `out` holds a run and `resume` is not set, or holds the run of another recipe; if the model of the recipe
        cannot be built, or its data do not exist.
    OutputError
        If `out` cannot be written.
    MissingExtraError
        If lightning-fabric or matplotlib is not installed; the extra ``geonp[train]`` installs them.
    InputError
        For a device that this machine does not have.
    KeyboardInterrupt
        If the run was interrupted; its state is saved.
    """
    if (out / "state.pt").exists() and not resume:
        raise RecipeError(f"{out} already holds a run: resume it (--resume), or choose another folder")
    check(recipe)
    fabric = _fabric(device, devices)
    launch: Any = fabric.launch
    with _folder(out), interrupts.forwarded() if devices > 1 else nullcontext():
        if not launch(_train, recipe, out, workers, progress):
            raise KeyboardInterrupt
    return out / f"{recipe.name}.safetensors"


@contextmanager
def _folder(out: Path) -> Iterator[None]:
    """Make the folder of a run and check that it is writable; if the run fails, remove new folders that are empty."""
    new = [folder for folder in (out, *out.parents) if not folder.exists()]
    try:
        check_writable(out, "Expected one that is writable or can be made; choose another one (--out).", make=True)
        yield
    except BaseException:
        for folder in new:
            with suppress(OSError):
                folder.rmdir()
        raise


def _fabric(device: str = "auto", devices: int = 1) -> Fabric:
    with from_extra("train"):
        import matplotlib  # noqa: F401  # of the same extra: missed now rather than when the curve is plotted
        from lightning_fabric import Fabric
        from lightning_fabric.strategies.ddp import DDPStrategy
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    available = {"cpu": os.cpu_count() or 1, "cuda": torch.cuda.device_count()}.get(device, 0)
    if not 1 <= devices <= available:
        raise InputError(
            f"cannot train on {devices} devices of kind {device!r}: this machine has {available}; "
            "choose cpu or cuda, and no more devices than there are"
        )
    logging.getLogger("lightning_fabric.utilities.rank_zero").addFilter(_no_advice)
    if devices == 1:
        return Fabric(accelerator=device, devices=1)
    # some batches leave some weights without a gradient; for models without such weights torch would warn
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    strategy = DDPStrategy(start_method="spawn", find_unused_parameters=True)
    return Fabric(accelerator=device, strategy=strategy, devices=devices)


def _no_advice(record: logging.LogRecord) -> bool:
    """Whether a message of Fabric is something else than its advice to users of GPUs to round matrix products."""
    return "Tensor Cores" not in record.getMessage()


def _train(fabric: Fabric, recipe: Recipe, out: Path, workers: int, progress: bool) -> bool:
    """Run one of the processes of a run, of which the first writes all files; False if it was interrupted."""
    options, leads = recipe.training, fabric.is_global_zero
    state_file, curve_file = out / "state.pt", out / "curve.csv"
    run = _Run(recipe, fabric, resumed=state_file.exists())
    if state_file.exists():
        run.restore(_state(state_file, fabric), state_file)
    if leads:
        curve.truncate(curve_file, run.step)
    data = _Batches(recipe, options.seed, run.step, options.steps, fabric.global_rank, fabric.world_size)
    own = torch.Generator()  # so that the loader leaves the random numbers of models alone
    loader = DataLoader(data, batch_size=None, num_workers=workers, worker_init_fn=_begin_worker, generator=own)
    validation = [draw(recipe, VALIDATION_SEED, i) for i in range(options.validation_batches if leads else 0)]
    shown = {"disable": not (progress and leads), "unit": "step", "mininterval": _REPORTING.refresh_s}
    bar: Any = tqdm(loader, initial=run.step, total=options.steps, **shown)  # type: ignore[call-overload]
    saved = time.monotonic()
    with interrupts.deferred(one_of_several=fabric.world_size > 1) as interrupted:
        for batch in bar:
            row = run.optimise(batch)
            last = run.step == options.steps
            stops = not last and _any(fabric, interrupted.is_set())
            if leads:
                _report(run, row, validation, curve_file, bar)
                if last or stops or time.monotonic() - saved > options.save_every_s:
                    run.save(state_file)
                    saved = time.monotonic()
            if stops:
                return False
    if leads:
        run.publish(out)
    fabric.barrier()
    return True


def _report(run: _Run, row: dict[str, float], validation: list[Batch], curve_file: Path, bar: Any) -> None:
    """Validate, append to the learning curve and plot it, whichever is due after a step."""
    due = run.step % run.options.validate_every == 0 or run.step == run.options.steps
    if due:
        run.validate(validation)
    if due or run.step % _REPORTING.curve_every == 0:
        curve.append(curve_file, run.columns, {**row, **(run.latest if due else {})})
        bar.set_postfix(loss=f"{row['loss']:.3f}", nll=f"{run.latest.get('nll', math.nan):.3f}")
    if due:
        curve.plot(curve_file)


def _state(file: Path, fabric: Fabric) -> dict[str, Any]:
    try:
        state: dict[str, Any] = torch.load(file, weights_only=True, map_location=fabric.device)
    except Exception as error:  # torch, pickle and zipfile have no common class for damaged files
        raise RecipeError(
            f"cannot resume from {file} ({type(error).__name__}): it is damaged, or not the state of a run. Remove its "
            "folder, or train into another one, to start again."
        ) from error
    return state


def _any(fabric: Fabric, interrupted: bool) -> bool:
    """Whether any process of a run was interrupted: all must stop after the same step."""
    if fabric.world_size == 1:
        return interrupted
    total = fabric.all_reduce(torch.tensor(float(interrupted), device=fabric.device), reduce_op="sum")
    return float(total) > 0  # type: ignore[arg-type]  # a tensor is reduced to a tensor


class _Run:
    """The state of a run: all that must survive an interruption."""

    def __init__(self, recipe: Recipe, fabric: Fabric | None = None, resumed: bool = False) -> None:
        options = recipe.training
        torch.manual_seed(options.seed)
        self.recipe, self.options, self.fabric = recipe, options, fabric or _fabric()
        self.network = build(recipe.model.architecture, recipe.model.config)
        if options.start and not resumed:
            checkpoint.start_from(self.network, options.start)
        freeze_all_but(self.network, options.only)
        self.averaged = averaged_model(self.network, options.averaging).to(self.fabric.device)
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
        """Columns of the learning curve."""
        if self.recipe.data.kind in ("raster", "small_gaps"):
            return COLUMNS + SCORES[self.recipe.data.kind]
        return COLUMNS + SCORES["classes" if "likelihood" in self.recipe.model.config else "numbers"]

    def optimise(self, batch: Batch) -> dict[str, float]:
        """Take one step; return its row of the learning curve."""
        start = time.process_time()
        rate = learning_rate(self.step, self.options)
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        # random numbers that a model draws depend on seed, step and device alone, as batches do
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
        self.averaged.update_parameters(self.network)
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
        """Score the averaged weights; keep a copy of the best ones if the recipe publishes those."""
        score = {"raster": scores, "small_gaps": patch_scores}.get(self.recipe.data.kind, sampled_scores)
        self.latest = score(self.averaged.module, batches)
        if self.options.keep == "best" and self.latest["nll"] < self.best.get("scores", {"nll": math.inf})["nll"]:
            weights = {key: value.clone() for key, value in self.averaged.module.state_dict().items()}
            self.best = {"scores": self.latest, "weights": weights, "step": self.step}

    def save(self, file: Path) -> None:
        """Replace the state in `file`, so that an interruption leaves the previous one."""
        state = {
            "recipe": self.recipe.model_dump_json(),
            "devices": self.fabric.world_size,
            "data": self.data,
            "network": self.network.state_dict(),
            "averaged": self.averaged.module.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "step": self.step,
            "cpu_s": self.cpu_s,
            "loss": self.loss,
            "latest": self.latest,
            "best": self.best,
        }
        with replacing(file) as temporary, temporary.open("wb") as handle:
            torch.save(state, handle)
            handle.flush()
            os.fsync(handle.fileno())  # the content must reach the disk before the name does

    def restore(self, state: dict[str, Any], file: Path) -> None:
        """Continue from a saved state of the same run."""
        changed = differences(state["recipe"], self.recipe)
        if (devices := state.get("devices", self.fabric.world_size)) != self.fabric.world_size:
            changed.append(f"--devices was {devices}, now is {self.fabric.world_size}")
        if state.get("data", self.data) != self.data:
            changed.append("the values at data.path or data.geopotential have changed")
        if changed:
            raise RecipeError(
                f"{file} was written by another recipe: {'; '.join(changed)}; restore what differs to resume the run, "
                "or choose another folder for a new one"
            )
        if self.options.steps < state["step"]:
            raise RecipeError(
                f"training.steps: got {self.options.steps}, but the run in {file} is already at step {state['step']}; "
                "expected at least as many"
            )
        self.network.load_state_dict(state["network"])
        self.averaged.module.load_state_dict(state["averaged"])
        self.averaged.n_averaged += state["step"]
        self.optimiser.load_state_dict(state["optimiser"])
        self.step, self.cpu_s, self.loss = state["step"], state["cpu_s"], state["loss"]
        self.latest, self.best = state.get("latest", {}), state.get("best", {})

    def publish(self, out: Path) -> Path:
        """Write the averaged weights, or the best ones, as a checkpoint."""
        file = out / f"{self.recipe.name}.safetensors"
        recipe = self.recipe.model_dump(mode="json")
        source = {"prior": recipe["prior"]} if self.recipe.data.kind == "raster" else {"data": recipe["data"]}
        network = self.averaged.module
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
            # JSON has no NaN
            scores={key: value for key, value in self.best.get("scores", self.latest).items() if math.isfinite(value)},
        )
        return file


def _smoothed(mean: Tensor, loss: Tensor) -> Tensor:
    """Running mean of losses, without those that are not finite; NaN before the first."""
    return torch.where(loss.isfinite(), torch.where(mean.isfinite(), mean.lerp(loss, _REPORTING.smoothing), loss), mean)


def _begin_worker(_: int) -> None:
    torch.set_num_threads(1)
    interrupts.reset_in_worker()
