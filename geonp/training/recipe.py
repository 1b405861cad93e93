"""Recipes: model, data and optimisation of a training run, as TOML files with ``key=value`` overrides."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Sequence
from copy import deepcopy
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from geonp.errors import RecipeError
from geonp.inference.context import Neighbourhood
from geonp.inference.limits import config_errors, neighbourhood_errors
from geonp.nn.models import ARCHITECTURES
from geonp.training.data.covariates import CovariatePrior
from geonp.training.data.epidemics import Epidemic
from geonp.training.data.fields import Raster, RasterPrior
from geonp.training.data.images import Digits, Photographs, TranslatedDigits
from geonp.training.data.kolmogorov import KolmogorovFlow
from geonp.training.data.processes import GaussianProcess, MixedProcess
from geonp.training.data.reanalysis import Reanalysis
from geonp.training.data.small_gaps import SmallGaps
from geonp.training.limits import data_errors, prior_errors

CHANGEABLE = {
    "name",
    "description",
    *(f"training.{key}" for key in ("steps", "start", "validate_every", "save_every_s")),
    *(f"data.{key}" for key in ("path", "geopotential")),
}
"""Keys that may differ when a run is resumed: they change its length, its reports or its paths, and not its steps."""

POSITIVE = ("scales", "directional_scales", "lengths", "unit")
"""Options of models that are lengths, and so positive."""

RESERVED_SEEDS = 16
"""Number of seeds just below 2^31 that are reserved for held-out tasks, of validation and of benchmarks."""

Momentum = Annotated[float, Field(ge=0, lt=1)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Model(_Strict):
    """An architecture of :data:`geonp.nn.models.ARCHITECTURES` and its options."""

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
    """Types of the options of an architecture, by name."""
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
            yield f"model.config.{key}: expected {_type_name(known[key])}, got {value!r}"
            continue
        numbers = value if isinstance(value, list | tuple) else [value]
        if key in POSITIVE and not all(number > 0 for number in numbers):
            yield f"model.config.{key}: expected numbers above 0, got {value!r}"
        elif key == "min_scale" and not 0 <= value < 1:
            yield f"model.config.{key}: expected a fraction of the scale from 0 to less than 1, got {value!r}"
        elif any(size < 0 for size in numbers if isinstance(size, int)):
            yield f"model.config.{key}: expected at least 0, got {value!r}"


def _type_name(kind: Any) -> str:
    """Name of the type of an option, in terms of TOML."""
    inner = [part.__name__ for part in get_args(kind) if part not in (Ellipsis, type(None))]
    if get_origin(kind) is tuple:
        return f"a list of {inner[0]}"
    return inner[0] if inner else str(kind.__name__)


class Training(_Strict):
    """The optimisation.

    Attributes
    ----------
    steps, batch_size, n_targets : int
        Number of steps, tasks per step, and targets per task; the last is for rasters only.
    optimiser, betas, weight_decay, clip :
        AdamW or Yogi, its coefficients, the decay of matrices (AdamW), and the largest norm of the gradient.
    learning_rate, warmup, decay, floor :
        Rate, steps of linear warm-up, fraction of the steps over which the rate follows a cosine at the end, and the
        fraction of the rate that the cosine ends at.
    averaging : float
        Decay of the moving average of weights that is validated and published; 0 for the weights themselves.
    keep : str
        Publish the last weights, or those with the best validation.
    precision : str
        ``"bf16"`` for mixed precision.
    mean_weight : float
        For rasters, weight of the pseudo-Huber distance of the predicted mean that is added to the negative log
        density: heavy-tailed densities hardly penalise means that are far off.
    seed : int
        Seed for weights, batches and all else that is random.
    start : str
        Checkpoint whose weights a new run starts from; of another architecture, those that fit
        (:func:`geonp.inference.checkpoint.start_from`). Resumed runs ignore it.
    only : tuple of str
        Train only the weights whose names begin with one of these, and leave the others as they start; default: all.
    validate_every, validation_batches, save_every_s :
        Steps between validations, batches of each, and seconds between saved states.
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
    only: tuple[str, ...] = ()
    validate_every: int = Field(500, gt=0)
    validation_batches: int = Field(16, gt=0)
    save_every_s: float = Field(180.0, gt=0)


