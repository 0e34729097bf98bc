"""duels and relay: cards in a picture and rules in a text that ask each other for a colour, to any depth.

Generated from a seed; nothing to download. A card or rule says a colour, or whom of the other modality to ask: one in
`relay`, two in `duels`, whose answers then play rock-paper-scissors. To know a colour, one has to go from the picture
to the text and back as often as the trail is long. Worlds come in groups of nine (`duels_worlds`): given the picture
alone, or the text alone, every token that asks somebody has each colour equally often. What is measured is measured on
whole groups. Training sees one drawn from each group, so that it sees as many worlds as it has examples.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from math import isqrt
from typing import Any, Literal, get_args

import numpy as np
from jaxtyping import Bool, Float, Int

from meq.data.content import DrawnPicture
from meq.data.contract import IMAGE, TEXT, DataSet, Example, Modality, Rows, features, plain_example
from meq.data.duels_drawing import LEAST, Cards, draw_cards, mask_of_cards
from meq.data.duels_worlds import COLOURS, MODALITIES, SIGNS, TURNS, Group, Worlds
from meq.data.metrics import ACCURACY, TOKEN_ACCURACY, WHOLE_ACCURACY
from meq.data.scenes_drawing import Dice
from meq.options import checked_options, nearest

GROUP = TURNS**2
"""Three pictures with three texts each."""
SPLITS = ("train", "dev", "test", "deep")
NUMBERS = (4, 9, 16, 25)
"""How many cards a square table may have."""
SIDE = 48
"""Pixels of a card unless the size of the picture is given."""
GAIN = 4.0
"""Of features that are made directly."""
RULES = {
    1: "A card or rule has the colour that it says, or the colour of the one that it names in the other modality.",
    2: (
        "A card or rule has the colour that it says, or that of the winner of the two that it names in the other "
        "modality: green beats red, blue beats green, red beats blue."
    ),
}
"""By how many a token asks."""

Form = Literal["pixels", "symbols"]
Ask = Literal["all", "one", "question"]


@checked_options
def duels(
    *,
    train: int = 14_400,
    dev: int = 900,
    test: int = 900,
    deep_test: int = 900,
    depth: int = 4,
    deep: int = 12,
    n: int = 9,
    signs: int | None = None,
    form: Form = "pixels",
    ask: Ask = "all",
    size: int | None = None,
    noise: float = 0.0,
    seed: int = 0,
) -> DataSet:
    """Generate the set; the same arguments always give the same examples.

    The depth of an example is drawn from 1 to `depth`; in the split `deep`, of `deep_test` examples, from `depth` + 1
    to `deep`. `n`: cards, and rules; a square number. `signs`: how many there are to draw theirs from, n unless given.
    `form`: pixels, or symbols, where tokens are features already. `ask`: all, where each card and rule says its colour;
    one, where the text begins with a question about a card, and an example has one answer; question, where that
    question is a token whose answer is what is measured, and in training all tokens say theirs.
    `size`: pixels of the picture's side, 48 per card unless given. `noise`: from 0 to 1, of the picture. Splits share
    no picture and no text, and dev and test do not change with the size of train.
    """
    counts = {"train": train, "dev": dev, "test": test, "deep": deep_test}
    return _make("duels", 2, counts, _Asked(depth, deep, n, signs, form, ask, size, noise, seed))


@checked_options
def relay(
    *,
    train: int = 14_400,
    dev: int = 900,
    test: int = 900,
    deep_test: int = 900,
    depth: int = 4,
    deep: int = 12,
    n: int = 9,
    signs: int | None = None,
    form: Form = "pixels",
    ask: Ask = "all",
    size: int | None = None,
    noise: float = 0.0,
    seed: int = 0,
) -> DataSet:
    """Generate the set, in which a token asks one other; options as for `duels`."""
    counts = {"train": train, "dev": dev, "test": test, "deep": deep_test}
    return _make("relay", 1, counts, _Asked(depth, deep, n, signs, form, ask, size, noise, seed))


@dataclass(frozen=True, slots=True)
class _Asked:
    """The options that are not counts."""

    depth: int
    deep: int
    n: int
    signs: int | None
    form: Form
    ask: Ask
    size: int | None
    noise: float
    seed: int

    @property
    def vocabulary(self) -> int:
        return self.n if self.signs is None else self.signs


@dataclass(frozen=True, slots=True)
class _Row:
    """One example, before it is turned and drawn."""

    split: str
    number: int
    """Of the group."""
    group: Group
    turns: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Masks:
    """Called, it draws the exact mask of the cards on a trail, as a boolean array of the picture's size."""

    cards: Cards
    trail: tuple[int, ...]
    """The cards on it."""

    def __call__(self) -> dict[str, Bool[np.ndarray, "H W"]]:
        """`things`: the cards that have to be read for the answer at the end of the trail."""
        return {"things": mask_of_cards(self.cards, self.trail)}


