"""Maps against masks, and P(entailment) of true, wrong and irrelevant sentences."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from data.more_folders import cod10k_folder
from studies.measures.subjects import CONCAT, COUPLED, NARROW, study, untrained

from meq.analysis.attribution import attribute
from meq.core.solvers import Anderson
from meq.data import DataError, collate
from meq.records import dumps, loads
from meq.studies.build import Places, PreparedData
from meq.studies.measures import make_measure
from meq.studies.measures.contract import as_found
from meq.studies.measures.gallery import PictureMaps, best_possible, read_gallery, reduce_mask, score_maps
from meq.studies.measures.grounding import Grounding, numbers
from meq.studies.study import StudyError
from meq.tables import as_text

SHARED = Path(__file__).parents[4] / "shared" / "data" / "cod10k_sample"
QUADRANTS = torch.tensor([[0.0, 0, 2, 2], [2, 0, 4, 2], [0, 2, 2, 4], [2, 2, 4, 4]])


@pytest.fixture(scope="module")
def taken(scenes: PreparedData) -> dict[str, Any]:
    made = Grounding(limit=3, horizon=30, examples=2).take(untrained(scenes))
    assert made is not None
    return loads(dumps(as_found(made)), "memory")  # as it is read back from its file


def test_curves_begin_at_one_and_maps_at_zero(taken: dict[str, Any]) -> None:
    assert taken["p_entailment"]["steps"] == list(range(1, 21))
    assert taken["steps"] == [0, 1, 2, 3, 4]
    assert (taken["read"], taken["horizon"], taken["accuracy"]["steps"][-1]) == (2, 30, 30)
    assert {len(row) for row in taken["p_entailment"].values()} == {20}


def test_pictures_have_a_true_and_a_wrong_statement_and_a_mask(scenes: PreparedData, taken: dict[str, Any]) -> None:
    gallery = read_gallery(scenes, None, split="test", limit=3)
    assert [len(shown.said) for shown in gallery.shown] == [3, 3, 3]
    assert {shown.first("contradiction") is not None for shown in gallery.shown} == {True}
    assert all(mask is not None and mask.shape == (96, 96) for mask in (shown.mask() for shown in gallery.shown))
    assert (taken["pictures"], taken["with_masks"], taken["accuracy"]["samples"]) == (3, 3, 9)


def test_probabilities_are_those_of_the_model(scenes: PreparedData, taken: dict[str, Any]) -> None:
    trained = untrained(scenes)
    first = read_gallery(scenes, None, split="test", limit=3).shown[0]
    batch = collate([first.true.example], scenes.data.widths)
    with torch.no_grad():
        expected = trained.model(batch.features, batch.masks).logits.softmax(1)[0].tolist()
    kept = taken["examples"][0]
    assert numbers(kept["probabilities"][taken["read"]]) == pytest.approx(expected, abs=1e-3)
    assert numbers(kept["p_entailment"]["true"])[taken["read"] - 1] == pytest.approx(expected[0], abs=1e-3)


def test_accuracy_at_the_read_step_is_the_score_of_those_examples(scenes: PreparedData, taken: dict[str, Any]) -> None:
    accuracy = taken["accuracy"]
    at_read = accuracy["score"][accuracy["steps"].index(taken["read"])]
    assert at_read == pytest.approx(untrained(scenes).score(scenes.data.splits["test"][:9]))
    assert "all_labels" not in accuracy


def test_kept_maps_are_those_of_entailment(scenes: PreparedData, taken: dict[str, Any]) -> None:
    trained = untrained(scenes)
    first = read_gallery(scenes, None, split="test", limit=3).shown[0]
    batch = collate([first.true.example], scenes.data.widths)
    kept = taken["examples"][0]
    for method in ("grad-cam", "gradient", "rollout"):
        found = attribute(
            trained.model, batch.features, batch.masks, method=method, steps=taken["steps"], target=torch.tensor([0])
        )
        for row, expected in zip(kept["maps"][method], found.maps["image"][:, 0], strict=True):
            assert numbers(row) == pytest.approx(expected.tolist(), rel=6e-3)


def test_a_kept_picture_has_all_that_a_grid_needs(taken: dict[str, Any]) -> None:
    kept = taken["examples"][0]
    assert kept["size"] == [96, 96]
    assert [numbers(box) for box in kept["boxes"]][4] == [32, 32, 64, 64]
    words = [kept["text"][first:last] for first, last in kept["words"]]
    assert words == kept["text"].split()
    assert all(len(numbers(row)) == len(words) for row in kept["word_values"]["gradient"])
    left, top, right, bottom = kept["mask_box"]
    assert 0 <= left < right <= 96
    assert 0 <= top < bottom <= 96
    assert [each["id"] for each in taken["examples"]] == ["test-0", "test-4"]


def test_words_that_were_never_trained_on_are_named(scenes: PreparedData, taken: dict[str, Any]) -> None:
    assert taken["irrelevant"]["new_words"] == ["man", "walking", "down", "the", "street"]
    known = Grounding(limit=1, horizon=3, methods=(), irrelevant="There is that thing.").take(untrained(scenes))
    assert known is not None
    assert known.irrelevant.new_words == ("that",)


def test_scores_lie_between_nothing_and_the_best_that_tokens_allow(taken: dict[str, Any]) -> None:
    best = taken["best_possible"]
    assert 0 < taken["constant"] < best["energy"] <= 1
    for scores in taken["grounding"].values():
        for name in ("pointing", "energy", "iou"):
            assert all(0 <= value <= best[name] + 1e-6 for value in scores[name])


def test_the_best_possible_map_is_on_the_token_that_holds_most_of_the_object() -> None:
    mask = torch.zeros(4, 4, dtype=torch.bool)
    mask[0, :2] = True  # half of the first quadrant
    mask[0, 2] = True  # a quarter of the second
    maps = PictureMaps(torch.tensor([[1.0, 0, 0, 0], [0, 0, 0, 1]]), QUADRANTS, None, None)
    assert best_possible([maps], [reduce_mask(mask)]) == pytest.approx({"pointing": 0.5, "energy": 0.5, "iou": 2 / 5})
    assert score_maps([maps], [reduce_mask(mask)], [0, 1]).mean("energy").tolist() == [0.5, 0.0]


def test_large_masks_are_scored_on_fewer_pixels_and_small_objects_stay() -> None:
    mask = torch.zeros(1000, 500, dtype=torch.bool)
    mask[3, 3] = True
    boxes = torch.tensor([[0.0, 0, 500, 500], [0, 500, 500, 1000]])
    maps = PictureMaps(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), boxes, None, None)
    assert score_maps([maps], [reduce_mask(mask)], [0, 1]).scores["energy"][:, 0].gt(0).tolist() == [True, False]


def test_methods_that_a_model_cannot_give_are_left_out_and_say_why(scenes: PreparedData) -> None:
    trained = untrained(scenes)
    assert trained.iterated is not None
    trained.iterated.solver = Anderson()
    made = Grounding(limit=1, horizon=3, steps=[1], examples=1).take(trained)
    assert made is not None
    assert "damped iteration" in made.left_out["rollout"]
    assert made.grounding.keys() == made.examples[0].maps.keys() == {"grad-cam", "gradient"}
    assert "rollout is left out" in as_text(
        Grounding().tables(study(COUPLED), {("meq", 0): made})["grounding-scores-meq"]
    )


def test_an_arm_that_reads_no_pictures_says_the_same_of_all_of_them(scenes: PreparedData) -> None:
    blind = replace(COUPLED, name="text-only", blank=("image",), options=NARROW)
    made = Grounding(limit=4, horizon=3, methods=(), examples=4).take(untrained(scenes, blind))
    assert made is not None
    assert len({each.p_entailment["irrelevant"] for each in made.examples}) == 1


def test_models_without_steps_have_nothing_to_follow(scenes: PreparedData) -> None:
    assert Grounding().take(untrained(scenes, CONCAT)) is None
    assert Grounding().tables(study(CONCAT), {}) == {}


# -- another set ------------------------------------------------------------------------------------------------------


def test_camouflage_is_read_by_a_model_of_three_labels(scenes: PreparedData, tmp_path: Path) -> None:
    cod10k_folder(tmp_path)
    reading = replace(scenes, places=Places(read=tmp_path))
    Grounding(read="cod10k").check(study(COUPLED), reading)
    made = Grounding(read="cod10k", limit=2, horizon=3, examples=1).take(untrained(reading))
    assert made is not None
    assert (made.data, made.split, made.pictures) == ("cod10k", "test", 2)
    assert made.accuracy.samples == 4
    pairs = zip(made.accuracy.score, made.accuracy.all_labels, strict=True)
    assert all(strict <= loose for loose, strict in pairs)  # an answer outside of the set's labels is never right
    assert "is hidden in the picture" in made.examples[0].text
    table = Grounding().tables(study(COUPLED), {("meq", 0): made})["grounding-accuracy"]
    assert "fewer labels than the model" in as_text(table)


def test_without_masks_there_are_probabilities_and_no_scores(scenes: PreparedData, tmp_path: Path) -> None:
    cod10k_folder(tmp_path)
    for mask in tmp_path.rglob("GT_Object/*.png"):
        mask.unlink()
    made = Grounding(read="cod10k", limit=2, horizon=3, examples=1, methods=["gradient"]).take(
        untrained(replace(scenes, places=Places(read=tmp_path)))
    )
    assert made is not None
    assert (made.with_masks, made.constant, made.grounding) == (0, None, {})
    assert made.examples[0].mask_box is None
    assert len(made.examples[0].maps["gradient"]) == 5
    tables = Grounding().tables(study(COUPLED), {("meq", 0): made})
    assert tables.keys() == {"p-entailment-meq", "grounding-accuracy"}
    assert "0 of them with a mask" in tables["grounding-accuracy"].notes[0]


@pytest.mark.skipif(not SHARED.is_dir(), reason="no shared/data beside the checkout")
def test_the_real_photographs_are_read_and_their_one_mask_is_found(scenes: PreparedData, tmp_path: Path) -> None:
    (mask,) = (SHARED / "GT_Object").glob("*.png")
    pictures = sorted((SHARED / "Image").glob("*.jpg"), key=lambda file: (file.stem == mask.stem, file.name))
    for file in (mask, *pictures[:2], pictures[-1]):
        copy = tmp_path / "Test" / file.parent.name / file.name
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(file.read_bytes())
    made = Grounding(read="cod10k", horizon=3, steps=[0], examples=1, methods=["rollout"]).take(
        untrained(replace(scenes, places=Places(read=tmp_path)))
    )
    assert made is not None
    assert (made.pictures, made.with_masks) == (3, 1)
    assert made.examples[0].picture == pictures[-1].name  # the one with a mask comes first
    assert made.grounding["rollout"].energy[0] == pytest.approx(made.constant, rel=0.05)


# -- mistakes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"read": "cod10"}, "did you mean 'cod10k'"),
        ({"methods": ["gradcam"]}, "did you mean 'grad-cam'"),
        ({"steps": [-1]}, "counted from 0"),
        ({"limit": 0}, "limit must be at least 1"),
        ({"irrelevant": "..."}, "has no word in it"),
    ],
)
def test_wrong_options_are_refused_with_the_nearest_right_one(options: dict[str, Any], message: str) -> None:
    with pytest.raises(StudyError, match=message):
        make_measure("grounding", options)


def test_a_folder_that_is_missing_or_none_is_said_before_training(scenes: PreparedData, tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="--read FOLDER"):
        Grounding(read="cod10k").check(study(COUPLED), scenes)
    with pytest.raises(DataError, match="no COD10K there"):
        Grounding(read="cod10k").check(study(COUPLED), replace(scenes, places=Places(read=tmp_path)))


def test_data_that_is_no_entailment_is_refused_before_training(scenes: PreparedData, statements: PreparedData) -> None:
    Grounding().check(study(COUPLED), scenes)
    with pytest.raises(StudyError, match="came as features"):
        Grounding().check(study(COUPLED), statements)
    assert scenes.raw is not None
    with pytest.raises(StudyError, match="has yes, no, maybe"):
        Grounding().check(study(COUPLED), replace(scenes, raw=replace(scenes.raw, labels=("yes", "no", "maybe"))))


# -- tables -----------------------------------------------------------------------------------------------------------


def test_tables_show_means_over_seeds_beside_the_constant_and_the_best_map(taken: dict[str, Any]) -> None:
    other = {**taken, "p_entailment": {**taken["p_entailment"], "true": [1.0] * 20}}
    results = Grounding().typed({("meq", 0): taken, ("meq", 1): other})
    tables = Grounding().tables(study(COUPLED), results)
    assert tables.keys() == {"grounding-scores-meq", "p-entailment-meq", "grounding-accuracy"}
    scores, curve = tables["grounding-scores-meq"], tables["p-entailment-meq"]
    assert [row[0] for row in scores.rows] == ["0", "1", "2 = K", "3", "4", "constant map", "best possible"]
    assert scores.rows[-2][1:4] == (taken["constant"],) * 3
    assert curve.rows[0][1] == pytest.approx((taken["p_entailment"]["true"][0] + 1) / 2)
    assert "5 of its 7 words" in curve.notes[0]
    accuracy = tables["grounding-accuracy"].rows[0]
    assert accuracy[1] == taken["accuracy"]["score"][taken["accuracy"]["steps"].index(2)]
    assert accuracy[2] == 0
