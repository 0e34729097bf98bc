"""The Markdown files tell the truth: their Python runs, their make targets exist, their links lead somewhere."""

import csv
import re
import shlex
import sys
import textwrap
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import typer
from PIL import Image
from typer.testing import CliRunner

from meq.cli import app

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
SHELLS = {"bash", "console", "sh"}


@dataclass(frozen=True, kw_only=True)
class Block:
    """A fenced block of a page: its language, its text, and the line of the page on which the text begins."""

    language: str
    text: str
    line: int


def blocks_of(page: Path) -> Iterator[Block]:
    """The fenced blocks of a page, in order."""
    lines = page.read_text(encoding="utf-8").splitlines()
    start, fence, language = 0, "", ""
    for number, line in enumerate(lines, start=1):
        mark = re.fullmatch(r"\s*(`{3,})\s*(\w*)[^`]*", line)
        if mark and not fence:
            start, fence, language = number, mark[1], mark[2]
        elif mark and len(mark[1]) >= len(fence) and not mark[2]:
            yield Block(language=language, text=textwrap.dedent("\n".join(lines[start : number - 1])), line=start + 1)
            fence = ""
    assert not fence, f"{page.name}:{start}: the block is never closed"


def run_page(page: Path, module: ModuleType) -> None:
    """Run the Python blocks of a page, in order, in one namespace; an error names the page and the line."""
    for block in blocks_of(page):
        if block.language != "python":
            continue
        try:
            # Empty lines in front, so that the lines of a traceback are those of the page.
            exec(compile("\n" * (block.line - 1) + block.text, str(page), "exec"), module.__dict__)
        except Exception as error:
            here = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(page)]
            line = error.lineno if isinstance(error, SyntaxError) else here[-1]
            raise AssertionError(f"{page.name}:{line}: {type(error).__name__}: {error}") from error


