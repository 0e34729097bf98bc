"""Figures that the paper publishes, to be shown beside ours. None of them was measured here.

Means over three seeds on the paper's own evaluation splits, which are not all the official ones: VQA v2 holds out one
question in ten of val2014, VCR scores its first 5,000 validation examples, and the SNLI-VE development set is smaller
than the official one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from meq.options import nearest

TITLE = "Mutual Equilibrium: Multimodal Representation Learning through Reciprocal Feedback"


@dataclass(frozen=True, kw_only=True)
class PaperFigures:
    """One row or column of a table of the paper."""

    table: str
    metric: str
    values: Mapping[str, float]
    """By arm, as fractions."""

    def applies(self, split: str, metric: str) -> bool:
        return split == "dev" and metric == self.metric

    @property
    def label(self) -> str:
        return f'paper (published): figures of "{TITLE}", {self.table}, on its own evaluation split; not measured here.'


def figures(name: str | None) -> PaperFigures | None:
    """The figures of that name; None for a study that the paper has nothing to set beside."""
    if name is None:
        return None
    if name not in PAPER:
        raise ValueError(f"the paper has no figures called {name!r}: {nearest(name, PAPER)}")
    return PAPER[name]


def _fractions(table: str, metric: str, values: Mapping[str, float]) -> PaperFigures:
    return PaperFigures(table=table, metric=metric, values=values)


def _percent(table: str, metric: str, values: Mapping[str, float]) -> PaperFigures:
    return _fractions(table, metric, {arm: round(value / 100, 4) for arm, value in values.items()})


_MAIN, _ABLATION, _MODALITY = "its main results", "its component ablation", "its single-modality controls"
_STATE, _SAFEGUARDS = "its state-design comparison", "its safeguards against the identity collapse"
_BEST = "best attention"

PAPER: Mapping[str, PaperFigures] = {
    "main/hateful-memes": _fractions(_MAIN, "auroc", {"concat": 0.6873, _BEST: 0.7251, "meq": 0.7021}),
    "main/vcr": _percent(_MAIN, "accuracy", {"concat": 56.38, _BEST: 62.09, "meq": 62.95}),
    "main/vqa-v2": _percent(_MAIN, "soft accuracy", {"concat": 48.97, _BEST: 62.39, "meq": 63.33}),
    "main/snli-ve": _percent(_MAIN, "accuracy", {"concat": 71.61, _BEST: 74.40, "meq": 75.15}),
    "main/mosei": _percent(_MAIN, "Acc-7", {"concat": 54.79, _BEST: 54.74, "meq": 54.20}),
    "main/cod10k": _fractions(
        "its COD10K results",
        "accuracy",
        {"concat": 0.7495, "cross-attention": 0.7924, "self-attention": 0.7849, "low-rank": 0.7799, "meq": 0.7960},
    ),
    "ablation/vqa-v2": _percent(
        _ABLATION,
        "soft accuracy",
        {"meq": 63.11, "no-gate": 62.57, "no-cross": 58.90, "no-self": 62.33, "one-step": 62.39},
    ),
    "mixer/snli-ve": _percent("its comparison of mixers", "accuracy", {"meq": 75.15, "meq-gmlp": 75.26}),
    "modality/snli-ve": _percent(_MODALITY, "accuracy", {"meq": 75.15, "text-only": 70.42, "image-only": 33.85}),
    "modality/hateful-memes": _fractions(
        _MODALITY, "auroc", {"meq": 0.7080, "text-only": 0.6330, "image-only": 0.6526}
    ),
    "modality/mosei": _percent(_MODALITY, "Acc-7", {"meq": 54.70, "text-only": 53.97}),
    "state/vqa-v2": _percent(_STATE, "soft accuracy", {"meq": 63.33, "single-state": 62.98, "feature-sum": 51.94}),
    "state/hateful-memes": _fractions(
        _STATE,
        "auroc",
        {"meq": 0.7094, "single-state": 0.7257, "single-state-model-matched": 0.7262, "feature-sum": 0.6905},
    ),
    "state/mosei": _percent(_STATE, "Acc-7", {"meq": 54.70, "single-state": 53.86, "feature-sum": 53.99}),
    "collapse/vqa-v2": _percent(
        _SAFEGUARDS,
        "soft accuracy",
        {"residual": 54.29, "gate-floor": 56.59, "cross-floor": 53.35, "no-residual": 63.33},
    ),
    "residual/snli-ve": _percent("its residual penalty", "accuracy", {"residual": 75.15, "no-residual": 75.06}),
    "residual/vcr": _percent("its residual penalty", "accuracy", {"residual": 62.95, "no-residual": 60.49}),
    "residual/mosei": _percent("its residual penalty", "Acc-7", {"residual": 54.20, "no-residual": 54.97}),
    "residual/hateful-memes": _percent("its residual penalty", "auroc", {"residual": 70.21, "no-residual": 70.37}),
    "residual/vqa-v2": _percent("its residual penalty", "soft accuracy", {"residual": 54.29, "no-residual": 63.33}),
}
"""By study and data set; arms are named as our studies name them."""
_ROWS = (
    *("learning rate", "epochs", "batch size", "weight decay", "lambda_j", "lambda_f", "Hutchinson probes"),
    "damping beta",
)
DATA_COUNTS: Mapping[str, tuple[str, str]] = {
    "snli-ve": ("533K / 9.6K / 9.6K", "3"),
    "hateful-memes": ("8,500 / 500 / 1,000", "2"),
    "vqa-v2": ("193K / 21K / -", "3,129"),
    "vcr": ("212K / 26K / 25K", "4"),
    "mosei": ("16K / 2K / 5K", "7"),
}
"""Train / val / test, and classes, by data set."""
TASKS: Mapping[str, str] = {
    "hateful-memes": "Binary classification",
    "vcr": "4-way multiple choice",
    "vqa-v2": "Open-ended QA",
    "snli-ve": "Visual entailment",
    "mosei": "Sentiment (7-class)",
}
_ALL = {"warmup": "5%", "steps K": "10", "tolerance": "1e-3", "width": "768", "heads": "8"}
HYPERPARAMETERS: Mapping[str, Mapping[str, str]] = {
    data: {**dict(zip(_ROWS, column, strict=True)), **_ALL}
    for data, column in {
        "snli-ve": ("1e-4", "10", "32", "0.01", "0.5", "0.3", "5", "sigma(d)"),
        "hateful-memes": ("1e-4", "10", "32", "0.01", "0.5", "0.3", "1", "0.5"),
        "vcr": ("1e-4", "15", "8", "0.01", "0.5", "0.3", "1", "0.5"),
        "mosei": ("2e-5", "8", "32", "1e-4", "0.5", "0.3", "5", "sigma(d)"),
        "vqa-v2": ("1e-4", "10", "32", "0.01", "0.5", "0", "1", "0.5"),
    }.items()
}
"""By data set and row, as printed; of all of them, as its text says."""
ENCODERS: Mapping[str, str] = {
    "snli-ve": "CLIP image; BERT-base",
    "hateful-memes": "CLIP image; BERT-base",
    "vqa-v2": "CLIP image; BERT-base",
    "vcr": "CLIP image + RoI features; BERT-base",
    "mosei": "COVAREP (audio), FACET (visual); BERT-base",
}
MAIN_DIFFERENCES: Mapping[str, tuple[str, str]] = {
    "hateful-memes": ("+1.48", "-2.31"),
    "vcr": ("+6.57", "+0.85"),
    "vqa-v2": ("+14.36", "+0.94"),
    "snli-ve": ("+3.53", "+0.74"),
    "mosei": ("-0.59", "-0.54"),
}
"""The equilibrium less concatenation, and less the better attention arm, as printed: of means that were not rounded."""
MAIN_CALLED: Mapping[str, tuple[str, str]] = {"mosei": ("no", "no")}
"""Which of these the paper judges, in its text."""
DIFFERENCES: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "ablation/vqa-v2": {
        "no-gate": ("-0.54", "no"),
        "no-cross": ("-4.20", "yes"),
        "no-self": ("-0.78", ""),
        "one-step": ("-0.71", "yes"),
    },
    "ablation/mosei": {"no-cross": ("-0.13", "no")},
    "mixer/snli-ve": {"meq-gmlp": ("+0.11", "no")},
    "readout/snli-ve": {"merge": ("+0.01", "")},
    "state/vqa-v2": {"single-state": ("-0.35", "yes"), "feature-sum": ("-11.39", "yes")},
    "state/hateful-memes": {
        "single-state": ("+1.63", "no"),
        "single-state-model-matched": ("+1.68", "no"),
        "feature-sum": ("-1.89", "no"),
    },
    "state/mosei": {"single-state": ("-0.84", "yes"), "feature-sum": ("-0.72", "no")},
    "collapse/vqa-v2": {
        "gate-floor": ("+2.30", "yes"),
        "cross-floor": ("-0.94", "no"),
        "no-residual": ("+9.04", "yes"),
    },
    "cod10k/cod10k": {
        "concat": ("-4.65", ""),
        "cross-attention": ("-0.35", ""),
        "self-attention": ("-1.11", ""),
        "low-rank": ("-1.61", ""),
    },
}
"""By table and data set, then by arm: the difference to the table's reference in points as printed, and whether it is
called, where the paper says so."""
OVER_K: Mapping[str, tuple[float, float]] = {"snli-ve": (0.800, 0.772)}
"""Accuracy on COD10K of the equilibrium that was trained on this set, at K = 10 and at k = 300."""
RESIDUALS: Mapping[str, tuple[float, float]] = {
    "snli-ve": (1.0e-2, 1.0e-1),
    "hateful-memes": (4.2e-2, 7.4e-2),
    "mosei": (2.3e-2, 4.4e-2),
    "vcr": (1.1e-2, 6.7e-2),
    "vqa-v2": (9.7e-4, 9.4e-2),
}
"""With the residual penalty and without it, by data set."""
SAFEGUARDS: Mapping[str, tuple[float, float]] = {
    "gate-floor": (0.1010, 0.0027),
    "cross-floor": (0.0894, 0.0323),
    "no-residual": (0.2339, 0.0532),
}
"""Gate and cross/self of the image path on VQA v2, by arm."""
FIXED_POINT: Mapping[str, tuple[str, float, float, str, str, str, str, int]] = {
    "mosei": ("42", 0.965, 0.38, "3.2e-2", "8.0e-6", "53.9", "51.8", 1861),
    "vcr": ("42", 1.011, 0.60, "1.6e-2", "1.0e-3", "62.8", "55.5", 5000),
    "hateful-memes": ("43", 1.083, 1.05, "3.3e-2", "1.5e-3", "70.7", "56.6", 500),
    "vqa-v2": ("42", 1.340, 1.42, "7.4e-2", "1.5e-3", "62.8", "27.4", 21_029),
    "snli-ve": ("43", 1.689, 4.51, "1.1e-2", "4.4e-3", "75.0", "53.2", 9602),
}
"""Seed, radius, drift, residual at K and at 300, metric at K and at 300, samples."""
ROBUSTNESS: Mapping[str, tuple[float, float]] = {
    "noise 0.1": (0.6900, 0.7017),
    "noise 0.3": (0.6603, 0.6791),
    "blur 2": (0.6850, 0.6923),
    "blur 8": (0.6582, 0.6564),
    "typos 0.05": (0.6621, 0.6791),
    "typos 0.1": (0.6508, 0.6623),
}
"""AUROC of concatenation and of the equilibrium on Hateful Memes, by corruption."""
ROBUSTNESS_CALLED = {"noise 0.3": ("+1.88", "yes")}
"""The one difference of these, in points, that the paper judges."""
COSTS: Mapping[str, tuple[float, float, int]] = {
    "concat": (1.465, 19.27, 1015),
    "low-rank": (1.483, 19.27, 1003),
    "cross-attention": (1.621, 21.20, 1004),
    "self-attention": (1.745, 21.96, 1006),
    "meq K=1": (1.627, 20.89, 1003),
    "meq K=5": (2.304, 27.64, 1003),
    "meq K=10": (3.127, 36.08, 1003),
    "meq K=20": (4.778, 52.95, 1003),
}
"""ms, GFLOPs and MB of a forward pass: batch 32 on one RTX 3090. By arm of the study `cost`."""
COST_STEP, COST_BASE = 1.687, 19.204
"""The paper's GFLOPs per step, and its base extrapolated to K = 0."""
COST_BASIS = (
    f"The paper states {COST_STEP} GFLOPs per step on a base of {COST_BASE}. FLOPs here are two per multiply-add "
    "throughout, and the encoders alone agree with its base. Of our block a step is twice the paper's figure, which is "
    "what its linear layers come to in multiply-adds: the paper either counts the block by them, or has a block that "
    "computes half as much with as many parameters."
)
SAID: Mapping[str, tuple[str, ...]] = {
    "main/mosei": ("the difference to concatenation is -0.59 against twice the spread of 1.10.",),
    "ablation/vqa-v2": (
        "the difference without cross-attention is ten times its spread, that without the gate is within it.",
        "under the residual penalty the gate closed to about 1e-7.",
    ),
    "ablation/mosei": ("without the cross-modal path 0.13 points are lost, against twice the spread of 0.97.",),
    "mixer/snli-ve": (
        "34.14M parameters with gMLP, 33.47M with attention; +0.11 points against twice the spread of 0.25.",
    ),
    "readout/snli-ve": ("38.196M parameters, and 38.195M of the control.",),
    "modality/snli-ve": ("the image is worth 4.73 points to MEQ and 1.19 to concatenation.",),
    "robustness/hateful-memes": ("+1.88 points at noise 0.3, against twice the spread of 1.51.",),
    "over-k/snli-ve": ("k = 1 to 20 is drawn; accuracy peaks near K.",),
    "steps/snli-ve": (
        "a curve without numbers: accuracy rises steeply over the first three steps, and is flat from k = 5 on.",
    ),
    "residual-penalty/vqa-v2": ("with the penalty, seed 42 ends at a residual of 7.62e-8 and |J| = 1.000.",),
    "safeguards/vqa-v2": (
        "the cross floor leaves cross-modal sensitivity at 1.9 to 15 times the floor; -0.94 points against twice the "
        "spread of 1.52.",
    ),
    "state-design/vqa-v2": (
        "twice the spread is 0.17 for the single state and 1.34 for the feature sum; matched in its block, the model "
        "of the single state is 18.9% larger.",
    ),
    "state-design/hateful-memes": ("matched in its block, the model of the single state is 12.7% larger.",),
    "state-design/mosei": (
        "twice the spread is 0.22 for the single state, whose residual is 25 times smaller; blocks are within 0.14%.",
    ),
    "fixed-point/snli-ve": (
        "the residual falls from 0.81 to 1.1e-2 on the way to K, not monotonously before k = 5; on the other sets "
        "it falls at every step.",
    ),
    "fixed-point/hateful-memes": ("the residual falls from 0.84 to 3.3e-2 on the way to K.",),
    "datasets/vqa-v2": ("5.29 questions per picture; 99.7% of the held-out questions have one that training saw.",),
}
"""By assembled table and data set: figures that the paper has in its text, in our words."""
COST_SAID = (
    "At K = 10 the paper has 2.13 times the wall clock of the fastest single-pass arm and 1.87 times its FLOPs, a step "
    "constant to within 0.0003 GFLOPs, 19.266 GFLOPs for concatenation; left to run to the tolerance, its iteration "
    "reaches the cap of 100 steps."
)
