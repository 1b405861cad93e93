"""Zarr stores that are written region by region, and the folders around them."""

from __future__ import annotations

import math
import shutil
import warnings
from pathlib import Path
from typing import Any, Literal, NoReturn

import dask.array
import fsspec
import numcodecs
import numpy as np
import pytest
import xarray as xr
import zarr
from zarr.storage import LocalStore

from geonp.errors import InputError, OutputError
from geonp.io.files import open_raster
from geonp.io.journal import Journal
from geonp.io.location import check_writable, identity, require_apart, resolved
from geonp.io.steady import SteadyStore
from geonp.io.stores import Store


def raster() -> xr.Dataset:
    values = xr.DataArray(dask.array.zeros((4, 6), chunks=2, dtype="f4"), dims=("y", "x"), attrs={"units": "m"})
    values.encoding = {"dtype": np.dtype("int16"), "_FillValue": -1, "scale_factor": 0.5}
    label = xr.DataArray(np.array(["one", "two", "three", "four"]), dims="y")
    return xr.Dataset({"a": values, "label": label})


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store(str(tmp_path / "a.zarr"))
    store.create(raster(), ["a"], 3)
    return store


def test_regions_are_encoded_and_the_store_is_unfinished_until_it_is_complete(store: Store) -> None:
    store.write({"a": np.full((2, 6), 7.0)}, {"y": slice(2, 4)})
    with pytest.raises(InputError, match="unfinished result of geonp fill: finish it with resume"):
        open_raster(store.url)
    store.complete({"title": "a store"})
    ds = open_raster(store.url)
    np.testing.assert_array_equal(ds["a"], np.repeat([np.nan, 7.0], [12, 12]).reshape(4, 6))
    assert ds["a"].encoding["dtype"] == np.int16
    assert ds["label"].values.tolist() == ["one", "two", "three", "four"]
    assert ds.attrs == {"title": "a store"}
    assert store.attributes() == {"title": "a store"}


