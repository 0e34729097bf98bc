"""What every fusion model has in common: checked features in, an answer out, saving and loading."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from meq.core.operator import Operator
from meq.core.solution import Solution
from meq.core.state import Masks, State, token_mask
from meq.models.admit import Features, TokenMasks, admit, as_tensors, drop_modalities
from meq.models.blocks import keep_masks
from meq.models.heads import by_example, make_head
from meq.models.hub import Saveable
from meq.models.readout import PooledReadout, make_readout
from meq.options import nearest, real_number, whole_number


@dataclass(frozen=True, eq=False)
class Output:
    """What a model returns: attributes, and as in transformers keys and places, `out["logits"]` and `out[0]`.

    Keys and places leave out what is None or empty. They stand in the order of the fields below, and `to_tuple()`
    unpacks in that order; iterating gives the keys, as a dictionary does.

    >>> model = meq.MutualEquilibrium({"image": 8, "text": 6}, classes=3, dim=16, heads=2)
    >>> out = model({"image": torch.randn(2, 5, 8), "text": torch.randn(2, 4, 6)})
    >>> out.logits.shape, out.pooled["image"].shape, out.keys()  # B C, B D
    (torch.Size([2, 3]), torch.Size([2, 16]), ('logits', 'pooled', 'solution'))
    """

    logits: Float[Tensor, "B C"] | Float[Tensor, "B N C"] | None
    """The head's answer; None for a model without classes. With head="tokens" one per token: those of the modalities
    that answer, one modality after the other, zeros where there is none."""
    pooled: dict[str, Float[Tensor, "R D"]]
    """One vector per state, to go on with in a network of one's own; for multiple choice a row per choice."""
    solution: Solution | None = None
    """How the iteration went; None for a model that does not iterate."""
    branches: dict[str, Solution] = field(default_factory=dict)
    """The solutions of the inner nodes of a tree."""
    answered: Bool[Tensor, "B N"] | None = None
    """With head="tokens": which of the answers belong to real tokens."""
    along: tuple[Tensor, ...] = ()
    """Logits of steps before the one that is read, in order, where training supervises several."""

    def keys(self) -> tuple[str, ...]:
        return tuple(self._given())

    def values(self) -> tuple[Any, ...]:
        return tuple(self._given().values())

    def items(self) -> tuple[tuple[str, Any], ...]:
        return tuple(self._given().items())

    def to_tuple(self) -> tuple[Any, ...]:
        return self.values()

    def get(self, key: str, default: Any = None) -> Any:
        return self._given().get(key, default)

    def __getitem__(self, key: str | int | slice) -> Any:
        if not isinstance(key, str):
            return self.values()[key]
        given = self._given()
        if key in given:
            return given[key]
        if key in (each.name for each in fields(self)):
            raise KeyError(f"this output has no {key!r}: it is None or empty. It has {', '.join(given)}")
        raise KeyError(f"an output has no {key!r}: {nearest(key, given)}")

    def __contains__(self, key: object) -> bool:
        return key in self._given()

    def __iter__(self) -> Iterator[str]:
        return iter(self._given())

    def __len__(self) -> int:
        return len(self._given())

    def __bool__(self) -> bool:
        return True

    def _given(self) -> dict[str, Any]:
        """The fields that hold something, by name."""
        held = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: x for name, x in held.items() if x is not None and not (isinstance(x, dict | tuple) and not x)}

    def __repr__(self) -> str:
        """Three lines: the answer, the states, how the iteration went."""
        logits = "none, the model was built with classes=None" if self.logits is None else _shape(self.logits)
        states = self.pooled if self.solution is None else self.solution.state
        kind = "pooled" if self.solution is None else "states"
        went = "none, the model does not iterate" if self.solution is None else self.solution.in_a_line()
        shapes = ", ".join(f"{name} {_shape(x)}" for name, x in states.items())
        return f"logits: {logits}\n{kind}: {shapes}\niteration: {went}"


def _flatten(output: Output) -> tuple[list[Any], None]:
    return [getattr(output, each.name) for each in fields(output)], None


# DistributedDataParallel(static_graph=True) finds tensors by this alone; without it no gradient is added up, in silence
pytree.register_pytree_node(
    Output, _flatten, lambda values, _: Output(*values), serialized_type_name="meq.models.base.Output"
)


@dataclass(frozen=True, eq=False)
class FusedState:
    """States that are ready to be read."""

    state: State
    masks: Masks
    solution: Solution | None = None
    branches: dict[str, Solution] = field(default_factory=dict)


