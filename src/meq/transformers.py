"""The equilibrium between encoders of transformers, as a model of transformers: pip install 'meq[encoders]'.

    model = EquilibriumForClassification.from_encoders("openai/clip-vit-base-patch32", "bert-base-uncased")
    Trainer(model=model, args=arguments, train_dataset=rows).train()

It is saved, loaded and shared as any of their models. Importing this module lets `AutoConfig` and `AutoModel` know it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from meq.core.backward import Checkpointed, Unrolled
from meq.core.solution import Solution
from meq.encoders.image import tokens_of
from meq.encoders.pretrained import find, load_part, require_transformers
from meq.models import MutualEquilibrium, Output
from meq.objectives import Objective
from meq.options import letters_apart, nearest
from meq.training.arms import PAPER, make_penalties

require_transformers()  # an error in words where it is not installed

from transformers import AutoConfig, AutoModel, PreTrainedConfig, PreTrainedModel  # noqa: E402
from transformers.utils.generic import ModelOutput, can_return_tuple  # noqa: E402

HEADS = {"single_label_classification": "classes", "multi_label_classification": "labels", "regression": "score"}
"""By transformers' name of a problem: the head that answers it."""
NEAR = 2
"""So many letters away an unknown option is taken for a misspelling; others are kept, as transformers does."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """What one modality's encoder reads."""

    part: str | None
    """Where it lies in a model for pictures and texts."""
    reads: tuple[str, ...]
    noun: str
    unused: str | None = None


KINDS = {
    "image": Kind(part="vision_model", reads=("pixel_values",), noun="pictures"),
    "text": Kind(part="text_model", reads=("input_ids",), noun="texts"),
    "audio": Kind(part=None, reads=("input_values", "input_features"), noun="sounds", unused="masked_spec_embed"),
}
"""The modalities, in the order of the columns of `present`."""


class EquilibriumConfig(PreTrainedConfig):
    """Encoders, the equilibrium between them, and what is minimised. All are fields, given by keyword.

    `num_labels`, `id2label` and `problem_type` are transformers' own; one label, or `problem_type="regression"`, is a
    score.
    """

    model_type = "meq-equilibrium"
    has_no_defaults_at_init = True
    keys_to_ignore_at_inference: ClassVar[list[str]] = ["solution"]
    sub_configs: ClassVar[dict[str, Any]] = dict.fromkeys(("image_config", "text_config", "audio_config"), AutoConfig)

    image_config: Any = None
    """The config of the encoder of pictures, such as CLIPVisionConfig or ViTConfig; None: there are no pictures."""
    text_config: Any = None
    audio_config: Any = None
    freeze_encoders: bool = True
    """Encoders stay as they are, without dropout and without gradients; False trains them along."""
    dim: int = 256
    heads: int = 8
    steps: int = 10
    dropout: float = 0.0
    modality_dropout: float = 0.0
    options: dict[str, Any] = field(default_factory=dict)
    """Further options of `meq.MutualEquilibrium`; a solver or backward by name: {"backward": {"name": "Implicit"}}."""
    penalties: dict[str, dict[str, Any]] = field(default_factory=lambda: {name: dict(PAPER[name]) for name in PAPER})
    """By name, with their options, {"jacobian-range": {"weight": 0.1}}: added to the loss while the model trains. The
    paper's unless given; {} is none."""

    def __post_init__(self, **others: Any) -> None:
        """`others` are what transformers keeps besides; a name that is nearly one of ours is an error."""
        known = known_options()
        for name in others.keys() - known:
            if any(letters_apart(name, each) <= NEAR for each in known):
                raise TypeError(f"EquilibriumConfig has no option {name!r}: {nearest(name, known)}")
        for key in self.sub_configs:
            if isinstance(given := getattr(self, key), Mapping):
                setattr(self, key, AutoConfig.for_model(**given))
        super().__post_init__(**others)

    @property
    def encoders(self) -> dict[str, PreTrainedConfig]:
        """By modality: the config of its encoder."""
        found = {name: getattr(self, f"{name}_config") for name in KINDS}
        return {name: config for name, config in found.items() if config is not None}

    @property
    def head(self) -> str:
        """The kind of answer, one of `meq.models.heads.HEADS`."""
        if self.problem_type == "regression" and self.num_labels != 1:
            raise ValueError(f"problem_type='regression' is one number: num_labels must be 1, not {self.num_labels}")
        return HEADS[self.problem_type or ("regression" if self.num_labels == 1 else "single_label_classification")]

    def make_equilibrium(self) -> MutualEquilibrium:
        """The equilibrium that this config describes, with new weights."""
        if len(self.encoders) < 2:
            raise ValueError(
                f"an equilibrium needs encoders of at least two modalities, got {list(self.encoders)}: give two of "
                f"{', '.join(self.sub_configs)}, or use EquilibriumForClassification.from_encoders"
            )
        fixed = {name: getattr(self, name) for name in ("dim", "heads", "steps", "dropout", "modality_dropout")}
        fixed |= {"classes": self.num_labels, "head": self.head}
        for name in self.options.keys() & (fixed.keys() | {"widths"}):
            raise ValueError(f"`options` has {name!r}, which is a field of EquilibriumConfig, or follows from them")
        widths = {name: _width(name, config) for name, config in self.encoders.items()}
        return MutualEquilibrium(widths, **fixed, **MutualEquilibrium.from_options(self.options))


