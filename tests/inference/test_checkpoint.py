"""Checkpoints come back as they were saved, or with an error that says what is wrong with them."""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from geonp.errors import CheckpointError, GeonpError, ModelError
from geonp.inference import checkpoint
from geonp.inference.context import Neighbourhood
from geonp.nn.models import build


def edit_card(file: Path, **changes: Any) -> None:
    """Change fields of the card beside `file`, and the hash of its settings with them; None removes one."""
    card = file.with_suffix(".json")
    fields = {**json.loads(card.read_text()), **changes}
    settings = json.dumps({key: fields[key] for key in checkpoint.HASHED_FIELDS}, sort_keys=True)
    fields["settings_sha256"] = hashlib.sha256(settings.encode()).hexdigest()
    card.write_text(json.dumps({key: value for key, value in fields.items() if value is not None}))


def test_round_trip(tmp_path: Path, card_fields: dict[str, Any]) -> None:
    torch.manual_seed(3)
    network = build(card_fields["architecture"], card_fields["config"])
    file = tmp_path / "new" / "folder" / "a.safetensors"
    made = checkpoint.save(network, file, **card_fields)
    assert sorted(p.name for p in file.parent.iterdir()) == ["a.json", "a.safetensors"]
    assert made.sha256 == hashlib.sha256(file.read_bytes()).hexdigest()
    assert made.parameters == sum(math.prod(p.shape) for p in network.parameters())

    loaded, card = checkpoint.load_model(str(file))
    assert card == made == checkpoint.load_card(str(file))
    assert {key: getattr(card, key) for key in card_fields.keys() - {"neighbourhood"}} == {
        key: value for key, value in card_fields.items() if key != "neighbourhood"
    }
    assert card.neighbourhood == Neighbourhood(tile_px=8, halos_px=(8, 16), n_context=32, merge=2)
    assert not loaded.training
    assert not any(p.requires_grad for p in loaded.parameters())
    expected = network.state_dict()
    assert loaded.state_dict().keys() == expected.keys()
    assert all(torch.equal(value, expected[key]) for key, value in loaded.state_dict().items())


def test_models_of_the_same_weights_have_different_hashes(tmp_path: Path, card_fields: dict[str, Any]) -> None:
    network = build(card_fields["architecture"], card_fields["config"])
    cards = [checkpoint.save(network, tmp_path / f"{i}.safetensors", **card_fields) for i in range(2)]
    assert cards[0].sha256 == cards[1].sha256
    # of several keys the order is another in each process
    data = (tmp_path / "0.safetensors").read_bytes()
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    assert list(header["__metadata__"]) == ["geonp"]
    config = {**card_fields["config"], "scoring_steps": 1}
    other = checkpoint.save(network, tmp_path / "other.safetensors", **{**card_fields, "config": config})
    assert other.sha256 != cards[0].sha256


def test_saving_again_replaces_both_files(checkpoint_copy: Path, card_fields: dict[str, Any]) -> None:
    network = build(card_fields["architecture"], card_fields["config"])
    before = checkpoint.load_card(str(checkpoint_copy))
    made = checkpoint.save(network, checkpoint_copy, **{**card_fields, "version": "2"})
    assert made.sha256 != before.sha256
    assert checkpoint.load_model(str(checkpoint_copy))[1] == made
    assert len(list(checkpoint_copy.parent.iterdir())) == 2


