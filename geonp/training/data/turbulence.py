"""Forced two-dimensional turbulence: a pseudo-spectral solver of Kolmogorov flow (TE-TNP, ICML 2024, equation 40)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from geonp.training.data.constraints import Positive


@dataclass(frozen=True)
class Turbulence:
    """Incompressible flow of unit density in a periodic square of side 2 pi, forced by ``forcing sin(wavenumber y)``.

    The force acts along x. The default values are those of the data of Rozet and Louppe (2023), a Reynolds number of
    1,000; they solve on 256 x 256 cells by finite volumes.

    Attributes
    ----------
    side : int
        Number of grid points along each axis.
    viscosity : float
        Kinematic viscosity.
    forcing, wavenumber : float, int
        Amplitude and wavenumber of the force.
    damping : float
        Rate of linear damping, ``-damping u``.
    step : float
        Time step.
    """

    side: Annotated[int, Field(ge=16, le=1024)] = 128
    viscosity: Annotated[float, Field(ge=0)] = 1e-3
    forcing: float = 1.0
    wavenumber: Annotated[int, Field(ge=1)] = 4
    damping: Annotated[float, Field(ge=0)] = 0.1
    step: Positive = 0.01


def velocity(spectrum: Tensor, side: int) -> Tensor:
    """Velocities ``(..., 2, side, side)``, components along x and y at points ``[..., y, x]``, of their spectrum.

    Of another number of points than the spectrum has, they are interpolated, or the finest waves are dropped.
    """
    n, kept = spectrum.shape[-2], min(side, spectrum.shape[-2])
    half = kept // 2
    other = spectrum.new_zeros(*spectrum.shape[:-2], side, side // 2 + 1)
    other[..., :half, :half] = spectrum[..., :half, :half]
    other[..., 1 - half :, :half] = spectrum[..., 1 - half :, :half]
    out: Tensor = torch.fft.irfft2(other, s=(side, side)) * (side / n) ** 2
    return out


def spectrum_of(velocity: Tensor) -> Tensor:
    """Spectrum ``(..., 2, side, side // 2 + 1)`` of velocities ``(..., 2, side, side)``."""
    out: Tensor = torch.fft.rfft2(velocity)
    return out


def vorticity(spectrum: Tensor) -> Tensor:
    """Vorticity ``dv/dx - du/dy`` at the grid points, ``(..., side, side)``."""
    ky, kx = _wavenumbers(spectrum)
    curl = 1j * (kx * spectrum[..., 1, :, :] - ky * spectrum[..., 0, :, :])
    out: Tensor = torch.fft.irfft2(curl, s=_shape(spectrum))
    return out


def advance(spectrum: Tensor, flow: Turbulence, n_steps: int) -> Tensor:
    """Spectrum of the velocities after `n_steps` time steps.

    The nonlinear term in its rotational form ``u x omega`` is computed at the grid points, waves above two thirds of
    the finest are dropped, and pressure is eliminated by projection. Viscosity and damping are integrated exactly, the
    rest by the Runge-Kutta method of fourth order.
    """
    ky, kx = _wavenumbers(spectrum)
    squared = kx**2 + ky**2
    resolved = (kx.abs() < flow.side / 3) & (ky.abs() < flow.side / 3)
    y = torch.arange(flow.side, dtype=kx.dtype, device=kx.device) * (2 * math.pi / flow.side)
    force = torch.zeros(2, flow.side, flow.side, dtype=kx.dtype, device=kx.device)
    force[0] = (flow.forcing * torch.sin(flow.wavenumber * y))[:, None]
    force = spectrum_of(force)
    decay = torch.exp(-(flow.viscosity * squared + flow.damping) * (flow.step / 2))

    def rate(state: Tensor) -> Tensor:
        u, omega = torch.fft.irfft2(state, s=_shape(state)), vorticity(state)
        product = torch.fft.rfft2(torch.stack([u[..., 1, :, :] * omega, -u[..., 0, :, :] * omega], -3))
        product = product * resolved + force
        divergence = (kx * product[..., 0, :, :] + ky * product[..., 1, :, :]) / squared.clamp_min(1)
        out: Tensor = product - torch.stack([kx * divergence, ky * divergence], -3)
        return out

    for _ in range(n_steps):
        half = decay * spectrum
        first = flow.step * rate(spectrum)
        second = flow.step * rate(half + decay * first / 2)
        third = flow.step * rate(half + second / 2)
        fourth = flow.step * rate(decay * (half + third))
        spectrum = decay * (half + decay * first / 6 + (second + third) / 3) + fourth / 6
    return spectrum


def random_flow(flow: Turbulence, n: int, seed: int, *, peak: int = 4, fastest: float = 3.0) -> Tensor:
    """Spectra of `n` random flows without divergence, with waves around `peak` and the largest speed `fastest`."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.fft.rfft2(torch.randn(n, flow.side, flow.side, generator=generator))
    ky, kx = _wavenumbers(noise[:, None])
    k = (kx**2 + ky**2).sqrt()
    stream = noise * torch.exp(-((k - peak) ** 2) / 2) / k.clamp_min(1)
    spectrum = torch.stack([1j * ky * stream, -1j * kx * stream], 1)
    speed = torch.fft.irfft2(spectrum, s=_shape(spectrum)).square().sum(1).amax((1, 2)).sqrt()
    out: Tensor = spectrum * (fastest / speed)[:, None, None, None]
    return out


def trajectory(flow: Turbulence, seed: int, *, frames: int = 64, side: int = 64) -> Tensor:
    """Velocities ``(frames, 2, side, side)`` of a random flow, 0.2 time units apart, after a time of 12.8."""
    spectrum = advance(random_flow(flow, 1, seed), flow, round(12.8 / flow.step))
    found = [velocity(spectrum, side)]
    for _ in range(frames - 1):
        spectrum = advance(spectrum, flow, round(0.2 / flow.step))
        found.append(velocity(spectrum, side))
    return torch.cat(found)


def _shape(spectrum: Tensor) -> tuple[int, int]:
    return spectrum.shape[-2], spectrum.shape[-2]


def _wavenumbers(spectrum: Tensor) -> tuple[Tensor, Tensor]:
    """Wavenumbers along y ``(side, 1)`` and x ``(side // 2 + 1,)``."""
    side = spectrum.shape[-2]
    dtype = spectrum.real.dtype
    ky = torch.fft.fftfreq(side, 1 / side, dtype=dtype, device=spectrum.device)[:, None]
    return ky, torch.fft.rfftfreq(side, 1 / side, dtype=dtype, device=spectrum.device)
