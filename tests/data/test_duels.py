from __future__ import annotations

import json
import pickle
import re
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from meq.data import DATA_SETS, DataSet, Example, open_data
from meq.data.content import Picture
from meq.data.duels import duels, relay
from meq.data.duels_drawing import CARD, FINE, INK, OUTLINES, Cards, draw_cards, sign_cover
from meq.data.duels_worlds import COLOURS, SIGNS, WORDS, Worlds, winner
from meq.encoders.descriptors import WORD

SIZES = {"train": 90, "dev": 45, "test": 45, "deep_test": 45}
DUELS, RELAY = duels(**SIZES), relay(**SIZES)
SETS = {
    "duels": DUELS,
    "relay": RELAY,
    "duels of 16": duels(train=18, dev=9, test=9, deep_test=18, n=16, deep=26),
    "relay of 4": relay(train=18, dev=9, test=9, deep_test=9, n=4, depth=1, deep=2),
    "one question": duels(**SIZES, ask="one"),
    "symbols": duels(**SIZES, form="symbols"),
    "ten signs": relay(**SIZES, signs=10),
    "symbols of 27": duels(**SIZES, form="symbols", signs=27),
    "one symbol": relay(**SIZES, form="symbols", ask="one"),
}
every_set = pytest.mark.parametrize("data", SETS.values(), ids=SETS)


def examples(data: DataSet) -> list[Example]:
    return [example for split in data.splits.values() for example in split]


# -- answers, told without the code under test -------------------------------------------------------------------------

Said = dict[str, list[str] | str]
"""By sign: the signs that are asked, or a colour."""


def read_text(text: str) -> tuple[Said, str | None]:
    """The rules as their sentences say them, and the card that a question is about."""
    question = re.match(r"which colour is (\w+)\? ", text)
    rules = text[question.end() if question else 0 :].rstrip(".").split(". ")
    return read_lines(rules), question[1] if question else None


def read_lines(lines: Sequence[str]) -> Said:
    said: Said = {}
    for line in lines:
        name, words = line.split(": ")
        assert name not in said
        named = re.fullmatch(r"the (?:same as (\w+)|winner of (\w+) and (\w+))", words)
        said[name] = [each for each in named.groups() if each] if named else words
    return said


def read_picture(picture: np.ndarray, n: int) -> list[str]:
    """What the cards say, by comparing their pixels with every sign at every place."""
    grid = round(n**0.5)
    side = len(picture) // grid
    return [
        read_card(picture[row : row + side, column : column + side].astype(int))
        for row in range(0, grid * side, side)
        for column in range(0, grid * side, side)
    ]


def read_card(card: np.ndarray) -> str:
    side = len(card)
    width, edge = 5 * side // 12, side // 16
    middle, far = (side - width) // 2, side - edge - width

    def sign_at(top: int, left: int) -> str | None:
        there = card[top : top + width, left : left + width]
        exact = [name for number, name in enumerate(SIGNS) if (there == inked(number, width)).all()]
        assert len(exact) <= 1
        return exact[0] if exact else None

    own, below = sign_at(edge, middle), [sign_at(far, left) for left in (edge, middle, far)]
    if below[1] is not None:
        return f"{own}: the same as {below[1]}"
    if below[0] is not None and below[2] is not None:
        return f"{own}: the winner of {below[0]} and {below[2]}"
    return f"{own}: {COLOURS[int(card[far + width // 2, side // 2].argmax())]}"


@cache
def inked(sign: int, width: int) -> np.ndarray:
    return CARD + (INK - CARD) * sign_cover(sign, width)[:, :, None] // FINE**2


def follow(said: tuple[Said, Said], side: int, name: str) -> tuple[int, int]:
    """The colour of a token and its depth."""
    words = said[side][name]
    if isinstance(words, str):
        return COLOURS.index(words), 0
    found = [follow(said, 1 - side, each) for each in words]
    colours, depth = [colour for colour, _ in found], 1 + max(depth for _, depth in found)
    beaten = {("red", "green"): "green", ("green", "blue"): "blue", ("blue", "red"): "red"}
    if len(set(colours)) == 1:
        return colours[0], depth
    pair = tuple(COLOURS[colour] for colour in colours)
    return COLOURS.index(beaten.get(pair) or beaten[pair[::-1]]), depth


