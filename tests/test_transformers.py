"""The equilibrium between encoders of transformers: trained by their Trainer, saved and loaded as their models are."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from encoders.models import save_bert, save_clip, save_wav2vec2
from torch import Tensor

import meq

transformers = pytest.importorskip("transformers")
from transformers import AutoConfig, AutoModel, BertConfig, CLIPVisionConfig, Trainer, TrainingArguments  # noqa: E402

from meq.encoders.pretrained import quiet  # noqa: E402
from meq.transformers import EquilibriumConfig, EquilibriumForClassification, EquilibriumOutput  # noqa: E402

SMALL: dict[str, Any] = {"dim": 16, "heads": 2, "steps": 3, "options": {"head_width": 32}}
SIDE, LENGTH = 32, 7


@pytest.fixture(autouse=True)
def _quietly() -> Iterator[None]:
    with quiet():
        yield


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Small random encoders, as save_pretrained writes them."""
    folder = tmp_path_factory.mktemp("encoders")
    made = {"image": save_clip(folder / "clip"), "text": save_bert(folder / "bert")}
    made["audio"] = save_wav2vec2(folder / "wav2vec2")
    return {name: str(path) for name, path in made.items()}


def make(folders: dict[str, str], **options: Any) -> EquilibriumForClassification:
    torch.manual_seed(0)
    asked = {"num_labels": 3, **SMALL, **options}
    return EquilibriumForClassification.from_encoders(folders["image"], folders["text"], **asked)


def inputs(rows: int = 2) -> dict[str, Tensor]:
    mask = torch.ones(rows, LENGTH, dtype=torch.long)
    mask[-1, 3:] = 0
    return {
        "pixel_values": torch.randn(rows, 3, SIDE, SIDE),
        "input_ids": torch.randint(5, 15, (rows, LENGTH)),
        "attention_mask": mask,
    }


# -- a model of transformers -------------------------------------------------------------------------------------------


def test_encoders_come_with_their_weights_and_the_equilibrium_with_its_own(folders: dict[str, str]) -> None:
    model = make(folders)
    expected = {"image": AutoModel.from_pretrained(folders["image"]).vision_model}
    expected["text"] = AutoModel.from_pretrained(folders["text"])
    for name, encoder in expected.items():
        torch.testing.assert_close(model.get_submodule(f"{name}_encoder").state_dict(), encoder.state_dict())
    torch.manual_seed(0)
    alone = meq.MutualEquilibrium({"image": 32, "text": 32}, 3, 16, heads=2, steps=3, head_width=32)
    torch.testing.assert_close(model.equilibrium.state_dict(), alone.state_dict(), rtol=0, atol=0)


def test_the_answer_is_that_of_the_equilibrium_of_the_encoders_tokens(folders: dict[str, str]) -> None:
    model, given = make(folders).eval(), inputs()
    with torch.no_grad():
        out = model(**given, output_solution=True)
        features = {
            "image": model.image_encoder(pixel_values=given["pixel_values"]).last_hidden_state,
            "text": model.text_encoder(given["input_ids"], given["attention_mask"]).last_hidden_state,
        }
        expected = model.equilibrium(features, {"text": given["attention_mask"].bool()})
    assert isinstance(out, EquilibriumOutput)
    torch.testing.assert_close(out.logits, expected.logits)
    torch.testing.assert_close(out.solution.state, expected.solution.state)
    assert list(model(**given)) == ["logits"]
    assert torch.equal(model(**given, return_dict=False)[0], model(**given).logits)


def test_what_lies_behind_the_attention_mask_changes_nothing(folders: dict[str, str]) -> None:
    model, given = make(folders).eval(), inputs()
    other = given["input_ids"].masked_fill(given["attention_mask"] == 0, 6)
    torch.testing.assert_close(model(**{**given, "input_ids": other}).logits, model(**given).logits)


