from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import typer
from rich.console import Console
from typer.testing import CliRunner

import meq
from meq.cli.understand import cost as cost_command
from meq.data.scenes import scenes
from meq.encoders import default_encoders, encode
from meq.models import Concat, MutualEquilibrium
from meq.models.match import count_flops
from meq.objectives import Objective
from meq.records import FormatError, loads, typed
from meq.runs.cost import RunCost, cost_of_run, run_cost_table
from meq.runs.load import load_run
from meq.studies import cost
from meq.studies.cost import (
    Feed,
    PeakBytes,
    at_depth,
    count_pass,
    fit_line,
    measure_cost,
    measure_costs,
    other_ways,
    sweep_steps,
)
from meq.studies.cost_study import (
    COST,
    DEPTHS,
    FULL_FORM,
    SINGLE_PASS,
    cost_study,
    cost_tables,
    matched_arms,
    paper_encoders,
    read_cost,
    verify_cost,
    write_cost,
)
from meq.studies.paper import COST_BASE, COST_BASIS, COST_STEP
from meq.studies.study import StudyError
from meq.studies.untrained import run_untrained
from meq.studies.whole_paper import verify_any
from meq.tables import FORMATS, as_text
from meq.training.config import TrainConfig
from meq.training.fit import fit

WIDTHS = {"image": 12, "text": 10}
TOKENS = {"image": 7, "text": 5}


def features(batch: int = 3, device: str = "cpu") -> dict[str, torch.Tensor]:
    return {name: torch.randn(batch, TOKENS[name], width, device=device) for name, width in WIDTHS.items()}


def feed(batch: int = 3, device: str = "cpu", **more: Mapping[str, Any]) -> Feed:
    return Feed(features=features(batch, device), **more)


def equilibrium(device: str = "cpu", **options: object) -> MutualEquilibrium:
    with torch.device(device):
        return MutualEquilibrium(WIDTHS, 3, 16, heads=2, head_width=8, **options)


def concat(device: str = "cpu") -> Concat:
    with torch.device(device):
        return Concat(WIDTHS, 3, 16, head_width=8)


# -- one pass ----------------------------------------------------------------------------------------------------------


def test_arms_are_measured_in_turns_and_set_against_the_fastest_that_does_not_iterate() -> None:
    models = {"concat": concat(), "meq": equilibrium(steps=4)}
    found = measure_costs(models, feed(), passes=3, warmups=1)
    assert [arm.arm for arm in found.arms] == ["concat", "meq"]
    assert found.reference == "concat"
    assert found.ms_ratio["concat"] == found.flops_ratio["concat"] == 1
    assert found.flops_ratio["meq"] == found.arms[1].flops / found.arms[0].flops > 1
    for arm, model in zip(found.arms, models.values(), strict=True):
        assert arm.ms_low <= arm.ms <= arm.ms_high
        assert (arm.passes, arm.batch_size, arm.device, arm.tokens) == (3, 3, "cpu", TOKENS)
        assert arm.parameters == model.count_parameters()
        assert arm.weight_bytes == 4 * model.count_parameters()
        assert not arm.encoded
    assert [arm.steps for arm in found.arms] == [None, 4]


def test_flops_per_sample_are_those_of_the_whole_pass_and_do_not_depend_on_the_batch() -> None:
    small, large = (measure_cost(equilibrium(steps=3, tol=0.0), feed(batch), passes=1, warmups=0) for batch in (2, 6))
    whole = count_flops(lambda steps: equilibrium("meta", steps=steps), 3, features(1))
    assert small.flops == large.flops == whole


def test_without_a_single_pass_arm_there_is_nothing_to_compare_with() -> None:
    found = measure_costs({"meq": equilibrium()}, feed(), passes=1, warmups=0)
    assert found.reference is None
    assert not found.ms_ratio
    assert not found.flops_ratio


def test_measuring_leaves_the_model_in_its_own_mode() -> None:
    model = equilibrium(dropout=0.5).train()
    model.head.eval()
    measure_cost(model, feed(), passes=1, warmups=0)
    assert model.training
    assert model.coupling.training
    assert not model.head.training


