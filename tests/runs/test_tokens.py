"""A trained run whose tokens answer: scored, asked, explained, analyzed and audited."""

from __future__ import annotations

import csv
import json
import re
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
from golden.page_text import page_text
from training.token_set import LABELS, token_data, train_tokens

import meq
from meq.data import DATA_SETS, register_data_set
from meq.data.contract import Example
from meq.runs import TrainedRun, load_run
from meq.runs.analyze import AnalysisOptions, analyze_run
from meq.runs.evaluate import (
    asked_tokens,
    confusion_table,
    evaluate_run,
    how_chosen,
    notable_answers,
    score_answers,
    token_scores,
)
from meq.runs.explain import Explainer
from meq.runs.predict import Answers
from meq.runs.showcase import ShowcaseOptions, prepare_showcase
from meq.training.predictions import Predictions, read_predictions
from meq.viz.report.write import write_report

NAME = "words that ask"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> TrainedRun:
    folder = tmp_path_factory.mktemp("tokens")
    train_tokens(folder)
    if NAME not in DATA_SETS:
        register_data_set(NAME, summary="for tests", metric="token accuracy", embedded=True)(token_data)
    return load_run(folder)


def test_scores_are_those_of_the_record_and_classes_are_counted_over_tokens(run: TrainedRun) -> None:
    found = evaluate_run(run)
    assert found.same_data
    assert {each.split: each.as_recorded for each in found.splits} == {"train": None, "dev": True, "test": True}
    dev = next(each for each in found.splits if each.split == "dev")
    target = torch.cat([example.target for example in token_data().splits["dev"]])
    assert [sum(row) for row in dev.confusion] == target[target >= 0].bincount(minlength=3).tolist()
    right = sum(dev.confusion[place][place] for place in range(3)) / int((target >= 0).sum())
    assert right == pytest.approx(dev.metrics["token accuracy"])
    assert "dev: label / answer" in str(found)


def test_an_answer_is_a_label_for_every_token_by_name_and_place(run: TrainedRun) -> None:
    examples = token_data().splits["dev"][:6]
    stored = read_predictions(run.folder.parent / "predictions" / "dev.parquet")
    for row, answer in enumerate(run.predict(examples)):
        count = len(examples[row].content["text"])
        assert answer.tokens == tuple(("text", place) for place in range(count))
        assert answer.answer == tuple(LABELS[each] for each in stored.logits[row, :count].argmax(-1).tolist())
        assert answer.logits.shape == answer.probabilities.shape == (count, 3)
        assert answer.confidence == pytest.approx(float(answer.probabilities.amax(-1).mean()))
        assert answer.steps == 4
        assert answer.missing == (("image",) if "image" not in examples[row].content else ())


def test_an_example_without_a_token_to_answer_has_no_answer(run: TrainedRun) -> None:
    only_picture = Example(id="p", content={"image": torch.randn(2, 4)}, target=None)
    alone, beside = run.predict([only_picture]), run.predict([only_picture, token_data().splits["dev"][0]])
    for answer in (alone[0], beside[0]):
        assert answer.answer is None
        assert answer.tokens == ()
        assert answer.note == "text is missing; there is no answer"
    assert len(beside[1].tokens) == 2


@pytest.fixture
def answers(run: TrainedRun) -> Answers:
    given = [*token_data().splits["dev"][:3], Example(id="p", content={"image": torch.randn(2, 4)}, target=None)]
    return Answers(answers=run.predict(given), labels=run.labels, modalities=("image", "text"))