def test_saved_and_loaded_it_is_the_same_whole_model(folders: dict[str, str], tmp_path: Path) -> None:
    model, given = make(folders, penalties={}, problem_type="single_label_classification").eval(), inputs()
    model.save_pretrained(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"config.json", "model.safetensors"}
    for loaded in (EquilibriumForClassification.from_pretrained(tmp_path), AutoModel.from_pretrained(tmp_path)):
        assert isinstance(loaded, EquilibriumForClassification)
        assert torch.equal(loaded(**given).logits, model(**given).logits)
        assert {name for name, x in loaded.named_parameters() if x.requires_grad} == {
            f"equilibrium.{name}" for name, _ in model.equilibrium.named_parameters()
        }
    config = AutoConfig.from_pretrained(tmp_path)
    assert isinstance(config, EquilibriumConfig)
    assert config.penalties == {}
    assert isinstance(config.text_config, BertConfig)
    trained = EquilibriumForClassification.from_pretrained(tmp_path, freeze_encoders=False)
    assert all(x.requires_grad for x in trained.parameters())


def test_it_is_loaded_in_bfloat16_and_answers_nearly_the_same(folders: dict[str, str], tmp_path: Path) -> None:
    model, given = make(folders).eval(), inputs()
    model.save_pretrained(tmp_path)
    small = EquilibriumForClassification.from_pretrained(tmp_path, dtype=torch.bfloat16)
    assert {x.dtype for x in small.parameters()} == {torch.bfloat16}
    logits = small(**{**given, "pixel_values": given["pixel_values"].bfloat16()}).logits
    assert logits.dtype == torch.bfloat16
    torch.testing.assert_close(logits.float(), model(**given).logits, rtol=0.1, atol=0.05)


def test_a_head_for_other_labels_is_drawn_anew_and_the_rest_is_kept(folders: dict[str, str], tmp_path: Path) -> None:
    model = make(folders)
    model.save_pretrained(tmp_path)
    other = EquilibriumForClassification.from_pretrained(tmp_path, num_labels=5, ignore_mismatched_sizes=True)
    assert other(**inputs()).logits.shape == (2, 5)
    last = other.equilibrium.head[2].weight
    assert 0 < last.std() < 1  # as nn.Linear draws it, not what lay in memory
    assert torch.equal(other.equilibrium.head[0].weight, model.equilibrium.head[0].weight)


def test_it_can_be_made_from_configs_alone_and_run_by_another_backward() -> None:
    shape = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = EquilibriumConfig(
        image_config=CLIPVisionConfig(**shape, image_size=SIDE, patch_size=16),
        text_config=BertConfig(**shape, vocab_size=20).to_dict(),
        **{**SMALL, "options": {"head_width": 8, "backward": {"name": "Implicit"}}},
    )
    model = EquilibriumForClassification(config)
    assert isinstance(model.equilibrium.backward, meq.Implicit)
    model.train()(**inputs(), labels=torch.tensor([0, 1])).loss.backward()
    assert model.image_encoder.embeddings.patch_embedding.weight.grad is None


# -- what is minimised -------------------------------------------------------------------------------------------------


def test_the_loss_in_training_has_the_penalties_and_in_evaluation_the_task_alone(folders: dict[str, str]) -> None:
    model, given, labels = make(folders), inputs(), torch.tensor([0, 2])
    out = model.eval()(**given, labels=labels)
    task = torch.nn.functional.cross_entropy(out.logits, labels)
    torch.testing.assert_close(out.loss, task)
    assert model.train()(**given, labels=labels).loss > task
    bare = make(folders, penalties={}).train()
    torch.testing.assert_close(bare(**given, labels=labels).loss, task)


@pytest.mark.parametrize(
    ("options", "labels", "shape"),
    [
        ({"num_labels": 1}, torch.tensor([0.3, -1.0]), (2, 1)),
        ({"problem_type": "multi_label_classification"}, torch.tensor([[1.0, 0, 1], [0, 0, 1]]), (2, 3)),
    ],
    ids=["a score", "several labels"],
)
def test_other_problems_have_their_own_head_and_loss(
    folders: dict[str, str], options: dict[str, Any], labels: Tensor, shape: tuple[int, int]
) -> None:
    out = make(folders, **options)(**inputs(), labels=labels)
    assert out.logits.shape == shape
    assert out.loss.isfinite()


