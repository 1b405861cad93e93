"""Batches of tasks: tensors by name, padded to one shape."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

Batch = dict[str, Tensor]
"""``xc``, ``yc``, ``context_mask``, ``xt`` and ``yt``, or what the objective of the data reads instead."""


def split_at(x: Tensor, y: Tensor, n_c: int) -> Batch:
    """Tasks whose first `n_c` points are the context and the others the targets, from ``(batch, n, ...)``."""
    mask = torch.ones(len(x), n_c, dtype=torch.bool)
    return {"xc": x[:, :n_c], "yc": y[:, :n_c], "context_mask": mask, "xt": x[:, n_c:], "yt": y[:, n_c:]}


@dataclass(frozen=True)
class Split:
    """Data of which a part is held out: their field `split` is ``"train"``, or ``"test"`` for that part."""

    def held_out(self) -> Self:
        """The same data with the held-out part."""
        return replace(self, split="test")  # type: ignore[call-arg]
