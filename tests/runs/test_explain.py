from __future__ import annotations

import dataclasses
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from explained_run import STEPS, explainer, explanations, small_scenes, trained_run
from PIL import Image

import meq
from meq.analysis import attribute, follow
from meq.analysis.attribution import DEFAULT_METHOD, METHODS
from meq.data import Example, collate
from meq.data.content import DrawnPicture
from meq.data.findings import DataError
from meq.encoders import encode
from meq.runs.explain import SHOWN_SIDE, Explainer, explain
from meq.runs.explanation import Explanation, ModalityView
from meq.runs.load import TrainedRun
from meq.studies.study import StudyError

RED = DrawnPicture("red", lambda: Image.new("RGB", (90, 60), (200, 30, 30)))
LONG = " ".join(["there is a red thing"] * 20)


def pair(image: object = RED, text: str | None = "there is a red thing") -> Example:
    return explainer().pair(image, text)  # type: ignore[arg-type]


def with_model(model: meq.MutualEquilibrium, **task: object) -> TrainedRun:
    run = trained_run()
    return dataclasses.replace(run, model=model.eval(), task=dataclasses.replace(run.task, **task))


def fresh(classes: int, head: str) -> meq.MutualEquilibrium:
    return meq.MutualEquilibrium(
        trained_run().task.widths, classes, dim=8, heads=2, steps=STEPS, hidden=8, head_width=8, head=head
    )


def test_at_the_read_depth_it_is_what_the_model_answers() -> None:
    examples = small_scenes().splits["test"][:2]
    answers = trained_run().predict(examples, encoders=explainer().encoders)
    for example, found, answer in zip(examples, explanations(), answers, strict=True):
        torch.testing.assert_close(found.logits[found.row(STEPS)], answer.logits)
        assert (found.id, found.answer, found.read) == (example.id, answer.answer, STEPS)
        assert found.target == int(example.target)  # type: ignore[arg-type]


def test_every_step_is_what_a_trajectory_measures() -> None:
    data = encode(small_scenes(), explainer().encoders)
    batch = collate(list(data.splits["test"][:2]), data.widths)
    measured = follow(trained_run().model, [batch], steps=range(2 * STEPS), horizon=2 * STEPS)
    assert explanations()[0].steps == measured.steps == tuple(range(2 * STEPS + 1))
    for row, found in enumerate(explanations()):
        assert found.predictions == tuple(measured.predictions[:, row].tolist())
        confidence = torch.tensor([found.confidence(place) for place in range(len(found.steps))])
        torch.testing.assert_close(confidence, measured.confidence[:, row])
        for name, values in found.residuals.items():
            torch.testing.assert_close(values, measured.residuals[name][:, row])


def test_attribution_is_that_of_the_analysis_without_padding() -> None:
    data = encode(small_scenes(), explainer().encoders)
    batch = collate(list(data.splits["test"][:2]), data.widths)
    expected = attribute(trained_run().model, batch.features, batch.masks, method=DEFAULT_METHOD, steps=range(5))
    for row, found in enumerate(explanations()):
        text = found.views["text"]
        count = len(str(text.content).split())
        assert text.attribution.shape == (5, count)
        torch.testing.assert_close(text.attribution, expected.maps["text"][:, row, :count])
        torch.testing.assert_close(found.views["image"].attribution, expected.maps["image"][:, row])
        assert found.explained == int(expected.classes[0, row])


def test_tokens_lie_where_they_come_from() -> None:
    found = explanations()[0]
    image, text = found.views["image"], found.views["text"]
    assert image.boxes is not None
    assert image.size is not None
    assert image.boxes.amax(0)[2:].tolist() == list(image.size)
    assert [word for word, _ in text.words(0)] == str(text.content).split()
    assert image.heat(2, width=30, height=30)[0, 0] == pytest.approx(float(image.shares[2, 0]))
    torch.testing.assert_close(image.shares.sum(1), torch.full((5,), 9.0))


def test_a_longer_text_beside_it_changes_nothing() -> None:
    alone = explainer()([pair()], steps=[1])[0]
    beside = explainer()([pair(), pair(text=LONG)], steps=[1])[0]
    torch.testing.assert_close(alone.logits, beside.logits)
    torch.testing.assert_close(alone.views["text"].attribution, beside.views["text"].attribution)
    torch.testing.assert_close(alone.residuals["text"], beside.residuals["text"])