def test_a_row_per_example_with_lists_is_written(answers: Answers, tmp_path: Path) -> None:
    said = [list(answer.answer or ()) for answer in answers]
    lines = [json.loads(line) for line in answers.save(tmp_path / "a.jsonl").read_text().splitlines()]
    assert [line["answer"] for line in lines] == said
    assert lines[1]["tokens"] == ["text 0", "text 1", "text 2"]
    assert len(lines[1]["confidences"]) == 3
    assert lines[3]["note"] == "text is missing; there is no answer"
    with answers.save(tmp_path / "a.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["answer"] for row in rows] == ["|".join(each) for each in said]
    assert rows[1]["tokens"] == "text 0|text 1|text 2"
    assert not any(name.startswith("p(") for name in rows[0])
    table = pq.read_table(answers.save(tmp_path / "a.parquet")).to_pylist()
    assert [row["answer"] for row in table] == said


def test_a_summary_counts_tokens(answers: Answers) -> None:
    counts = answers.summary()
    assert sum(counts["answers"].values()) == sum(len(answer.tokens) for answer in answers)
    assert counts["without_answer"] == 1


def test_the_least_sure_token_is_explained_unless_another_is_asked_for(run: TrainedRun) -> None:
    examples = token_data().splits["dev"][:3]
    explainer = Explainer(run, encoders={})
    found = explainer(examples, steps=[0, 4])
    answers = run.predict(examples)
    for explanation, answer, example in zip(found, answers, examples, strict=True):
        place = int(answer.probabilities.amax(-1).argmin())
        assert explanation.token == f"text {place}"
        assert explanation.answer == answer.answer[place]
        assert explanation.target == (None if int(example.target[place]) < 0 else int(example.target[place]))
        assert explanation.logits.shape == (2, 3)
        assert explanation.to_json()["token"] == f"text {place}"
        assert f"at the token text {place}" in str(explanation)
    (second,) = explainer([examples[0]], steps=[4], token=1)
    assert second.token == "text 1"
    with pytest.raises(ValueError, match="has no token 7 that answers"):
        explainer([examples[0]], steps=[4], token=7)


def test_a_token_is_asked_for_by_modality_and_number_whatever_the_padding(run: TrainedRun) -> None:
    explainer = Explainer(run, encoders={})
    short, long = token_data().splits["dev"][0], token_data().splits["dev"][2]
    assert len(short.content["text"]) < len(long.content["text"])
    for found, answer in zip(
        explainer([short, long], steps=[4], token="text:1"), run.predict([short, long]), strict=True
    ):
        assert found.token == "text 1"
        assert found.answer == answer.answer[1]
        above = float(answer.probabilities[1].max()) - 1 / 3
        assert sum(found.effects.values()) == pytest.approx(above, abs=1e-5), "shares are of this token's answer"
    compared = explainer.contrast(long, {"image": torch.zeros(2, 4)}, steps=[4], token="text:3")
    assert (compared.matched.token, compared.mismatched.token) == ("text 3", "text 3")


@pytest.mark.parametrize(
    ("token", "sentence"),
    [
        ("txt:1", "no tokens of 'txt' answer: did you mean 'text'"),
        ("image:0", "no tokens of 'image' answer: Known: text"),
        ("text:2", "of the tokens of 'text', example 'dev-0' has 2, counted from 0 to 1"),
        ("text", "must be MODALITY:NUMBER, counted from 0, as in text:0; got 'text'"),
        ("text:-1", "must be MODALITY:NUMBER"),
    ],
)
def test_a_token_that_is_not_there_is_said_to_be_missing(run: TrainedRun, token: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)):
        Explainer(run, encoders={})([token_data().splits["dev"][0]], steps=[4], token=token)


def test_an_example_without_the_modality_has_none_of_its_tokens(run: TrainedRun) -> None:
    only_picture = Example(id="p", content={"image": torch.randn(2, 4)}, target=None)
    with pytest.raises(ValueError, match="of the tokens of 'text', example 'p' has none"):
        Explainer(run, encoders={})([only_picture], steps=[4], token="text:0")


