"""The tables of the measure `grounding`."""

from __future__ import annotations

from meq.analysis.grounding import SCORES
from meq.experiments.measures.contract import Found, Values
from meq.experiments.measures.grounding_pictures import words_in
from meq.experiments.measures.summary import SPREADS, arms_in, by_seed, mean_and_spread, over_seeds
from meq.experiments.render import Cell, Column, Table
from meq.experiments.study import Study

SENTENCES = ("true", "wrong", "irrelevant")


def grounding_tables(study: Study, values: Values) -> dict[str, Table]:
    """By arm the scores over k and P(entailment) over k; accuracy of all arms."""
    made = {}
    for arm in arms_in(study, values):
        found = by_seed(study, values, arm)
        if found[0]["grounding"]:
            made[f"grounding-scores-{arm}"] = _scores(study, arm, found)
        made[f"p-entailment-{arm}"] = _p_entailment(study, arm, found)
    return {**made, "grounding-accuracy": _accuracy(study, values)} if made else {}


def _scores(study: Study, arm: str, found: list[Found]) -> Table:
    first = found[0]
    pairs = [(method, score) for method in first["grounding"] for score in SCORES]
    columns = [Column(key="k", title="k")]
    columns += [Column(key=f"{method} {score}", title=f"{method}, {score}", digits=3) for method, score in pairs]
    rows: list[tuple[Cell, ...]] = []
    for place, k in enumerate(first["steps"]):
        cells = [over_seeds(found, "grounding", method, score, place)[0] for method, score in pairs]
        rows.append((_step(k, first), *cells))
    rows.append(("constant map", *[first["constant"]] * len(pairs)))
    rows.append(("best possible", *(first["best_possible"][score] for _, score in pairs)))
    notes = [
        f"Mean over pictures, then over seeds: {first['with_masks']} of {_pictures(first)} have a mask of what the "
        "statement speaks of. Maps are of the score of entailment, with the true statement.",
        "Best possible: for maps that are constant within a token.",
        *(f"{name}: {meaning}." for name, meaning in SCORES.items()),
        *(f"{method} is left out: {reason}." for method, reason in first["left_out"].items()),
        *_uncounted(found),
    ]
    title = f"{study.name}: {arm}, do the maps of step k lie on it? ({first['data']})"
    return Table(title=title, columns=tuple(columns), rows=tuple(rows), notes=tuple(notes))


def _uncounted(found: list[Found]) -> list[str]:
    """Maps that are zero throughout have no score; where there are such, how many."""
    lines = []
    for method in found[0]["grounding"]:
        least = min(count for each in found for count in each["grounding"][method]["counted"])
        if least < found[0]["with_masks"]:
            lines.append(f"{method}: maps that are zero throughout are not counted, so that at some k {least} count.")
    return lines


def _p_entailment(study: Study, arm: str, found: list[Found]) -> Table:
    first = found[0]
    names = [name for name in SENTENCES if name in first["p_entailment"]]
    columns = [Column(key="k", title="k")]
    for name in names:
        columns += [Column(key=name, title=name), Column(key=f"{name} spread", title="spread")]
    rows: list[tuple[Cell, ...]] = []
    for place, k in enumerate(first["p_entailment"]["steps"]):
        cells: list[Cell] = [_step(k, first)]
        for name in names:
            cells += over_seeds(found, "p_entailment", name, place)
        rows.append(tuple(cells))
    sentence = first["irrelevant"]
    notes = (
        f"Mean over {_pictures(first)}; {SPREADS[0].lower()}{SPREADS[1:]} True and wrong: a statement of the set whose "
        f'label is entailment or contradiction. Irrelevant: "{sentence["text"]}", {words_in(sentence)}.',
    )
    title = f"{study.name}: {arm}, P(entailment) read at step k ({first['data']})"
    return Table(title=title, columns=tuple(columns), rows=tuple(rows), notes=notes)


def _accuracy(study: Study, values: Values) -> Table:
    first = next(iter(values.values()))
    read, horizon = first["read"], first["horizon"]
    kinds = {"score": "", **({"all_labels": ", all labels"} if "all_labels" in first["accuracy"] else {})}
    columns = [Column(key="arm", title="arm")]
    for kind, words in kinds.items():
        for key, k in (("read", read), ("far", horizon)):
            columns += [
                Column(key=f"{kind} {key}", title=f"at {k}{words}"),
                Column(key=f"{kind} {key} spread", title="spread"),
            ]
    columns.append(Column(key="samples", title="samples"))
    rows = []
    for arm in arms_in(study, values):
        found = by_seed(study, values, arm)
        cells: list[Cell] = [arm]
        for kind in kinds:
            for key in ("read", "horizon"):
                cells += mean_and_spread([_at(each, kind, key) for each in found])
        rows.append((*cells, found[0]["accuracy"]["samples"]))
    notes = [f"All that is said of {_pictures(first)}, {first['with_masks']} of them with a mask. {SPREADS}"]
    if "all_labels" in kinds:
        notes.append(
            f"{first['data']} has fewer labels than the model: an answer is the likeliest of the set's own labels; "
            "with all labels, an answer outside of them is wrong."
        )
    title = f"{study.name}: accuracy at the read depth, and far beyond it ({first['data']}, {first['split']})"
    return Table(title=title, columns=tuple(columns), rows=tuple(rows), notes=tuple(notes))


def _at(found: Found, kind: str, key: str) -> float:
    return float(found["accuracy"][kind][found["accuracy"]["steps"].index(found[key])])


def _pictures(found: Found) -> str:
    return f"{found['pictures']} picture{'s' if found['pictures'] != 1 else ''} of {found['split']}"


def _step(k: int, found: Found) -> str:
    return f"{k} = K" if k == found["read"] else str(k)
