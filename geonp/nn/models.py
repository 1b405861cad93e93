"""The models by name: their configurations and how to build them."""

from __future__ import annotations

from typing import Any

from torch import nn

from geonp.nn.tnp_kr import TNPKR

__all__ = ["ARCHITECTURES", "build"]

ARCHITECTURES: dict[str, type[nn.Module]] = {"tnp-kr": TNPKR}
"""Architecture name -> module class; its keyword arguments are the configuration."""


def build(architecture: str, config: dict[str, Any]) -> nn.Module:
    """Build a model with fresh weights.

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
    return ARCHITECTURES[architecture](**options)
