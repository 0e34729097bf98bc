"""The paper's tables, assembled from the records of many studies as the paper prints them: its rows, columns and signs.

Scores are in percent, AUROC as a fraction, differences in points. Every table says on which split its scores are.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from meq.studies import paper as published
from meq.studies.compare import CALLED, paired_difference
from meq.studies.cost_study import cost_tables, is_cost, read_cost
from meq.studies.measures.coupling import Coupling
from meq.studies.measures.fixed_point import FixedPoint, largest
from meq.studies.measures.grounding import Grounding
from meq.studies.measures.robustness import CLEAN, Robustness
from meq.studies.measures.steps import ALL, Steps
from meq.studies.paper_descriptions import ORDERS, datasets_here, encoders_here, hyperparameters_here
from meq.studies.paper_found import (
    NONE,
    PUBLISHED,
    QUICK,
    SMOKE,
    Found,
    PaperPart,
    no_or,
    percent,
    said_of,
)
from meq.studies.settings import EQUILIBRIUM
from meq.studies.study import StudyError, read_study
from meq.studies.untrained import COST
from meq.tables import Cell, Table


def assembled(
    folder: Path,
    parts: Sequence[PaperPart],
    *,
    quick: bool,
    paper: bool = False,
    left_out: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Table]:
    """By name: every table of the paper that something was run for; `paper` sets its own figures beside ours.

    `left_out` is what could not be run, with why; the table of data sets names it.
    """
    found = [each for each in (Found(part, folder / part.folder) for part in parts) if each.records]
    made = {}
    for name, (study, order, make) in TABLES.items():
        mine = _in_order([each for each in found if each.part.study == study], order)
        if mine:
            made[name] = _noted(name, make(mine, paper), mine, paper)
    if is_cost(folder / COST):
        made |= _cost(folder / COST, paper=paper, smoke=all(part.smoke for part in parts))
    made["datasets"] = datasets_here(_in_order(found, ORDERS["datasets"]), paper, left_out)
    made["encoders"] = encoders_here(_in_order(found, ORDERS["encoders"]), paper)
    real = [each for each in _in_order(found, ORDERS["hyperparameters"]) if not each.part.smoke]
    if real:
        made["hyperparameters"] = hyperparameters_here(real, paper, quick=quick)
    if quick:
        made = {name: replace(table, notes=(*table.notes, QUICK)) for name, table in made.items()}
    return made


def beside_paper(folder: Path) -> dict[str, Table]:
    """The paper's tables of one study alone, with its own figures; nothing where the paper has none."""
    study = read_study(folder)
    if study.name.endswith(f"-{SMOKE}"):
        raise StudyError(f"{study.name!r} is a smoke test, whose scores say nothing: no figures go beside it")
    known = {name for name, *_ in TABLES.values()}
    asked = [name for name in known if study.name == name or study.name.startswith(f"{name}-")]
    if not asked:
        return {}
    part = PaperPart(study=max(asked, key=len), data=study.data.name, folder=folder.name)
    found = Found(part, folder)
    if not found.records:
        return {}
    made = {}
    for name, (of, _, make) in TABLES.items():
        if of == part.study and (said_of(name, [found]) or make([found], True) != make([found], False)):
            table = _noted(name, make([found], True), [found], True)
            quick = (QUICK,) if study.name.endswith("-quick") else ()
            made[f"{PUBLISHED}-{name}"] = replace(table, notes=(*table.notes, *quick))
    return made


def _noted(name: str, table: Table, found: Sequence[Found], paper: bool) -> Table:
    """The table with what has to be said beside it."""
    said = said_of(name, found) if paper else []
    return replace(table, notes=(*table.notes, *_notes(found, paper, MEASURED.get(name)), *said))


def _in_order(found: Sequence[Found], order: Sequence[str]) -> list[Found]:
    """The paper's order of its data sets, then ours."""
    return sorted(found, key=lambda each: order.index(each.part.data) if each.part.data in order else len(order))


