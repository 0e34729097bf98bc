"""The documentation site, as far as it can be checked without building it; `make docs` builds it."""

from __future__ import annotations

import importlib
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from test_docs import meq_commands, prose_of

import meq
from meq.studies import STUDIES
from meq.studies.untrained import UNTRAINED
from meq.viz.figures import STUDY_FIGURES

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
API = DOCS / "api"
PAPER = DOCS / "paper_in_code.md"
TUTORIALS = DOCS / "tutorials"
EQUATIONS, TABLES, FIGURES = 15, 13, 4
"""How many of each the paper numbers."""
PACKAGES = ("analysis", "objectives", "data", "encoders", "training", "studies", "runs", "sklearn")
ELSEWHERE = {"runs": {"Run", "TrainedRun"}, "analysis": {"diagnose", "spectral_radius"}}
"""Names of a package that are shown under the name that `meq` has for them, or that are older names."""


def toctrees(page: Path) -> list[Path]:
    """The pages that a page's tables of contents name."""
    blocks = re.findall(r"^```\{toctree\}\n(.*?)^```", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    names = [line for block in blocks for line in block.splitlines() if line and not line.startswith(":")]
    return [page.parent / f"{name}.md" for name in names]


def test_every_page_is_in_one_table_of_contents() -> None:
    todo, listed = [DOCS / "index.md"], [DOCS / "index.md"]
    while todo:
        named = toctrees(todo.pop())
        todo += named
        listed += named
    assert sorted(listed) == sorted(DOCS.rglob("*.md"))


def test_every_tutorial_is_in_the_list_of_tutorials_and_ends_with_where_to_go_next() -> None:
    tutorials = sorted(page for page in TUTORIALS.glob("*.md") if page.name != "index.md")
    assert len(tutorials) == 7
    index = (TUTORIALS / "index.md").read_text(encoding="utf-8")
    for number, page in enumerate(tutorials, start=1):
        text = page.read_text(encoding="utf-8")
        assert f"]({page.name})" in index
        assert re.search(rf"^# {number}\. ", text, flags=re.MULTILINE)
        assert "file_format: mystnb" in text
        assert "**Where to go next:**" in text.split("```")[-1]
        assert len(re.findall(r"^```\{code-cell\}", text, flags=re.MULTILINE)) > 4


@pytest.mark.parametrize("page", sorted(TUTORIALS.glob("[0-9]*.md")), ids=lambda page: page.stem)
def test_the_cells_of_a_tutorial_are_python(page: Path) -> None:
    """They are run by `make docs`; what cannot be parsed shows here already."""
    cells = re.findall(r"^```\{code-cell\}[^\n]*\n(.*?)^```", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    for cell in cells:
        compile("\n".join(line for line in cell.splitlines() if not line.startswith(("%", ":"))), str(page), "exec")


def documented() -> set[str]:
    """The objects of the API reference."""
    text = "\n".join(page.read_text(encoding="utf-8") for page in API.glob("*.md"))
    return set(re.findall(r"^\.\. auto\w+:: (\S+)", text, flags=re.MULTILINE))


def found(name: str) -> Any:
    """The object of a dotted name: of the longest part of it that is a module, an attribute."""
    parts = name.split(".")
    for cut in range(len(parts) - 1, 0, -1):
        try:
            value: Any = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for part in parts[cut:]:
            value = getattr(value, part)
        return value
    raise AssertionError(name)


def test_the_reference_shows_every_public_object() -> None:
    names = {f"meq.{name}" for name in meq.__all__ if not name.startswith("__")}
    for package in PACKAGES:
        module = importlib.import_module(f"meq.{package}")
        names |= {f"meq.{package}.{name}" for name in {*module.__all__} - ELSEWHERE.get(package, set())}
    shown = documented()
    shown |= {f"meq.{package}.{name.removeprefix('meq.')}" for package in PACKAGES for name in shown}
    assert sorted(names - shown) == []


def test_what_the_reference_shows_exists() -> None:
    assert len(documented()) > 150
    for name in documented():
        found(name)


def test_the_paper_in_code_has_every_numbered_equation_table_and_figure() -> None:
    text = prose_of(PAPER)
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("|")]
    equations = {int(n) for row in rows if "Equation" in row for n in re.findall(r"\d+", row.split("Equation")[1])}
    tables, figures = (
        {int(n) for row in rows for n in re.findall(rf"{kind} (\d+)", row)} for kind in ("Table", "Figure")
    )
    assert equations == set(range(1, EQUATIONS + 1))
    assert tables == set(range(1, TABLES + 1))
    assert figures == set(range(1, FIGURES + 1))
    assert {"Lemma 1", "Proposition 1"} <= {
        word for row in rows for word in re.findall(r"(?:Lemma|Proposition) \d", row)
    }


def test_the_paper_in_code_names_what_exists() -> None:
    linked = re.findall(r"\[`(meq\.[\w.]+)`\]\((api/\w+\.md)\)", PAPER.read_text(encoding="utf-8"))
    assert len(linked) > 30
    for name, page in linked:
        assert f":: {name}\n" in (DOCS / page).read_text(encoding="utf-8"), f"{name} is not on {page}"
    commands = meq_commands(PAPER)
    named = {words[3] for words in commands if words[:3] == ["meq", "study", "run"]}
    assert len(commands) > 20
    assert sorted(named - {*STUDIES, *UNTRAINED, "paper"}) == []
    figures = {words[words.index("--figure") + 1] for words in commands if "--figure" in words}
    assert sorted(figures - {*STUDY_FIGURES}) == []


def test_objects_that_pages_link_to_are_on_the_page_that_they_link_to() -> None:
    wrong = []
    for page in DOCS.rglob("*.md"):
        for name, target in re.findall(r"\[`(meq\.[\w.]+)`\]\(([./]*api/\w+\.md)\)", page.read_text(encoding="utf-8")):
            if f":: {name}\n" not in (page.parent / target).read_text(encoding="utf-8"):
                wrong.append(f"{page.name}: {name} is not on {target}")
    assert wrong == []


def test_the_extras_that_the_page_on_installing_lists_are_those_of_the_package() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        extras = set(tomllib.load(file)["project"]["optional-dependencies"])
    rows = re.findall(r"^\| `([\w-]+)` \|", (DOCS / "install.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert set(rows) == extras - {"dev"}


def test_the_badges_say_what_the_package_declares() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)["project"]
    shown = {
        name: (DOCS / "images" / f"badge-{name}.svg").read_text(encoding="utf-8") for name in ("python", "licence")
    }
    assert f">{project['requires-python'].removeprefix('>=')}+</text>" in shown["python"]
    assert f">{project['license']}</text>" in shown["licence"]


def test_the_comparison_names_the_version_that_is_measured_against() -> None:
    pinned = re.search(r"torchdeq==(\S+)", (ROOT / "Makefile").read_text(encoding="utf-8"))
    assert pinned is not None
    for page in (ROOT / "README.md", DOCS / "comparison.md"):
        text = page.read_text(encoding="utf-8")
        assert pinned[1] in text
        assert "November 2026" in text


def test_a_page_that_is_in_no_table_of_contents_is_found(tmp_path: Path) -> None:
    page = tmp_path / "index.md"
    page.write_text("# A\n\n```{toctree}\n:hidden:\n\nthere\n```\n", encoding="utf-8")
    assert toctrees(page) == [tmp_path / "there.md"]


def test_a_name_that_does_not_exist_is_found() -> None:
    with pytest.raises(AttributeError):
        found("meq.solvee")
    assert found("meq.solve") is meq.solve
