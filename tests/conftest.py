"""A tiny checkpoint with random weights, so that the tests need no trained one, and fast property tests."""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import dask
import pytest
import torch
from hypothesis import settings

from geonp.evaluation import kriging
from geonp.fill import request
from geonp.inference import checkpoint, parallel, predictor
from geonp.nn.models import build

gc.set_threshold(20_000, 20, 20)  # as the command line has it: what is imported and collected lasts

settings.register_profile("geonp", deadline=None, derandomize=True)
settings.load_profile("geonp")

CARD: dict[str, Any] = {
    "name": "tiny",
    "version": "1",
    "description": "random weights, for tests",
    "architecture": "tnp-kr",
    "config": {
        "dim": 16,
        "heads": 2,
        "blocks": 1,
        "qk_dim": 16,
        "v_dim": 16,
        "v_hidden": 0,
        "ff_dim": 16,
        "embed_x": False,
        "kernels": "dictionary",
        "scales": [1.0, 4.0, 16.0],
        "directional_scales": [4.0],
        "statistics": True,
        "head": "kriging",
        "n_refine": 8,
        "refine_steps": 1,
    },
    "neighbourhood": {
        "tile_px": 8,
        "halos_px": [8, 16],
        "n_context": 32,
        "min_context": 4,
        "thinning": 3.0,
        "merge": 2,
    },
    "training": {},
    "scores": {},
}


def pytest_collection_finish() -> None:
    """Leave what lasts to the end out of all later collections of garbage."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def scoringrules() -> Any:
    """The package of this name, without numba: with it, it compiles for many seconds whenever it is imported."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "numba", None)
        return importlib.import_module("scoringrules")


@pytest.fixture(scope="session", autouse=True)
def threads_only() -> Iterator[None]:
    """No processes are started because many small fills are one large one: tests of processes lower this number."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parallel, "PROCESSES", parallel.ProcessSettings(start_after=10**9))
        yield


@pytest.fixture(scope="session")
def card_fields() -> dict[str, Any]:
    """The keyword arguments of :func:`geonp.inference.checkpoint.save` for the tiny checkpoint."""
    return CARD


@pytest.fixture(scope="session")
def unmerged_model(model: str) -> str:
    """The same checkpoint, but for its tiles: none of them are merged."""
    network, _ = checkpoint.load_model(model)
    file = Path(model).with_name("unmerged.safetensors")
    checkpoint.save(network, file, **{**CARD, "neighbourhood": {**CARD["neighbourhood"], "merge": 1}})
    return str(file)


def random_checkpoint(folder: Path, card: dict[str, Any]) -> str:
    """Path of a checkpoint with seeded random weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = build(card["architecture"], card["config"])
        for p in network.parameters():
            # away from the initialisation, where biases and corrections would be nothing
            p.data += 0.05 * torch.randn_like(p)
    checkpoint.save(network, folder / "tiny.safetensors", **card)
    return str(folder / "tiny.safetensors")


@pytest.fixture(scope="session")
def small_tiles(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Path of a checkpoint with the raster architecture, tiny and with random weights."""
    return random_checkpoint(tmp_path_factory.mktemp("weights"), CARD)


@pytest.fixture(scope="session")
def model(small_tiles: str) -> str:
    """The model of most tests."""
    return small_tiles


@pytest.fixture(scope="session")
def wide_tiles(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The same weights with tiles of four times the area, of which a raster needs a quarter as many."""
    tiles = {**CARD["neighbourhood"], "tile_px": 16, "halos_px": [16], "merge": 1}
    return random_checkpoint(tmp_path_factory.mktemp("wide"), {**CARD, "neighbourhood": tiles})


@pytest.fixture(scope="session")
def drift_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Path of one that uses covariates, known errors and other slices, as the shipped one does."""
    config = {**CARD["config"], "head": "drift", "scoring_steps": 1}
    tiles = {**CARD["neighbourhood"], "tile_px": 16, "halos_px": [16]}
    return random_checkpoint(tmp_path_factory.mktemp("drift"), {**CARD, "config": config, "neighbourhood": tiles})


@pytest.fixture
def computes_nothing() -> Any:
    """Context manager in which every dask computation fails."""

    def scheduler(*_: object, **__: object) -> NoReturn:
        raise AssertionError("something was computed")

    return lambda: dask.config.set(scheduler=scheduler)


@pytest.fixture
def checkpoint_copy(model: str, tmp_path: Path) -> Path:
    """A copy of the tiny checkpoint and its card that a test may damage."""
    source = Path(model)
    for suffix in (".safetensors", ".json"):
        (tmp_path / f"copy{suffix}").write_bytes(source.with_suffix(suffix).read_bytes())
    return tmp_path / "copy.safetensors"


@pytest.fixture(scope="module")
def few_patches() -> Iterator[None]:
    """Fit kriging to a part of what it is fitted to elsewhere, which is most of its time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kriging, "SETTINGS", replace(kriging.SETTINGS, patches=4))
        yield


@pytest.fixture(scope="module")
def float32() -> Iterator[None]:
    """Compute in float32 in one thread, also on a GPU."""

    def exact(*args: Any) -> tuple[predictor.Predictor, checkpoint.Card]:
        found, card = predictor.resolve(*args)
        return replace(found, precision="float32"), card

    with pytest.MonkeyPatch.context() as patch, dask.config.set(scheduler="synchronous"):
        patch.setattr(request, "resolve", exact)
        yield