def _notes(found: Sequence[Found], paper: bool, measure: str | None = None) -> list[str]:
    """`measure` is what the table shows, where it is no score of training."""
    splits = ", ".join(f"{each.name} {_splits(each, measure)}" for each in found)
    counts = sorted({len(each.study.seeds) for each in found})
    seeds = f"{' or '.join(map(str, counts))} seed{'s' if counts[-1] > 1 else ''}"
    notes = [
        f"Splits: {splits}. Scores are means over {seeds} unless a line names its seed; differences in points; called: "
        "the mean difference exceeds twice the sample standard deviation of the paired differences."
    ]
    failed = [
        f"{each.name}, {arm}, seed {seed}" for each in found for (arm, seed), r in each.records.items() if r.error
    ]
    if failed:
        notes.append(f"Failed runs, which have no score: {'; '.join(failed)}.")
    if any(each.part.smoke for each in found):
        notes.append(f"{SMOKE}: a few updates on a few examples, to see that it runs; its scores say nothing.")
    if paper:
        notes.append(f'{PUBLISHED}: figures of "{published.TITLE}", on its own evaluation splits; not measured here.')
    return notes


def _splits(each: Found, measure: str | None) -> str:
    """Where the table's numbers are from: a measure may have read another split, or another set."""
    if measure is None:
        return each.split
    results = each.measured.get(measure, {}).values()
    own = each.part.data
    read = {
        f"{result['data']} {result['split']}" if result.get("data", own) != own else str(result["split"])
        for result in results
    }
    return " or ".join(sorted(read)) or each.split


# -- one function for each table ---------------------------------------------------------------------------------------


def _main(found: Sequence[Found], paper: bool) -> Table:
    best = "best attention"

    def ours(each: Found) -> dict[str, Cell]:
        row: dict[str, Cell] = {**each.head, "concat": each.mean("concat"), "best": each.mean(best)}
        row["meq"] = each.mean(EQUILIBRIUM)
        for key, arm in (("concat", "concat"), ("best", best)):  # the paper subtracts the other arm from its own
            row[f"{key} less"], row[f"{key} called"] = each.against(arm, sign=-1)
        return row

    def theirs(each: Found) -> dict[str, Cell] | None:
        if each.part.data not in published.MAIN_DIFFERENCES:  # COD10K has a table of its own
            return None

        def column(values: Mapping[str, float]) -> dict[str, Cell]:
            scores = {"concat": values["concat"], "best": values[best], "meq": values["meq"]}
            less = dict(zip(("concat less", "best less"), published.MAIN_DIFFERENCES[each.part.data], strict=True))
            judged = published.MAIN_CALLED.get(each.part.data, ("", ""))
            called = dict(zip(("concat called", "best called"), judged, strict=True))
            return {**{key: each.score(value) for key, value in scores.items()}, **less, **called}

        return each.beside("main", column)

    titles = {"dataset": "Dataset", "metric": "Metric", "concat": "Concat", "best": "Best attn.", "meq": "MEQ"}
    titles |= {"concat less": "MEQ less concat", "concat called": "called"}
    titles |= {"best less": "MEQ less attn.", "best called": "called "}
    return Table.of(
        "Accuracy across multimodal benchmarks",
        _rows(found, ours, theirs, paper),
        titles=titles,
        notes=("Best attn.: the better on dev of parameter-matched cross- and self-attention.",),
    )


def _modality(found: Sequence[Found], paper: bool) -> Table:
    shown = {"text-only": "Text only", "image-only": "Image only"}

    def ours(each: Found) -> dict[str, Cell]:
        row: dict[str, Cell] = {**each.head, "both": each.mean(EQUILIBRIUM)}
        for arm in shown:
            row[arm] = each.mean(arm)
            _, row[f"{arm} called"] = each.against(arm)
        return row

    def theirs(each: Found) -> dict[str, Cell] | None:
        return each.beside(
            "modality",
            lambda values: {"both": each.score(values["meq"]), **{arm: each.score(values.get(arm)) for arm in shown}},
        )

    titles = {"dataset": "Dataset", "metric": "Metric", "both": "Both", **shown}
    titles |= {f"{arm} called": "called" + " " * at for at, arm in enumerate(shown)}
    notes = ("Each entry is trained anew with the others zeroed at the encoder's output; both: all modalities.",)
    return Table.of("Single-modality controls", _rows(found, ours, theirs, paper), titles=titles, notes=notes)


