"""Averages of predictions with and without covariates."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import geonp
from geonp.inference.averaging import AVERAGING, averaged


def test_weights_maximise_the_density_of_the_context() -> None:
    rng = np.random.default_rng(0)
    of_alone, of_beside = rng.normal(0, 1, (2, 3, 40))
    of_alone[1] -= 9
    of_alone[2, 7:] = of_beside[2, 7:] = np.nan
    alone, beside = rng.normal(0, 1, (2, 3, 3, 5)) ** 2
    found = averaged(alone, beside, of_alone, of_beside)
    weight = (found[0] - alone[0]) / (beside[0] - alone[0])
    np.testing.assert_allclose(weight, weight[:, :1] * np.ones(5))
    np.testing.assert_allclose(found[2], alone[2] + weight * (beside[2] - alone[2]))
    square = (1 - weight) * (alone[1] ** 2 + alone[0] ** 2) + weight * (beside[1] ** 2 + beside[0] ** 2)
    np.testing.assert_allclose(found[1], np.sqrt(square - found[0] ** 2))
    tried = np.linspace(0.001, 0.999, 999)[:, None, None]
    density = np.log((1 - tried) * np.exp(of_alone) + tried * np.exp(of_beside))
    total = np.nansum(density, 2) + AVERAGING.prior * (np.log(tried) + np.log(1 - tried))[..., 0]
    np.testing.assert_allclose(weight[:, 0], tried[:, 0, 0][total.argmax(0)], atol=0.01)


@pytest.mark.parametrize(("effect", "low", "high"), [(0.0, 0.9, 1.1), (2.0, 0.1, 0.4)])
def test_covariates_of_few_measurements_help_or_do_little_harm(effect: float, low: float, high: float) -> None:
    errors = []
    for seed in range(5):
        rng = np.random.default_rng(seed)
        table = pd.DataFrame(rng.standard_normal((140, 6))).add_prefix("c")
        table["x"], table["y"] = rng.uniform(0, 10, (2, 140))
        table["v"] = np.sin(table["x"]) + effect * table["c0"] + 0.3 * rng.standard_normal(140)
        hidden = table[40:]
        for names in (None, [f"c{k}" for k in range(6)]):
            found = geonp.interpolate(table[:40], hidden.drop(columns="v"), values="v", covariates=names)
            errors.append(np.mean((found["v"].values - hidden["v"]) ** 2))
    alone, beside = np.sqrt(np.reshape(errors, (5, 2)).mean(0))
    # with covariates alone, 1.16 times the error for those that do not matter
    assert low < beside / alone < high
