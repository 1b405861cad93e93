"""Configuration of the documentation site; `make docs` builds it without any network access."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from importlib.metadata import version as installed
from pathlib import Path

import click
import sphinx_autosummary_accessors
from docutils import nodes
from sphinx.application import Sphinx

ROOT = Path(__file__).parents[1]
HERE = ROOT / "docs"
PAPERS = ROOT / "benchmarks" / "papers"

project = "geonp"
author = "geonp maintainers"
project_copyright = "geonp maintainers, Apache-2.0"
version = release = installed("geonp")

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx.ext.mathjax",
    "sphinx_autosummary_accessors",
    "sphinx_click",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
]
templates_path = ["_templates", sphinx_autosummary_accessors.templates_path]
exclude_patterns = ["_build", "generated/gallery/*.ipynb"]
default_role = "literal"
highlight_language = "sh"
smartquotes = False  # they turn --option into a dash
root_doc = "index"

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 4
nb_execution_mode = "auto"
nb_execution_in_temp = True
nb_execution_raise_on_error = True
nb_execution_timeout = 300

autosummary_generate = True
autodoc_typehints = "none"
autodoc_member_order = "bysource"
napoleon_google_docstring = False
napoleon_use_rtype = False
napoleon_preprocess_types = False

sphinx_gallery_conf = {
    "examples_dirs": ["../examples/gallery"],
    "gallery_dirs": ["generated/gallery"],
    "backreferences_dir": "generated/backreferences",
    "doc_module": ("geonp",),
    "abort_on_example_error": True,
    "capture_repr": ("_repr_html_", "__repr__"),
    "download_all_examples": False,
    "image_srcset": ["2x"],
    "min_reported_time": 0,
    "plot_gallery": os.environ.get("GEONP_GALLERY", "True"),
    "remove_config_comments": True,
    "show_memory": False,
    "show_signature": False,
    "write_computation_times": False,
    "within_subsection_order": "FileNameSortKey",
}

html_theme = "pydata_sphinx_theme"
html_title = "geonp"
html_logo = "_static/logo.svg"
html_favicon = "_static/logo.svg"
html_static_path = ["_static"]
html_css_files = ["geonp.css"]
html_show_sourcelink = False
html_theme_options = {
    "logo": {"text": "geonp"},
    "navbar_align": "left",
    "header_links_before_dropdown": 7,
    "show_toc_level": 2,
    "navigation_with_keys": False,
    "footer_start": ["copyright"],
    "footer_end": ["theme-version"],
    "pygments_light_style": "tango",
    "pygments_dark_style": "github-dark-high-contrast",
}
html_sidebars = {"cli": [], "first-fill": [], "install": [], "changelog": []}
mathjax_path = "mathjax.js"  # formulas are shown as text unless a copy of MathJax is put beside the pages

COPIED = {
    "CHANGELOG.md": "generated/changelog.md",
    "CONTRIBUTING.md": "generated/contributing.md",
    "recipes/README.md": "generated/shipped-recipes.md",
    "benchmarks/RESULTS.md": "generated/results.md",
    **{f"benchmarks/papers/{path.name}": f"generated/papers/{path.name}" for path in PAPERS.glob("*.md")},
}
"""Pages that live elsewhere in the repository, and where they are on the site."""

TABLES = {target.removesuffix(".md") for target in COPIED.values() if "/papers/" in target} - {
    "generated/papers/README"
}
"""Pages that the one on the papers links to, in no table of contents."""

EXECUTED = {"first-fill"}
"""Pages whose Python blocks are run, with their output below them."""

NOTEBOOK = "---\nfile_format: mystnb\nkernelspec:\n  name: python3\n---\n\n"
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")


def copy_pages() -> None:
    """Copy pages, and the pictures of the papers' tables, into the site."""
    pictures = {f"benchmarks/papers/{path.name}": f"generated/papers/{path.name}" for path in PAPERS.glob("*.png")}
    for source, target in (COPIED | pictures).items():
        copy = HERE / target
        copy.parent.mkdir(parents=True, exist_ok=True)
        if not copy.exists() or copy.read_bytes() != (ROOT / source).read_bytes():
            shutil.copyfile(ROOT / source, copy)


def forget_gallery() -> None:
    """Let all examples of the gallery run again if the models are others than those that filled them."""
    models = sorted(path.read_text(encoding="utf-8") for path in (ROOT / "geonp" / "weights").glob("*.json"))
    digest, gallery = hashlib.sha256("".join(models).encode()).hexdigest(), HERE / "generated" / "gallery"
    gallery.mkdir(parents=True, exist_ok=True)
    known = gallery / "models.sha256"
    if not known.exists() or known.read_text() != digest:
        for sums in gallery.glob("*.md5"):
            sums.unlink()
        known.write_text(digest)


def mended(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Show a dash between a parameter and its description, and ``FILE:BAND``, which is no address, as text."""
    for text in [text for text in doctree.findall(nodes.Text) if text == " -- "]:
        text.parent.replace(text, nodes.Text(" \N{EN DASH} "))
    for link in [link for link in doctree.findall(nodes.reference) if link.get("refuri", "").startswith("FILE:")]:
        link.replace_self(nodes.Text(link.astext()))


def relink(app: Sphinx, docname: str, source: list[str]) -> None:
    """Turn links between files of the repository into links between pages; other files become plain text."""
    page = HERE / f"{docname}.md"
    if not page.exists():
        return
    origins = {target: name for name, target in COPIED.items()}
    own = ROOT / origins.get(f"{docname}.md", f"docs/{docname}.md")

    def replaced(match: re.Match[str]) -> str:
        picture, text, target = match.groups()
        path, _, fragment = target.partition("#")
        if picture or not path or re.match(r"\w+:", target):
            return match[0]
        name = os.path.relpath((own.parent / path).resolve(), ROOT)
        site = COPIED.get(name) or (name.removeprefix("docs/") if name.startswith("docs/") else "")
        if name.startswith("examples/gallery/"):
            site = f"generated/gallery/{Path(name).stem}.rst"
        if not site.endswith((".md", ".rst")):
            return text
        return f"[{text}](/{site}{'#' if fragment else ''}{fragment})"

    text = LINK.sub(replaced, source[0])
    if docname in EXECUTED:
        text = NOTEBOOK + text.replace("```python\n", "```{code-cell} ipython3\n")
    source[0] = f"---\norphan: true\n---\n\n{text}" if docname in TABLES else text


def coded(app: Sphinx, context: click.Context, lines: list[str]) -> None:
    """Show the examples at the end of a help text as code."""
    title, *examples = [line.removeprefix("|").strip() for line in lines if line.strip("| ")] or [""]
    if examples:
        lines[:] = [f".. rubric:: {title.removesuffix(':')}", "", ".. code-block:: text", ""]
        lines += [*(f"   {example}" for example in examples), ""]


def setup(app: Sphinx) -> None:
    """Connect the links and the examples."""
    copy_pages()
    forget_gallery()
    app.connect("source-read", relink)
    app.connect("doctree-resolved", mended)
    app.connect("sphinx-click-process-epilog", coded)
