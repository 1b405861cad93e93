"""Checks of the numbers of a model and its neighbourhood, so that impossible ones are reported before it is built.

Each function yields one sentence for each wrong value, which begins with the key.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from geonp.inference.context import Neighbourhood

_NUMBERS = {"tile_px": (2, 4096), "n_context": (1, 2**17), "min_context": (1, 2**17), "overlap_px": (0, 4096)}
_COUNTED = re.compile(r"blocks$|layers$|_steps$|^d_x$|^n_(latents|bootstraps)$")


@dataclass(frozen=True)
class _Limits:
    merge: int = 256
    halo_px: int = 2**16
    count: int = 1024  # of layers, steps or draws, each of which takes its time
    option: int = 2**24


_LIMITS = _Limits()


def config_errors(config: Mapping[str, Any]) -> Iterator[str]:
    """Errors in the options of an architecture, which would be built or computed without end."""
    for key, value in config.items():
        most = _LIMITS.count if _COUNTED.search(key) else _LIMITS.option
        for number in value if isinstance(value, list | tuple) else (value,):
            if isinstance(number, int | float) and not abs(number) <= most:
                yield f"config.{key}: got {value}, expected numbers within {most:,}"
                break


def neighbourhood_errors(neighbourhood: Neighbourhood, d_x: int) -> Iterator[str]:
    """Errors in the neighbourhood of a model with `d_x` inputs."""
    for key, (least, most) in _NUMBERS.items():
        if not least <= getattr(neighbourhood, key) <= most:
            limit = f"at least {least}" if getattr(neighbourhood, key) < least else f"at most {most:,}"
            yield f"neighbourhood.{key}: got {getattr(neighbourhood, key)}, expected {limit}"
    if neighbourhood.min_context > neighbourhood.n_context:
        yield f"neighbourhood.min_context: got {neighbourhood.min_context}, expected at most n_context"
    if neighbourhood.merge > _LIMITS.merge:
        yield f"neighbourhood.merge: got {neighbourhood.merge}, expected at most {_LIMITS.merge}"
    if not 0 < neighbourhood.thinning < math.inf:
        yield f"neighbourhood.thinning: got {neighbourhood.thinning}, expected a number above 0"
    halos = neighbourhood.halos_px
    if not halos or halos[0] < 0 or list(halos) != sorted(set(halos)):
        yield f"neighbourhood.halos_px: got {list(halos)}, expected increasing widths"
    elif halos[-1] > _LIMITS.halo_px:
        yield f"neighbourhood.halos_px: got {list(halos)}, expected widths of at most {_LIMITS.halo_px:,}"
    if neighbourhood.axes and len(neighbourhood.axes) != d_x:
        yield f"neighbourhood.axes: got {len(neighbourhood.axes)}, expected one for each of the model's {d_x} inputs"
    if not all(map(math.isfinite, (number for axis in neighbourhood.axes for number in axis))):
        yield f"neighbourhood.axes: got {neighbourhood.axes}, expected finite numbers"
    if neighbourhood.spacing and not all(0 < abs(step) < math.inf for step in neighbourhood.spacing):
        yield f"neighbourhood.spacing: got {list(neighbourhood.spacing)}, expected steps other than 0"
    if neighbourhood.standard and not (
        math.isfinite(neighbourhood.standard[0]) and 0 < neighbourhood.standard[1] < math.inf
    ):
        yield f"neighbourhood.standard: got {list(neighbourhood.standard)}, expected a deviation above 0"
    yield from _far_errors(neighbourhood)


def _far_errors(neighbourhood: Neighbourhood) -> Iterator[str]:
    far = [list(level) for level in neighbourhood.far]
    sides = [px for px, *_ in far]
    if any(px < 2 or px > _LIMITS.halo_px or n < 1 for px, n in far):
        yield f"neighbourhood.far: got {far}, expected sides of blocks above 1 and numbers of points above 0"
    elif any(small >= px or px % small for small, px in itertools.pairwise(sides)):
        yield f"neighbourhood.far: got sides {sides}, expected each to be a multiple of the one before"
    elif sum(n for _, n in far) + neighbourhood.min_context > neighbourhood.n_context:
        yield f"neighbourhood.far: got {far}, expected fewer points than n_context - min_context in total"
