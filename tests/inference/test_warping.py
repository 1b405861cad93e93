"""The map of bounded values, its choice from data, and censored observations."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from geonp.inference import student
from geonp.inference.censoring import uncensored
from geonp.inference.student import Distribution
from geonp.inference.warping import Warping
from geonp.inference.warping_fit import Sample, fitted

Array = npt.NDArray[np.float64]
MAPS = (
    Warping(lower=0.0, lower_power=0.4, scale=2.0, reach=5.0, lower_pile=-3.0),
    Warping(upper=10.0, upper_power=0.6, scale=3.0, reach=4.0),
    Warping(lower=-1.0, upper=1.0, lower_power=0.3, upper_power=0.8, scale=2.0),
    Warping(lower=0.0, lower_power=0.4, scale=2.0, reach=5.0, lower_pile=-3.0, lower_knee=0.1, lower_slope=0.1),
    Warping(lower=-1.0, upper=1.0, lower_power=0.3, scale=2.0, upper_knee=0.05, upper_slope=0.1),
)


def smooth(seed: int = 0, n: int = 64) -> Array:
    """A smooth Gaussian field of unit variance."""
    waves = np.fft.fftfreq(n)[:, None] ** 2 + np.fft.fftfreq(n) ** 2
    noise = np.fft.fft2(np.random.default_rng(seed).standard_normal((n, n)))
    field = np.fft.ifft2(noise * (waves + 1 / 400) ** -1.25).real
    return np.asarray((field - field.mean()) / field.std())


def samples(field: Array, side: int = 16) -> list[Sample]:
    rows, cols = np.indices((side, side)).reshape(2, -1)
    corners = np.ndindex(field.shape[0] // side, field.shape[1] // side)
    return [
        Sample(np.stack([rows, cols], 1).astype(float), field[i * side + rows, j * side + cols]) for i, j in corners
    ]


@pytest.mark.parametrize("warping", MAPS)
@given(st.floats(-1e6, 1e6))
def test_all_values_lie_within_the_bounds(warping: Warping, latent: float) -> None:
    value = warping.to_values(np.array(latent))
    assert warping.lower <= value <= warping.upper
    for dtype in (np.float32, np.float64):
        assert warping.lower <= float(warping.inside(value, np.dtype(dtype))) <= warping.upper


@pytest.mark.parametrize("warping", MAPS)
def test_latent_values_beyond_the_end_are_at_the_bound(warping: Warping) -> None:
    for end, bound, beyond in zip(warping.ends, (warping.lower, warping.upper), (-1.0, 1.0), strict=True):
        if math.isfinite(bound):
            assert warping.to_values(np.array([end, end + beyond])).tolist() == [bound, bound]


@pytest.mark.parametrize("warping", MAPS)
def test_the_map_is_monotone_and_its_inverse_inverts_it(warping: Warping) -> None:
    values = np.linspace(max(warping.lower, -40), min(warping.upper, 40), 999)
    latent = warping.to_latent(values)
    assert (np.diff(latent) > 0).all()
    np.testing.assert_allclose(warping.to_values(latent), values, atol=1e-9)
    slopes = np.diff(latent) / np.diff(values)
    middle = slice(200, 800)
    expected = np.exp(warping.log_slope((values[1:] + values[:-1])[middle] / 2))
    ends = [abs(values[1:][middle] - end) for end in (warping.lower, warping.upper) if math.isfinite(end)]
    inside = np.max(ends, 0) < warping.scale * (1 if warping.both else warping.reach)
    assert inside.any()
    np.testing.assert_allclose(slopes[middle][inside], expected[inside], rtol=0.05)


@pytest.mark.parametrize(("power", "found"), [(1.0, (0.85, 1.0)), (0.5, (0.4, 0.6)), (1 / 3, (0.25, 0.4))])
def test_the_power_of_the_data_is_found(power: float, found: tuple[float, float]) -> None:
    """Of a power of a Gaussian field that is cut off at zero; the first is never cut off, and symmetric."""
    field = np.maximum(smooth() + (6 if power == 1 else 0.3), 0) ** (1 / power)
    low, high = found
    assert low <= fitted(samples(field), 0.0, math.inf).lower_power <= high
    assert low <= fitted(samples(-field), -math.inf, 0.0).upper_power <= high


def test_a_knee_is_found_where_values_are_rare_next_to_a_bound() -> None:
    """As of rain that is seldom below 0.4 mm: there, latent values change by 0.15 as much per mm as beyond."""
    latent = smooth(3)
    rain = np.where(latent < 0, 0.0, np.where(latent < 0.03, latent * 0.4 / 0.03, 0.4 + 2 * (latent - 0.03)))
    warping = fitted(samples(rain), 0.0, math.inf)
    assert warping.lower_knee * warping.scale == pytest.approx(0.4, abs=0.05)
    assert warping.lower_slope == pytest.approx(0.15, abs=0.06)
    warping = fitted(samples(-rain), -math.inf, 0.0)
    assert warping.upper_knee * warping.scale == pytest.approx(0.4, abs=0.05)


def test_no_knee_is_found_where_there_is_none() -> None:
    warping = fitted(samples(np.maximum(smooth() + 0.3, 0) ** 2), 0.0, math.inf)
    assert (warping.lower_knee, warping.lower_slope) == (0.0, 1.0)


@pytest.mark.parametrize("side", [1.0, -1.0])
@pytest.mark.parametrize("other", [math.inf, 20.0])
def test_no_value_is_nearer_to_a_bound_than_those_reported(side: float, other: float) -> None:
    """Rain in steps of 0.5 mm is 0 or at least 0.5: what is less is 0, also in the distribution."""
    rain = side * np.round(2 * np.maximum(smooth(1), 0.0) ** 3) / 2
    lower, upper = sorted((0.0, side * other))
    warping = fitted(samples(rain), lower, upper)
    latent = warping.to_latent(side * np.array([0.0, 0.2, 0.494, 0.5, 1.0]))
    np.testing.assert_allclose(latent[:3], latent[0], rtol=1e-6)
    assert (np.diff(side * latent)[2:] > 0).all()
    assert warping.piled(latent)[0 if side > 0 else 1].tolist() == [True, True, True, False, False]
    of = Distribution(latent[:1], np.array([1.0]), np.array([0.0]), warping)
    assert abs(of.ppf(0.499 if side > 0 else 0.501)) == 0
    assert abs(of.ppf(0.51 if side > 0 else 0.49)) > 0.49
    more = of.sf(0.2) if side > 0 else of.cdf(np.array(-0.2))
    assert more == pytest.approx(0.5)


def test_censored_observations_are_estimated_below_the_bound() -> None:
    latent = smooth(3) - 0.4
    warping = fitted(samples(np.maximum(latent, 0)), 0.0, math.inf)
    sample = max(samples(latent), key=lambda one: min((one.values > 0).sum(), (one.values < 0).sum()))
    truth = sample.values / warping.scale
    # power 1 would be the identity up to scale and offset
    warping = Warping(lower=0.0, scale=warping.scale, reach=9.0, lower_pile=-2.0)
    given_ = warping.to_latent(np.maximum(sample.values, 0.0))
    values, errors = uncensored(given_, sample.places, warping)
    assert errors is not None
    dry = sample.values <= 0
    np.testing.assert_array_equal(values[~dry], given_[~dry])
    assert (errors[~dry] == 0).all()
    assert (errors[dry] > 0).all()
    assert (values[dry] < warping.ends[0]).all()
    assert np.corrcoef(values[dry], truth[dry])[0, 1] > 0.5


def test_observations_that_are_all_censored_are_certain() -> None:
    warping = MAPS[0]
    values, errors = uncensored(np.full(9, warping.ends[0]), np.random.default_rng(0).random((9, 2)), warping)
    assert errors is None
    np.testing.assert_array_equal(values, warping.lower_pile)
    inside = warping.to_latent(np.array([0.0, 3.0, np.nan]))
    np.testing.assert_array_equal(warping.without_neighbours(inside), [warping.lower_pile, *inside[1:]])


@pytest.mark.parametrize("warping", MAPS)
@pytest.mark.parametrize(("location", "deviation", "tail"), [(-1.0, 0.7, 0.0), (0.5, 0.3, 0.3), (-2.5, 1.0, 0.2)])
def test_a_mapped_distribution_is_that_of_mapped_values(
    warping: Warping, location: float, deviation: float, tail: float
) -> None:
    of = Distribution(*(np.array([number]) for number in (location, deviation, tail)), warping)
    many = Distribution(*(np.full(400_000, number) for number in (location, deviation, tail)), warping)
    drawn = many.rvs(np.random.default_rng(0))
    assert of.mean() == pytest.approx(drawn.mean(), abs=0.02 * drawn.std())
    assert of.std() == pytest.approx(drawn.std(), rel=0.06)
    for level in (0.05, 0.5, 0.9):
        value = of.ppf(level)
        assert value == pytest.approx(np.quantile(drawn, level), abs=0.02 * drawn.std())
        assert of.cdf(value) == pytest.approx(np.mean(drawn <= value), abs=0.005)
        assert of.sf(value) == pytest.approx(np.mean(drawn > value), abs=0.005)
    assert of.median() == of.ppf(0.5)
    assert of.interval(0.9) == (of.ppf(0.05), of.ppf(0.95))
    for bound, below in ((warping.lower, 0.0), (warping.upper, 1.0)):
        if math.isfinite(bound):
            assert of.cdf(bound) == pytest.approx(np.mean(drawn <= bound), abs=0.005)
            assert of.cdf(bound - 1e-3 if below == 0 else bound) == below


@pytest.mark.parametrize("tail", [0.0, 0.25])
def test_functions_of_an_unbounded_distribution(tail: float) -> None:
    expected = stats.t(4, 1.0, 2.0 * math.sqrt(0.5)) if tail else stats.norm(1.0, 2.0)
    of = np.array(1.0), np.array(2.0), np.array(tail)
    for x in (-30.0, 0.2, 30.0):
        assert student.cdf(x, *of) == pytest.approx(expected.cdf(x), rel=1e-6)
        assert student.sf(x, *of) == pytest.approx(expected.sf(x), rel=1e-6)
    assert student.ppf(0.3, *of) == pytest.approx(expected.ppf(0.3))
    assert student.interval(0.8, *of) == pytest.approx(expected.interval(0.8))
    certain = np.array(1.0), np.array(0.0), np.array(tail)
    assert [float(student.sf(x, *certain)) for x in (0.9, 1.0)] == [1.0, 0.0]
    assert [float(student.cdf(x, *certain)) for x in (0.9, 1.0)] == [0.0, 1.0]