def test_only_the_text_that_was_cut_says_so() -> None:
    whole, cut = explainer()([pair(), pair(text=LONG)], steps=[1], method="grad-cam")
    assert (whole.cut, cut.cut) == ([], ["text"])
    assert "longer than its encoder reads" in str(cut)
    assert len(cut.views["text"].words(0)) == 100


@pytest.mark.parametrize(("image", "text", "name"), [(None, "there is a red thing", "text"), (RED, None, "image")])
def test_a_modality_may_be_missing(image: DrawnPicture | None, text: str | None, name: str) -> None:
    (found,) = explainer()([pair(image, text)], steps=[1])
    assert list(found.views) == list(found.residuals) == [name]
    assert bool(found.residuals[name].isfinite().all())
    together = explainer()([pair(image, text), pair()], steps=[1])[0]
    assert list(together.residuals) == [name]
    torch.testing.assert_close(found.logits, together.logits)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_gives_maps_of_all_modalities(method: str) -> None:
    (found,) = explainer()([pair()], method=method, steps=[1])
    assert found.method == method
    assert {name: tuple(view.attribution.shape) for name, view in found.views.items()} == {
        "image": (2, 9),
        "text": (2, 5),
    }
    assert bool((found.views["text"].attribution >= 0).all())


def test_maps_can_be_of_a_label_of_ones_choice() -> None:
    (found,) = explainer()([pair()], label="neutral", steps=[1])
    assert found.explained_label == "neutral"
    with pytest.raises(ValueError, match="did you mean 'neutral'"):
        explainer()([pair()], label="neutrl")


def test_a_contrast_holds_both_and_each_is_as_if_alone() -> None:
    contrast = explainer().contrast(pair(), "there is a blue star", method="grad-cam")
    (alone,) = explainer()([pair(text="there is a blue star")], method="grad-cam")
    torch.testing.assert_close(contrast.mismatched.logits, alone.logits)
    assert contrast.matched.views["text"].content == "there is a red thing"
    assert contrast.instead == {"text": "there is a blue star"}
    lines = str(contrast).splitlines()
    assert lines[0].split() == ["k", f"P({contrast.matched.answer})", f"P({contrast.matched.answer}),", "instead"]
    assert len(lines) == 1 + 2 * STEPS + 1 + 1
    assert json.loads(json.dumps(contrast.to_json(), allow_nan=False))["instead"] == contrast.instead


def test_the_steps_are_those_asked_for_and_the_one_that_is_read() -> None:
    (found,) = explainer()([pair()], steps=[7, 0])
    assert found.steps == (0, STEPS, 7)
    assert len(found.residuals["image"]) == 3
    for wrong in ([], [-1], [True]):
        with pytest.raises(ValueError, match="whole numbers"):
            explainer()([pair()], steps=wrong)
    with pytest.raises(ValueError, match="step 1 was not measured; measured: 0, 2, 7"):
        found.row(1)


def test_a_large_picture_is_kept_small_and_its_boxes_are_of_the_original() -> None:
    large = DrawnPicture("large", lambda: Image.new("RGB", (3000, 1500)))
    (found,) = explainer()([pair(large)], steps=[0])
    view = found.views["image"]
    assert view.picture is not None
    assert view.boxes is not None
    assert view.picture.size == (SHOWN_SIDE, SHOWN_SIDE // 2)
    assert view.size == (3000, 1500)
    assert float(view.boxes.max()) == 3000
    assert view.heat(0, width=64, height=32).shape == (32, 64)


def test_it_prints_itself_and_becomes_strict_json() -> None:
    found = explanations()[0]
    lines = str(found).splitlines()
    assert lines[0].split()[:3] == ["k", "answer", "probability"]
    assert lines[1 + STEPS].startswith(f"{STEPS}*")
    assert f"{DEFAULT_METHOD}, of the score of {found.answer!r}" in str(found)
    written = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert written["steps"] == list(found.steps)
    assert written["modalities"]["text"]["words"] == str(found.views["text"].content).split()
    assert len(written["probabilities"]) == len(found.steps)
    lost = dataclasses.replace(found, residuals={"image": torch.full((5,), torch.nan)}, stopped=1)
    assert lost.to_json()["residuals"] == {"image": [None] * 5}
    assert "stopped being finite after step 1" in str(lost)


def test_logits_that_are_not_finite_are_no_answer() -> None:
    found = dataclasses.replace(explanations()[0], logits=torch.full((5, 3), torch.nan))
    assert found.predictions == (-1,) * 5
    assert found.answer == "not finite"


def test_threads_do_not_mix_their_results() -> None:
    texts = ["there is a red thing", LONG, "there is a blue star", f"{LONG} a"]

    def explained(text: str) -> Explanation:
        return explainer()([pair(text=text)], steps=[1], method="grad-cam")[0]

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(explained, texts))
    for text, each in zip(texts, found, strict=True):
        expected = explained(text)
        torch.testing.assert_close(each.logits, expected.logits)
        assert bool(each.cut) == (len(text.split()) > 64)