def test_frozen_encoders_have_no_dropout_and_no_gradients_and_others_have_all(folders: dict[str, str]) -> None:
    frozen, given, labels = make(folders).train(), inputs(), torch.tensor([0, 2])
    assert not frozen.text_encoder.training
    frozen(**given, labels=labels).loss.backward()
    assert not any(x.requires_grad for x in frozen.text_encoder.parameters())
    along = make(folders, freeze_encoders=False).train()
    assert along.text_encoder.training
    along(**given, labels=labels).loss.backward()
    assert [name for name, x in along.named_parameters() if x.grad is None] == []  # distributed training needs all
    assert along.text_encoder.embeddings.word_embeddings.weight.grad.abs().sum() > 0


def test_gradient_checkpointing_gives_the_same_gradients(folders: dict[str, str]) -> None:
    given, labels = inputs(), torch.tensor([0, 2])
    gradients = []
    for checkpointed in (False, True):
        model = make(folders, freeze_encoders=False, penalties={}).train()
        if checkpointed:
            model.gradient_checkpointing_enable()
        torch.manual_seed(1)  # dropout
        model(**given, labels=labels).loss.backward()
        gradients.append({name: x.grad for name, x in model.named_parameters()})
        assert isinstance(model.equilibrium.backward, meq.Unrolled)
    torch.testing.assert_close(*gradients)


# -- missing and further modalities ------------------------------------------------------------------------------------


def test_an_absent_modality_is_the_same_by_every_way_to_say_so(folders: dict[str, str]) -> None:
    model, given = make(folders).eval(), inputs()
    left_out = model(pixel_values=given["pixel_values"]).logits
    masked = model(**{**given, "attention_mask": torch.zeros_like(given["attention_mask"])}).logits
    absent = model(**given, present=torch.tensor([[True, False], [True, True]])).logits
    torch.testing.assert_close(masked, left_out)
    torch.testing.assert_close(absent[0], left_out[0])
    torch.testing.assert_close(absent[1], model(**given).logits[1])


def test_a_sample_without_a_text_leaves_all_gradients_finite(folders: dict[str, str]) -> None:
    model, given = make(folders, freeze_encoders=False).train(), inputs()
    given["attention_mask"][0] = 0
    model(**given, labels=torch.tensor([0, 2])).loss.backward()
    assert all(x.grad.isfinite().all() for x in model.parameters())


def test_sounds_are_a_third_modality(folders: dict[str, str], tmp_path: Path) -> None:
    model = EquilibriumForClassification.from_encoders(**folders, **SMALL).eval()
    given = {**inputs(), "input_values": torch.randn(2, 400)}
    logits = model(**given, output_solution=True).logits
    assert list(model.equilibrium.widths) == ["image", "text", "audio"]
    model.save_pretrained(tmp_path)
    assert torch.equal(EquilibriumForClassification.from_pretrained(tmp_path)(**given).logits, logits)


# -- mistakes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"stepps": 3}, "no option 'stepps': did you mean 'steps'"),
        ({"options": {"dim": 3}}, "`options` has 'dim', which is a field"),
        ({"options": {"mixxer": "mlp"}}, "no option 'mixxer': did you mean 'mixer'"),
        ({"penalties": {"jacobian": {}}}, "jacobian-range"),
        ({"problem_type": "regression"}, "num_labels must be 1, not 3"),
    ],
)
def test_a_wrong_option_is_an_error_that_says_what_to_write(
    folders: dict[str, str], options: dict[str, Any], words: str
) -> None:
    with pytest.raises((TypeError, ValueError), match=words):
        make(folders, **options)


def test_a_config_answers_a_misspelt_option_and_keeps_what_transformers_keeps() -> None:
    with pytest.raises(TypeError, match="did you mean 'dropout'"):
        EquilibriumConfig(droput=0.1)
    assert EquilibriumConfig(somebody_elses=1).somebody_elses == 1


def test_one_encoder_and_an_encoder_of_something_else_are_errors_in_words(folders: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"at least two modalities, got \['image'\]"):
        EquilibriumForClassification.from_encoders(folders["image"])
    with pytest.raises(ValueError, match="it is no encoder of pictures"):
        EquilibriumForClassification.from_encoders(folders["text"], folders["text"])
    with pytest.raises(ValueError, match="there is no such folder"):
        EquilibriumForClassification.from_encoders("./nowhere", folders["text"])


