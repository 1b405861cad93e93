"""Recipes: what to train, on what, for how long, as TOML files with ``key=value`` overrides."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from geonp.errors import RecipeError
from geonp.inference.context import Neighbourhood
from geonp.nn.models import ARCHITECTURES
from geonp.training import limits
from geonp.training.data.epidemics import Epidemic
from geonp.training.data.fields import RasterPrior
from geonp.training.data.images import Digits
from geonp.training.data.processes import GaussianProcess, MixedProcess
from geonp.training.data.reanalysis import Reanalysis

__all__ = ["Data", "Model", "Raster", "Recipe", "Training", "available", "copy", "differences", "load"]

CHANGEABLE = {
    "name",
    "description",
    *(f"training.{key}" for key in ("steps", "start", "validate_every", "save_every_s")),
    *(f"data.{key}" for key in ("path", "geopotential")),
}
"""Keys that may change when a run is taken up: its length, how often it is looked at, what only its start reads, and
where its data lie."""

POSITIVE = ("scales", "directional_scales", "lengths")
"""Options of models that are lengths."""

RESERVED_SEEDS = 16
"""The largest of the seeds below 2^31 are those of held-out tasks, of validation and of benchmarks."""

Momentum = Annotated[float, Field(ge=0, lt=1)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Model(_Strict):
    """Which architecture of :data:`geonp.nn.models.ARCHITECTURES`, with which options."""

    architecture: str
    config: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _options_fit(self) -> Model:
        if self.architecture not in ARCHITECTURES:
            names = ", ".join(ARCHITECTURES)
            raise ValueError(f"model.architecture: got {self.architecture!r}, expected one of {names}")
        if problems := list(_wrong_options(self.architecture, self.config)):
            raise ValueError("; ".join(problems))
        return self


def _options(architecture: str) -> dict[str, Any]:
    """Options of an architecture and their types."""
    hints = get_type_hints(ARCHITECTURES[architecture].__init__)
    del hints["return"]
    return {**hints, "likelihood": str}


def _wrong_options(architecture: str, config: dict[str, Any]) -> Iterator[str]:
    known = _options(architecture)
    for key, value in config.items():
        if key not in known:
            yield f"model.config.{key}: {architecture} has no such option, expected some of {', '.join(known)}"
            continue
        adapter = TypeAdapter(known[key], config=ConfigDict(strict=True, allow_inf_nan=False))
        try:
            adapter.validate_python(tuple(value) if isinstance(value, list) else value)
        except ValidationError:
            yield f"model.config.{key}: expected {_described(known[key])}, got {value!r}"
            continue
        numbers = value if isinstance(value, list | tuple) else [value]
        if key in POSITIVE and not all(number > 0 for number in numbers):
            yield f"model.config.{key}: expected numbers above 0, got {value!r}"
        elif key == "min_scale" and not 0 <= value < 1:
            yield f"model.config.{key}: expected a share of the scale from 0 to less than 1, got {value!r}"
        elif any(size < 0 for size in numbers if isinstance(size, int)):
            yield f"model.config.{key}: expected at least 0, got {value!r}"


def _described(kind: Any) -> str:
    """Name of the type of an option, as users of TOML know it."""
    inner = [part.__name__ for part in get_args(kind) if part not in (Ellipsis, type(None))]
    if get_origin(kind) is tuple:
        return f"a list of {inner[0]}"
    return inner[0] if inner else str(kind.__name__)


class Training(_Strict):
    """The optimisation: warm-up, a constant rate, a cosine to `floor` of it over the last part; averaged weights.

    `averaging` is the decay of the running mean of the weights that is validated and published, 0 for the weights
    themselves; ``keep="best"`` publishes those of the best validation instead of the last. `start` names a checkpoint
    whose weights a new run begins with (of another architecture those that fit, see
    :func:`geonp.inference.checkpoint.start_from`); it does not affect a resumed one. `n_targets` concerns rasters
    alone. The loss is the negative log density plus, for rasters, `mean_weight` times a pseudo-Huber distance of the
    predicted mean from the truth: where densities forgive what their tails explain, means must not go astray.
    """

    steps: int = Field(gt=0, le=10**9)
    batch_size: int = Field(16, gt=0, le=10**6)
    n_targets: int = Field(96, gt=0)
    optimiser: Literal["adamw", "yogi"] = "adamw"
    betas: tuple[Momentum, Momentum] = (0.9, 0.98)
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
    seed: int = Field(0, ge=0, lt=2**31 - RESERVED_SEEDS)
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

    `name` is that of the checkpoint's file. `prior` belongs to rasters alone; `neighbourhood` is how the checkpoint
    reads a raster, whatever it was trained on.
    """

    name: str = Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$", max_length=100)
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
        wrong = [
            *limits.of_data(self.data),
            *limits.of_prior(self.prior),
            *limits.of_neighbourhood(self.neighbourhood, self.model.config.get("d_x", 2)),
        ]
        if wrong:
            raise ValueError("; ".join(wrong))
        return self


def available() -> dict[str, str]:
    """Names and descriptions of the recipes that ship with geonp."""
    return {name: str(tomllib.loads(text(name))["description"]) for name in _names()}