def prose_of(page: Path) -> str:
    """A page without its fenced blocks."""
    return re.sub(r"^\s*(`{3,}).*?^\s*\1`*\s*$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def shell_commands(page: Path) -> Iterator[str]:
    """The commands that a page shows: lines of its shell blocks, and inline code."""
    for block in blocks_of(page):
        if block.language in SHELLS:
            yield from block.text.splitlines()
    yield from re.findall(r"`([^`\n]+)`", prose_of(page))


def targets_named(command: str) -> set[str]:
    """The make targets in a command: {"lint", "types"} for `$ cd meq && make lint types ARGS="-k x"  # both`."""
    named: set[str] = set()
    bare = re.sub(r"""(^|\s)#.*|"[^"]*"|'[^']*'""", "", command)
    for part in re.split(r"&&|\|\|?|;", bare):
        words = part.strip().removeprefix("$ ").split()
        if words[:1] == ["make"]:
            named |= {word for word in words[1:] if re.fullmatch(r"[A-Za-z][\w-]*", word)}
    return named


def makefile_targets() -> set[str]:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    return set(re.findall(r"^([A-Za-z][\w-]*)\s*:(?!=)", text, flags=re.MULTILINE))


def broken_links(page: Path, root: Path) -> list[str]:
    """The relative links of a page that lead to no file of the project."""
    prose = re.sub(r"`[^`\n]+`", "", prose_of(page))
    targets = re.findall(r"\]\(<?([^)\s>]+)", prose) + re.findall(r"^\[[^\]]+\]:\s*(\S+)", prose, flags=re.MULTILINE)
    broken = []
    for target in targets:
        path = target.partition("#")[0]
        if not path or re.match(r"[a-z][a-z+.-]*:", target):
            continue
        place = (page.parent / path).resolve()
        if not (place.exists() and place.is_relative_to(root)):
            broken.append(f"{page.name} links to {target}")
    return broken


def write_table(folder: Path) -> None:
    """photos.csv and new.csv, as the pages speak of them: pictures and captions of the reader's own, with gaps."""
    rows = ["photo,caption,y"]
    for number in range(20):
        Image.new("RGB", (32, 24), ("red", "blue")[number % 2]).save(folder / f"{number}.png")
        rows.append(f"{number}.png,picture {number},{('warm', 'cold')[number % 2]}")
    (folder / "photos.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    (folder / "new.csv").write_text("photo,caption\n3.png,picture 3\n4.png,\n,picture 5\n", encoding="utf-8")


@pytest.fixture
def scratch(tmp_path, monkeypatch) -> ModuleType:
    """An empty module for the blocks of one page, run with a fixed seed from a folder that holds a reader's table."""
    # In sys.modules, since dataclasses and pickle look a class up by the name of its module.
    module = ModuleType("page")
    monkeypatch.setitem(sys.modules, "page", module)
    folder = tmp_path / "here"
    folder.mkdir()
    write_table(folder)
    monkeypatch.chdir(folder)
    torch.manual_seed(0)
    return module


@pytest.fixture(params=PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def page(request) -> Path:
    found: Path = request.param
    return found


def test_the_python_of_every_page_runs(page, scratch):
    run_page(page, scratch)


def test_the_readme_has_python_to_run():
    assert any(block.language == "python" for block in blocks_of(ROOT / "README.md"))


def test_every_make_target_that_a_page_names_exists(page):
    named = {target for command in shell_commands(page) for target in targets_named(command)}
    assert named <= makefile_targets()


def test_every_make_target_that_continuous_integration_calls_exists():
    lines = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    named = {target for line in lines for target in targets_named(line)}
    assert "test" in named
    assert named <= makefile_targets()


def test_every_relative_link_leads_to_a_file(page):
    assert not broken_links(page, ROOT)


def meq_commands(page: Path) -> list[list[str]]:
    """The words of every `meq` command that a page shows."""
    lines = [re.sub(r"\s+#.*", "", command).strip() for command in shell_commands(page)]
    found = [shlex.split(line.removeprefix("$ ")) for line in lines if re.match(r"(\$ )?meq [a-z]", line)]
    return [words for words in found if words[-1] != "..."]


def unknown_words(words: list[str]) -> list[str]:
    """Commands and options of a `meq` command line that do not exist."""
    command: Any = typer.main.get_command(app)
    rest = words[1:]
    while rest and hasattr(command, "commands"):
        if rest[0] not in command.commands:
            return [rest[0]]
        command, rest = command.commands[rest[0]], rest[1:]
    known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    return [word for word in rest if word.startswith("-") and word != "--" and word not in known | {"--help"}]


def test_every_meq_command_that_a_page_shows_exists(page):
    unknown = {shlex.join(words): wrong for words in meq_commands(page) if (wrong := unknown_words(words))}
    assert not unknown


def test_an_unknown_command_or_option_in_a_page_is_found():
    assert unknown_words(["meq", "studdy"]) == ["studdy"]
    assert unknown_words(["meq", "study", "run", "main", "--quik"]) == ["--quik"]
    assert unknown_words(["meq", "study", "run", "main", "--quick"]) == []


def test_the_readme_leads_from_a_table_to_answers_with_an_explanation(scratch):
    """Its shell blocks, line by line, in a folder that holds nothing but the reader's table and pictures."""
    commands = [
        shlex.split(line)
        for block in blocks_of(ROOT / "README.md")
        if block.language == "bash"
        for line in block.text.splitlines()
    ]
    assert [words[1] for words in commands] == ["train", "evaluate", "predict", "explain", "report"]
    for words in commands:
        done = CliRunner().invoke(app, words[1:])
        assert done.exit_code == 0, f"{shlex.join(words)}\n{done.output}"
    with open("answers.csv", newline="", encoding="utf-8") as file:
        answers = list(csv.DictReader(file))
    assert len(answers) == 3
    assert {row["answer"] for row in answers} <= {"warm", "cold"}
    assert Path("explanation/explanation.png").is_file()
    assert "<html" in Path("runs/photos-report.html").read_text(encoding="utf-8")


PAGE = """# A page

```python
number = 1
```

- in a list:

  ```python
  number += 1
  assert number == 2
  {line}
  ```

Then `make {target}` as [told]({link}), and `code[0](not a link)`.

```console
$ cd meq && make {target} ARGS="-k word"  # not a target: make this
```
"""


def write_page(folder: Path, *, line: str = "", target: str = "test", link: str = "there.md#part") -> Path:
    (folder / "there.md").touch()
    page = folder / "page.md"
    page.write_text(PAGE.format(line=line, target=target, link=link), encoding="utf-8")
    return page


def test_a_page_that_is_right_passes(tmp_path, scratch):
    page = write_page(tmp_path)
    run_page(page, scratch)
    assert scratch.number == 2
    assert {target for command in shell_commands(page) for target in targets_named(command)} == {"test"}
    assert not broken_links(page, tmp_path)


@pytest.mark.parametrize(
    ("line", "words"),
    [("1 / 0", "ZeroDivisionError"), ("nonsense here", "SyntaxError"), ("assert number == 3", "AssertionError")],
)
def test_a_broken_block_is_reported_with_its_page_and_line(tmp_path, scratch, line, words):
    with pytest.raises(AssertionError, match=rf"page\.md:12: {words}"):
        run_page(write_page(tmp_path, line=line), scratch)


def test_a_block_that_is_never_closed_is_reported(tmp_path, scratch):
    page = tmp_path / "page.md"
    page.write_text("text\n```python\nnumber = 1\n", encoding="utf-8")
    with pytest.raises(AssertionError, match=r"page\.md:2: the block is never closed"):
        run_page(page, scratch)


def test_a_target_that_does_not_exist_is_found(tmp_path):
    page = write_page(tmp_path, target="nowhere")
    assert {target for command in shell_commands(page) for target in targets_named(command)} == {"nowhere"}
    assert "nowhere" not in makefile_targets()


@pytest.mark.parametrize("link", ["missing.md", "../outside.md"])
def test_a_link_that_leads_nowhere_is_reported(tmp_path, link):
    (tmp_path / "outside.md").touch()
    project = tmp_path / "project"
    project.mkdir()
    assert broken_links(write_page(project, link=link), project) == [f"page.md links to {link}"]
