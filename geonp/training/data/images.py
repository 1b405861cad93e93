"""Images as functions of pixel coordinates: the image benchmarks of TNP-KR, on the digits of scikit-learn."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field
from torch import Tensor

from geonp.errors import MissingExtraError
from geonp.training.data.constraints import CountRange

__all__ = ["Digits"]

Batch = dict[str, Tensor]
SIDE = 8
"""Rows and columns of a digit."""


@dataclass(frozen=True)
class Digits:
    """The 1,797 handwritten digits of 8 x 8 pixels that ship with scikit-learn (UCI, Alpaydin and Kaynak 1998).

    As in TNP-KR, values are scaled to [-1, 1], coordinates are a grid on [-2, 2]^2, and the images of a batch share
    their target pixels; the first of these are context, as many as drawn for each image.

    Attributes
    ----------
    n_targets : int
        Number of target pixels, the context included.
    n_context : tuple of int
        Minimum and maximum number of context pixels.
    n_held_out : int
        Number of images that are held out, the last ones.
    split : str
        ``"train"`` or ``"test"``, the held-out images.

    Notes
    -----
    Scores are not comparable with the published ones, whose images are larger (28 x 28 and 32 x 32 pixels, 256
    targets, 16 to 127 context pixels).
    """

    kind: Literal["digits"] = "digits"
    n_targets: Annotated[int, Field(gt=0, le=SIDE**2)] = SIDE**2
    n_context: CountRange = (3, 31)
    n_held_out: Annotated[int, Field(gt=0, lt=1797)] = 297
    split: Literal["train", "test"] = "train"

    @property
    def dimensions(self) -> dict[str, int]:
        """Options that a model of these data must have."""
        return {"d_x": 2, "d_y": 1}

    def held_out(self) -> Digits:
        """Same data with the held-out images."""
        return replace(self, split="test")

    def check(self) -> None:
        """Check that the images can be loaded.

        Raises
        ------
        MissingExtraError
            If scikit-learn is not installed; the extra ``geonp[images]`` installs it.
        """
        _digits()

    def batch(self, seed: int, index: int, size: int) -> Batch:
        """Batch number `index`: `size` images, see :func:`geonp.training.sources.draw`."""
        rng = np.random.default_rng([seed, index])
        images = _digits()
        images = images[: -self.n_held_out] if self.split == "train" else images[-self.n_held_out :]
        pixels = rng.permutation(SIDE**2)[: self.n_targets]
        values = torch.from_numpy(images[rng.integers(len(images), size=size)][:, pixels])[..., None]
        axis = np.linspace(-2, 2, SIDE, dtype=np.float32)
        x = torch.from_numpy(np.stack([axis[pixels // SIDE], axis[pixels % SIDE]], -1)).expand(size, -1, -1)
        fewest, most = self.n_context
        counts = torch.from_numpy(rng.integers(fewest, most, size, endpoint=True))
        mask = torch.arange(min(most, self.n_targets)) < counts[:, None]
        return {"xc": x[:, :most], "yc": values[:, :most], "context_mask": mask, "xt": x, "yt": values}


@cache
def _digits() -> npt.NDArray[np.float32]:
    """All images, ``(1797, 64)``, in [-1, 1]."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise MissingExtraError("sklearn", "images") from error
    data: Any = load_digits().data
    return np.asarray(data / 8 - 1, np.float32)