def text(name: str) -> str:
    """The TOML text of a shipped recipe.

    Raises
    ------
    RecipeError
        For a name that is not shipped.
    """
    if name not in _names():
        names = ", ".join(_names())
        raise RecipeError(f"unknown recipe {name!r}: expected one of {names}, or the path of a .toml file")
    return str((_folder() / f"{name}.toml").read_text(encoding="utf-8"))


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

    Where they name another architecture, the recipe's own options that it does not have are left out, and so is the
    checkpoint that training starts from.

    Raises
    ------
    RecipeError
        Naming the key, for one that does not exist or has a value of the wrong type.
    """
    data = _overridden(_read(name), overrides)
    try:
        # as JSON, where types are strict but lists are tuples, and tables are dataclasses
        return Recipe.model_validate_json(json.dumps(data, default=str), strict=True)
    except ValidationError as error:
        raise RecipeError(f"recipe {name}: {'; '.join(_problems(error, data))}") from error


def differences(stored: str, given: Recipe) -> list[str]:
    """What of a recipe is not as in a `stored` one (its JSON) in such a way that it would make another run.

    Keys that the stored one does not have, as it is older, differ only from their defaults, or not at all where it can
    no longer be read.
    """
    try:
        before = Recipe.model_validate_json(stored).model_dump(mode="json")
    except ValidationError:
        before = json.loads(stored)
    was, now = _flat(before), _flat(given.model_dump(mode="json"))
    free = {key for key in (*was, *now) if key.startswith("model.config.")}
    compared = (set(was) & set(now) | free) - CHANGEABLE
    changed = [key for key in dict.fromkeys((*was, *now)) if key in compared and was.get(key) != now.get(key)]
    return [f"{key} was {was.get(key, 'not set')!r}, now is {now.get(key, 'not set')!r}" for key in changed]


def _flat(table: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Values by their dotted keys."""
    out: dict[str, Any] = {}
    for key, value in table.items():
        out.update(_flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value})
    return out


def _read(name: str) -> dict[str, Any]:
    """The tables of a recipe."""
    path = Path(name)
    try:
        source = path.read_text(encoding="utf-8") if path.suffix == ".toml" else text(name)
        return tomllib.loads(source)
    except tomllib.TOMLDecodeError as error:
        raise RecipeError(f"{name}: not valid TOML: {error}") from error
    except (OSError, UnicodeDecodeError) as error:
        problem = error.strerror if isinstance(error, OSError) else "it is no text in UTF-8"
        names = ", ".join(_names())
        raise RecipeError(
            f"cannot read the recipe file {name!r}: {problem}; expected a TOML file, or the name of a recipe that "
            f"ships: {names}"
        ) from error


def _problems(error: ValidationError, data: dict[str, Any]) -> Iterator[str]:
    """A sentence for each wrong key. Where a list may be of several forms, pydantic says what is wrong with each."""
    forms: dict[tuple[int | str, ...], dict[str, None]] = {}
    for found in error.errors():
        place = found["loc"]
        form = next((i for i, part in enumerate(place) if str(part).startswith("tuple[")), None)
        if form is None:
            yield _problem(dict(found))
        else:
            forms.setdefault(place[:form], {})[str(place[form]).replace("tuple", "")] = None
    for place, expected in forms.items():
        value: Any = data
        for part in _key(place).split("."):
            value = value[part]
        yield f"{_key(place)}: got {value!r}, expected {' or '.join(expected)}"


def _problem(found: dict[str, Any]) -> str:
    """An error of pydantic as a sentence that begins with the key."""
    key, value = _key(found["loc"]), found["input"]
    if found["type"] == "value_error":
        message = str(found["ctx"]["error"])
        return message if not found["loc"] or message.startswith(f"{key}.") else f"{key}: {message}"
    message = str(found["msg"])
    if found["type"] == "string_pattern_mismatch":
        message = "expected letters, digits and _, after the first also - and ."
    named = found["type"] in {"missing", "extra_forbidden", "unexpected_keyword_argument"}
    return f"{key}: {message}" if named or isinstance(value, dict) else f"{key}: {message}, got {value!r}"


def _key(place: tuple[int | str, ...]) -> str:
    """Name of a key as users write it: pydantic puts the kind of data between the table and its keys."""
    parts = (place[0], *place[2:]) if place[:1] == ("data",) and len(place) > 2 else place
    return ".".join(map(str, parts)) or "recipe"


def _overridden(data: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """`data` with overrides, without what would be left over of the model of another architecture."""
    wanted = _apply(deepcopy(data), overrides)
    own, architecture = (_table(table, "model").get("architecture") for table in (data, wanted))
    if own == architecture or not isinstance(architecture, str) or architecture not in ARCHITECTURES:
        return wanted
    kept, config = _options(architecture), _table(_table(data, "model"), "config")
    for key in [key for key in config if key not in kept]:
        del config[key]
    _table(data, "training").pop("start", None)
    return _apply(data, overrides)


def _table(parent: dict[str, Any], key: str) -> dict[str, Any]:
    found = parent.get(key)
    return found if isinstance(found, dict) else {}


def _apply(data: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Write overrides into `data`."""
    for override in overrides:
        key, equals, value = override.partition("=")
        if not equals or not all(key.split(".")):
            raise RecipeError(
                f"cannot read the override {override!r}: expected key=value, for example training.steps=100"
            )
        try:
            parsed = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            parsed = value
        *parents, last = key.split(".")
        table: Any = data
        for parent in parents:
            table = table.setdefault(parent, {})
            if not isinstance(table, dict):
                raise RecipeError(f"the override {override!r} goes below {parent!r}, which is not a table")
        table[last] = parsed
    return data


def _names() -> list[str]:
    return sorted(p.name.removesuffix(".toml") for p in _folder().iterdir() if p.name.endswith(".toml"))


def _folder() -> Any:
    return resources.files("geonp.recipes")