def test_wrong_inputs_are_errors_in_words(folders: dict[str, str]) -> None:
    model, given = make(folders), inputs()
    with pytest.raises(ValueError, match="input_values was given, and no encoder reads it"):
        model(**given, input_values=torch.randn(2, 400))
    with pytest.raises(ValueError, match="give at least one of pixel_values, input_ids"):
        model()
    with pytest.raises(ValueError, match="a column for each of image, text"):
        model(**given, present=torch.ones(2, 3, dtype=torch.bool))


def test_without_transformers_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.delitem(sys.modules, "meq.transformers")
    with pytest.raises(ValueError, match=r"pip install 'meq\[encoders\]'"):
        importlib.import_module("meq.transformers")


# -- trained -----------------------------------------------------------------------------------------------------------


def some_rows(count: int, seed: int) -> list[dict[str, Any]]:
    """Bright or dark, in the words of one topic or of another: four classes that need both modalities."""
    draw = torch.Generator().manual_seed(seed)

    def number(low: int, high: int) -> int:
        return int(torch.randint(low, high, (), generator=draw))

    rows = []
    for _ in range(count):
        bright, word, length = number(0, 2), number(0, 2), number(3, LENGTH)
        ids = torch.randint(5, 10, (LENGTH,), generator=draw) + 5 * word
        rows.append(
            {
                "pixel_values": 0.3 * torch.randn(3, SIDE, SIDE, generator=draw) + 2 * bright - 1,
                "input_ids": ids,
                "attention_mask": (torch.arange(LENGTH) < length).long(),
                "labels": bright + 2 * word,
            }
        )
    return rows


def accuracy(answers: Any) -> dict[str, float]:
    return {"accuracy": float((answers.predictions.argmax(-1) == answers.label_ids).mean())}


def trainer(model: EquilibriumForClassification, folder: Path) -> Trainer:
    arguments = TrainingArguments(
        output_dir=str(folder),
        num_train_epochs=4,
        per_device_train_batch_size=16,
        learning_rate=5e-3,
        lr_scheduler_type="constant",
        gradient_checkpointing=True,
        save_strategy="steps",
        save_steps=20,
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
        seed=0,
    )
    train, dev = some_rows(96, seed=0), some_rows(32, seed=1)
    return Trainer(model, arguments, train_dataset=train, eval_dataset=dev, compute_metrics=accuracy)


def test_the_trainer_trains_it_evaluates_it_and_resumes_it_to_the_last_bit(
    folders: dict[str, str], tmp_path: Path
) -> None:
    model = make(folders, num_labels=4, freeze_encoders=False, dropout=0.1)
    first = trainer(model, tmp_path)
    first.train()
    assert first.evaluate()["eval_accuracy"] > 0.7  # a modality alone reaches a half
    answers = first.predict(some_rows(8, seed=2))
    assert answers.predictions.shape == (8, 4)
    (second := trainer(make(folders, num_labels=4, freeze_encoders=False, dropout=0.1), tmp_path)).train(
        resume_from_checkpoint=str(tmp_path / "checkpoint-20")
    )
    torch.testing.assert_close(second.model.state_dict(), model.state_dict(), rtol=0, atol=0)


@pytest.fixture
def accelerator() -> Iterator[Any]:
    """An Accelerator in bfloat16; what it keeps for the process is forgotten before and after."""
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(reset_partial_state=True)
    yield Accelerator(cpu=True, mixed_precision="bf16")
    AcceleratorState._reset_state(reset_partial_state=True)


def test_accelerate_prepares_and_trains_it(folders: dict[str, str], accelerator: Any) -> None:
    model = make(folders).train()
    optimizer = torch.optim.AdamW([x for x in model.parameters() if x.requires_grad], lr=1e-2)
    model, optimizer = accelerator.prepare(model, optimizer)
    given, labels, losses = inputs(), torch.tensor([0, 2]), []
    for _ in range(4):
        out = model(**given, labels=labels)
        accelerator.backward(out.loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(out.loss.item())
    assert losses[-1] < losses[0]
