"""SingleState, SingleVector and FeatureSum: equilibria that replace only the state layout, by one joint state."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from meq.core.backward import Backward, Unrolled
from meq.core.iteration import TOLERANCE
from meq.core.solvers import Solver
from meq.core.state import State
from meq.models.admit import Features, TokenMasks
from meq.models.blocks import Injection, PooledInjection, or_stand_in, readable_keys
from meq.models.equilibrium import draw_keep_masks
from meq.models.iterated import Context, IteratedModel, PreparedOperator
from meq.models.sides import AttentionSide, Design, Parts, Side, Slots, VectorSide
from meq.options import checked_options

JOINT = "joint"


class JointCoupling(PreparedOperator):
    """T of one joint state: a single side, which reads only itself."""

    def __init__(self, side: Side, design: Design) -> None:
        super().__init__()
        self.side, self.design = side, design

    def prepare(self, features: Features, masks: TokenMasks, seeds: Tensor | None) -> Context:
        context = Context(
            features=features,
            feature_masks=masks,
            injection=self.injections(features, masks),
            masks={},
            own_keys={JOINT: readable_keys(list(features), features, masks)[0]},
            keep={},
            lengths={name: x.shape[1] for name, x in features.items()},
        )
        if self.training and self.design.dropout > 0:
            context["keep"] = draw_keep_masks({JOINT: self.side}, context["injection"], self.design.dropout, seeds)
        return context

    def injections(self, features: Features, masks: TokenMasks) -> State:
        return {JOINT: self.enter(features, masks)}

    def start(self, inputs: Context) -> State:
        injection = inputs["injection"][JOINT]
        return self.split(injection if self.design.start == "injection" else torch.zeros_like(injection), inputs)

    def forward(self, state: State, inputs: Context) -> State:
        joint = {JOINT: self.join(state)}
        return self.split(self.side(joint, *self._project(joint), inputs), inputs)

    def openness(self, state: State, inputs: Context) -> State:
        if self.side.gate is None:
            return {}
        joint = {JOINT: self.join(state)}
        return self.split(self.side.openness(joint, *self._project(joint), inputs), inputs)

    def attention(self, state: State, inputs: Context) -> dict[str, dict[str, Tensor]]:
        _, slots = self._project({JOINT: self.join(state)})
        weights = self.side.attention(slots, inputs)[JOINT]
        names, sizes = list(state), [z.shape[1] for z in state.values()]
        rows = zip(names, weights.split(sizes, dim=2), strict=True)
        return {name: dict(zip(names, row.split(sizes, dim=3), strict=True)) for name, row in rows}

    @abstractmethod
    def enter(self, features: Features, masks: TokenMasks) -> Tensor:
        """f of all the modalities."""

    @abstractmethod
    def join(self, state: State) -> Tensor: ...

    @abstractmethod
    def split(self, joint: Tensor, inputs: Context) -> State: ...

    def _project(self, joint: State) -> tuple[State, Slots]:
        normed = self.side.norm(joint[JOINT])
        return {JOINT: normed}, {JOINT: self.side.project_slots(normed)}


class JointTokens(JointCoupling):
    """The tokens of all modalities in one state, attending to each other; handed out per modality."""

    def __init__(self, widths: Mapping[str, int], design: Design) -> None:
        super().__init__(AttentionSide(JOINT, design.dim, [JOINT], design, Parts(inject=nn.Identity())), design)
        self.inject = nn.ModuleDict({name: Injection(width, design.dim) for name, width in widths.items()})
        self.kinds = nn.ParameterDict({name: nn.Parameter(0.02 * torch.randn(design.dim)) for name in widths})

    def enter(self, features: Features, masks: TokenMasks) -> Tensor:
        return torch.cat([self.inject[name](x) + self.kinds[name] for name, x in features.items()], dim=1)

    def state_masks(self, masks: TokenMasks) -> dict[str, Tensor]:
        return dict(masks)

    def join(self, state: State) -> Tensor:
        return torch.cat(list(state.values()), dim=1)

    def split(self, joint: Tensor, inputs: Context) -> State:
        lengths: dict[str, int] = inputs["lengths"]
        return dict(zip(lengths, joint.split(list(lengths.values()), dim=1), strict=True))


class JointVectors(JointCoupling):
    """The modalities' vectors side by side in one state that an MLP reads whole; handed out per modality."""

    def __init__(self, widths: Mapping[str, int], design: Design) -> None:
        whole = replace(design, dim=len(widths) * design.dim)
        super().__init__(VectorSide(JOINT, whole.dim, [JOINT], whole, Parts(inject=nn.Identity())), whole)
        self.inject = nn.ModuleDict({name: PooledInjection(width, design.dim) for name, width in widths.items()})
        self.stand_ins = nn.ParameterDict({name: nn.Parameter(torch.zeros(design.dim)) for name in widths})

    def enter(self, features: Features, masks: TokenMasks) -> Tensor:
        return torch.cat(_vectors(self.inject, self.stand_ins, features, masks), dim=-1)

    def state_masks(self, masks: TokenMasks) -> dict[str, Tensor]:
        return {name: mask.any(1) for name, mask in masks.items()}

    def join(self, state: State) -> Tensor:
        return torch.cat(list(state.values()), dim=-1)

    def split(self, joint: Tensor, inputs: Context) -> State:
        names = list(inputs["lengths"])
        return dict(zip(names, joint.chunk(len(names), dim=-1), strict=True))


