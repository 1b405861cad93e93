"""Joint samples from models of marginal distributions, autoregressively."""

from __future__ import annotations

import torch
from torch import Tensor, nn


@torch.no_grad()
def sample(
    model: nn.Module,
    xc: Tensor,
    yc: Tensor,
    xt: Tensor,
    n: int = 1,
    generator: torch.Generator | None = None,
    context_mask: Tensor | None = None,
    *,
    noise: float = 0.0,
    smooth: bool = False,
) -> Tensor:
    """Joint samples of all targets: each is drawn given the context and the targets drawn before it.

    Drawn values join the context. The order of the targets is random and differs between samples, as the predictions of
    neural processes depend on it. The models of this package predict new measurements, noise included, and so do these
    samples. Two cases differ:

    * A model trained with noise-free targets but noisy contexts (the benchmarks of the TNP-KR papers) draws noise-free
      values, unlike those of its contexts. `noise`, the standard deviation of the noise in its contexts, is added to
      the values that join the context, not to those returned.
    * For noise-free functions from a model of noisy measurements, ``smooth=True`` returns the means of one more pass
      given all drawn values.

    Parameters
    ----------
    model : nn.Module
        Any of :data:`geonp.nn.models.ARCHITECTURES` in evaluation mode. It is called once for each target.
    xc, yc, xt : Tensor
        ``(batch, n_c, d_x)``, ``(batch, n_c, d_y)`` and ``(batch, n_t, d_x)``.
    n : int
        Number of samples.
    generator : torch.Generator, optional
        Generator of all random numbers; by default PyTorch's global one.
    context_mask : Tensor, optional
        ``(batch, n_c)``, True where observed.
    noise : float
        Standard deviation of the noise added to the values that join the context.
    smooth : bool
        Whether to return noise-free functions.

    Returns
    -------
    Tensor
        ``(n, batch, n_t, d_y)``.

    Raises
    ------
    ValueError
        If `n` is less than 1 or `noise` is negative.
    """
    if n < 1 or noise < 0:
        raise ValueError(f"n must be at least 1 and noise not negative, got n={n}, noise={noise}")
    if context_mask is None:
        context_mask = torch.ones(xc.shape[:2], dtype=torch.bool, device=xc.device)
    batch, n_t, d_y = len(xc), xt.shape[1], yc.shape[-1]
    xc, yc, xt, context_mask = (t.repeat(n, *[1] * (t.ndim - 1)) for t in (xc, yc, xt, context_mask))
    device = generator.device if generator is not None else xt.device
    order = torch.rand(xt.shape[:2], generator=generator, device=device).argsort(1).to(xt.device)
    x = xt.gather(1, order[..., None].expand_as(xt))
    # the context has its final length from the start: a growing one would be allocated, or compiled, in each step
    xs, ys = torch.cat([xc, x], 1), torch.cat([yc, yc.new_zeros(*x.shape[:2], d_y)], 1)
    mask = torch.cat([context_mask, context_mask.new_zeros(x.shape[:2])], 1)
    drawn = torch.empty_like(ys[:, xc.shape[1] :])
    seed = int(torch.randint(2**62, (), generator=generator, device=device))
    with torch.random.fork_rng(devices=[xt.device] if xt.device.type == "cuda" else []):
        torch.manual_seed(seed)
        for i in range(n_t):
            drawn[:, i] = model(xs, ys, x[:, i : i + 1], mask).sample()[:, 0]
            position = xc.shape[1] + i
            ys[:, position] = drawn[:, i] + noise * torch.randn_like(drawn[:, i])
            mask[:, position] = True
    if smooth:
        samples: Tensor = model(xs, ys, xt, mask).mean
    else:
        samples = drawn.gather(1, order.argsort(1)[..., None].expand_as(drawn))
    return samples.view(n, batch, n_t, d_y)
