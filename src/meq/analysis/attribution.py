"""What each iteration looks at: Grad-CAM, gradients and attention rollout, per step and per modality."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from meq.analysis.rollout import roll_out
from meq.analysis.tables import middle, number, text_table
from meq.analysis.walk import Case, Subject, open_case, stopped_at
from meq.core.backward import Checkpointed, Unrolled
from meq.core.operator import held_still
from meq.core.state import State, detach, token_mask
from meq.options import checked_options, nearest

METHODS = {
    "grad-cam": "ReLU(sum_d w_d z(k)_d) per token of a state, w the mean of d score / d z(k) over its real tokens",
    "gradient": "|d score / d x| per token of the features, through the k steps",
    "gradient-x-input": "|<d score / d x, x>| per token of the features, through the k steps",
    "rollout": "the token's share in what attention has gathered in k steps; see meq.analysis.rollout",
}
"""The score is one class's logit, read at z(k)."""
OLD_METHODS = {
    "state-gradient": "|d score / d z(k)| per token, which a mean over tokens makes the same for all: no longer offered"
}
"""What stored explanations may name."""
KEPT_ENTRIES = 2**20
"""Entries of states, over all steps, up to which the insides of the steps are kept for the gradient."""
DEFAULT_METHOD, WITHOUT_STATES = "grad-cam", "gradient"
"""Chosen by the deletion and insertion test on photographs and captions: of all methods the one that is ahead of random
maps for both, see docs/log.md. The other one serves models whose states have no place per token."""

TARGETS = {"answer": "the model's own answer, the same at every k", "step": "what is predicted at each k"}


@dataclass(frozen=True, eq=False)
class Attribution:
    """One map per modality, step and sample. S steps, B samples, N tokens; a vector is one token."""

    method: str
    steps: tuple[int, ...]
    maps: dict[str, Float[Tensor, "S B N"]]
    """Never negative, zero on padding and where `lost`. By state for what is measured at states (which in a tree are
    those of the root), by modality of the features for what is measured at features."""
    classes: Int[Tensor, "S B"]
    """The class whose score was explained; for multiple choice the choice, and the map is that choice's own."""
    scores: Float[Tensor, "S B"]
    """Its logit at z(k)."""
    lost: Bool[Tensor, "S B"]
    """The sample had diverged by step k, or its map is not finite."""
    token: Int[Tensor, " B"] | None = None
    """With head="tokens": the token of each sample whose answer is explained, counted as in the logits."""

    def __str__(self) -> str:
        lost = int(self.lost.any(0).sum())
        columns = [title for name in self.maps for title in (f"{name} share", "peak")]
        return "\n".join(
            [
                f"{self.method}, {self.classes.shape[1]} samples, {lost or 'none'} lost",
                text_table(["k", "score", *columns], [self._row(row) for row in range(len(self.steps))]),
                f"{self.method}: {METHODS[self.method]}.",
                "Medians. share: of the sample's whole map. peak: of the modality's map, in its largest token.",
            ]
        )

    def _row(self, row: int) -> list[str]:
        kept = ~self.lost[row]
        maps = {name: each[row, kept] for name, each in self.maps.items()}
        whole = torch.stack([each.sum(-1) for each in maps.values()]).sum(0)
        cells = [middle(self.scores[row, kept])]
        for each in maps.values():
            cells += [middle(each.sum(-1) / whole), middle(each.amax(-1) / each.sum(-1))]
        return [str(self.steps[row]), *map(number, cells)]


def default_method(model: Subject, features: Mapping[str, Tensor], masks: Mapping[str, Tensor] | None = None) -> str:
    """The method that is shown unless another is asked for."""
    with held_still(model), torch.no_grad():
        state = open_case(model, features, masks).solution.state
    tokens = {name: 1 if x.ndim == 2 else x.shape[-2] for name, x in features.items()}
    places = {name: 1 if z.ndim == 2 else z.shape[-2] for name, z in state.items()}
    fitting = all(places.get(name) == count for name, count in tokens.items())
    return DEFAULT_METHOD if fitting else WITHOUT_STATES


@checked_options
def attribute(
    model: Subject,
    features: Mapping[str, Tensor],
    masks: Mapping[str, Tensor] | None = None,
    *,
    method: str = "grad-cam",
    steps: Sequence[int] | None = None,
    target: Int[Tensor, " B"] | str = "answer",
    token: int | Int[Tensor, " B"] | None = None,
) -> Attribution:
    """What a class's score depends on at each of `steps` (0 .. K unless given), by one of METHODS.

    The state z(k) is that of exactly k steps, whatever the model's tolerance, with dropout off. `target` says which
    class: "answer" (the model's own, so that the maps of all steps are of the same score), "step" (what is predicted at
    each k), or a class per sample. With head="tokens" one token's answer is explained: `token`, the same for all or one
    per sample, counted as in the logits; unless given, the one that is least sure of its answer.

    The model is left as it was, and no gradient is left on anything. Methods through
    the steps keep one state per step and compute the insides of every step again for each k; into a tree's branches
    they go by the model's own `backward`.
    """
    if method not in METHODS:
        raise ValueError(f"there is no method {method!r}: {nearest(method, METHODS)}")
    through = method.startswith("gradient")
    leaves = {name: x.detach().requires_grad_(through) for name, x in features.items()}
    with held_still(model), torch.set_grad_enabled(through):
        case = open_case(model, leaves, masks).of_token(token)
        chosen = tuple(range(model.steps + 1)) if steps is None else tuple(steps)
        if not chosen or any(k < 0 for k in chosen):
            raise ValueError(f"steps must name at least one state, counted from 0, the start; got {list(chosen)}")
        scored = _score(case, chosen, target)
        if through:
            maps = _input_maps(case, scored, leaves, masks or {}, times_input=method == "gradient-x-input")
        elif method == "rollout":
            maps = roll_out(case, chosen)
        else:
            maps = _state_maps(case, scored)
    maps, scores = _of_choice(maps, scored, case.choices), torch.stack(scored.scores).detach()
    finite = torch.stack([torch.isfinite(each).all(-1) for each in maps.values()]).all(0)
    lost = scored.lost | ~finite | ~torch.isfinite(scores)
    maps = {name: each.masked_fill(lost[..., None], 0).detach() for name, each in maps.items()}
    return Attribution(method, chosen, maps, scored.classes, scores, lost, case.token)


