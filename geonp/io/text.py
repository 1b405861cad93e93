"""Tables in text files as people write them: comments, blanks, separators, encodings."""

from __future__ import annotations

import gzip
import io
import itertools
import re
import warnings
import zlib
from pathlib import Path
from typing import Any

import pandas as pd

from geonp.errors import InputError, warn

TEXT_FILES = (".csv", ".tsv", ".txt", ".dat", ".xyz", ".csv.gz", ".tsv.gz", ".txt.gz", ".dat.gz", ".xyz.gz")
"""Endings of the names of text files."""

_COMMENTS = ("#", "%", "//")
_NO_TEXT = (b"PK\x03\x04", b"\xd0\xcf\x11\xe0", b"BZh", b"\xfd7zXZ", b"%PDF")
"""First bytes of archives, spreadsheets and documents."""
_NONE = {"", "NA", "NaN", "nan", "null", "NULL", "-", "--", "missing", "None"}
_MISSING = ["-", "--", "---", "*", "**", "***", ".", "missing", "None", "MM", "nodata", "NoData", "NODATA", "no data"]


def read_text(path: Path) -> pd.DataFrame:
    """Read columns separated by white space, or the most frequent of commas, semicolons, tabs and bars in the header.

    Lines that begin with ``#``, ``%`` or ``//`` are comments; the last one before the rows is the header if the table
    has no other. A row of units after the header is kept as ``attrs["units"]``. Three columns of a file ``.xyz``
    without a header are x, y and z. Decimals may be commas if these do not separate columns. The text is UTF-8, UTF-16,
    or Windows-1252, and may be compressed by gzip. Raises InputError for what is no text, a table without a header, and
    rows that have more fields than it or, between blanks, fewer.
    """
    lines = [line for line in _lines(path) if line.strip()]
    rows = [line for line in lines if not _is_comment(line)]
    if not rows:
        raise InputError(f"{path} has no rows, expected a header and a row for each measurement")
    if len(rows) > 1 and re.fullmatch(r'"?sep=.+', rows[0], re.IGNORECASE):  # for spreadsheets
        del rows[0]
    separator = max(",;\t|", key=rows[0].count)
    if separator not in rows[0]:
        separator = r"\s+"
        rows = [row.strip() for row in rows]
        _require_full(path, rows)
    else:
        padding = re.compile(rf'("[^"]*")| +(?={re.escape(separator)}|$)')
        rows = [padding.sub(r"\1", row) for row in rows]
    comments = [line.lstrip().lstrip("#%/").strip() for line in itertools.takewhile(_is_comment, lines)]
    if header := _header(comments, rows[0], separator):
        rows[:0] = header
    elif _is_numeric(rows[0], separator):
        if ".xyz" not in path.suffixes[-2:] or len(_fields(rows[0], separator)) != 3:
            raise InputError(
                f"{path} has no header: got numbers in its first row {rows[0]!r}, expected names of columns. Add a row "
                "such as lon,lat,value"
            )
        rows.insert(0, (" " if separator == r"\s+" else separator).join("xyz"))
    _warn_of_marked(path, lines, separator, len(_fields(rows[0], separator)))
    units = _units(rows, separator)
    if units:
        del rows[1]
    decimal, table = max(
        ((decimal, _parsed(path, rows, separator, decimal)) for decimal in ("." if separator == "," else ".,")),
        key=lambda parsed: parsed[1].select_dtypes("number").shape[1],
    )
    _warn_of_thousands(path, table, rows, separator, decimal)
    table.attrs |= {"units": units} if units else {}
    return table


def _lines(path: Path) -> list[str]:
    data = path.read_bytes()
    try:
        data = gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data
    except (EOFError, zlib.error) as error:
        raise InputError(f"{path} cannot be decompressed: {error}; is the file complete?") from error
    if data.startswith(_NO_TEXT):
        raise InputError(f"{path} is not text, but an archive or a spreadsheet: save it as text, such as CSV")
    # not str.splitlines, which also splits at characters within a field
    return re.split(r"\r\n|\r|\n", _decoded(data))


def _require_full(path: Path, rows: list[str]) -> None:
    """Refuse rows between blanks that lack a field, because all that follow it would be moved."""
    counts = [len(re.findall(r'"[^"]*"|\S+', row)) for row in rows]
    short = next((n for n, count in enumerate(counts) if count < counts[0]), None)
    if short is not None:
        raise InputError(
            f"{path} has rows with fewer fields than its first one, {rows[0]!r}: got {rows[short]!r}, in which blanks "
            "do not say which are missing. Write NA for missing values, put texts with blanks in quotes, begin lines "
            "above the header with #, or separate columns by commas"
        )


def _warn_of_marked(path: Path, lines: list[str], separator: str, columns: int) -> None:
    """Warn of rows that begin as comments do, as where names of stations begin with a number sign."""
    first = next(n for n, line in enumerate(lines) if not _is_comment(line))
    fields = [_fields(line, separator) for line in lines[first + 1 :] if _is_comment(line)]
    if n := sum(len(row) == columns and any(text and _is_numeric(text, separator) for text in row) for row in fields):
        warn(
            f"{path}: {n} lines below the header begin with #, % or // and have as many fields as it. They are "
            "comments, and are not read. If they are measurements, put the first field in quotes."
        )


