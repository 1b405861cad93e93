"""Known errors of observations, on draws of Gaussian processes: CRPS over that of the exact process.

Run as ``python benchmarks/errors.py [--model tnpkr-sa] [--tasks 8]``. Processes and positions are those of
``benchmarks/exact.py``. Each observation has an error of its own, whose standard errors are log-normal around 0.05 to 1
standard deviations of the field, as in training. The exact process knows the covariance and the standard errors;
targets are new measurements without errors, nugget included. *Ignored*: the model without the option.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass, replace

import exact
import numpy as np
from exact import KERNELS, POSITIONS, TARGETS, Array, Task
from scipy import linalg

from geonp.inference.context import Neighbourhood, standardise
from geonp.inference.predictor import Points, Predictor, resolve

SIZES, SPREAD = (0.05, 1.0), 0.7


@dataclass(frozen=True)
class Noisy:
    """A task, and the known standard errors of its context."""

    task: Task
    sigma: Array


def draw(rng: np.random.Generator, kernel: str, positions: str, nugget: bool, near: Neighbourhood) -> Noisy:
    """A process, its measurements with errors, and the exact conditional moments of the targets."""
    xc, xt = exact.draw_scattered(rng, near) if positions == "scattered" else exact.draw_lattice(rng, positions, near)
    process = exact.draw_process(rng, kernel, nugget)
    sigma = exact.log_uniform(rng, SIZES) * np.exp(SPREAD * rng.standard_normal(len(xc)))
    noise = np.diag(process.nugget + sigma**2)
    factor = linalg.cholesky(process.covariance(xc, xc) + noise, lower=True)
    white = rng.standard_normal(len(xc))
    solved = linalg.solve_triangular(factor, process.covariance(xc, xt), lower=True)
    error = np.sqrt(np.maximum(1 - (solved**2).sum(0), 0) + process.nugget)
    return Noisy(Task(kernel, positions, nugget, xc, factor @ white, xt, solved.T @ white, error), sigma)


def predicted(predictor: Predictor, noisy: Noisy, *, known: bool) -> Array:
    """Mean, standard error and tail of the targets, with the standard errors of the context or without."""
    task, n, n_c = noisy.task, len(noisy.sigma), predictor.neighbourhood.n_context
    standard = standardise(task.yc)
    xc, yc, xt = (np.zeros((1, *shape), np.float32) for shape in ((n_c, 2), (n_c, 1), (TARGETS, 2)))
    mask, errors = np.zeros((1, n_c), bool), np.zeros((1, n_c), np.float32)
    xc[0, :n], yc[0, :n, 0], mask[0, :n], xt[0, : len(task.xt)] = task.xc, standard.z, True, task.xt
    errors[0, :n] = noisy.sigma / standard.scale
    points = Points(xc=xc, yc=yc, xt=xt, mask=mask, loc=np.array([standard.loc]), scale=np.array([standard.scale]))
    return predictor(replace(points, errors=errors) if known else points)[:, 0, : len(task.xt)]


def main() -> None:
    """Print the ratios by size of the errors, positions and kernel."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tnpkr-sa", help="name or path of a checkpoint")
    parser.add_argument("--tasks", type=int, default=8, help="number of tasks for each kernel and kind of positions")
    arguments = parser.parse_args()
    predictor, _ = resolve(arguments.model, None, None)
    places = [(i, k, p) for k in range(len(KERNELS)) for p in range(len(POSITIONS)) for i in range(arguments.tasks)]
    drawn = [
        draw(np.random.default_rng([i, k, p, 1]), KERNELS[k], POSITIONS[p], bool(i % 2), predictor.neighbourhood)
        for i, k, p in places
    ]
    totals = [np.zeros(len(drawn)) for _ in range(3)]
    for i, noisy in enumerate(drawn):
        for total, known in zip(totals, (True, False), strict=False):
            total[i] = exact.crps_of(noisy.task, *predicted(predictor, noisy, known=known)).sum()
        totals[2][i] = noisy.task.error.sum() / math.sqrt(math.pi)
    ours, ignored, best = totals
    mean = np.array([noisy.sigma.mean() for noisy in drawn])
    groups = {
        "errors below 0.2": mean < 0.2,
        "0.2 to 0.5": (mean >= 0.2) & (mean < 0.5),
        "above 0.5": mean >= 0.5,
        **{name: np.array([noisy.task.positions == name for noisy in drawn]) for name in POSITIONS},
        **{name: np.array([noisy.task.kernel == name for noisy in drawn]) for name in KERNELS},
        "**all**": mean > 0,
    }
    print("| tasks | number | geonp / exact | by task | ignored / exact | by task |")
    print("|---|---:|---:|---:|---:|---:|")
    for name, of in groups.items():
        cells = [
            f"{v[of].sum() / best[of].sum():.3f} | {np.exp(np.log(v / best)[of].mean()):.3f}" for v in (ours, ignored)
        ]
        print(f"| {name} | {of.sum()} | {' | '.join(cells)} |")
    print("\nRatios of sums over the targets; *by task*: geometric means of the tasks' ratios.")


if __name__ == "__main__":
    main()
