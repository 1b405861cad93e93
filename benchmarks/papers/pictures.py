"""Predictions of the papers' models as pictures: TNP-KR's figures 5 to 11, TE-TNP's figures 4, 6 and 8.

Run as ``python benchmarks/papers/pictures.py --recipe gp1d_matern32 --steps 1000 --batch-size 8``, which trains what is
missing: of one-dimensional processes the mean and the 95 % interval of each model beside those of the exact process, of
images context, truth, and mean and standard deviation of each model.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from tables import TEST_SEED, arguments, run
from torch import Tensor, nn

from geonp.inference import checkpoint
from geonp.training.data.processes import GaussianProcess
from geonp.training.recipe import Recipe, load
from geonp.training.sources import draw

MODELS = ["CNP", "CANP", "TNP-D", "TNP-KR-SA"]
RECIPES = ["gp1d_matern32", "gp1d_periodic", "gp1d_rbf", "images_digits", "images_photographs", "images_translated"]
TASKS = 3
"""Rows of a picture."""
UNKNOWN = np.array([0.7, 0.8, 1.0])
"""Colour of pixels that are not context."""

Networks = dict[str, nn.Module]


def held_out(recipe: Recipe) -> Recipe:
    """The recipe with tasks that no model was trained on, one a batch."""
    data = recipe.data.held_out() if hasattr(recipe.data, "held_out") else recipe.data
    training = recipe.training.model_copy(update={"batch_size": 1})
    return recipe.model_copy(update={"data": data, "training": training})


@torch.no_grad()
def predicted(network: nn.Module, batch: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation ``(n_targets, d_y)`` of a batch of one task."""
    found = network(batch["xc"], batch["yc"], batch["xt"], batch["context_mask"])
    return found.mean[0], found.stddev[0]


def curves(figure: Figure, networks: Networks, recipe: Recipe) -> None:
    """Functions of one dimension: a row a task, a column a model."""
    assert isinstance(recipe.data, GaussianProcess)
    grid = figure.subplots(TASKS, len(networks), sharex=True, sharey="row", squeeze=False)
    for index, row in enumerate(grid):
        batch = draw(recipe, TEST_SEED, index)
        known = batch["context_mask"][0]
        order = batch["xt"][0, :, 0].argsort()
        x = batch["xt"][0, order, 0]
        mean, deviation = (moment[0, order, 0] for moment in recipe.data.exact(TEST_SEED, index, 1))
        for axes, (label, network) in zip(row, networks.items(), strict=True):
            centre, scale = (moment[order, 0] for moment in predicted(network, batch))
            axes.fill_between(x, centre - 1.96 * scale, centre + 1.96 * scale, color="C0", alpha=0.25, lw=0)
            axes.plot(x, centre, color="C0", label="model")
            for edge in (-1.96, 1.96):
                axes.plot(x, mean + edge * deviation, color="k", lw=0.6, ls=":")
            axes.plot(x, mean, color="k", lw=0.8, ls="--", label="exact process")
            axes.plot(x, batch["yt"][0, order, 0], color="C1", lw=0.8, label="truth")
            axes.plot(batch["xc"][0, known, 0], batch["yc"][0, known, 0], "k.", ms=5, label="context")
            if index == 0:
                axes.set_title(label, fontsize=10)
    grid[0, 0].legend(fontsize=7)


def images(figure: Figure, networks: Networks, recipe: Recipe) -> None:
    """Images: a row a task; context, truth, then mean and standard deviation of each model."""
    grid = figure.subplots(TASKS, 2 + 2 * len(networks), squeeze=False)
    for index, row in enumerate(grid):
        batch = draw(recipe, TEST_SEED, index)
        known, x, y = batch["context_mask"][0], batch["xt"][0], batch["yt"][0]
        low, high = float(y.min()), float(y.max())
        shown = [("context", batch["xc"][0, known], batch["yc"][0, known] - low), ("truth", x, y - low)]
        for label, network in networks.items():
            mean, deviation = predicted(network, batch)
            shown += [(label, x, mean - low), ("2 deviations", x, 2 * deviation)]
        axis = [np.unique(x[:, k]) for k in (0, 1)]
        for axes, (title, at, values) in zip(row, shown, strict=True):
            pixels = np.tile(UNKNOWN, (len(axis[0]), len(axis[1]), 1))
            pixels[tuple(np.searchsorted(axis[k], at[:, k]) for k in (0, 1))] = (values / (high - low)).clip(0, 1)
            axes.imshow(pixels, origin="lower")
            axes.set_title(title, fontsize=9)
            axes.set_axis_off()


def main() -> None:
    given = arguments(__doc__ or "", RECIPES, MODELS).parse_args()
    every = max(1, given.steps // 20)
    overrides = [f"training.validate_every={every}", "training.validation_batches=16", "training.save_every_s=60"]
    found = run(given, lambda network, recipe: {}, overrides, name="pictured.json", asked=())
    networks = {
        label: checkpoint.load_model(f"{row['folder']}/{given.recipe}.safetensors")[0] for label, row in found.items()
    }
    if not networks:
        return
    recipe = held_out(load(given.recipe, given.set))
    one_dimensional = given.recipe.startswith("gp1d")
    columns = 3.0 * len(networks) if one_dimensional else 1.3 * (2 + 2 * len(networks))
    figure = Figure(figsize=(columns, (2.2 if one_dimensional else 1.5) * TASKS), layout="constrained")
    (curves if one_dimensional else images)(figure, networks, recipe)
    folder = given.pages or given.out
    folder.mkdir(parents=True, exist_ok=True)
    FigureCanvasAgg(figure).print_figure(str(folder / f"{given.recipe}-predictions.png"), dpi=80)
    print(folder / f"{given.recipe}-predictions.png")


if __name__ == "__main__":
    main()
