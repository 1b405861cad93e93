"""Batches of every kind of recipe, as functions of a seed and a number."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from geonp.points import Neighbourhood
from geonp.training.images import Digits
from geonp.training.reanalysis import Reanalysis
from geonp.training.recipe import Raster, Recipe
from geonp.training.tasks import collate, sample_task

__all__ = ["VALIDATION_SEED", "check", "draw", "neighbourhood_of"]

Batch = dict[str, Tensor]

VALIDATION_SEED = 2**31 - 1
"""Seed of the held-out batches; recipes have smaller ones."""


def check(recipe: Recipe) -> None:
    """See that the data of a recipe are there, before anything starts.

    Raises
    ------
    RecipeError
        Naming the key that is wrong.
    MissingExtraError
        Where a package is missing that an extra brings.
    """
    if isinstance(recipe.data, Reanalysis | Digits):
        recipe.data.check()


def neighbourhood_of(recipe: Recipe) -> Neighbourhood:
    """How the checkpoint of a recipe reads a raster."""
    if isinstance(recipe.data, Reanalysis):
        return recipe.data.seen_through(recipe.neighbourhood)
    return recipe.neighbourhood


def draw(recipe: Recipe, seed: int, index: int) -> Batch:
    """Batch number `index` of a recipe: the same for the same seed and number, whoever asks.

    Returns
    -------
    dict of Tensor
        ``xc (batch, n_c, d_x)``, ``yc (batch, n_c, d_y)``, ``context_mask (batch, n_c)``, ``xt (batch, n_t, d_x)``, and
        the targets: sampled values ``yt``, ``(batch, n_t, d_y)`` numbers or ``(batch, n_t)`` classes; or, of rasters,
        the ``mean`` and ``variance`` of new measurements with ``target_mask`` and ``exact``.
    """
    options = recipe.training
    data = recipe.data
    if seed == VALIDATION_SEED and isinstance(data, Reanalysis | Digits):
        data = data.held_out()
    if not isinstance(data, Raster):
        return data.batch(seed, index, options.batch_size)
    rng = np.random.default_rng([seed, index])
    tasks = [sample_task(rng, recipe.prior, recipe.neighbourhood, options.n_targets) for _ in range(options.batch_size)]
    arrays = collate(tasks, recipe.neighbourhood.n_context, options.n_targets)
    return {key: torch.from_numpy(value) for key, value in arrays.items()}
