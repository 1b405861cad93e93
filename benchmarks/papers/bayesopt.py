"""Bayesian optimisation with the models of the tables: how far from the least value the best one found is.

Run as ``python benchmarks/papers/bayesopt.py --recipe gp1d_rbf --steps 5000`` after ``gp.py`` with the same budget; it
trains what is missing. As in TNP-KR: 500 functions (5 times 100), here of one trained model; the candidates are the 150
locations of a draw, without noise; 10 of them are known, 50 more are asked for, at the largest expected improvement or
upper confidence bound.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable

import torch
from tables import COST, SECOND_HAND, TEST_SEED, arguments, cost, publish, run, table
from torch import Tensor, nn
from torch.distributions import Normal

from geonp.training.recipe import Recipe
from geonp.training.sources import draw

MODELS = ["CNP", "NP", "CANP", "ANP", "BNP", "BANP", "TNP-D", "TNP-KR-DKA", "TNP-KR-PERF", "TNP-KR-SA", "ConvCNP"]
FIRST = {
    "NP": (0.145, 0.131, 0.079),
    "CNP": (0.106, 0.331, 0.061),
    "BNP": (0.126, 0.293, 0.069),
    "ANP": (0.072, 0.123, 0.041),
    "CANP": (0.065, 0.154, 0.042),
    "BANP": (0.059, 0.106, 0.037),
    "ConvCNP": (0.011, 0.043, 0.003),
    "TNP-D": (0.059, 0.044, 0.023),
    "TNP-KR-PERF": (0.062, 0.052, 0.027),
}
"""Regret with expected improvement of the first version of the paper (table 4): Matern 3/2, periodic, RBF."""
SECOND = {"gp1d_rbf": {"TNP-KR-SA": 0.013, "ConvCNP": 0.007}}
"""The same of arXiv 2411.12502 version 2, second-hand and not checked."""

KERNELS = ("gp1d_matern32", "gp1d_periodic", "gp1d_rbf")
"""Recipes in the order of :data:`FIRST`."""

Acquisition = Callable[[Tensor, Tensor, Tensor, int], Tensor]


def expected_improvement(mean: Tensor, scale: Tensor, best: Tensor, n: int) -> Tensor:
    """Of candidates ``(tasks, n_candidates)`` over the least value so far ``(tasks, 1)``, for minimisation."""
    scale = scale + 1e-5
    z = (best - mean) / scale
    unit = Normal(0.0, 1.0)
    return (best - mean) * unit.cdf(z) + scale * unit.log_prob(z).exp()


def confidence_bound(mean: Tensor, scale: Tensor, best: Tensor, n: int) -> Tensor:
    """Lower confidence bound, negated, with a factor of ``2 log(n + 1)^2`` after n observations, the first included."""
    return -mean + 2.0 * math.log(n + 1) ** 2 * scale


@torch.no_grad()
def regret(
    network: nn.Module, x: Tensor, y: Tensor, acquire: Acquisition, *, first: int = 10, steps: int = 50
) -> Tensor:
    """Least value found minus the least there is, ``(tasks,)``; candidates may be asked for again.

    Parameters
    ----------
    x, y : Tensor
        Candidates ``(tasks, n, d_x)`` in random order and their values ``(tasks, n, 1)``; the `first` are known.
    """
    xc, yc = x[:, :first], y[:, :first]
    for n in range(first, first + steps):
        predicted = network(xc, yc, x)
        mean, scale = predicted.mean[..., 0], predicted.stddev[..., 0]
        best = yc[..., 0].amin(1, keepdim=True)
        chosen = acquire(mean, scale, best, n).argmax(1)[:, None, None]
        xc = torch.cat([xc, x.gather(1, chosen.expand(-1, -1, x.shape[-1]))], 1)
        yc = torch.cat([yc, y.gather(1, chosen)], 1)
    return (yc.amin(1) - y.amin(1))[:, 0]


def scores(network: nn.Module, recipe: Recipe, parts: int = 5, tasks: int = 100) -> dict[str, float]:
    """Mean regret and its standard error over all functions, by acquisition; `tasks` functions at a time."""
    # functions of one batch would share their lengthscale and locations
    alone = recipe.model_copy(update={"training": recipe.training.model_copy(update={"batch_size": 1})})
    out = {}
    for name, acquire in (("ei", expected_improvement), ("ucb", confidence_bound)):
        found: list[float] = []
        for part in range(parts):
            drawn = [draw(alone, TEST_SEED - 1, part * tasks + i) for i in range(tasks)]
            x, y = (torch.cat([batch[key] for batch in drawn]) for key in ("xt", "yt"))
            order = torch.rand(x.shape[:2], generator=torch.Generator().manual_seed(part)).argsort(1)
            x, y = (t.gather(1, order[..., None].expand_as(t)) for t in (x, y))
            found += regret(network, x, y, acquire).tolist()
        out[name] = statistics.fmean(found)
        out[f"{name}_error"] = statistics.stdev(found) / len(found) ** 0.5
    return out


def main() -> None:
    given = arguments(__doc__ or "", ["gp1d_rbf", "gp1d_periodic", "gp1d_matern32"], MODELS).parse_args()
    overrides = ["training.validation_batches=16", f"training.validate_every={max(1, given.steps // 20)}"]
    found = run(given, scores, overrides, name="regret.json", asked=())
    first = {label: regrets[KERNELS.index(given.recipe)] for label, regrets in FIRST.items()}
    second = SECOND.get(given.recipe, {})
    rows = [
        [
            label,
            f"{r['ei']:.4f} ± {r['ei_error']:.4f}",
            first.get(label, "-"),
            second.get(label, "-"),
            f"{r['ucb']:.4f} ± {r['ucb_error']:.4f}",
            *cost(r),
        ]
        for label, r in found.items()
    ]
    if rows:
        text = (
            f"Bayesian optimisation with models of recipe `{given.recipe}`: regret of 500 functions (expected "
            "improvement, upper confidence bound) after 10 known and 50 chosen places of 150. Each "
            "model was trained from one seed (0); errors are over functions."
        )
        head = table(["model", "regret, EI", "paper v1, table 4, EI", f"{SECOND_HAND}, EI", "regret, UCB", *COST], rows)
        publish(given, found, f"{given.recipe}-regret", text, head)


if __name__ == "__main__":
    main()
