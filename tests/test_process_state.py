"""Importing geonp, filling and training leave the settings of the process as they were."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

SPY = """
import ctypes, json, logging, sys, threading

tuned = []

class Spy(ctypes.CDLL):
    def __getattr__(self, name):
        if name.startswith("mall"):
            tuned.append(name)
        return super().__getattr__(name)

ctypes.CDLL = Spy
"""

STATE = """
states = []

def state():
    import torch
    levels = {name: logging.getLogger(name).level for name in logging.root.manager.loggerDict}
    later = []
    thread = threading.Thread(target=lambda: later.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    levels = {name: level for name, level in levels.items() if level}
    return [levels, logging.root.level, len(logging.root.handlers), torch.get_num_threads(), later, [*tuned]]
"""

IMPORT = """
import geonp
for name in geonp.__all__:
    getattr(geonp, name)
"""

FILL = """
import dask, numpy, xarray
dask.config.set(num_workers=2)
values = numpy.add.outer(numpy.sin(numpy.arange(60.0)), numpy.arange(50.0))
values[::7, 3:30] = numpy.nan
xarray.DataArray(values, dims=("y", "x"), name="a").geonp.infill(model=sys.argv[1], device="cpu")
"""


TRAIN = """
import pathlib, tempfile
from geonp.training.loop import train
from geonp.training.recipe import load
small = ["model.architecture=cnp", "training.steps=2", "training.batch_size=1", "training.validation_batches=1"]
with tempfile.TemporaryDirectory() as folder:
    train(load("gp2d_rbf", small), pathlib.Path(folder), workers=0, progress=False, device="cpu")
"""


LIBRARIES = """
import dask.array, lightning_fabric, matplotlib.figure, rasterio, torch, xarray, zarr
dask.array.zeros(1).compute()
"""
NOTE = "\nstates.append(state())\n"
THREADS = "torch.set_num_threads(3)\n"
CHANGES = "logging.getLogger('geonp').setLevel(10)\ntorch.set_num_threads(5)\nSpy(None).mallopt(-1, -1)"


def outcomes(code: str, *arguments: str) -> list[Any]:
    """States of a fresh interpreter that runs some code, wherever this notes them."""
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    command = [sys.executable, "-W", "ignore", "-c", f"{SPY}{STATE}{code}\nprint(json.dumps(states))", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    found: list[Any] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def without_geonp() -> list[Any]:
    """States with the libraries alone: at first, with threads, and after changes of all kinds."""
    return outcomes(f"{LIBRARIES}{NOTE}{THREADS}{NOTE}{CHANGES}{NOTE}")


def test_the_state_would_be_seen_to_change(without_geonp: list[Any]) -> None:
    _, _, (levels, _, _, threads, later, tuned) = without_geonp
    assert (levels["geonp"], threads, later, tuned) == (10, 5, [5], ["mallopt"])


def test_importing_filling_and_training_leave_the_process_as_it_was(model: str, without_geonp: list[Any]) -> None:
    at_first, with_threads, _ = without_geonp
    found = outcomes(f"{IMPORT}{LIBRARIES}{NOTE}{THREADS}{FILL}{NOTE}{TRAIN}{NOTE}", model)
    assert found == [at_first, with_threads, with_threads]


def test_the_logger_of_geonp_is_silent_until_somebody_listens() -> None:
    code = "import logging, geonp; logging.getLogger('geonp.fill').warning('heard')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")


FORK = """
import os, signal, sys
import numpy, xarray
values = numpy.add.outer(numpy.sin(numpy.arange(60.0)), numpy.arange(50.0))
values[::7, 3:30] = numpy.nan
da = xarray.DataArray(values, dims=("y", "x"), name="a").chunk(x=25)
filled = da.geonp.infill(model=sys.argv[1], device="cpu").compute()
child = os.fork()
if child == 0:
    signal.alarm(60)
    again = da.geonp.infill(model=sys.argv[1], device="cpu").compute()
    os._exit(0 if again.equals(filled) else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), "torch._dynamo" in sys.modules)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_process_that_was_forked_after_a_fill_can_fill(model: str) -> None:
    """A fill does not import the compiler of torch, which takes longer than a small fill."""
    command = [sys.executable, "-W", "ignore", "-c", "import geonp\n" + FORK, model]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert (done.stdout.strip(), done.returncode) == ("0 False", 0), done.stderr
