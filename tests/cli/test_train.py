"""`geonp train` keeps freed memory of its process, and Python callers keep their own settings."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

FAULTS = """
import resource, torch
from contextlib import nullcontext
from geonp.cli.train import memory_kept

def faults(context):
    with context:
        torch.ones(2**24)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(5):
            torch.ones(2**24)
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

print(faults(nullcontext()), faults(memory_kept()), faults(nullcontext()))
"""


@pytest.mark.skipif("glibc" not in platform.libc_ver(), reason="a setting of glibc")
def test_freed_memory_is_reused_while_training_and_no_longer() -> None:
    # in processes of their own: the heap of this one holds free memory. Where an address space happens to leave no room
    # behind the heap, glibc grows it elsewhere and gives nothing back before the process ends
    for _ in range(6):
        done = subprocess.run([sys.executable, "-c", FAULTS], stdout=subprocess.PIPE, check=True)
        before, within, after = map(int, done.stdout.split())
        assert within < 0.5 * before
        if after > 0.5 * before:
            return
    pytest.fail(f"memory was kept: {before} page faults before, {after} after")
