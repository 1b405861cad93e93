"""CRPS on draws of Gaussian processes, over that of the exact process and of a process fitted to the same context.

Run as ``python benchmarks/exact.py [--model tnpkr-sa] [--tasks 8]``. The processes lie inside the prior of the recipes,
with unit variance and zero mean. Lattice positions are those of a tile with gaps, with the context that a fill selects.
Scattered positions are uniform in the plane, 1 to 3 units apart on average; their context are the 256 nearest to the
centre. Targets are new measurements, nugget included. The CRPS is its expectation under the exact process, in closed
form, and so does not depend on the draw of a target.

The exact process has the true covariance and mean. The process fitted by maximum likelihood has an unknown constant
mean and an isotropic Matern covariance of smoothness 1/2, 3/2 or 5/2 with a nugget: ordinary kriging. The best-known
fifth are the targets of all tasks with the smallest exact conditional standard deviation.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import linalg
from scipy.optimize import minimize
from scipy.spatial.distance import cdist

from geonp.inference.context import Neighbourhood, halo_for, select_context, standardise
from geonp.inference.predictor import Points, Predictor, resolve
from geonp.inference.thinning import start_of
from geonp.raster import gaps
from geonp.training.objective import expected_crps

Array = npt.NDArray[np.float64]
Correlation = Callable[[Array], Array]

MATERN: dict[float, Correlation] = {
    0.5: lambda d: np.exp(-d),
    1.5: lambda d: (1 + math.sqrt(3) * d) * np.exp(-math.sqrt(3) * d),
    2.5: lambda d: (1 + math.sqrt(5) * d + 5 * d**2 / 3) * np.exp(-math.sqrt(5) * d),
    3.5: lambda d: (1 + math.sqrt(7) * d + 14 * d**2 / 5 + math.sqrt(7**3) * d**3 / 15) * np.exp(-math.sqrt(7) * d),
}
"""Correlation at a distance in lengths, by smoothness; Rasmussen & Williams (2006), equation 4.16."""

KERNELS = ("Matern 1/2", "Matern 3/2", "Matern 5/2", "Matern 7/2", "Gaussian", "two scales", "anisotropic")
POSITIONS = ("random", "clouds", "stripes", "scattered")
LENGTHS, GAUSSIAN_LENGTHS, NUGGETS = (3.0, 40.0), (1.5, 4.0), (0.05, 0.5)
LEAST_NUGGET = 1e-6
"""Nugget of processes without one, as in training: without it the smoothest covariances are singular."""
TARGETS = 64
FITTED = (0.5, 1.5, 2.5)


@dataclass(frozen=True)
class Process:
    """A sum of (weight, correlation, linear map of offsets), and the variance of a nugget."""

    parts: tuple[tuple[float, Correlation, Array], ...]
    nugget: float

    def covariance(self, a: Array, b: Array) -> Array:
        """Covariance of the process, without the nugget, between points ``(n, 2)`` and ``(m, 2)``."""
        return np.asarray(
            sum(weight * f(cdist(a @ transform.T, b @ transform.T)) for weight, f, transform in self.parts)
        )


@dataclass(frozen=True)
class Task:
    """Context and targets, with coordinates ``(n, 2)`` from the centre, and the exact moments of the targets."""

    kernel: str
    positions: str
    nugget: bool
    xc: Array
    yc: Array
    xt: Array
    mean: Array
    error: Array


def log_uniform(rng: np.random.Generator, bounds: tuple[float, float]) -> float:
    """A log-uniform random number between two bounds."""
    return float(np.exp(rng.uniform(*np.log(bounds))))


def draw_process(rng: np.random.Generator, kernel: str, nugget: bool) -> Process:
    """A process of one of :data:`KERNELS` with a random length."""
    length = log_uniform(rng, GAUSSIAN_LENGTHS if kernel == "Gaussian" else LENGTHS)
    plain = np.eye(2) / length
    if kernel == "Gaussian":
        parts: tuple[tuple[float, Correlation, Array], ...] = ((1.0, lambda d: np.exp(-(d**2) / 2), plain),)
    elif kernel == "two scales":
        share = rng.uniform(0.2, 0.8)
        parts = ((share, MATERN[2.5], plain), (1 - share, MATERN[0.5], plain * rng.uniform(3, 6)))
    elif kernel == "anisotropic":
        angle = rng.uniform(0, np.pi)
        turn = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
        parts = ((1.0, MATERN[1.5], np.diag([2**-0.5, 2**0.5]) @ turn @ plain),)
    else:
        parts = ((1.0, MATERN[int(kernel[-3]) / 2], plain),)
    return Process(parts, log_uniform(rng, NUGGETS) ** 2 if nugget else LEAST_NUGGET)


def draw_lattice(rng: np.random.Generator, kind: str, neighbourhood: Neighbourhood) -> tuple[Array, Array]:
    """Context and targets of a tile with gaps of one kind, as a fill selects them."""
    tile, reach, lap = neighbourhood.tile_px, neighbourhood.reach_px, neighbourhood.overlap_px
    size = tile + 2 * reach
    own = np.zeros((size, size), bool)
    while not own.any():
        fraction = {"random": rng.uniform(0.3, 0.98), "clouds": rng.uniform(0.2, 0.7), "stripes": 0.3}[kind]
        missing = gaps.simulate(kind, (size, size), fraction, rng)
        own[reach : reach + tile, reach : reach + tile] = missing[reach : reach + tile, reach : reach + tile]
    cut = reach - halo_for(~missing, neighbourhood)
    window = np.zeros((size, size), bool)
    window[cut : size - cut, cut : size - cut] = True
    context = select_context(~missing & window, own, neighbourhood, start_of(int(rng.integers(10_000))))
    patch = slice(reach - lap, reach + tile + lap)
    targets = np.argwhere(missing[patch, patch]) + reach - lap
    targets = rng.permutation(targets)[:TARGETS]
    middle = (size - 1) / 2
    return np.stack(np.divmod(context, size), -1) - middle, targets - middle


def draw_scattered(rng: np.random.Generator, neighbourhood: Neighbourhood) -> tuple[Array, Array]:
    """Context and targets at random positions; the targets in a square with about 16 context points."""
    spacing, n = rng.uniform(1, 3), neighbourhood.n_context
    side = 2 * math.sqrt(n)
    points = rng.uniform(-side / 2, side / 2, (4 * n, 2))
    near = np.argsort((points**2).sum(-1))[:n]
    return points[near] * spacing, rng.uniform(-2, 2, (TARGETS, 2)) * spacing


def draw_task(rng: np.random.Generator, kernel: str, positions: str, nugget: bool, near: Neighbourhood) -> Task:
    """A process, its measurements at the context, and its exact conditional moments at the targets."""
    xc, xt = draw_scattered(rng, near) if positions == "scattered" else draw_lattice(rng, positions, near)
    process = draw_process(rng, kernel, nugget)
    factor = linalg.cholesky(process.covariance(xc, xc) + process.nugget * np.eye(len(xc)), lower=True)
    white = rng.standard_normal(len(xc))
    solved = linalg.solve_triangular(factor, process.covariance(xc, xt), lower=True)
    error = np.sqrt(np.maximum(1 - (solved**2).sum(0), 0) + process.nugget)
    return Task(kernel, positions, nugget, xc, factor @ white, xt, solved.T @ white, error)


def predict_network(predictor: Predictor, tasks: list[Task]) -> Iterator[Array]:
    """Mean, standard error and tail of each task's targets, standardised, padded and batched as in filling."""
    size, n_c = predictor.batch_size, predictor.neighbourhood.n_context
    for batch in (tasks[i : i + size] for i in range(0, len(tasks), size)):
        xc, yc = np.zeros((len(batch), n_c, 2), np.float32), np.zeros((len(batch), n_c, 1), np.float32)
        xt, mask = np.zeros((len(batch), TARGETS, 2), np.float32), np.zeros((len(batch), n_c), bool)
        standard = [standardise(task.yc) for task in batch]
        for k, task in enumerate(batch):
            n = len(task.yc)
            xc[k, :n], yc[k, :n, 0], mask[k, :n] = task.xc, standard[k].z, True
            xt[k, : len(task.xt)] = task.xt
        loc, scale = (np.array([getattr(s, name) for s in standard]) for name in ("loc", "scale"))
        moments = predictor(Points(xc=xc, yc=yc, xt=xt, mask=mask, loc=loc, scale=scale))
        for k, task in enumerate(batch):
            yield moments[:, k, : len(task.xt)]


