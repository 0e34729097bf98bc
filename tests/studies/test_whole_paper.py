"""The whole paper at its smallest, on the fixture of every data set that it has, and on one of ours."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from data import more_folders
from rich.console import Console
from studies.kinds import FOLDERS

from meq.records import FormatError
from meq.studies import StudyError, read_study
from meq.studies.paper_found import NAMES
from meq.studies.paper_tables import TABLES, assembled, beside_paper
from meq.studies.recipes import STUDIES, make_study
from meq.studies.whole_paper import (
    PLAN,
    is_measured_cost,
    paper_status,
    paper_tables,
    places_of_parts,
    read_paper,
    read_roots,
    remeasure_paper,
    run_paper,
    smoke_form,
    verify_paper,
)
from meq.tables import FORMATS

QUIET = Console(quiet=True)


@pytest.fixture(scope="module")
def roots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A roots file beside the fixtures that it names, and one set that is not there."""
    folder = tmp_path_factory.mktemp("roots")
    lines = []
    for name, make in FOLDERS.items():
        more_folders.mosei_folder(folder / name, "mmsa-aligned") if name == "mosei" else make(folder / name)
        options = ", options = { dev = 0.4 }" if name == "cod10k" else ""
        lines.append(f'{name} = {{ root = "{name}", smoke = true{options} }}')
    lines.append("scenes = { smoke = true, options = { train = 18, dev = 18, test = 18 } }")
    (folder / "roots.toml").write_text("\n".join(lines))
    return folder / "roots.toml"


