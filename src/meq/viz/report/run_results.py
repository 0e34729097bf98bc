"""What came out of a run: scores, confusions, the way training went, alarms."""

from __future__ import annotations

from meq.experiments import RunRecord
from meq.experiments.render import Column, Table
from meq.experiments.runs.files import RunFiles
from meq.experiments.runs.judged import confusion_table, judge
from meq.viz.report.markup import Html, Part, bullets, grid, join, note, paragraph, table, tag, warning
from meq.viz.report.pictures import drawing
from meq.viz.training import training_curves


def scores(files: RunFiles) -> Html:
    """Scores of every split, and which classes are taken for which."""
    record = files.record
    if not record.metrics:
        return warning("There are no scores: the run did not come to its end.")
    names = list(dict.fromkeys(name for found in record.metrics.values() for name in found))
    columns = tuple(Column(key=name, title=name) for name in ("split", "examples", *names))
    rows = tuple(
        (split, record.data.splits.get(split), *(found.get(name) for name in names))
        for split, found in record.metrics.items()
    )
    notes = [f"Weights: {_weights(record)}. Loss: the task's alone, without penalties."]
    made = table(Table(title="Scores of the kept weights", columns=columns, rows=rows, notes=tuple(notes)))
    return join(made, _confusions(files))


def training(files: RunFiles) -> Html:
    """Curves over the epochs, and the alarms in words."""
    record = files.record
    if not record.curves:
        return warning("There are no curves: the run stopped before its first epoch was over.")
    figure = drawing(training_curves(record), alt=_curves_in_words(record), caption=_curves_caption(record))
    return join(figure, tag("h3", "Alarms"), alarms(record))


def alarms(record: RunRecord) -> Html:
    """What was noticed while training, with the advice that was given."""
    if not record.alarms:
        watched = "after every epoch" if record.vitals else "for models that iterate; this one does not"
        return paragraph(
            f"None. Collapse to the identity, collapse to one state for all inputs, and divergence are watched for "
            f"{watched}."
        )
    items: list[Part] = [
        join(tag("strong", f"Epoch {alarm['epoch']}, {alarm['kind']}: "), f"{alarm['message']}.")
        for alarm in record.alarms
    ]
    return join(warning(f"{len(items)} alarms were raised:"), bullets(items))


def hashes(files: RunFiles) -> Html:
    """By which one can tell that these are the files that this report speaks of."""
    found = files.hashes()
    rows = [
        [each.what, each.file, tag("span", each.sha256 or "", of={"class": "hash"}), each.verdict] for each in found
    ]
    odd = [each.file for each in found if each.verdict.startswith("NOT")]
    prints = [["features, ids and targets", "", tag("span", files.record.data.fingerprint, of={"class": "hash"}), ""]]
    if files.record.data.source_fingerprint is not None:
        source = tag("span", files.record.data.source_fingerprint, of={"class": "hash"})
        prints.append(["data before encoding", "", source, ""])
    made = grid(
        ["what", "file", "SHA-256", ""], [*rows, *prints], caption="Files and data of the run", right=[False] * 4
    )
    trouble = warning(f"Changed since the run was recorded: {', '.join(odd)}.") if odd else None
    return join(trouble, made, note("Files were hashed when this report was made; fingerprints are the record's."))


def _confusions(files: RunFiles) -> Html:
    made: list[Part] = []
    for split in files.record.predictions:
        predictions = files.predictions(split)
        if predictions is None:
            made.append(warning(f"The stored answers to {split} are not there: no table of confusions."))
            continue
        judged = judge(predictions, files.head)
        found = confusion_table(judged, files.labels, split=split) if files.labels else None
        if found is not None:
            made.append(table(found))
        if judged.lost:
            made.append(warning(f"{judged.lost} answers to {split} are not finite."))
    return join(made)


def _weights(record: RunRecord) -> str:
    chosen = record.selected
    if chosen.by == "best":
        return f"epoch {chosen.epoch}, the best by {chosen.metric} on {chosen.split}"
    return f"epoch {chosen.epoch}, the last"


def _curves_caption(record: RunRecord) -> str:
    words = "Training, epoch by epoch."
    if record.vitals:
        words += (
            " Residual: how far one more step would move the states. |J| and spectral radius: how strongly a step "
            "answers to its own state. Gate: how much of a proposed change is taken. Cross / self: how much a state "
            "listens to the others, over itself."
        )
    return words + (" Red lines: alarms." if record.alarms else "")


def _curves_in_words(record: RunRecord) -> str:
    first, last = record.curves[0], record.curves[-1]
    parts = [f"Training curves over {len(record.curves)} epochs"]
    for key, name in (("train_loss", "train loss"), ("dev_loss", "dev loss"), (record.metric, f"dev {record.metric}")):
        if first.get(key) is not None and last.get(key) is not None:
            parts.append(f"{name} from {first[key]:.3g} to {last[key]:.3g}")
    return ", ".join(parts) + f"; {len(record.alarms)} alarms."
