"""Covariates of synthetic tasks: their effects and gaps are what the exact conditional distribution says."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from geonp.errors import RecipeError
from geonp.inference.context import Neighbourhood
from geonp.training import recipe
from geonp.training.data import covariates
from geonp.training.data.covariates import CovariatePrior, accompany
from geonp.training.data.fields import RasterPrior, sample_field
from geonp.training.data.tasks import Task, collate, sample_task
from geonp.training.objective import beside
from geonp.training.sources import draw

NEIGHBOURHOOD = Neighbourhood(halos_px=(24, 48), n_context=64)
GAUSSIAN = RasterPrior(p_gaussian=1.0, p_wide=0.0, length=(2.0, 20.0))


def tasks(prior: CovariatePrior, n: int, fields: RasterPrior = GAUSSIAN) -> list[Task]:
    rng = np.random.default_rng(5)
    return [sample_task(rng, fields, NEIGHBOURHOOD, 24, prior) for _ in range(n)]


@pytest.mark.parametrize(
    "prior",
    [
        CovariatePrior(share=1, p_stack=0, p_gaps=0, p_irrelevant=0, p_errors=0),
        CovariatePrior(share=1, p_stack=0, p_gaps=0, p_irrelevant=1, p_errors=1),
    ],
    ids=["effects", "known errors"],
)
def test_the_exact_distribution_is_that_of_the_values(monkeypatch: pytest.MonkeyPatch, prior: CovariatePrior) -> None:
    """Squares of standardised misses of the values at the targets have a mean of one."""
    drawn = []

    def kept(*arguments: object, wide: bool) -> covariates.Accompanied:
        drawn.append((accompany(*arguments, wide=wide), arguments[4], arguments[5]))  # type: ignore[arg-type]
        return drawn[-1][0]

    monkeypatch.setattr("geonp.training.data.tasks.accompany", kept)
    made = tasks(prior, 60)
    squares = []
    for task, (found, context, targets) in zip(made, drawn, strict=True):
        assert task.exact
        values = found.values[context]  # type: ignore[index]
        truth = (found.values[targets] - values.mean()) / values.std()  # type: ignore[index]
        squares.append(np.mean((truth - task.mean) ** 2 / task.variance))
    assert 0.85 < np.mean(squares) < 1.15


def test_gaps_of_covariates_are_filled_with_their_errors() -> None:
    rng, squares = np.random.default_rng(2), []
    size = 72
    missing = np.zeros((size, size), bool)
    missing[20:50, 20:50] = True
    cells = rng.permutation(size * size)[:400]
    for _ in range(40):
        field = sample_field(rng, replace(GAUSSIAN, p_trend=0.0), size, size)
        assert field.covariance is not None
        tile = covariates.CovariateTile(size, cells[:200], cells[200:], missing, NEIGHBOURHOOD)
        values, errors = covariates.with_gaps(rng, tile, field.values, field.covariance, field.noise)
        truth, lost = field.values.ravel()[cells], (errors > 0) & np.isfinite(values)
        np.testing.assert_array_equal(
            values[(errors == 0) & np.isfinite(values)], truth[(errors == 0) & np.isfinite(values)]
        )
        if lost.any():
            squares.append(np.mean(((values - truth)[lost] / errors[lost]) ** 2))
    assert len(squares) > 20
    assert 0.7 < np.mean(squares) < 1.3


def test_slices_of_a_stack_follow_the_field() -> None:
    """Most of them are correlated with the values of the context."""
    made = tasks(CovariatePrior(share=1, p_stack=1, p_gaps=0, strength=(3.0, 8.0), p_planes=0, p_errors=0), 20)
    best = []
    for task in made:
        assert not task.exact
        assert task.beside is not None
        pairs = [abs(np.corrcoef(task.yc, column)[0, 1]) for column in task.beside.context.T]
        best.append(max(pairs))
    assert np.median(best) > 0.7


def test_tasks_without_covariates_are_as_before() -> None:
    one = sample_task(np.random.default_rng(1), GAUSSIAN, NEIGHBOURHOOD, 9)
    other = sample_task(np.random.default_rng(1), GAUSSIAN, NEIGHBOURHOOD, 9, None)
    assert one.beside is None
    np.testing.assert_array_equal(one.mean, other.mean)
    assert beside(collate([one], 64, 24)) == {}


def test_collate_pads_by_constant_covariates() -> None:
    plain = sample_task(np.random.default_rng(1), GAUSSIAN, NEIGHBOURHOOD, 24)
    rich = tasks(CovariatePrior(share=1, p_errors=1), 3)
    batch = collate([plain, *rich], 64, 24)
    most = max(task.beside.context.shape[1] for task in rich if task.beside is not None)
    assert batch["covariates_targets"].shape == (4, 24, most)
    assert not batch["covariates_context"][0].any()
    for i, task in enumerate(rich, 1):
        assert task.beside is not None
        n_c, p = task.beside.context.shape
        np.testing.assert_array_equal(batch["covariates_context"][i, :n_c, :p], task.beside.context)
        np.testing.assert_array_equal(batch["known_error"][i, :n_c], task.beside.known_error)
        assert not batch["covariates_context"][i, n_c:].any()


def test_the_recipe_draws_the_same_batch_again() -> None:
    made = recipe.load("tnpkr_sa_second", ["training.batch_size=2"])
    one, other = (draw(made, 3, 4) for _ in range(2))
    assert "known_error" in one
    for key, value in one.items():
        np.testing.assert_array_equal(value.numpy(), other[key].numpy())


def test_only_the_head_that_reads_covariates_is_trained_with_them() -> None:
    with pytest.raises(RecipeError, match=r'covariates\.share: only for model\.config\.head "drift"'):
        recipe.load("tnpkr_sa_second", ['model.config.head="kriging"'])


def test_wide_gaps_have_planes() -> None:
    """The row and the column, up to order; the field is as exact as it is alone."""
    wide = replace(GAUSSIAN, p_wide=1.0)
    for task in tasks(CovariatePrior(share=1, p_wide_planes=1), 5, wide):
        assert task.exact
        assert task.beside is not None
        both = np.concatenate([task.beside.context, task.beside.targets]), np.concatenate([task.xc, task.xt])
        centred = [array - array.mean(0) for array in both]
        # scattered locations are a rotated and scaled lattice
        fitted = np.linalg.lstsq(*centred, rcond=None)[0]
        np.testing.assert_allclose(centred[0] @ fitted, centred[1], atol=1e-3)