def predict_fitted(task: Task) -> tuple[Array, Array]:
    """Mean and standard error by ordinary kriging with the maximum-likelihood parameters of the context.

    The mean and the variance are profiled out; the search for length and nugget starts from the best of a coarse grid.
    """
    n = len(task.yc)
    distance = cdist(task.xc, task.xc)
    right = np.stack([task.yc, np.ones(n)], -1)

    def profile(nu: float, parameters: Array) -> tuple[float, Array, Array, float, float]:
        """Deviance, Cholesky factor, whitened (y - mean, 1), mean and variance at a log length and a log nugget."""
        length, nugget = np.exp(np.clip(parameters, (-1.0, -16.0), (7.0, 3.0)))
        factor = linalg.cholesky(
            MATERN[nu](distance / length) + (nugget + 1e-10) * np.eye(n), lower=True, check_finite=False
        )
        white = linalg.solve_triangular(factor, right, lower=True, check_finite=False)
        mean = float(white[:, 0] @ white[:, 1] / (white[:, 1] @ white[:, 1]))
        white[:, 0] -= mean * white[:, 1]
        variance = max(float((white[:, 0] ** 2).mean()), 1e-300)
        return float(2 * np.log(np.diag(factor)).sum() + n * math.log(variance)), factor, white, mean, variance

    grid = [np.array([a, b]) for a in np.log([2, 6, 20]) for b in np.log([1e-6, 1e-3, 0.1])]
    fits = []
    for nu in FITTED:
        start = min(grid, key=lambda p, nu=nu: profile(nu, p)[0])
        end = minimize(
            lambda p, nu=nu: profile(nu, p)[0], start, method="Nelder-Mead", options={"xatol": 0.02, "fatol": 0.02}
        )
        fits.append((float(end.fun), nu, end.x))
    _, nu, parameters = min(fits, key=lambda item: item[0])
    _, factor, white, mean, variance = profile(nu, parameters)
    length, nugget = np.exp(np.clip(parameters, (-1.0, -16.0), (7.0, 3.0)))
    cross = MATERN[nu](cdist(task.xc, task.xt) / length)
    solved = linalg.solve_triangular(factor, cross, lower=True)
    mean_variance = (1 - solved.T @ white[:, 1]) ** 2 / (white[:, 1] @ white[:, 1])
    share = np.maximum(1 - (solved**2).sum(0), 0) + nugget + mean_variance
    return mean + solved.T @ white[:, 0], np.sqrt(variance * share)