@dataclass(frozen=True, eq=False)
class _StepScores:
    """States along the walk, the classes asked about, and their scores."""

    states: list[State]
    classes: Int[Tensor, "S B"]
    scores: list[Float[Tensor, " B"]]
    lost: Bool[Tensor, "S B"]


def _score(case: Case, steps: tuple[int, ...], target: Tensor | str) -> _StepScores:
    last = max(*steps, 1)
    entries = sum(x.numel() for x in case.solution.state.values())
    # both give the same bits; recomputing is for large ones, and takes a second to import what torch needs for it
    backward = Unrolled() if last * entries <= KEPT_ENTRIES else Checkpointed()
    walked = case.walk(last, trajectory=steps, backward=backward)
    assert walked.trajectory is not None
    states = [walked.trajectory[k] for k in steps]
    logits = [case.read(state) for state in states]
    classes = torch.stack([_classes(case, row, target) for row in logits])
    scores = [row.gather(1, which[:, None])[:, 0] for row, which in zip(logits, classes, strict=True)]
    stopped = stopped_at(walked)
    lost = torch.stack([(stopped >= 0) & (stopped < k) for k in steps])
    if case.choices is not None:
        lost = lost.unflatten(1, (-1, case.choices)).any(2)
    return _StepScores(states, classes, scores, lost)


def _classes(case: Case, logits: Float[Tensor, "B C"], target: Tensor | str) -> Int[Tensor, " B"]:
    if isinstance(target, str):
        if target not in TARGETS:
            raise ValueError(f"there is no target {target!r}: {nearest(target, TARGETS)} Or give a class per sample.")
        return (case.answer if target == "answer" else logits).detach().argmax(1)
    target = target.to(logits.device)
    if target.shape != logits.shape[:1] or bool(((target < 0) | (target >= logits.shape[1])).any()):
        raise ValueError(
            f"target must give each of {logits.shape[0]} samples a class from 0 to {logits.shape[1] - 1}, "
            f"got shape {tuple(target.shape)} and classes {target.unique().tolist()[:8]}"
        )
    return target.long()


def _state_maps(case: Case, scored: _StepScores) -> dict[str, Float[Tensor, "S R N"]]:
    rows: dict[str, list[Tensor]] = {}
    for state, classes in zip(scored.states, scored.classes, strict=True):
        leaves = {name: z.requires_grad_() for name, z in detach(state).items()}
        with torch.enable_grad():
            score = case.read(leaves).gather(1, classes[:, None]).sum()
        for (name, z), gradient in zip(leaves.items(), _gradients(score, leaves), strict=True):
            z, gradient = _as_tokens(z.detach()), _as_tokens(gradient)
            real = token_mask(case.solution.masks.get(name), z)
            # Grad-CAM: ReLU(sum_d w_d z_d), w the mean gradient of the real tokens
            total = gradient.masked_fill(~real[..., None], 0).sum(1, keepdim=True)
            weights = total / real.sum(1).clamp(min=1)[:, None, None]
            rows.setdefault(name, []).append((weights * z).sum(-1).relu().masked_fill(~real, 0))
    return {name: torch.stack(each) for name, each in rows.items()}


def _input_maps(
    case: Case, scored: _StepScores, leaves: State, masks: Mapping[str, Tensor], *, times_input: bool
) -> dict[str, Float[Tensor, "S ..."]]:
    """S B N, or S B A N for a modality that has its own tokens per choice."""
    rows: dict[str, list[Tensor]] = {}
    for score in scored.scores:
        for (name, x), gradient in zip(leaves.items(), _gradients(score.sum(), leaves), strict=True):
            x, gradient = _as_tokens(x.detach()), _as_tokens(gradient)
            row = (x * gradient).sum(-1).abs() if times_input else gradient.norm(dim=-1)
            rows.setdefault(name, []).append(row.masked_fill(~token_mask(masks.get(name), x), 0))
    return {name: torch.stack(each) for name, each in rows.items()}


def _gradients(score: Tensor, leaves: State) -> Sequence[Tensor]:
    """Gradients of the sum over samples, each of which depends on its own rows only; parameters get none."""
    if not score.requires_grad:  # frozen weights and a start that ignores the features
        return [torch.zeros_like(x) for x in leaves.values()]
    return torch.autograd.grad(
        score, list(leaves.values()), retain_graph=True, allow_unused=True, materialize_grads=True
    )


def _of_choice(maps: dict[str, Tensor], scored: _StepScores, choices: int | None) -> dict[str, Float[Tensor, "S B N"]]:
    """For multiple choice, the map of the choice that was asked about; the others' score does not depend on it."""
    if choices is None:
        return maps
    picked = {}
    for name, each in maps.items():
        if each.shape[1] != scored.classes.shape[1]:  # states: a row per choice
            each = each.unflatten(1, (-1, choices))
        if each.ndim == 4:
            each = each.take_along_dim(scored.classes[:, :, None, None], dim=2)[:, :, 0]
        picked[name] = each
    return picked


def _as_tokens(x: Tensor) -> Tensor:
    return x[:, None] if x.ndim == 2 else x