def test_masks_take_part() -> None:
    masks = {"text": torch.arange(TOKENS["text"]).expand(3, -1) < 3}
    found = measure_cost(equilibrium(steps=2, tol=0.0), feed(masks=masks), passes=1, warmups=0)
    assert found.flops == measure_cost(equilibrium(steps=2, tol=0.0), feed(), passes=1, warmups=0).flops


def test_on_the_meta_device_everything_is_counted_and_nothing_is_timed() -> None:
    counted = measure_cost(equilibrium("meta", steps=2, tol=0.0), feed(device="meta"))
    measured = measure_cost(equilibrium(steps=2, tol=0.0), feed(), passes=1, warmups=0)
    assert (counted.ms, counted.ms_low, counted.passes) == (None, None, 0)
    assert counted.flops == measured.flops
    assert counted.working_bytes > 0


def test_encoders_are_part_of_the_pass() -> None:
    model, given = equilibrium(steps=2, tol=0.0), features()
    encoder = torch.nn.Linear(4, WIDTHS["image"])
    raw = torch.randn(3, TOKENS["image"], 4)
    bare = measure_cost(model, Feed(features=given), passes=1, warmups=0)
    part = Feed(features={"text": given["text"]}, encoders={"image": encoder}, raw={"image": raw})
    whole = measure_cost(model, part, passes=1, warmups=0)
    assert whole.flops - bare.flops == 2 * TOKENS["image"] * 4 * WIDTHS["image"]
    assert whole.weight_bytes - bare.weight_bytes == 4 * (4 * WIDTHS["image"] + WIDTHS["image"])
    assert whole.encoded
    assert whole.tokens == TOKENS


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda: measure_cost(equilibrium(), Feed()), "nothing to measure on"),
        (lambda: measure_cost(equilibrium(), feed(), passes=0), "a pass"),
        (lambda: measure_cost(equilibrium(), feed(encoders={"image": torch.nn.Identity()})), "nothing to encode"),
        (lambda: measure_costs({"a": concat(), "b": concat("meta")}, feed()), "on one device"),
        (lambda: sweep_steps(equilibrium(), feed(), steps=(3,)), "two or more growing"),
        (lambda: sweep_steps(equilibrium(), feed(), steps=(3, 1)), "two or more growing"),
        (lambda: cost_study(device="cud"), "no device 'cud'"),
        (lambda: matched_arms(["conkat"]), "did you mean 'concat'"),
    ],
)
def test_what_cannot_be_measured_is_said(wrong: Callable[[], object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        wrong()


# -- over the steps ----------------------------------------------------------------------------------------------------


def test_every_step_costs_the_same_and_the_base_is_what_does_not_iterate() -> None:
    found = sweep_steps(equilibrium("meta"), feed(device="meta"), steps=(1, 2, 4))
    injections = sum(2 * TOKENS[name] * width * 16 for name, width in WIDTHS.items())
    head = 2 * (2 * 16 * 8 + 8 * 3)
    assert found.flops.base == injections + head
    assert found.flops.deviation == 0
    assert [point.flops for point in found.points] == [found.flops.base + k * found.flops.per_step for k in (1, 2, 4)]
    assert found.ms is None
    assert found.to_tolerance is None


def test_a_step_at_the_papers_size_computes_twice_its_figure_of_which_the_linear_layers_are_its_multiply_adds() -> None:
    dim, image, text = 768, FULL_FORM.image_tokens, FULL_FORM.text_tokens
    with torch.device("meta"):
        model = MutualEquilibrium({"image": dim, "text": dim}, 3)
        given = {"image": torch.empty(1, image, dim), "text": torch.empty(1, text, dim)}
    found = sweep_steps(model, Feed(features=given), steps=(1, 2))
    linear = 2 * (12 + 12 + 2) * dim**2 * (image + text)  # S, M and the gate
    products = 4 * dim * (image**2 + text**2 + 2 * image * text)
    assert found.flops.per_step == linear + products
    assert round(linear / 2 / 1e9, 3) == COST_STEP
    assert found.flops.deviation == 0


def test_the_papers_encoders_alone_agree_with_its_base() -> None:
    frozen = paper_encoders(quick=False, device="meta")
    made = frozen.encoded()
    assert {name: tuple(x.shape) for name, x in made.items()} == {"image": (32, 50, 768), "text": (32, 60, 768)}
    with torch.device("meta"):
        reader = Concat({"image": 768, "text": 768}, None)
    alone = Feed(features=made)
    encoding = (count_pass(reader, frozen) - count_pass(reader, alone)) / 32
    assert encoding / 1e9 == pytest.approx(COST_BASE, rel=0.01)


def test_memory_does_not_move_with_the_number_of_steps() -> None:
    given = {name: x.repeat(1, 8, 1) for name, x in features(8).items()}
    found = sweep_steps(equilibrium(tol=10.0), Feed(features=given), steps=(1, 2, 12), passes=1)
    assert found.memory_growth < 0.02
    assert found.ms is not None


def test_a_run_to_tolerance_says_how_many_reached_the_cap() -> None:
    slow = sweep_steps(equilibrium(damping=0.001), feed(), steps=(1, 2), passes=1).to_tolerance
    assert (slow.capped, slow.most_steps, slow.samples, slow.tolerance) == (1, 100, 3, 1e-3)
    easy = sweep_steps(equilibrium(tol=10.0), feed(), steps=(1, 2), passes=1).to_tolerance
    assert (easy.capped, easy.mean_steps, easy.diverged) == (0, 0, 0)


def test_a_model_at_another_depth_shares_its_weights_and_leaves_the_original_alone() -> None:
    model = equilibrium(steps=7, tol=1e-2)
    twin = at_depth(model, 3)
    assert (model.steps, model.tol, twin.steps, twin.tol) == (7, 1e-2, 3, 0)
    assert all(a is b for a, b in zip(model.parameters(), twin.parameters(), strict=True))
    assert twin(features()).solution.steps.tolist() == [3, 3, 3]


def test_a_line_is_exact_where_increments_are_constant() -> None:
    line = fit_line((1, 2, 5), [0.1 + 0.25, 0.1 + 0.5, 0.1 + 1.25])
    assert line.per_step == pytest.approx(0.25)
    assert line.base == pytest.approx(0.1)
    assert fit_line((1, 3, 4), [10, 30, 50]).deviation > 0


def test_what_was_there_before_counts_for_nothing_also_when_it_is_viewed() -> None:
    idle = torch.zeros(1000)
    with PeakBytes([idle]) as memory:
        held = idle.reshape(10, 100).t()
        fresh = torch.ones(10)
        del fresh
        torch.ones(5)
    assert held.shape == (100, 10)
    assert memory.peak == 40
    assert memory.live == 0


# -- the study ---------------------------------------------------------------------------------------------------------


def test_single_pass_arms_are_as_large_as_the_equilibrium_whose_depths_share_their_weights() -> None:
    arms = matched_arms(device="meta")
    assert list(arms) == [*SINGLE_PASS, *(f"meq K={depth}" for depth in DEPTHS)]
    target = arms["meq K=10"].count_parameters()
    for name in SINGLE_PASS:
        assert arms[name].count_parameters() == pytest.approx(target, rel=0.005)
    assert next(arms["meq K=1"].parameters()) is next(arms["meq K=20"].parameters())


def test_random_weights_are_the_same_every_time_and_leave_the_callers_random_numbers() -> None:
    before = torch.get_rng_state()
    first, second = paper_encoders(), paper_encoders()
    assert torch.equal(first.encoders["text"](first.raw["text"]), second.encoders["text"](second.raw["text"]))
    assert torch.equal(torch.get_rng_state(), before)


def test_a_study_of_costs_is_written_read_back_and_shown_in_every_form(tmp_path: Path) -> None:
    report = cost_study(arms=("low-rank", "meq"), depths=(1, 2), steps=(1, 2), device="meta")
    write_cost(tmp_path / "cost", report)
    assert read_cost(tmp_path / "cost") == report
    tables = cost_tables(report)
    for name, table in tables.items():
        for ending, render in FORMATS.items():
            assert (tmp_path / "cost" / "tables" / f"{name}.{ending}").read_text("utf-8") == render(table)
    shown = as_text(tables["arms"])
    assert "meq K=2" in shown
    assert "ms / sample" not in shown
    assert "constant to within 0.0000" in as_text(tables["sweep"]).replace("\n", " ")
    assert report.costs.reference == "low-rank"
    assert report.sweep.flops.deviation == 0


def test_rounds_go_through_all_arms_again_and_processor_time_stands_beside_the_clock() -> None:
    found = measure_costs({"concat": concat(), "meq": equilibrium(steps=4)}, feed(), passes=2, warmups=1, rounds=3)
    for arm in found.arms:
        assert (arm.passes, arm.rounds) == (6, 3)
        assert arm.cpu_ms > 0
    counted = measure_cost(concat("meta"), feed(device="meta"))
    assert counted.cpu_ms is None
    with pytest.raises(ValueError, match="rounds must be"):
        measure_costs({"concat": concat()}, feed(), rounds=0)


def test_every_round_begins_with_another_arm() -> None:
    order: list[str] = []
    models = {"a": concat(), "b": concat(), "c": concat()}
    for name, model in models.items():
        model.register_forward_pre_hook(lambda *_, name=name: order.append(name))
    measure_costs(models, feed(), passes=1, warmups=0, rounds=3)
    assert order[:9] == [*"abc", *"bca", *"cab"]


def test_a_model_that_is_read_early_takes_fewer_steps_and_says_that_it_stands_for_no_model() -> None:
    model = equilibrium(steps=8)
    ways = other_ways("meq K=8", model, feed())
    (name,) = ways
    made, words = ways[name]
    assert name == "meq K=8, read early"
    assert "matter of its calibration" in words
    found = measure_costs({"meq K=8": model, name: made}, feed(), passes=1, warmups=0, ways={name: words}).arms
    assert [arm.mean_steps is None for arm in found] == [True, False]
    assert 1 <= found[1].mean_steps < 8
    assert found[1].flops < found[0].flops
    assert (found[0].way, found[1].way) == ("", words)
    assert model.anytime is None
    assert other_ways("x", concat(), feed()) == {}
    assert other_ways("x", equilibrium("meta"), feed(device="meta")) == {}


def test_a_way_is_one_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(cost.WAYS, "as it is", cost.Way(make=lambda model, feed: (model, "nothing else")))
    assert set(other_ways("arm", concat(), feed())) == {"arm, as it is"}


def test_what_is_asked_of_the_study_is_what_is_measured() -> None:
    report = cost_study(arms=("concat", "meq"), depths=(4,), steps=(1, 2), batch=2, passes=1, rounds=2)
    assert (report.form.batch_size, report.form.passes, report.form.rounds) == (2, 1, 2)
    assert [arm.arm for arm in report.costs.arms] == ["concat", "meq K=4", "meq K=4, read early"]
    assert {(arm.batch_size, arm.passes, arm.rounds) for arm in report.costs.arms} == {(2, 2, 2)}
    shown = as_text(cost_tables(report)["arms"])
    for words in (
        "CPU ms / sample",
        "mean steps",
        "timed passes: 2, rounds: 2",
        "meq K=4, read early: samples stop at",
    ):
        assert words in " ".join(shown.split()), words


def test_encoders_of_real_size_are_those_of_the_full_form_and_their_weights_are_said_to_be_random() -> None:
    small = cost_study(arms=("concat",), depths=(), batch=1, device="meta")
    real = cost_study(arms=("concat",), depths=(), batch=1, device="meta", encoders=("clip", "bert"))
    full = cost_study(quick=False, arms=("concat",), depths=(), batch=1, device="meta")
    assert real.encoder_parameters == full.encoder_parameters > 100 * small.encoder_parameters
    said = " ".join(as_text(cost_tables(real)["arms"]).split())
    assert "encoders of real size (image as large as CLIP ViT-B/32, text as large as BERT-base)" in said
    assert "random weights" in said
    half = cost_study(arms=("concat",), depths=(), batch=1, device="meta", encoders=("bert",))
    assert small.encoder_parameters < half.encoder_parameters < real.encoder_parameters
    assert "others small" in " ".join(as_text(cost_tables(half)["arms"]).split())


@pytest.mark.parametrize(
    ("encoders", "said"),
    [(("clop",), "`encoders` cannot be 'clop': did you mean 'clip'"), (("clip", "clip"), "has two for image")],
)
def test_a_name_of_no_encoder_is_answered_with_the_nearest(encoders: tuple[str, ...], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        cost_study(arms=("concat",), depths=(), device="meta", encoders=encoders)


def test_a_record_of_before_has_the_tables_of_before() -> None:
    kept = Path(__file__).parents[2] / "results" / "paper-quick" / "cost"
    assert not verify_cost(kept).faults
    assert read_cost(kept).costs.arms[0].cpu_ms is None


def test_a_study_without_the_equilibrium_has_no_sweep_and_one_with_times_shows_them() -> None:
    report = cost_study(arms=("concat",), depths=())
    assert report.sweep is None
    assert list(cost_tables(report)) == ["arms"]
    assert "ms / sample" in as_text(cost_tables(report)["arms"])


def test_a_folder_with_another_study_or_a_broken_report_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match=r"has no cost\.json"):
        read_cost(tmp_path)
    (tmp_path / COST).write_text('{"schema": 9}')
    with pytest.raises(FormatError, match="written in format 9, this version of meq reads up to 1"):
        read_cost(tmp_path)
    (tmp_path / "study.json").write_text("{}")
    with pytest.raises(StudyError, match="another study"):
        run_untrained("cost", tmp_path)


# -- a trained run -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs on encoded scenes, hardly trained."""
    folder = tmp_path_factory.mktemp("runs")
    raw = scenes(train=18, dev=18, test=18)
    data = encode(raw, default_encoders(raw))
    shape = {"dim": 16, "head_width": 8}
    arms = {
        "meq": MutualEquilibrium(data.widths, 3, heads=2, steps=3, tol=10.0, **shape),
        "concat": Concat(data.widths, 3, **shape),
    }
    for name, model in arms.items():
        config = TrainConfig(epochs=1, batch_size=18, monitor_samples=2, radius_samples=1)
        fit(model, data, Objective(task=data.head), folder / name, config, console=Console(quiet=True))
    return folder


def test_a_run_is_measured_on_its_own_data_with_its_own_encoders(runs: Path) -> None:
    found = cost_of_run(load_run(runs / "meq"), batch_size=4, steps=(1, 2), passes=1)
    assert [point.steps for point in found.sweep.points] == [1, 2, 3]
    assert found.cost is found.sweep.points[2]
    assert found.cost.batch_size == 4
    assert found.cost.tokens["image"] == 9
    assert found.cost.encoded
    assert found.sweep.to_tolerance.samples == 4
    assert "image by patches" in found.encoders
    assert "first 4 examples of dev" in found.inputs


def test_random_tokens_take_the_place_of_data_and_say_nothing_about_settling(runs: Path) -> None:
    found = cost_of_run(load_run(runs / "meq"), batch_size=2, tokens={"image": 20, "text": 30}, steps=(1,), passes=1)
    assert found.cost.tokens == {"image": 20, "text": 30}
    assert not found.cost.encoded
    assert found.sweep.to_tolerance is None
    assert "random" in as_text(run_cost_table(found))


def test_a_model_without_its_run_is_measured_on_random_tokens_only(runs: Path, tmp_path: Path) -> None:
    alone = shutil.copytree(runs / "concat" / "model", tmp_path / "alone")
    with pytest.raises(StudyError, match="--tokens image=50 --tokens text=50"):
        cost_of_run(load_run(alone))
    assert cost_of_run(load_run(alone), tokens={"image": 2, "text": 3}, batch_size=1, passes=1).sweep is None


app = typer.Typer()
app.command()(cost_command)


def test_a_run_is_measured_with_encoders_of_real_size(runs: Path) -> None:
    run = load_run(runs / "meq")
    found = cost_of_run(run, batch_size=2, steps=(1, 2), device="meta", encoders=("clip",))
    assert found.cost.encoded
    assert found.cost.weight_bytes > 4 * 80e6
    assert "as large as CLIP ViT-B/32, with random weights" in found.encoders
    assert "random weights" in found.inputs
    with pytest.raises(StudyError, match=r"`tokens` cannot be given for .* its encoder decides"):
        cost_of_run(run, tokens={"image": 3}, device="meta", encoders=("clip",))


def test_a_run_with_a_calibrated_rule_is_also_read_by_it(runs: Path) -> None:
    run = load_run(runs / "meq")
    rule = meq.Anytime("residual", 1e9)
    calibrated = replace(run, calibration=SimpleNamespace(stopping=SimpleNamespace(anytime=rule)))
    found = cost_of_run(calibrated, batch_size=2, steps=(1, 2), passes=1)
    (early,) = found.sweep.ways
    assert early.arm == f"K={run.model.steps}, read early"
    assert early.mean_steps <= 1
    assert "by the run's calibrated rule" in early.way
    assert "read early" in as_text(run_cost_table(found))
    assert cost_of_run(run, batch_size=2, steps=(1, 2), passes=1).sweep.ways == ()


def test_the_command_prints_a_table_or_json(runs: Path) -> None:
    asked = [str(runs / "meq"), "--batch-size", "2", "--passes", "1", "--steps", "1,2"]
    shown = CliRunner().invoke(app, asked)
    assert shown.exit_code == 0, shown.output
    assert "read at K = 3" in shown.output
    assert "A step adds" in shown.output
    machine = CliRunner().invoke(app, [str(runs / "concat"), "--passes", "1", "--json"])
    assert typed(RunCost, loads(machine.stdout, "stdout"), "stdout").sweep is None
    assert json.loads(machine.stdout)["model"] == "Concat"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--steps", "1,x"], "whole numbers are needed, as in --steps 1,2,5; got '1,x'"),
        (["--tokens", "imge=3"], "did you mean 'image'"),
        (["--tokens", "image=3"], "how many tokens 'text'"),
        (["--tokens", "image=0", "--tokens", "text=1"], "numbers of at least 1 are needed, as in --tokens image=50"),
        (["--tokens", "image"], "as in --tokens image=50"),
        (["--steps", "0,2"], "numbers of at least 1 are needed, as in --steps 1,2,5"),
        (["--device", "cud"], "no device 'cud'"),
    ],
)
def test_a_wrong_option_is_one_sentence(runs: Path, options: list[str], said: str) -> None:
    shown = CliRunner().invoke(app, [str(runs / "meq"), "--passes", "1", *options])
    assert shown.exit_code == 1
    assert said in shown.output
    assert "Traceback" not in shown.output


