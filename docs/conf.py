"""The documentation site: `make docs` builds it into build/docs, with every warning an error.

The pages are the Markdown files beside this one, which read as well on a code host; the API reference is made from the
docstrings, and the tutorials are notebooks in text form that are run by the build.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from pathlib import Path
from typing import Any

from docutils.nodes import SkipNode
from docutils.utils.math import latex2mathml
from sphinx.pycode import ModuleAnalyzer

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
sys.path.insert(0, str(ROOT / "src"))
# Notebooks run in processes of their own, which find this copy of meq by this. Their models are so small that a second
# thread costs more than it brings.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["PYTHONWARNINGS"] = "ignore:IProgress not found"  # tqdm would have liked widgets; nothing here shows a bar
os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])

from meq.version import __version__  # noqa: E402

project = "meq"
author = "The meq authors"
copyright = author  # noqa: A001  Sphinx wants it under this name
version = release = __version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.viewcode", "sphinx_copybutton"]
exclude_patterns = ["_build"]
nitpicky = True
suppress_warnings = ["config.cache", "ref.python"]  # the latter: two classes may have one short name, in two packages

# -- looks -------------------------------------------------------------------------------------------------------------
# furo: light and dark by the reader's own setting, search without a service, legible on a phone, small.
html_theme = "furo"
html_title = f"meq {release}"
html_static_path = ["_static"]
html_css_files = ["meq.css"]
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#1f6f8b", "color-brand-content": "#1f6f8b"},
    "dark_css_variables": {"color-brand-primary": "#7cc4dd", "color-brand-content": "#7cc4dd"},
}
html_copy_source = False
html_math_renderer = "mathml"
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

# -- pages and notebooks -----------------------------------------------------------------------------------------------
myst_enable_extensions = ["dollarmath", "colon_fence", "deflist"]
myst_heading_anchors = 3
nb_execution_mode = "force"
nb_execution_timeout = 600  # a slow machine; on two cores each notebook is meant to take less than 40 seconds
nb_execution_raise_on_error = True
nb_execution_in_temp = True
nb_merge_streams = True

# -- the API reference -------------------------------------------------------------------------------------------------
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "show-inheritance": True}
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 90
add_module_names = False
# What is not ours is not linked, since that would take the network; nor are the letters of shapes, and types that stand
# in signatures without being meant for use.
nitpick_ignore_regex = [
    (r"py:.*", r"(?!meq(\.|$)).*"),
    (r"py:.*", r"meq\.(showing|tables)\..*|meq\.[a-z_]+\.[a-z_]+\..*"),
]

ROOT_PAGES = {"security": "SECURITY.md", "changelog": "CHANGELOG.md", "contributing": "CONTRIBUTING.md"}
"""Pages of the site that are files of the repository's root."""
OBJECT = re.compile(r"\[`(meq\.[\w.]+)`\]\((?:\.\./)?api/\w+\.md\)")
"""A link to an object: on a code host it leads to the page of its package, here to the object itself."""
LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)\s#]+)")


def show_root_page(app: Any, name: str, source: list[str]) -> None:
    """Put a root file in the place of its page, and let links to root files lead to their pages."""
    pages = {file: f"{page}.md" for page, file in ROOT_PAGES.items()} | {"README.md": "index.md"}
    folder = DOCS / Path(name).parent
    if name in ROOT_PAGES:
        source[0], folder = (ROOT / ROOT_PAGES[name]).read_text(encoding="utf-8"), ROOT

    def moved(link: re.Match[str]) -> str:
        target = (folder / link[1]).resolve()
        if target.parent == ROOT and target.name in pages:
            target = DOCS / pages[target.name]
        return os.path.relpath(target, DOCS / Path(name).parent) if target.exists() else link[1]

    source[0] = LINK.sub(moved, OBJECT.sub(r"{py:obj}`\1`", source[0]))


def plain_docstring(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Docstrings are plain sentences: `names` become code, and |z|, * and _ are what they are.

    Indented lines are code, and so are examples, which begin with >>> and end at the next empty line.
    """
    if what == "data":
        lines[:] = below_the_name(name) or lines
    made: list[str] = []
    example = literal = False
    for line in lines:
        indented = line.startswith("    ")
        example = bool(line.strip()) and (example or line.startswith(">>>"))
        if indented and not literal and not example:
            made += ["", "::", ""] if not made or made[-1] == "" else []
            literal = made[-2:] == ["::", ""]
        elif line.strip() and not indented:
            literal = False
        made.append(line if example or literal else plain_line(line))
    lines[:] = made


def below_the_name(name: str) -> list[str]:
    """What is written below a variable in the module that has it; the variable's value knows of its class alone."""
    package, _, short = name.rpartition(".")
    homes = getattr(importlib.import_module(package), "_homes", {})
    while short in homes and homes[short] != package:
        package = homes[short]
        homes = getattr(importlib.import_module(package), "_homes", {})
    found = ModuleAnalyzer.for_module(package).find_attr_docs().get(("", short), [])
    return list(found)


def plain_line(line: str) -> str:
    """One line of prose: outside of backticks, what reStructuredText would read as markup is escaped."""
    parts = re.split(r"(`[^`]+`)", line)
    return "".join(
        f"\\ ``{part[1:-1]}``\\ " if number % 2 else re.sub(r"([\\|*_])", r"\\\1", part)
        for number, part in enumerate(parts)
    )


def import_lazy_names(app: Any) -> None:
    """Autodoc asks a package for what it has; ours import their names on use, so use them once."""
    for package in ("meq", *(f"meq.{each}" for each in LAZY)):
        module = importlib.import_module(package)
        for name in getattr(module, "__all__", ()):
            getattr(module, name)


LAZY = ("core", "models", "objectives", "analysis", "data", "encoders", "training", "studies", "runs", "sklearn")


def inline_math(writer: Any, node: Any) -> None:
    """MathML, which browsers draw by themselves: no script, and nothing from the network."""
    writer.body.append(latex2mathml.tex2mathml(node.astext(), as_block=False))
    raise SkipNode


def block_math(writer: Any, node: Any) -> None:
    writer.body.append(f'<div class="math">{latex2mathml.tex2mathml(node.astext(), as_block=True)}</div>')
    raise SkipNode


def setup(app: Any) -> None:
    app.connect("builder-inited", import_lazy_names)
    app.connect("source-read", show_root_page)
    app.connect("autodoc-process-docstring", plain_docstring)
    app.add_html_math_renderer("mathml", (inline_math, None), (block_math, None))
