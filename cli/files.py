"""The files that a fill is written to: values, standard errors and flags together, or in separate files."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from .covariates import opener
from .options import together

if TYPE_CHECKING:
    import xarray as xr

FILES = ("output", "errors", "flags", "picture")
"""What the files of a fill are, in the summary."""


_PATH = click.Path(path_type=Path)

files = together(
    click.option(
        "--like",
        type=_PATH,
        metavar="FILE",
        help="Fill onto the grid of this raster, finer or coarser, in any CRS: values at the centres of its "
        "cells. Default: the grid of IN.",
    ),
    click.option(
        "--support",
        type=click.Choice(["point", "cell"]),
        default="point",
        show_default=True,
        help="On the grid of --like, predict values at points, or means over its cells, with their standard errors.",
    ),
    click.option(
        "--values-only",
        is_flag=True,
        help="Write the filled values alone, stored as IN is: dtype, bands, scale, nodata value, descriptions, "
        "palette, tags, blocks, compression and overviews.",
    ),
    click.option(
        "--errors-to",
        type=_PATH,
        metavar="FILE",
        help="Write the standard errors (of classes, the probabilities) to this file instead of OUT.",
    ),
    click.option(
        "--picture",
        type=_PATH,
        metavar="FILE",
        help="Also draw a picture (.png, .jpg, .pdf, .svg): observed, filled, standard error, flag.",
    ),
    click.option("--flags-to", type=_PATH, metavar="FILE", help="Write the flags to this file instead of OUT."),
)
"""The output files, and the grid that they are on."""

_BESIDE_VALUES = {
    "--quantile": "quantiles",
    "--exceed": "exceed",
    "--tails": "tails",
    "--samples": "samples",
    "--class-probabilities": "class_probabilities",
}
"""Options whose results are neither values nor in a file of their own."""


@dataclass(frozen=True)
class Files:
    """The output files of a fill.

    Attributes
    ----------
    target : str
        Path or URL of the main output.
    values_only : bool
        Whether this holds the values alone, stored as the input is.
    errors, flags : Path or None
        Files of their own for standard errors and flags.
    picture : Path or None
        A picture of the first variable.
    like : Path or None
        A raster on the grid to fill onto.
    support : str
        What the values on that grid are of.
    """

    target: str
    values_only: bool
    errors: Path | None
    flags: Path | None
    picture: Path | None
    like: Path | None
    support: Literal["point", "cell"]

    @classmethod
    def of(cls, target: str, settings: dict[str, Any]) -> Files:
        """Take the options of :func:`files` out of the settings of a command."""
        names = ("values_only", "errors_to", "flags_to", "picture", "like", "support")
        return cls(target, *(settings.pop(name) for name in names))

    @property
    def grid(self) -> xr.Dataset | None:
        """The raster on the grid to fill onto, if it is another one than that of the input."""
        from geonp.io.files import open_raster

        return None if self.like is None else open_raster(self.like, chunks=None)

    @property
    def named(self) -> dict[str, str]:
        """The files by content, one of :data:`FILES`."""
        return {
            name: str(path)
            for name, path in zip(FILES, (self.target, self.errors, self.flags, self.picture), strict=True)
            if path
        }

    @property
    def apart(self) -> bool:
        """Whether the main output lacks some of the results, or is on another grid."""
        return self.values_only or any(path is not None for path in (self.errors, self.flags, self.like))

    @property
    def single(self) -> bool:
        """Whether only the values are used."""
        return self.values_only and not self.several

    @property
    def several(self) -> bool:
        """Whether several files are written from one fill."""
        return any(path is not None for path in (self.errors, self.flags, self.picture))

    def check(
        self, source: str, driver: str | None, settings: Mapping[str, Any], *, overwrite: bool, resume: bool
    ) -> None:
        """Check before work starts that all files can be written, and hold what is asked for."""
        from geonp.io.location import is_remote, require_apart, resolved
        from geonp.io.output import check_output

        unwritten = [option for option, name in _BESIDE_VALUES.items() if self.values_only and settings[name]]
        if unwritten:
            raise click.UsageError(
                f"--values-only leaves out what {', '.join(unwritten)} asks for: drop one of the two."
            )
        if self.support == "cell" and self.like is None:
            raise click.UsageError("--support cell means over the cells of another grid: add --like, or leave it out.")
        if self.picture is not None:
            from geonp.fill.picture import check_picture

            check_picture(self.picture, overwrite=overwrite or resume)
        if not is_remote(self.target):
            check_output(self.target, overwrite=overwrite or resume, driver=driver)
        others = {"--errors-to": self.errors, "--flags-to": self.flags}
        seen = {resolved(self.target): "OUT"}
        for option, path in others.items():
            if path is None:
                continue
            if (other := seen.setdefault(resolved(str(path)), option)) != option:
                raise click.UsageError(f"{option} and {other} are the same file: {path}. Choose two.")
            check_output(path, overwrite=overwrite)
            require_apart(str(path), {"input": source})

    def write(self, filled: xr.Dataset, source: xr.Dataset, creation: dict[str, Any], read: Sequence[str]) -> None:
        """Compute a fill of `source` once, and write all files, if those that are `read` stay as they are."""
        from geonp.io.location import unchanged
        from geonp.io.output import held, written

        like = source if self.values_only else None
        require_unchanged = unchanged(read)
        with held(filled, Path(self.target)) if self.several else nullcontext(filled) as ds:
            with ExitStack() as complete:
                for path, part in (self._parts(ds) if self.several else {Path(self.target): ds}).items():
                    main = path == Path(self.target)
                    own = creation | {"like": like} if main else {"overwrite": creation["overwrite"]}
                    complete.enter_context(written(part, path, **own))
                require_unchanged()
            self.draw(ds)

    def draw(self, filled: xr.Dataset) -> None:
        """Draw the picture, if there is one."""
        if self.picture is not None:
            from geonp.fill.picture import plot, save_picture

            save_picture(plot(filled), self.picture)

    def _parts(self, ds: xr.Dataset) -> dict[Path, xr.Dataset]:
        from geonp.fill.options import RESULTS
        from geonp.fill.outputs import filled_names, without_results

        errors, flags = ("standard_error", "probability"), ("fill_flag",)
        moved = {path: results for path, results in ((self.errors, errors), (self.flags, flags)) if path is not None}
        gone = RESULTS if self.values_only else tuple(result for results in moved.values() for result in results)
        parts = {Path(self.target): without_results(ds, gone)}
        for path, results in moved.items():
            names = [f"{name}_{result}" for name in filled_names(ds) for result in results]
            parts[path] = ds[[name for name in names if name in ds]]
            if results == flags and path.suffix.lower() in {".tif", ".tiff"}:
                parts[path] = parts[path].astype("uint8", keep_attrs=True)  # GDAL before 3.7 has no int8
        return parts

    def draw_store(self, storage_options: dict[str, Any]) -> None:
        """Draw the picture of the main output, a complete store."""
        if self.picture is not None:
            self.draw(opener(storage_options)(self.target))


def require_all_apart(outputs: Sequence[Path], read: Sequence[tuple[str, Path | str]]) -> None:
    """Check that the outputs neither are nor hold any of the files that are read, which are pairs of kind and path."""
    from geonp.io.location import require_apart

    for output, (what, path) in itertools.product(outputs, read):
        if os.path.exists(path):  # models have names, too
            require_apart(str(output), {what: str(path)})
