"""Differences on a lattice: every pair finds its own, and nothing else is taken for a lattice."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from geonp.nn import lattice as lattices
from geonp.nn import process
from geonp.nn.bias import KernelDictionary, shared_bias
from geonp.nn.heads import KrigingHead
from geonp.nn.lattice import differences, gaussian_sums, symmetric


def lattice(d_x: int, n_q: int = 90, n_k: int = 80, shift: float = 0.0) -> tuple[Tensor, Tensor]:
    """Places of three tasks far from each other, whole numbers apart within each."""
    generator = torch.Generator().manual_seed(0)
    side = {1: 40, 2: 9, 3: 4}[d_x]
    xq, xk = (torch.randint(0, side, (3, n, d_x), generator=generator).float() for n in (n_q, n_k))
    tasks = torch.tensor([0.0, -300.0, 7000.0])[:, None, None]
    return xq + tasks + shift, xk + tasks + shift


@pytest.mark.parametrize("d_x", [1, 2, 3])
@pytest.mark.parametrize("shift", [0.0, 0.5])
def test_every_pair_finds_its_difference(d_x: int, shift: float) -> None:
    xq, xk = lattice(d_x, shift=shift)
    found = differences(xq, xk)
    assert found is not None
    assert len(found.values) <= xq.shape[1] * xk.shape[1] / 2
    read, differences_ = found.values[found.index.long()], xq[:, :, None] - xk[:, None]
    assert ((read == differences_).all(-1) | (read == -differences_).all(-1)).all()


def test_pairs_read_the_table_of_their_task_and_pass_on_slopes() -> None:
    found = differences(*lattice(2))
    assert found is not None
    table = torch.randn(3, len(found.values), generator=torch.Generator().manual_seed(0)).requires_grad_()
    pairs = found.of_pairs(table)
    for task in range(3):
        assert torch.equal(pairs[task], table[task][found.index[task].long()])
    (slope,) = torch.autograd.grad(pairs.sum(), table)
    assert torch.equal(slope, torch.stack([torch.bincount(i.flatten(), minlength=table.shape[1]) for i in found.index]))
    torch.testing.assert_close(found.sums(torch.ones_like(pairs)), slope)


@pytest.mark.parametrize("shift", [0.0, 0.5])
def test_differences_of_points_from_each_other(shift: float) -> None:
    """On a lattice or not, each pair finds its own, or the opposite."""
    x = lattice(2)[1] * (1 + shift)
    found = symmetric(x)
    values = found.values.expand(3, -1, -1)
    read = torch.stack([found.of_pairs(values[..., i].contiguous()) for i in range(2)], -1)
    expected = x[:, :, None] - x[:, None]
    assert ((read == expected).all(-1) | (read == -expected).all(-1)).all()
    assert found.values.shape[-2] <= 80 * 81 // 2
    weights = torch.rand(3, 80, 80, generator=torch.Generator().manual_seed(0)).double()
    weights = weights + weights.mT
    table = torch.rand(3, found.values.shape[-2], generator=torch.Generator().manual_seed(1)).double()
    torch.testing.assert_close((found.of_pairs(table) * weights).sum(), (table * found.sums(weights)).sum())


def test_other_places_are_no_lattice() -> None:
    xq, xk = lattice(2)
    assert differences(xq + 0.25, xk) is None
    assert differences(xq, torch.cat([xk[:, :-1], xk[:, -1:] + 0.01], 1)) is None
    assert differences(xq * 100, xk * 100) is None  # more differences than pairs
    assert differences(xq[:, :0], xk) is None
    far = torch.cat([xq[:, :-1], xq[:, -1:] + 10**6], 1)
    assert differences(far, xk) is None
    assert sums(far[0].double(), xk[0].double(), xk[0].double()) is None


def test_kriging_is_the_same_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    head = KrigingHead(8, 2, 1, 16, whole_steps=1)
    xt, _ = lattice(2, 40)
    cells = torch.cartesian_prod(torch.arange(9.0), torch.arange(9.0))
    xc = cells + torch.tensor([0.0, -300.0, 7000.0])[:, None, None]
    targets, context, yc = torch.randn(3, 40, 8), torch.randn(3, 81, 8), torch.randn(3, 81, 1)
    arguments = (targets, context, xt, xc, yc, torch.rand(3, 81) < 0.9, torch.zeros(3, 0))
    calls: list[bool] = []
    for module in (process, lattices):
        monkeypatch.setattr(
            module, "differences", lambda *x: calls.append(differences(*x) is not None) or differences(*x)
        )
    found = head(*arguments)
    assert all(calls)
    assert len(calls) == 4  # a near and a spread part, all of the context, and the targets
    for module in (process, lattices):
        monkeypatch.setattr(module, "differences", lambda *x: None)
    expected = head(*arguments)
    assert ((found.mean - expected.mean).abs() < 1e-3 * expected.stddev).all()
    torch.testing.assert_close(found.stddev, expected.stddev, rtol=1e-3, atol=0.0)


DICTIONARY = KernelDictionary(2, (0.75, 3.0, 12.0), (2.0, 8.0)).double()


def off_lattice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lattices, "_whole", lambda *x: None)


def sums(xq: Tensor, xk: Tensor, values: Tensor) -> Tensor | None:
    return gaussian_sums(xq, xk, values, DICTIONARY.scales, DICTIONARY.projections, DICTIONARY.directional_scales)


@pytest.mark.parametrize("shift", [0.0, 0.5])
def test_sums_on_a_grid_are_those_of_all_pairs(shift: float) -> None:
    xq, xk = (x.double() for x in lattice(2, shift=shift))
    values = torch.randn(3, 80, 2, generator=torch.Generator().manual_seed(1)).double()
    expected = DICTIONARY(xq, xk) @ values[:, None]
    torch.testing.assert_close(DICTIONARY.sums(xq, xk, values), expected)
    for task in range(3):
        found = sums(xq[task], xk[task], values[task])
        assert found is not None
        torch.testing.assert_close(found, expected[task])


def test_sums_of_a_wide_grid_or_of_other_places_go_by_pairs() -> None:
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


def test_biases_of_a_lattice_are_those_of_all_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    xq, xk = (x.double() for x in lattice(2))
    generator = torch.Generator().manual_seed(2)
    values, slope = (torch.randn(n, generator=generator).double() for n in ((3, 80, 2), (3, 2, 4, 90, 80)))
    amplitudes = torch.randn(2, 4, DICTIONARY.size, generator=generator).double().requires_grad_()
    results = []
    for _ in range(2):
        biases, weighted = shared_bias(DICTIONARY, xq, xk, amplitudes, values, torch.float64)
        results.append([biases.detach(), weighted, *torch.autograd.grad(biases, amplitudes, slope)])
        off_lattice(monkeypatch)
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected)


def test_sums_without_single_directions() -> None:
    xq, xk = (x.double() for x in lattice(2))
    round_ = KernelDictionary(2, (0.75, 3.0), ()).double()
    torch.testing.assert_close(round_.sums(xq, xk, xk), round_(xq, xk) @ xk[:, None])
