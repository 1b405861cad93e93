"""The training loop: straight, resumable at the exact step, with a learning curve written as it goes."""

from __future__ import annotations

import csv
import math
import os
import time
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy import special
from torch import Tensor, nn
from torch.distributions import Distribution
from torch.utils.data import DataLoader, Dataset
from tqdm import tqdm

from geonp import checkpoint
from geonp.errors import RecipeError
from geonp.nn.heads import tail_of
from geonp.nn.models import build
from geonp.student import crps, half_width
from geonp.training.recipe import Recipe, Training
from geonp.training.tasks import collate, sample_task

__all__ = ["expected_crps", "expected_nll", "mean_distance", "scores", "train"]

VALIDATION_SEED = 2**31 - 1
CURVE = ("step", "cpu_hours", "loss", "learning_rate", "gradient_norm", "nll", "kl", "crps_ratio", "coverage_95")

Array = npt.NDArray[np.float64]
Batch = dict[str, Tensor]


class _Batches(Dataset[Batch]):
    """Batch i is a function of the seed and i alone, so that a resumed run sees what an unbroken one would have."""

    def __init__(self, recipe: Recipe, seed: int, first: int, last: int) -> None:
        self.recipe, self.seed, self.first, self.last = recipe, seed, first, last

    def __len__(self) -> int:
        return max(self.last - self.first, 0)

    def __getitem__(self, index: int) -> Batch:
        recipe, options = self.recipe, self.recipe.training
        rng = np.random.default_rng([self.seed, self.first + index])
        tasks = [
            sample_task(rng, recipe.prior, recipe.neighbourhood, options.n_targets) for _ in range(options.batch_size)
        ]
        arrays = collate(tasks, recipe.neighbourhood.n_context, options.n_targets)
        return {key: torch.from_numpy(value) for key, value in arrays.items()}


def train(recipe: Recipe, out: Path, *, resume: bool = False, workers: int = 1, progress: bool = True) -> Path:
    """Train a recipe and write ``out/<name>.safetensors`` with its card.

    ``out/curve.csv`` grows as training goes, ``out/state.pt`` is saved every few minutes. Batches come from `workers`
    processes (0: from this one); the result does not depend on it.

    Returns
    -------
    Path
        The checkpoint.

    Raises
    ------
    RecipeError
        When `out` holds a run already and `resume` is not set, or the run there is of another recipe.
    """
    state_file = out / "state.pt"
    if state_file.exists() and not resume:
        raise RecipeError(f"{out} holds a run already: resume it (--resume), or choose another folder")
    out.mkdir(parents=True, exist_ok=True)
    run = _Run(recipe)
    if state_file.exists():
        run.restore(torch.load(state_file, weights_only=True), state_file)
        _cut(out / "curve.csv", run.step)
    device = run.device
    data = _Batches(recipe, recipe.training.seed, run.step, recipe.training.steps)
    loader = DataLoader(data, batch_size=None, num_workers=workers, worker_init_fn=_one_thread)
    validation = [_Batches(recipe, VALIDATION_SEED, i, i + 1)[0] for i in range(recipe.training.validation_batches)]
    saved = time.monotonic()
    bar = tqdm(loader, initial=run.step, total=recipe.training.steps, disable=not progress, unit="step", mininterval=5)
    for batch in bar:
        row = run.optimise({key: value.to(device) for key, value in batch.items()})
        last = run.step == recipe.training.steps
        if run.step % recipe.training.validate_every == 0 or last:
            run.latest = scores(run.averaged, validation)
        if run.step % 50 == 0 or last:
            fresh = run.latest if run.step % recipe.training.validate_every == 0 or last else {}
            _append(out / "curve.csv", {**row, **fresh})
            bar.set_postfix(loss=f"{row['loss']:.3f}", kl=f"{run.latest.get('kl', math.nan):.3f}")
        if time.monotonic() - saved > recipe.training.save_every_s or last:
            run.save(state_file)
            saved = time.monotonic()
    return run.publish(out)