def test_a_run_of_tokens_is_analyzed_and_audited(run: TrainedRun) -> None:
    options = AnalysisOptions(split="dev", samples=1, limit=24)
    found = analyze_run(run, options=options, keep=False)
    assert found.trajectory.metric_name == "token accuracy"
    recorded = run.record.metrics["dev"]["token accuracy"]
    at_read = found.trajectory.metric[found.trajectory.steps.index(4)]
    assert at_read == pytest.approx(recorded, abs=0.05), "with every step taken, whatever the tolerance"
    audited = meq.audit(run)
    assert audited.tokens
    assert audited.of == f"{NAME}, split dev"
    assert audited.samples == 24
    assert audited.answers == sum(int((example.target >= 0).sum()) for example in token_data().splits["dev"])


def test_right_answers_are_counted_by_modality_and_of_whole_examples() -> None:
    """Two picture tokens, then the words: of the first example one is not asked, the second has no picture."""
    examples = [
        Example(id="a", content={"image": torch.zeros(2, 4), "text": torch.zeros(2, 3)}, target=None),
        Example(id="b", content={"text": torch.zeros(2, 3)}, target=None),
    ]
    data = replace(token_data(), splits={"dev": examples}, answering=("image", "text"))
    said = torch.tensor([[0, 0, 1, 1], [1, 1, 0, 0]])
    target = torch.tensor([[0, 1, -1, 1], [1, 1, -1, -1]])
    predictions = Predictions(ids=["a", "b"], logits=torch.nn.functional.one_hot(said, 3).float(), target=target)
    found = {each.of: (each.answers, each.accuracy) for each in token_scores(predictions, data, "dev")}
    assert found == {"image": (2, 0.5), "text": (3, 1.0), "all tokens": (5, 0.8), "whole examples": (2, 0.5)}
    table = confusion_table(score_answers(asked_tokens(predictions), "classes"), LABELS[:2], split="dev")
    assert table.rows == (("red", 1, 0, 1.0), ("blue", 1, 3, 0.75))


def test_a_report_counts_the_answers_of_tokens(
    run: TrainedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which classes they take for which, from the files, and how many are right by modality, from the model."""
    monkeypatch.setattr("meq.runs.showcase.IteratedModel", ())  # diagnosis and maps would take their time
    tokens = {each.of: each for each in prepare_showcase(run.folder, into=tmp_path).tokens}
    asked, scores = sum(int((each.target >= 0).sum()) for each in token_data().splits["test"]), run.record.metrics
    assert (tokens["text"].answers, tokens["whole examples"].answers) == (asked, 9)
    assert tokens["all tokens"].accuracy == pytest.approx(scores["test"]["token accuracy"])
    assert tokens["whole examples"].accuracy == pytest.approx(scores["test"]["whole accuracy"])
    page = page_text(write_report(run.folder, tmp_path / "run.html", looks=tmp_path))
    assert "answers with one of 3 classes for every token" in page
    assert "Right answers by modality on test" in page
    assert "True class (rows) and answer (columns) on dev, over the tokens that are asked" in page


def test_a_few_short_examples_are_recognised_as_those_of_training(
    run: TrainedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("meq.runs.showcase.IteratedModel", ())
    found = prepare_showcase(run.folder, into=tmp_path, options=ShowcaseOptions(limit=2))
    assert found.origin.same_data, "the longest text of the split is not among them"


def test_an_example_is_as_right_as_all_its_tokens_and_as_sure_as_the_least_sure_of_them() -> None:
    logits = torch.tensor([[[3.0, 0.0], [1.0, 0.0], [0.0, 0.0]], [[0.0, 9.0], [2.0, 0.0], [0.0, 0.5]]])
    target = torch.tensor([[0, 0, -1], [0, 0, 1]])
    scored = score_answers(Predictions(ids=["a", "b"], logits=logits, target=target), "tokens")
    assert scored.right.tolist() == [True, False]
    assert scored.answer.tolist() == [0, 1]
    assert scored.truth.tolist() == [0, 1]
    assert scored.confidence.tolist() == pytest.approx([1 / (1 + 2.718281828**-1), 1 / (1 + 2.718281828**-0.5)])
    assert set(notable_answers(scored)) == {0, 1}
    assert "one wrong token makes it wrong" in how_chosen("tokens", "dev")