def test_a_store_whose_removal_stops_is_no_store(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> NoReturn:
        raise OSError("the connection is lost")

    with monkeypatch.context() as patch:
        patch.setattr(fsspec.implementations.local.LocalFileSystem, "rm", refuse)
        with pytest.raises(OSError, match="lost"):
            store.remove()
    assert Path(store.url).exists()
    assert not store.exists()
    assert store.occupied()
    store.remove()
    assert not store.occupied()


def test_a_place_is_found_by_any_path_to_it(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    path = Path(store.url)
    monkeypatch.chdir(path.parent)
    for place in ("a.zarr", "./a.zarr", f"file://{path}", f"{path}/"):
        assert resolved(place) == store.url
    assert resolved("s3://bucket/a.zarr/") == "s3://bucket/a.zarr"
    require_apart("a.zarr", {"input": "a.zarr.zarr", "mask": "s3://bucket/a.zarr"})
    for target, other in (("a.zarr", "a.zarr/b"), ("a.zarr/b", "a.zarr"), ("s3://b/a.zarr", "s3://b/a.zarr/in.zarr")):
        with pytest.raises(InputError, match="The input and the output contain one another"):
            require_apart(target, {"input": other})


def test_identity_changes_with_the_files(store: Store) -> None:
    before = identity(store.url)
    assert identity(store.url) == before
    (Path(store.url) / "more").write_text("x")
    assert identity(store.url) != before


def test_a_journal_names_what_changed_and_ignores_truncated_records(tmp_path: Path) -> None:
    journal = Journal(str(tmp_path / "a.zarr"))
    assert (journal.job(), journal.progress()) == (None, None)
    job = {"geonp": "1", "input": "2", "model": "3", "parameters": "4", "layout": "5", "units": "3"}
    journal.begin(job)
    assert not journal.created()
    journal.note_created()
    assert journal.created()
    journal.record("one", {"filled": 1})
    journal.record("two", {"error": "no"})
    journal.record("extreme", extreme := {"filled": 2, "glance": {"extremes": [[[-9999.0, 3]], -0.5, math.inf]}})
    units = tmp_path / "a.zarr.journal" / "units"
    (units / "three.json").write_text('{"fil')
    for number, damaged in enumerate(
        (
            *(
                "[]",
                "3",
                '{"filled": -1}',
                '{"filled": null}',
                '{"seen": [[1]]}',
                '{"a": 0.5}',
            ),
            *('{"glance": [1]}', '{"glance": {"extremes": [1, 2]}}', '{"glance": {"sample": ["a"]}}'),
            *('{"glance": {"extremes": [[[1, "a"]], 0, 0]}}', '{"glance": {"invalid": [1]}}'),
            *('{"filled": "1"}', '{"filled": [1]}', '{"filled": true}', '{"seen": 1}', '{"error": 1}'),
        )
    ):
        (units / f"damaged{number}.json").write_text(damaged)
    assert journal.records() == {"one": {"filled": 1}, "two": {"error": "no"}, "extreme": extreme}
    assert journal.progress() == {"units": 3, "finished": 2, "failed": 1}
    journal.require_same(job)
    with pytest.raises(InputError, match="was started by another job: the model and an option changed since"):
        journal.require_same({**job, "model": "0", "parameters": "0"})
    file = tmp_path / "a.zarr.journal" / "job.json"
    for damaged in ("[]", '{"units": []}', '{"units": "-3"}', "{", "\x00"):
        file.write_text(damaged)
        assert (journal.job(), journal.progress()) == (None, None)
    journal.begin(job)
    assert journal.records() == {}
    journal.remove()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("chunks", [None, "auto"])
def test_a_chunk_that_is_missed_for_a_moment_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunks: Literal["auto"] | None
) -> None:
    values = np.arange(12.0).reshape(3, 4)
    values[:, 2:] = np.nan  # whose chunk is not written
    ds = xr.Dataset({"a": (("y", "x"), values)})
    ds.to_zarr(tmp_path / "a.zarr", encoding={"a": {"chunks": (3, 2), "fill_value": np.nan}}, consolidated=False)
    assert not (tmp_path / "a.zarr" / "a" / "c" / "0" / "1").exists()
    opened, get, away = open_raster(tmp_path / "a.zarr", chunks=chunks), LocalStore.get, [True]

    async def flapping(self: LocalStore, key: str, *args: Any) -> Any:
        return None if key == "a/c/0/0" and away and away.pop() else await get(self, key, *args)

    monkeypatch.setattr(LocalStore, "get", flapping)
    np.testing.assert_array_equal(opened["a"].values, values)
    assert not away
    (tmp_path / "a.zarr").rename(tmp_path / "b.zarr")
    with pytest.raises(InputError, match=r"vanished while it was read: got neither the chunk 'a/c/0/\d' nor its array"):
        opened["a"].load()


@pytest.mark.parametrize("consolidated", [False, True])
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_an_array_that_vanishes_from_its_group_is_no_gap(
    tmp_path: Path, zarr_format: Literal[2, 3], consolidated: bool
) -> None:
    path, ds = tmp_path / "a.zarr", xr.Dataset({"a": (("y", "x"), np.ones((3, 4)))})
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Consolidated metadata")
        ds.to_zarr(path, zarr_format=zarr_format, consolidated=consolidated)
    opened = open_raster(path)
    shutil.rmtree(path / "a")
    with pytest.raises(InputError, match="The input vanished while it was read"):
        opened.load()


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_a_chunk_that_was_cut_or_says_that_it_is_longer_is_refused(tmp_path: Path, zarr_format: Literal[2, 3]) -> None:
    compressor: Any = numcodecs.Blosc() if zarr_format == 2 else zarr.codecs.BloscCodec()
    array = zarr.create_array(
        tmp_path / "a.zarr", shape=(100,), chunks=(100,), dtype="i2", zarr_format=zarr_format, compressors=compressor
    )
    array[:] = np.arange(100)
    chunk = tmp_path / "a.zarr" / ("0" if zarr_format == 2 else "c/0")
    content = chunk.read_bytes()
    for damaged in (content[:-3], content[:9], content[:12] + b"\xff\xff\xff\x7f" + content[16:]):
        chunk.write_bytes(damaged)
        with pytest.raises(InputError, match=r"damaged chunk: got \d+ bytes, but its header says [\d,]+"):
            array[:]
    chunk.write_bytes(content)
    np.testing.assert_array_equal(array[:], np.arange(100))


def test_folders_are_made_if_asked_and_refused_if_not_writable(tmp_path: Path) -> None:
    check_writable(tmp_path / "new" / "folder", "", make=True)
    assert (tmp_path / "new" / "folder").is_dir()
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match=r"Cannot write to the folder '.*file': .*\. Choose another\."):
        check_writable(tmp_path / "file", "Choose another.", make=True)


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_arrays_without_names_of_dimensions_are_refused(tmp_path: Path, zarr_format: Literal[2, 3]) -> None:
    zarr.open_group(tmp_path / "a.zarr", mode="w", zarr_format=zarr_format).create_array("t", data=np.ones((3, 4)))
    for place, array in (("a.zarr", "a.zarr/t"), ("a.zarr/t", "a.zarr/t")):
        with pytest.raises(
            InputError, match=rf"'.*{array}' is a Zarr array without the names of its dimensions: .*\(\('y"
        ):
            open_raster(tmp_path / place)
    attrs = {"_FillValue": -9.0, "_ARRAY_DIMENSIONS": ["y", "x"]}
    about: dict[str, Any] = {"dimension_names": ["y", "x"]} if zarr_format == 3 else {}
    group = zarr.open_group(tmp_path / "b.zarr", mode="w", zarr_format=zarr_format)
    group.create_array("t", data=np.full((3, 4), -9.0), attributes=attrs, **about)
    if zarr_format == 3:
        with pytest.raises(
            InputError, match=r"'t' in .*b.zarr' has the attribute _FillValue -9.0, .* --nodata -9.0: .*pop\('_F"
        ):
            open_raster(tmp_path / "b.zarr")
        opened = zarr.open_array(f"{tmp_path}/b.zarr/t")
        for fill, advice in {"NaN": "--nodata nan:", "-9999": "--nodata -9999:", "null": "Remove it: zarr"}.items():
            opened.attrs["_FillValue"] = None if fill == "null" else fill
            with pytest.raises(InputError, match=rf"attribute _FillValue {opened.attrs['_FillValue']}, .*{advice}"):
                open_raster(tmp_path / "b.zarr")
        opened.attrs.pop("_FillValue")
        assert open_raster(tmp_path / "b.zarr", nodata=-9.0)["t"].isnull().all()


def test_consolidated_metadata_may_be_older_than_the_arrays(tmp_path: Path) -> None:
    ds = xr.Dataset({"a": (("t", "y", "x"), np.ones((2, 3, 4)))})
    ds.to_zarr(tmp_path / "a.zarr", zarr_format=2, consolidated=True)
    ds.to_zarr(tmp_path / "a.zarr", zarr_format=2, consolidated=False, append_dim="t")
    assert open_raster(tmp_path / "a.zarr")["a"].shape == (4, 3, 4)


def test_lazy_arrays_of_a_store_are_the_same_whatever_was_read_before(tmp_path: Path) -> None:
    ds = xr.Dataset({name: ("x", np.arange(4.0)) for name in "abcdefgh"})
    ds.to_zarr(tmp_path / "a.zarr", consolidated=False)

    def name_of(*read: str) -> str:
        group = zarr.open_group(SteadyStore(LocalStore(tmp_path / "a.zarr", read_only=True)), mode="r")
        for name in read:
            group[name]
        return str(xr.Variable("x", xr.backends.zarr.ZarrArrayWrapper(group["a"])).chunk(2).data.name)

    assert name_of() == name_of(*"bcdefgh") == name_of(*"hgfedcb")
