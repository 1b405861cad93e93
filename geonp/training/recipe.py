"""Recipes: what to train, on what, for how long, as TOML files with ``key=value`` overrides."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from geonp.errors import RecipeError
from geonp.points import Neighbourhood
from geonp.training.epidemics import Epidemic
from geonp.training.images import Digits
from geonp.training.processes import GaussianProcess, MixedProcess
from geonp.training.reanalysis import Reanalysis
from geonp.training.tasks import RasterPrior

__all__ = ["Data", "Model", "Raster", "Recipe", "Training", "available", "copy", "load"]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Model(_Strict):
    """Which architecture of :data:`geonp.nn.models.ARCHITECTURES`, with which options."""

    architecture: str
    config: dict[str, Any] = Field(default_factory=dict)


class Training(_Strict):
    """The optimisation: warm-up, a constant rate, a cosine to `floor` of it over the last part; averaged weights.

    `averaging` is the decay of the running mean of the weights that is validated and published, 0 for the weights
    themselves; ``keep="best"`` publishes those of the best validation instead of the last. `start` names a checkpoint
    whose weights a new run begins with (of another architecture those that fit, see
    :func:`geonp.checkpoint.start_from`); it does not affect a resumed one. `n_targets` concerns rasters alone.
    The loss is the negative log density plus, for rasters, `mean_weight` times a pseudo-Huber distance of the predicted
    mean from the truth: where densities forgive what their tails explain, means must not go astray.
    """

    steps: int = Field(gt=0)
    batch_size: int = Field(16, gt=0)
    n_targets: int = Field(96, gt=0)
    optimiser: Literal["adamw", "yogi"] = "adamw"
    betas: tuple[float, float] = (0.9, 0.98)
    learning_rate: float = Field(1e-3, gt=0)
    warmup: int = Field(300, ge=0)
    decay: float = Field(0.3, ge=0, le=1)
    floor: float = Field(0.0, ge=0, le=1)
    weight_decay: float = Field(0.01, ge=0)
    clip: float = Field(1.0, gt=0)
    averaging: float = Field(0.999, ge=0, lt=1)
    keep: Literal["last", "best"] = "last"
    precision: Literal["float32", "bf16"] = "bf16"
    mean_weight: float = Field(0.0, ge=0)
    seed: int = 0
    start: str = ""
    validate_every: int = Field(500, gt=0)
    validation_batches: int = Field(16, gt=0)
    save_every_s: float = Field(180.0, gt=0)


@dataclass(frozen=True)
class Raster:
    """Synthetic rasters with gaps: the fields and gaps of the recipe's `prior`, seen through its `neighbourhood`."""

    kind: Literal["raster"] = "raster"


Data = Annotated[Raster | GaussianProcess | MixedProcess | Epidemic | Reanalysis | Digits, Field(discriminator="kind")]
"""What a recipe trains on, by its ``kind``."""


class Recipe(_Strict):
    """Everything that determines a checkpoint; it is stored in the checkpoint's card.

    `prior` belongs to rasters alone; `neighbourhood` is how the checkpoint reads a raster, whatever it was trained on.
    """

    name: str
    description: str
    model: Model
    data: Data = Raster()
    neighbourhood: Neighbourhood = Neighbourhood()
    prior: RasterPrior = RasterPrior()
    training: Training

    @model_validator(mode="after")
    def _parts_agree(self) -> Recipe:
        for name, n in getattr(self.data, "dimensions", {}).items():
            got = self.model.config.get(name, {"d_x": 2, "d_y": 1}[name])
            if got != n:
                raise ValueError(f"model.config.{name}: got {got}, but the data have {n}; set it to {n}")
        if (self.data.kind == "sir") != (self.model.config.get("likelihood") == "categorical"):
            raise ValueError(
                "model.config.likelihood: must be categorical where the data are classes (data.kind sir) and only there"
            )
        if self.data.kind != "raster" and self.prior != RasterPrior():
            raise ValueError(f"prior: only data.kind raster has one, this recipe's is {self.data.kind}; leave it out")
        return self


def available() -> dict[str, str]:
    """Names and descriptions of the recipes that ship with geonp."""
    names = sorted(p.name.removesuffix(".toml") for p in _folder().iterdir() if p.name.endswith(".toml"))
    return {name: str(tomllib.loads(text(name))["description"]) for name in names}


def text(name: str) -> str:
    """The TOML text of a shipped recipe.

    Raises
    ------
    RecipeError
        For a name that is not shipped.
    """
    file = _folder() / f"{name}.toml"
    if not file.is_file():
        names = ", ".join(sorted(p.name.removesuffix(".toml") for p in _folder().iterdir() if p.name.endswith(".toml")))
        raise RecipeError(f"unknown recipe {name!r}: expected one of {names}, or the path of a .toml file")
    return str(file.read_text(encoding="utf-8"))


def copy(name: str, destination: Path) -> Path:
    """Write a shipped recipe to `destination` (a file, or a folder that exists) to be edited; return the file.

    Raises
    ------
    RecipeError
        For a name that is not shipped, or a file that exists.
    """
    content = text(name)
    file = destination / f"{name}.toml" if destination.is_dir() else destination
    if file.exists():
        raise RecipeError(f"{file} exists: choose another destination, or remove it first")
    file.write_text(content, encoding="utf-8")
    return file


def load(name: str, overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe by its name or the path of a TOML file, and apply overrides like ``training.steps=100``.

    Raises
    ------
    RecipeError
        Naming the key, for one that does not exist or has a value of the wrong type.
    """
    path = Path(name)
    source = path.read_text(encoding="utf-8") if path.suffix == ".toml" and path.is_file() else text(name)
    try:
        data = tomllib.loads(source)
    except tomllib.TOMLDecodeError as error:
        raise RecipeError(f"{name}: not valid TOML: {error}") from error
    for override in overrides:
        _apply(data, override)
    try:
        return Recipe.model_validate(data)
    except ValidationError as error:
        problems = "; ".join(f"{_key(e['loc'])}: {e['msg']}" for e in error.errors())
        raise RecipeError(f"recipe {name}: {problems}") from error


def _key(place: tuple[int | str, ...]) -> str:
    """Name of a key as users write it: pydantic puts the kind of data between the table and its keys."""
    parts = (place[0], *place[2:]) if place[:1] == ("data",) and len(place) > 2 else place
    return ".".join(map(str, parts)) or "recipe"


def _apply(data: dict[str, Any], override: str) -> None:
    key, equals, value = override.partition("=")
    if not equals or not key:
        raise RecipeError(f"cannot read the override {override!r}: expected key=value, for example training.steps=100")
    try:
        parsed = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        parsed = value
    *parents, last = key.split(".")
    for parent in parents:
        data = data.setdefault(parent, {})
        if not isinstance(data, dict):
            raise RecipeError(f"the override {override!r} goes below {parent!r}, which is not a table")
    data[last] = parsed


def _folder() -> Any:
    return resources.files("geonp.recipes")
