"""int8 inference: the large linear layers of a model with int8 weights, for answers on a CPU.

    y = s_x s_w (q_x q_w^T) + b, with q_x = round(x / s_x), s_x = max |x| / 127 per row, and s_w likewise per output

Rows are tokens, so what a sample is answered does not depend on who shares its batch; and as sums of integers are
exact, neither on the order in which they are taken.
"""

from __future__ import annotations

import copy
import platform
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int8, UInt8
from torch import Tensor, nn

from meq.options import whole_number

Model = TypeVar("Model", bound=nn.Module)
LEAST_WEIGHTS = 1 << 18
"""Where int8 begins to pay, measured: a layer of 512 x 512 takes less time than its float one from a few dozen rows on,
much smaller ones lose more by rounding their inputs than they win. docs/benchmarks.md has the figures."""
LEVELS = 127
"""Integers on either side of zero."""
ZERO = 128
"""What stands for zero among the unsigned bytes that the processor multiplies by signed ones."""
TINIEST = 1e-30
"""What a row of zeros is divided by."""
CONFIG_KEY = "int8"
NO_GRADIENTS = (
    "an int8 model gives answers, and no gradients: its weights and states are rounded. Train, explain and diagnose "
    "the float model that it was made of; {what}"
)


def quantise(model: Model, *, least_weights: int = LEAST_WEIGHTS) -> Model:
    """A copy for answers on the CPU, whose linear layers of at least `least_weights` weights are int8.

    Smaller ones stay float, and so does all that is no linear layer: norms, activations, attention weights, pooling.
    Encoders are no part of a model. The copy is in eval mode, takes no gradients, and is saved and loaded like any
    other. It is fast where the processor multiplies bytes (x86 with VNNI); elsewhere it answers the same, in the time
    of a float model.

    >>> model = meq.MutualEquilibrium({"image": 8, "text": 6}, classes=3, dim=16, heads=2)
    >>> small = meq.quantise(model, least_weights=256)
    >>> small({"image": torch.randn(2, 5, 8), "text": torch.randn(2, 4, 6)}).logits.shape  # B C
    torch.Size([2, 3])
    """
    whole_number("least_weights", least_weights, least=0)
    _check_model(model)
    made = with_int8_layers(copy.deepcopy(model), least_weights, Int8Linear.of)
    if not any(isinstance(module, Int8Linear) for module in made.modules()):
        largest = max((layer.weight.numel() for layer in _linears(made).values()), default=0)
        raise ValueError(
            f"int8 would not make this {type(model).__name__} faster: its largest linear layer has {largest:,} "
            f"weights, and it pays from {least_weights:,} on. Keep the float model, or give a smaller `least_weights`"
        )
    return made


