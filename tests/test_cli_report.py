from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import typer
from reports import hostile_run, tiny_study
from typer.testing import CliRunner

from meq.cli.report import report as command

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


@pytest.mark.parametrize("name", ["nothing", "."])
def test_a_folder_of_neither_kind_is_an_error_in_words(tmp_path: Path, name: str) -> None:
    code, said = report(tmp_path / name)
    assert code == 1
    assert "is not the folder of a run or a study" in said.replace("\n", " ")
    assert "Traceback" not in said
