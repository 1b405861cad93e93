"""Joint samples from models that predict each target on its own, by feeding back what was drawn."""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["sample"]


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
    """Joint samples of all targets, autoregressively: each is drawn given the context and those drawn before it.

    Targets are visited in a random order, another one for each sample, as the order matters to a model that is not a
    consistent process. Every drawn value joins the context. The models of this package predict new measurements, noise
    included, and so do these samples. Two cases differ:

    * A model trained on noise-free targets but noisy contexts (the TNP-KR papers' benchmarks) draws noise-free values,
      which its context never held. `noise`, the standard deviation of its contexts' noise, is added to what is fed
      back, not to what is returned.
    * Noise-free functions from a model of noisy ones: with ``smooth=True`` the drawn values only condition one more
      pass, whose means are returned.

    Parameters
    ----------
    model : nn.Module
        Any of :data:`geonp.nn.models.ARCHITECTURES`; in evaluation mode. It is called once a target, with one target.
    xc, yc, xt : Tensor
        ``(batch, n_c, d_x)``, ``(batch, n_c, d_y)`` and ``(batch, n_t, d_x)``.
    n : int
        Number of samples.
    generator : torch.Generator, optional
        Source of all randomness; PyTorch's global one otherwise.
    context_mask : Tensor, optional
        ``(batch, n_c)``, True = observed.

    Returns
    -------
    Tensor
        ``(n, batch, n_t, d_y)``.
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
    # the context has its final length from the start: a growing one would be compiled and allocated anew each time
    xs, ys = torch.cat([xc, x], 1), torch.cat([yc, yc.new_zeros(*x.shape[:2], d_y)], 1)
    mask = torch.cat([context_mask, context_mask.new_zeros(x.shape[:2])], 1)
    drawn = torch.empty_like(ys[:, xc.shape[1] :])
    seed = int(torch.randint(2**62, (), generator=generator, device=device))
    with torch.random.fork_rng(devices=[xt.device] if xt.device.type == "cuda" else []):
        torch.manual_seed(seed)
        for i in range(n_t):
            drawn[:, i] = model(xs, ys, x[:, i : i + 1], mask).sample()[:, 0]
            known = xc.shape[1] + i
            ys[:, known] = drawn[:, i] + noise * torch.randn_like(drawn[:, i])
            mask[:, known] = True
    back = order.argsort(1)[..., None].expand_as(drawn)
    found: Tensor = model(xs, ys, xt, mask).mean if smooth else drawn.gather(1, back)
    return found.view(n, batch, n_t, d_y)
