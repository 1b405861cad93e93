"""Lattice differences and sums equal those of all pairs, and other points are not mistaken for a lattice."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from geonp.nn import lattice as lattices
from geonp.nn.bias import KernelDictionary, shared_bias
from geonp.nn.heads import KrigingHead
from geonp.nn.lattice import LatticeLimits, gaussian_sums, lattice_differences, symmetric_differences


def lattice(d_x: int, n_q: int = 90, n_k: int = 80, shift: float = 0.0) -> tuple[Tensor, Tensor]:
    """Locations of three tasks far from each other, whole numbers apart within each."""
    generator = torch.Generator().manual_seed(0)
    side = {1: 40, 2: 9, 3: 4}[d_x]
    xq, xk = (torch.randint(0, side, (3, n, d_x), generator=generator).float() for n in (n_q, n_k))
    tasks = torch.tensor([0.0, -300.0, 7000.0])[:, None, None]
    return xq + tasks + shift, xk + tasks + shift


@pytest.mark.parametrize("d_x", [1, 2, 3])
@pytest.mark.parametrize("shift", [0.0, 0.5])
def test_index_points_to_the_difference_of_each_pair(d_x: int, shift: float) -> None:
    xq, xk = lattice(d_x, shift=shift)
    differences = lattice_differences(xq, xk)
    assert differences is not None
    assert len(differences.values) <= xq.shape[1] * xk.shape[1] / 2
    actual, expected = differences.values[differences.index.long()], xq[:, :, None] - xk[:, None]
    assert ((actual == expected).all(-1) | (actual == -expected).all(-1)).all()


def test_pairs_look_up_the_table_of_their_task_and_pass_gradients_on() -> None:
    differences = lattice_differences(*lattice(2))
    assert differences is not None
    table = torch.randn(3, len(differences.values), generator=torch.Generator().manual_seed(0)).requires_grad_()
    pairs = differences.to_pairs(table)
    for task in range(3):
        assert torch.equal(pairs[task], table[task][differences.index[task].long()])
    (grad,) = torch.autograd.grad(pairs.sum(), table)
    counts = torch.stack([torch.bincount(i.flatten(), minlength=table.shape[1]) for i in differences.index])
    assert torch.equal(grad, counts)
    torch.testing.assert_close(differences.sum_pairs(torch.ones_like(pairs)), grad)


@pytest.mark.parametrize("shift", [0.0, 0.5])
def test_symmetric_differences_on_and_off_a_lattice(shift: float) -> None:
    """Each pair has its own difference or the opposite one."""
    x = lattice(2)[1] * (1 + shift)
    differences = symmetric_differences(x)
    values = differences.values.expand(3, -1, -1)
    actual = torch.stack([differences.to_pairs(values[..., i].contiguous()) for i in range(2)], -1)
    expected = x[:, :, None] - x[:, None]
    assert ((actual == expected).all(-1) | (actual == -expected).all(-1)).all()
    assert differences.values.shape[-2] <= 80 * 81 // 2
    weights = torch.rand(3, 80, 80, generator=torch.Generator().manual_seed(0)).double()
    weights = weights + weights.mT
    table = torch.rand(3, differences.values.shape[-2], generator=torch.Generator().manual_seed(1)).double()
    by_pair, by_difference = differences.to_pairs(table) * weights, table * differences.sum_pairs(weights)
    torch.testing.assert_close(by_pair.sum(), by_difference.sum())


def test_other_points_are_no_lattice() -> None:
    xq, xk = lattice(2)
    assert lattice_differences(xq + 0.25, xk) is None
    assert lattice_differences(xq, torch.cat([xk[:, :-1], xk[:, -1:] + 0.01], 1)) is None
    assert lattice_differences(xq * 100, xk * 100) is None  # more differences than pairs
    assert lattice_differences(xq[:, :0], xk) is None
    far = torch.cat([xq[:, :-1], xq[:, -1:] + 10**6], 1)
    assert lattice_differences(far, xk) is None
    assert sums(far[0].double(), xk[0].double(), xk[0].double()) is None


def off_lattice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute all pairs, on a lattice too."""
    monkeypatch.setattr(lattices, "LATTICE", LatticeLimits(work_ratio=0))