class Int8Linear(nn.Module):
    """A linear layer with int8 weights and a float scale per output; inputs are rounded to int8 row by row, on the way.

    Its tensors are plain, and saved as they are. How they lie in the processor's own order is worked out on first use,
    and forgotten whenever they change.
    """

    bias: Tensor | None
    weight: Int8[Tensor, "O I"]
    scale: Float[Tensor, " O"]

    def __init__(
        self, in_features: int, out_features: int, *, bias: bool = True, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.register_buffer("weight", torch.zeros(out_features, in_features, dtype=torch.int8))
        self.register_buffer("scale", torch.zeros(out_features, dtype=dtype))
        self.register_buffer("bias", torch.zeros(out_features, dtype=dtype) if bias else None)
        self._parts: dict[tuple[int, int], RowProduct] = {}
        self.training = False

    @classmethod
    def of(cls, linear: nn.Linear) -> Int8Linear:
        """The nearest int8 layer to a float one."""
        weight = linear.weight.detach()
        if not bool(weight.isfinite().all()):
            raise ValueError("a layer has weights that are not finite: int8 has no numbers for them")
        made = cls(linear.in_features, linear.out_features, bias=linear.bias is not None, dtype=weight.dtype)
        scale = weight.abs().amax(1) / LEVELS
        made.scale.copy_(scale.where(scale > 0, 1))
        made.weight.copy_((weight / made.scale[:, None]).round().clamp(-LEVELS, LEVELS))
        if made.bias is not None:
            made.bias.copy_(linear.bias.detach())
        return made

    def forward(self, x: Float[Tensor, "*B I"]) -> Float[Tensor, "*B O"]:
        return self.part(0, self.out_features)(x)

    def part(self, start: int, stop: int) -> Callable[[Tensor], Tensor]:
        """The layer that gives outputs start:stop alone; made once, so that asking again costs nothing."""
        if self.training:
            raise ValueError(NO_GRADIENTS.format(what="for answers, set the mode back by `model.eval()`"))
        made = self._parts.get((start, stop))
        if made is None:
            if not 0 <= start < stop <= self.out_features:
                raise ValueError(f"there are no outputs {start}:{stop} of {self.out_features}")
            bias = None if self.bias is None else self.bias[start:stop]
            made = self._parts[start, stop] = RowProduct(self.weight[start:stop], self.scale[start:stop], bias)
        return made

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_parts": {}}  # what copies and pickles: the processor's own order cannot be

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Int8Linear:
        device = fn(torch.empty(0, device=self.scale.device)).device
        if device.type not in ("cpu", "meta"):
            raise ValueError(
                f"an int8 model is for the CPU, and cannot be moved to {device}: move the float model that it was made "
                "of, in bfloat16 where memory is short"
            )
        self._parts = {}
        return super()._apply(fn, recurse)

    def _load_from_state_dict(self, *args: Any, **options: Any) -> None:
        super()._load_from_state_dict(*args, **options)
        self._parts = {}


class RowProduct:
    """x -> x W^T + b by integers, for weights that stay as they are."""

    def __init__(
        self, weight: Int8[Tensor, "O I"], scale: Float[Tensor, " O"], bias: Float[Tensor, " O"] | None
    ) -> None:
        self.scale = scale.to(torch.float32) / LEVELS  # of rows whose own scale is max |x|
        self.bias = torch.zeros_like(self.scale) if bias is None else bias.to(torch.float32)
        self.zeros = torch.zeros(len(weight), dtype=torch.int64)
        self.fast = multiplies_bytes()
        self.weight = torch.ops.onednn.qlinear_prepack(weight, None) if self.fast else weight.to(torch.float32)

    def __call__(self, x: Float[Tensor, "*B I"]) -> Float[Tensor, "*B O"]:
        _check_plain(x)
        rows = x.reshape(-1, x.shape[-1]).to(torch.float32)
        # not by a norm or minima and maxima along rows, which torch takes several times as long for
        largest = rows.abs().amax(-1, keepdim=True).clamp_(min=TINIEST)
        # + 1/2, cut off: every number is positive here. A row that is not finite has a scale that is not, and stays so.
        places = (rows * (LEVELS / largest)).add_(ZERO + 0.5).to(torch.uint8)
        made = self._multiplied(places)
        torch.addcmul(self.bias, made, largest, out=made)
        return made.reshape(*x.shape[:-1], len(self.scale)).to(x.dtype)

    def _multiplied(self, places: UInt8[Tensor, "R I"]) -> Float[Tensor, "R O"]:
        if self.fast:
            return _byte_product(places, self.weight, self.scale, self.zeros)
        with torch.autocast("cpu", enabled=False):  # integers as floats: exact up to 2^24, rounded by a hair above
            return F.linear(places.to(torch.float32).sub_(ZERO), self.weight).mul_(self.scale)


def with_int8_layers(model: Model, least_weights: int, make: Callable[[nn.Linear], Int8Linear]) -> Model:
    """The model itself, its linear layers of so many weights replaced by what `make` gives for them."""
    replaced: dict[nn.Linear, Int8Linear] = {}  # a layer that stands in two places stays one
    for path, layer in _linears(model).items():
        if layer.weight.numel() >= least_weights:
            made = replaced[layer] = replaced[layer] if layer in replaced else make(layer)
            place, _, name = path.rpartition(".")
            setattr(model.get_submodule(place), name, made)
    model.int8 = least_weights  # type: ignore[assignment]
    return model.eval().requires_grad_(False)


def empty_layer(linear: nn.Linear) -> Int8Linear:
    """A layer of the same sizes whose tensors are still to be loaded."""
    bias = linear.bias is not None
    with torch.device(linear.weight.device):
        return Int8Linear(linear.in_features, linear.out_features, bias=bias, dtype=linear.weight.dtype)


def read_least_weights(config: Mapping[str, Any]) -> int | None:
    """What the config of a saved model says of int8; None for a float model."""
    said = config.get(CONFIG_KEY)
    if said is None:
        return None
    if not isinstance(said, Mapping) or set(said) != {"least_weights"}:
        raise ValueError(
            f'{CONFIG_KEY} must be an object such as {{"least_weights": {LEAST_WEIGHTS}}}, got {said!r:.80}'
        )
    return whole_number("least_weights", said["least_weights"], least=0)


@cache
def multiplies_bytes() -> bool:
    """Does this processor multiply unsigned by signed bytes without cutting sums off? Asked by a product that tells.

    Without VNNI, two products are added within 16 bits, which may be too few.
    """
    if platform.machine().lower() not in ("x86_64", "amd64") or not torch.backends.mkldnn.is_available():
        return False
    places = torch.full((4, 64), 2 * LEVELS + 1, dtype=torch.uint8)
    weight, scale = torch.full((16, 64), LEVELS, dtype=torch.int8), torch.ones(16)
    zeros = torch.zeros(16, dtype=torch.int64)
    try:
        made = _byte_product(places, torch.ops.onednn.qlinear_prepack(weight, None), scale, zeros)
    except (RuntimeError, AttributeError):  # a build of torch without these operations
        return False
    return bool((made == (2 * LEVELS + 1 - ZERO) * LEVELS * 64).all())


def _byte_product(places: Tensor, packed: Tensor, scale: Tensor, zeros: Tensor) -> Tensor:
    """(places - ZERO) W^T, times the scale of every output."""
    if torch.compiler.is_compiling():
        torch._dynamo.graph_break()  # the compiler does not know the processor's own order
    return torch.ops.onednn.qlinear_pointwise(
        places, 1.0, ZERO, packed, scale, zeros, None, 1.0, 0, torch.float32, "none", [], ""
    )


def _check_plain(x: Tensor) -> None:
    followed = x.requires_grad and torch.is_grad_enabled()
    if followed or torch._C._functorch.is_functorch_wrapped_tensor(x):
        raise ValueError(NO_GRADIENTS.format(what="for answers, give features that need no gradients"))


def _linears(model: nn.Module) -> dict[str, nn.Linear]:
    """Plain ones by their place; a subclass may do more than multiply."""
    found = model.named_modules(remove_duplicate=False)
    return {path: module for path, module in found if type(module) is nn.Linear}


def _check_model(model: Any) -> None:
    from meq.models.base import FusionModel  # which imports this module to load what was saved

    if not isinstance(model, FusionModel):
        raise TypeError(
            f"`model` must be a fusion model of meq, got {type(model).__name__}: encoders and networks of your own "
            "stay as they are"
        )
    if model.int8 is not None:
        raise ValueError("`model` is an int8 model already: what it answers is what a second rounding would")
    device = next(model.parameters()).device
    if device.type != "cpu":
        raise ValueError(f"int8 is for the CPU, and the model is on {device}: move it by `model.cpu()` first")