def crps_of(task: Task, mean: Array, error: Array, tail: Array | float = 0.0) -> Array:
    """CRPS of a prediction of each target, expected under the exact process."""
    return expected_crps(mean - task.mean, error, np.broadcast_to(tail, error.shape), task.error)


def row(name: str, of: npt.NDArray[np.bool_], crps: Array, fifth: npt.NDArray[np.bool_], task: Array) -> str:
    """Row of the table for the targets `of`; `crps` are those of the network, the fitted and the exact process."""

    def ratios(top: int, bottom: int) -> tuple[float, float]:
        sums = [np.bincount(task[of], crps[i][of])[np.unique(task[of])] for i in (top, bottom)]
        return float(sums[0].sum() / sums[1].sum()), float(np.exp(np.log(sums[0] / sums[1]).mean()))

    known = of & fifth
    best = [f"{crps[i][known].sum() / crps[2][known].sum():.3f}" if known.sum() >= TARGETS else "" for i in (0, 1)]
    ours, ours_mean = ratios(0, 2)
    fitted, fitted_mean = ratios(1, 2)
    against, against_mean = ratios(0, 1)
    numbers = [f"{v:.3f}" for v in (ours, ours_mean, fitted, fitted_mean, against, against_mean)]
    cells = [name, str(len(np.unique(task[of]))), *numbers[:2], best[0], *numbers[2:4], best[1], *numbers[4:]]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Draw the tasks, predict them in three ways, and print the ratios by kernel, positions and nugget."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tnpkr-sa", help="name or path of a checkpoint")
    parser.add_argument("--tasks", type=int, default=8, help="number of tasks for each kernel and kind of positions")
    arguments = parser.parse_args()
    predictor, _ = resolve(arguments.model, None, None)
    tasks = [
        draw_task(np.random.default_rng([i, k, p]), KERNELS[k], POSITIONS[p], bool(i % 2), predictor.neighbourhood)
        for k in range(len(KERNELS))
        for p in range(len(POSITIONS))
        for i in range(arguments.tasks)
    ]
    network = [crps_of(t, *moments) for t, moments in zip(tasks, predict_network(predictor, tasks), strict=True)]
    fitted = [crps_of(t, *predict_fitted(t)) for t in tasks]
    error = np.concatenate([t.error for t in tasks])
    crps = np.stack([np.concatenate(network), np.concatenate(fitted), error / math.sqrt(math.pi)])
    index = np.concatenate([np.full(len(t.error), i) for i, t in enumerate(tasks)])
    limit = np.quantile(error, 0.2)
    fifth = error <= limit
    print(
        "| processes | tasks | geonp / exact | by task | best-known fifth | fitted / exact | by task "
        "| best-known fifth | geonp / fitted | by task |"
    )
    print("|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|")
    traits = [(t.kernel, t.positions, "with a nugget" if t.nugget else "without a nugget") for t in tasks]
    for name in (*KERNELS, *POSITIONS, "without a nugget", "with a nugget"):
        print(row(name, np.array([name in of for of in traits])[index], crps, fifth, index))
    print(row("**all**", np.ones_like(fifth), crps, fifth, index))
    print(
        f"\nRatios of sums over the targets; *by task*: geometric means of the tasks' ratios. Best known are the "
        f"targets whose exact standard error is at most {limit:.3g} of the process's standard deviation."
    )


if __name__ == "__main__":
    main()