def test_kriging_is_the_same_off_the_lattice(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    head = KrigingHead(8, 2, 1, 16, whole_steps=1)
    xt, _ = lattice(2, 40)
    cells = torch.cartesian_prod(torch.arange(9.0), torch.arange(9.0))
    xc = cells + torch.tensor([0.0, -300.0, 7000.0])[:, None, None]
    targets, context, yc = torch.randn(3, 40, 8), torch.randn(3, 81, 8), torch.randn(3, 81, 1)
    arguments = (targets, context, xt, xc, yc, torch.rand(3, 81) < 0.9, torch.zeros(3, 0))
    assert lattice_differences(torch.cat([xt, xc], 1), xc) is not None
    actual = head(*arguments)
    off_lattice(monkeypatch)
    assert lattice_differences(torch.cat([xt, xc], 1), xc) is None
    expected = head(*arguments)
    assert ((actual.mean - expected.mean).abs() < 1e-3 * expected.stddev).all()
    torch.testing.assert_close(actual.stddev, expected.stddev, rtol=1e-3, atol=0.0)


DICTIONARY = KernelDictionary(2, (0.75, 3.0, 12.0), (2.0, 8.0)).double()


def sums(xq: Tensor, xk: Tensor, values: Tensor) -> Tensor | None:
    return gaussian_sums(xq, xk, values, DICTIONARY.scales, DICTIONARY.projections, DICTIONARY.directional_scales)


@pytest.mark.parametrize("shift", [0.0, 0.5])
def test_sums_on_a_grid_equal_those_of_all_pairs(shift: float) -> None:
    xq, xk = (x.double() for x in lattice(2, shift=shift))
    values = torch.randn(3, 80, 2, generator=torch.Generator().manual_seed(1)).double()
    expected = DICTIONARY(xq, xk) @ values[:, None]
    torch.testing.assert_close(DICTIONARY.sums(xq, xk, values), expected)
    for task in range(3):
        actual = sums(xq[task], xk[task], values[task])
        assert actual is not None
        torch.testing.assert_close(actual, expected[task])


def test_sums_of_a_wide_grid_or_of_other_points_use_all_pairs() -> None:
    xq, xk = (x.double() for x in lattice(2))
    values = torch.randn(3, 80, 1, generator=torch.Generator().manual_seed(1)).double()
    for q, k in ((xq + 0.25, xk), (xq * 50, xk * 50)):
        assert sums(q[0], k[0], values[0]) is None
        torch.testing.assert_close(DICTIONARY.sums(q, k, values), DICTIONARY(q, k) @ values[:, None])
    # a task that is a grid beside one that is not
    mixed = torch.stack([xq[0], xq[1] + 0.25])
    torch.testing.assert_close(DICTIONARY.sums(mixed, xk[:2], values[:2]), DICTIONARY(mixed, xk[:2]) @ values[:2, None])
    x = lattice(1)[0]
    line = KernelDictionary(1, (2.0,), ())
    torch.testing.assert_close(line.sums(x, x, x), line(x, x) @ x[:, None])


def test_biases_on_a_lattice_equal_those_of_all_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    xq, xk = (x.double() for x in lattice(2))
    generator = torch.Generator().manual_seed(2)
    values, grad = (torch.randn(n, generator=generator).double() for n in ((3, 80, 2), (3, 2, 4, 90, 80)))
    amplitudes = torch.randn(2, 4, DICTIONARY.size, generator=generator).double().requires_grad_()
    results = []
    for _ in range(2):
        biases, weighted = shared_bias(DICTIONARY, xq, xk, amplitudes, values, torch.float64)
        results.append([biases.detach(), weighted, *torch.autograd.grad(biases, amplitudes, grad)])
        off_lattice(monkeypatch)
    for actual, expected in zip(*results, strict=True):
        torch.testing.assert_close(actual, expected)


def test_sums_without_directional_kernels() -> None:
    xq, xk = (x.double() for x in lattice(2))
    isotropic = KernelDictionary(2, (0.75, 3.0), ()).double()
    torch.testing.assert_close(isotropic.sums(xq, xk, xk), isotropic(xq, xk) @ xk[:, None])