class JointVector(JointCoupling):
    """One vector that starts from the sum of the modalities' pooled features."""

    def __init__(self, widths: Mapping[str, int], design: Design) -> None:
        super().__init__(VectorSide(JOINT, design.dim, [JOINT], design, Parts(inject=nn.Identity())), design)
        self.inject = nn.ModuleDict({name: PooledInjection(width, design.dim) for name, width in widths.items()})
        self.stand_ins = nn.ParameterDict({name: nn.Parameter(torch.zeros(design.dim)) for name in widths})

    def enter(self, features: Features, masks: TokenMasks) -> Tensor:
        return torch.stack(_vectors(self.inject, self.stand_ins, features, masks)).sum(0)

    def state_masks(self, masks: TokenMasks) -> dict[str, Tensor]:
        return {}

    def join(self, state: State) -> Tensor:
        return state[JOINT]

    def split(self, joint: Tensor, inputs: Context) -> State:
        return {JOINT: joint}


def _vectors(inject: nn.ModuleDict, stand_ins: nn.ParameterDict, features: Features, masks: TokenMasks) -> list[Tensor]:
    """f(x) of each modality, or its stand-in where it is absent."""
    return [
        or_stand_in(inject[name](x, masks.get(name)), masks.get(name), stand_ins[name]) for name, x in features.items()
    ]


class _JointModel(IteratedModel):
    """The constructor that all layouts share; see `MutualEquilibrium` for the options."""

    layout: type[JointTokens] | type[JointVectors] | type[JointVector]

    def __init__(
        self,
        widths: Mapping[str, int],
        classes: int | None = None,
        dim: int = 768,
        *,
        heads: int = 8,
        steps: int = 10,
        tol: float = TOLERANCE,
        solver: Solver | None = None,
        backward: Backward = Unrolled(),
        hidden: int | None = None,
        gate: bool | str = True,
        gate_floor: float = 0.0,
        damping: float | str = 0.5,
        start: str = "injection",
        dropout: float = 0.0,
        modality_dropout: float = 0.0,
        head: str = "classes",
        head_width: int = 1024,
        answering: Sequence[str] | None = None,
    ) -> None:
        super().__init__(widths, classes, dim, heads, "pooled", head, head_width, modality_dropout, answering)
        self.run_by(steps, tol, solver, backward, damping)
        design = Design(
            dim=dim,
            heads=heads,
            hidden=4 * dim if hidden is None else hidden,
            mixer="attention" if self.has_token_states else "mlp",
            gate=gate,
            gate_floor=gate_floor,
            cross=False,
            start=start,
            dropout=dropout,
        )
        self.coupling = self.layout(widths, design)


@checked_options
class SingleState(_JointModel):
    """One joint token-level state: the same template, iteration and readout, without states of their own.

    >>> model = meq.SingleState({"image": 8, "text": 6}, classes=3, dim=16, heads=2)
    >>> out = model({"image": torch.randn(2, 5, 8), "text": torch.randn(2, 4, 6)})
    >>> out.logits.shape  # B C
    torch.Size([2, 3])
    """

    layout = JointTokens


@checked_options
class SingleVector(_JointModel):
    """One joint vector, the modalities' side by side (`dim` each) and mixed by one MLP: the vector form's single state.

    What mixer="mlp" is to `MutualEquilibrium`, this is to `SingleState`.

    >>> model = meq.SingleVector({"image": 8, "text": 6}, classes=3, dim=16)
    >>> out = model({"image": torch.randn(2, 5, 8), "text": torch.randn(2, 4, 6)})
    >>> out.logits.shape  # B C
    torch.Size([2, 3])
    """

    layout = JointVectors
    has_token_states = False


@checked_options
class FeatureSum(_JointModel):
    """One vector: pooled features are summed and iterated, the fusion design of earlier equilibrium models.

    >>> model = meq.FeatureSum({"image": 8, "text": 6}, classes=3, dim=16)
    >>> out = model({"image": torch.randn(2, 5, 8), "text": torch.randn(2, 4, 6)})
    >>> out.logits.shape  # B C
    torch.Size([2, 3])
    """

    layout = JointVector
    has_token_states = False

    @property
    def state_names(self) -> list[str]:
        return [JOINT]
