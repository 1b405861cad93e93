"""Optimisers, the schedule of the learning rate, and averaged weights."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.swa_utils import AveragedModel

from geonp.errors import RecipeError
from geonp.training.recipe import Training


def optimiser(network: nn.Module, options: Training) -> Optimizer:
    """Optimiser of a recipe for all weights of a network; weight decay applies to matrices only."""
    if options.optimiser == "yogi":
        return Yogi(network.parameters(), options.learning_rate, options.betas)
    decayed = [p for p in network.parameters() if p.ndim > 1]
    plain = [p for p in network.parameters() if p.ndim <= 1]
    return torch.optim.AdamW(
        [{"params": decayed, "weight_decay": options.weight_decay}, {"params": plain, "weight_decay": 0.0}],
        lr=options.learning_rate,
        betas=options.betas,
    )


def freeze_all_but(network: nn.Module, only: tuple[str, ...]) -> None:
    """Train only the weights whose names begin with one of `only`; all of them without any.

    Raises RecipeError for the beginning of no name.
    """
    names = [name for name, _ in network.named_parameters()]
    if unknown := [start for start in only if not any(name.startswith(start) for name in names)]:
        raise RecipeError(
            f"training.only: got {unknown[0]!r}: no weight has a name that begins with it, expected for example "
            f"{names[-1].split('.')[0]!r}; correct it"
        )
    for name, weights in network.named_parameters():
        weights.requires_grad_(not only or name.startswith(only))


def learning_rate(step: int, options: Training) -> float:
    """Linear warm-up, a constant rate, and a cosine to `floor` times the rate over the last `decay` of the steps.

    Not a scheduler of torch: a function of the step has no state to save, and a resumed run may have more steps.
    """
    tail = options.decay * options.steps
    left = (options.steps - step) / tail if tail else 1.0
    cosine = 0.5 * (1 - math.cos(math.pi * min(left, 1.0)))
    falling = options.floor + (1 - options.floor) * cosine
    return options.learning_rate * min(1.0, (step + 1) / max(options.warmup, 1)) * falling


def averaged_model(network: nn.Module, decay: float) -> AveragedModel:
    """Exponential moving average of weights, in evaluation mode.

    The decay of update n is ``min(decay, (1 + n) / (10 + n))``, so that initial weights are forgotten quickly.
    """

    @torch.no_grad()
    def average(means: Any, weights: Any, n: Tensor | int) -> None:
        torch._foreach_lerp_(means, weights, 1 - min(decay, (1 + int(n)) / (10 + int(n))))

    averaged = AveragedModel(network, multi_avg_fn=average).requires_grad_(False).eval()
    averaged.n_averaged.fill_(1)  # at 0, the first update would copy the weights
    return averaged


class Yogi(Optimizer):
    """Yogi (Zaheer et al. 2018) as in optax: Adam with a second moment that changes additively.

    ``v <- v - (1 - b2) sign(v - g^2) g^2``; both moments are corrected for their bias, the second starts at 1e-6. The
    TNP-KR papers train with it.
    """

    def __init__(
        self,
        params: Iterable[torch.Tensor],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-3,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Update all weights that have a gradient; closures are not supported."""
        if closure is not None:
            raise ValueError("Yogi takes no closure: compute the gradients before step()")
        for group in self.param_groups:
            weights = [p for p in group["params"] if p.grad is not None]
            if weights:
                self._update(weights, group)

    def _update(self, weights: list[torch.Tensor], group: dict[str, Any]) -> None:
        for p in weights:
            if not self.state[p]:
                self.state[p].update(step=0, first=torch.zeros_like(p), second=torch.full_like(p, 1e-6))
            self.state[p]["step"] += 1
        (b1, b2), gradients = group["betas"], [p.grad for p in weights if p.grad is not None]
        firsts, seconds = ([self.state[p][key] for p in weights] for key in ("first", "second"))
        count = self.state[weights[0]]["step"]
        torch._foreach_lerp_(firsts, gradients, 1 - b1)
        squares = torch._foreach_mul(gradients, gradients)
        signs = torch._foreach_sign(torch._foreach_sub(seconds, squares))
        torch._foreach_addcmul_(seconds, signs, squares, value=-(1 - b2))
        roots = torch._foreach_sqrt(torch._foreach_div(seconds, 1 - b2**count))
        torch._foreach_add_(roots, group["eps"])
        torch._foreach_addcdiv_(weights, firsts, roots, value=-group["lr"] / (1 - b1**count))
