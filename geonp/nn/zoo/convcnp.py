"""ConvCNP: convolutional conditional neural process for scattered points in one or two dimensions."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.distributions import Normal

from geonp.nn.heads import gaussian
from geonp.nn.layers import MLP, drop_masked, in_chunks

MAX_CELLS = 2**22
"""Most cells of a grid. More of them usually mean that the coordinates are in the wrong unit."""

TARGET_CHUNK = 2**10
"""Targets that read the grid at a time."""

DEFAULTS = {1: (64.0, 11, 19), 2: (16.0, 8, 9)}
"""Density, blocks and kernel size in one and two dimensions, from the comparison in TNP-KR v2."""


class ConvCNP(nn.Module):
    """ConvCNP (Gordon et al. 2020): Gaussian kernels from context to grid, residual CNN, kernels from grid to targets.

    The first channel of the grid is the density of the context, the others are the values divided by it. `blocks`
    residual blocks of two depthwise separable convolutions (``affine, ReLU, depthwise, pointwise``) follow. The targets
    read the grid through a normalised Gaussian kernel and an MLP. Kernel lengths are learned. `d_x` is 1 or 2;
    `density` (grid points per unit of the coordinates), `blocks` and `kernel_size` default to the published values.
    Costs ``O(n_c + n_t)`` times the number of cells, and the convolutions.

    Equivariant to translations by whole cells, up to the zero padding beyond the margin.

    Deviations: the published comparison has a fixed grid; here it spans the points of the batch and a `margin`. Its
    batch norms, whose statistics were never updated, are affine maps.
    """

    def __init__(
        self,
        *,
        d_x: int = 2,
        d_y: int = 1,
        channels: int = 128,
        density: float | None = None,
        blocks: int | None = None,
        kernel_size: int | None = None,
        head_layers: int = 4,
        margin: float = 0.5,
        min_scale: float = 0.0,
    ) -> None:
        super().__init__()
        if d_x not in DEFAULTS:
            raise ValueError(f"d_x must be 1 or 2, got {d_x}")
        options = (density, blocks, kernel_size)
        points, n_blocks, size = (d if o is None else o for o, d in zip(options, DEFAULTS[d_x], strict=True))
        self.density, self.margin, self.min_scale = float(points), margin, min_scale
        convolution = nn.Conv1d if d_x == 1 else nn.Conv2d
        self.log_length_in = nn.Parameter(torch.full((1 + d_y,), -1.0))
        self.log_length_out = nn.Parameter(torch.full((1,), -1.0))
        self.project = convolution(1 + d_y, channels, 1)
        self.blocks = nn.ModuleList(_ResidualBlock(convolution, channels, int(size)) for _ in range(int(n_blocks)))
        self.finish = convolution(channels, channels, 1)
        self.head = MLP(*[channels] * (head_layers + 1), 2 * d_y, relu=True)

    def forward(self, xc: Tensor, yc: Tensor, xt: Tensor, context_mask: Tensor | None = None) -> Normal:
        """Predict targets from context: shapes, mask and result as in :meth:`geonp.nn.tnp_kr.TNPKR.forward`.

        Raises ValueError if the points span more than ``MAX_CELLS`` cells.
        """
        xc, yc, context_mask = drop_masked(xc, yc, context_mask)
        if not xt.shape[1]:
            return gaussian(yc.new_zeros(len(xt), 0, 2 * yc.shape[-1]))
        axes = self._axes(xc, xt, context_mask)
        values = torch.cat([torch.ones_like(yc[..., :1]), yc], -1) * context_mask[..., None]
        grid = _to_grid(_kernels(xc, axes, self.log_length_in), values)
        grid = torch.cat([grid[:, :1], grid[:, 1:] / (grid[:, :1] + 1e-4)], 1)
        grid = self.project(grid)
        if grid.ndim == 4:
            # halves the time of the backward pass of depthwise convolutions on a CPU
            grid = grid.contiguous(memory_format=torch.channels_last)
        for block in self.blocks:
            grid = block(grid)
        grid = self.finish(grid)

        def decode(x: Tensor) -> Tensor:
            kernels = [kernel[:, 0] for kernel in _kernels(x, axes, self.log_length_out)]
            # normalised, so that targets read means for any density of the grid
            kernels = [kernel / kernel.sum(-1, keepdim=True).clamp_min(1e-12) for kernel in kernels]
            out: Tensor = self.head(_from_grid(kernels, grid))
            return out

        return gaussian(in_chunks(decode, xt, TARGET_CHUNK), self.min_scale)

    def _axes(self, xc: Tensor, xt: Tensor, context_mask: Tensor) -> list[Tensor]:
        """Coordinates of the cells along each axis, multiples of the spacing, that span all points and the margin."""
        # masked points are moved to a target
        points = torch.cat([torch.where(context_mask[..., None], xc, xt[:, :1]), xt], 1).detach().flatten(0, 1)
        border = round(self.margin * self.density)
        first = (points.amin(0) * self.density).floor().long() - border
        last = (points.amax(0) * self.density).ceil().long() + border
        cells = (last - first + 1).tolist()
        n_cells = torch.tensor(cells).prod().item()
        if n_cells > MAX_CELLS:
            raise ValueError(
                f"the points span a grid of {' x '.join(map(str, cells))} cells, expected at most {MAX_CELLS}: "
                f"lower the density of {self.density} points per unit, or rescale the coordinates"
            )
        starts = first.tolist()
        return [torch.arange(a, a + n, device=xt.device) / self.density for a, n in zip(starts, cells, strict=True)]


class _ResidualBlock(nn.Module):
    """``x + f(f(x))``, where f is an affine map of each channel, ReLU, depthwise and pointwise convolution."""

    def __init__(self, convolution: type[nn.Conv1d] | type[nn.Conv2d], channels: int, size: int) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.ones(2, channels))
        self.biases = nn.Parameter(torch.zeros(2, channels))
        self.depthwise = nn.ModuleList(
            convolution(channels, channels, size, padding="same", groups=channels) for _ in range(2)
        )
        self.pointwise = nn.ModuleList(convolution(channels, channels, 1) for _ in range(2))

    def forward(self, grid: Tensor) -> Tensor:
        """``(batch, channels, *cells)`` to the same shape."""
        out = grid
        for weight, bias, depthwise, pointwise in zip(
            self.weights, self.biases, self.depthwise, self.pointwise, strict=True
        ):
            shape = (-1, *[1] * (grid.ndim - 2))
            out = pointwise(depthwise(torch.relu(out * weight.view(shape) + bias.view(shape))))
        return grid + out


def _kernels(x: Tensor, axes: list[Tensor], log_length: Tensor) -> list[Tensor]:
    """Gaussian kernels along each axis, ``(batch, lengths, n, cells)`` each."""
    lengths = log_length.exp()[:, None, None]
    return [torch.exp(-0.5 * ((x[:, None, :, i, None] - axis) / lengths).square()) for i, axis in enumerate(axes)]


def _to_grid(kernels: list[Tensor], values: Tensor) -> Tensor:
    """Kernel-weighted sums of values ``(batch, n, channels)`` at the cells, with a kernel for each channel."""
    weighted = kernels[0] * values.mT[..., None]
    return weighted.sum(2) if len(kernels) == 1 else weighted.mT @ kernels[1]


def _from_grid(kernels: list[Tensor], grid: Tensor) -> Tensor:
    """Kernel-weighted sums of a grid of channels at the points, ``(batch, n, channels)``."""
    if len(kernels) == 1:
        return kernels[0] @ grid.mT
    # along the rows, then along the columns
    rows = torch.einsum("bni,bcij->bncj", kernels[0], grid)
    return torch.einsum("bncj,bnj->bnc", rows, kernels[1])
