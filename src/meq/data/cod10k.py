"""COD10K: animals that hide, made into a task of binary entailment, with masks that show where the animal is.

Every picture comes with two captions, one with its own animal's name and one with another's. The wrong names of a split
are a permutation of its right ones, so both labels have the same pictures and the same names, each as often: neither
the caption nor the picture alone tells anything.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meq.data.content import MaskFile, PictureFile, Tree
from meq.data.contract import IMAGE, TEXT, DataSet, Example, Rows, plain_example
from meq.data.findings import DataError, Findings, check_choice
from meq.data.metrics import ACCURACY
from meq.data.splitting import check_held_out, split_by_fractions
from meq.options import checked_options

LABELS = ("contradiction", "entailment")
UNNAMED = "Other"
"""The class of animals that have no class: no caption can name them, and they are left out."""
LAYOUTS = ("v3", "sinet")
FORM = "COD10K-CAM-<n>-<Group>-<n>-<Name>-<n>.jpg"
STEM = re.compile(r"COD10K-CAM-\d+-(?P<group>[A-Za-z]+)-\d+-(?P<name>[A-Za-z]+)-\d+")
"""Of a picture with an animal; the NonCAM pictures, for one, are called otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Animal:
    """One picture: what is hidden in it, and where."""

    stem: str
    group: str
    name: str
    picture: PictureFile
    mask: MaskFile | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Caption:
    hidden: _Animal
    name: str
    matched: bool


@dataclass(frozen=True, kw_only=True)
class _Source:
    """Where the pictures of one official split lie; `listing` may be missing, then the folder itself is listed."""

    split: str
    pictures: Path
    masks: Path
    listing: Path | None


@checked_options
def cod10k(
    root: Path, *, findings: Findings | None = None, layout: str | None = None, dev: float = 0.1, seed: int = 0
) -> DataSet:
    """Captions "A [NAME] is hidden in the picture", true or not; `dev` is the share of training pictures to hold out.

    The paper names no split. Here train and dev are the official training pictures, test the official test pictures.
    """
    findings = Findings() if findings is None else findings
    check_held_out("cod10k", dev)
    layout = _detected(root) if layout is None else layout
    left_out: Counter[str] = Counter()
    found = {
        source.split: _read(source, root, findings=findings, left_out=left_out)
        for source in _sources(root, layout, findings)
    }
    for listing in sorted((root / "Info").glob("NonCAM_*.txt")):
        left_out["pictures in which nothing hides (NonCAM)"] += len(_names(listing))
    train = found.get("train", [])
    homes = ["train"] * len(train)
    if 0 < round(dev * len(train)) < len(train):
        homes = split_by_fractions([each.stem for each in train], {"train": 1 - dev, "dev": dev}, seed=seed)
    elif dev:
        findings.absent.append(f"the split dev: {dev:g} of {len(train)} training pictures is none")
    parts = {name: [each for each, home in zip(train, homes, strict=True) if home == name] for name in ("train", "dev")}
    parts["test"] = found.get("test", [])
    captions = {name: _captions(part, name, seed=seed, findings=findings) for name, part in parts.items()}
    return DataSet(
        name="cod10k",
        splits={name: Rows(rows, _example) for name, rows in captions.items() if rows},
        modalities={"image": IMAGE, "text": TEXT},
        labels=LABELS,
        head="classes",
        metric=ACCURACY,
        facts={
            "layout": layout,
            "dev": dev,
            "seed": seed,
            "split": "official train and test; dev drawn from train by picture (the paper names no split)",
            "captions": "two per picture, wrong names a permutation of the right ones",
            "left_out": dict(left_out),
        },
    )


def _detected(root: Path) -> str:
    if any((root / part / "Image").is_dir() for part in ("Train", "Test")):
        return "v3"
    if any((root / part).is_dir() for part in ("TrainDataset", "TestDataset")):
        return "sinet"
    raise DataError(
        f"{root}: no COD10K there; looked for Train/Image and Test/Image (COD10K-v3), "
        "and for TestDataset/COD10K/Imgs and TrainDataset/Imgs (SINet)"
    )


def _sources(root: Path, layout: str, findings: Findings) -> list[_Source]:
    """The official splits that are there."""
    check_choice("cod10k: layout", layout, LAYOUTS)
    candidates = []
    for split, part in (("train", "Train"), ("test", "Test")):
        if layout == "v3":
            folder, names = root / part, ("Image", "GT_Object")
            listing = root / "Info" / f"CAM_{split}.txt"
        else:  # training pictures lie together with another set's, test pictures in a folder of their own
            folder, names, listing = root / f"{part}Dataset", ("Imgs", "GT"), None
            folder = folder / "COD10K" if (folder / "COD10K").is_dir() or split == "test" else folder
        candidates.append(_Source(split=split, pictures=folder / names[0], masks=folder / names[1], listing=listing))
    there = [source for source in candidates if source.pictures.is_dir()]
    findings.absent.extend(
        f"the split {each.split}: no folder {each.pictures.relative_to(root)}"
        for each in candidates
        if each not in there
    )
    if not there:
        raise DataError(f"{root}: no split at all; looked for {', '.join(str(each.pictures) for each in candidates)}")
    return there


