"""Which defaults `meq train` should have: one option changed at a time, on real tables, judged on dev alone.

    python benchmarks/defaults.py FOLDER --data ../shared/data --watch watch_dataset.npy

Photographs with sentences (a subset of SNLI-VE, pictures kept apart), a smartwatch's accelerometer and gyroscope
(subjects kept apart; the file of the package seglearn, read without importing it), two sets that scikit-learn ships
(three groups of measurements of cells; halves of handwritten digits), and CMU-MOSI, whose features have seen their own
test utterances and which is good for tuning only. No test split is read, and none is made. What was run already is not
run again; FOLDER/trials.json has every score.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import shutil
import statistics
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import meq
from meq.data.pickles import load_plain

PLAIN: dict[str, Any] = {"epochs": 20, "learning_rate": 1e-3, "dropout": 0.0, "weight_decay": 0.01, "patience": 5}
"""What every trial has unless it says otherwise: the defaults at the time of measuring, and enough epochs."""
TRIALS: dict[str, dict[str, Any]] = {
    "as it was": {},
    "learning rate 3e-4": {"learning_rate": 3e-4},
    "learning rate 3e-3": {"learning_rate": 3e-3},
    "width 32": {"dim": 32},
    "width 128": {"dim": 128},
    "dropout 0.1": {"dropout": 0.1},
    "dropout 0.3": {"dropout": 0.3},
    "weight decay 0.1": {"weight_decay": 0.1},
    "no penalties": {"lambda_j": 0.0, "lambda_f": 0.0},
    "penalties x 0.2": {"lambda_j": 0.1, "lambda_f": 0.06},
    "depth 4": {"steps": 4},
    "depth fixed(tracked=3)": {"depth": "fixed(tracked=3)"},
    "depth settle(2, 8)": {"depth": "settle(2, 8, late=0.25)"},
    "modality dropout 0.2": {"modality_dropout": 0.2},
    "average 0.99": {"average": 0.99},
    "no gate": {"set": {"gate": False}},
    "batch 16": {"batch_size": 16},
    "no early stopping": {"patience": 0},
}
PATIENCE = (1, 2, 3, 5, 8)
"""What stopping so many epochs after the best one would have cost, and saved, is read off the runs without stopping."""


def write_table(path: Path, header: list[str], rows: Iterable[Iterable[Any]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows(rows)


def parted(groups: Iterable[Any], share: float = 0.2, seed: int = 0) -> list[str]:
    """train or dev for every row, groups kept whole."""
    groups = list(groups)
    names = sorted(set(groups))
    order = np.random.default_rng(seed).permutation(len(names))
    held = {names[i] for i in order[: max(1, round(share * len(names)))]}
    return ["dev" if group in held else "train" for group in groups]


def photographs(folder: Path, asked: argparse.Namespace) -> dict[str, Any]:
    place = asked.data / "snli_ve"
    rows = [json.loads(line) for line in (place / "snli_ve_train.jsonl").read_text(encoding="utf-8").splitlines()]
    splits = parted(row["Flickr30K_ID"] for row in rows)
    table = [
        (f"{row['Flickr30K_ID']}.jpg", row["sentence2"], row["gold_label"], split)
        for row, split in zip(rows, splits, strict=True)
    ]
    write_table(folder / "photographs.csv", ["photo", "sentence", "y", "split"], table)
    images = place / "flickr30k_images"
    return {"data": folder / "photographs.csv", "root": images, "image": "photo", "text": "sentence"}


def summaries(window: np.ndarray) -> list[float]:
    """Per axis of a window: mean, spread, extremes, quartiles, and how much it changes from sample to sample."""
    steps = np.abs(np.diff(window, axis=0)).mean(0)
    parts = [window.mean(0), window.std(0), window.min(0), window.max(0), *np.quantile(window, [0.25, 0.75], 0), steps]
    return [round(float(x), 5) for x in np.concatenate(parts)]


def watch(folder: Path, asked: argparse.Namespace) -> dict[str, Any]:
    content = asked.watch.read_bytes()
    plain = folder / "watch.pkl"
    plain.write_bytes(content[128:])  # the header of .npy is 128 bytes long here; what follows is a pickle
    found = load_plain(plain)
    found = found.item() if isinstance(found, np.ndarray) else found
    rows, subjects = [], []
    for series, label, subject in zip(found["X"], found["y"], found["subject"], strict=True):
        series = np.asarray(series, dtype=float)
        for start in range(0, len(series) - 199, 200):  # four seconds
            window = series[start : start + 200]
            rows.append([*summaries(window[:, :3]), *summaries(window[:, 3:]), f"exercise {int(label)}"])
            subjects.append(int(subject))
    width = (len(rows[0]) - 1) // 2
    header = [*(f"acc_{i}" for i in range(width)), *(f"gyro_{i}" for i in range(width)), "y", "split"]
    write_table(folder / "watch.csv", header, ([*r, s] for r, s in zip(rows, parted(subjects, 0.3), strict=True)))
    return {"data": folder / "watch.csv", "vector": ["acc_*", "gyro_*"]}


def cells(folder: Path, asked: argparse.Namespace) -> dict[str, Any]:
    from sklearn.datasets import load_breast_cancer

    found: Any = load_breast_cancer()
    header = [f"{part}_{i}" for part in ("mean", "error", "worst") for i in range(10)]
    labels = [str(found.target_names[y]) for y in found.target]
    table = ([*x, y, s] for x, y, s in zip(found.data.tolist(), labels, parted(range(len(labels))), strict=True))
    write_table(folder / "cells.csv", [*header, "y", "split"], table)
    return {"data": folder / "cells.csv", "vector": ["mean_*", "error_*", "worst_*"]}


def digits(folder: Path, asked: argparse.Namespace) -> dict[str, Any]:
    from sklearn.datasets import load_digits

    found: Any = load_digits()
    header = [*(f"top_{i}" for i in range(32)), *(f"bottom_{i}" for i in range(32))]
    labels = [f"digit {y}" for y in found.target]
    table = ([*x, y, s] for x, y, s in zip(found.data.tolist(), labels, parted(range(len(labels))), strict=True))
    write_table(folder / "digits.csv", [*header, "y", "split"], table)
    return {"data": folder / "digits.csv", "vector": ["top_*", "bottom_*"]}


def opinions(folder: Path, asked: argparse.Namespace) -> dict[str, Any]:
    found = np.load(asked.data / "mosi" / "mosi_utterance_train_dev.npz", allow_pickle=False)
    kept = np.isin(found["mode"], ["train", "dev", "valid"])
    parts = {"audio": found["audio_feat"][kept], "text": found["text_feat"][kept], "video": found["video_feat"][kept]}
    header = [f"{name}_{i}" for name, x in parts.items() for i in range(x.shape[1])]
    labels = ["positive" if y > 0 else "negative" for y in found["label"][kept]]
    splits = ["train" if mode == "train" else "dev" for mode in found["mode"][kept]]
    table = ([*x, y, s] for x, y, s in zip(np.concatenate([*parts.values()], 1).tolist(), labels, splits, strict=True))
    write_table(folder / "opinions.csv", [*header, "y", "split"], table)
    return {"data": folder / "opinions.csv", "vector": [f"{name}_*" for name in parts]}


TABLES: Mapping[str, Callable[[Path, argparse.Namespace], dict[str, Any]]] = {
    "photographs": photographs,
    "watch": watch,
    "cells": cells,
    "digits": digits,
    "opinions": opinions,
}


def dev_score(data: Mapping[str, Any], options: Mapping[str, Any], folder: Path, store: Path) -> dict[str, Any]:
    """One run by the front door; of all that it keeps, the scores on dev."""
    further = {"data.calibration": 0, **options.get("set", {})}  # all of dev is there to judge by
    run = meq.train(
        **data,
        label="y",
        split="split",
        store=store,
        out=folder,
        radius_samples=0,
        **{**options, "set": further},
    )
    record = run.record
    kept = {"epoch": record.selected.epoch, "seconds": record.wall_seconds}
    curve = [epoch["accuracy"] for epoch in json.loads((folder / "record.json").read_text())["curves"]]
    return {**record.metrics["dev"], **kept, "curve": curve}


def shown(scores: Mapping[str, Any], seeds: list[int]) -> str:
    """By trial and table: dev accuracy in per cent, mean over seeds, and what is gained against the first trial."""
    text = io.StringIO()
    print("| trial | " + " | ".join(TABLES) + " | mean gain |\n|---|" + "---:|" * (len(TABLES) + 1), file=text)
    base: dict[str, float] = {}
    for trial in TRIALS:
        cells, gains = [], []
        for name in TABLES:
            found = [scores[key]["accuracy"] for seed in seeds if (key := f"{name}/{trial}/{seed}") in scores]
            mean = 100 * statistics.mean(found) if len(found) == len(seeds) else None
            if mean is not None:
                base.setdefault(name, mean)
                gains.append(mean - base[name])
            cells.append("-" if mean is None else f"{mean:.1f}")
        gain = f"{statistics.mean(gains):+.2f}" if len(gains) == len(TABLES) else "-"
        print(f"| {trial} | {' | '.join(cells)} | {gain} |", file=text)
    return text.getvalue()


def stopped(curve: list[float], patience: int) -> tuple[float, int]:
    """The best score that stopping with this patience finds, and the epochs it takes."""
    best, at = curve[0], 0
    for epoch, score in enumerate(curve):
        if score > best:
            best, at = score, epoch
        if epoch - at >= patience:
            return best, epoch + 1
    return best, len(curve)


def patience_shown(scores: Mapping[str, Any]) -> str:
    """By patience and table: dev accuracy lost against all epochs, in points, and the share of epochs that is run."""
    text = io.StringIO()
    print("| patience | " + " | ".join(TABLES) + " |\n|---|" + "---:|" * len(TABLES), file=text)
    for patience in PATIENCE:
        cells = []
        for name in TABLES:
            curves = [found["curve"] for key, found in scores.items() if key.startswith(f"{name}/no early stopping/")]
            ends = [(max(curve), len(curve), *stopped(curve, patience)) for curve in curves]
            lost = [100 * (best - found) for best, _, found, _ in ends]
            run = [epochs / most for _, most, _, epochs in ends]
            cells.append(f"{statistics.mean(lost):.2f} @ {statistics.mean(run):.2f}" if ends else "-")
        print(f"| {patience} | {' | '.join(cells)} |", file=text)
    return text.getvalue()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--data", type=Path, required=True, help="the folder with snli_ve and mosi")
    parser.add_argument("--watch", type=Path, required=True, help="watch_dataset.npy of the package seglearn")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--only", choices=TABLES, help="one table")
    parser.add_argument("--trials", nargs="+", choices=TRIALS, default=list(TRIALS), help="these trials alone")
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    kept, seeds = asked.folder / "trials.json", list(range(asked.seeds))
    scores: dict[str, Any] = json.loads(kept.read_text()) if kept.is_file() else {}
    names = [asked.only] if asked.only else list(TABLES)
    data = {name: TABLES[name](asked.folder, asked) for name in names}
    for trial in asked.trials:
        options = TRIALS[trial]
        for name in names:
            for seed in seeds:
                key = f"{name}/{trial}/{seed}"
                if key in scores:
                    continue
                place = asked.folder / "runs" / key.replace(" ", "_").replace("(", "_").replace(")", "_")
                few = {"epochs": 4} if name == "photographs" else {}
                options_now = {**PLAIN, **few, **options, "seed": seed}
                shutil.rmtree(place, ignore_errors=True)  # of a run that was interrupted
                scores[key] = dev_score(data[name], options_now, place, asked.folder / "features")
                kept.write_text(json.dumps(scores, indent=1))
                print(key, f"{scores[key]['accuracy']:.4f}", f"{scores[key]['seconds']:.0f} s", flush=True)
    print(shown(scores, seeds))
    print(patience_shown(scores))


if __name__ == "__main__":
    main()
