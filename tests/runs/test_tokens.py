"""A trained run whose tokens answer: scored, asked, explained, analyzed and audited."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
from training.token_set import LABELS, token_data, train_tokens

import meq
from meq.data import DATA_SETS, register_data_set
from meq.data.contract import Example
from meq.runs import TrainedRun, load_run
from meq.runs.analyze import AnalysisOptions, analyze_run
from meq.runs.evaluate import evaluate_run, how_chosen, notable_answers, score_answers
from meq.runs.explain import Explainer
from meq.runs.predict import Answers
from meq.training.predictions import Predictions, read_predictions

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
