"""Maps beside each other, of one slice or of several, with coordinates and colour bars."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from geonp.errors import from_extra
from geonp.raster.arrays import FloatArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class PictureSettings:
    """Sizes of pictures."""

    side_px: int = 1000
    """Largest number of rows and of columns of a panel: of more, every n-th is shown."""
    slices: int = 6
    """Largest number of slices of a stack."""
    panel_in: float = 4.6
    """Larger side of a panel of a single slice, in inches."""
    small_in: float = 2.5
    """That of a stack."""
    dpi: int = 150
    tails: float = 0.01
    """Share of the values beyond each end of a colour bar."""
    balance: float = 1 / 3
    """Values of both signs have a diverging colour map if neither side is shorter than this share of the other."""
    named: int = 20
    """Largest number of classes with a name of their own."""


PICTURE = PictureSettings()

_EMPTY = "#f4f4f2"
_INK, _LINE = "#22272e", "#b9c0c8"
_STYLE: Any = {  # the type of matplotlib's parameters changes with its version
    **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color"), _INK),
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.edgecolor": _LINE,
    "axes.facecolor": _EMPTY,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "text.parse_math": False,  # units may have a dollar sign
}


@dataclass(frozen=True, eq=False)
class Places:
    """Measurements in the coordinates of a grid, shown as points: x, y and value of each."""

    x: FloatArray
    y: FloatArray
    values: FloatArray
    outlined: bool = False

    @property
    def size(self) -> float:
        """Area of a point, in square points; of outlined ones, which have no map beneath them, larger."""
        most, largest = (16000, 60) if self.outlined else (4000, 30)
        return float(np.clip(most / max(1, self.x.size), 2, largest))


@dataclass(frozen=True, eq=False)
class Panel:
    """One map or, of a stack, a row of maps ``(slices, rows, columns)`` with one colour bar."""

    title: str
    values: FloatArray
    style: Mapping[str, Any]
    label: str = ""
    extend: str = "neither"
    names: Sequence[str] = ()
    places: Places | None = None


@dataclass(frozen=True, eq=False)
class Frame:
    """Where the cells of a panel are: an extent in the coordinates that are shown, or uneven centres."""

    aspect: float
    labels: tuple[str, str]
    extent: tuple[float, float, float, float]
    upper: bool
    flipped: bool
    degrees: bool = False
    scale: float = 1.0
    centres: tuple[FloatArray, FloatArray] | None = field(default=None)

    @property
    def ratio(self) -> float:
        """Width of a panel divided by its height."""
        west, east, south, north = self.extent
        return abs(east - west) / (abs(north - south) * self.aspect or 1.0)


def require_matplotlib() -> None:
    """Check that pictures can be drawn. Raises MissingExtraError without matplotlib."""
    with from_extra("plot", "matplotlib"):
        import matplotlib  # noqa: F401


def drawn(
    panels: Sequence[Panel], frame: Frame, title: str, note: str = "", columns: Sequence[str] | None = None
) -> Figure:
    """Draw panels as a figure; with `columns`, the titles of several slices, as a strip.

    Raises MissingExtraError without matplotlib.
    """
    require_matplotlib()
    import matplotlib
    from matplotlib.figure import Figure

    if "ipykernel" in sys.modules:
        # a notebook learns how to show figures from pyplot, which would show those of its own a second time
        from matplotlib import pyplot

        pyplot.close(pyplot.figure())
    with matplotlib.rc_context(_STYLE):
        figure = _maps(Figure, panels, frame) if columns is None else _strip(Figure, panels, columns, frame)
        layout: Any = figure.get_layout_engine()
        layout.set(w_pad=0.08, h_pad=0.06)
        # in inches, about the width of a letter: 0.12 of the title, 0.06 of the note beside it
        across = max(int((figure.get_figwidth() - 0.06 * len(note)) / 0.12), 10)
        figure.suptitle(textwrap.fill(title, across), x=0.01, ha="left", fontweight="bold", fontsize=12)
        # beside the title, where no label of an axis can be
        figure.text(0.995, 0.99, note, ha="right", va="top", fontsize=7, alpha=0.6)
        # maps keep their shape, which the first layout does not know yet: it would cut off labels
        figure.draw_without_rendering()
    return figure


def _maps(figure_class: Any, panels: Sequence[Panel], frame: Frame) -> Figure:
    """One slice: the panels beside or above each other, as their shape suggests."""
    n, side = len(panels), PICTURE.panel_in
    cols = 1 if frame.ratio > 2.2 else n if frame.ratio < 0.6 or n == 3 else 2
    cols = min(cols, n)
    rows = -(-n // cols)
    width, height = min(side, side * frame.ratio), min(side, side / frame.ratio)
    if cols == 1:
        width, height = 1.6 * width, 1.6 * height
    size = (cols * (max(width, 1.2) + 1.5) + 0.3, rows * (max(height, 1.0) + 0.55) + 0.6)
    figure = figure_class(figsize=size, layout="constrained")
    axes = figure.subplots(rows, cols, squeeze=False, sharex=True, sharey=True)
    for axis, panel in zip(axes.flat, panels, strict=False):
        _bar(axis, _draw(axis, panel, panel.values[0], frame), panel)
        axis.set_title(panel.title)
    for axis in axes.flat[n:]:
        axis.remove()
    _label(axes, frame)
    return figure  # type: ignore[no-any-return]


def _strip(figure_class: Any, panels: Sequence[Panel], labels: Sequence[str], frame: Frame) -> Figure:
    """Slices of a stack: a column for each, a row for each panel with one colour bar."""
    side, n = PICTURE.small_in, len(labels)
    width, height = max(1.2, min(side, side * frame.ratio)), max(0.8, min(side, side / frame.ratio))
    figure = figure_class(figsize=(n * (width + 0.15) + 2.0, len(panels) * (height + 0.15) + 1.1), layout="constrained")
    axes = figure.subplots(len(panels), n, squeeze=False, sharex=True, sharey=True)
    for row, panel in zip(axes, panels, strict=True):
        for axis, values in zip(row, panel.values, strict=True):
            image = _draw(axis, panel, values, frame)
        _bar(row[-1], image, panel)
    for axis, label in zip(axes[0], labels, strict=True):
        axis.set_title(label, fontsize=9)
    _label(axes, frame, ticks=3)
    for axis, panel in zip(axes[:, 0], panels, strict=True):
        axis.set_ylabel(panel.title, fontsize=10)
    return figure  # type: ignore[no-any-return]


def _draw(axis: Axes, panel: Panel, values: FloatArray, frame: Frame) -> Any:
    """Draw one map."""
    from matplotlib.colors import BoundaryNorm, ListedColormap

    style = dict(panel.style)
    if "classes" in style:
        classes, colours = style.pop("classes"), style.pop("colours")
        values = np.where(np.isfinite(values), np.searchsorted(classes, np.nan_to_num(values)), np.nan)
        style = {"cmap": ListedColormap(colours), "norm": BoundaryNorm(np.arange(len(colours) + 1) - 0.5, len(colours))}
    values = values[:, ::-1] if frame.flipped and frame.centres is None else values
    if frame.centres is not None:
        y, x = (part / frame.scale for part in frame.centres)
        image: Any = axis.pcolormesh(x, y, values, shading="nearest", rasterized=True, **style)
    else:
        origin: Any = "upper" if frame.upper else "lower"
        image = axis.imshow(values, origin=origin, extent=frame.extent, interpolation="nearest", **style)
    axis.set_aspect(frame.aspect)
    if panel.places is not None:
        west, east, south, north = frame.extent
        x, y, line = panel.places.x / frame.scale, panel.places.y / frame.scale, 0.3 * panel.places.outlined
        axis.scatter(x, y, panel.places.size, panel.places.values, linewidths=line, edgecolors=_INK, **style)
        axis.set(xlim=(west, east), ylim=(south, north))
    return image


def _bar(axis: Axes, image: Any, panel: Panel) -> None:
    """A colour bar as high as its map; none where nothing has a colour."""
    if panel.places is None and not np.isfinite(panel.values).any():
        return
    figure: Any = axis.get_figure()
    extend = panel.extend if not panel.names else "neither"
    bar = figure.colorbar(image, cax=axis.inset_axes((1.03, 0, 0.045, 1)), extend=extend)
    bar.outline.set(edgecolor=_LINE, linewidth=0.5)
    bar.ax.tick_params(length=2, color=_LINE)
    if panel.names:
        bar.set_ticks(np.arange(len(panel.names)), labels=panel.names)
        bar.ax.tick_params(length=0)
        bar.ax.minorticks_off()
    elif panel.label != "1":  # that of numbers without a unit
        bar.set_label(panel.label)
    if panel.style.get("cmap") == "twilight":
        bar.set_ticks(np.arange(panel.style["vmin"], panel.style["vmax"] + 1, 90))


def _label(axes: Any, frame: Frame, ticks: int = 4) -> None:
    """Ticks and names of the coordinates, on the outer maps alone."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    # degrees are divided by 60
    spans = abs(frame.extent[1] - frame.extent[0]), abs(frame.extent[3] - frame.extent[2])
    steps = [1, 1.5, 3, 6, 10] if frame.degrees and min(spans) > 10 else [1, 2, 2.5, 5, 10]
    steps = [1.5, 3, 6, 9, 10] if frame.degrees and max(spans) > 180 else steps  # quarters of the Earth, not hundreds
    for axis in axes.flat:
        if axis.figure is None:
            continue
        axis.tick_params(length=2, color=_LINE)
        for which, hemispheres in ((axis.xaxis, "WE"), (axis.yaxis, "SN")):
            which.set_major_locator(MaxNLocator(ticks, steps=steps))
            formatter = _degrees(hemispheres) if frame.degrees else lambda value, _: f"{value:,.10g}"
            which.set_major_formatter(FuncFormatter(formatter))
        axis.set(xlabel=frame.labels[0], ylabel=frame.labels[1])
        axis.label_outer()


def _degrees(hemispheres: str) -> Any:
    def text(value: float, _: object) -> str:
        value = (value + 180.0) % 360.0 - 180.0 if hemispheres == "WE" else value
        side = "" if abs(value) < 1e-9 or abs(value) == 180 else hemispheres[int(value > 0)]
        return f"{abs(value):.6g}°{side}"

    return text
