from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import typer
from reports import hostile_run, tiny_study
from typer.testing import CliRunner

from meq.cli.understand import report as command

TRAINING = ["training.png", "training.svg"]

app = typer.Typer()
app.command()(command)


def report(*arguments: str | Path) -> tuple[int, str]:
    result = CliRunner().invoke(app, [*map(str, arguments)])
    return result.exit_code, result.output


def test_a_run_is_reported_beside_its_folder_from_what_was_kept(tmp_path: Path) -> None:
    run = Path(shutil.copytree(hostile_run(), tmp_path / "photos"))
    code, said = report(run)
    assert code == 0, said
    assert (tmp_path / "photos-report.html").is_file()
    assert str(tmp_path / "photos-report.html") in said.replace("\n", "")


def test_files_alone_are_enough_for_a_report_of_a_study(tmp_path: Path) -> None:
    code, said = report(tiny_study(), "--out", tmp_path / "new" / "page.html", "--only-files")
    assert code == 0, said
    assert "tiny-report" in (tmp_path / "new" / "page.html").read_text()


def test_a_figure_is_drawn_by_its_name_and_a_wrong_name_is_told_before_anything_is_computed(tmp_path: Path) -> None:
    run = Path(shutil.copytree(hostile_run(), tmp_path / "photos"))
    code, said = report(run, "--figure", "training", "--figure", "influence", "--only-files")
    assert code == 0, said
    names = sorted(file.name for file in (tmp_path / "photos-figures").iterdir())
    assert names == ["influence-1.png", "influence-1.svg", "influence-2.png", "influence-2.svg", *TRAINING]
    code, said = report(tiny_study(), "--figure", "training", "--out", tmp_path / "here")
    assert code == 0, said
    assert sorted(file.name for file in (tmp_path / "here").iterdir()) == TRAINING
    code, said = report(run, "--figure", "armss")
    assert code == 1
    assert "there is no figure of a run 'armss'" in said.replace("\n", " ")


@pytest.mark.parametrize("name", ["nothing", "."])
def test_a_folder_of_neither_kind_is_an_error_in_words(tmp_path: Path, name: str) -> None:
    code, said = report(tmp_path / name)
    assert code == 1
    assert "is not the folder of a run or a study" in said.replace("\n", " ")
    assert "Traceback" not in said
