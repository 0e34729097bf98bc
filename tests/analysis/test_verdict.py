"""The verdict is healthy only for what settles, has learned, uses every modality for its answers, and is coupled."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import meq
from meq.analysis import Verdict
from meq.analysis.answers import FEWEST, measure_answers
from meq.analysis.diagnosis import Diagnosis
from meq.analysis.verdict import identity_in_words, settling_in_words
from meq.data import collate
from meq.data.contract import Example
from meq.models.equilibrium import Coupling
from meq.training.alarms import raised, take_vitals

WIDTHS = {"image": 4, "text": 4}


def labelled(count: int, *, seed: int = 0, by: str = "both", masked: bool = False) -> SimpleNamespace:
    """A picture and a text that are each one of two kinds; the label says whether they agree, or which the text is."""
    generator = torch.Generator().manual_seed(seed)
    kinds = torch.randint(0, 2, (2, count), generator=generator)
    made = {}
    for name, kind in zip(WIDTHS, kinds, strict=True):
        noise = 0.1 * torch.randn(count, 3, 4, generator=generator)
        made[name] = noise + (2.0 * kind - 1)[:, None, None] * torch.tensor([1.0, -1.0, 0.5, 0.0])
    target = (kinds[0] == kinds[1]).long() if by == "both" else kinds[1]
    masks = {}
    if masked:
        lengths = torch.randint(1, 4, (count,), generator=generator)
        masks = {"text": torch.arange(3).expand(count, 3) < lengths[:, None]}
    return SimpleNamespace(features=made, masks=masks, target=target)


def fresh(**options: Any) -> meq.MutualEquilibrium:
    torch.manual_seed(0)
    return meq.MutualEquilibrium(WIDTHS, 2, 16, **{"heads": 2, "steps": 6, "hidden": 32, "head_width": 32, **options})


def trained(data: SimpleNamespace, *, updates: int = 120) -> meq.MutualEquilibrium:
    model = fresh()
    optimiser = torch.optim.AdamW(model.parameters(), lr=5e-3)
    objective = meq.Objective(penalties=(meq.JacobianRange(weight=0.1), meq.ResidualCorrection(weight=0.1)))
    for _ in range(updates):
        optimiser.zero_grad()
        objective(model, model(data.features, data.masks), data.target).total.backward()
        optimiser.step()
    return model.eval()


def judged(model: Any, data: SimpleNamespace | None, **options: Any) -> Diagnosis:
    some = labelled(4, seed=9)
    with torch.no_grad():
        return meq.diagnose(model, model(some.features), data=data, **{"samples": 2, **options})


@pytest.fixture(scope="module")
def good() -> meq.MutualEquilibrium:
    return trained(labelled(128))


def test_a_model_that_settles_has_learned_and_uses_both_inputs_is_healthy(good: meq.MutualEquilibrium) -> None:
    found = judged(good, labelled(100, seed=1))
    assert found.verdict is Verdict.HEALTHY, str(found)
    assert [finding.answer for finding in found.findings.values()] == ["yes"] * 4
    assert found.answers is not None
    assert found.answers.score > 0.95
    assert "within" in found.findings["settles"].words
    assert "verdict: healthy" in str(found)


def test_without_labels_the_same_model_is_never_called_healthy(good: meq.MutualEquilibrium) -> None:
    found = judged(good, None)
    assert found.verdict is Verdict.UNMEASURED
    assert "has it learned anything, does each modality count" in found.evidence


def test_a_model_at_chance_that_always_says_yes_has_learned_nothing(good: meq.MutualEquilibrium) -> None:
    model = fresh().eval()
    model.load_state_dict(good.state_dict())
    with torch.no_grad():
        model.head[-1].bias += torch.tensor([-50.0, 50.0])
    found = judged(model, labelled(200, seed=2))
    assert found.verdict is Verdict.UNLEARNED, str(found)
    assert "always the same answer" in found.evidence
    assert found.findings["counts"].holds is False  # nor does a shuffled picture change any answer
    assert found.answers is not None
    assert found.answers.gain.low <= 0
    assert set(found.answers.changed.values()) == {0.0}


def test_an_untrained_model_has_learned_nothing() -> None:
    found = judged(fresh().eval(), labelled(200, seed=3))
    assert found.verdict is Verdict.UNLEARNED, str(found)


def test_a_model_that_needs_thousands_of_steps_does_not_settle(good: meq.MutualEquilibrium) -> None:
    slow = fresh(damping=0.005, steps=600).eval()  # a hundred times slower, and read as far along
    slow.load_state_dict(good.state_dict())
    found = judged(slow, None)
    assert found.findings["settles"].holds is False
    assert found.verdict is Verdict.UNSETTLED, str(found)
    assert "not at rest (to 0.001) within 1,000 steps" in found.evidence


def test_the_words_say_within_how_many_steps_or_about_how_many_it_would_take() -> None:
    none, far = torch.tensor([0.0, 0.0]), torch.tensor([0.0, 1979.0])
    assert settling_in_words(torch.tensor([12.0, 34.0]), none, tol=1e-3, bound=1000) == "to 0.001 within 34 steps"
    words = settling_in_words(torch.tensor([12.0, torch.inf]), far, tol=1e-3, bound=1000)
    assert words.startswith("1 of 2 samples are not at rest (to 0.001) within 1,000 steps")
    assert words.endswith("about 1,979 further steps")


def test_a_model_that_answers_by_the_text_alone_ignores_the_picture() -> None:
    model = trained(labelled(128, by="text"))
    found = judged(model, labelled(200, seed=4, by="text"))
    assert found.findings["learned"].holds
    assert found.verdict is Verdict.IGNORED, str(found)
    assert found.evidence.startswith("image does not count")
    assert found.answers is not None
    assert found.answers.changed["image"] < 0.1
    assert found.answers.counts("text")


def test_too_few_labels_are_not_judged(good: meq.MutualEquilibrium) -> None:
    found = judged(good, labelled(FEWEST - 1, seed=1))
    assert found.verdict is Verdict.UNMEASURED
    assert "the fewest that can tell" in found.findings["learned"].words


def test_samples_are_shuffled_across_batches_of_other_lengths_and_masks(good: meq.MutualEquilibrium) -> None:
    whole = labelled(90, seed=5, masked=True)
    longer = torch.nn.functional.pad(whole.features["text"][40:], (0, 0, 0, 2), value=7.0)
    mask = torch.nn.functional.pad(whole.masks["text"], (0, 2))
    parts = [
        SimpleNamespace(
            features={name: x[:40] for name, x in whole.features.items()},
            masks={"text": whole.masks["text"][:40]},
            target=whole.target[:40],
        ),
        SimpleNamespace(
            features={"image": whole.features["image"][40:], "text": longer},
            masks={"text": mask[40:]},
            target=whole.target[40:],
        ),
    ]
    together, apart = measure_answers(good, whole), measure_answers(good, iter(parts))
    assert apart.score == together.score
    assert apart.losses == together.losses
    assert apart.samples == 90


def test_a_sample_without_the_modality_keeps_its_lack_and_gives_nothing(good: meq.MutualEquilibrium) -> None:
    data = labelled(60, seed=6)
    lacking = SimpleNamespace(features={"image": data.features["image"][:20]}, masks={}, target=data.target[:20])
    rest = SimpleNamespace(
        features={name: x[20:] for name, x in data.features.items()}, masks=None, target=data.target[20:]
    )
    found = measure_answers(good, [lacking, rest])
    assert found.samples == 60
    assert found.changed["text"] <= 40 / 60


class _Constant(torch.nn.Module):
    """Gives the logits it was told, in order; `head_kind` says what they mean."""

    def __init__(self, head: str, read: Any) -> None:
        super().__init__()
        self.head_kind, self.read_off = head, read

    def forward(self, features: dict[str, Tensor], masks: Any = None) -> SimpleNamespace:
        return SimpleNamespace(logits=self.read_off(features))


def test_every_kind_of_head_is_scored_against_its_constant_answer() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(200, 3, generator=generator)
    cases = {
        "classes": (lambda f: f["a"], x.argmax(1)),
        "ordinal": (lambda f: f["a"], x.argmax(1)),
        "choices": (lambda f: f["a"], x.argmax(1)),
        "labels": (lambda f: f["a"], torch.nn.functional.one_hot(x.argmax(1), 3).float()),
        "score": (lambda f: f["a"][:, :1], x[:, 0]),
    }
    for head, (read, target) in cases.items():
        batch = SimpleNamespace(features={"a": x, "b": x.flip(0)}, masks={}, target=target)
        found = measure_answers(_Constant(head, read), batch)
        assert found.learned, head
        assert found.counts("a"), head
        assert not found.counts("b"), head
        assert found.losses["b"].value == 0
        wrong = SimpleNamespace(features={"a": x.flip(0), "b": x}, masks={}, target=target)
        assert not measure_answers(_Constant(head, read), wrong).learned, head


def test_answers_that_are_not_finite_are_wrong_and_counted() -> None:
    x = torch.eye(2).repeat(30, 1)
    x[:30] = torch.nan
    batch = SimpleNamespace(features={"a": torch.eye(2).repeat(30, 1)}, masks={}, target=torch.tensor([0, 1] * 30))
    found = measure_answers(_Constant("classes", lambda f: x), batch)
    assert found.lost == 30
    assert found.score == 0.5


def test_labels_that_are_missing_are_an_error() -> None:
    batch = SimpleNamespace(features={"a": torch.zeros(3, 2)}, masks={}, target=None)
    with pytest.raises(TypeError, match="batch 0 of the data must be an object with `features`"):
        measure_answers(_Constant("classes", lambda f: f["a"]), batch)
    with pytest.raises(ValueError, match="no labelled batches"):
        measure_answers(_Constant("classes", lambda f: f["a"]), [])


class _Identity(Coupling):
    """T(z) = z, without a gate that could be closed."""

    def forward(self, state: meq.State, inputs: Any) -> meq.State:
        return {name: 1 * z for name, z in state.items()}


def test_alarms_and_diagnosis_agree_on_a_gateless_identity() -> None:
    model = fresh(gate=False).eval()
    model.coupling.__class__ = _Identity
    data = labelled(6)
    examples = [
        Example(id=str(row), content={name: x[row] for name, x in data.features.items()}, target=data.target[row])
        for row in range(6)
    ]
    vitals = take_vitals(model, collate(examples, WIDTHS), 0, radius_samples=1)
    assert vitals is not None
    assert vitals.gate == {}
    assert [alarm.kind for alarm in raised([vitals])] == ["identity collapse"]
    assert "floor" not in raised([vitals])[0].message, "there is no gate to give one to"
    assert judged(model, None).verdict is Verdict.IDENTITY


def test_the_one_judgement_of_an_identity_is_not_fooled_by_what_is_missing() -> None:
    closed, open_ = {"image": 1e-7, "text": 1e-7}.values(), {"image": 1e-7, "text": 0.5}.values()
    nan = float("nan")
    assert identity_in_words(gates=closed, cross_self=[1e-9], statistic=1.0) is not None
    assert identity_in_words(gates=open_, cross_self=[1e-9], statistic=1.0) is None
    assert identity_in_words(gates=[nan, 0.5], cross_self=[1e-9], statistic=1.0) is None
    assert identity_in_words(gates=[], cross_self=[1e-9, 0.2], statistic=1.0) is None
    assert identity_in_words(gates=[], cross_self=[], statistic=1.0) is None  # nothing is known of it
    assert identity_in_words(gates=closed, cross_self=[], statistic=1.0) is not None  # one joint state
    assert identity_in_words(gates=closed, cross_self=[nan], statistic=nan) is None


def test_a_modality_that_no_labelled_sample_has_is_not_measured_and_never_healthy() -> None:
    model = trained(labelled(128, by="text"))
    data = labelled(100, seed=4, by="text")
    alone = SimpleNamespace(features={"text": data.features["text"]}, masks=None, target=data.target)
    found = judged(model, alone)
    assert found.verdict is not Verdict.HEALTHY, str(found)
    assert found.findings["counts"].holds is not True
    assert "no labelled sample has image" in found.findings["counts"].words or "image" in found.evidence


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("data", "said"),
    [
        ((1, 2), "batch 0 of the data must be an object with `features`"),
        ([{"features": {}}], "batch 0 of the data must be an object with `features`"),
        (SimpleNamespace(features={"image": torch.zeros(6, 3, 4)}, masks=None, target=[0, 1]), "whose target is list"),
        (SimpleNamespace(features={"image": torch.zeros(6, 3, 4)}, masks=None, target=torch.zeros(5)), "5 targets for"),
    ],
)
def test_data_of_another_form_is_a_sentence(good: meq.MutualEquilibrium, data: Any, said: str) -> None:
    with pytest.raises((TypeError, ValueError), match=said):
        judged(good, data)
    with pytest.raises(TypeError, match="needs what the model returned"):
        meq.diagnose(good, labelled(4).features)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="samples must be a whole number of at least 1"):
        judged(good, None, samples=0)