def _read(source: _Source, root: Path, *, findings: Findings, left_out: Counter[str]) -> list[_Animal]:
    """The pictures of one official split that have a named animal in them."""
    pictures, masks = Tree(source.pictures, root), Tree(source.masks, root)
    there, masked, seen = set(pictures.names()), set(masks.names()), set[str]()
    kept = []
    for name, place in _listed(source, pictures, findings):
        stem = Path(name).stem
        parsed = STEM.fullmatch(stem)
        if parsed is None:
            if "line" in place:
                findings.report("wrong name", f"{name!r} is not of the form {FORM}", **place)
            else:  # a folder may hold other pictures besides
                left_out["other pictures in the folders"] += 1
        elif stem in seen:
            findings.report("duplicate id", f"{name!r} is listed twice", **place)
        elif parsed["name"] == UNNAMED:
            left_out["animal without a name"] += 1
        elif name not in there:
            findings.report("missing picture", f"{source.pictures.relative_to(root) / name} is missing", **place)
        else:
            picture, mask = pictures.picture(name), None
            if f"{stem}.png" in masked:
                mask = MaskFile(source.masks / f"{stem}.png", root, picture)
            kept.append(
                _Animal(stem=stem, group=parsed["group"], name=in_words(parsed["name"]), picture=picture, mask=mask)
            )
        seen.add(stem)
    bare = [each.stem for each in kept if each.mask is None]
    if bare:  # masks are for grounding: a picture without one is as good for training
        folder = source.masks.relative_to(root)
        findings.absent.append(
            f"masks of {len(bare)} of {len(kept)} {source.split} pictures; the first is {folder}/{bare[0]}.png"
        )
    return kept


def _listed(source: _Source, pictures: Tree, findings: Findings) -> list[tuple[str, dict[str, Any]]]:
    """File names and where each was read, for an error."""
    if source.listing is None or not source.listing.exists():
        if source.listing is not None:
            findings.absent.append(f"{source.listing}: the folder is taken as it is")
        return [(name, {"file": source.pictures}) for name in pictures.names()]
    return [(name, {"file": source.listing, "line": number}) for number, name in _names(source.listing)]


def _names(listing: Path) -> list[tuple[int, str]]:
    """Line number and file name of every line that is not blank: "<name>.jpg 1", the number missing on some."""
    lines = listing.read_text(encoding="utf-8", errors="replace").splitlines()
    return [(number, re.sub(r"\s+[01]$", "", line.strip())) for number, line in enumerate(lines, 1) if line.strip()]


def _captions(pictures: Sequence[_Animal], split: str, *, seed: int, findings: Findings) -> list[_Caption]:
    """Two captions per picture, side by side."""
    pictures = _without_surplus(pictures, split, findings)
    wrong = permuted_names([each.name for each in pictures], random.Random(f"cod10k {split} {seed}"))
    return [
        _Caption(hidden=each, name=name, matched=matched)
        for each, other in zip(pictures, wrong, strict=True)
        for name, matched in ((each.name, True), (other, False))
    ]


def _without_surplus(pictures: Sequence[_Animal], split: str, findings: Findings) -> list[_Animal]:
    """The pictures, as long as no animal is in more than half of them: its wrong captions need other animals' names."""
    kept = list(pictures)
    while kept:
        name, most = Counter(each.name for each in kept).most_common(1)[0]
        if 2 * most <= len(kept):
            break
        last = next(each for each in reversed(kept) if each.name == name)
        findings.report(
            "no wrong caption",
            f"{most} of {len(kept)} pictures of {split} show the same animal ({name}), so wrong captions cannot use "
            "the same names as right ones; choose another share for dev, or add pictures of other animals",
            file=last.picture.path,
        )
        kept.remove(last)
    return kept


def permuted_names(names: Sequence[str], generator: random.Random) -> list[str]:
    """The same names in another order, so that none stands where its equal stood; no name may fill more than half.

    With equal names side by side, a shift by the most frequent name's count does that; random exchanges that keep it
    so take the regularity out.
    """
    count, most = len(names), max(Counter(names).values(), default=0)
    order = sorted(range(count), key=lambda place: names[place])
    wrong = [""] * count
    for place, source in zip(order, order[most:] + order[:most], strict=True):
        wrong[place] = names[source]
    for _ in range(20 * count):
        # of `random`, only random() gives the same numbers in every version of Python
        a, b = int(generator.random() * count), int(generator.random() * count)
        if wrong[a] != names[b] and wrong[b] != names[a]:
            wrong[a], wrong[b] = wrong[b], wrong[a]
    return wrong


def in_words(name: str) -> str:
    """LeafySeaDragon -> leafy sea dragon."""
    return " ".join(re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)).lower()


def caption(name: str) -> str:
    """An owl is hidden in the picture"""
    return f"{'An' if name[0] in 'aeiou' else 'A'} {name} is hidden in the picture"


def _example(row: _Caption) -> Example:
    hidden = row.hidden
    facts = {"name": row.name, "hidden": hidden.name, "group": hidden.group, "picture": hidden.picture.path.name}
    return plain_example(
        id=f"{hidden.stem}/{'matched' if row.matched else 'mismatched'}",
        content={"image": hidden.picture, "text": caption(row.name)},
        target=LABELS.index("entailment" if row.matched else "contradiction"),
        facts=facts if hidden.mask is None else {**facts, "mask": hidden.mask},
    )