CONFIGURATIONS: Mapping[str, Mapping[str, str]] = {
    "ablation": {
        "meq": "Full MEQ",
        "no-gate": "w/o soft gating",
        "gate": "with soft gating",
        "no-cross": "w/o cross-attention",
        "no-self": "w/o self-attention",
        "one-step": "Single iteration",
    },
    "collapse": {
        "residual": "lambda_f = 0.3, no floor",
        "gate-floor": "lambda_f = 0.3, gate floor 0.1",
        "cross-floor": "lambda_f = 0.3, cross floor",
        "no-residual": "lambda_f = 0",
    },
    "state": {
        "meq": "MEQ (coupled states)",
        "single-state": "Single state, block-matched",
        "single-state-model-matched": "Single state, model-matched",
        "feature-sum": "Feature-sum, one vector",
    },
    "mixer": {"meq": "Cross-attention", "meq-gmlp": "gMLP"},
    "readout": {"control": "Capacity-matched control", "merge": "Cross-attention merge", "meq": "Pooled"},
}
"""By table: the arms in the paper's order and words."""
WORDS: Mapping[tuple[str, str], str] = {
    ("vqa-v2", "single-state"): "Single state, token level",
    ("mosei", "single-state"): "Single state (replaced block)",
}
"""Where the paper calls an arm otherwise on one of its sets."""


def _configurations(title: str, name: str) -> Callable[[Sequence[Found], bool], Table]:
    """Tables with a line per arm."""

    def make(found: Sequence[Found], paper: bool) -> Table:
        rows: list[dict[str, Cell]] = []
        for each in found:
            theirs = each.figures(name) if paper else {}
            differences = each.differences(name) if paper else {}
            coupling = Coupling().typed(each.measured.get("coupling", {})) if name == "collapse" else {}
            for arm, words in CONFIGURATIONS[name].items():
                if arm not in each.lines and arm not in {**theirs, **differences}:
                    continue
                less, called = each.against(arm)
                words = WORDS.get((each.part.data, arm), words)
                row: dict[str, Cell] = {"dataset": each.name, "configuration": words, "score": each.mean(arm)}
                row |= {"less": less, "called": called}
                if coupling:
                    mine = [result for (of, _), result in coupling.items() if of == arm]
                    path = next((key for result in mine for key in result.cross_self), None)
                    row["gate"] = _mean_of(result.gate.get(path or "") for result in mine)
                    row["cross_self"] = _mean_of(result.cross_self.get(path or "") for result in mine)
                if theirs or differences:
                    row[PUBLISHED] = each.score(theirs.get(arm))
                    row["paper less"], row["paper called"] = differences.get(arm, (NONE, ""))
                    extra = published.SAFEGUARDS.get(arm) if name == "collapse" else None
                    row |= {} if extra is None else {"paper gate": extra[0], "paper cross_self": extra[1]}
                rows.append(row)
        first = found[0]
        titles = {"dataset": "Dataset", "configuration": "Configuration", "score": "Score"}
        titles |= {
            "less": f"less {first.study.reference}",
            "cross_self": "cross/self",
            PUBLISHED: f"score ({PUBLISHED})",
        }
        titles |= {"paper less": f"less {first.study.reference} ({PUBLISHED})", "paper called": f"called ({PUBLISHED})"}
        titles |= {"paper gate": f"gate ({PUBLISHED})", "paper cross_self": f"cross/self ({PUBLISHED})"}
        notes = [PATH] if name == "collapse" else [BLOCK] if name == "state" else []
        notes += [f"{each.name}: {note}" for each in found for note in each.study.notes]
        return Table.of(title, rows, titles=titles, notes=notes)

    return make


BLOCK = "A single state and a feature sum are as large as MEQ in their block, unless they are called model-matched."
PATH = "Gate and cross/self: of the first path, at the kept weights, means over seeds."


