"""White noise on lattices without end, of which any part can be made on its own.

A block of nodes is drawn by a counter-based generator (Salmon et al. 2011, Philox) whose key is that of the noise and
whose counter is the place of the block. So noise depends on neither chunks nor their order, and not on the number of
samples that are drawn: the first ones of many are those of few.
"""

from __future__ import annotations

import itertools
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from geonp.raster.arrays import AnyIntArray, Float32Array


@dataclass(frozen=True)
class NoiseSettings:
    """Blocks of noise, and the memory for those that are kept."""

    block: int = 256
    """Number of nodes of a block: a power of two."""
    window: int = 32
    """Largest number of nodes of a window that is made whole, for each node that noise is asked around."""
    memory: int = 128 * 2**20
    """Largest size of the blocks that are kept in a process, in bytes. Neighbouring tiles need the same ones."""


NOISE = NoiseSettings()

_BLOCKS: OrderedDict[tuple[int, ...], Float32Array] = OrderedDict()
_LOCK = threading.Lock()


@dataclass(frozen=True)
class Noise:
    """Independent standard normal numbers at the nodes of lattices.

    Attributes
    ----------
    key : tuple of int
        Two numbers below ``2**64`` that identify the noise.
    n : int
        Number of samples.
    """

    key: tuple[int, int]
    n: int

    def at(self, lattice: int, nodes: Sequence[AnyIntArray]) -> tuple[Float32Array, npt.NDArray[np.int32]]:
        """Noise ``(m, n)`` of the blocks that hold some nodes, and the row of each node in it.

        The number of the `lattice` is between 0 and ``2**32``. Nodes are whole coordinates along each of at most three
        dimensions, of one shape, which is also that of their rows.
        """
        bits = (NOISE.block.bit_length() - 1) // len(nodes)
        blocks = [axis >> bits for axis in nodes]
        first = [int(axis.min()) for axis in blocks]
        shape = tuple(int(axis.max()) - start + 1 for axis, start in zip(blocks, first, strict=True))
        place, inside = np.zeros(nodes[0].shape, np.int64), np.zeros(nodes[0].shape, np.int64)
        for axis, block, start, size in zip(nodes, blocks, first, shape, strict=True):
            place = place * size + (block - start)
            inside = (inside << bits) | (axis & ((1 << bits) - 1))
        used, number = np.unique(place, return_inverse=True)
        corners = np.stack(np.unravel_index(used, shape), -1) + first
        noise = np.concatenate([self._block(lattice, corner, bits * len(nodes)) for corner in corners.tolist()])
        return noise, np.asarray((number.reshape(place.shape) << (bits * len(nodes))) | inside, np.int32)

    def around(
        self, lattice: int, nodes: AnyIntArray, offsets: AnyIntArray, period: int | None = None
    ) -> tuple[Float32Array, npt.NDArray[np.int32]]:
        """Noise ``(r, n)`` of the nodes around some nodes, and its rows ``(k, m)``.

        Nodes are coordinates ``(k, d)``, and `offsets` what is added to each of them ``(m, d)``. The last coordinate
        repeats after `period` nodes, if given.
        """
        bits = (NOISE.block.bit_length() - 1) // nodes.shape[1]
        low, high = nodes.min(0) + offsets.min(0), nodes.max(0) + offsets.max(0)
        sizes = high - low + 1
        if sizes.prod() > NOISE.window * len(nodes):
            # few nodes in a wide window
            every = [nodes[:, axis, None] + offsets[:, axis] for axis in range(nodes.shape[1])]
            every[-1] = every[-1] if period is None else every[-1] % period
            return self.at(lattice, every)
        axes = [np.arange(start, end + 1) for start, end in zip(low, high, strict=True)]
        axes[-1] = axes[-1] if period is None else axes[-1] % period
        window = np.empty((*sizes, self.n), np.float32)
        runs = [_runs(axis >> bits) for axis in axes]
        for parts in itertools.product(*runs):
            corner = [int(axis[part.start]) >> bits for axis, part in zip(axes, parts, strict=True)]
            block = self._block(lattice, corner, bits * len(axes)).reshape(*[1 << bits] * len(axes), self.n)
            inside = tuple(axis[part] & ((1 << bits) - 1) for axis, part in zip(axes, parts, strict=True))
            window[parts] = block[np.ix_(*inside)]
        strides = np.append(np.cumprod(sizes[:0:-1])[::-1], 1).astype(np.int64)
        first, steps = ((part @ strides).astype(np.int32) for part in (nodes - low, offsets))
        return window.reshape(-1, self.n), first[:, None] + steps

    def _block(self, lattice: int, corner: list[int], bits: int) -> Float32Array:
        """Noise of a block ``(nodes, n)``."""
        name = (*self.key, self.n, lattice, *corner)
        with _LOCK:
            if name in _BLOCKS:
                _BLOCKS.move_to_end(name)
                return _BLOCKS[name]
        row, col, layer = (*corner, 0, 0)[:3]
        # the first number of a counter is counted up
        counter = np.array([0, row % 2**64, col % 2**64, lattice * 2**32 + layer % 2**32], np.uint64)
        generator = np.random.Generator(np.random.Philox(key=np.array(self.key, np.uint64), counter=counter))
        found = np.ascontiguousarray(generator.standard_normal((self.n, 1 << bits), np.float32).T)
        with _LOCK:
            _BLOCKS[name] = found
            while len(_BLOCKS) * found.nbytes > NOISE.memory:
                _BLOCKS.popitem(last=False)
        return found


def _runs(blocks: AnyIntArray) -> list[slice]:
    """Slices of equal numbers that follow each other."""
    edges = [0, *(np.flatnonzero(np.diff(blocks)) + 1).tolist(), len(blocks)]
    return [slice(start, end) for start, end in itertools.pairwise(edges)]
