"""Digits as functions of pixel coordinates."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits, load_sample_images

from geonp.errors import MissingExtraError
from geonp.training.data import images
from geonp.training.data.images import Digits, Photographs, TranslatedDigits
from geonp.training.recipe import load
from geonp.training.sources import VALIDATION_SEED, draw


def drawn(data: Digits, index: int, size: int = 20) -> set[bytes]:
    """The images of a batch, put together again from their pixels."""
    batch = data.batch(0, index, size)
    place = ((batch["xt"][0] + 2) * 7 / 4).round().long()
    out = torch.zeros(size, 8, 8)
    out[:, place[:, 0], place[:, 1]] = batch["yt"][..., 0]
    return {bytes(image.numpy()) for image in out}


def test_batches_are_images_of_the_split() -> None:
    known = torch.tensor(load_digits().images / 8 - 1).float()
    train, test = ({bytes(image.numpy()) for image in part} for part in (known[:1500], known[1500:]))
    for i in range(3):
        assert drawn(Digits(), i) <= train
        assert drawn(Digits().held_out(), i) <= test
    assert float(known.min()) == -1
    assert float(known.max()) == 1


def test_a_batch_is_the_benchmark_s() -> None:
    batch = Digits(n_targets=40).batch(0, 0, 50)
    assert batch["xt"].shape == (50, 40, 2)
    assert torch.equal(batch["yc"], batch["yt"][:, :31])
    counts = batch["context_mask"].sum(1)
    assert (int(counts.min()), int(counts.max())) == (3, 31)
    assert float(batch["xt"].abs().max()) == 2.0
    assert (batch["xt"] == batch["xt"][:1]).all()


def test_validation_is_on_images_that_training_does_not_see() -> None:
    recipe = load("images_digits", ["training.batch_size=5"])
    expected = Digits().held_out().batch(VALIDATION_SEED, 3, 5)
    assert torch.equal(draw(recipe, VALIDATION_SEED, 3)["yt"], expected["yt"])


def test_without_its_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "sklearn.datasets", None)
    images.digit_images.cache_clear()
    with pytest.raises(MissingExtraError, match=r"geonp\[images\]"):
        Digits().check()


def test_translated_digits_and_patches_hold_what_the_images_hold() -> None:
    data = TranslatedDigits(fraction=(0.2, 0.2), n_targets=2000)
    batch = data.batch(0, 0, 2)
    n_c = batch["xc"].shape[1]
    assert n_c == round(0.2 * 56**2)
    pixels = (torch.cat([batch["xc"], batch["xt"]], 1) * np.arange(56).std() + 27.5).round().long()
    values = torch.cat([batch["yc"], batch["yt"]], 1)[..., 0]
    for at, value in zip(pixels, values, strict=True):
        assert len(set(map(tuple, at.tolist()))) == n_c + 2000
        inked = at[value > 0]
        # the digit has 28 x 28 pixels of the canvas
        assert ((inked.amax(0) - inked.amin(0)) < 28).all()
        assert len(inked) > 100
    photo = load_sample_images().images
    patches = Photographs(n_targets=1024).batch(1, 0, 3)
    order = ((patches["xt"][0] + 2) / 4 * 31).round().long()
    for values in patches["yt"]:
        image = np.zeros((32, 32, 3), np.uint8)
        image[tuple(order.T)] = ((values + 1) * 127.5).round()
        rows = [np.lib.stride_tricks.sliding_window_view(p[:, : 640 * 3 // 4], (32, 32), (0, 1)) for p in photo]
        corner = [np.argwhere((r[..., 0, 0] == image[0, 0]).all(-1)) for r in rows]
        assert any(
            (r[i, j].transpose(1, 2, 0) == image).all() for r, at in zip(rows, corner, strict=True) for i, j in at
        )
    held_out = Photographs().held_out().batch(1, 0, 3)
    assert not torch.equal(held_out["yt"], Photographs().batch(1, 0, 3)["yt"])