def read_symbols(example: Example, n: int) -> tuple[tuple[Said, Said], str | None]:
    """The same from features: own address, addresses that are asked, colour."""
    said: list[Said] = []
    question = None
    for name in ("image", "text"):
        said.append({})
        for token in example.content[name]:
            assert set(token.tolist()) == {0.0, 4.0}
            own, asked, colour = ([str(k) for k in x.nonzero().flatten().tolist()] for x in token.split([n, n, 3]))
            if own:
                said[-1][own[0]] = COLOURS[int(colour[0])] if colour else asked
            else:
                question = asked[0]
    return (said[0], said[1]), question


def understood(example: Example, data: DataSet) -> tuple[tuple[Said, Said], str | None]:
    """Cards and rules, from what a model sees and nothing else."""
    n = data.facts["n"]
    image, text = example.content["image"], example.content["text"]
    if not isinstance(image, Picture):
        return read_symbols(example, data.facts["signs"])
    rules, question = read_text(str(text))
    return (read_lines(read_picture(np.asarray(image.open()), n)), rules), question


@every_set
def test_every_answer_and_depth_is_what_reading_the_picture_and_the_text_gives(data: DataSet) -> None:
    for example in examples(data):
        said, question = understood(example, data)
        found = [[follow(said, side, name) for name in said[side]] for side in range(2)]
        depths = [tuple(depth for _, depth in side) for side in found]
        assert list(example.facts["token_depths"].values()) == depths
        assert example.facts["depth"] == max(max(side) for side in depths)
        assert all(sorted(v for v in side.values() if isinstance(v, str)) == sorted(COLOURS) for side in said)
        if question is None:
            assert data.facts["ask"] == "all"
            assert example.target.tolist() == [colour for side in found for colour, _ in side]
            assert example.target.dtype == torch.int64
        else:
            colour, depth = follow(said, 0, question)
            assert (int(example.target), example.facts["hops"]) == (colour, depth)
            assert depth == max(depths[0]) >= example.facts["depth"] - 1


def test_a_token_never_asks_the_same_one_twice_and_always_one_of_the_other_modality() -> None:
    for data, asks in ((DUELS, 2), (RELAY, 1)):
        for example in examples(data):
            said, _ = understood(example, data)
            for side in range(2):
                for asked in (each for each in said[side].values() if isinstance(each, list)):
                    assert len(set(asked)) == asks
                    assert set(asked) <= set(said[1 - side])


def test_the_winner_does_not_care_who_comes_first_and_turns_with_the_colours() -> None:
    one, other = np.divmod(np.arange(9), 3)
    assert (winner(one, other) == winner(other, one)).all()
    assert (winner((one + 1) % 3, (other + 1) % 3) == (winner(one, other) + 1) % 3).all()
    assert winner(np.array([0, 1, 2]), np.array([1, 2, 0])).tolist() == [1, 2, 0]


@pytest.mark.parametrize("form", ["pixels", "symbols"])
def test_a_question_is_a_token_that_answers_and_training_is_told_all_others_too(form: Any) -> None:
    asked, one, every = (duels(**SIZES, form=form, ask=ask) for ask in ("question", "one", "all"))
    assert (asked.head, list(asked.answering)) == ("tokens", ["image", "text"])
    for split in asked.splits:
        for mine, single, plain in zip(asked.splits[split], one.splits[split], every.splits[split], strict=True):
            assert shown(mine, "text") == shown(single, "text")
            question, others = int(mine.target[9]), [*mine.target[:9].tolist(), *mine.target[10:].tolist()]
            assert question == int(single.target)
            assert others == (plain.target.tolist() if split == "train" else [-1] * 18)
            depths, trail = mine.facts["token_depths"], mine.facts["trail"]
            assert depths["text"][1:] == plain.facts["token_depths"]["text"]
            assert trail[0] == ("text", 0)
            assert [depths[modality][token] for modality, token in trail] == list(range(mine.facts["hops"], -1, -1))
            assert mine.facts["hops"] == single.facts["hops"] + 1
            assert mine.facts["because"] == single.facts["because"]


# -- balance, exactly --------------------------------------------------------------------------------------------------


