"""Cards in a picture and rules in a text that ask each other for a colour: how such worlds are made and balanced.

Three cards and three rules are terminals, one of each colour. Every other one asks one token of the other modality, or
two different ones, in which case its answer is the winner of theirs: green beats red, blue beats green, red beats blue,
and of equal colours it is that colour. A terminal has depth 0, any other token one more than the deepest that it asks.

The winner commutes with turning all colours on by one. So if in a picture every reference to a terminal of the text is
moved to the terminal whose colour comes a places later, and the picture's own terminals are recoloured likewise, the
answers of all tokens that ask somebody turn by a, in both modalities; the same goes for a text turned by b. A group is
the nine pairs of a picture turned by 0, 1, 2 and a text turned by 0, 1, 2: given the picture alone, or the text alone,
every token of depth 1 or more has each colour exactly once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

from meq.data.scenes_drawing import Dice

COLOURS = ("red", "green", "blue")
"""Each beats the one before it, and the first the last."""
TURNS = len(COLOURS)
MODALITIES = ("image", "text")
SIGNS = (
    *("star", "moon", "cross", "heart", "ring", "arrow", "square", "diamond", "triangle", "bolt", "hourglass"),
    *("ladder", "key", "flag", "house", "fish", "cup", "crown", "tree", "eye", "wave", "gate", "fork", "hook"),
    *("stairs", "comb", "net"),
)
"""What cards and rules are known by; `duels_drawing` has their outlines."""
WORDS = (*SIGNS, *COLOURS, "the", "winner", "of", "and", "same", "as", "which", "colour", "is", ":", ".", "?")
"""Every word and mark of the sentences."""
BLOCK = 256
"""Groups that are drawn at once."""
FRUITLESS = 4
"""Blocks in a row without a new group, after which there are taken to be no more."""

Links = Int[np.ndarray, "2 N W"]
"""By modality and token: the tokens of the other modality that it asks, -1 for a terminal."""


def winner(one: Int[np.ndarray, "*axes"], other: Int[np.ndarray, "*axes"]) -> Int[np.ndarray, "*axes"]:
    """The colour that beats the other, colour c beats c - 1 (mod 3)."""
    return np.where((other - one) % TURNS == 1, other, one)


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """A picture and a text before they are turned; first axis: the modality."""

    links: Links
    colours: Int[np.ndarray, "2 N"]
    """Of the terminals; -1 for all others."""
    signs: Int[np.ndarray, "2 N"]
    depths: Int[np.ndarray, "2 N"]
    answers: Int[np.ndarray, "2 N"]
    asked: int
    """The card that a question is about: one of the deepest cards."""

    @property
    def depth(self) -> int:
        return int(self.depths.max())

    def turned(self, turns: tuple[int, int]) -> Group:
        """The picture and the text, each turned by so many colours."""
        links, colours = self.links.copy(), self.colours.copy()
        for side, turn in enumerate(turns):
            terminals = np.argsort(self.colours[1 - side], kind="stable")[-TURNS:]  # of the other modality, by colour
            reached = np.where(self.links[side] >= 0, self.colours[1 - side][self.links[side]], -1)
            links[side] = np.where(reached >= 0, terminals[(reached + turn) % TURNS], self.links[side])
            colours[side] = np.where(self.colours[side] >= 0, (self.colours[side] + turn) % TURNS, -1)
        own = np.where(self.depths > 0, sum(turns), np.array(turns)[:, None])
        return Group(links, colours, self.signs, self.depths, (self.answers + own) % TURNS, self.asked)

    def seen(self, side: int) -> bytes:
        """What one modality shows, order of the asked apart: signs, who is asked, colours."""
        asked = np.where(self.links[side] >= 0, self.signs[1 - side][self.links[side]], -1)
        return np.column_stack([self.signs[side], np.sort(asked, axis=1), self.colours[side]]).tobytes()

    def trail(self, side: int, token: int) -> tuple[tuple[int, int], ...]:
        """From a token to a terminal, always on to the deepest that is asked: (modality, token) at every step."""
        steps = [(side, token)]
        while self.depths[side, token] > 0:
            asked = self.links[side, token]
            side, token = 1 - side, int(asked[self.depths[1 - side, asked].argmax()])
            steps.append((side, token))
        return tuple(steps)

    def deepest(self) -> tuple[int, int]:
        """The first token of the greatest depth."""
        side, token = divmod(int(self.depths.argmax()), self.depths.shape[1])
        return side, token

    def sentences(self, side: int) -> tuple[str, ...]:
        """What every token of a modality says, in words: "star: the winner of moon and cross"."""
        own, others = ([SIGNS[sign] for sign in self.signs[each].tolist()] for each in (side, 1 - side))
        said = []
        for name, asked, colour in zip(own, self.links[side].tolist(), self.colours[side].tolist(), strict=True):
            named = [others[each] for each in asked]
            words = "the same as " if len(named) == 1 else "the winner of "
            said.append(f"{name}: {words + ' and '.join(named) if colour < 0 else COLOURS[colour]}")
        return tuple(said)


@dataclass(frozen=True, kw_only=True)
class Worlds:
    """What kind of groups to draw."""

    tokens: int
    """Of each modality."""
    asks: int
    """How many others a token asks that is no terminal."""
    depths: tuple[int, int]
    """The least and the greatest depth of a group."""
    signs: int
    """How many signs there are to draw from."""

    def groups(self, seeds: tuple[int, ...], used: tuple[set[bytes], set[bytes]]) -> Iterator[Group]:
        """New groups without end: no picture and no text is in `used`, which grows. It ends where none are left."""
        fruitless = block = 0
        while fruitless < FRUITLESS:
            fruitless, new = fruitless + 1, 0
            for group in self._block(Dice((*seeds, block))):
                turned = [group.turned((turn, turn)) for turn in range(TURNS)]
                seen = [{each.seen(side) for each in turned} for side in range(2)]
                if not any(mine & before for mine, before in zip(seen, used, strict=True)):
                    for mine, before in zip(seen, used, strict=True):
                        before |= mine
                    new += 1
                    yield group
            block, fruitless = block + 1, 0 if new else fruitless

    def _block(self, dice: Dice) -> Iterator[Group]:
        """Groups that are drawn together: what is drawn for one does not depend on how many are taken."""
        least, most = self.depths
        wanted = least + dice.draw(most - least + 1, BLOCK)
        links, colours, depths, answers = self._forest(dice, wanted)
        swapped = dice.draw(2, BLOCK) == 1  # the trail begins in the picture, or in the text
        for each in (links, colours, depths, answers):
            each[:, swapped] = each[::-1, swapped]
        places = np.stack([_shuffled(dice, self.tokens) for _ in range(2)])
        signs = np.stack([_shuffled(dice, self.signs)[:, : self.tokens] for _ in range(2)])
        draws = dice.draw(1 << 32, BLOCK)
        for row in range(BLOCK):
            order = np.argsort(places[:, row], axis=1)  # which token lies at each place
            mine = np.stack([links[side, row][order[side]] for side in range(2)])
            moved = np.stack([np.where(mine[s] >= 0, places[1 - s, row][mine[s]], -1) for s in range(2)])
            depth, colour, answer = (np.take_along_axis(x[:, row], order, 1) for x in (depths, colours, answers))
            cards = np.flatnonzero(depth[0] == depth[0].max())
            yield Group(moved, colour, signs[:, row], depth, answer, int(cards[draws[row] % len(cards)]))

    def _forest(self, dice: Dice, wanted: Int[np.ndarray, " G"]) -> tuple[np.ndarray, ...]:
        """Who asks whom: a trail of the wanted depth, modalities in turn, then the rest, at random but never deeper.

        Tokens come in this order, every second one of the same modality; the first three of each are terminals.
        """
        count, rows = len(wanted), np.arange(len(wanted))
        links = np.full((2, count, self.tokens, self.asks), -1)
        colours, depths = np.full((2, count, self.tokens), -1), np.zeros((2, count, self.tokens), dtype=int)
        for side in range(2):
            colours[side, :, :TURNS] = _shuffled(dice, TURNS, count)
        answers = colours.copy()
        for step in range(2 * (self.tokens - TURNS)):
            side, token = step % 2, TURNS + step // 2
            there = TURNS + (step + 1) // 2  # tokens of the other modality so far
            known, deep = answers[1 - side], depths[1 - side]
            score = np.where(deep[:, :there] < wanted[:, None], dice.draw(1 << 32, count, there), -1)
            asked = np.argsort(-score, axis=1, kind="stable")[:, : self.asks]  # terminals can always be asked
            last = there - 1 if step else 0
            on_trail = (step < wanted)[:, None] & (asked != last).all(1, keepdims=True)
            place = dice.draw(self.asks, count)
            asked = np.where(on_trail & (np.arange(self.asks) == place[:, None]), last, asked)
            links[side, :, token] = asked
            depths[side, :, token] = 1 + deep[rows[:, None], asked].max(1)
            mine = known[rows[:, None], asked]
            answers[side, :, token] = mine[:, 0] if self.asks == 1 else winner(mine[:, 0], mine[:, 1])
        return links, colours, depths, answers


def _shuffled(dice: Dice, things: int, count: int = BLOCK) -> Int[np.ndarray, "G T"]:
    """The numbers below `things` in an order of its own for every group."""
    return np.argsort(dice.draw(1 << 32, count, things), axis=1, kind="stable")
