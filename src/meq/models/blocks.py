"""Parts of the iterated map. Tensors in, tensors out; a block never iterates."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from meq.core.state import State, is_transformed, token_mask


def attend(
    query: Float[Tensor, "B N D"],
    key: Float[Tensor, "B M D"],
    value: Float[Tensor, "B M D"],
    *,
    heads: int,
    mask: Bool[Tensor, "B M"] | None = None,
) -> Float[Tensor, "B N D"]:
    """softmax(q k^T / sqrt(D / heads)) v per head, over the keys that are real: at least one per sample."""
    q, k, v = (x.unflatten(-1, (heads, -1)).transpose(1, 2) for x in (query, key, value))
    mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=None if mask is None else mask[:, None, None, :])
    return mixed.transpose(1, 2).flatten(2)


def attention_weights(
    query: Float[Tensor, "B N D"], key: Float[Tensor, "B M D"], *, heads: int, mask: Bool[Tensor, "B M"] | None = None
) -> Float[Tensor, "B H N M"]:
    """softmax(q k^T / sqrt(D / heads)): what `attend` mixes by, for looking at; hidden keys get exactly 0."""
    q, k = (x.unflatten(-1, (heads, -1)).transpose(1, 2) for x in (query, key))
    scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    return (scores if mask is None else scores.masked_fill(~mask[:, None, None, :], -math.inf)).softmax(-1)


def check_heads(dim: int, heads: int) -> None:
    if dim % heads:
        fitting = [count for count in range(1, dim + 1) if dim % count == 0 and count <= 64]
        raise ValueError(f"dim={dim} cannot be split into {heads} heads: choose one of {', '.join(map(str, fitting))}")


class Attention(nn.Module):
    """Attention with its own projections, for parts that are not iterated: o(attend(q x, k y, v y))."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        check_heads(dim, heads)
        self.heads = heads
        self.query, self.output = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.key_value = nn.Linear(dim, 2 * dim)

    def forward(
        self, x: Float[Tensor, "B N D"], y: Float[Tensor, "B M D"], mask: Bool[Tensor, "B M"] | None = None
    ) -> Float[Tensor, "B N D"]:
        key, value = self.key_value(y).chunk(2, dim=-1)
        return self.output(attend(self.query(x), key, value, heads=self.heads, mask=mask))


def readable_keys(
    names: Sequence[str], state: State | Mapping[str, Tensor], masks: Mapping[str, Tensor]
) -> tuple[Bool[Tensor, "B M"] | None, Bool[Tensor, " B"] | None]:
    """The mask over the concatenated tokens of `names`, and which samples have a token to read at all; None means all.

    A sample without any keeps all its keys, since a softmax over nothing is NaN; its result must be dropped.
    """
    if not any(name in masks for name in names):
        return None, None
    keys = torch.cat([token_mask(masks.get(name), state[name]) for name in names], dim=1)
    someone = keys.any(1)
    return keys | ~someone[:, None], someone


def is_lean(x: Tensor) -> bool:
    """May work on `x` write over what it has made itself? Where no gradient is taken, and nobody traces it."""
    return not (torch.is_grad_enabled() or torch.compiler.is_compiling() or is_transformed(x))


def is_own(made: Tensor, layer: nn.Module, given: Tensor) -> bool:
    """May what a layer made of a tensor be written over? Not where it handed that on, or a hook may have kept it."""
    heard = layer._forward_hooks or torch.nn.modules.module._global_forward_hooks
    return made is not given and not heard and is_lean(made)


