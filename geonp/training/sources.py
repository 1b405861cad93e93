"""Batches of every kind of data, as functions of a seed and an index."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import torch

from geonp.errors import RecipeError
from geonp.inference.context import Neighbourhood
from geonp.nn.models import build
from geonp.training.batch import Batch, Split
from geonp.training.data.fields import Raster
from geonp.training.data.images import Digits, Photographs, TranslatedDigits
from geonp.training.data.reanalysis import Reanalysis
from geonp.training.data.small_gaps import SmallGaps
from geonp.training.data.tasks import collate, sample_task
from geonp.training.recipe import Recipe

VALIDATION_SEED = 2**31 - 1
"""Seed of held-out batches; recipes have smaller seeds."""


def check(recipe: Recipe) -> None:
    """Check that the model of a recipe can be built and that its data exist.

    Raises RecipeError if not; it names the key that is wrong. Raises MissingExtraError if a package of an extra is
    missing.
    """
    _check_model(recipe)
    if isinstance(recipe.data, Reanalysis | Digits | TranslatedDigits | Photographs):
        recipe.data.check()


def _check_model(recipe: Recipe) -> None:
    """Build the model and predict three targets, which fails if its options do not fit together."""
    config = recipe.model.config
    d_x, d_y = config.get("d_x", 2), config.get("d_y", 1)
    # the random state of the caller is kept; layers without weights warn
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        try:
            network = build(recipe.model.architecture, config)
            if any(weights.numel() == 0 for weights in network.parameters()):
                raise ValueError("some of its layers have no weights")
            network(torch.rand(1, 4, d_x), torch.rand(1, 4, d_y), torch.rand(1, 3, d_x))
        except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
            zeros = {key: value for key, value in config.items() if value == 0 and value is not False}
            options = ", ".join(f"model.config.{key}={value}" for key, value in (zeros or config).items())
            raise RecipeError(
                f"recipe {recipe.name}: {recipe.model.architecture} cannot be built with {options or 'its defaults'}: "
                f"{error}; expected options that fit together"
            ) from error


def neighbourhood_of(recipe: Recipe) -> Neighbourhood:
    """Neighbourhood with which the checkpoint of a recipe reads rasters."""
    if isinstance(recipe.data, Reanalysis):
        return recipe.data.on_grid(recipe.neighbourhood)
    return recipe.neighbourhood


def fingerprint(recipe: Recipe) -> str:
    """Hash of the data that a recipe reads from files; empty for generated data."""
    return recipe.data.fingerprint() if isinstance(recipe.data, Reanalysis) else ""


def draw(recipe: Recipe, seed: int, index: int) -> Batch:
    """Batch number `index` of a recipe, a function of the arguments alone.

    Returns
    -------
    dict of Tensor
        ``xc (batch, n_c, d_x)``, ``yc (batch, n_c, d_y)``, ``context_mask (batch, n_c)``, ``xt (batch, n_t, d_x)`` and
        targets: sampled values ``yt``, numbers ``(batch, n_t, d_y)`` or classes ``(batch, n_t)``; for rasters, ``mean``
        and ``variance`` of new measurements with ``target_mask (batch, n_t)``, and ``exact (batch,)``; for small gaps
        see :meth:`geonp.training.data.small_gaps.SmallGaps.draw`.
    """
    options = recipe.training
    data = recipe.data
    if seed == VALIDATION_SEED and isinstance(data, Split):
        data = data.held_out()
    if isinstance(data, SmallGaps):
        drawn = data.draw(np.random.default_rng([seed, index]), recipe.prior, recipe.neighbourhood, options.batch_size)
        return {key: torch.from_numpy(value) for key, value in drawn.items()}
    if not isinstance(data, Raster):
        return data.batch(seed, index, options.batch_size)
    rng = np.random.default_rng([seed, index])
    covariates = None
    if recipe.covariates.share:
        # all tasks of a batch are padded to as many covariates as one of them has: most batches have few
        most = (recipe.covariates.most, -(-recipe.covariates.most // 2), -(-recipe.covariates.most // 4))[index % 3]
        covariates = replace(recipe.covariates, most=most)
    tasks = [
        sample_task(rng, recipe.prior, recipe.neighbourhood, options.n_targets, covariates)
        for _ in range(options.batch_size)
    ]
    arrays = collate(tasks, recipe.neighbourhood.n_context, options.n_targets)
    return {key: torch.from_numpy(value) for key, value in arrays.items()}
