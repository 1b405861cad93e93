"""Checkpoints: weights as safetensors beside a JSON card that describes them. Only this module reads weights."""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, ValidationError

from geonp.errors import CheckpointError, ModelError, warn
from geonp.inference.context import Neighbourhood
from geonp.inference.limits import config_errors, neighbourhood_errors
from geonp.io.location import replacing

if TYPE_CHECKING:
    from torch import nn

FORMAT = 1
"""Version of the format of cards."""

HASHED_FIELDS = ("architecture", "config", "neighbourhood")
"""Fields of a card that predictions depend on, in addition to the weights."""


class Card(BaseModel):
    """The JSON file beside the weights: what the model is, how it was trained and how good it is.

    Attributes
    ----------
    name, version, description : str
        `name` is the value of the option ``model``.
    architecture, config : str, dict
        Arguments of :func:`geonp.nn.models.build`.
    neighbourhood : Neighbourhood
        The context that the model was trained with.
    parameters : int
        Number of parameters.
    training : dict
        Provenance: recipe, steps, seed, CPU hours.
    scores : dict
        Scores on held-out synthetic tasks; of shipped models also on real rasters, of adapted ones on their raster.
    trained_on, chosen_on : str
        Data of the training, and data whose scores led to choices in the model.
    limits : tuple of str
        What the model cannot do.
    sha256 : str
        Hash of the safetensors file.
    settings_sha256 : str
        Hash of the fields of :data:`HASHED_FIELDS`. None in cards that earlier versions of geonp wrote.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: int = FORMAT
    name: str
    version: str
    description: str
    architecture: str
    config: dict[str, Any]
    neighbourhood: Neighbourhood
    parameters: int
    training: dict[str, Any]
    scores: dict[str, float]
    trained_on: str = ""
    chosen_on: str = ""
    limits: tuple[str, ...] = ()
    sha256: str
    settings_sha256: str | None = None

    @property
    def classes(self) -> int:
        """Number of classes of a classifier; 0 for a model of numbers."""
        return int(self.config.get("d_y", 1)) if self.config.get("likelihood") == "categorical" else 0

    @property
    def uses_covariates(self) -> bool:
        """Whether the model can use covariates."""
        return self.config.get("head") == "drift"


def available() -> dict[str, Card]:
    """The shipped checkpoints by name."""
    cards = (_read_card(Path(str(p))) for p in sorted(weights_folder().iterdir()) if p.suffix == ".json")
    return {card.name: card for card in cards}


def load_card(model: str) -> Card:
    """Load the card of a shipped model by name, or of a checkpoint by the path of its .safetensors file.

    Raises ModelError if there is no such model. Raises CheckpointError if the card is missing or unreadable.
    """
    return _read_card(_locate(model).with_suffix(".json"))


def load_model(model: str) -> tuple[nn.Module, Card]:
    """Build a model and load its weights, checked against the hash of its card; in evaluation mode, on the CPU.

    The model is cached until one of its files changes: callers must not change it. Warns of a card of an earlier
    version of geonp whose settings neither a hash nor the weights confirm. Raises ModelError if there is no such model.
    Raises CheckpointError if weights or card are missing, damaged or altered.
    """
    file = _locate(model)
    # a relative path means another file in another folder, and other processes may write to it
    return _loaded(file, str(file.absolute()), _version(file), _version(file.with_suffix(".json")))


def _version(file: Path) -> tuple[int, ...]:
    try:
        found = file.stat()
    except OSError:  # loading says what is wrong
        return ()
    return found.st_ino, found.st_mtime_ns, found.st_size


@lru_cache(maxsize=4)
def _loaded(file: Path, *version: object) -> tuple[nn.Module, Card]:
    from safetensors.torch import load

    from geonp.nn.models import bounded, build

    card = _read_card(file.with_suffix(".json"))
    data = file.read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    if digest != card.sha256:
        raise CheckpointError(
            f"{file}: the weights are damaged or altered: sha256 {digest[:12]}..., expected {card.sha256[:12]}...; "
            "reinstall geonp, or copy the checkpoint and its card again"
        )
    if card.settings_sha256 is None and _described(file) is None:
        settings = _settings(json.loads(file.with_suffix(".json").read_bytes()))
        warn(
            f"{file.with_suffix('.json')}: a card of an earlier version of geonp, without a hash of its "
            f"{', '.join(HASHED_FIELDS)}: nothing shows whether they were altered. If they are as you saved them, add "
            f'"settings_sha256": "{_sha256(settings)}" to the card.'
        )
    try:
        with bounded(4 * card.parameters + 2**20):
            network = build(card.architecture, card.config)
        parameters = sum(p.numel() for p in network.parameters())
        if parameters != card.parameters:
            raise ValueError(f"its config makes {parameters:,} parameters, expected {card.parameters:,}")
        network.load_state_dict(load(data))
    except MemoryError:
        raise
    except Exception as error:  # what an option of a wrong type or value leads to
        raise CheckpointError(f"{file}: cannot be loaded by this version of geonp: {error}") from error
    return network.eval().requires_grad_(False), card


def start_from(network: nn.Module, model: str) -> None:
    """Copy the weights of a checkpoint into `network`: all of them, or those that fit if the architectures differ.

    For the same architecture, all weights of the checkpoint must fit; the network may have more layers. Between
    architectures, weights of the same name and shape are copied, such as those of the embedding and the head that
    TNP-KR and TE-PT-TNP share; the other weights keep their initial values. Raises ModelError if there is no such
    model, or none of its weights fits. Raises CheckpointError if it cannot be loaded, or has the same architecture but
    weights of other names or shapes.
    """
    source, card = load_model(model)
    if type(source) is type(network):
        weights = {**network.state_dict(), **source.state_dict()}
        try:
            network.load_state_dict(weights)
        except RuntimeError as error:
            first, *others = (line.strip() for line in str(error).splitlines()[1:])
            more = f" (and {len(others)} more)" if others else ""
            raise CheckpointError(
                f"cannot start from {model!r}, whose options differ: {first}{more} Give the model the options of that "
                "checkpoint, or set training.start to another checkpoint or to nothing."
            ) from error
        return
    own = network.state_dict()
    fitting = {key: value for key, value in source.state_dict().items() if key in own and own[key].shape == value.shape}
    if not fitting:
        raise ModelError(
            f"cannot start from {model!r}: its architecture is {card.architecture!r}, and none of its weights has the "
            "name and shape of one of the model's; set training.start to another model, or to nothing"
        )
    network.load_state_dict(fitting, strict=False)


def save(network: nn.Module, file: Path, **card: Any) -> Card:
    """Write weights and card; the keyword arguments are the fields of the card except `parameters` and `sha256`.

    The file of the weights also contains the fields of the card that predictions depend on, so its hash identifies the
    model.
    """
    from safetensors.torch import save as serialise

    full = Card(parameters=sum(p.numel() for p in network.parameters()), sha256="", **card)
    description = _settings(full.model_dump(mode="json"))
    # a single key: safetensors writes several in random order
    data = serialise({key: value.contiguous() for key, value in network.state_dict().items()}, {"geonp": description})
    hashes = {"sha256": data, "settings_sha256": description.encode()}
    full = full.model_copy(update={key: hashlib.sha256(content).hexdigest() for key, content in hashes.items()})
    file.parent.mkdir(parents=True, exist_ok=True)
    # both are written before either is replaced
    with replacing(file.with_suffix(".json")) as card_file, replacing(file) as weights:
        weights.write_bytes(data)
        card_file.write_text(json.dumps(full.model_dump(), indent=2) + "\n", encoding="utf-8")
    # file systems may give the new files the times and numbers of the earlier ones
    _loaded.cache_clear()
    return full


def weights_folder() -> Path:
    """The folder of the models that ship with geonp."""
    return Path(str(resources.files("geonp.weights")))


def _locate(model: str) -> Path:
    if model.endswith(".safetensors"):
        if not Path(model).is_file():
            raise ModelError(f"no checkpoint at {model!r}: expected a .safetensors file with its .json card beside it")
        return Path(model)
    file = weights_folder() / f"{model}.safetensors"
    if not file.is_file():
        names = ", ".join(sorted(p.stem for p in weights_folder().glob("*.safetensors"))) or "none is installed"
        raise ModelError(f"unknown model {model!r}: expected one of {names}, or the path of a .safetensors file")
    return file


def _read_card(file: Path) -> Card:
    if not file.is_file():
        raise CheckpointError(f"{file}: the card of the checkpoint is missing; copy it beside the weights")
    try:
        content = file.read_bytes()
        card = Card.model_validate_json(content)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise CheckpointError(f"{file}: damaged or altered card: {where}: {first['msg']}") from error
    except OSError as error:
        raise CheckpointError(f"{file}: the card cannot be read: {error.strerror}") from error
    if card.format != FORMAT:
        raise CheckpointError(f"{file}: card format {card.format}, but this geonp reads {FORMAT}; upgrade geonp")
    settings = _settings(json.loads(content))
    if (expected := _expected_hash(card, file)) is not None and expected != _sha256(settings):
        raise CheckpointError(
            f"{file}: damaged or altered card: its {', '.join(HASHED_FIELDS)} have sha256 "
            f"{_sha256(settings)[:12]}..., expected {expected[:12] + '...' if expected else 'one in settings_sha256'}; "
            "reinstall geonp, or copy the checkpoint and its card again"
        )
    inputs = card.config.get("d_x", 2)
    for problem in (*config_errors(card.config), *neighbourhood_errors(card.neighbourhood, inputs)):
        raise CheckpointError(f"{file}: damaged or altered card: {problem}")
    return card


def _expected_hash(card: Card, file: Path) -> str | None:
    """Hash that the settings of a card must have; None if neither it nor the weights of a user say so."""
    if card.settings_sha256 is not None:
        return card.settings_sha256
    if file.parent == weights_folder():
        return ""
    described = _described(file.with_suffix(".safetensors"))
    return None if described is None else _sha256(described)


def _described(file: Path) -> str | None:
    """The settings that :func:`save` has written into a file of weights; None if there are none."""
    with suppress(OSError, ValueError, AttributeError), file.open("rb") as weights:
        length = int.from_bytes(weights.read(8), "little")
        described = json.loads(weights.read(min(length, 2**24))).get("__metadata__", {}).get("geonp")
        return described if isinstance(described, str) else None
    return None


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _settings(card: dict[str, Any]) -> str:
    """Settings of a card that are hashed."""
    return json.dumps({key: card[key] for key in HASHED_FIELDS}, sort_keys=True)