def _make(name: str, asks: int, counts: Mapping[str, int], asked: _Asked) -> DataSet:
    _check(name, counts, asked)
    size = asked.size if asked.size is not None else SIDE * isqrt(asked.n)
    used: tuple[set[bytes], set[bytes]] = (set(), set())
    rows = {}
    for split in ("test", "dev", "deep", "train"):
        depths = (asked.depth + 1, asked.deep) if split == "deep" else (1, asked.depth)
        worlds = Worlds(tokens=asked.n, asks=asks, depths=depths, signs=asked.vocabulary)
        if counts[split]:
            rows[split] = _rows(name, split, counts[split], worlds, asked.seed, used)
        elif split != "deep":
            rows[split] = []
    every = asked.ask != "one"
    drawn = asked.form == "pixels"
    return DataSet(
        name=name,
        splits={
            split: Rows(rows[split], partial(_example, asked=asked, size=size)) for split in SPLITS if split in rows
        },
        modalities={"image": IMAGE, "text": TEXT} if drawn else dict.fromkeys(MODALITIES, _symbols(asked.vocabulary)),
        labels=COLOURS,
        head="tokens" if every else "classes",
        metric=TOKEN_ACCURACY if every else ACCURACY,
        also=(WHOLE_ACCURACY,) if every else (),
        answering=MODALITIES if every else (),
        facts={
            **{"train": counts["train"], "dev": counts["dev"], "test": counts["test"], "deep_test": counts["deep"]},
            **{
                "depth": asked.depth,
                "deep": asked.deep,
                "n": asked.n,
                "signs": asked.vocabulary,
                "form": asked.form,
                "ask": asked.ask,
            },
            **{"size": size, "noise": asked.noise, "seed": asked.seed, "rule": RULES[asks]},
            **({"grid": isqrt(asked.n), "read_by": {"image": "marks", "text": "sentences"}} if drawn else {}),
        },
    )


def _rows(
    name: str, split: str, count: int, worlds: Worlds, seed: int, used: tuple[set[bytes], set[bytes]]
) -> list[_Row]:
    whole = split != "train"
    wanted = count // GROUP if whole else count
    groups = list(islice(worlds.groups((seed, SPLITS.index(split)), used), wanted))
    if len(groups) < wanted:
        raise ValueError(
            f"{name}: with n={worlds.tokens} there are no more than {len(groups) * (GROUP if whole else 1)} examples "
            f"for {split} whose picture or text no other example has, and {count} were asked for: ask for fewer, or "
            "for a greater n"
        )
    if not whole:
        drawn = Dice((seed, SPLITS.index(split), len(SPLITS))).draw(TURNS, wanted, 2).tolist()
        return [_Row(split, number, group, (drawn[number][0], drawn[number][1])) for number, group in enumerate(groups)]
    turns = [(a, b) for a in range(TURNS) for b in range(TURNS)]
    return [_Row(split, number, group, each) for number, group in enumerate(groups) for each in turns]


# -- examples ----------------------------------------------------------------------------------------------------------


def _example(row: _Row, *, asked: _Asked, size: int) -> Example:
    world = row.group.turned(row.turns)
    asks = asked.ask != "all"
    start = (0, world.asked) if asks else world.deepest()
    trail = world.trail(*start)
    answers, depths, told = _by_token(world, row.split, asked.ask)
    if asked.ask == "question":  # it stands before the rules
        trail = ((1, -1), *trail)
    group = f"{row.split}-{row.number}"
    picture = f"{group}-{row.turns[0]}"
    facts: dict[str, Any] = {
        "depth": world.depth,
        "hops": len(trail) - 1,
        "token_depths": dict(zip(MODALITIES, depths, strict=True)),
        "trail": tuple((MODALITIES[side], token + (len(depths[side]) - asked.n)) for side, token in trail),
        "group": group,
        "picture": picture,
        "cards": world.sentences(0),
        "rules": world.sentences(1),
        "because": _because(world, trail[-1 - int(world.depths[start]) :]),
    }
    content: dict[str, Any]
    if asked.form == "symbols":
        content = {name: _vectors(world, side, asked.vocabulary, question=asks) for side, name in enumerate(MODALITIES)}
    else:
        seeds = (asked.seed, SPLITS.index(row.split), row.number, row.turns[0], 1)
        cards = _cards(world, size=size, noise=asked.noise, seeds=seeds)
        facts["masks"] = Masks(cards, tuple(token for side, token in trail if side == 0))
        said = [f"{sentence}." for sentence in facts["rules"]]
        question = [f"which colour is {SIGNS[world.signs[start]]}?"] if asks else []
        content = {
            "image": DrawnPicture(f"cards {picture}", partial(draw_cards, cards)),
            "text": " ".join([*question, *said]),
        }
    return plain_example(
        id=f"{group}-{row.turns[0]}-{row.turns[1]}",
        content=content,
        target=int(world.answers[start]) if asked.ask == "one" else np.where(told, answers, -1),
        facts=facts,
    )


