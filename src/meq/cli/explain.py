"""`meq explain`: one picture and one text along the iteration. It parses and calls; there is no logic here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from meq.analysis.attribution import DEFAULT_METHOD, METHODS
from meq.cli.asking import Debug, ImageEncoder, TextEncoder
from meq.cli.errors import errors_in_words
from meq.cli.outset import check_choice, check_folder, check_there
from meq.experiments.runs.encoders import encoders_of_run
from meq.experiments.runs.explain import Explainer
from meq.experiments.runs.explanation import Contrast, Explanation
from meq.experiments.runs.load import load_run
from meq.viz.needs import require_matplotlib

OUT = Path("explanation")


def explain(
    image: Annotated[Path, typer.Argument(help="The picture's file.")],
    text: Annotated[str, typer.Argument(help="The text, in quotes.")],
    model: Annotated[str, typer.Option(help="The folder of a trained run, or its name on the Hub.")],
    out: Annotated[Path, typer.Option(help="The folder for the pictures; what is there is overwritten.")] = OUT,
    steps: Annotated[int | None, typer.Option(help="The last step to look at; twice the read depth K.", min=1)] = None,
    method: Annotated[
        str | None, typer.Option(help=f"Of heat maps and shades: {', '.join(METHODS)}; {DEFAULT_METHOD} where it fits.")
    ] = None,
    instead: Annotated[str | None, typer.Option(help="Another text, to compare with.")] = None,
    animation: Annotated[str, typer.Option(help="gif or webp.")] = "gif",
    image_encoder: ImageEncoder = None,
    text_encoder: TextEncoder = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print all numbers as JSON instead of tables.")] = False,
    debug: Debug = False,
) -> None:
    """What a trained model makes of a picture and a text, step by step: answers, residuals, heat maps, words.

    Writes explanation.png, .svg and .gif (or .webp), and contrast.png and .svg with --instead. A text that begins with
    a dash needs two dashes before it: meq explain --model RUN picture.png -- "-a text".
    """
    with errors_in_words(debug):
        require_matplotlib()
        from meq.viz.explained import check_form, draw_explanation  # on use: it imports matplotlib

        check_form(animation)
        if method is not None:
            check_choice(method, "--method", list(METHODS))
        check_there(image, "picture")
        check_folder(out, "--out")
        run = load_run(model)
        encoders = encoders_of_run(run, chosen={"image": image_encoder, "text": text_encoder})
        explainer = Explainer(run, encoders=encoders)
        measured = None if steps is None else range(steps + 1)
        example = explainer.pair(image, text)
        found: Explanation | Contrast
        if instead is None:
            (found,) = explainer([example], steps=measured, method=method)
        else:
            found = explainer.contrast(example, instead, steps=measured, method=method)
        files = draw_explanation(found, out, form=animation)
        _show(found, files, as_json=as_json)


def _show(found: Explanation | Contrast, files: list[Path], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps({**found.to_json(), "files": [str(file) for file in files]}, indent=1))
        return
    matched = found.matched if isinstance(found, Contrast) else found
    print(f"{matched.id}: {matched.answer}\n\n{matched}")
    if isinstance(found, Contrast):
        print(f"\nwith other content\n\n{found}")
    print()
    for file in files:
        print(f"drawn: {file}")
