"""Tables in text files as people write them."""

from __future__ import annotations

import gzip
import re
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from geonp.errors import InputError
from geonp.io.measurements import read_table
from geonp.io.text import read_text

from ..commands import cli

ROWS = np.array([[5.5, 45.25, 1.0], [6.5, 46.25, 2.0], [7.5, 47.25, 3.5]])


@pytest.mark.parametrize(
    "text",
    [
        "lon,lat,t\n5.5,45.25,1\n6.5,46.25,2\n7.5,47.25,3.5\n",
        "lon, lat, t\n5.5, 45.25, 1\n6.5, 46.25, 2\n7.5, 47.25, 3.5\n",
        " lon ,lat , t \n5.5 ,45.25 , 1 \n6.5 ,46.25 ,2 \n7.5, 47.25, 3.5\n",
        "# stations; of 2020\n# units: degC\nlon,lat,t\n5.5,45.25,1\n# moved\n6.5,46.25,2\n\n7.5,47.25,3.5\n",
        "% matlab\n\nlon;lat;t\n5,5;45,25;1\n6,5;46,25;2\n7,5;47,25;3,5\n",
        "lon lat t\n5.5 45.25 1\n6.5 46.25 2\n7.5 47.25 3.5\n",
        "  lon    lat     t\n  5.5  45.25   1.0\n  6.5  46.25   2.0\n  7.5  47.25   3.5\n",
        "# lon lat t\n5.5 45.25 1\n6.5 46.25 2\n7.5 47.25 3.5\n",
        "lon,lat,t,\n5.5,45.25,1,\n6.5,46.25,2,\n7.5,47.25,3.5,\n",
        "lon,lat,t\n5.5,45.25,1,\n6.5,46.25,2,\n7.5,47.25,3.5,\n",
        '"lon", "lat", "t"\n5.5, 45.25, 1\n6.5, 46.25, 2\n7.5, 47.25, 3.5\n',
        "lon,lat,t\r5.5,45.25,1\r6.5,46.25,2\r7.5,47.25,3.5\r",
        "time,lon,lat,t\nUTC,degrees_east,degrees_north,degree_C\nJan,5.5,45.25,1\nFeb,6.5,46.25,2\nMar,7.5,47.25,3.5\n",
        'lon,lat,t\n,,"degC"\n5.5,45.25,1\n6.5,46.25,2\n7.5,47.25,3.5\n',
        "#STN LAT LON t\n#text deg deg degC\nA 45.25 5.5 1\nB 46.25 6.5 2\nC 47.25 7.5 3.5\n",
        "# lon lat t\n  5.5 45.25 1\n  6.5 46.25 2\n  7.5 47.25 3.5\n",
        "name,lon,lat,t\nA\u2028B,5.5,45.25,1\nC\x0bD,6.5,46.25,2\n,7.5,47.25,3.5\n",
    ],
)
def test_one_table_in_many_styles(text: str, tmp_path: Path) -> None:
    path = tmp_path / "a.csv.gz"
    path.write_bytes(gzip.compress(text.encode()))
    table = read_table(read_text(path), None, None, None)
    np.testing.assert_array_equal(np.c_[table.xy, table.values["t"]], ROWS)


@pytest.mark.parametrize(
    ("heights", "doubtful"),
    [
        (["773", "1.128", "998", "2.045"], True),
        (["773", "1,128", "998", "2,045"], True),
        (["773", "1.128", "998.5", "2.045"], False),
        (["7", "1.128", "9", "2.045"], False),
        (["773.000", "1.128", "998.000", "2.045"], False),
        (["773", "998", "1.128", "1204"], False),
    ],
)
def test_points_that_may_separate_thousands_come_with_a_warning(
    heights: list[str], doubtful: bool, tmp_path: Path
) -> None:
    rows = [f"{500 + n};{4100 + n};{height}" for n, height in enumerate(heights)]
    (tmp_path / "a.csv").write_text("\n".join(["x;y;height", *rows]))
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        read_text(tmp_path / "a.csv")
    said = r"all 2 fractions of column 'height' have three digits, as in 1.128, beside 773, .* thousands, remove it"
    assert [bool(re.search(said, str(one.message))) for one in found] == [True] * doubtful


@pytest.mark.parametrize("separator", [" ", ","])
def test_xyz_files_need_no_header(separator: str, tmp_path: Path) -> None:
    (tmp_path / "a.xyz").write_text("# soundings\n" + "5.5 45.25 -1\n6 46 2e1\n".replace(" ", separator))
    table = read_text(tmp_path / "a.xyz")
    assert list(table) == ["x", "y", "z"]
    assert table["z"].tolist() == [-1, 20]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "cp1252"])
