"""Every study of the paper runs, here at a size of seconds; what it compares is what it says."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from data.more_folders import mosei_folder
from rich.console import Console
from studies.shrinking import SIZES, shrunk

import meq
from meq.data.findings import DataError
from meq.data.request import DataRequest
from meq.studies import Study, StudyError, make_study, make_tables, read_study, records_of, run_study, verify
from meq.studies.build import Places, build_model, prepare_data, sized_options
from meq.studies.measures import measured_of
from meq.studies.recipes import STUDIES, describe
from meq.studies.settings import FULL, QUICK, setting_for
from meq.studies.study import differences, study_text
from meq.studies.tables import comparison_table

QUIET = Console(quiet=True)
WITH_OWN_DATA = ("tree-order",)
"""Needs three modalities, which the embedded set does not have."""


@pytest.mark.parametrize("name", [name for name in STUDIES if name not in WITH_OWN_DATA])
def test_every_study_runs_on_the_embedded_set_and_verifies(name: str, tmp_path: Path) -> None:
    data = "scenes" if "scenes" in STUDIES[name].on else STUDIES[name].on[0]
    study = shrunk(make_study(name, data, quick=True))
    records = run_study(study, tmp_path / "study", console=QUIET)
    assert len(records) == len(study.arms)
    assert all(record.scored for record in records), [record.error for record in records]
    found = verify(tmp_path / "study")
    assert found.ok, found.faults
    tables = make_tables(study, records_of(tmp_path / "study", study), measured_of(tmp_path / "study", study))
    metric = records[0].metric.replace(" ", "-")
    assert {f"dev-{metric}", f"test-{metric}", "runs"} <= tables.keys()
    for measure, values in measured_of(tmp_path / "study", study).items():
        assert values, f"{measure} found nothing"


@pytest.fixture
def sentiment_table(tmp_path: Path) -> DataRequest:
    """Three modalities, one vector each."""
    generator = np.random.default_rng(0)
    columns = {
        name: generator.normal(size=(60, width)).tolist() for name, width in (("face", 5), ("voice", 4), ("words", 6))
    }
    labels = [f"{value > 0}" for value in np.array(columns["words"])[:, 0]]
    path = tmp_path / "clips.parquet"
    pq.write_table(pa.table({**columns, "feeling": labels}), path)
    return DataRequest(data=str(path), vectors=("face", "voice", "words"), label="feeling")


def test_merge_orders_of_a_table_of_three_modalities_are_compared_with_the_graph(
    sentiment_table: DataRequest, tmp_path: Path
) -> None:
    study = shrunk(make_study("tree-order", sentiment_table, quick=True), seeds=(0, 1))
    places = Places(data=Path(sentiment_table.data))
    run_study(study, tmp_path / "study", places=places, console=QUIET)
    assert verify(tmp_path / "study").ok
    orders = {arm.name: arm.options.get("order") for arm in study.arms}
    assert orders["tree-words-last"] == [["face", "voice"], "words"]
    assert orders["tree-random-order"] == "random"
    data = prepare_data(study.data, places).data
    drawn = {
        str(build_model(study, study.arm("tree-random-order"), data, seed).to_config()["options"]["order"])
        for seed in range(8)
    }
    assert len(drawn) > 1, "the order is drawn by the seed"


@pytest.mark.parametrize("name", ["main", "ablation", "modality", "safeguards"])
def test_a_users_table_can_be_studied(name: str, sentiment_table: DataRequest, tmp_path: Path) -> None:
    study = shrunk(make_study(name, sentiment_table, quick=True))
    places = Places(data=Path(sentiment_table.data))
    run_study(study, tmp_path / "study", places=places, console=QUIET)
    assert verify(tmp_path / "study").ok


@pytest.mark.parametrize(
    ("name", "data", "quick"),
    [
        (name, data, quick)
        for name, recipe in STUDIES.items()
        for data in recipe.on
        if data != "table"
        for quick in (0, 1)
    ],
)
def test_every_study_can_be_made_for_every_data_set_it_names(name: str, data: str, quick: int, tmp_path: Path) -> None:
    if name == "tree-order" and data != "mosei":
        return
    study = make_study(name, data, quick=bool(quick))
    (tmp_path / "study.json").write_text(study_text(study))
    assert read_study(tmp_path) == study
    for one, other in combinations(study.arms, 2):
        assert replace(one, name=other.name) != other, f"{one.name} and {other.name} are the same"


@pytest.mark.parametrize("data", ["duels", "relay"])
def test_where_models_have_no_gate_studies_try_one_and_put_no_floor_under_it(data: str) -> None:
    ablation, depth, safeguards = (make_study(name, data) for name in ("ablation", "depth", "safeguards"))
    assert ablation.arm("gate").options["gate"] is True
    assert depth.arm("settle-gate").options["gate"] is True
    assert "gate-floor" not in [arm.name for arm in safeguards.arms]
    gated = make_study("safeguards", "scenes").arm("gate-floor").options
    assert gated.get("gate", True)


@pytest.mark.parametrize("name", STUDIES)
def test_every_study_says_its_command_its_duration_and_what_to_expect(name: str) -> None:
    said = describe(name)
    assert f"Command: meq study run {name} " in said
    assert "Duration: " in said
    assert "Expect: " in said


# -- fairness ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def main_and_data() -> tuple[Study, Any]:
    study = make_study("main", "scenes", quick=True)
    study = replace(study, data=replace(study.data, options=SIZES))
    return study, prepare_data(study.data).data


def test_the_arms_of_the_main_study_have_the_same_number_of_parameters(main_and_data: tuple[Study, Any]) -> None:
    study, data = main_and_data
    counts = {arm.name: build_model(study, arm, data, 0).count_parameters() for arm in study.arms}
    for name in ("concat", "self-attention", "cross-attention"):
        assert counts[name] == pytest.approx(counts["meq"], rel=0.01)


def test_the_compute_matched_arm_has_the_flops_of_all_steps(main_and_data: tuple[Study, Any]) -> None:
    study, data = main_and_data
    arm = study.arm("self-attention-compute-matched")
    assert sized_options(study, arm, data)["depth"] > 2


def test_the_paper_s_hyperparameters_are_the_defaults() -> None:
    """The table "Training hyperparameters", spot by spot."""
    rates = {name: FULL[name].train.learning_rate for name in ("snli-ve", "hateful-memes", "vcr", "mosei", "vqa-v2")}
    assert rates == {"snli-ve": 1e-4, "hateful-memes": 1e-4, "vcr": 1e-4, "mosei": 2e-5, "vqa-v2": 1e-4}
    assert [FULL[name].train.epochs for name in rates] == [10, 10, 15, 8, 10]
    assert [FULL[name].train.batch_size for name in rates] == [32, 32, 8, 32, 32]
    assert [FULL[name].train.weight_decay for name in rates] == [0.01, 0.01, 0.01, 1e-4, 0.01]
    assert [FULL[name].lambda_j for name in rates] == [0.5] * 5
    assert [FULL[name].lambda_f for name in rates] == [0.3, 0.3, 0.3, 0.3, 0]
    assert [FULL[name].probes for name in rates] == [5, 1, 1, 5, 1]
    assert [FULL[name].shape["damping"] for name in rates] == ["learned", 0.5, 0.5, "learned", 0.5]
    assert all(FULL[name].shape["dim"] == 768 and FULL[name].shape["steps"] == 10 for name in rates)


def test_cod10k_has_the_paper_s_learning_rates() -> None:
    study = make_study("cod10k", "cod10k")
    rates = {arm.name: study.config(arm.name, 42).learning_rate for arm in study.arms}
    slow, fast = 3e-5, 1e-4
    assert rates == {"concat": slow, "meq": slow, "cross-attention": fast, "self-attention": fast, "low-rank": fast}


def test_every_arm_gets_the_same_number_of_learning_rates() -> None:
    study = make_study("main", "scenes", quick=True, rates=3)
    assert len(study.arms) == 15
    tried = {name: [study.config(arm, 42).learning_rate for arm in members] for name, members in study.groups.items()}
    assert len({tuple(rates) for name, rates in tried.items() if name != "best attention"}) == 1
    assert len(tried["best attention"]) == 6
    with pytest.raises(StudyError, match="1 to 5 learning rates"):
        make_study("main", "scenes", rates=9)
    with pytest.raises(StudyError, match="takes values from one arm into another"):
        make_study("safeguards", "scenes", rates=2)


def test_the_cross_floor_of_a_seed_is_what_the_run_without_penalty_reached(tmp_path: Path) -> None:
    study = shrunk(make_study("safeguards", "scenes", quick=True))
    assert study.needs("cross-floor", 0) == ("no-residual", 0)
    assert study.needs("gate-floor", 0) is None
    run_study(study, tmp_path, console=QUIET)
    reached = measured_of(tmp_path, study)["coupling"]["no-residual", 0]["blocks"]
    penalties = records_of(tmp_path, study)["cross-floor", 0].objective.penalties
    assert any(f"'image<-text': {reached['image<-text']!r}" in each for each in penalties)
    assert not any("'image<-image'" in each for each in penalties)


def test_a_blank_modality_is_zero_and_the_record_says_so(tmp_path: Path) -> None:
    study = shrunk(make_study("modality", "scenes", quick=True))
    assert {arm.name: arm.blank for arm in study.arms if arm.blank} == {
        "image-only": ("text",),
        "text-only": ("image",),
        "concat-image-only": ("text",),
        "concat-text-only": ("image",),
    }
    prepared = prepare_data(study.data)
    example = prepared.seen_by(study.arm("text-only")).splits["dev"][0]
    assert not example.content["image"].any()
    assert example.content["text"].any()


def test_settings_take_options_and_refuse_what_they_do_not_know() -> None:
    found = setting_for(DataRequest(data="scenes", options={"train": 9}), quick=True, seeds=[1])
    assert found.data.options == {"train": 9}
    assert found.seeds == (1,)
    with pytest.raises(StudyError, match="did you mean 'scenes'"):
        setting_for("scene")
    assert QUICK.keys() == FULL.keys()


def test_measures_read_dev_on_the_papers_sets_and_what_they_are_told_elsewhere() -> None:
    assert make_study("fixed-point", "snli-ve").measures["fixed-point"]["split"] == "dev"
    assert "split" not in make_study("grounding", "snli-ve").measures["grounding"], "which reads another set"
    assert "split" not in make_study("fixed-point", "scenes").measures["fixed-point"]
    assert make_study("fixed-point", "scenes", measure_on="dev").measures["fixed-point"]["split"] == "dev"
    with pytest.raises(
        StudyError, match="no measure of the study 'readout-scenes' reads a split: leave out `measure_on`"
    ):
        make_study("readout", "scenes", measure_on="dev")


def test_on_cod10k_every_architecture_has_the_papers_learning_rate_in_main_too() -> None:
    rates = {arm.name: arm.train["learning_rate"] for arm in make_study("main", "cod10k").arms}
    assert rates["meq"] == rates["concat"] == 3e-5
    assert rates["self-attention"] == rates["cross-attention"] == 1e-4
    assert all("learning_rate" not in arm.train for arm in make_study("main", "snli-ve").arms)


def test_a_joint_state_is_as_wide_as_its_block_or_its_model_may_be(tmp_path: Path) -> None:
    study = make_study("state-design", "scenes", quick=True)
    data = prepare_data(replace(study.data, options=SIZES)).data
    coupled, block, whole, summed = (build_model(study, arm, data, 0) for arm in study.arms)
    assert block.count_parameters("block") == pytest.approx(coupled.count_parameters("block"), rel=0.01)
    assert summed.count_parameters("block") == pytest.approx(coupled.count_parameters("block"), rel=0.01)
    assert whole.count_parameters() == pytest.approx(coupled.count_parameters(), rel=0.01)
    assert block.dim > whole.dim > coupled.dim, "widening the block widens what feeds and reads it"
    assert block.count_parameters() > 1.05 * whole.count_parameters()


def test_three_vectors_collapse_into_one_state_with_the_same_mixer(tmp_path: Path) -> None:
    folder = mosei_folder(tmp_path / "mosei", "mmsa-aligned")
    study = make_study("state-design", "mosei", quick=True)
    assert [arm.name for arm in study.arms] == ["meq", "single-state", "feature-sum"], "block and model are the same"
    prepared = prepare_data(replace(study.data, encoders={}), Places(data=folder))
    coupled, single, _ = (build_model(study, arm, prepared.data, 0) for arm in study.arms)
    assert isinstance(single, meq.SingleVector)
    assert single.count_parameters("block") == pytest.approx(coupled.count_parameters("block"), rel=0.01)
    batch = prepared.data.collate(list(prepared.data.splits["train"][:2]))
    solution = single(batch.features, batch.masks).solution
    assert solution is not None
    assert {name: tuple(z.shape) for name, z in solution.state.items()} == dict.fromkeys(prepared.data.widths, (2, 64))


def test_what_comes_as_numbers_is_standardised_and_what_is_encoded_is_not(tmp_path: Path) -> None:
    folder = mosei_folder(tmp_path / "mosei", "mmsa-aligned")
    study = make_study("main", "mosei", quick=True, encoders={"text": "words"})
    assert study.data.encoders == {"text": "words"}
    prepared = prepare_data(study.data, Places(data=folder))
    scaled = prepared.provenance.standardisation
    assert scaled is not None
    assert prepared.raw is not None
    assert prepared.provenance.source_fingerprint == scaled.apply(prepared.raw).fingerprint(), "as a run is asked later"
    assert set(scaled.mean) == {"image", "audio"}
    plain = make_study("main", "mosei", quick=True, encoders={"text": "words"}, standardise=False)
    assert prepare_data(plain.data, Places(data=folder)).provenance.standardisation is None


def test_an_encoder_of_what_a_set_does_not_have_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="scenes has nothing of the kind 'audio' that 'wav2vec2' could read"):
        make_study("main", "scenes", encoders={"audio": "wav2vec2"})
    wordless = make_study("main", "mosei", encoders={"text": "words"})
    with pytest.raises(DataError, match="holds no words"):
        prepare_data(wordless.data, Places(data=mosei_folder(tmp_path / "mosei")))
    assert make_study("main", "vcr", encoders={"regions": "patches"}).data.encoders["image"] == "patches"


def test_of_two_modalities_a_tree_is_the_graph_and_one_arm_is_trained(tmp_path: Path) -> None:
    (tmp_path / "two.csv").write_text("a,b,y\n1,2,0\n3,4,1\n")
    study = make_study("tree-order", DataRequest(data=str(tmp_path / "two.csv"), vectors=("a", "b"), label="y"))
    assert [arm.name for arm in study.arms] == ["graph"]
    assert study.notes == ("Of two modalities a merge tree is the graph, weight by weight: one arm is trained.",)
    shape: dict[str, Any] = {"heads": 2, "steps": 2, "head_width": 8}
    torch.manual_seed(0)
    graph = meq.MutualEquilibrium({"a": 3, "b": 4}, 2, 8, **shape)
    torch.manual_seed(0)
    tree = meq.EquilibriumTree({"a": 3, "b": 4}, 2, 8, order=("a", "b"), **shape)
    inputs = {"a": torch.randn(2, 3, 3), "b": torch.randn(2, 2, 4)}
    assert torch.equal(graph(inputs).logits, tree(inputs).logits)


def test_arms_that_cannot_be_or_are_there_in_another_form_are_told_beside_the_tables() -> None:
    said = {
        ("solvers", "snli-ve"): "The damping is 0.5 in every arm, not learned",
        ("gradients", "mosei"): "The damping is 0.5 in every arm, not learned",
        ("ablation", "mosei"): "there is no self-attention to remove",
        ("safeguards", "relay"): "Models have no gate here",
        ("state-design", "mosei"): "are the same arm here",
    }
    for (name, data), words in said.items():
        study = make_study(name, data)
        assert words in study.notes[0], name
        assert study.notes[0] in comparison_table(study, {}, split="dev", metric="accuracy").notes
    assert make_study("solvers", "hateful-memes").notes == make_study("safeguards", "vqa-v2").notes == ()
    noted = make_study("solvers", "snli-ve")
    assert differences(replace(noted, notes=()), noted) == [], "folders of older versions are gone on with"