def _by_token(
    world: Group, split: str, ask: Ask
) -> tuple[Int[np.ndarray, " T"], tuple[tuple[int, ...], tuple[int, ...]], Bool[np.ndarray, " T"]]:
    """The answers of all tokens, their depths by modality, and which of them are asked for."""
    answers, depths = world.answers.reshape(-1).astype(np.int64), [tuple(each) for each in world.depths.tolist()]
    if ask != "question":
        return answers, (depths[0], depths[1]), np.ones(len(answers), dtype=bool)
    cards, card = world.answers.shape[1], world.asked
    answers = np.insert(answers, cards, world.answers[0, card])
    told = np.full(len(answers), split == "train")
    told[cards] = True
    return answers, (depths[0], (depths[0][card] + 1, *depths[1])), told


def _cards(world: Group, *, size: int, noise: float, seeds: tuple[int, ...]) -> Cards:
    signs = world.signs.tolist()
    return Cards(
        signs=tuple(signs[0]),
        asked=tuple(tuple(signs[1][other] for other in card if other >= 0) for card in world.links[0].tolist()),
        colours=tuple(world.colours[0].tolist()),
        size=size,
        noise=noise,
        seeds=seeds,
    )


def _because(world: Group, trail: tuple[tuple[int, int], ...]) -> str:
    """The trail in words: "card moon asks rule star asks card heart: red", and what comes back of it."""
    named = [f"{('card', 'rule')[side]} {SIGNS[world.signs[side, token]]}" for side, token in trail]
    end, start = trail[-1], trail[0]
    answer = f", so that {named[0]} is {COLOURS[world.answers[start]]}" if len(trail) > 1 else ""
    return f"{' asks '.join(named)}, which is {COLOURS[world.colours[end]]}{answer}"


def _symbols(signs: int) -> Modality:
    return features(2 * signs + TURNS)


def _vectors(world: Group, side: int, signs: int, *, question: bool) -> Float[np.ndarray, "N W"]:
    """Per token: its own address, those that it asks, its colour. A question is a rule that only asks."""
    own = np.eye(signs)[world.signs[side]]
    asks = np.zeros_like(own)
    token, way = np.nonzero(world.links[side] >= 0)
    asks[token, world.signs[1 - side][world.links[side][token, way]]] = 1
    colour = np.eye(TURNS)[world.colours[side]] * (world.colours[side] >= 0)[:, None]
    rows = np.concatenate([own, asks, colour], axis=1)
    if question and side == 1:
        first = np.zeros((1, rows.shape[1]))
        first[0, signs + world.signs[0, world.asked]] = 1
        rows = np.concatenate([first, rows])
    return (GAIN * rows).astype(np.float32)


# -- what is asked for -------------------------------------------------------------------------------------------------


def _check(name: str, counts: Mapping[str, int], asked: _Asked) -> None:
    for split, count in counts.items():
        if split == "train" and count >= 0:
            continue
        if count < 0 or count % GROUP:
            near = max(GROUP, round(count / GROUP) * GROUP)
            option = "deep_test" if split == "deep" else split
            raise ValueError(
                f"{name}: {option} must be a multiple of {GROUP} (three pictures x three texts), or colours could not "
                f"be balanced; got {count}, try {near}"
            )
    if asked.n not in NUMBERS:
        raise ValueError(
            f"{name}: n must be one of {', '.join(map(str, NUMBERS))}, so that cards fill a square; got {asked.n}"
        )
    if not asked.n <= asked.vocabulary <= len(SIGNS):
        raise ValueError(f"{name}: signs must lie between n={asked.n} and {len(SIGNS)}, got {asked.signs}")
    most = 2 * (asked.n - TURNS)
    if not 1 <= asked.depth <= most:
        raise ValueError(f"{name}: depth must lie between 1 and {most}, which is 2 x (n - 3), got {asked.depth}")
    if counts["deep"] and not asked.depth < asked.deep <= most:
        raise ValueError(
            f"{name}: deep must be greater than depth={asked.depth} and at most {most}, which is 2 x (n - 3), got "
            f"{asked.deep}; or set deep_test=0 for no such split"
        )
    for option, value, known in (("form", asked.form, ("pixels", "symbols")), ("ask", asked.ask, get_args(Ask))):
        if value not in known:
            raise ValueError(f"{name} has no {option} {value!r}: {nearest(value, known)}")
    side, least = isqrt(asked.n), LEAST * isqrt(asked.n)
    if asked.size is not None and (asked.size % side or not least <= asked.size <= 2048):
        raise ValueError(f"{name}: size must be a multiple of {side} from {least} to 2048 pixels, got {asked.size}")
    if not 0 <= asked.noise <= 1:
        raise ValueError(f"{name}: noise is a share, between 0 and 1; got {asked.noise}")