class _Run:
    """Everything that must survive an interruption."""

    def __init__(self, recipe: Recipe) -> None:
        options = recipe.training
        torch.manual_seed(options.seed)
        self.recipe, self.options = recipe, options
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.network = _build(recipe).to(self.device)
        if options.start:
            checkpoint.start_from(self.network, options.start)
        self.averaged = deepcopy(self.network).eval().requires_grad_(False)
        decayed = [p for p in self.network.parameters() if p.ndim > 1]
        plain = [p for p in self.network.parameters() if p.ndim <= 1]
        self.optimiser = torch.optim.AdamW(
            [{"params": decayed, "weight_decay": options.weight_decay}, {"params": plain, "weight_decay": 0.0}],
            lr=options.learning_rate,
            betas=(0.9, 0.98),
        )
        self.step, self.cpu_s = 0, 0.0
        self.loss = torch.zeros(())
        self.latest: dict[str, float] = {}

    def optimise(self, batch: Batch) -> dict[str, float]:
        """One step; the row of the learning curve."""
        start = time.process_time()
        rate = learning_rate(self.step, self.options)
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        autocast = torch.autocast(self.device.type, torch.bfloat16, enabled=self.options.precision == "bf16")
        self.network.train()
        with autocast:
            predicted = self.network(batch["xc"], batch["yc"], batch["xt"], batch["context_mask"])
        loss = expected_nll(predicted, batch)
        if self.options.mean_weight:
            loss = loss + self.options.mean_weight * mean_distance(predicted, batch)
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.network.parameters(), self.options.clip)
        if bool(torch.isfinite(norm)):
            self.optimiser.step()
        self.step += 1
        decay = min(self.options.averaging, (1 + self.step) / (10 + self.step))
        with torch.no_grad():
            for mean, now in zip(self.averaged.parameters(), self.network.parameters(), strict=True):
                mean.lerp_(now, 1 - decay)
            self.loss = loss.detach() if self.step == 1 else self.loss.lerp(loss.detach(), 0.02)
        self.cpu_s += time.process_time() - start
        return {
            "step": self.step,
            "cpu_hours": round(self.cpu_s / 3600, 4),
            "loss": round(float(self.loss), 5),
            "learning_rate": rate,
            "gradient_norm": round(float(norm), 4),
        }

    def save(self, file: Path) -> None:
        """Write the state by replacing the file, so that an interruption leaves the last one."""
        state = {
            "recipe": self.recipe.model_dump_json(),
            "network": self.network.state_dict(),
            "averaged": self.averaged.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "step": self.step,
            "cpu_s": self.cpu_s,
            "loss": self.loss,
            "latest": self.latest,
            "random": torch.get_rng_state(),
        }
        temporary = file.with_suffix(".tmp")
        torch.save(state, temporary)
        os.replace(temporary, file)

    def restore(self, state: dict[str, Any], file: Path) -> None:
        """Take up a saved state of the same model and neighbourhood; the rest of the recipe may have changed since."""
        stored = Recipe.model_validate_json(state["recipe"])
        if (stored.model, stored.neighbourhood) != (self.recipe.model, self.recipe.neighbourhood):
            raise RecipeError(
                f"{file} was written by another recipe: its model or neighbourhood differs; choose another folder"
            )
        self.network.load_state_dict(state["network"])
        self.averaged.load_state_dict(state["averaged"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.step, self.cpu_s, self.loss = state["step"], state["cpu_s"], state["loss"]
        self.latest = state.get("latest", {})
        torch.set_rng_state(state["random"])

    def publish(self, out: Path) -> Path:
        """Write the averaged weights as a checkpoint."""
        file = out / f"{self.recipe.name}.safetensors"
        checkpoint.save(
            self.averaged,
            file,
            name=self.recipe.name,
            version="1",
            description=self.recipe.description,
            architecture=self.recipe.model.architecture,
            config=self.recipe.model.config,
            neighbourhood=self.recipe.model_dump(mode="json")["neighbourhood"],
            training={
                **self.recipe.training.model_dump(),
                "prior": self.recipe.model_dump(mode="json")["prior"],
                "steps_done": self.step,
                "cpu_hours": round(self.cpu_s / 3600, 2),
            },
            scores=self.latest,
        )
        return file


def _build(recipe: Recipe) -> nn.Module:
    try:
        return build(recipe.model.architecture, recipe.model.config)
    except (TypeError, ValueError) as error:
        raise RecipeError(
            f"recipe {recipe.name}: model.architecture or model.config cannot be built: {error}"
        ) from error


def learning_rate(step: int, options: Training) -> float:
    """Linear warm-up, constant, and a cosine to zero over the last `decay` of the steps."""
    tail = options.decay * options.steps
    left = (options.steps - step) / tail if tail else 1.0
    cosine = 0.5 * (1 - math.cos(math.pi * min(left, 1.0)))
    return options.learning_rate * min(1.0, (step + 1) / max(options.warmup, 1)) * cosine


def expected_nll(predicted: Distribution, batch: Batch) -> Tensor:
    """Mean over targets of the expected negative log density under the targets' own distribution.

    A target is known to be N(mean, variance); a sampled value has a variance of zero. Where the batch has a ``weight``
    for each target, their weighted mean.
    """
    nll = _expected_nll(predicted, batch["mean"], batch["variance"])
    if "weight" in batch:
        return (nll * batch["weight"]).sum() / batch["weight"].sum()
    weight = batch["target_mask"].float()
    return ((nll * weight).sum(-1) / weight.sum(-1).clamp_min(1)).mean()


def _expected_nll(predicted: Distribution, mean: Tensor, variance: Tensor) -> Tensor:
    nodes, weights = (torch.from_numpy(a).to(mean) for a in _gauss_hermite(8))
    values = mean + variance.sqrt() * nodes[:, None, None]
    return -(predicted.log_prob(values[..., None])[..., 0] * weights[:, None, None]).sum(0)


def mean_distance(predicted: Distribution, batch: Batch) -> Tensor:
    """Mean over targets of ``sqrt(1 + d^2) - 1``, d how far the predicted mean is off, in deviations of the context."""
    off = (1 + (predicted.mean[..., 0] - batch["mean"]).square()).sqrt() - 1
    weight = batch["target_mask"].float()
    return ((off * weight).sum(-1) / weight.sum(-1).clamp_min(1)).mean()


def _gauss_hermite(n: int) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Nodes and weights of the expectation under a standard normal distribution."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(n)
    return nodes, weights / math.sqrt(2 * math.pi)


@torch.no_grad()
def scores(network: nn.Module, batches: list[Batch]) -> dict[str, float]:
    """Held-out scores on synthetic tasks.

    ``nll`` over all tasks; against the exact process where it is known: ``kl``, the mean divergence of the prediction
    from it, ``crps_ratio``, the mean CRPS over the exact process's own, and ``coverage_95`` of the predicted interval.
    """
    device = next(network.parameters()).device
    nll, divergence, ours, theirs, coverage = [], [], [], [], []
    for batch in ({key: value.to(device) for key, value in b.items()} for b in batches):
        predicted = network(batch["xc"], batch["yc"], batch["xt"], batch["context_mask"])
        mean, variance, keep = batch["mean"], batch["variance"], batch["target_mask"] & batch["exact"][:, None]
        nll.append(float(expected_nll(predicted, batch)))
        entropy = 0.5 * torch.log(2 * math.pi * math.e * variance.clamp_min(1e-30))
        divergence.append((_expected_nll(predicted, mean, variance) - entropy)[keep])
        of = (predicted.mean[..., 0] - mean, predicted.stddev[..., 0], tail_of(predicted)[..., 0], variance.sqrt())
        offset, deviation, tail, exact = (t[keep].double().cpu().numpy() for t in of)
        ours.append(expected_crps(offset, deviation, tail, exact))
        theirs.append(exact / math.sqrt(math.pi))
        half = half_width(deviation, tail, 0.95)
        coverage.append(special.ndtr((offset + half) / exact) - special.ndtr((offset - half) / exact))
    return {
        "nll": round(float(np.mean(nll)), 5),
        "kl": round(float(torch.cat(divergence).mean()), 5),
        "crps_ratio": round(float(np.concatenate(ours).sum() / np.concatenate(theirs).sum()), 5),
        "coverage_95": round(float(np.concatenate(coverage).mean()), 5),
    }


def expected_crps(offset: Array, deviation: Array, tail: Array, exact: Array) -> Array:
    """CRPS of Student distributions (:mod:`geonp.student`), expected over observations from N(0, exact^2)."""
    nodes, weights = _gauss_hermite(32)
    by_node = [w * crps(exact * node, offset, deviation, tail) for node, w in zip(nodes, weights, strict=True)]
    return np.asarray(sum(by_node))


def _append(file: Path, row: dict[str, float]) -> None:
    new = not file.exists()
    with file.open("a", newline="", encoding="utf-8") as handle:
        writer = csv.DictWriter(handle, CURVE, restval="")
        if new:
            writer.writeheader()
        writer.writerow(row)


def _cut(file: Path, step: int) -> None:
    """Drop what an interrupted run wrote after its last saved state: it will be written again."""
    lines = file.read_bytes().splitlines(keepends=True) if file.exists() else []
    kept = [line for line in lines[1:] if line.endswith(b"\n") and int(line.partition(b",")[0]) <= step]
    if len(kept) < len(lines) - 1:
        temporary = file.with_suffix(".tmp")
        temporary.write_bytes(b"".join([lines[0], *kept]))
        os.replace(temporary, file)


def _one_thread(_: int) -> None:
    torch.set_num_threads(1)