def _header(comments: list[str], row: str, separator: str) -> list[str]:
    """The header, and the row of units if there is one, that end the comments above a row of data."""
    fields = _fields(row, separator)
    numbers = [field for field in fields if field in _MISSING or _is_numeric(field, separator)]
    fitting = [comment for comment in comments[-2:] if len(_fields(comment, separator)) == len(fields)]
    if len(numbers) <= len(fields) / 2 or fitting[-1:] != comments[-1:]:
        return []
    units = len({*_fields(fitting[-1], separator)}) < len(fields) if fitting else False  # names differ
    return fitting if units else fitting[-1:]


def _is_comment(line: str) -> bool:
    return line.lstrip().startswith(_COMMENTS)


def _units(rows: list[str], separator: str) -> dict[str, str]:
    """Units of columns by name, if the row after the header holds units instead of numbers, as in tables of ERDDAP."""
    names, first, second = (_fields(row, separator) for row in [*rows, "", ""][:3])
    numbers = [n for n, field in enumerate(second) if field and _is_numeric(field, separator)]
    if not len(names) == len(first) == len(second) or not numbers:
        return {}
    said = [first[n] for n in numbers if first[n] not in _NONE]
    texts = [text for text in said if not _is_numeric(text, separator)]
    dimensionless = len(texts) > 1 and all(text in texts or text == "1" for text in said)
    if not texts or (len(texts) < len(said) and not dimensionless):
        return {}
    return {name: unit for name, unit in zip(names, first, strict=True) if unit not in _NONE}


def _decoded(data: bytes) -> str:
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return data.decode("utf-16")
    if b"\0" in data[:2]:  # without a byte order mark
        return data.decode("utf-16-be" if data[:1] == b"\0" else "utf-16-le", errors="replace")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return data.decode("cp1252", errors="replace")


def _is_numeric(row: str, separator: str) -> bool:
    number = re.compile(r"[-+]?[\d.,]*\d[\d.,]*(e[-+]?\d+)?|", re.IGNORECASE)
    return all(number.fullmatch(field) for field in _fields(row, separator))


def _fields(row: str, separator: str) -> list[str]:
    fields = row.split(None if separator == r"\s+" else separator)
    return [field.strip().strip('"').strip() for field in fields]


def _parsed(path: Path, rows: list[str], separator: str, decimal: str) -> pd.DataFrame:
    """The rows as a table, without columns that have no name and are empty, as at separators at line ends, or count."""
    text = io.StringIO("\n".join(rows))
    with warnings.catch_warnings():
        warnings.simplefilter("error", pd.errors.ParserWarning)
        try:
            # a longer row must not make the first column an index, which moves all others by one
            options: Any = {"decimal": decimal, "skipinitialspace": True, "index_col": False, "na_values": _MISSING}
            table: pd.DataFrame = pd.read_csv(text, sep=separator, **options)
        except pd.errors.ParserWarning as warning:
            raise InputError(
                f"{path} has rows with more fields than its header {rows[0]!r}: expected as many. Name every column, "
                "and put texts that contain the separator in quotes"
            ) from warning
    names = _fields(rows[0], separator)
    if repeated := sorted({name for name in names if name and names.count(name) > 1}):
        warn(
            f"{path} has several columns {', '.join(map(repr, repeated))}: got {list(table)}, where the first has its "
            "name and the others have numbers. Choose columns with values=... (--value)."
        )
    unnamed = [name for name in table if str(name).startswith("Unnamed:")]
    table = table.drop(columns=[name for name in unnamed if _is_empty_or_counts(table[name])])
    return table.rename(columns=lambda name: str(name).strip())


def _warn_of_thousands(path: Path, table: pd.DataFrame, rows: list[str], separator: str, decimal: str) -> None:
    """Warn of columns such as 773, 1.128, 2.045, whose points, or commas, may separate thousands."""
    for name in table.select_dtypes("float"):
        parts = table[name].dropna()
        whole = parts % 1 == 0
        thousandths = ((parts * 1000 - (parts * 1000).round()).abs() < 1e-6).all() and (parts.abs() < 1000).all()
        if not thousandths or whole.all() or not parts[whole].abs().max() >= 100:
            continue
        written: Any = {"skipinitialspace": True, "index_col": False, "dtype": str}
        texts = pd.read_csv(io.StringIO("\n".join(rows)), sep=separator, **written)
        known = texts.rename(columns=lambda column: str(column).strip())[name].dropna().str.strip()
        grouped = known.str.fullmatch(rf"[-+]?\d{{1,3}}{re.escape(decimal)}\d{{3}}")
        if grouped.sum() > 1 and (~grouped).sum() > 1 and known[~grouped].str.fullmatch(r"[-+]?\d{1,3}").all():
            warn(
                f"{path}: all {grouped.sum()} fractions of column {name!r} have three digits, as in "
                f"{known[grouped].iloc[0]}, beside {known[~grouped].iloc[0]}, and are read as fractions. If "
                f"{decimal!r} separates thousands, remove it."
            )


def _is_empty_or_counts(column: pd.Series[Any]) -> bool:
    empty = bool(column.isna().all())
    return empty or (pd.api.types.is_numeric_dtype(column) and bool((column.diff()[1:] == 1).all()))