@every_set
def test_given_the_picture_alone_or_the_text_alone_each_asking_token_has_every_colour_equally_often(
    data: DataSet,
) -> None:
    n = data.facts["n"]
    for split in (split for name, split in data.splits.items() if name != "train"):
        for modality in ("image", "text"):
            counts: Counter[tuple[bytes, int, int]] = Counter()
            for example in split:
                depths = [depth for side in example.facts["token_depths"].values() for depth in side]
                key = shown(example, modality)
                if data.head == "classes":
                    counts[key, 0, int(example.target)] += 1
                    continue
                for token, colour in enumerate(example.target.tolist()):
                    if depths[token] > 0:
                        counts[key, token, colour] += 1
            keys = {key[:2] for key in counts}
            assert {key[0] for key in keys} == {shown(example, modality) for example in split}
            assert len(keys) >= len(split) // 3 * (1 if data.head == "classes" else 2 * (n - 3))
            assert all(counts[(*key, colour)] == 1 for key in keys for colour in range(3))


def test_training_sees_one_of_each_nine_drawn_evenly() -> None:
    train = duels(train=3600, dev=9, test=9, form="symbols").splits["train"]
    turns = Counter(example.id.split("-", 2)[2] for example in train)
    assert len(turns) == 9
    assert all(abs(count - 400) < 5 * 400**0.5 for count in turns.values())


def shown(example: Example, modality: str) -> bytes:
    content = example.content[modality]
    if isinstance(content, Picture):
        return content.fingerprint().encode()
    return content.encode() if isinstance(content, str) else content.numpy().tobytes()


