"""Model registry: architectures by name, how to build them and their training losses."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from geonp.nn.heads import Classifier, LatentClassifier
from geonp.nn.te_tnp import TEPTTNP, TETNP
from geonp.nn.tnp_kr import TNPKR
from geonp.nn.zoo.cnp import ANP, BANP, BNP, CANP, CNP, NP, RCNP
from geonp.nn.zoo.convcnp import ConvCNP
from geonp.nn.zoo.pt_tnp import LBANP, PTTNP
from geonp.nn.zoo.tnp import EQTNP, TNPA, TNPD, TNPND

ARCHITECTURES: dict[str, type[nn.Module]] = {
    "tnp-kr": TNPKR,
    "te-tnp": TETNP,
    "te-pt-tnp": TEPTTNP,
    "pt-tnp": PTTNP,
    "lbanp": LBANP,
    "tnp-d": TNPD,
    "tnp-nd": TNPND,
    "tnp-a": TNPA,
    "eqtnp": EQTNP,
    "cnp": CNP,
    "np": NP,
    "anp": ANP,
    "canp": CANP,
    "bnp": BNP,
    "banp": BANP,
    "rcnp": RCNP,
    "convcnp": ConvCNP,
}
"""Module classes by architecture name. The keyword arguments of a class are its configuration."""

LIKELIHOODS = ("gaussian", "categorical")
"""Kinds of predictions: numbers, or one of several classes."""


def build(architecture: str, config: dict[str, Any]) -> nn.Module:
    """Build a model with random weights.

    Parameters
    ----------
    architecture : str
        A key of :data:`ARCHITECTURES`.
    config : dict
        Keyword arguments of the architecture's class, and ``likelihood``: ``"gaussian"`` (default) for the distribution
        of numbers that the architecture predicts, ``"categorical"`` for a :class:`~geonp.nn.heads.Classifier` of `d_y`
        classes.

    Raises
    ------
    ValueError
        If the architecture is unknown or the value of an option is invalid.
    TypeError
        If the architecture does not have one of the options.
    """
    if architecture not in ARCHITECTURES:
        raise ValueError(f"unknown architecture {architecture!r}, expected one of {', '.join(ARCHITECTURES)}")
    options = {key: tuple(value) if isinstance(value, list) else value for key, value in config.items()}
    likelihood = options.pop("likelihood", "gaussian")
    if likelihood not in LIKELIHOODS:
        raise ValueError(f"likelihood must be one of {', '.join(LIKELIHOODS)}, got {likelihood!r}")
    network = ARCHITECTURES[architecture](**options)
    if likelihood == "gaussian":
        return network
    if isinstance(network, NP):
        return LatentClassifier(network)
    if hasattr(network, "loss"):
        raise ValueError(f"{architecture} has its own loss, which needs numbers: likelihood must be gaussian")
    return Classifier(network)


@contextmanager
def bounded(elements: int) -> Iterator[None]:
    """Let new tensors have at most `elements` elements together, as a damaged configuration may ask for any number.

    A model on the meta device would need no memory at all, but the first operation there imports the compiler of torch,
    which takes longer than building a model. Raises ValueError before a tensor is created that is too large.
    """
    with _Bounded(elements):
        yield


class _Bounded(TorchFunctionMode):
    def __init__(self, elements: int) -> None:
        super().__init__()
        self.elements = self.left = elements

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in _FACTORIES:
            self.left -= math.prod(args[0] if args and isinstance(args[0], Sequence) else args)
            if self.left < 0:
                raise ValueError(f"its config makes more than {self.elements:,} elements of tensors")
        return func(*args, **(kwargs or {}))


_FACTORIES = {torch.empty, torch.zeros, torch.ones, torch.randn, torch.rand}


def loss(
    network: nn.Module, xc: Tensor, yc: Tensor, xt: Tensor, yt: Tensor, context_mask: Tensor | None = None
) -> Tensor:
    """Training loss, a scalar: the ``loss`` method of the model, else the mean negative log density of `yt`.

    NP, ANP, BNP, BANP, TNP-A and TNP-ND have such a method: in training they draw latent variables or bootstraps, read
    earlier targets, or score all targets jointly. Target values `yt` are ``(batch, n_t, d_y)``.
    """
    method = getattr(network, "loss", None)
    if callable(method):
        value: Tensor = method(xc, yc, xt, yt, context_mask)
    else:
        value = -network(xc, yc, xt, context_mask).log_prob(yt).mean()
    return value


def translation_equivariant(architecture: str, config: dict[str, Any]) -> bool:
    """Whether locations enter a model through their differences only, so that shifting them changes no prediction.

    False for ConvCNP, which is equivariant to shifts by whole cells of its grid only.
    """
    return architecture in ("te-tnp", "te-pt-tnp", "rcnp") or (
        architecture == "tnp-kr" and not config.get("embed_x", True)
    )