@pytest.fixture(scope="module")
def whole(roots: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "paper"
    run_paper(roots, folder, quick=True, seeds=(0,), console=QUIET)
    return folder


def test_every_study_of_the_paper_runs_on_every_set_that_it_has_there(whole: Path) -> None:
    made = {(part.study, part.data) for part in read_paper(whole).parts}
    assert made >= {(study, data) for data, studies in PLAN.items() for study in studies}
    for part in read_paper(whole).parts:
        study = read_study(whole / part.folder)
        assert all((whole / part.folder / "runs" / arm.name).is_dir() for arm in study.arms), part.folder


def test_its_tables_have_the_papers_rows_in_its_order_and_call_the_fixtures_smoke(whole: Path) -> None:
    tables = paper_tables(whole, paper=True)
    first = [str(row[0]) for row in tables["main"].rows]
    order = [f"{NAMES[name]} (smoke)" for name in ("hateful-memes", "vcr", "vqa-v2", "snli-ve", "mosei")]
    assert first == [*order, "scenes (smoke)"], "and nothing of the paper beside a smoke test"
    assert [row[1] for row in tables["main"].rows] == ["AUROC", "Acc", "Acc", "Acc", "Acc-7", "Acc"]
    configurations = [row[1] for row in tables["ablation"].rows if row[0] == "VQA v2 (smoke)"]
    assert configurations == [
        "Full MEQ",
        "w/o soft gating",
        "w/o cross-attention",
        "w/o self-attention",
        "Single iteration",
    ]
    assert [row[0] for row in tables["fixed-point"].rows][:2] == ["CMU-MOSEI (smoke)", "VCR (smoke)"]
    assert all("(smoke)" in tables[name].title for name in ("cost-arms", "cost-sweep"))
    assert not any("paper" in column.title for table in tables.values() for column in table.columns)
    wanted = "main ablation mixer readout modality robustness cod10k residual-penalty safeguards state-design"
    assert {*wanted.split(), "fixed-point", "datasets", "cost-arms"} <= set(tables)
    assert "hyperparameters" not in tables, "they would be those of no row"


def test_the_published_figures_stand_beside_rows_that_are_no_smoke_test(whole: Path) -> None:
    parts = [replace(part, smoke=False) for part in read_paper(whole).parts]
    tables = assembled(whole, parts, quick=True, paper=True)
    main = {str(row[0]): row for row in tables["main"].rows}
    assert main["SNLI-VE (paper)"][2:6] == ("71.61", "74.40", "75.15", "+3.53")
    assert main["Hateful Memes (paper)"][2:6] == ("0.6873", "0.7251", "0.7021", "+1.48")
    far = {str(row[0]): row for row in tables["fixed-point"].rows}
    assert far["VQA v2 (paper)"][1:] == ("42", 1.340, 1.42, "7.4e-2", "1.5e-3", "62.8", "27.4", 21_029)
    robust = {row[1]: row for row in tables["robustness"].rows if row[0] == "Hateful Memes"}
    assert robust["Blur (r = 8)"][-4:] == ("0.6582", "0.6564", "", "")
    assert robust["Noise (sigma = 0.3)"][-2:] == ("+1.88", "yes")
    assert robust["Typo (5%)"][-4:-2] == ("0.6621", "0.6791")
    state = {(row[0], row[1]): row for row in tables["state-design"].rows}
    assert state["Hateful Memes", "Single state, model-matched"][-3:] == ("0.7262", "+1.68", "no")
    assert state["VQA v2", "Feature-sum, one vector"][-3:] == ("51.94", "-11.39", "yes")
    assert state["VQA v2", "Single state, token level"][-3:] == ("62.98", "-0.35", "yes")
    assert state["CMU-MOSEI", "Single state (replaced block)"][-3:] == ("53.86", "-0.84", "yes")
    assert any(note.startswith("CMU-MOSEI: ") and "the same arm" in note for note in tables["state-design"].notes)
    assert next(row[-2:] for row in tables["readout"].rows if row[1] == "Cross-attention merge") == ("+0.01", "")
    assert [row[3:] for row in tables["over-k"].rows if row[0] == "SNLI-VE (paper)"] == [("80.0", "300", "77.2", None)]
    assert [row[1] for row in tables["cod10k"].rows if row[0] == "less MEQ (paper)"] == ["-4.65"]
    residual = {str(row[0]): row for row in tables["residual-penalty"].rows}
    assert residual["VQA v2 (paper)"][1:5] == ("9.7e-4", "9.4e-2", "54.29", "63.33")
    assert residual["Hateful Memes (paper)"][3:5] == ("70.21", "70.37"), "in percent, as in the paper's table"
    assert float(str(residual["Hateful Memes"][3])) in (0.0, 25.0, 50.0, 75.0, 100.0)
    gates = {row[1]: row for row in tables["safeguards"].rows if row[0] == "VQA v2"}
    assert gates["lambda_f = 0"][-4:] == ("+9.04", "yes", 0.2339, 0.0532)
    assert main["CMU-MOSEI (paper)"][-4:] == ("-0.59", "no", "-0.54", "no")
    ablated = {(row[0], row[1]): row for row in tables["ablation"].rows}
    assert ablated["VQA v2", "w/o soft gating"][-3:] == ("62.57", "-0.54", "no")
    assert ablated["CMU-MOSEI", "w/o cross-attention"][-3:] == ("--", "-0.13", "no"), "in its text alone"
    assert any("there is no self-attention to remove" in note for note in tables["ablation"].notes)
    trained = tables["hyperparameters"]
    assert [column.title for column in trained.columns][1:4] == ["SNLI-VE", "SNLI-VE (paper)", "Hateful Memes"]
    assert {row[0]: row[1:3] for row in trained.rows}["epochs"] == ("1", "10"), "of the runs, not of the setting"
    counted = {row[0]: row[1:] for row in tables["datasets"].rows}
    assert counted["VQA v2 (paper)"] == ("Open-ended QA", "193K", "21K", "-", "3,129")
    assert counted["VCR"][0] == "4-way multiple choice"
    assert counted["VCR"][-1] == 4
    read = {row[0]: row[1:] for row in tables["encoders"].rows}
    assert read["VCR (paper)"] == ("CLIP image + RoI features", "BERT-base")
    assert "patches and regions" in str(read["VCR"][0]), "the picture's own tokens beside those of its boxes"
    assert str(read["CMU-MOSEI"][1]).startswith("words"), "its words are read where the files have them"
    notes = {name: " ".join(table.notes) for name, table in tables.items()}
    assert "Splits: SNLI-VE cod10k test" in notes["over-k"], "another set than that of training is read"
    assert "1.19 to concatenation" in notes["modality"]
    assert "flat from k = 5" in notes["steps"]
    assert all("Quick form" in table.notes[-1] for table in tables.values())


def test_a_study_alone_is_shown_beside_the_papers_table_where_there_is_one(whole: Path, tmp_path: Path) -> None:
    shown = {}
    for part in read_paper(whole).parts:
        with pytest.raises(StudyError, match="is a smoke test, whose scores say nothing"):
            beside_paper(whole / part.folder)
        copy = shutil.copytree(whole / part.folder, tmp_path / part.folder)
        text = (copy / "study.json").read_text()
        (copy / "study.json").write_text(text.replace("-smoke", ""))
        shown[part.study, part.data] = [row for table in beside_paper(copy).values() for row in table.rows]
    without = {study for study, rows in shown.items() if not rows}
    assert not {(s, d) for s, d in without if d in NAMES}, "the paper has something to say on all of its own"
    assert any(1.689 in row for row in shown["fixed-point", "snli-ve"])


def test_the_tables_on_disk_are_those_of_the_records_and_a_changed_one_is_found(whole: Path, tmp_path: Path) -> None:
    for name, table in paper_tables(whole).items():
        for ending, render in FORMATS.items():
            assert (whole / "tables" / f"{name}.{ending}").read_text() == render(table)
    changed = shutil.copytree(whole, tmp_path / "paper")
    file = changed / "tables" / "main.csv"
    file.write_text(file.read_text().replace("AUROC", "AUC"))
    (changed / "tables" / "extra.txt").write_text("made up")
    found = verify_paper(changed).faults
    assert {fault.file for fault in found} == {"tables/main.csv", "tables/extra.txt"}, "and no fault in any study"


def test_tables_of_another_version_are_noted_and_costs_that_were_interrupted_are_no_fault(
    whole: Path, tmp_path: Path
) -> None:
    older = shutil.copytree(whole, tmp_path / "paper")
    text = (older / "paper.json").read_text()
    (older / "paper.json").write_text(re.sub(r',\s*"table_format": \d+', "", text))
    (older / "tables" / "main.csv").write_text("as an older version wrote it")
    shutil.rmtree(older / "cost")
    (older / "cost").mkdir()
    found = verify_paper(older)
    assert found.ok, found.faults
    assert any("of another version of meq" in note for note in found.notes)


def test_measures_of_the_whole_paper_are_taken_again_where_the_data_is_there(whole: Path, tmp_path: Path) -> None:
    """Those of the embedded set, whatever lies elsewhere; one that was edited is found."""
    edited = shutil.copytree(whole, tmp_path / "edited")
    measured = next(edited.glob("fixed-point-*scenes*/runs/*/*/measures/fixed-point.json"))
    content = json.loads(measured.read_text())
    content["found"]["residual"]["image"][0] *= 2
    measured.write_text(json.dumps(content))
    found = remeasure_paper(edited)
    assert [fault.file for fault in found.faults] == [measured.relative_to(edited).as_posix()]
    assert found.measures > 1
    assert any("is not here, so that nothing was measured again" in note for note in found.notes)


def test_the_same_call_trains_nothing_again(whole: Path, roots: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in whole.glob("*/runs/*/*/record.json")}
    run_paper(roots, whole, quick=True, seeds=(0,), console=QUIET)
    assert {path: path.stat().st_mtime_ns for path in whole.glob("*/runs/*/*/record.json")} == before
    borrowed = list(whole.glob("*/runs/*/*/borrowed.json"))
    assert len(borrowed) > 10, "runs that several studies ask for are made once"
    with pytest.raises(StudyError, match="holds the paper in the quick form: choose another folder"):
        run_paper(roots, whole, seeds=(0,), console=QUIET)


def test_its_latex_compiles(whole: Path, tmp_path: Path) -> None:
    if shutil.which("pdflatex") is None:
        pytest.skip("pdflatex is not installed")
    tables = "\n\n".join(FORMATS["tex"](table) for table in paper_tables(whole).values())
    document = (
        "\\documentclass{article}\\usepackage{booktabs}\\begin{document}\\tiny\n" + tables + "\n\\end{document}\n"
    )
    (tmp_path / "tables.tex").write_text(document)
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "tables.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout[-2000:]


def test_every_figure_that_the_paper_prints_in_these_tables_is_known() -> None:
    from meq.studies import paper

    assert {f"main/{name}" for name in NAMES} <= set(paper.PAPER)
    assert set(paper.FIXED_POINT) == set(paper.RESIDUALS) == set(NAMES) - {"cod10k"}
    assert [f"residual/{name}" in paper.PAPER for name in paper.RESIDUALS] == [True] * 5
    assert {key.split("/")[0] for key in paper.SAID} <= {*TABLES, "datasets"}
    assert {key.split("/")[1] for key in paper.SAID} <= set(NAMES)


def test_the_full_form_trains_with_the_papers_hyperparameters() -> None:
    from meq.studies import paper
    from meq.studies.settings import FULL
    from meq.studies.untrained import hyperparameters_table

    table = hyperparameters_table({name: FULL[name] for name in paper.HYPERPARAMETERS}, beside=paper.HYPERPARAMETERS)
    rows = [row[1:] for row in table.rows if row[0] in paper.HYPERPARAMETERS["vcr"]]
    assert len(rows) == 13
    assert all(row[0::2] == row[1::2] for row in rows)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "names no data set"),
        ("snli-ve", "is no roots file"),
        ('snli_ve = "x"', "there is no such data set: did you mean 'snli-ve'"),
        ("snli-ve = true", 'lies in a folder of yours: write snli-ve = "path/to/it"'),
        ('scenes = "folder"', "has no folder: write scenes = true"),
        ('vcr = { rot = "x" }', "there is no 'rot': did you mean 'root'"),
        ('vcr = { root = "x", smoke = "yes" }', "smoke is true or false"),
    ],
)
def test_a_roots_file_that_makes_no_sense_is_an_error_that_says_so(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "roots.toml").write_text(text)
    with pytest.raises(StudyError, match=words):
        read_roots(tmp_path / "roots.toml")
    with pytest.raises(StudyError, match="there is no roots file"):
        read_roots(tmp_path / "none.toml")