def known_options() -> set[str]:
    """The names that `EquilibriumConfig` takes."""
    return {each.name for each in fields(EquilibriumConfig)} | {"num_labels"}


@dataclass
class EquilibriumOutput(ModelOutput):
    """What `EquilibriumForClassification` returns."""

    loss: Tensor | None = None
    """With labels: the task's loss, and while training the weighted penalties."""
    logits: Tensor | None = None
    solution: Solution | None = None
    """With `output_solution=True`: the states, and how the iteration went."""


class EquilibriumForClassification(PreTrainedModel):
    """Encoders of transformers, the equilibrium of their tokens, and a head that answers."""

    config_class = EquilibriumConfig
    base_model_prefix = "equilibrium"
    main_input_name = "input_ids"
    supports_gradient_checkpointing = True
    _supports_sdpa = _supports_flash_attn = _supports_flex_attn = _supports_attention_backend = True

    def __init__(self, config: EquilibriumConfig, *, encoders: Mapping[str, nn.Module] | None = None) -> None:
        """`encoders` are trained ones by modality; without them they are made from the config, with new weights."""
        super().__init__(config)
        self.objective = Objective(task=config.head, penalties=make_penalties(config.penalties))
        equilibrium = config.make_equilibrium()
        for name, sub_config in config.encoders.items():
            encoder = (encoders or {}).get(name) or AutoModel.from_config(sub_config, trust_remote_code=False)
            _check_reads(name, encoder)
            setattr(self, f"{name}_encoder", encoder.requires_grad_(True))
        self.equilibrium = equilibrium
        self.gradient_checkpointing = False
        for weight in () if _on_meta(equilibrium) else equilibrium.parameters():
            weight._is_hf_initialized = True  # type: ignore[attr-defined]  # drawn by the library, not to be drawn again
        self.post_init()
        self.train(self.training)

    @classmethod
    def from_encoders(
        cls, image: str | None = None, text: str | None = None, *, audio: str | None = None, **options: Any
    ) -> EquilibriumForClassification:
        """Encoders by folder or name on the Hub, and a new equilibrium; `options` are fields of `EquilibriumConfig`.

        Of a model for pictures and texts the part for the modality is taken, so both may be one CLIP. Weights are read
        in float32, and nothing that a repository brings is run.
        """
        known = known_options() - set(EquilibriumConfig.sub_configs)
        for name in options:
            if name not in known:
                raise TypeError(f"from_encoders() has no option {name!r}: {nearest(name, known)}")
        named = {name: model for name, model in zip(KINDS, (image, text, audio), strict=True) if model is not None}
        encoders = {name: _load(name, model) for name, model in named.items()}
        # copies: transformers settles how an encoder attends in its config, and making another config resets that
        configs = {f"{name}_config": deepcopy(encoder.config) for name, encoder in encoders.items()}
        return cls(EquilibriumConfig(**configs, **options), encoders=encoders)

    @can_return_tuple
    def forward(
        self,
        pixel_values: Float[Tensor, "B ..."] | None = None,
        input_ids: Int[Tensor, "B N"] | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Int[Tensor, "B N"] | None = None,
        input_values: Float[Tensor, "B ..."] | None = None,
        input_features: Float[Tensor, "B ..."] | None = None,
        present: Bool[Tensor, "B M"] | None = None,
        labels: Tensor | None = None,
        output_solution: bool = False,
    ) -> EquilibriumOutput:
        """What processors and tokenisers make, by the names they give it.

        A modality may be left out for the batch, by leaving out its input; for a sample, by a False in its column of
        `present` (image, text, audio: those that the model has), or for a text by an `attention_mask` of zeros. With
        `labels` there is a loss; penalties count in training alone. Sounds are read whole, padding included.
        """
        inputs = {"pixel_values": pixel_values, "input_ids": input_ids, "input_values": input_values}
        inputs |= {"input_features": input_features}
        here = dict(self._read_inputs(inputs))
        features = {
            name: self._encode(name, x, attention_mask=attention_mask, token_type_ids=token_type_ids)
            for name, x in here.items()
        }
        masks = self._masks(features, attention_mask, present)
        with self._as_checkpointed():
            output: Output = self.equilibrium(features, masks)
        assert output.logits is not None
        loss = None if labels is None else self._loss(output, labels)
        return EquilibriumOutput(loss=loss, logits=output.logits, solution=output.solution if output_solution else None)

    def train(self, mode: bool = True) -> EquilibriumForClassification:
        """As any module; frozen encoders stay in eval mode, and without gradients when they were loaded anew."""
        super().train(mode)
        if self.config.freeze_encoders:
            for name in self.config.encoders:
                self._encoder(name).eval().requires_grad_(False)
        return self

    def _encoder(self, name: str) -> Any:
        return getattr(self, f"{name}_encoder")

    def _read_inputs(self, inputs: Mapping[str, Tensor | None]) -> Iterator[tuple[str, Tensor]]:
        """The input of each modality that has one."""
        wanted = {name: self._encoder(name).main_input_name for name in self.config.encoders}
        for given in (key for key, x in inputs.items() if x is not None):
            if given not in wanted.values():
                raise ValueError(f"{given} was given, and no encoder reads it: they read {', '.join(wanted.values())}")
        found = [(name, x) for name, key in wanted.items() if (x := inputs[key]) is not None]
        if not found:
            raise ValueError(f"no modality was given: give at least one of {', '.join(wanted.values())}")
        yield from found

    def _encode(
        self, name: str, x: Tensor, *, attention_mask: Tensor | None, token_type_ids: Tensor | None
    ) -> Float[Tensor, "B N W"]:
        encoder, more = self._encoder(name), {}
        if name == "text":
            more = {"attention_mask": _readable(attention_mask), "token_type_ids": token_type_ids}
        frozen = self.config.freeze_encoders
        with torch.no_grad() if frozen else nullcontext():
            output = encoder(**{encoder.main_input_name: x}, **{key: x for key, x in more.items() if x is not None})
            tokens = tokens_of(output)
            pooled = getattr(output, "pooler_output", None)
            if not frozen and pooled is not None:
                # touched on purpose: parameters that no loss depends on would break distributed training
                tokens = tokens + 0 * pooled.sum()
        return tokens.to(next(self.equilibrium.parameters()).dtype)

    def _masks(
        self, features: Mapping[str, Tensor], attention_mask: Tensor | None, present: Tensor | None
    ) -> dict[str, Tensor]:
        """What is real in the features, by modality."""
        masks = {}
        if attention_mask is not None and "text" in features:
            masks["text"] = attention_mask.bool()
        if present is None:
            return masks
        names = list(self.config.encoders)
        if present.ndim != 2 or present.shape[1] != len(names):
            raise ValueError(
                f"present has shape {tuple(present.shape)}: it needs a row per sample and a column for each of "
                f"{', '.join(names)}"
            )
        for column, name in enumerate(names):
            if name in features:
                there = present[:, column, None].bool().expand(features[name].shape[:2])
                masks[name] = there & masks[name] if name in masks else there
        return masks

    def _as_checkpointed(self) -> Any:
        """Where layers of encoders are computed again instead of kept, so are the steps of the equilibrium."""
        if self.gradient_checkpointing and self.training and isinstance(self.equilibrium.backward, Unrolled):
            return self.equilibrium.run_as(backward=Checkpointed())
        return nullcontext()

    def _loss(self, output: Output, labels: Tensor) -> Tensor:
        objective = self.objective if self.training else Objective(task=self.objective.task)
        return objective(self.equilibrium, output, labels).total

    def _init_weights(self, module: nn.Module) -> None:
        """Weights that a checkpoint lacks, such as those of a head for other labels, as PyTorch draws them."""
        if (reset := getattr(module, "reset_parameters", None)) is not None:
            reset()
            return
        lacking = [key for key, x in module.named_parameters(recurse=False) if not hasattr(x, "_is_hf_initialized")]
        if lacking:
            raise ValueError(f"the checkpoint lacks {', '.join(lacking)} of a {type(module).__name__}: it is not whole")


