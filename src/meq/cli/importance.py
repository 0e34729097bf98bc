"""`meq importance`: what a trained run's answers rest on."""

from __future__ import annotations

from typing import Annotated

import typer

from meq.cli.checks import check_data, check_folder
from meq.cli.options import AsJson, OtherData, Part, Root, Run, SkipBad, Store, command
from meq.cli.output import Bars, print_result

# What the library has as defaults, written here so that --help need not import it; a test compares them.
SAMPLES, REPEATS, WORDS = 512, 10, 40


@command
def importance(
    run: Run,
    data: OtherData = None,
    root: Root = None,
    split: Part = None,
    samples: Annotated[int, typer.Option(help="How many examples, spread over the split.", min=2)] = SAMPLES,
    repeats: Annotated[int, typer.Option(help="How often each part is shuffled.", min=1)] = REPEATS,
    tokens: Annotated[bool, typer.Option(help="Tokens of pictures and texts too, by their place.")] = True,
    words: Annotated[
        int, typer.Option(help="Words of each text modality, the most frequent ones; 0: none.", min=0)
    ] = WORDS,
    seed: Annotated[int, typer.Option(help="Of the shuffling and of intervals.", min=0)] = 0,
    skip_bad: SkipBad = False,
    store: Store = None,
    as_json: AsJson = False,
) -> None:
    """How much each modality, column, token and word counts for the answers: shuffled, and taken away.

    Looks at test, or else at dev; what is lost has intervals over examples and repeats. It takes repeats + 1 answers
    per part and example. A word is left out of the texts that have it, which are then encoded anew. Kept in the run's
    folder, where `meq report` shows it; the figure alone: meq report RUN --figure importance.
    """
    with Bars() as bars:
        from meq.runs.analyze import FOLDER
        from meq.runs.importance import importance_of_run
        from meq.runs.load import load_run
        from meq.runs.own_data import ReadOptions

        check_data(data, root)
        if store is not None:
            check_folder(store, "--store")
        reading = ReadOptions(on_bad="skip" if skip_bad else "raise", store=store, progress=bars)
        trained = load_run(run)
        keep = data is None and trained.place is not None
        if keep and trained.place is not None:
            check_folder(trained.place / FOLDER, "the importance is kept in")
        asked = {"split": split, "samples": samples, "repeats": repeats, "tokens": tokens, "words": words, "seed": seed}
        found = importance_of_run(trained, data, root=root, reading=reading, **asked)  # type: ignore[arg-type]
    print_result(found, as_json=as_json)
    if keep and not as_json and trained.place is not None:
        print(f"\nkept in {trained.place / FOLDER}")
