"""Prepare a release: one version everywhere, and links that work outside of the repository.

Run as ``python packaging/release.py 0.2.0 https://github.com/OWNER/geonp``, then look at the difference and commit it.

* The version is set in pyproject.toml, CITATION.cff, the conda recipe and the plugin of QGIS.
* The unreleased entries of CHANGELOG.md go under it, with today's date.
* ``[project.urls]``, the citation and the recipe name the repository.
* Links and pictures of README.md point to the tag of the release: PyPI shows the file without the repository.
"""

from __future__ import annotations

import argparse
import datetime
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
VERSIONS = {
    "pyproject.toml": r'^version = "(.*)"$',
    "CITATION.cff": r"^version: (.*)$",
    "packaging/conda/recipe.yaml": r'^  version: "(.*)"$',
    "integrations/qgis/geonp_provider/metadata.txt": r"^version=(.*)$",
}
"""Files that hold the version, and the line that does."""

RELATIVE = re.compile(r"(!?)\[([^\]]*)\]\((?!\w+:|#)([^)\s]+)\)")
PICTURES = (".jpg", ".png", ".svg")


def absolute(text: str, repository: str, version: str) -> str:
    """Text in Markdown, with links to files of the tag in place of relative ones and of those to earlier tags."""
    text = re.sub(rf"{re.escape(repository)}/(?:blob|raw)/v[^/]+/", "", text)

    def link(match: re.Match[str]) -> str:
        kind = "raw" if match[3].endswith(PICTURES) else "blob"
        return f"{match[1]}[{match[2]}]({repository}/{kind}/v{version}/{match[3]})"

    return RELATIVE.sub(link, text)


def with_urls(name: str, text: str, repository: str) -> str:
    """The same file with the address of the repository."""
    if name == "CITATION.cff":
        text = re.sub(r"^repository-code: .*\n", "", text, flags=re.MULTILINE)
        return text.replace("\nlicense: ", f"\nrepository-code: {repository}\nlicense: ", 1)
    if name == "packaging/conda/recipe.yaml":
        text = re.sub(r"^  (?:homepage|repository): .*\n", "", text, flags=re.MULTILINE)
        return text.replace("\nabout:\n", f"\nabout:\n  homepage: {repository}\n  repository: {repository}\n", 1)
    if name.endswith("metadata.txt"):
        text = re.sub(r"^(?:repository|tracker)=.*\n", "", text, flags=re.MULTILINE)
        return f"{text.rstrip()}\nrepository={repository}\ntracker={repository}/issues\n"
    text = re.sub(r"^\[project\.urls\]\n(?:\w+ = .*\n)+\n", "", text, flags=re.MULTILINE)
    pages = {
        "Repository": "",
        "Documentation": "/tree/main/docs",
        "Changelog": "/blob/main/CHANGELOG.md",
        "Issues": "/issues",
    }
    urls = "".join(f'{page} = "{repository}{path}"\n' for page, path in pages.items())
    return text.replace("\n[project.scripts]\n", f"\n[project.urls]\n{urls}\n[project.scripts]\n", 1)


def prepare(root: Path, version: str, repository: str, date: str) -> None:
    """Change the files in the folder `root`."""
    for name, pattern in VERSIONS.items():
        text = (root / name).read_text(encoding="utf-8")
        found = re.search(pattern, text, flags=re.MULTILINE)
        if found is None:
            raise SystemExit(f"{name} has no line {pattern}.")
        text = text[: found.start(1)] + version + text[found.end(1) :]
        (root / name).write_text(with_urls(name, text, repository), encoding="utf-8")
    changes = root / "CHANGELOG.md"
    text = changes.read_text(encoding="utf-8")
    if f"## {version} " not in text:
        text = text.replace("## Unreleased\n", f"## Unreleased\n\n## {version} ({date})\n", 1)
    changes.write_text(text, encoding="utf-8")
    readme = root / "README.md"
    readme.write_text(absolute(readme.read_text(encoding="utf-8"), repository, version), encoding="utf-8")


def main() -> None:
    """Read the version and the address."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("version", help="X.Y.Z, without v")
    parser.add_argument("repository", help="address of the repository, such as https://github.com/OWNER/geonp")
    given = parser.parse_args()
    if not re.fullmatch(r"\d+\.\d+\.\d+\w*", given.version) or not given.repository.startswith("https://"):
        parser.error(f"expected a version such as 0.2.0 and an https address, got {given.version} {given.repository}")
    prepare(ROOT, given.version, given.repository.rstrip("/"), datetime.date.today().isoformat())


if __name__ == "__main__":
    main()
