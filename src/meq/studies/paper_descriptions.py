"""The paper's descriptive tables of what was run: data sets, encoders and hyperparameters, from records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from meq.data.request import DATA_SETS
from meq.studies import paper as published
from meq.studies.paper_found import NAMES, NONE, PUBLISHED, Found, one_each, said_of
from meq.studies.settings import EQUILIBRIUM, RANGE, RESIDUAL, Setting, setting_for
from meq.studies.untrained import hyperparameters_table
from meq.tables import Cell, Table

ORDERS: Mapping[str, tuple[str, ...]] = {
    "datasets": ("hateful-memes", "vcr", "vqa-v2", "snli-ve", "mosei"),
    "hyperparameters": ("snli-ve", "hateful-memes", "vcr", "mosei", "vqa-v2"),
    "encoders": ("snli-ve", "hateful-memes", "vqa-v2", "vcr", "mosei"),
}
"""The paper's orders of data sets, by table."""


def datasets_here(found: Sequence[Found], paper: bool, left_out: Mapping[str, str]) -> Table:
    rows: list[dict[str, Cell]] = []
    there = one_each(found)
    for name, each in there.items():
        known = published.TASKS.get(name)
        task = each.task
        classes: Cell = NONE if task is None else len(task.labels) or "a number"
        row: dict[str, Cell] = {"dataset": each.name, "task": known or DATA_SETS[name].summary}
        row |= {split: each.record.data.splits.get(split) or NONE for split in ("train", "dev", "test")}
        rows.append({**row, "classes": classes})
        if paper and name in published.DATA_COUNTS and not each.part.smoke:
            counts, labels = published.DATA_COUNTS[name]
            theirs = dict(zip(("train", "dev", "test"), counts.split(" / "), strict=True))
            rows.append({"dataset": f"{each.name} ({PUBLISHED})", "task": known, **theirs, "classes": labels})
    titles = {"dev": "Val", **{key: key.capitalize() for key in ("dataset", "task", "train", "test", "classes")}}
    notes = ["Counted in what was trained on; a split without labels is not scored."]
    missing = [words for name, words in NAMES.items() if name not in there]
    if missing:
        notes.append(f"Sets of the paper that were not there, and are left out: {', '.join(missing)}.")
    notes += [f"{what} is left out: {why}." for what, why in left_out.items() if what not in DATA_SETS]
    notes += said_of("datasets", list(there.values())) if paper else []
    return Table.of("Data sets, as they were trained on here", rows, titles=titles, notes=notes)


def encoders_here(found: Sequence[Found], paper: bool) -> Table:
    """As the paper has them: the second one reads text, or whatever comes last, the first one all the others."""
    rows: list[dict[str, Cell]] = []
    for data, each in one_each(found).items():
        read, modalities = each.record.data.encoders, list(each.record.model["options"]["widths"])
        words = {modality: read[modality].name if modality in read else AS_THEY_COME for modality in modalities}
        second = "text" if "text" in words else modalities[-1]
        first = [modality for modality in modalities if modality != second]
        named = words[first[0]] if len(first) == 1 else "; ".join(f"{words[name]} ({name})" for name in first)
        rows.append({"dataset": each.name, "first": named, "second": words[second]})
        if paper and data in published.ENCODERS and not each.part.smoke:
            theirs = dict(zip(("first", "second"), published.ENCODERS[data].split("; "), strict=True))
            rows.append({"dataset": f"{each.name} ({PUBLISHED})", **theirs})
    titles = {"dataset": "Dataset", "first": "Modality-1 encoder", "second": "Modality-2 encoder"}
    return Table.of("Input encoders (all frozen)", rows, titles=titles)


AS_THEY_COME = "features as they come"


def hyperparameters_here(found: Sequence[Found], paper: bool, *, quick: bool) -> Table:
    """From the studies that were run: these may differ from the settings of a data set."""
    settings = {
        name: _trained_with(each, quick=quick)
        for name, each in one_each(found).items()
        if any(arm.name == EQUILIBRIUM for arm in each.study.arms)
    }
    return hyperparameters_table(settings, names=NAMES, beside=published.HYPERPARAMETERS if paper else {})


def _trained_with(each: Found, *, quick: bool) -> Setting:
    study = each.study
    arm = study.arm(EQUILIBRIUM)
    jacobian = arm.penalties.get(RANGE, {})
    return replace(
        setting_for(each.part.data, quick=quick, seeds=study.seeds),
        train=study.config(arm.name, study.seeds[0]),
        shape=arm.options,
        lambda_j=jacobian.get("weight", 0.0),
        lambda_f=arm.penalties.get(RESIDUAL, {}).get("weight", 0.0),
        probes=jacobian.get("probes", 1),
    )
