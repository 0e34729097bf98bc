from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from studies.samples import RELEASED, study

from meq.data.contract import DataSet
from meq.records import FormatError
from meq.studies import ArmConfig, DataConfig, StudyError, make_study, read_study
from meq.studies.build import build_model, build_objective, prepare_data
from meq.studies.study import MatchedSize, differences, run_place
from meq.training.record import encoders_of


def test_runs_go_seed_by_seed_and_an_arm_may_differ_in_its_training() -> None:
    made = study("a", "b", seeds=(4, 7))
    assert list(made.runs()) == [("a", 4), ("b", 4), ("a", 7), ("b", 7)]
    arm = ArmConfig(name="b", model="concat", train={"learning_rate": 0.5})
    made = replace(made, arms=(made.arms[0], arm))
    assert (made.config("b", 7).learning_rate, made.config("b", 7).seed) == (0.5, 7)
    assert made.config("a", 7).learning_rate == made.train.learning_rate
    assert run_place("b", 7) == "runs/b/seed-7"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: study("a", "a"), "each once"),
        (lambda: study("a", seeds=()), "at least one seed"),
        (lambda: study("a", seeds=(1, 1)), "each once"),
        (lambda: study("../a"), "cannot name a study or an arm: it becomes a folder"),
        (lambda: replace(study("meq", "concat"), reference="conct"), "did you mean 'concat'"),
        (lambda: ArmConfig(name="a", model="meq", train={"learning_rat": 1}), "did you mean 'learning_rate'"),
        (lambda: ArmConfig(name="a", model="meq", train={"seed": 1}), "cannot set 'seed'"),
        (lambda: make_study("ablaton"), "did you mean 'ablation'"),
        (lambda: make_study("main", "scens"), "makes no sense on 'scens'"),
        (lambda: make_study("hops", "snli-ve"), "makes no sense on 'snli-ve'; it runs on scenes"),
        (lambda: replace(study("a", "b"), groups={"best": ("a", "c")}), "does not have"),
        (lambda: MatchedSize(to="a", part="flop"), "did you mean 'flops'"),
    ],
)
def test_a_wrong_study_is_answered_in_words(wrong, message: str) -> None:
    with pytest.raises(StudyError, match=message):
        wrong()


def test_figures_that_the_paper_does_not_have_are_an_error() -> None:
    with pytest.raises(ValueError, match="did you mean 'main/snli-ve'"):
        study("a", paper="main/snlive")


def test_an_unknown_field_names_the_nearest() -> None:
    with pytest.raises(TypeError, match="did you mean 'penalties'"):
        ArmConfig(name="a", model="meq", penaltys={})


@pytest.fixture(scope="module")
def data() -> DataSet:
    return prepare_data(DataConfig(name="statements", options={"train": 4, "dev": 2, "test": 2})).data


@pytest.mark.parametrize(
    ("arm", "message"),
    [
        (ArmConfig(name="a", model="meqq"), "did you mean 'meq'"),
        (ArmConfig(name="a", model="meq", options={"step": 3}), "did you mean 'steps'"),
        (ArmConfig(name="a", model="meq-gmlp", options={"mixer": "attention"}), "has no option 'mixer'"),
        (ArmConfig(name="a", model="meq", penalties={"jacobian": {}}), "did you mean 'jacobian-range'"),
    ],
)
def test_an_arm_that_cannot_be_built_says_why(arm: ArmConfig, message: str, data: DataSet) -> None:
    with pytest.raises(StudyError, match=message):
        (build_objective(arm, data), build_model(study("a"), arm, data, 0))


def test_the_same_seed_builds_the_same_weights(data: DataSet) -> None:
    arm = ArmConfig(name="a", model="concat", options={"dim": 8})
    first, again, other = (build_model(study("a"), arm, data, seed).state_dict() for seed in (3, 3, 4))
    assert all(first[name].equal(again[name]) for name in first)
    assert not all(first[name].equal(other[name]) for name in first)


def test_pictures_and_texts_are_encoded_and_the_encoders_remembered() -> None:
    config = DataConfig(name="scenes", options={"train": 18, "dev": 18, "test": 18}, standardise=True)
    prepared = prepare_data(config)
    data, provenance = prepared.data, prepared.provenance
    encoders = encoders_of(data)
    assert set(data.widths) == set(encoders) == {"image", "text"}
    assert encoders["image"].name.startswith("patches")
    assert len(encoders["text"].sha256) == 64
    assert provenance.source_fingerprint not in (None, data.fingerprint())
    assert provenance.standardisation is not None
    assert {name: len(row) for name, row in provenance.standardisation.mean.items()} == data.widths


def test_an_encoder_for_a_modality_that_is_not_there_is_an_error() -> None:
    config = DataConfig(name="scenes", options={"train": 18, "dev": 18, "test": 18}, encoders={"txt": "words"})
    with pytest.raises(ValueError, match="did you mean 'text'"):
        prepare_data(config)


def test_a_folder_that_holds_no_study_says_what_was_expected(tmp_path: Path) -> None:
    with pytest.raises(
        StudyError, match=r"is not the folder of a study: it has no study.json. Expected study.json, man"
    ):
        read_study(tmp_path)
    with pytest.raises(StudyError, match="it does not exist"):
        read_study(tmp_path / "nowhere")


def test_a_study_from_a_later_version_is_refused(tmp_path: Path) -> None:
    content = json.loads((RELEASED / "study.json").read_text())
    (tmp_path / "study.json").write_text(json.dumps({**content, "schema": 99}))
    with pytest.raises(FormatError, match="written in format 99, this version of meq reads up to 1"):
        read_study(tmp_path)


def test_the_fields_in_which_studies_differ_are_named() -> None:
    assert differences(study("a"), study("a")) == []
    assert differences(study("a"), replace(study("a"), seeds=(5,), question="Why?")) == ["question", "seeds"]