class FusionModel(Saveable, nn.Module):
    """Features of several modalities in, logits and states out.

    `head_kind` is a key of `meq.models.heads.HEADS`; with `classes=None` there is no head. A subclass says how features
    become states (`fuse`), and may say how states become a summary (`summary`, `token_summary`).

    >>> model = meq.Concat({"image": 8, "text": 6}, classes=3, dim=16)
    >>> isinstance(model, meq.FusionModel)
    True
    >>> model({"image": torch.randn(2, 5, 8), "text": torch.randn(2, 4, 6)}).logits.shape  # B C
    torch.Size([2, 3])
    """

    has_token_states = True
    """Whether every token has a state of its own that has met the other modalities."""

    def __init__(
        self,
        widths: Mapping[str, int],
        classes: int | None,
        dim: int,
        heads: int = 8,
        readout: str = "pooled",
        head: str = "classes",
        head_width: int = 1024,
        modality_dropout: float = 0.0,
        answering: Sequence[str] | None = None,
    ) -> None:
        super().__init__()
        _check_names(widths)
        for label, size in (("dim", dim), ("heads", heads), ("head_width", head_width)):
            whole_number(label, size)
        if classes is not None:
            whole_number("classes", classes)
        real_number("modality_dropout", modality_dropout, wanted="must lie in [0, 1)", low=0.0, high=1.0)
        self.widths, self.classes, self.dim = dict(widths), classes, dim
        self.head_kind, self.modality_dropout = head, modality_dropout
        self.answering = self._checked_answering(answering)
        """The modalities whose tokens answer, in order; empty but for head="tokens"."""
        self.pool: PooledReadout = make_readout(readout, self.state_names, dim, heads)
        width = self.token_width if head == "tokens" else self.summary_width
        self.head = None if classes is None else make_head(head, width, classes, head_width)

    def forward(
        self,
        features: Mapping[str, Tensor],
        masks: Mapping[str, Tensor] | None = None,
        *,
        seeds: Int[Tensor, " B"] | None = None,
        steps: int | None = None,
    ) -> Output:
        """`features` maps modalities to tokens (B N W) or vectors (B W), `masks` to what is real in them.

        A modality may be left out, for the batch (no key) or for a sample (a mask of False). With `seeds` each sample
        draws its dropout from its own generator. For multiple choice, modalities with one more axis (B A N W) hold a
        value per choice. NumPy arrays and lists become tensors of the model's dtype; a tensor of another is an error.
        `steps` reads a model that iterates at this step instead of its own K.
        """
        with nullcontext() if steps is None else self.read_at(steps):
            if self.head_kind == "choices":
                return self._score_choices(features, masks, seeds)
            return self._answer(features, masks, seeds)

    def read_at(self, steps: int) -> AbstractContextManager[None]:
        """Within it, a model that iterates is read at this step instead of its own K."""
        raise ValueError(f"{type(self).__name__} does not iterate: there is no step {steps!r:.20} to read it at")

    @property
    def state_names(self) -> list[str]:
        """The states that are pooled and read."""
        return list(self.widths)

    @property
    def summary_width(self) -> int:
        return len(self.state_names) * self.dim

    @property
    def operator(self) -> Operator | None:
        """The iterated map, for analysis together with `output.solution`; None if nothing is iterated."""
        return None

    @abstractmethod
    def fuse(self, features: Features, masks: TokenMasks, seeds: Tensor | None) -> FusedState:
        """Features become states."""

    def summary(self, pooled: dict[str, Tensor]) -> Float[Tensor, "B S"]:
        """What the head sees of the pooled states."""
        return torch.cat(list(pooled.values()), dim=-1)

    @property
    def token_width(self) -> int:
        return self.dim

    def token_summary(self, tokens: Float[Tensor, "B N D"], pooled: dict[str, Tensor]) -> Float[Tensor, "B N S"]:
        """What the head sees of each token of a modality, beside the pooled states: its state."""
        return tokens

    def read(self, state: State, masks: Masks) -> Tensor:
        """The logits of any state along the way, so that trajectories need no knowledge of the model's insides."""
        return self.read_answers(state, masks)[0]

    def read_answers(self, state: State, masks: Masks) -> tuple[Tensor, Bool[Tensor, "B N"] | None]:
        """`read`, and for answers per token which of them belong to real tokens."""
        if self.head is None:
            raise ValueError("this model was built with classes=None: it has no head to read with")
        pooled = self.pool(state, masks)
        if self.head_kind == "tokens":
            return self._read_tokens(state, masks, pooled)
        return self.head(self.summary(pooled)), None

    def gates(self, solution: Solution) -> dict[str, Float[Tensor, " B"]]:
        """The mean openness of each state's gate, per sample, at the read state; empty for models without gates."""
        return {}

    def count_parameters(self, part: str = "model") -> int:
        """Trainable parameters of the whole model, or of its "block": all but injections, readout and head."""
        if part not in ("model", "block"):
            raise ValueError(f"there is no part {part!r}: {nearest(part, ['model', 'block'])}")
        outside = {"inject", "pool", "head"} if part == "block" else set()
        return sum(p.numel() for name, p in self.named_parameters() if outside.isdisjoint(name.split(".")))

    def _answer(
        self, features: Mapping[str, Tensor], masks: Mapping[str, Tensor] | None, seeds: Tensor | None
    ) -> Output:
        tokens, real = admit(features, masks, self.widths, like=self._like)
        if self.training and self.modality_dropout > 0:
            like = next(iter(tokens.values()))
            # an own stream of draws: the seeds themselves serve the dropout inside the map
            drawn = None if seeds is None else seeds + 1
            kept = keep_masks(like.shape[0], (len(tokens),), self.modality_dropout, like=like, seeds=drawn)
            tokens, real = drop_modalities(tokens, real, kept == 0)
        fused = self.fuse(tokens, real, seeds)
        pooled = self.pool(fused.state, fused.masks)
        logits = answered = None
        if self.head is not None and self.head_kind == "tokens":
            logits, answered = self._read_tokens(fused.state, fused.masks, pooled)
        elif self.head is not None:
            logits = self.head(self.summary(pooled))
        return Output(logits, pooled, fused.solution, fused.branches, answered, self._read_along(fused))

    def _read_along(self, fused: FusedState) -> tuple[Tensor, ...]:
        """Logits of the steps that are supervised besides the last; a model that does not iterate has none."""
        return ()

    def _read_tokens(
        self, state: State, masks: Masks, pooled: dict[str, Tensor]
    ) -> tuple[Float[Tensor, "B N C"], Bool[Tensor, "B N"]]:
        """An answer per token, and which tokens are real."""
        assert self.head is not None
        seen = torch.cat([self.token_summary(state[name], pooled) for name in self.answering], dim=1)
        real = torch.cat([token_mask(masks.get(name), state[name]) for name in self.answering], dim=1)
        # the pool is touched on purpose: parameters that no loss depends on would break distributed training
        unused = sum((0 * weights.sum() for weights in self.pool.parameters()), start=seen.new_zeros(()))
        return (self.head(seen) + unused).masked_fill(~real[..., None], 0), real

    def _checked_answering(self, asked: Sequence[str] | None) -> tuple[str, ...]:
        if self.head_kind != "tokens":
            if asked:
                raise ValueError(f"answering={asked!r} belongs to head='tokens', and the head is {self.head_kind!r}")
            return ()
        if not self.has_token_states:
            raise ValueError(
                f"{type(self).__name__} fuses one vector per modality, so its tokens have no answer of their own: "
                "head='tokens' needs a state per token, as MutualEquilibrium with attention or SelfAttention has"
            )
        if isinstance(asked, str):
            raise TypeError(f"answering must be names of modalities such as ('image', 'text'), got {asked!r}")
        kept = [name for name in self.widths if name in self.state_names]
        names = tuple(kept if asked is None else asked)
        for name in names:
            if name not in self.widths:
                raise ValueError(f"answering has the unknown modality {name!r}: {nearest(name, self.widths)}")
            if name not in kept:
                raise ValueError(f"{name!r} cannot answer: the states that are read are {', '.join(self.state_names)}")
        if not names or len(set(names)) < len(names):
            raise ValueError(f"answering must name modalities, each once; got {list(names)}")
        return names

    @property
    def _like(self) -> Tensor | None:
        """A parameter in the dtype and on the device that features must have; None where that is unknown.

        A compiled model was looked at before; one whose parts lie on several devices moves what it reads by itself.
        """
        if torch.compiler.is_compiling() or hasattr(self, "hf_device_map"):
            return None
        return next(iter(self.pool.stand_ins.values()))

    def _score_choices(
        self, features: Mapping[str, Tensor], masks: Mapping[str, Tensor] | None, seeds: Tensor | None
    ) -> Output:
        """Every choice becomes a sample of its own; the logits come back as (B A)."""
        features, masks = as_tensors(features, masks, self._like)
        counts = {name: x.shape[1] for name, x in features.items() if x.ndim == 4}
        if len(set(counts.values())) != 1:
            raise ValueError(f"multiple choice needs modalities of shape (B A N W) that agree on A, got A = {counts}")
        choices = next(iter(counts.values()))

        def spread(name: str, x: Tensor) -> Tensor:
            return x.flatten(0, 1) if name in counts else x.repeat_interleave(choices, dim=0)

        features = {name: spread(name, x) for name, x in features.items()}
        masks = {name: spread(name, mask) for name, mask in masks.items()}
        seeds = None if seeds is None else seeds.repeat_interleave(choices)
        with self._among(choices):
            output = self._answer(features, masks, seeds)
        if output.logits is None:
            return output
        logits, *along = (by_example(x, choices)[..., 0] for x in (output.logits, *output.along))
        return replace(output, logits=logits, along=tuple(along))

    def _among(self, choices: int) -> AbstractContextManager[None]:
        """Within it, so many rows after each other are the choices of one example."""
        return nullcontext()


def _shape(x: Tensor) -> str:
    return f"{' x '.join(map(str, x.shape))} {str(x.dtype).removeprefix('torch.')}"


def _check_names(widths: Mapping[str, int]) -> None:
    if not isinstance(widths, Mapping) or not widths:
        raise TypeError(f"widths must be a dict such as {{'image': 768, 'text': 384}}, got {widths!r:.80}")
    for name, width in widths.items():
        if not isinstance(name, str):
            raise TypeError(f"widths must name modalities by strings, got {name!r:.80}")
        if not name or "." in name or hasattr(nn.ModuleDict, name) or hasattr(nn.ParameterDict, name):
            raise ValueError(f"{name!r} cannot name a modality: use a word without dots that is no method of a dict")
        whole_number(f"the width of the features of {name!r}", width)
