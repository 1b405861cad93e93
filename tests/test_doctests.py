"""The examples in the docstrings of public names run, and give what they show."""

from __future__ import annotations

import doctest
from pathlib import Path
from types import ModuleType

import numpy as np
import pandas as pd
import pytest
import xarray as xr

import geonp

NAMES = {name: getattr(geonp, name) for name in geonp.__all__}
FUNCTIONS = {name: found for name, found in NAMES.items() if not isinstance(found, (type, ModuleType))}
METHODS = {f"geonp.{name}": method for name, method in vars(geonp.GeonpAccessor).items() if not name.startswith("_")}


def test_the_examples_of_docstrings_give_what_they_show(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    pytest.importorskip("matplotlib").use("agg")
    wrong: list[str] = []
    for name, found in {**FUNCTIONS, **METHODS, "Distribution": geonp.student.Distribution}.items():
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        names = {"np": np, "pd": pd, "xr": xr, "geonp": geonp}
        (test,) = doctest.DocTestFinder(recurse=False).find(found, name, globs=names)
        assert test.examples, f"{name} has no example"
        for example in test.examples:  # adaptation takes minutes
            example.source = example.source.replace("minutes=10", f"model={model!r}, steps=1, closer=False")
        doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(test, out=wrong.append)
    assert not wrong, "".join(wrong)