def _residual(found: Sequence[Found], paper: bool) -> Table:
    arms = {"residual": "0.3", "no-residual": "0"}

    def ours(each: Found) -> dict[str, Cell]:
        coupling = Coupling().typed(each.measured.get("coupling", {}))
        row: dict[str, Cell] = {"dataset": each.name}
        for arm in arms:
            mine = [result for (of, _), result in coupling.items() if of == arm]
            found = _mean_of(largest(result.residual.values()) for result in mine)
            row[f"residual {arm}"] = _power(found)
        means = {arm: each.lines[arm].mean for arm in arms if arm in each.lines}
        row |= {f"score {arm}": percent(means.get(arm)) for arm in arms}  # the paper has AUROC in percent here, too
        row["less"], row["called"] = each.against("residual")
        return row

    def theirs(each: Found) -> dict[str, Cell] | None:
        def column(values: Mapping[str, float]) -> dict[str, Cell]:
            known = published.RESIDUALS[each.part.data]
            row: dict[str, Cell] = {f"residual {arm}": _power(x) for arm, x in zip(arms, known, strict=True)}
            return {**row, **{f"score {arm}": percent(values[arm]) for arm in arms}}

        return each.beside("residual", column)

    titles = {"dataset": "Dataset", "less": "with less without"}
    titles |= {f"residual {arm}": f"residual, lambda_f = {weight}" for arm, weight in arms.items()}
    titles |= {f"score {arm}": f"metric, lambda_f = {weight}" for arm, weight in arms.items()}
    read = sorted({str(x["split"]) for each in found for x in each.measured.get("coupling", {}).values()})
    notes = (
        f"Residual: at the read state on {' or '.join(read) or 'dev'}, the larger modality, mean over samples and "
        "seeds.",
    )
    return Table.of("Effect of the residual penalty", _rows(found, ours, theirs, paper), titles=titles, notes=notes)


def _fixed_point(found: Sequence[Found], paper: bool) -> Table:
    rows: list[dict[str, Cell]] = []
    for each in found:
        for (_, seed), result in FixedPoint().typed(each.measured.get("fixed-point", {})).items():
            residual = [largest(pair[at] for pair in result.residual.values()) for at in (0, 1)]
            rows.append(
                {
                    "dataset": each.name,
                    "seed": str(seed),
                    "radius": statistics.fmean(result.radius) if result.radius else None,
                    "drift": largest(result.drift.values()),
                    "residual read": _power(residual[0]),
                    "residual far": _power(residual[1]),
                    "metric read": f"{100 * result.score[0]:.1f}",  # the paper has AUROC in percent here, too
                    "metric far": f"{100 * result.score[1]:.1f}",
                    "n": result.samples,
                }
            )
        theirs = published.FIXED_POINT.get(each.part.data) if paper and not each.part.smoke else None
        if theirs is not None:
            keys = ("seed", "radius", "drift", "residual read", "residual far", "metric read", "metric far", "n")
            rows.append({"dataset": f"{each.name} ({PUBLISHED})", **dict(zip(keys, theirs, strict=True))})
    titles = {"dataset": "Dataset", "radius": "rho at z(K)", "residual read": "residual at z(K)"}
    titles |= {"residual far": "at z(far)", "metric read": "metric at z(K)", "metric far": "at z(far)"}
    far = sorted(
        {r.horizon for each in found for r in FixedPoint().typed(each.measured.get("fixed-point", {})).values()}
    )
    notes = (f"far: k = {' or '.join(map(str, far))}. rho: of the undamped map, mean over some samples.",)
    return Table.of(
        "Fixed-point behaviour at the read depth", rows, titles=titles, digits={"radius": 3, "drift": 2}, notes=notes
    )


