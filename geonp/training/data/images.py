"""Images as functions of pixel coordinates: the image benchmarks of the papers, on the images of scikit-learn."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from scipy import ndimage
from torch import Tensor

from geonp.errors import from_extra
from geonp.raster.arrays import Float32Array, IntArray
from geonp.training.batch import Batch, Split, split_at
from geonp.training.data.constraints import CountRange, FractionRange

SIDE = 8
"""Rows and columns of a digit."""
LARGE = 28
"""Those of an enlarged digit."""
PATCH = 32
"""Those of a patch of a photograph."""


@dataclass(frozen=True)
class Digits(Split):
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
    dimensions: ClassVar = {"d_x": 2, "d_y": 1}  # options that a model of these data must have

    def check(self) -> None:
        """Check that the images can be loaded.

        Raises MissingExtraError if scikit-learn is not installed; the extra ``geonp[images]`` installs it.
        """
        digit_images()

    def batch(self, seed: int, index: int, size: int) -> Batch:
        """Batch number `index`: `size` images, see :func:`geonp.training.sources.draw`."""
        rng = np.random.default_rng([seed, index])
        images = digit_images()
        images = images[: -self.n_held_out] if self.split == "train" else images[-self.n_held_out :]
        pixels = rng.permutation(SIDE**2)[: self.n_targets]
        values = torch.from_numpy(images[rng.integers(len(images), size=size)][:, pixels])[..., None]
        return _context_first(values, pixels, SIDE, self.n_context, rng)


@dataclass(frozen=True)
class TranslatedDigits(Split):
    """Digits at a random place of an empty canvas, in place of the T-MNIST of TE-TNP (ICML 2024, section F.2).

    The 8 x 8 digits of scikit-learn are enlarged to 28 x 28 pixels, the size of MNIST, and moved by up to 14 pixels on
    a canvas of 56 x 56. Values are in [0, 1], coordinates standardised. Context is a random fraction of the canvas, the
    same in a batch; targets are drawn from the other pixels. The images are smoother and fewer than those of T-MNIST.

    Attributes
    ----------
    fraction : tuple of float
        Minimum and maximum fraction of the pixels that are context.
    n_targets : int
        Number of target pixels.
    n_held_out : int
        Number of images that are held out, the last ones.
    split : str
        ``"train"`` or ``"test"``, the held-out images.
    """

    kind: Literal["translated_digits"] = "translated_digits"
    fraction: FractionRange = (0.01, 0.3)
    n_targets: Annotated[int, Field(gt=0, le=2000)] = 1000
    n_held_out: Annotated[int, Field(gt=0, lt=1797)] = 297
    split: Literal["train", "test"] = "train"
    dimensions: ClassVar = {"d_x": 2, "d_y": 1}  # options that a model of these data must have

    def check(self) -> None:
        """Check that the images can be loaded, see :meth:`Digits.check`."""
        digit_images()

    def batch(self, seed: int, index: int, size: int) -> Batch:
        """Batch number `index`: `size` images, see :func:`geonp.training.sources.draw`."""
        rng = np.random.default_rng([seed, index])
        images = _large_digits()
        images = images[: -self.n_held_out] if self.split == "train" else images[-self.n_held_out :]
        canvas, side = 2 * LARGE, LARGE
        values = np.zeros((size, canvas, canvas), np.float32)
        for image, (row, column) in zip(values, rng.integers(0, canvas - side, (size, 2)), strict=True):
            image[row : row + side, column : column + side] = images[rng.integers(len(images))]
        n_c = max(1, round(rng.uniform(*self.fraction) * canvas**2))
        pixels = rng.permuted(np.tile(np.arange(canvas**2), (size, 1)), axis=1)[:, : n_c + self.n_targets]
        axis = (np.arange(canvas) - (canvas - 1) / 2) / np.arange(canvas).std()
        x = torch.from_numpy(axis[np.stack([pixels // canvas, pixels % canvas], -1)]).float()
        y = torch.from_numpy(np.take_along_axis(values.reshape(size, -1), pixels, 1))[..., None]
        return split_at(x, y, n_c)


@dataclass(frozen=True)
class Photographs(Split):
    """Patches of 32 x 32 pixels of the two photographs of scikit-learn, in place of CelebA and CIFAR-10 of TNP-KR.

    As there, values are scaled to [-1, 1], coordinates are a grid on [-2, 2]^2, there are 256 target pixels of three
    channels, which the images of a batch share, and the first of these are context. Patches for training are from the
    left three quarters of each photograph, held-out ones from the rest. Two photographs are no faces and far from the
    variety of CIFAR-10: scores are not comparable.

    Attributes
    ----------
    n_targets : int
        Number of target pixels, the context included.
    n_context : tuple of int
        Minimum and maximum number of context pixels.
    split : str
        ``"train"`` or ``"test"``, the held-out part.
    """

    kind: Literal["photographs"] = "photographs"
    n_targets: Annotated[int, Field(gt=0, le=PATCH**2)] = 256
    n_context: CountRange = (16, 127)
    split: Literal["train", "test"] = "train"
    dimensions: ClassVar = {"d_x": 2, "d_y": 3}  # options that a model of these data must have

    def check(self) -> None:
        """Check that the images can be loaded, see :meth:`Digits.check`."""
        _photographs()

    def batch(self, seed: int, index: int, size: int) -> Batch:
        """Batch number `index`: `size` patches, see :func:`geonp.training.sources.draw`."""
        rng = np.random.default_rng([seed, index])
        images = _photographs()
        cut = images.shape[2] * 3 // 4
        images = images[:, :, :cut] if self.split == "train" else images[:, :, cut:]
        patches = np.lib.stride_tricks.sliding_window_view(images, (PATCH, PATCH), (1, 2))
        at = [rng.integers(n, size=size) for n in patches.shape[:3]]
        pixels = rng.permutation(PATCH**2)[: self.n_targets]
        values = torch.from_numpy(patches[tuple(at)].reshape(size, 3, -1)[:, :, pixels]).mT
        return _context_first(values, pixels, PATCH, self.n_context, rng)


def _context_first(
    values: Tensor, pixels: IntArray, side: int, n_context: tuple[int, int], rng: np.random.Generator
) -> Batch:
    """Batch of `values` ``(size, n, d_y)`` at the same `pixels` of all images, of which the first ones are context.

    Coordinates are a grid of `side` x `side` pixels on [-2, 2]^2.
    """
    size, n = values.shape[:2]
    axis = np.linspace(-2, 2, side, dtype=np.float32)
    x = torch.from_numpy(np.stack([axis[pixels // side], axis[pixels % side]], -1)).expand(size, -1, -1)
    fewest, most = n_context
    counts = torch.from_numpy(rng.integers(fewest, most, size, endpoint=True))
    mask = torch.arange(min(most, n)) < counts[:, None]
    return {"xc": x[:, :most], "yc": values[:, :most], "context_mask": mask, "xt": x, "yt": values}


@cache
def _large_digits() -> Float32Array:
    """All digits enlarged, ``(1797, 28, 28)``, in [0, 1]."""
    small = (digit_images().reshape(-1, SIDE, SIDE) + 1) / 2
    return np.clip(ndimage.zoom(small, (1, LARGE / SIDE, LARGE / SIDE), order=1), 0, 1)


@cache
def _photographs() -> Float32Array:
    """Both photographs, ``(2, rows, columns, 3)``, in [-1, 1]."""
    with from_extra("images", "sklearn"):
        from sklearn.datasets import load_sample_images
    images: Any = load_sample_images().images
    return np.stack([np.asarray(image, np.float32) / 127.5 - 1 for image in images])


@cache
def digit_images() -> Float32Array:
    """All images, ``(1797, 64)``, in [-1, 1]."""
    with from_extra("images", "sklearn"):
        from sklearn.datasets import load_digits
    data: Any = load_digits().data
    return np.asarray(data / 8 - 1, np.float32)