def test_multiple_choice_shows_the_choice_that_was_taken() -> None:
    torch.manual_seed(1)
    run = with_model(fresh(1, "choices"), head="choices", labels=())
    texts = ("a red thing", "there is a blue star in it", "no")
    example = Example(id="q", content={"image": RED, "text": texts}, target=torch.tensor(1))
    (found,) = explain(run, [example], encoders=explainer().encoders)
    assert found.labels == ("0", "1", "2")
    assert found.probabilities is not None
    torch.testing.assert_close(found.probabilities.sum(1), torch.ones(5))
    chosen = texts[int(found.answer)]
    assert found.views["text"].content == chosen
    assert found.views["text"].attribution.shape == (5, len(chosen.split()))
    (alone,) = explain(
        run, [dataclasses.replace(example, content={"image": RED, "text": (chosen,)})], encoders=explainer().encoders
    )
    torch.testing.assert_close(found.residuals["text"], alone.residuals["text"])


def test_multiple_choice_is_read_where_the_rule_stops_the_whole_example() -> None:
    run = with_model(fresh(1, "choices"), head="choices", labels=())
    stopping = SimpleNamespace(anytime=meq.Anytime("agreement", patience=2, least=3, most=6))
    rule = SimpleNamespace(stopping=stopping, temperature=None, coverage=None)
    ruled = dataclasses.replace(run, calibration=rule)  # type: ignore[arg-type]
    texts = ("a red thing", "there is a blue star in it", "no")
    examples = [Example(id=str(row), content={"image": RED, "text": texts}, target=None) for row in range(2)]
    found = Explainer(ruled, encoders=explainer().encoders, by_rule=True)(examples, steps=[STEPS])
    assert [each.read for each in found] == [3, 3]
    answers = ruled.predict(examples, encoders=explainer().encoders)
    assert [(each.answer, each.read) for each in found] == [(each.answer, each.steps) for each in answers]


def test_a_regression_has_numbers_for_answers() -> None:
    run = with_model(fresh(1, "score"), head="score", labels=())
    (found,) = explain(run, [pair()], encoders=explainer().encoders, steps=[1])
    assert found.probabilities is None
    assert float(found.answer) == pytest.approx(float(found.logits[-1, 0]), abs=1e-3)
    assert "probability" not in str(found)
    assert json.dumps(found.to_json(), allow_nan=False)


def test_models_that_do_not_iterate_are_refused() -> None:
    concat = meq.models.Concat(trained_run().task.widths, 3, dim=8, head_width=8)  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="does not iterate, so there are no steps"):
        Explainer(dataclasses.replace(trained_run(), model=concat.eval()))


def test_what_cannot_be_explained_is_said() -> None:
    with pytest.raises(ValueError, match="there is no method 'grad-cm': did you mean 'grad-cam'"):
        explainer()([pair()], method="grad-cm")
    with pytest.raises(StudyError, match="reads no modality 'imge': did you mean 'image'"):
        explainer()([Example(id="a", content={"imge": RED}, target=None)])
    with pytest.raises(StudyError, match="nothing that its encoders could make a token of"):
        explainer()([pair(None, "   ")])
    with pytest.raises(StudyError, match="reads no audio"):
        explainer()._only("audio")
    assert explainer()([]) == []


def test_a_picture_that_is_none_is_named(tmp_path: Path) -> None:
    (tmp_path / "note.png").write_text("no picture")
    with pytest.raises(DataError, match=r"note\.png: not a readable picture"):
        explainer()([pair(tmp_path / "note.png")])


def test_shares_and_words_of_the_wrong_kind_are_refused() -> None:
    view = ModalityView(
        name="x", kind="features", content=torch.zeros(2, 3), attribution=torch.tensor([[1.0, 3], [0, 0]])
    )
    assert view.shares.tolist() == [[0.5, 1.5], [0, 0]]
    assert view.peak == 1.5
    with pytest.raises(ValueError, match="no places in a picture"):
        view.heat(0, width=2, height=2)
    with pytest.raises(ValueError, match="has no words"):
        view.words(0)


def test_explanations_are_values() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        explanations()[0].read = 3  # type: ignore[misc]
    assert isinstance(explanations()[0], Explanation)