def test_a_folder_of_the_paper_does_not_lead_elsewhere(whole: Path, tmp_path: Path) -> None:
    (tmp_path / "paper.json").write_text(
        (whole / "paper.json").read_text().replace("main-vcr-quick-smoke", "../../vcr")
    )
    with pytest.raises(FormatError, match=r"\.\./\.\./vcr"):
        read_paper(tmp_path)


def test_a_set_that_is_not_there_is_named_and_left_out(tmp_path: Path) -> None:
    (tmp_path / "roots.toml").write_text('vcr = "gone"\nscenes = true')
    there, missing = read_roots(tmp_path / "roots.toml")
    assert list(there) == ["scenes"]
    assert missing == {"vcr": f"{tmp_path / 'gone'} is not there"}
    (tmp_path / "roots.toml").write_text('vcr = "gone"')
    with pytest.raises(StudyError, match="none of the data sets is there"):
        run_paper(tmp_path / "roots.toml", tmp_path / "out", console=QUIET)
    assert not (tmp_path / "out").exists()


def test_the_tables_name_the_sets_that_were_not_there(whole: Path) -> None:
    parts = [part for part in read_paper(whole).parts if part.data not in ("vcr", "cod10k")]
    left_out = {"vcr": "/home/me/vcr is not there", "grounding on snli-ve": "it reads cod10k, which is not there"}
    notes = assembled(whole, parts, quick=True, left_out=left_out)["datasets"].notes
    assert "Sets of the paper that were not there, and are left out: VCR, COD10K." in notes
    assert "grounding on snli-ve is left out: it reads cod10k, which is not there." in notes
    assert not any("/home" in note for note in notes)


