"""The mutual equilibrium of an image and a text in plain PyTorch, to be read from top to bottom.

Each modality has a state, and each state is updated by reading itself and the other. Repeat the update until nothing
moves: what is left is the pair of representations that agree on each other, z_a = F_a(x_a, z_a, z_b) for both.
`meq.MutualEquilibrium` is this model, with any number of modalities, missing ones, per-sample stopping, other solvers
and other gradients; the tests hold the two equal.

Shapes: B batch, N tokens of a modality, M tokens of the other, D width, H heads, C classes, K steps.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def attend(query: Tensor, key: Tensor, value: Tensor, real: Tensor | None, heads: int) -> Tensor:
    q, k, v = (x.unflatten(-1, (heads, -1)).transpose(1, 2) for x in (query, key, value))  # B H N|M D/H
    keys = None if real is None else real[:, None, None, :]  # B 1 1 M, True where the token is real
    return F.scaled_dot_product_attention(q, k, v, attn_mask=keys).transpose(1, 2).flatten(2)  # B N D


class FeedForward(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm, self.widen, self.narrow = nn.LayerNorm(dim), nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x: Tensor) -> Tensor:  # B N D -> B N D
        return x + self.narrow(F.gelu(self.widen(self.norm(x))))


class Side(nn.Module):
    """F of one modality: u = alpha S(z) + (1 - alpha) M(z, other) + f(x), then z + g (LN(u) - z)."""

    def __init__(self, width: int, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.inject = nn.Linear(width, dim)  # f
        # Everything that is read from a state is one matrix product: q, k, v for S, q for M, the k and v that the
        # other side's M will read, and the gate's half that looks at the state.
        self.norm, self.project = nn.LayerNorm(dim), nn.Linear(dim, 7 * dim)
        self.own_output, self.own_feed = nn.Linear(dim, dim), FeedForward(dim)  # S
        self.cross_output, self.cross_feed = nn.Linear(dim, dim), FeedForward(dim)  # M
        self.balance = nn.Parameter(torch.zeros(()))  # alpha = sigmoid(balance), one half at first
        # Without this norm the state could grow by the injection at every step, and there would be no fixed point.
        self.settle = nn.LayerNorm(dim)
        self.gate = nn.Linear(dim, dim, bias=False)  # the gate's other half, which looks at the proposal

    def read(self, z: Tensor) -> tuple[Tensor, ...]:
        return self.project(self.norm(z)).chunk(7, dim=-1)  # seven of B N D

    def forward(
        self,
        z: Tensor,  # B N D
        injection: Tensor,  # B N D
        pieces: tuple[Tensor, ...],  # of this state
        others: tuple[Tensor, ...],  # of the other one
        real: Tensor | None,  # B N
        others_real: Tensor | None,  # B M
    ) -> Tensor:
        own_query, own_key, own_value, cross_query, _, _, gate = pieces
        _, _, _, _, shown_key, shown_value, _ = others
        own = self.own_feed(z + self.own_output(attend(own_query, own_key, own_value, real, self.heads)))
        cross = attend(cross_query, shown_key, shown_value, others_real, self.heads)
        cross = self.cross_feed(z + self.cross_output(cross))
        alpha = torch.sigmoid(self.balance)
        proposal = self.settle(alpha * own + (1 - alpha) * cross + injection)
        openness = torch.sigmoid(gate + self.gate(proposal))  # per token and channel
        return z + openness * (proposal - z)  # a closed gate is the identity: the state rests wherever it is


class Pair(nn.Module):
    def __init__(self, widths: dict[str, int], classes: int, dim: int, heads: int, steps: int) -> None:
        super().__init__()
        self.steps = steps
        self.sides = nn.ModuleDict({name: Side(width, dim, heads) for name, width in widths.items()})
        self.head = nn.Sequential(nn.Linear(2 * dim, 1024), nn.GELU(), nn.Linear(1024, classes))

    def operator(self, state: dict[str, Tensor], injections: dict[str, Tensor], real: dict[str, Tensor]):
        """T: both sides from the old states, so that it does not matter which of them comes first."""
        pieces = {name: side.read(state[name]) for name, side in self.sides.items()}
        first, second = self.sides
        return {
            a: self.sides[a](state[a], injections[a], pieces[a], pieces[b], real.get(a), real.get(b))
            for a, b in ((first, second), (second, first))
        }

    def forward(self, features: dict[str, Tensor], real: dict[str, Tensor]):
        """`features`: B N W per modality. `real`: B N for those with padding, True where a token is real."""
        # Zeros instead of what the padding holds: a NaN there would survive the mask, since 0 * NaN is NaN.
        features = {a: x.masked_fill(~real[a][..., None], 0) if a in real else x for a, x in features.items()}
        injections = {a: side.inject(features[a]) for a, side in self.sides.items()}  # once, not at every step
        state, residuals = dict(injections), []  # starting from the features, one step already carries the other's news
        for _ in range(self.steps):
            image = self.operator(state, injections, real)
            # |z - T(z)| / |z| of the map itself. A damped step is half as long, which would look better than it is.
            residuals.append({a: size(image[a] - z, real.get(a)) / size(z, real.get(a)) for a, z in state.items()})
            # Halfway only: damping calms a map that would swing around its fixed point, and leaves that point alone.
            state = {a: z + 0.5 * (image[a] - z) for a, z in state.items()}
        pooled = [mean(z, real.get(a)) for a, z in state.items()]  # two of B D
        return self.head(torch.cat(pooled, dim=-1)), state, residuals


def mean(z: Tensor, real: Tensor | None) -> Tensor:  # B N D -> B D
    if real is None:
        return z.mean(1)
    return z.masked_fill(~real[..., None], 0).sum(1) / real.sum(1, keepdim=True)


def size(z: Tensor, real: Tensor | None) -> Tensor:  # B N D -> B, the norm over the real tokens
    z = z.detach() if real is None else z.detach().masked_fill(~real[..., None], 0)
    return z.flatten(1).norm(dim=1)


if __name__ == "__main__":
    torch.manual_seed(0)
    model = Pair({"image": 512, "text": 384}, classes=3, dim=128, heads=4, steps=10)
    image, text = torch.randn(2, 50, 512), torch.randn(2, 32, 384)
    real = torch.arange(32) < torch.tensor([[32], [20]])  # the second sentence has 20 words
    logits, state, residuals = model({"image": image, "text": text}, {"text": real})
    print("logits", tuple(logits.shape))
    for k, residual in enumerate(residuals):
        print(f"step {k}: residual", "  ".join(f"{a} {value.mean():.4f}" for a, value in residual.items()))
    F.cross_entropy(logits, torch.tensor([0, 2])).backward()  # through all the steps, by plain autograd
    print(f"the gradient reaches {sum(p.grad is not None for p in model.parameters())} parameters")