@every_set
def test_splits_share_no_picture_and_no_text(data: DataSet) -> None:
    for modality in ("image", "text"):
        contents = [{shown(example, modality) for example in split} for split in data.splits.values()]
        together = [len(split) // (1 if name == "train" else 3) for name, split in data.splits.items()]
        assert [len(seen) for seen in contents] == together
        assert len(set().union(*contents)) == sum(together)
    assert len({example.id for example in examples(data)}) == len(examples(data))
    for name, split in data.splits.items():
        groups = Counter(example.facts["group"] for example in split)
        assert set(groups.values()) == {1 if name == "train" else 9}


def test_names_of_pictures_are_those_of_different_pixels() -> None:
    names = {example.facts["picture"]: shown(example, "image") for example in examples(DUELS)}
    assert len(names) == len(set(names.values())) == SIZES["train"] + (len(examples(DUELS)) - SIZES["train"]) // 3


# -- depths and trails -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [duels, relay])
@pytest.mark.parametrize("depth", [1, 2, 5, 11])
def test_the_greatest_depth_is_exactly_what_was_drawn(make: Callable[..., DataSet], depth: int) -> None:
    for asks in (1, 2):
        worlds = Worlds(tokens=9, asks=asks, depths=(depth, depth), signs=27)
        found = [group for group, _ in zip(worlds.groups((depth, asks), (set(), set())), range(80), strict=False)]
        assert {group.depth for group in found} == {depth}
        assert {int(side) for group in found for side in np.nonzero(group.depths == depth)[0]} == {0, 1}
    data = make(train=9, dev=9, test=9, deep_test=90, depth=depth, deep=12)
    assert {example.facts["depth"] for example in data.splits["deep"]} <= set(range(depth + 1, 13))


def test_depths_are_spread_evenly_over_what_was_asked_for() -> None:
    data = duels(train=3600, dev=9, test=9, deep_test=3600, form="symbols")
    for split, depths in (("train", range(1, 5)), ("deep", range(5, 13))):
        counts = Counter(example.facts["depth"] for example in data.splits[split].plain())  # type: ignore[attr-defined]
        assert set(counts) == set(depths)
        assert min(counts.values()) > 0.6 * 3600 / len(depths)
    assert "deep" not in duels(train=9, dev=9, test=9, deep_test=0).splits


@pytest.mark.parametrize("data", [DUELS, RELAY, SETS["one question"]], ids=["duels", "relay", "one question"])
def test_a_trail_goes_from_the_deepest_token_to_a_terminal_one_exchange_at_a_time(data: DataSet) -> None:
    for example in examples(data):
        trail, depths = example.facts["trail"], example.facts["token_depths"]
        assert [depths[modality][token] for modality, token in trail] == list(range(example.facts["hops"], -1, -1))
        assert all(a[0] != b[0] for a, b in pairwise(trail))
        said, names = {"image": example.facts["cards"], "text": example.facts["rules"]}, []
        for modality, token in trail:
            name, _, words = said[modality][token].partition(": ")
            assert not names or name in names[-1]
            names.append(words.split())
        if data.facts["ask"] == "all":
            assert example.facts["hops"] == example.facts["depth"]


def test_the_mask_holds_the_cards_on_the_trail_and_nothing_else() -> None:
    for example in examples(DUELS)[::7]:
        mask = example.facts["masks"]()["things"]
        on_trail = {token for modality, token in example.facts["trail"] if modality == "image"}
        assert mask.shape == (144, 144)
        assert mask.dtype == bool
        for card in range(9):
            row, column = divmod(card, 3)
            there = mask[48 * row : 48 * row + 48, 48 * column : 48 * column + 48]
            assert there[2:-2, 2:-2].all() if card in on_trail else not there.any()


def test_the_reason_is_said_in_words() -> None:
    example = RELAY.splits["deep"][0]
    colour = COLOURS[
        int(example.target[0 if example.facts["trail"][0][0] == "image" else 9 :][example.facts["trail"][0][1]])
    ]
    assert example.facts["because"].count(" asks ") == example.facts["depth"]
    assert example.facts["because"].endswith(f"is {colour}")


# -- the contract ------------------------------------------------------------------------------------------------------


def test_the_set_says_who_answers_and_by_what_it_is_scored() -> None:
    assert (DUELS.head, DUELS.metric.name, list(DUELS.answering)) == ("tokens", "token accuracy", ["image", "text"])
    assert [metric.name for metric in DUELS.also] == ["whole accuracy"]
    assert DUELS.splits["dev"][0].target.shape == (18,)
    one = SETS["one question"]
    assert (one.head, one.metric.name, list(one.answering)) == ("classes", "accuracy", [])
    assert SETS["symbols"].widths == {"image": 21, "text": 21}
    assert SETS["symbols of 27"].widths == {"image": 57, "text": 57}
    assert SETS["one symbol"].splits["dev"][0].content["text"].shape == (10, 21)


def test_the_same_arguments_give_the_same_set_and_others_another() -> None:
    def few(**options: Any) -> str:
        return duels(train=18, dev=9, test=9, deep_test=9, **options).fingerprint()

    changes: list[dict[str, Any]] = [{}, {"seed": 1}, {"noise": 0.2}, {"size": 192}, {"ask": "one"}, {"depth": 5}]
    prints = [few(**each) for each in [*changes, {"form": "symbols"}, {"deep": 7}, {"signs": 12}]]
    assert few() == prints[0]
    assert len(set(prints)) == len(prints)


def test_the_pictures_and_texts_are_the_same_on_every_machine() -> None:
    """Written down once: a change of NumPy, Pillow or platform that alters a pixel is seen here."""
    sizes = {"train": 18, "dev": 9, "test": 9, "deep_test": 9}
    assert (duels(**sizes).fingerprint()[:16], relay(**sizes).fingerprint()[:16]) == (
        *("188922030145b641", "f733cc2381bc54e2"),
    )


def test_other_splits_do_not_change_with_the_size_of_train_and_a_larger_train_begins_with_the_smaller() -> None:
    small, large = (duels(train=size, dev=36, test=36, deep_test=36) for size in (18, 2709))
    for split in small.splits:
        for one, other in zip(small.splits[split], large.splits[split], strict=False):
            assert (one.id, one.content["text"], one.facts["cards"]) == (
                *(other.id, other.content["text"], other.facts["cards"]),
            )


def test_the_facts_are_enough_to_make_the_set_again() -> None:
    for data in SETS.values():
        facts = json.loads(json.dumps(data.facts))
        options = {option: facts[option] for option in DATA_SETS[data.name].options}
        assert open_data(data.name, **options).fingerprint() == data.fingerprint()


def test_an_example_can_be_sent_to_another_process() -> None:
    example = DUELS.splits["dev"][0]
    again = pickle.loads(pickle.dumps(example.content["image"]))
    assert again.fingerprint() == example.content["image"].fingerprint()
    assert pickle.loads(pickle.dumps(example.facts["masks"]))()["things"].any()


def test_the_words_of_the_sentences_are_known_ones() -> None:
    said = {
        word
        for data in (duels(**SIZES, signs=27), RELAY, SETS["one question"])
        for e in examples(data)
        for word in WORD.findall(e.content["text"])
    }
    assert said == set(WORDS)
    assert len(set(WORDS)) == len(WORDS)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dev": 100}, r"duels: dev must be a multiple of 9 .* got 100, try 99"),
        ({"deep_test": 1}, r"deep_test must be a multiple of 9 .* try 9"),
        ({"n": 8}, r"n must be one of 4, 9, 16, 25, so that cards fill a square; got 8"),
        ({"depth": 13}, r"depth must lie between 1 and 12, which is 2 x \(n - 3\), got 13"),
        ({"depth": 0}, r"depth must lie between 1 and 12"),
        ({"deep": 4}, r"deep must be greater than depth=4 and at most 12, .* or set deep_test=0"),
        ({"deep": 13}, r"deep must be greater than depth=4 and at most 12"),
        ({"signs": 8}, r"signs must lie between n=9 and 27, got 8"),
        ({"signs": 28}, r"signs must lie between n=9 and 27, got 28"),
        ({"form": "pixel"}, r"duels has no form 'pixel': did you mean 'pixels'\?"),
        ({"ask": "two"}, r"duels has no ask 'two'"),
        ({"size": 145}, r"size must be a multiple of 3 from 96 to 2048 pixels, got 145"),
        ({"noise": 2.0}, r"noise is a share"),
        (
            {"n": 4, "depth": 1, "deep": 2, "form": "symbols", "train": 90_000},
            r"with n=4 there are no more than \d+ examples for train .* ask for fewer, or for a greater n",
        ),
    ],
)
def test_wrong_options_are_refused_in_words(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        duels(**options)
    with pytest.raises(TypeError, match="did you mean 'depth'"):
        duels(depht=1)


# -- pictures ----------------------------------------------------------------------------------------------------------


def test_every_sign_has_an_outline_and_any_two_differ_in_many_pixels_at_twelve_a_side() -> None:
    assert set(OUTLINES) == set(SIGNS)
    covers = np.stack([sign_cover(sign, 12) / FINE**2 for sign in range(len(SIGNS))])
    apart = np.abs(covers[:, None] - covers).sum((2, 3)) + 100 * np.eye(len(SIGNS))
    assert apart.min() > 20  # of 144
    assert covers.sum((1, 2)).min() > 20


@pytest.mark.parametrize("size", [96, 144, 240])
def test_a_picture_of_any_size_shows_the_same_cards(size: int) -> None:
    data = duels(train=9, dev=9, test=9, deep_test=9, size=size)
    example = data.splits["dev"][0]
    picture = example.content["image"].open()
    assert picture.size == (size, size)
    assert read_picture(np.asarray(picture), 9) == list(example.facts["cards"])


def test_noise_changes_pixels_and_nothing_else() -> None:
    plain, noisy = (duels(train=9, dev=9, test=9, deep_test=9, noise=noise) for noise in (0.0, 0.25))
    for one, other in zip(examples(plain), examples(noisy), strict=True):
        assert one.target.equal(other.target)
        before, after = (np.asarray(e.content["image"].open()).astype(int) for e in (one, other))
        assert 10 < np.abs(before - after).mean() < 20
        assert np.abs(before - after).max() == 32


def test_a_card_is_drawn_by_its_own_sign_and_who_it_asks() -> None:
    def drawn(asked: tuple[int, ...], colour: int = -1) -> np.ndarray:
        cards = Cards(signs=(0,) * 4, asked=(asked,) * 4, colours=(colour,) * 4, size=96, noise=0.0, seeds=(0,))
        return np.asarray(draw_cards(cards))[:48, :48]

    assert (drawn((1, 2))[:23] == drawn((), 0)[:23]).all()
    assert not (drawn((1, 2)) == drawn((2, 1))).all()
    assert [COLOURS[int(drawn((), colour)[34, 24].argmax())] for colour in range(3)] == list(COLOURS)