def test_encodings(encoding: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("lon,lat,t in \u00b0C\n5.5,45.25,1\n", encoding=encoding)
    assert list(read_text(tmp_path / "a.csv")) == ["lon", "lat", "t in \u00b0C"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lon,lat,t\n5,45,1,9\n6,46,2,9\n", r"more fields than its header 'lon,lat,t'"),
        ("5,45,1\n6,46,2\n", r"has no header: got numbers in its first row '5,45,1'"),
        ("# nothing\n\n", "has no rows"),
        (
            "stn lon lat rain t\nA 5 45 1.0 9\nB 6 46     8\n",
            r"fewer fields than its first one, .*: got 'B 6 46     8'",
        ),
        ("PK\x03\x04", "is not text, but an archive or a spreadsheet"),
    ],
)
def test_tables_that_cannot_be_read(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(InputError, match=message):
        read_text(tmp_path / "a.csv")
    done = cli("grid", tmp_path / "a.csv", tmp_path / "o.nc", "--resolution", "1", code=1)
    assert "Traceback" not in done.output


@pytest.mark.parametrize(
    ("x", "y"),
    [
        ("Longitude (deg)", "Latitude (deg)"),
        ("LON_DD", "LAT_DD"),
        ("decimalLongitude", "decimalLatitude"),
        ("lon [degrees_east]", "lat [degrees_north]"),
    ],
)
def test_names_of_longitudes_and_latitudes(x: str, y: str) -> None:
    table = read_table(pd.DataFrame(ROWS, columns=[x, y, "t"]), None, None, None)
    assert (table.x, table.y, table.named_degrees) == (x, y, True)


def test_exact_names_come_first_and_kilometres_are_no_degrees(tmp_path: Path) -> None:
    both = pd.DataFrame([[1.0, 2, 3, 4, 5]], columns=["lon", "lat", "lon_deg", "lat_deg", "t"])
    assert read_table(both, "t", None, None).x == "lon"
    with pytest.raises(InputError, match="name the column of the coordinate x"):
        read_table(pd.DataFrame(ROWS, columns=["lon_km", "lat_km", "t"]), None, None, None)
    (tmp_path / "b.csv").write_text("lon,lat,t,t\n5,45,1,9\n")
    with pytest.warns(UserWarning, match=r"several columns 't': got .*'t', 't\.1'.* Choose columns with values="):
        assert read_text(tmp_path / "b.csv")["t"].tolist() == [1]
    with pytest.raises(InputError, match="several columns 't'"):
        read_table(pd.DataFrame([[1.0, 2, 3, 4]], columns=["lon", "lat", "t", "t"]), None, None, None)


@pytest.mark.parametrize(
    "text",
    [
        "lon|lat|t\n1|2|3\n4|5|-\n",
        "sep=;\nlon;lat;t\n1;2;3\n4;5;\n",
        "lon\tlat\tt\n1,0\t2,0\t3,0\n4,0\t5,0\t***\n",
        ",lon,lat,t\n0,1,2,3\n1,4,5,missing\n",
    ],
)
def test_bars_spreadsheets_counts_and_words_for_missing(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.csv").write_text(text)
    table = read_text(tmp_path / "a.csv")
    assert list(table) == ["lon", "lat", "t"]
    np.testing.assert_array_equal(table, [[1, 2, 3], [4, 5, np.nan]])


def test_a_column_of_text_without_a_name_is_kept(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("lon,lat,t,\n1,2,3,cloudy\n4,5,6,\n")
    assert read_text(tmp_path / "a.csv").iloc[:, 3].tolist()[0] == "cloudy"


def test_blanks_that_pad_fields_are_none(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('lon ,lat,t  ,soil\n5 ,45, NaN ,A \n6 ,46,2 ,A\n7,47,- ,"B , C"\n')
    table = read_text(tmp_path / "a.csv")
    np.testing.assert_array_equal(table["t"], [np.nan, 2, np.nan])
    assert table["soil"].tolist() == ["A", "A", "B , C"]


def test_a_row_of_units_gives_units_and_a_row_of_data_stays(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("id,lon,lat,t,n\n,degrees_east,degrees_north,degree_C,1\na,5.5,45.25,1,7\nb,6.5,46.25,2,8\n")
    assert read_table(read_text(path), "t", None, None).attrs["t"] == {"units": "degree_C"}
    for first in ("a,5.5,45.25,T,7", "a,,,,", "a,NaN,NaN,-,1"):
        path.write_text(f"id,lon,lat,t,n\n{first}\nb,6.5,46.25,2,8\n")
        assert len(read_text(path)) == 2


def test_rows_that_begin_as_comments_are_named(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("stn,lon,lat,t\n# moved, in 2020\n#,deg,deg,K\n#12,5,45,1\n13,6,46,2\n")
    with pytest.warns(UserWarning, match="1 lines below the header begin with #.* and are not read"):
        assert len(read_text(path)) == 1