Images = Digits | TranslatedDigits | Photographs
Data = Annotated[
    Raster | SmallGaps | GaussianProcess | MixedProcess | Epidemic | Reanalysis | Images | KolmogorovFlow,
    Field(discriminator="kind"),
]
"""Training data, distinguished by ``kind``."""


class Recipe(_Strict):
    """All that determines a checkpoint; it is stored in the checkpoint's card.

    Attributes
    ----------
    name, description : str
        Name of the checkpoint and of its file, and a sentence about it.
    model, data, training :
        What is trained, on what, and how.
    neighbourhood : Neighbourhood
        How the checkpoint reads rasters, whatever its training data are.
    prior : RasterPrior
        Prior over fields and gaps, for rasters only.
    """

    name: str = Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$", max_length=100)
    description: str
    model: Model
    data: Data = Raster()
    neighbourhood: Neighbourhood = Neighbourhood()
    prior: RasterPrior = RasterPrior()
    covariates: CovariatePrior = CovariatePrior()
    training: Training

    @model_validator(mode="after")
    def _parts_agree(self) -> Recipe:
        for name, n in getattr(self.data, "dimensions", {}).items():
            got = self.model.config.get(name, {"d_x": 2, "d_y": 1}[name])
            if got != n:
                raise ValueError(f"model.config.{name}: got {got}, but the data have {n}; set it to {n}")
        if (self.data.kind == "sir") != (self.model.config.get("likelihood") == "categorical"):
            raise ValueError(
                "model.config.likelihood: must be categorical if and only if the data are classes (data.kind sir)"
            )
        if self.data.kind not in ("raster", "small_gaps") and self.prior != RasterPrior():
            raise ValueError(f"prior: only for data.kind raster or small_gaps, got {self.data.kind}; remove it")
        if self.data.kind == "small_gaps" and not (self.model.config.get("nearby")):
            raise ValueError("model.config.nearby: must be true for data.kind small_gaps; set it")
        if self.covariates.share and self.model.config.get("head") != "drift":
            raise ValueError('covariates.share: only for model.config.head "drift"; set one of them')
        errors = [
            *data_errors(self.data),
            *prior_errors(self.prior),
            *config_errors(self.model.config),
            *neighbourhood_errors(self.neighbourhood, self.model.config.get("d_x", 2)),
        ]
        if errors:
            raise ValueError("; ".join(errors))
        return self


def available() -> dict[str, str]:
    """Names and descriptions of the recipes that ship with geonp."""
    return {name: str(tomllib.loads(text(name))["description"]) for name in _names()}


def text(name: str) -> str:
    """TOML text of a shipped recipe. Raises RecipeError for an unknown name."""
    if name not in _names():
        names = ", ".join(_names())
        raise RecipeError(f"unknown recipe {name!r}: expected one of {names}, or the path of a .toml file")
    return str((_folder() / f"{name}.toml").read_text(encoding="utf-8"))


def copy(name: str, destination: Path) -> Path:
    """Copy a shipped recipe to `destination`, a file or an existing folder; return the file.

    Raises RecipeError for an unknown name, or a file that exists.
    """
    content = text(name)
    file = destination / f"{name}.toml" if destination.is_dir() else destination
    if file.exists():
        raise RecipeError(f"{file} exists: choose another destination, or remove it first")
    file.write_text(content, encoding="utf-8")
    return file


def load(name: str, overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe by its name or the path of a TOML file, and apply overrides like ``training.steps=100``.

    An override of the architecture drops the recipe's own options that the new architecture does not have, covariates,
    ``training.start``, and data of small gaps.

    Raises
    ------
    RecipeError
        For an unknown key or a wrong value; it names the key.
    """
    data = _overridden(_read(name), overrides)
    try:
        # strict JSON accepts lists as tuples and tables as dataclasses, unlike strict Python
        return Recipe.model_validate_json(json.dumps(data, default=str), strict=True)
    except ValidationError as error:
        raise RecipeError(f"recipe {name}: {'; '.join(_problems(error, data))}") from error


def differences(stored: str, given: Recipe) -> list[str]:
    """Differences from a `stored` recipe (its JSON) that would make another run.

    Keys that an older stored recipe lacks are compared by their defaults; if it is no longer valid, they are ignored.
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
    """Values by dotted keys."""
    out: dict[str, Any] = {}
    for key, value in table.items():
        out.update(_flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value})
    return out


