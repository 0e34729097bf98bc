"""Worse inputs, the same for every run, encoded again and scored; and the table of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from studies.measures.subjects import CONCAT, COUPLED, study, untrained

from meq.data import DataSet
from meq.data.transforms import STUDY, Corruption
from meq.encoders.builtin import Patches, Words
from meq.encoders.image import PictureRegions
from meq.studies import DataConfig
from meq.studies.build import PreparedData, prepare_data
from meq.studies.measures import make_measure, robustness
from meq.studies.measures.contract import encoder_size
from meq.studies.measures.robustness import Robustness, RobustnessResult, worse_split
from meq.studies.runner import check_study
from meq.studies.study import StudyError

NOISE, BLUR, TYPOS = Corruption("noise", 0.3), Corruption("blur", 2), Corruption("typos", 0.1)


def content(prepared: PreparedData, corruption: Corruption, name: str, *, draw: int = 0, limit: int | None = 4) -> Any:
    worse = worse_split(prepared, corruption, split="test", draw=draw, limit=limit)
    return [example.content[name] for example in worse]


def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return all(x.shape == y.shape and torch.equal(x, y) for x, y in zip(one, other, strict=True))


@pytest.mark.parametrize(("corruption", "touched", "other"), [(NOISE, "image", "text"), (TYPOS, "text", "image")])
def test_one_modality_is_worse_and_the_other_untouched(
    scenes: PreparedData, corruption: Corruption, touched: str, other: str
) -> None:
    clean = list(scenes.data.splits["test"][:4])
    worse = list(worse_split(scenes, corruption, split="test", limit=4))
    assert [each.id for each in worse] == [each.id for each in clean]
    assert not same([each.content[touched] for each in worse], [each.content[touched] for each in clean])
    assert same([each.content[other] for each in worse], [each.content[other] for each in clean])


def test_every_run_sees_the_same_inputs_whoever_asks_first(scenes: PreparedData) -> None:
    again = prepare_data(DataConfig(name="scenes", options={"train": 18, "dev": 18, "test": 36}))
    for draw in (1, 0):  # in another order
        assert same(content(scenes, NOISE, "image", draw=draw), content(again, NOISE, "image", draw=draw))
    assert same(content(again, NOISE, "image", limit=2), content(again, NOISE, "image")[:2])


def test_draws_differ_where_something_is_drawn(scenes: PreparedData) -> None:
    assert not same(content(scenes, NOISE, "image"), content(scenes, NOISE, "image", draw=1))
    taken = Robustness(draws=2, limit=4).take(untrained(scenes))
    assert {name: len(scores) for name, scores in taken.scores.items()} == {
        **{"noise 0.1": 2, "noise 0.3": 2, "blur 2": 1, "blur 8": 1, "typos 0.05": 2, "typos 0.1": 2}
    }


def test_arms_share_what_was_encoded(scenes: PreparedData, monkeypatch: pytest.MonkeyPatch) -> None:
    Robustness(draws=1, limit=5).take(untrained(scenes))
    monkeypatch.setattr(robustness, "encode_alike", _refuse)
    taken = Robustness(draws=1, limit=5).take(untrained(scenes, CONCAT))
    assert len(taken.scores) == len(STUDY)


def _refuse(data: DataSet, prepared: PreparedData) -> DataSet:
    raise AssertionError("it was encoded again")


def test_nothing_is_kept_beyond_the_limit(scenes: PreparedData, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(robustness, "KEPT_BYTES", 0)
    fresh = replace(scenes)
    assert same(content(fresh, BLUR, "image"), content(scenes, BLUR, "image"))
    assert not robustness._KEPT[fresh]


def test_what_is_found_is_the_score_of_those_inputs(scenes: PreparedData) -> None:
    trained = untrained(scenes)
    taken = Robustness(draws=1).take(trained)
    assert taken.clean == trained.score(trained.data.splits["test"])
    worse = list(worse_split(scenes, NOISE, split="test"))
    assert taken.scores["noise 0.3"] == (trained.score(worse),)
    assert (taken.split, taken.samples, taken.encoder_size) == ("test", 36, {"image": 48})


def test_an_arm_that_does_not_read_pictures_does_not_mind_them(scenes: PreparedData) -> None:
    blind = replace(COUPLED, name="text-only", blank=("image",))
    taken = Robustness(draws=1).take(untrained(scenes, blind))
    assert {taken.scores[name][0] for name, kind in taken.inputs.items() if kind == "image"} == {taken.clean}


def test_worse_inputs_are_standardised_as_the_clean_ones_were() -> None:
    options = {"train": 18, "dev": 18, "test": 18}
    plain = prepare_data(DataConfig(name="scenes", options=options))
    scaled = prepare_data(DataConfig(name="scenes", options=options, standardise=True))
    known = scaled.provenance.standardisation
    assert known is not None
    expected = (content(plain, TYPOS, "text")[0] - torch.tensor(known.mean["text"])) / torch.tensor(known.std["text"])
    assert torch.allclose(content(scaled, TYPOS, "text")[0], expected)


def test_the_size_of_a_picture_is_that_of_its_encoder() -> None:
    class Squares:
        name, revision, weight_hash, window = "squares", "v1", "", (64, 48)
        width = 3

        def pooled(self, images: Any) -> torch.Tensor:
            return torch.zeros(len(images), 3)

    assert encoder_size(Patches(grid=3)) == 48
    assert encoder_size(PictureRegions(Squares())) == 48
    assert encoder_size(Words()) == 224  # says nothing of pictures


def test_features_cannot_be_corrupted_and_that_is_said_before_training(statements: PreparedData) -> None:
    asked = study(COUPLED, data=DataConfig(name="statements"), measures={"robustness": {}})
    with pytest.raises(StudyError, match="statements came as features"):
        check_study(asked, statements)


def test_a_set_without_pictures_and_texts_has_nothing_to_corrupt(scenes: PreparedData) -> None:
    assert scenes.raw is not None
    sounds = {name: replace(x, kind="audio") for name, x in scenes.raw.modalities.items()}
    silent = replace(scenes, raw=replace(scenes.raw, modalities=sounds))
    with pytest.raises(StudyError, match=r"neither pictures nor texts .* 'image' \(audio\)"):
        Robustness().check(study(COUPLED), silent)


@pytest.mark.parametrize("options", [{"draws": 0}, {"limit": 0}])
def test_options_that_leave_nothing_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(StudyError, match="must be at least 1, got 0"):
        make_measure("robustness", options)


def found(clean: float, *noise: float) -> RobustnessResult:
    return RobustnessResult(
        **{"split": "test", "metric": "accuracy", "samples": 9, "seed": 0, "encoder_size": {"image": 48}},
        clean=clean,
        inputs={"noise 0.1": "image"},
        scores={"noise 0.1": noise},
    )


def test_the_table_compares_means_of_draws_seed_by_seed() -> None:
    values = {
        ("concat", 0): found(0.8, 0.5, 0.7),
        ("concat", 1): found(0.8, 0.6, 0.6),
        ("concat", 2): found(0.8, 0.6, 0.6),
        ("meq", 0): found(0.9, 0.8, 0.8),
        ("meq", 1): found(0.9, 0.7, 0.9),
        ("meq", 2): found(0.9, 0.8, 0.8),
    }
    table = Robustness().tables(study(COUPLED, CONCAT, seeds=(0, 1, 2)), values)["robustness"]
    keys = [column.key for column in table.columns]
    assert [row[:2] for row in table.rows] == [(None, "none"), ("image", "noise 0.1")]
    cells = dict(zip(keys, table.rows[1], strict=True))
    assert (cells["meq mean"], cells["concat mean"]) == pytest.approx((0.8, 0.6))
    assert cells["meq difference"] == pytest.approx(0.2)
    assert cells["meq verdict"] == "called"
    assert "concat verdict" not in keys
    assert "typos 2 draws" in table.notes[0]


def test_pairs_that_are_missing_are_never_called() -> None:
    values = {("concat", 0): found(0.8, 0.5), ("meq", 0): found(0.9, 0.8), ("meq", 1): found(0.9, 0.8)}
    table = Robustness().tables(study(COUPLED, CONCAT), values)["robustness"]
    assert table.rows[1][-1] == "incomplete"
    alone = Robustness().tables(study(COUPLED, CONCAT), {("meq", 0): found(0.9, 0.8)})["robustness"]
    assert [column.key for column in alone.columns] == ["input", "corruption", "meq mean", "meq spread"]
    assert Robustness().tables(study(COUPLED, CONCAT), {}) == {}
