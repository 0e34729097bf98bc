"""Cheap baselines: as good as scikit-learn's, blind to dev where they are fitted, clear where they cannot be."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression, Ridge
from torch import Tensor

from meq.data.contract import DataSet, Example, features
from meq.data.metrics import ACCURACY, MICRO_F1, R2
from meq.runs import pooled as baselines
from meq.runs.pooled import PooledError, boosting, cheap_baselines, constant, linear, pool
from meq.training.predictions import scores

SIZES = {"train": 120, "dev": 60, "test": 60}


def made(head: str = "classes", *, gaps: bool = False, classes: int = 3) -> DataSet:
    """Numbers and tokens; the answer is in the numbers alone, or, with gaps, in whether they are there."""
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(4, classes, generator=generator)

    def example(split: str, place: int) -> Example:
        x, tokens = torch.randn(4, generator=generator), torch.randn(1 + place % 3, 3, generator=generator)
        content: dict[str, Tensor] = {"text": tokens, "numbers": 3 * x + 7}
        noise = 0.3 * torch.randn(classes, generator=generator)
        target = {
            "classes": (x @ weights + noise).argmax(),
            "labels": (x @ weights + noise > 0).float(),
            "score": x @ weights[:, 0] + noise[0],
        }[head]
        if gaps and place % 2:
            del content["numbers"]
        return Example(id=f"{split}-{place}", content=content, target=torch.tensor(place % 2) if gaps else target)

    return DataSet(
        name="made",
        splits={split: [example(split, k) for k in range(size)] for split, size in SIZES.items()},
        modalities={"text": features(3), "numbers": features(4)},
        labels=["score"] if head == "score" else [str(k) for k in range(2 if gaps else classes)],
        head=head,
        metric={"classes": ACCURACY, "labels": MICRO_F1, "score": R2}[head],
    )


def columns(data: DataSet, split: str) -> np.ndarray:
    """What a practitioner would write: means of tokens beside numbers, standardised by train."""
    raw = {
        name: np.stack([np.r_[e.content["text"].mean(0).numpy(), e.content["numbers"].numpy()] for e in part])  # type: ignore[union-attr]
        for name, part in data.splits.items()
    }
    raw = {name: x.astype(np.float64) for name, x in raw.items()}
    return (raw[split] - raw["train"].mean(0)) / raw["train"].std(0)


def test_the_constant_answer_is_the_most_frequent_class_of_train() -> None:
    data = made()
    targets = torch.stack([example.target for example in data.splits["train"]])  # type: ignore[misc]
    found = constant(pool(data)).predict("test")
    assert (found.logits.argmax(1) == targets.bincount().argmax()).all()
    assert found.ids == [example.id for example in data.splits["test"]]


def test_the_constant_score_is_the_mean_of_train() -> None:
    data = made("score")
    targets = torch.stack([example.target for example in data.splits["train"]])  # type: ignore[misc]
    assert constant(pool(data)).predict("dev").logits == pytest.approx(float(targets.mean()), abs=1e-6)


def test_logistic_regression_answers_as_that_of_scikit_learn() -> None:
    data = made()
    found = linear(pool(data))
    targets = np.array([int(example.target) for example in data.splits["train"]])  # type: ignore[arg-type]
    theirs = LogisticRegression(C=1 / (found.chosen["penalty"] * SIZES["train"]), tol=1e-10, max_iter=10_000)
    theirs.fit(columns(data, "train"), targets)
    expected = theirs.predict_log_proba(columns(data, "test"))
    np.testing.assert_allclose(found.predict("test").logits.numpy(), expected, atol=2e-4)


def test_ridge_regression_answers_as_that_of_scikit_learn() -> None:
    data = made("score")
    found = linear(pool(data))
    targets = np.array([float(example.target) for example in data.splits["train"]])  # type: ignore[arg-type]
    theirs = Ridge(alpha=found.chosen["penalty"] * SIZES["train"]).fit(columns(data, "train"), targets)
    np.testing.assert_allclose(
        found.predict("test").logits[:, 0].numpy(), theirs.predict(columns(data, "test")), atol=1e-5
    )


def test_the_penalty_is_the_one_with_the_best_score_on_dev(monkeypatch: pytest.MonkeyPatch) -> None:
    pooled = pool(made())
    by_penalty = {}
    for penalty in baselines.PENALTIES:
        monkeypatch.setattr(baselines, "PENALTIES", (penalty,))
        by_penalty[penalty] = linear(pooled).scores("dev")
    monkeypatch.undo()
    chosen = linear(pooled).chosen["penalty"]
    best = max(by_penalty.values(), key=lambda found: (found["accuracy"], -found["loss"]))
    assert by_penalty[chosen]["accuracy"] == best["accuracy"]
    assert by_penalty[chosen]["loss"] == pytest.approx(best["loss"], abs=1e-5)


def test_a_linear_baseline_on_one_modality_reads_no_other() -> None:
    pooled = pool(made())
    blind, seeing = linear(pooled, ["text"]), linear(pooled, ["numbers"])
    assert (blind.name, seeing.name) == ("logistic regression on text", "logistic regression on numbers")
    assert seeing.scores("test")["accuracy"] > 0.8 > 0.6 > blind.scores("test")["accuracy"]


def test_a_missing_modality_is_something_that_the_answer_can_depend_on() -> None:
    found = linear(pool(made(gaps=True)), ["numbers"])
    assert found.scores("test")["accuracy"] == 1.0
    assert found.parameters == (4 + 1 + 1) * 2  # columns, the one that says it is missing, the bias


def test_several_labels_are_answered_each_by_itself() -> None:
    data = made("labels")
    found = linear(pool(data)).predict("test")
    assert found.logits.shape == (SIZES["test"], 3)
    score = scores([MICRO_F1], "labels", found)["micro f1"]
    assert score > scores([MICRO_F1], "labels", constant(pool(data)).predict("test"))["micro f1"]


@pytest.mark.parametrize("head", ["classes", "score"])
def test_boosting_learns_from_numbers(head: str) -> None:
    data = made(head)
    pooled = pool(data)
    found, plain = boosting(pooled, ["numbers"]), constant(pooled)
    assert found.scores("test")[data.metric.name] > plain.scores("test")[data.metric.name] + 0.2
    assert 1 <= found.chosen["trees"] <= baselines.STAGES


def test_boosting_gives_a_class_that_train_does_not_have_next_to_nothing() -> None:
    data = made()
    pooled = pool(data)
    train = pooled.split("train")
    train.target[train.target == 1] = 0
    found = boosting(pooled, ["numbers"]).predict("test").logits
    assert (found[:, 1].exp() < 1e-5).all()
    assert torch.allclose(found.exp().sum(1), torch.ones(len(found)))


def test_without_scikit_learn_boosting_is_left_out_with_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meq.errors.find_spec", lambda name: None)
    found, said = cheap_baselines(made(), numbers=["numbers"])
    assert [each.name for each in found] == [
        "majority",
        *(f"logistic regression{on}" for on in (" on text", " on numbers", "")),
    ]
    assert said == ["A baseline (trees) is left out: gradient boosting needs sklearn: pip install 'meq[sklearn]'."]


def test_fitting_reads_no_split_but_train_and_dev() -> None:
    pooled = pool(made())
    linear(pooled), boosting(pooled, ["numbers"]), constant(pooled)
    assert set(pooled.read) == {"train", "dev"}


def test_mistakes_name_what_was_meant() -> None:
    data = made()
    with pytest.raises(PooledError, match="no modality 'txt': did you mean 'text'"):
        linear(pool(data), ["txt"])
    with pytest.raises(PooledError, match="no split 'tset': did you mean 'test'"):
        constant(pool(data)).predict("tset")
    tokens = DataSet(**{**vars(data), "head": "tokens"})
    with pytest.raises(PooledError, match="asks for 'tokens', which one vector per example cannot answer"):
        pool(tokens)