def _load(name: str, model: str) -> Any:
    """The part of a pretrained model that reads a modality."""
    kind = KINDS[name]
    source = find(model, kind=name)
    encoder, _ = load_part(source, kind.part, reads=kind.reads, noun=kind.noun, unused=kind.unused)
    with torch.device("meta"):
        same = type(AutoModel.from_config(encoder.config, trust_remote_code=False)) is type(encoder)
    if not same:
        raise ValueError(
            f"{source.name}: its {type(encoder).__name__} cannot be made from its config alone, so the whole could not "
            f"be loaded again; save an encoder of {kind.noun} of its own kind and give its folder"
        )
    for module in encoder.modules():
        module._is_hf_initialized = True
    return encoder


def _check_reads(name: str, encoder: Any) -> None:
    kind = KINDS[name]
    given = getattr(encoder, "main_input_name", "nothing that is known")
    if given not in kind.reads:
        raise ValueError(
            f"{name}_config is of a {type(encoder).__name__}, which reads {given}: no encoder of {kind.noun}"
        )


def _width(name: str, config: Any) -> int:
    sizes = getattr(config, "hidden_sizes", None) or [None]
    width = getattr(config, "hidden_size", None) or sizes[-1]
    if width is None:
        raise ValueError(f"{name}_config, a {type(config).__name__}, says neither hidden_size nor hidden_sizes")
    return int(width)


def _readable(mask: Tensor | None) -> Tensor | None:
    """The mask with something to read in every row: a text that is absent would be NaN, and so would its gradients."""
    return None if mask is None else mask.masked_fill(~mask.bool().any(1, keepdim=True), 1)


def _on_meta(module: nn.Module) -> bool:
    return next(module.parameters()).device.type == "meta"


AutoConfig.register(EquilibriumConfig.model_type, EquilibriumConfig)
AutoModel.register(EquilibriumConfig, EquilibriumForClassification)