class RealTokens:
    """The real tokens of a batch one after the other, so that products with weights leave out the padding."""

    def __init__(self, mask: Bool[Tensor, "B N"]) -> None:
        self.shape = mask.shape
        self.rows = mask.flatten().nonzero().squeeze(1)

    def take(self, x: Float[Tensor, "B N D"]) -> Float[Tensor, "R D"]:
        return x.flatten(0, 1).index_select(0, self.rows)

    def spread(self, x: Float[Tensor, "R D"]) -> Float[Tensor, "B N D"]:
        """Zeros where there is no token."""
        whole = x.new_zeros(self.shape.numel(), x.shape[-1]).index_copy_(0, self.rows, x)
        return whole.unflatten(0, self.shape)

    def of_samples(self, values: Tensor) -> Tensor:
        """Values per sample (B), to broadcast over tokens that were taken."""
        return values[self.rows // self.shape[1], None]


class AllTokens:
    """Tokens where they are: nothing is left out."""

    def take(self, x: Tensor) -> Tensor:
        return x

    def spread(self, x: Tensor) -> Tensor:
        return x

    def of_samples(self, values: Tensor) -> Tensor:
        return values[:, None, None]


ALL_TOKENS = AllTokens()
COPIES = 12
"""Copying a token that stays, here and there in a step, costs about as much as so many columns of its products."""
CALLS = 2**18
"""And the calls for it as much as so many weights of one product with a token."""


def real_tokens(x: Float[Tensor, "B *N D"], mask: Bool[Tensor, "B N"] | None) -> RealTokens | AllTokens:
    """The real tokens, where leaving out the others pays; an accelerator is not asked, which would make it wait."""
    if mask is None or mask.device.type != "cpu" or mask.ndim != 2 or not is_lean(x):
        return ALL_TOKENS
    found, dim = RealTokens(mask), x.shape[-1]
    stay = len(found.rows)
    saved = (mask.numel() - stay) * dim
    return found if saved >= COPIES * stay and saved * dim >= CALLS else ALL_TOKENS


AT_ONCE = 256
"""Tokens that a feed-forward widens at once without gradients: products lose nothing, and the wide ones stay few."""


class FeedForward(nn.Module):
    """x + W2 gelu(W1 LN(x))"""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.widen, self.narrow = nn.Linear(dim, hidden), nn.Linear(hidden, dim)

    def forward(self, x: Float[Tensor, "*B D"], keep: Float[Tensor, "*#B D"] | None = None) -> Float[Tensor, "*B D"]:
        """`keep` is a dropout mask for the branch, already scaled."""
        if keep is None and is_lean(x) and x.shape[:-1].numel() >= 2 * AT_ONCE:
            made = x.new_empty(x.shape)
            for rows, into in zip(x.flatten(0, -2).split(AT_ONCE), made.flatten(0, -2).split(AT_ONCE), strict=True):
                torch.add(rows, self._branch(rows), out=into)
            return made
        branch = self._branch(x)
        return x + (branch if keep is None else branch * keep)

    def _branch(self, x: Float[Tensor, "*B D"]) -> Float[Tensor, "*B D"]:
        normed = self.norm(x)
        wide = self.widen(normed)
        own = is_own(wide, self.widen, normed)
        del normed  # so that a product holds no more than it reads and makes
        return self.narrow(torch.ops.aten.gelu_(wide) if own else F.gelu(wide))


class MLP(nn.Sequential):
    """W2 gelu(W1 x)"""

    def __init__(self, width_in: int, hidden: int, width_out: int) -> None:
        super().__init__(nn.Linear(width_in, hidden), nn.GELU(), nn.Linear(hidden, width_out))


class SoftGate(nn.Module):
    """g = floor + (1 - floor) sigmoid(W [n; u]), then z + g (u - z): per token and channel.

    W's half that reads n is part of the state's one fused projection; here is the half that reads u.
    """

    def __init__(self, dim: int, floor: float) -> None:
        super().__init__()
        if not 0 <= floor < 1:
            raise ValueError(f"the gate's floor must lie in [0, 1), got {floor}")
        self.floor = floor
        self.read_proposal = nn.Linear(dim, dim, bias=False)

    def openness(self, from_state: Float[Tensor, "*B D"], proposal: Float[Tensor, "*B D"]) -> Float[Tensor, "*B D"]:
        """g, between the floor and 1; `from_state` is the half of W [n; u] that reads n, bias included."""
        read = self.read_proposal(proposal)
        own = is_own(read, self.read_proposal, proposal)
        opened = read.add_(from_state).sigmoid_() if own else torch.sigmoid(from_state + read)
        return opened if self.floor == 0 else self.floor + (1 - self.floor) * opened

    def forward(
        self, state: Float[Tensor, "*B D"], from_state: Float[Tensor, "*B D"], proposal: Float[Tensor, "*B D"]
    ) -> Float[Tensor, "*B D"]:
        # not lerp: under autocast the three differ in dtype
        return torch.addcmul(state, self.openness(from_state, proposal), proposal - state)


class DecayingCarry(nn.Module):
    """a z + (1 - a) u with a = exp(-softplus(d)) per channel: what is carried over fades, whatever the state says.

    It starts at a = 1/2, and its fixed points are those of u alone. It stands where a `SoftGate` may; it reads nothing.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.rate = nn.Parameter(torch.zeros(dim))
        """d"""

    def openness(self, from_state: Tensor, proposal: Float[Tensor, "*B D"]) -> Float[Tensor, "*B D"]:
        """1 - a, the same for every token."""
        return torch.sigmoid(self.rate).expand_as(proposal)  # 1 - exp(-softplus(d))

    def forward(
        self, state: Float[Tensor, "*B D"], from_state: Tensor, proposal: Float[Tensor, "*B D"]
    ) -> Float[Tensor, "*B D"]:
        return torch.addcmul(state, self.openness(from_state, proposal), proposal - state)


class SpatialMixer(nn.Module):
    """W_out(a * (sum_o W_o LN(b_o) + bias)), with a = gelu(W_a n), b_o = gelu(W_b n_o) over every state o.

    W_o mixes the tokens of state o into this state's, so the longest input of every modality has to be known; rows of
    padding are zero.
    """

    def __init__(self, name: str, max_tokens: Mapping[str, int], dim: int, hidden: int) -> None:
        super().__init__()
        self.name, self.max_tokens = name, dict(max_tokens)
        self.read_own, self.read_all = nn.Linear(dim, hidden), nn.Linear(dim, hidden)
        self.norm, self.output = nn.LayerNorm(hidden), nn.Linear(hidden, dim)
        own = self.max_tokens[name]
        self.weights = nn.ParameterDict(
            # near zero, with a bias of one: the block starts as a plain feed-forward, as in the gMLP paper
            {other: nn.Parameter(1e-3 * torch.randn(own, longest)) for other, longest in self.max_tokens.items()}
        )
        self.bias = nn.Parameter(torch.ones(own, 1))

    def forward(
        self, normed: Mapping[str, Float[Tensor, "B _ D"]], masks: Mapping[str, Bool[Tensor, "B _"]]
    ) -> Float[Tensor, "B N D"]:
        length = normed[self.name].shape[1]
        mixed: Tensor = self.bias[:length]
        for other, n in normed.items():
            tokens = self.norm(F.gelu(self.read_all(n)))
            if other in masks:
                tokens = tokens.masked_fill(~masks[other][..., None], 0)
            mixed = mixed + self.weights[other][:length, : n.shape[1]] @ tokens
        return self.output(F.gelu(self.read_own(normed[self.name])) * mixed)

    def check_length(self, lengths: Mapping[str, int]) -> None:
        for name, length in lengths.items():
            if length > self.max_tokens[name]:
                raise ValueError(
                    f"{name!r} has {length} tokens, but the gMLP mixer was built for at most {self.max_tokens[name]}: "
                    "its mixing weights belong to token positions. Raise max_tokens, or cut the input"
                )


def masked_mean(x: Float[Tensor, "B N D"], mask: Bool[Tensor, "B N"] | None) -> Float[Tensor, "B D"]:
    """The mean of the real tokens; a sample without any gives zero, which its caller must replace."""
    if mask is None:
        return x.mean(1)
    total = x.masked_fill(~mask[..., None], 0).sum(1)
    return total / mask.sum(1, keepdim=True).clamp(min=1).to(x.dtype)


def or_stand_in(vector: Float[Tensor, "B D"], mask: Tensor | None, stand_in: Tensor) -> Float[Tensor, "B D"]:
    """The vector, or a learned stand-in where a sample lacks the modality: a mask (B) or (B N) without any True."""
    if mask is None:
        # touched on purpose: a parameter that some steps do not use would break distributed training
        return vector + 0 * stand_in
    present = mask if mask.ndim == 1 else mask.any(1)
    return torch.where(present[:, None], vector, stand_in.to(vector.dtype))


class Injection(nn.Module):
    """f(x) = W x, per token."""

    def __init__(self, width: int, dim: int) -> None:
        super().__init__()
        self.project = nn.Linear(width, dim)

    def forward(self, x: Float[Tensor, "B N W"]) -> Float[Tensor, "B N D"]:
        return self.project(x)


class PooledInjection(Injection):
    """f(x) = W mean(x) over the real tokens: one vector per modality."""

    def forward(self, x: Float[Tensor, "B N W"], mask: Bool[Tensor, "B N"] | None = None) -> Float[Tensor, "B D"]:
        return self.project(masked_mean(x, mask))


def keep_masks(
    batch: int,
    shape: tuple[int, ...],
    rate: float,
    *,
    like: Tensor,
    seeds: Int[Tensor, " B"] | None = None,
) -> Float[Tensor, "*axes"]:
    """Dropout for an iterated map, drawn once per solve: the same at every step, or T would not be a map.

    Scaled keep masks, one per sample: 0 with probability `rate`, else 1 / (1 - rate).

    With `seeds` every sample draws from its own generator, so that neither its neighbours nor the number of processes
    changes what it gets; otherwise torch's global generator is used.
    """
    if seeds is None:
        uniform = torch.rand(batch, *shape, device=like.device)
    else:
        drawn = [torch.rand(shape, generator=torch.Generator().manual_seed(seed)) for seed in seeds.tolist()]
        uniform = torch.stack(drawn).to(like.device)
    return (uniform >= rate).to(like.dtype) / (1 - rate)
