"""The models by name: their configurations, how to build them and what to train them by."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from geonp.nn.heads import Classifier, LatentClassifier
from geonp.nn.te_tnp import TEPTTNP, TETNP
from geonp.nn.tnp_kr import TNPKR
from geonp.nn.zoo.cnp import ANP, BANP, BNP, CANP, CNP, NP, RCNP
from geonp.nn.zoo.convcnp import ConvCNP
from geonp.nn.zoo.pt_tnp import LBANP, PTTNP
from geonp.nn.zoo.tnp import EQTNP, TNPA, TNPD, TNPND

__all__ = ["ARCHITECTURES", "LIKELIHOODS", "build", "loss", "translation_equivariant"]

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
"""Architecture name -> module class; its keyword arguments are the configuration."""

LIKELIHOODS = ("gaussian", "categorical")
"""What a model predicts: numbers, or one of several classes."""


def build(architecture: str, config: dict[str, Any]) -> nn.Module:
    """Build a model with fresh weights.

    The option ``likelihood`` concerns every architecture: ``"gaussian"``, the default, is its own distribution of
    numbers; ``"categorical"`` makes it a :class:`~geonp.nn.heads.Classifier` of `d_y` classes.

    Raises
    ------
    ValueError
        For an architecture that is not in :data:`ARCHITECTURES`, or an option with an impossible value.
    TypeError
        For an option that the architecture does not have.
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
        raise ValueError(f"{architecture} has a loss of its own, for numbers alone: it cannot be categorical")
    return Classifier(network)


def loss(
    network: nn.Module, xc: Tensor, yc: Tensor, xt: Tensor, yt: Tensor, context_mask: Tensor | None = None
) -> Tensor:
    """What to train a model by, a scalar a target value: its own ``loss`` method, else the mean negative log density.

    NP, ANP, BNP, BANP, TNP-A and TNP-ND have their own: their training draws latent variables or bootstraps, reads
    earlier targets, or scores all targets jointly. Target values `yt` are ``(batch, n_t, d_y)``.
    """
    own = getattr(network, "loss", None)
    if callable(own):
        found: Tensor = own(xc, yc, xt, yt, context_mask)
    else:
        found = -network(xc, yc, xt, context_mask).log_prob(yt).mean()
    return found


def translation_equivariant(architecture: str, config: dict[str, Any]) -> bool:
    """Whether a model knows places by their differences alone, so that moving all of them changes no prediction.

    ConvCNP is not among them: places count from the cells of its grid.
    """
    return architecture in ("te-tnp", "te-pt-tnp", "rcnp") or (
        architecture == "tnp-kr" and not config.get("embed_x", True)
    )
