from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from models.zoo import build, features_for
from safetensors.torch import load_file

import meq
from meq import models

RELEASED = sorted((Path(__file__).parents[1] / "checkpoints").iterdir())


@pytest.mark.parametrize("folder", RELEASED, ids=lambda folder: folder.name)
def test_every_released_checkpoint_still_loads_and_answers_as_it_did(folder: Path) -> None:
    model = meq.FusionModel.from_pretrained(folder).eval()
    kept = load_file(folder / "answers.safetensors")
    features = {name.removeprefix("features."): x for name, x in kept.items() if name.startswith("features.")}
    masks = {name.removeprefix("masks."): x.bool() for name, x in kept.items() if name.startswith("masks.")}
    with torch.no_grad():
        torch.testing.assert_close(model(features, masks).logits, kept["logits"], rtol=1e-5, atol=1e-6)


def test_there_is_a_released_checkpoint_to_keep_loading() -> None:
    assert len(RELEASED) >= 1


def test_the_config_names_the_class_the_version_and_every_option(tmp_path: Path) -> None:
    build("gate floor").save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["model"] == "MutualEquilibrium"
    assert config["meq_version"] == meq.__version__
    assert config["options"]["gate_floor"] == 0.1
    assert config["options"]["steps"] == 4


def test_loading_through_the_wrong_class_says_what_is_there(tmp_path: Path) -> None:
    build("concat").save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"holds a Concat, which MutualEquilibrium\.from_pretrained does not load"):
        meq.MutualEquilibrium.from_pretrained(tmp_path)


def test_options_may_be_changed_while_loading_and_unknown_ones_are_errors(tmp_path: Path) -> None:
    build("pair").save_pretrained(tmp_path)
    assert meq.MutualEquilibrium.from_pretrained(tmp_path, steps=9).steps == 9
    with pytest.raises(TypeError, match="did you mean 'steps'"):
        meq.MutualEquilibrium.from_pretrained(tmp_path, step=9)


def test_a_damaged_checkpoint_is_named(tmp_path: Path) -> None:
    build("pair").save_pretrained(tmp_path)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])
    with pytest.raises(ValueError, match=r"model.safetensors is damaged"):
        meq.MutualEquilibrium.from_pretrained(tmp_path)
    weights.unlink()
    with pytest.raises(FileNotFoundError, match=r"has no model\.safetensors"):
        meq.MutualEquilibrium.from_pretrained(tmp_path)
    (tmp_path / "config.json").write_text('{"hidden_size": 3}')
    with pytest.raises(ValueError, match="was not written by meq"):
        meq.MutualEquilibrium.from_pretrained(tmp_path)


def test_a_save_that_fails_leaves_the_old_model_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build("pair").save_pretrained(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def full_disk(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("meq.models.hub.save_file", full_disk)
    with pytest.raises(OSError, match="No space left"):
        build("pair", steps=7).save_pretrained(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_nothing_in_a_saved_model_is_pickled(tmp_path: Path) -> None:
    model = build("tree")
    model.save_pretrained(tmp_path)
    assert set(load_file(tmp_path / "model.safetensors")) == set(model.state_dict())
    assert isinstance(json.loads((tmp_path / "config.json").read_text())["options"]["order"], list)
    twin = models.EquilibriumTree.from_pretrained(tmp_path)
    assert twin.order == model.order
    assert torch.equal(twin.double()(features_for(model)).logits, twin(features_for(model)).logits)