def test_how_far_the_paper_has_come_is_told_and_a_report_is_of_one_study(whole: Path) -> None:
    from meq.viz.report import check_report

    rows = {(row[0], row[1]): row[2:] for row in paper_status(whole).rows}
    assert rows["main", "vcr"] == ("5 of 5", 0, "main-vcr-quick-smoke")
    assert len(rows) == len(read_paper(whole).parts)
    with pytest.raises(StudyError, match=f"a report is of one of its studies, such as {whole}/main-"):
        check_report(whole)


def test_costs_of_a_smoke_test_are_measured_again_for_the_real_thing(whole: Path) -> None:
    assert is_measured_cost(whole / "cost", smoke=True)
    assert not is_measured_cost(whole / "cost", smoke=False)


@pytest.mark.parametrize("name", STUDIES)
def test_the_smoke_form_keeps_arms_and_measures(name: str) -> None:
    study = make_study(name, None if name != "tree-order" else "mosei")
    small = smoke_form(study)
    assert [arm.name for arm in small.arms] == [arm.name for arm in study.arms]
    assert small.measures.keys() == study.measures.keys()


def test_every_figure_of_the_paper_is_drawn_from_the_records(whole: Path, roots: Path, tmp_path: Path) -> None:
    from meq.viz.figures import draw_all
    from meq.viz.study_figures import grounding, open_reported_study

    alone = open_reported_study(whole / "grounding-snli-ve-quick-smoke")
    assert alone.pictures == {}, "photographs are no part of the records"
    known = places_of_parts(whole, roots)
    drawn_over = open_reported_study(alone.folder, known[alone.folder.name])
    assert {name.split(".")[0][:10] for name in drawn_over.pictures} == {"COD10K-CAM"}
    assert all("over the pictures" in drawing.alt for drawing in grounding(drawn_over))
    made = draw_all(whole / "grounding-snli-ve-quick-smoke", tmp_path / "figures")
    assert {file.name for file in made} >= {
        f"{name}.{ending}"
        for name in ("architecture", "grounding-1", "probability-along-k", "accuracy-along-k", "training")
        for ending in ("png", "svg")
    }
    assert all(file.stat().st_size > 1000 for file in made)
    drawn = draw_all(whole / "main-mosei-quick-smoke", tmp_path / "mosei")
    assert "architecture.png" in {file.name for file in drawn}, "a merge tree, too"