def test_a_path_means_the_file_that_is_there_now(
    checkpoint_copy: Path, card_fields: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In another folder, and after another process wrote to it."""
    network = build(card_fields["architecture"], card_fields["config"])
    other = tmp_path / "other" / checkpoint_copy.name
    checkpoint.save(network, other, **{**card_fields, "name": "other"})
    monkeypatch.chdir(checkpoint_copy.parent)
    first = checkpoint.load_model(other.name)[1]
    monkeypatch.chdir(other.parent)
    assert checkpoint.load_model(other.name)[1] == checkpoint.load_card(other.name) != first
    for suffix in (".json", ".safetensors"):
        checkpoint_copy.with_suffix(suffix).replace(other.with_suffix(suffix))
    assert checkpoint.load_model(other.name)[1] == first


def test_a_full_disk_leaves_the_earlier_checkpoint(
    checkpoint_copy: Path, card_fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {path.name: path.read_bytes() for path in checkpoint_copy.parent.iterdir()}
    network = build(card_fields["architecture"], card_fields["config"])

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    for method in ("write_bytes", "write_text"):
        with monkeypatch.context() as patch:
            patch.setattr(Path, method, full)
            with pytest.raises(OSError, match="No space left"):
                checkpoint.save(network, checkpoint_copy, **card_fields)
        assert {path.name: path.read_bytes() for path in checkpoint_copy.parent.iterdir()} == before


@given(st.data())
def test_any_altered_byte_of_the_weights_is_noticed(
    model: str, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    source = Path(model)
    content = bytearray(source.read_bytes())
    content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    file = tmp_path_factory.mktemp("altered") / "a.safetensors"
    file.write_bytes(content)
    file.with_suffix(".json").write_bytes(source.with_suffix(".json").read_bytes())
    with pytest.raises(
        CheckpointError, match=r"a\.safetensors: the weights are damaged or altered: sha256 \w{12}\.\.\.,"
    ):
        checkpoint.load_model(str(file))


def test_truncated_weights_are_noticed(checkpoint_copy: Path) -> None:
    checkpoint_copy.write_bytes(checkpoint_copy.read_bytes()[:1000])
    with pytest.raises(CheckpointError, match=r"damaged or altered.*reinstall geonp, or copy the checkpoint"):
        checkpoint.load_model(str(checkpoint_copy))


def test_a_missing_card_is_noticed(checkpoint_copy: Path) -> None:
    checkpoint_copy.with_suffix(".json").unlink()
    with pytest.raises(CheckpointError, match=r"copy\.json: the card of the checkpoint is missing; copy it"):
        checkpoint.load_model(str(checkpoint_copy))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sha256": None}, "damaged or altered card: sha256: Field required"),
        ({"extra": 1}, "damaged or altered card: extra: Extra inputs are not permitted"),
        ({"parameters": "many"}, "damaged or altered card: parameters: Input should be a valid integer"),
        ({"scores": {"nll": "low"}}, r"damaged or altered card: scores\.nll: Input should be a valid number"),
        (
            {"neighbourhood": {"shape": 1}},
            r"damaged or altered card: neighbourhood\.shape: Unexpected keyword argument",
        ),
        (
            {"neighbourhood": {"tile_px": "a"}},
            r"damaged or altered card: neighbourhood\.tile_px: Input should be a val",
        ),
        ({"format": 2}, "card format 2, but this geonp reads 1; upgrade geonp"),
    ],
)
def test_an_altered_card_is_noticed(checkpoint_copy: Path, changes: dict[str, Any], message: str) -> None:
    edit_card(checkpoint_copy, **changes)
    with pytest.raises(CheckpointError, match=rf"copy\.json: {message}"):
        checkpoint.load_card(str(checkpoint_copy))


@pytest.mark.parametrize("name", ["tiny", "te-pt-tnp", "tnpkr-sa"])
@pytest.mark.parametrize(("field", "key"), [("neighbourhood", "n_context"), ("config", "blocks")])
def test_settings_that_differ_from_their_hash_are_noticed(
    model: str, checkpoint_copy: Path, name: str, field: str, key: str
) -> None:
    source = Path(model) if name == "tiny" else checkpoint.weights_folder() / name
    fields = json.loads(source.with_suffix(".json").read_text())
    for number in (1, -2):
        fields[field][key] += number
        checkpoint_copy.with_suffix(".json").write_text(json.dumps(fields))
        with pytest.raises(CheckpointError, match=r"copy\.json: damaged or altered card: its architecture, config"):
            checkpoint.load_card(str(checkpoint_copy))


@pytest.mark.parametrize(
    ("field", "changes", "message"),
    [
        ("neighbourhood", {"standard": [0.0, -1.0]}, "standard: got .*expected a deviation above 0"),
        ("neighbourhood", {"standard": [0.0, math.inf]}, "neighbourhood.standard: got .*inf.*expected a deviation"),
        ("neighbourhood", {"thinning": 0.0}, "thinning: got 0.0, expected a number above 0"),
        ("neighbourhood", {"tile_px": 10**9}, "tile_px: got 1000000000, expected at most 4,096"),
        ("neighbourhood", {"n_context": 0}, "n_context: got 0, expected at least 1"),
        ("neighbourhood", {"halos_px": [16, 8]}, "halos_px: got .*, expected increasing widths"),
        ("neighbourhood", {"halos_px": [10**12]}, "halos_px: got .*, expected widths of at most 65,536"),
        ("neighbourhood", {"merge": 2**40}, "merge: got 1099511627776, expected at most 256"),
        ("neighbourhood", {"axes": [[1.0, 0.0]] * 3}, "axes: got 3, expected one for each of the model's 2 inputs"),
        ("neighbourhood", {"axes": [[1.0, math.inf]] * 2}, "axes: got .*inf.*, expected finite numbers"),
        ("neighbourhood", {"spacing": [0.0, 1.0]}, "spacing: got .*, expected steps other than 0"),
        ("config", {"blocks": 10**9}, "config.blocks: got 1000000000, expected numbers within 1,024"),
        ("config", {"refine_steps": 10**9}, "config.refine_steps: got 1000000000"),
        ("config", {"dim": 10**12}, "config.dim: got 1000000000000, expected numbers within 16,777,216"),
        ("config", {"scales": [1.0, math.inf]}, "config.scales: got .*inf.*, expected numbers within"),
    ],
)
def test_impossible_numbers_are_refused_at_once(
    checkpoint_copy: Path, field: str, changes: dict[str, Any], message: str
) -> None:
    card = json.loads(checkpoint_copy.with_suffix(".json").read_text())
    edit_card(checkpoint_copy, **{field: {**card[field], **changes}})
    with pytest.raises(CheckpointError, match=rf"copy\.json: damaged or altered card: .*{message}"):
        checkpoint.load_card(str(checkpoint_copy))


@pytest.mark.parametrize("config", [{"dim": 2**22}, {"dim": "wide"}, {"heads": 0}, {"scales": {}}, {"blocks": 1.5}])
def test_a_network_that_is_not_that_of_the_weights_is_never_built(
    checkpoint_copy: Path, config: dict[str, Any]
) -> None:
    card = json.loads(checkpoint_copy.with_suffix(".json").read_text())
    edit_card(checkpoint_copy, config={**card["config"], **config})
    with pytest.raises(CheckpointError, match=r"copy\.safetensors: cannot be loaded by this version of geonp"):
        checkpoint.load_model(str(checkpoint_copy))


def without_hash(file: Path, **changes: Any) -> None:
    """Remove the hash from the card beside `file`, and change other fields."""
    card = file.with_suffix(".json")
    fields = {**json.loads(card.read_text()), **changes}
    del fields["settings_sha256"]
    card.write_text(json.dumps(fields))


def test_weights_confirm_a_card_of_an_earlier_version(checkpoint_copy: Path) -> None:
    without_hash(checkpoint_copy)
    assert checkpoint.load_model(str(checkpoint_copy))[1].settings_sha256 is None
    neighbourhood = json.loads(checkpoint_copy.with_suffix(".json").read_text())["neighbourhood"]
    edit_card(checkpoint_copy)
    without_hash(checkpoint_copy, neighbourhood={**neighbourhood, "n_context": 16})
    with pytest.raises(CheckpointError, match=r"altered card: its architecture, config, neighbourhood have sha256"):
        checkpoint.load_card(str(checkpoint_copy))


def test_a_card_that_nothing_confirms_is_warned_of(checkpoint_copy: Path) -> None:
    weights = load_file(checkpoint_copy)
    save_file(weights, checkpoint_copy)  # as earlier versions did, without metadata
    hashes = {"sha256": hashlib.sha256(checkpoint_copy.read_bytes()).hexdigest()}
    hash_of_settings = json.loads(checkpoint_copy.with_suffix(".json").read_text())["settings_sha256"]
    without_hash(checkpoint_copy, **hashes)
    with pytest.warns(UserWarning, match=f'earlier version of geonp.*add "settings_sha256": "{hash_of_settings}"'):
        checkpoint.load_model(str(checkpoint_copy))


@pytest.mark.parametrize("value", ["", "0" * 64])
def test_a_hash_that_is_empty_or_wrong_is_refused(checkpoint_copy: Path, value: str) -> None:
    card = checkpoint_copy.with_suffix(".json")
    card.write_text(json.dumps({**json.loads(card.read_text()), "settings_sha256": value}))
    with pytest.raises(CheckpointError, match=r"copy\.json: damaged or altered card: its .* have sha256"):
        checkpoint.load_card(str(checkpoint_copy))


def test_a_shipped_card_has_a_hash(checkpoint_copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "weights_folder", lambda: checkpoint_copy.parent)
    without_hash(checkpoint_copy)
    with pytest.raises(CheckpointError, match="expected one in settings_sha256; reinstall geonp"):
        checkpoint.load_card("copy")


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[]"])
def test_a_card_that_is_no_json_object_is_noticed(checkpoint_copy: Path, content: bytes) -> None:
    checkpoint_copy.with_suffix(".json").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"copy\.json: damaged or altered card: the file: "):
        checkpoint.load_card(str(checkpoint_copy))


@pytest.mark.parametrize(
    "changes",
    [
        {"architecture": "perceptron"},
        {"config": {"depth": 3}},
        {"config": {}},  # another model than the weights are of
    ],
)
def test_a_model_of_another_version_is_noticed(checkpoint_copy: Path, changes: dict[str, Any]) -> None:
    edit_card(checkpoint_copy, **changes)
    with pytest.raises(CheckpointError, match=r"copy\.safetensors: cannot be loaded by this version of geonp: "):
        checkpoint.load_model(str(checkpoint_copy))


def test_weights_in_another_format_are_noticed(checkpoint_copy: Path) -> None:
    torch.save({"a": torch.zeros(3)}, checkpoint_copy)
    edit_card(checkpoint_copy, sha256=hashlib.sha256(checkpoint_copy.read_bytes()).hexdigest())
    with pytest.raises(CheckpointError, match=r"copy\.safetensors: cannot be loaded by this version of geonp: "):
        checkpoint.load_model(str(checkpoint_copy))


def test_unknown_models() -> None:
    with pytest.raises(
        ModelError, match=r"unknown model 'no-such': expected one of .*, or the path of a \.safetensors"
    ):
        checkpoint.load_model("no-such")
    with pytest.raises(ModelError, match=r"no checkpoint at 'no/such\.safetensors': expected a \.safetensors file"):
        checkpoint.load_card("no/such.safetensors")
    assert issubclass(ModelError, GeonpError)
    assert issubclass(ModelError, ValueError)
    assert issubclass(CheckpointError, GeonpError)


def test_shipped_models_are_listed_and_load(monkeypatch: pytest.MonkeyPatch, model: str, tmp_path: Path) -> None:
    for name, card in checkpoint.available().items():
        assert checkpoint.load_model(name)[1] == card
    monkeypatch.setattr(checkpoint, "weights_folder", lambda: tmp_path)
    assert checkpoint.available() == {}
    with pytest.raises(ModelError, match="expected one of none is installed"):
        checkpoint.load_card("tiny")
    for suffix in (".safetensors", ".json"):
        (tmp_path / f"tiny{suffix}").write_bytes(Path(model).with_suffix(suffix).read_bytes())
    assert list(checkpoint.available()) == ["tiny"]
    assert checkpoint.load_card("tiny") == checkpoint.load_card(model)
    with pytest.raises(ModelError, match="unknown model 'other': expected one of tiny, or"):
        checkpoint.load_card("other")


# --- starting from other weights --------------------------------------------------------------------------------------


def test_starting_from_the_same_architecture_takes_all_weights(model: str, card_fields: dict[str, Any]) -> None:
    network = build(card_fields["architecture"], card_fields["config"])
    checkpoint.start_from(network, model)
    expected = checkpoint.load_model(model)[0].state_dict()
    assert all(torch.equal(value, expected[key]) for key, value in network.state_dict().items())


def test_starting_from_another_architecture_takes_what_fits(model: str, card_fields: dict[str, Any]) -> None:
    """TE-PT-TNP for rasters has embedding, norms and head of TNP-KR; all else stays as it was initialised."""
    shared = ("dim", "heads", "scales", "directional_scales", "head", "n_refine")
    network = build("te-pt-tnp", {**{key: card_fields["config"][key] for key in shared}, "blocks": 1})
    before = {key: value.clone() for key, value in network.state_dict().items()}
    checkpoint.start_from(network, model)
    source, own = checkpoint.load_model(model)[0].state_dict(), network.state_dict()
    taken = {key for key in own if key in source}
    assert {key.partition(".")[0] for key in taken} == {"observed", "embed", "norm_in", "norm_out", "head"}
    assert all(torch.equal(own[key], source[key] if key in taken else before[key]) for key in own)


def test_starting_from_what_does_not_fit_is_refused(model: str, card_fields: dict[str, Any]) -> None:
    with pytest.raises(
        ModelError, match=r"cannot start from .*'tnp-kr', and none of its weights has the name and shape"
    ):
        checkpoint.start_from(build("convcnp", {"d_x": 2, "channels": 8, "blocks": 1}), model)
    for option, value in (("dim", 32), ("blocks", 0)):
        with pytest.raises(
            CheckpointError, match=r"^cannot start from .*whose options differ: [^\n]*training\.start[^\n]*$"
        ):
            checkpoint.start_from(build("tnp-kr", {**card_fields["config"], option: value}), model)


def test_starting_a_deeper_network_takes_what_there_is(model: str, card_fields: dict[str, Any]) -> None:
    network = build("tnp-kr", {**card_fields["config"], "scoring_steps": 1})
    before = {key: value.clone() for key, value in network.state_dict().items()}
    checkpoint.start_from(network, model)
    source = checkpoint.load_model(model)[0].state_dict()
    assert {key for key in before if key not in source} == {key for key in before if key.startswith("head.priors.")}
    assert all(torch.equal(value, source.get(key, before[key])) for key, value in network.state_dict().items())
