from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from jinja2 import UndefinedError
from markupsafe import Markup
from reports import (
    FEW,
    ITERATED,
    LABELS,
    NASTY,
    SCRIPT,
    TRAIN,
    UNSEEN,
    hostile_page,
    hostile_run,
    run_page,
    study_page,
    tiny_study,
)

from meq.data.request import DataRequest
from meq.runs import train_on
from meq.runs.evaluate import RIGHT, UNSURE, WRONG, confusion_table, notable_answers, score_answers
from meq.runs.showcase import best_run, look_for_report, prepare_showcase, read_showcase, write_showcase
from meq.studies import Predictions, StudyError, read_record, verify
from meq.studies.study import read_study
from meq.studies.tables import records_of
from meq.training.record import RunError, write_record
from meq.viz.figures import RUN_FIGURES, FigureEntry, draw_figure
from meq.viz.report import default_place, write_report
from meq.viz.report.run import _coloured
from meq.viz.run_figures import ReportedRun
from meq.viz.style import Drawing, new_figure
from meq.viz.templating import templates

MEGABYTES = 6e6


class Reader(HTMLParser):
    """Headings, attributes and text of a page; every element must be closed."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.headings: list[int] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if re.fullmatch("h[1-6]", tag):
            self.headings.append(int(tag[1]))
        if tag not in ("img", "br", "meta"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data if "style" not in self.open else ""


@pytest.fixture(scope="module")
def study_report() -> str:
    return study_page().read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def run_report() -> str:
    return run_page().read_text(encoding="utf-8")


def test_a_study_report_has_question_tables_figures_verification_and_one_run_in_detail(study_report: str) -> None:
    page = Reader(study_report)
    for words in (
        "Do two arms & two seeds fit on a page?",
        "twice the sample standard deviation of the differences paired by seed",
        "The study verified when this report was made",
        "Coupling at the kept weights",
        "meq read at step k",
        "existence",
        "One run in detail: meq, seed",
        "Verdict:",
        "Most confidently wrong",
        "came out the same: digit by digit",
    ):
        assert words in page.text, words
    assert json.loads((tiny_study() / "manifest.json").read_bytes())["seal"] in page.text


def test_a_run_report_says_what_was_run_and_what_came_out(run_report: str) -> None:
    page = Reader(run_report)
    record = json.loads((hostile_run() / "record.json").read_bytes())
    for words in (
        f"{record['parameters']:,} parameters",
        "16 examples",
        "encoded by patches",
        "the best by accuracy on dev",
        record["checkpoint"]["sha256"],
        record["predictions"]["test"]["sha256"],
        "as recorded",
        "True class (rows) and answer (columns) on test",
        "None. Collapse to the identity",
    ):
        assert words in page.text, words


@pytest.mark.parametrize("which", ["study_report", "run_report"])
def test_a_report_is_one_accessible_file_that_asks_for_nothing(which: str, request: pytest.FixtureRequest) -> None:
    source = request.getfixturevalue(which)
    page = Reader(source)
    assert len(source) < MEGABYTES
    assert "script" not in {name for name, _ in page.tags}
    for name, found in page.tags:
        assert name != "link"
        assert not any(key.startswith("on") or key == "style" for key in found)
        assert str(found.get("src", "data:image/")).startswith("data:image/")
        assert str(found.get("href", "#")).startswith("#")
        if name == "img":
            assert len(str(found["alt"])) > 10
        if name == "th":
            assert found["scope"] in ("row", "col")
    steps = zip(page.headings, page.headings[1:], strict=False)
    assert page.headings[0] == 1
    assert page.headings.count(1) == 1
    assert all(after <= before + 1 for before, after in steps)
    policy = next(str(found["content"]) for name, found in page.tags if found.get("http-equiv"))
    assert policy.startswith("default-src 'none'; img-src data:; style-src 'sha256-")


def test_what_users_wrote_is_text_and_never_markup(run_report: str) -> None:
    assert SCRIPT not in run_report
    assert SCRIPT in Reader(run_report).text
    for label in LABELS:
        assert label in Reader(run_report).text


@pytest.mark.parametrize("package", ["meq.viz.report", "meq.viz.app"])
def test_what_stands_in_a_template_is_escaped_shortened_and_visible_unless_it_is_markup(package: str) -> None:
    page = templates(package).from_string('<p alt="{{ alt }}">{{ text }}{{ markup }}{{ nothing }}{{ long }}</p>')
    values = {"alt": '"<', "text": "<i>\u202e", "markup": Markup("<b>"), "nothing": None, "long": "x" * 6000}
    assert page.render(values).startswith('<p alt="&#34;&lt;">&lt;i&gt;\ufffd<b>xxx')
    assert "x… (1,000 more characters)</p>" in page.render(values)
    with pytest.raises(UndefinedError, match="'text' is undefined"):
        page.render(alt="")
    sources = [
        templates(package).loader.get_source(templates(package), name)[0] for name in page.environment.list_templates()
    ]
    assert sources
    assert not any("safe" in source or "autoescape" in source for source in sources)


def test_a_new_figure_is_one_function_and_one_line_and_is_then_drawn_by_name_and_in_the_report(
    tmp_path: Path,
) -> None:
    def dots(run: ReportedRun) -> list[Drawing]:
        figure = new_figure(3, 2)
        figure.add_subplot().plot([run.files.record.seed], [0], "o")
        return [Drawing(figure=figure, alt="One dot for one seed", caption="A figure of <our> own.")]

    RUN_FIGURES.add("dots", FigureEntry(place="training", draw=dots))
    try:
        drawn = draw_figure(hostile_run(), "dots", tmp_path)
        page = write_report(hostile_run(), tmp_path / "page.html").read_text(encoding="utf-8")
    finally:
        RUN_FIGURES.remove("dots")
    assert [file.name for file in drawn] == ["dots.png", "dots.svg"]
    assert "A figure of <our> own." in Reader(page).text
    with pytest.raises(ValueError, match=r"no figure of a run 'trainin': did you mean 'training'"):
        draw_figure(hostile_run(), "trainin", tmp_path)
    with pytest.raises(ValueError, match=r"no place 'trainin': did you mean 'training'"):
        FigureEntry(place="trainin", draw=dots)


def test_figures_of_runs_and_studies_are_drawn_by_name_and_what_is_not_there_is_said(tmp_path: Path) -> None:
    assert len(draw_figure(hostile_run(), "examples", tmp_path / "run")) % 2 == 0
    assert [file.name for file in draw_figure(tiny_study(), "training", tmp_path)] == ["training.png", "training.svg"]
    with pytest.raises(ValueError, match="has nothing to draw as 'grounding'"):
        draw_figure(tiny_study(), "grounding", tmp_path)


@pytest.mark.fuzz
def test_hostile_names_are_shown_and_neither_run_nor_turn_the_text_nor_bury_it() -> None:
    page = hostile_page().read_text(encoding="utf-8")
    found = Reader(page)
    assert {name for name, _ in found.tags} & {"script", "svg", "iframe", "object", "link", "base", "form"} == set()
    assert [key for _, attributes in found.tags for key in attributes if key.startswith("on")] == []
    targets = {attributes["href"] for name, attributes in found.tags if name == "a"}
    assert all(target is not None and target.startswith("#") for target in targets)
    assert NASTY[0] in found.text
    assert NASTY[1] in found.text
    assert "endlessendless" in found.text
    assert "more characters)" in found.text
    assert len(found.text) < 200_000  # one label alone has half of that, and stands in many places
    assert not UNSEEN & set(page)


def test_a_hostile_question_of_a_study_is_shown_and_nothing_else(study_report: str) -> None:
    found = Reader(study_report)
    assert NASTY[0] in found.text
    assert "script" not in {name for name, _ in found.tags}
    assert not UNSEEN & set(study_report)


def test_without_its_data_the_report_comes_out_and_says_what_is_missing(tmp_path: Path) -> None:
    run = Path(shutil.copytree(hostile_run(), tmp_path / "run", ignore=shutil.ignore_patterns("analysis")))
    page = Reader(write_report(run).read_text(encoding="utf-8"))
    assert "Only the files of the run were read" in page.text
    asked = json.loads((run / "request.json").read_bytes())
    hidden = Path(asked["data"])
    hidden.rename(hidden.with_suffix(".hidden"))
    try:
        missing = prepare_showcase(run, options=FEW).missing
    finally:
        hidden.with_suffix(".hidden").rename(hidden)
    assert any("rows.csv" in each and "--root" in each for each in missing)
    assert missing[0] in Reader(write_report(run).read_text(encoding="utf-8")).text
    (run / "model" / "model.safetensors").unlink()
    assert look_for_report(run, scratch=tmp_path)[0] is None
    assert "not there" in Reader(write_report(run).read_text(encoding="utf-8")).text


def test_a_model_that_does_not_iterate_is_shown_with_examples_and_without_an_equilibrium(tmp_path: Path) -> None:
    run = tiny_study() / "runs" / "concat" / "seed-0"
    looks, missing = look_for_report(run, scratch=tmp_path, options=FEW)
    assert looks == tmp_path  # the run lies in a sealed study
    assert missing == ()
    page = Reader(write_report(run, tmp_path / "page.html", looks=looks).read_text(encoding="utf-8"))
    assert "a single pass that joins the pooled modalities" in page.text
    assert "The image of example" in str(page.tags)
    assert "Diagnosis" not in page.text


def test_a_model_without_a_gate_is_shown_with_its_equilibrium(tmp_path: Path) -> None:
    request = DataRequest(data="statements", options={"train": 32, "dev": 8, "test": 8})
    shape = {**ITERATED, "gate": False}
    run = train_on(request, tmp_path / "run", shape=shape, config=TRAIN).folder.parent
    looks, missing = look_for_report(run, scratch=tmp_path / "looks", options=FEW)
    assert missing == ()
    page = Reader(write_report(run, tmp_path / "page.html", looks=looks).read_text(encoding="utf-8"))
    assert "Diagnosis" in page.text
    assert "residual" in page.text
    assert "nan" not in page.text.lower().split()


def test_a_run_that_failed_is_reported_as_failed(tmp_path: Path) -> None:
    left_out = shutil.ignore_patterns("analysis", "model", "seal.json")  # which a failed run does not have
    run = Path(shutil.copytree(hostile_run(), tmp_path / "run", ignore=left_out))
    error = RunError(kind="TrainingError", message="the loss <is> not finite", batch_ids=())
    nothing = {"metrics": {}, "predictions": {}, "checkpoint": None, "curves": ()}
    write_record(run, replace(read_record(run), status="failed", error=error, **nothing))
    said = Reader(write_report(run).read_text(encoding="utf-8")).text
    assert "It failed: TrainingError: the loss <is> not finite" in said
    assert "There are no scores" in said


def test_changed_answers_and_stale_looks_are_noticed(tmp_path: Path) -> None:
    run = Path(shutil.copytree(hostile_run(), tmp_path / "run"))
    (run / "predictions" / "dev.parquet").write_bytes((run / "predictions" / "test.parquet").read_bytes())
    found = read_showcase(run)
    assert found is not None
    write_showcase(run, replace(found, origin=replace(found.origin, weights_sha256="0" * 64)))
    said = write_report(run).read_text(encoding="utf-8")
    assert "Changed since the run was recorded: predictions/dev.parquet" in said
    assert "Only the files of the run were read" in said
    kept = run / "analysis" / "report.json"
    kept.write_text(kept.read_text().replace("most confidently", "most"))
    with pytest.raises(ValueError, match="changed since it was written"):
        write_report(run)


def test_a_report_is_never_written_into_a_sealed_study(tmp_path: Path) -> None:
    study = tiny_study()
    assert default_place(study) == study.parent / "study-report.html"
    with pytest.raises(StudyError, match="sealed"):
        write_report(study, study / "report.html")
    with pytest.raises(StudyError, match="name a file"):
        write_report(study, tmp_path)
    with pytest.raises(StudyError, match="not the folder of a run or a study"):
        write_report(tmp_path / "nothing")
    assert verify(study).ok  # looking at its best run has left nothing behind


def test_the_best_run_of_the_reference_is_shown() -> None:
    study = read_study(tiny_study())
    records = records_of(tiny_study(), study)
    values = {seed: records["meq", seed].selected.value for seed in (0, 1)}
    found = best_run(tiny_study(), study, records)
    assert found is not None
    assert values[found[1]] == max(values.values())


def test_explanations_come_back_from_disk_as_they_were() -> None:
    found = read_showcase(hostile_run())
    assert found is not None
    assert found.origin.same_data
    example = found.examples[0]
    explanation = example.explained()
    assert explanation is not None
    assert explanation.steps == (0, 1, 2, 3, 4)
    assert explanation.answer == example.answer
    assert explanation.confidence(explanation.row(2)) == pytest.approx(example.confidence, abs=1e-4)
    assert explanation.texts[0].content.startswith(SCRIPT)
    assert explanation.pictures[0].heat(0, width=6, height=6).shape == (6, 6)


def predictions(rows: list[tuple[float, float, int]]) -> Predictions:
    logits = torch.tensor([[a, b] for a, b, _ in rows])
    return Predictions(
        ids=[str(n) for n in range(len(rows))], logits=logits, target=torch.tensor([t for *_, t in rows])
    )


def test_the_most_confidently_wrong_the_least_sure_and_the_best_of_each_class_are_chosen() -> None:
    rows = [(5.0, 0, 1), (9.0, 0, 1), (0.1, 0, 0), (8.0, 0, 0), (7.0, 0, 0), (0, 3.0, 1), (float("nan"), 0, 0)]
    scored = score_answers(predictions(rows), "classes")
    found = list(notable_answers(scored, 2).items())
    assert found == [(1, WRONG), (0, WRONG), (2, UNSURE), (4, UNSURE), (3, RIGHT), (5, RIGHT)]
    table = confusion_table(scored, ["a", "b"], split="test")
    assert table is not None
    assert table.rows == (("a", 3, 0, 1, 0.75), ("b", 2, 1, 0, pytest.approx(1 / 3)))


def test_numbers_are_ranked_by_how_far_off_they_are() -> None:
    answers = Predictions(
        ids=["a", "b", "c"], logits=torch.tensor([[1.0], [5.0], [2.0]]), target=torch.tensor([1.1, 1.0, 4.0])
    )
    scored = score_answers(answers, "score")
    assert list(notable_answers(scored, 1)) == [1, 0]
    assert confusion_table(scored, ["value"], split="dev") is None


def test_the_colours_of_a_figure_are_told_as_they_are_drawn() -> None:
    def example(pictures: bool, texts: bool, tokens: int) -> Any:
        views = {"pulse": SimpleNamespace(kind="features", attribution=torch.zeros(2, tokens))}
        return SimpleNamespace(pictures=pictures, texts=texts, explanation=SimpleNamespace(views=views))

    assert _coloured([example(True, True, 1)]) == "over the picture and behind the words"
    assert _coloured([example(False, True, 3)]) == "behind the words and of the cells"
    assert _coloured([example(False, False, 1)]) == "", "a run on single vectors has nothing to colour"