def _robustness(found: Sequence[Found], paper: bool) -> Table:
    rows: list[dict[str, Cell]] = []
    for each in found:
        results = Robustness().typed(each.measured.get("robustness", {}))
        kinds = list(dict.fromkeys(kind for result in results.values() for kind in (CLEAN, *result.scores)))
        theirs = published.ROBUSTNESS if paper and each.part.data == "hateful-memes" and not each.part.smoke else {}
        for kind in kinds:
            scores = {
                arm: {
                    seed: value
                    for (of, seed), r in results.items()
                    if of == arm and (value := r.score(kind)) is not None
                }
                for arm in ("concat", EQUILIBRIUM)
            }
            difference, _, verdict = paired_difference(each.study.seeds, scores[EQUILIBRIUM], scores["concat"])
            row: dict[str, Cell] = {"dataset": each.name, "perturbation": _perturbation(kind)}
            row |= {arm: each.score(_mean_of(values.values())) for arm, values in scores.items()}
            row["less"] = NONE if difference is None else f"{100 * difference:+.2f}"
            row["called"] = "yes" if verdict == CALLED else no_or(verdict)
            if kind in theirs:
                row["paper concat"], row["paper meq"] = (each.score(value) for value in theirs[kind])
                row["paper less"], row["paper called"] = published.ROBUSTNESS_CALLED.get(kind, ("", ""))
            rows.append(row)
    titles = {"dataset": "Dataset", "perturbation": "Perturbation", "concat": "Concat", EQUILIBRIUM: "MEQ"}
    titles |= {"less": "MEQ less concat", "paper concat": f"Concat ({PUBLISHED})", "paper meq": f"MEQ ({PUBLISHED})"}
    titles |= {"paper less": f"less ({PUBLISHED})", "paper called": f"called ({PUBLISHED})"}
    return Table.of("Robustness to input corruption", rows, titles=titles)


def _perturbation(kind: str) -> str:
    """Noise (sigma = 0.1), as the paper writes it."""
    name, _, amount = kind.partition(" ")
    words = {"noise": f"Noise (sigma = {amount})", "blur": f"Blur (r = {amount})"}
    return f"Typo ({float(amount):.0%})" if name == "typos" else words.get(name, kind)


def _steps(found: Sequence[Found], paper: bool) -> Table:
    """The paper draws this one: the score when the same weights are read at step k."""
    rows: list[dict[str, Cell]] = []
    for each in found:
        walked = [
            (result.read, dict(zip(result.steps, result.score[ALL], strict=True)))
            for result in Steps().typed(each.measured.get("steps", {})).values()
            if result.read is not None and result.steps is not None
        ]
        if not walked:
            continue
        read, _ = walked[0]
        row: dict[str, Cell] = {**each.head, "K": str(read)}
        for key, k in {**{f"k = {k}": k for k in EARLY}, "at K": read, "at 2 K": 2 * read}.items():
            row[key] = each.score(_mean_of(scores.get(k) for _, scores in walked))
        rows.append(row)
    return Table.of("The answer read at step k", rows, titles={"dataset": "Dataset", "metric": "Metric"})


EARLY = (0, 1, 2, 3, 5)
"""Steps at which the table of the iteration is read besides the read depth."""


def _over_k(found: Sequence[Found], paper: bool) -> Table:
    """Trained on entailment, read where things hide: accuracy at K, and far beyond it."""
    rows: list[dict[str, Cell]] = []
    for each in found:
        results = list(Grounding().typed(each.measured.get("grounding", {})).values())
        if not results:
            continue
        at = {"read": results[0].read, "far": results[0].horizon}
        row: dict[str, Cell] = {"dataset": each.name, "of": results[0].data, "n": results[0].accuracy.samples}
        for key, k in at.items():
            mean = _mean_of(result.accuracy.score[result.accuracy.steps.index(k)] for result in results)
            row |= {f"k {key}": str(k), key: NONE if mean is None else f"{100 * mean:.1f}"}
        rows.append(row)
        theirs = published.OVER_K.get(each.part.data) if paper and not each.part.smoke else None
        if theirs is not None:
            scores = {key: f"{100 * x:.1f}" for key, x in zip(at, theirs, strict=True)}
            rows.append(
                {"dataset": f"{each.name} ({PUBLISHED})", "of": "cod10k", "k read": "10", "k far": "300", **scores}
            )
    titles = {
        "dataset": "Trained on",
        "of": "Read on",
        "k read": "K",
        "read": "Acc at K",
        "k far": "far",
        "far": "Acc far",
    }
    return Table.of("Accuracy over k, read where things hide", rows, titles=titles, keys=(*titles, "n"))