def test_a_study_of_costs_is_sealed_and_every_change_to_it_is_found(tmp_path: Path) -> None:
    folder = tmp_path / "cost"
    write_cost(folder, cost_study(arms=("low-rank", "meq"), depths=(1, 2), steps=(1, 2), device="meta"))
    whole = verify_any(folder)
    assert whole.ok, whole.faults
    assert (whole.hashes, whole.tables) == (9, 8)
    for name, message in (("tables/arms.csv", "changed since it was sealed"), (COST, "changed since it was sealed")):
        before = (folder / name).read_bytes()
        (folder / name).write_bytes(before.replace(b"1", b"2"))
        assert [(fault.file, fault.message[:26]) for fault in verify_cost(folder).faults] == [(name, message[:26])]
        (folder / name).write_bytes(before)
    (folder / "tables" / "more.txt").write_text("made up")
    assert [fault.file for fault in verify_cost(folder).faults] == ["tables/more.txt"]
    (folder / "tables" / "more.txt").unlink()
    (folder / "tables" / "arms.txt").unlink()
    assert verify_cost(folder).faults[0].message == "missing"
    (folder / "seal.json").unlink()
    assert "measure again" in verify_cost(folder).faults[0].message


def test_the_papers_two_units_are_told_apart_beside_its_sizes_alone() -> None:
    full = cost_study(quick=False, arms=("concat",), depths=(), device="meta")
    small = cost_study(arms=("concat",), depths=(), device="meta")
    assert COST_BASIS in cost_tables(full)["arms"].notes
    assert COST_BASIS not in cost_tables(small)["arms"].notes