def _read(name: str) -> dict[str, Any]:
    """Tables of a recipe."""
    path = Path(name)
    try:
        source = path.read_text(encoding="utf-8") if path.suffix == ".toml" else text(name)
        return tomllib.loads(source)
    except tomllib.TOMLDecodeError as error:
        raise RecipeError(f"{name}: not valid TOML: {error}") from error
    except (OSError, UnicodeDecodeError) as error:
        problem = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        names = ", ".join(_names())
        raise RecipeError(
            f"cannot read the recipe file {name!r}: {problem}; expected a TOML file, or the name of a shipped recipe: "
            f"{names}"
        ) from error


def _problems(error: ValidationError, data: dict[str, Any]) -> Iterator[str]:
    """One sentence for each wrong key; pydantic's errors about each allowed form of a list are merged."""
    forms: dict[tuple[int | str, ...], dict[str, None]] = {}
    for detail in error.errors():
        place = detail["loc"]
        form = next((i for i, part in enumerate(place) if str(part).startswith("tuple[")), None)
        if form is None:
            yield _problem(dict(detail))
        else:
            forms.setdefault(place[:form], {})[str(place[form]).replace("tuple", "")] = None
    for place, expected in forms.items():
        value: Any = data
        for part in _key(place).split("."):
            value = value[part]
        yield f"{_key(place)}: got {value!r}, expected {' or '.join(expected)}"


def _problem(detail: dict[str, Any]) -> str:
    """Error of pydantic as a sentence that begins with the key."""
    key, value = _key(detail["loc"]), detail["input"]
    if detail["type"] == "value_error":
        message = str(detail["ctx"]["error"])
        return message if not detail["loc"] or message.startswith(f"{key}.") else f"{key}: {message}"
    message = str(detail["msg"])
    if detail["type"] == "string_pattern_mismatch":
        message = "expected letters, digits and _, after the first character also - and ."
    named = detail["type"] in {"missing", "extra_forbidden", "unexpected_keyword_argument"}
    return f"{key}: {message}" if named or isinstance(value, dict) else f"{key}: {message}, got {value!r}"


def _key(place: tuple[int | str, ...]) -> str:
    """Dotted name of a key, without the kind of data that pydantic inserts."""
    parts = (place[0], *place[2:]) if place[:1] == ("data",) and len(place) > 2 else place
    return ".".join(map(str, parts)) or "recipe"


def _overridden(data: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """`data` with overrides, without options that a new architecture does not have."""
    wanted = _apply(deepcopy(data), overrides)
    own, architecture = (_table(table, "model").get("architecture") for table in (data, wanted))
    if own == architecture or not isinstance(architecture, str) or architecture not in ARCHITECTURES:
        return wanted
    kept, config = _options(architecture), _table(_table(data, "model"), "config")
    for key in [key for key in config if key not in kept]:
        del config[key]
    _table(data, "training").pop("start", None)
    data.pop("covariates", None)
    if "nearby" not in kept and _table(data, "data").get("kind") == "small_gaps":
        del data["data"]
    return _apply(data, overrides)


def _table(parent: dict[str, Any], key: str) -> dict[str, Any]:
    table = parent.get(key)
    return table if isinstance(table, dict) else {}


def _apply(data: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Apply overrides to `data` in place."""
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
                raise RecipeError(f"the override {override!r} sets a key of {parent!r}, which is not a table")
        table[last] = parsed
    return data


def _names() -> list[str]:
    return sorted(p.name.removesuffix(".toml") for p in _folder().iterdir() if p.name.endswith(".toml"))


def _folder() -> Any:
    return resources.files("geonp.recipes")