def _cod10k(found: Sequence[Found], paper: bool) -> Table:
    arms = {"concat": "Concat", "cross-attention": "Cross-attn", "self-attention": "Self-attn", "low-rank": "LMF"}
    arms[EQUILIBRIUM] = "MEQ"
    rows: list[dict[str, Cell]] = []
    for each in found:
        score = {arm: NONE if (x := each.lines[arm].mean) is None else f"{x:.4f}" for arm in arms}
        rows.append({"what": f"{each.name}: accuracy", **score})
        rows.append({"what": "less MEQ, in points", **{arm: each.against(arm)[0] for arm in arms}})
        rows.append({"what": "called", **{arm: each.against(arm)[1] for arm in arms}})
        if paper and (theirs := each.figures("main")):
            rows.append({"what": f"accuracy ({PUBLISHED})", **{arm: f"{theirs[arm]:.4f}" for arm in arms}})
            known = each.differences("cod10k")
            rows.append({"what": f"less MEQ ({PUBLISHED})", **{arm: known.get(arm, (NONE,))[0] for arm in arms}})
    return Table.of("COD10K, trained on it directly", rows, titles={"what": "", **arms})


def _cost(folder: Path, *, paper: bool, smoke: bool) -> dict[str, Table]:
    tables = cost_tables(read_cost(folder), paper=paper and not smoke)
    if smoke:
        note = f"{SMOKE}: a few passes, to see that it runs; its times say nothing."
        tables = {
            name: replace(table, title=f"{table.title} ({SMOKE})", notes=(*table.notes, note))
            for name, table in tables.items()
        }
    return {f"cost-{name}": table for name, table in tables.items()}


def _rows(
    found: Sequence[Found],
    ours: Callable[[Found], dict[str, Cell]],
    theirs: Callable[[Found], dict[str, Cell] | None],
    paper: bool,
) -> Iterator[dict[str, Cell]]:
    for each in found:
        yield ours(each)
        if paper and (row := theirs(each)) is not None:
            yield row


def _mean_of(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def _power(value: float | None) -> str:
    """1.0e-2, as the paper writes residuals."""
    if value is None:
        return NONE
    if not math.isfinite(value):  # of a run that diverged
        return str(value)
    mantissa, exponent = f"{value:.1e}".split("e")
    return f"{mantissa}e{int(exponent)}"


TABLES: Mapping[str, tuple[str, tuple[str, ...], Callable[[Sequence[Found], bool], Table]]] = {
    "main": ("main", ("hateful-memes", "vcr", "vqa-v2", "snli-ve", "mosei"), _main),
    "ablation": ("ablation", (), _configurations("Component ablation", "ablation")),
    "mixer": ("mixer", (), _configurations("The mixer of the cross-modal function", "mixer")),
    "readout": ("readout", (), _configurations("Mixing again after the iteration", "readout")),
    "modality": ("modality", ("snli-ve", "hateful-memes", "mosei"), _modality),
    "robustness": ("robustness", (), _robustness),
    "steps": ("steps", (), _steps),
    "over-k": ("grounding", (), _over_k),
    "cod10k": ("cod10k", (), _cod10k),
    "residual-penalty": ("residual-penalty", ("snli-ve", "hateful-memes", "mosei", "vcr", "vqa-v2"), _residual),
    "safeguards": ("safeguards", (), _configurations("Structural safeguards against the collapse", "collapse")),
    "state-design": ("state-design", ("vqa-v2", "hateful-memes", "mosei"), _configurations("State design", "state")),
    "fixed-point": ("fixed-point", ("mosei", "vcr", "hateful-memes", "vqa-v2", "snli-ve"), _fixed_point),
}
"""By name: the study, the paper's order of its data sets, and what makes it."""
MEASURED = {"robustness": "robustness", "steps": "steps", "over-k": "grounding", "fixed-point": "fixed-point"}
"""Tables that show what a measure read, by the measure."""
