"""The layout of the page and what happens when something on it is used."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gradio as gr

from meq.data.content import Picture
from meq.data.findings import DataError
from meq.studies.study import StudyError
from meq.viz.app.explorer import MAX_CHARACTERS, Explorer, Pair
from meq.viz.app.measuring import MeasuringError
from meq.viz.app.panels import panel, preview_panel
from meq.viz.app.uploads import Uploads, admit_upload
from meq.web.bodies import RefusedError

TITLE = "Equilibrium Explorer"
SHOW = "(k) => { window.meqShow(k); }"
PLAY = "() => { window.meqPlay(); }"
TICKET = "(ticket, file, caption, other, k) => [file ? file.path : '', null, caption, other, k]"
"""Gradio sends the path of an uploaded file; our server puts a ticket in its place, see `uploads`."""
LOG = logging.getLogger(__name__)
ERRORS_SHOWN = (RefusedError, DataError, StudyError, MeasuringError)
"""Errors whose messages are meant for the person who uses the page."""
BUG = "Something went wrong here, and not by your doing: this is a bug in meq, please report it."
LOOKS_AT_ONCE = 2
"""Requests in hand at once: while the model answers one, pictures are drawn for the other."""
MOST_WAITING = 256
"""Requests that may wait; beyond that a person is told to come back."""
HOUR = 3600
MEASURES = ("influence", "spectrum")
"""The tabs that take seconds."""
SYSTEM_FONTS = ("ui-sans-serif", "system-ui", "-apple-system", "Segoe UI", "Roboto", "sans-serif")
MONO_FONTS = ("ui-monospace", "Consolas", "monospace")
NOT_MEASURED = '<p class="meq-empty">Not measured yet. It takes some seconds, more for a large model.</p>'
NO_PICTURE = '<p class="meq-empty">No picture yet.</p>'
LookOutputs = tuple[Any, Any, Any, Any, Any]


def build_page(explorer: Explorer, uploads: Uploads) -> gr.Blocks:
    """The whole page; `uploads` is where its pictures arrive."""
    handlers = Handlers(explorer, uploads)
    with gr.Blocks(title=TITLE, analytics_enabled=False) as page:
        run, labels = explorer.run, explorer.run.labels
        shown = ", ".join(labels[:6]) + (f" and {len(labels) - 6:,} more" if len(labels) > 6 else "")
        facts = f"{type(run.model).__name__} trained on {run.task.data}; read at K = {explorer.read}; answers: {shown}"
        gr.HTML(panel("head", TITLE, facts), elem_classes="meq-head")
        with gr.Row():
            with gr.Column(scale=2, min_width=300):
                fields = _Fields(explorer)
            with gr.Column(scale=5, min_width=320):
                results = _Results(explorer)
        _connect(page, handlers, fields, results)
    page.queue(max_size=MOST_WAITING, api_open=False, default_concurrency_limit=4)
    return page


def page_style() -> dict[str, Any]:
    """Theme, style sheet and script of the page, for Gradio; nothing of it is loaded from elsewhere."""
    theme = gr.themes.Base(primary_hue="blue", neutral_hue="slate", font=SYSTEM_FONTS, font_mono=MONO_FONTS)
    quiet = ("body_text_color_subdued", "block_info_text_color", "block_label_text_color", "block_title_text_color")
    theme.set(**dict.fromkeys(quiet, "*neutral_600"), **{f"{name}_dark": "*neutral_300" for name in quiet})
    here = Path(__file__).parent / "templates"
    script = f"<script>{(here / 'page.js').read_text(encoding='utf-8')}</script>"
    return {"theme": theme, "css": (here / "page.css").read_text(encoding="utf-8"), "head": script}


class _Fields:
    """The inputs of the page."""

    def __init__(self, explorer: Explorer) -> None:
        first = explorer.pairs[0] if explorer.pairs else None
        self.example = gr.Dropdown(
            [(pair.name, place) for place, pair in enumerate(explorer.pairs)],
            value=0 if first else None,
            label="Example",
            visible=bool(explorer.pairs),
            elem_id="meq-example",
        )
        self.preview = gr.HTML(_preview(first.picture) if first else NO_PICTURE, elem_id="meq-preview")
        self.upload = gr.File(label="Your own picture", file_types=["image"], height=150, elem_id="meq-upload")
        self.ticket = gr.Textbox(visible=False)
        self.caption = gr.Textbox(
            value=first.caption if first else "", label="Caption", lines=2, max_lines=4, elem_id="meq-caption",
            placeholder="What the picture might show", max_length=MAX_CHARACTERS + 1, submit_btn=False,
        )  # fmt: skip
        self.other = gr.Textbox(
            value=first.other if first else "", label="Other caption (may be empty)", lines=2, max_lines=4,
            elem_id="meq-other", placeholder="What it does not show", max_length=MAX_CHARACTERS + 1,
        )  # fmt: skip
        self.look = gr.Button("Look", variant="primary", elem_id="meq-go")
        self.message = gr.HTML("", elem_id="meq-message")


class _Results:
    """The results on the page."""

    def __init__(self, explorer: Explorer) -> None:
        with gr.Tab("Iteration"):
            with gr.Row(elem_classes="meq-steps"):
                self.k = gr.Slider(
                    0, explorer.last, value=explorer.read, step=1, label="Step k", elem_id="meq-k", scale=5,
                    info=f"0 is the start, K = {explorer.read} is where the answer is read",
                )  # fmt: skip
                self.play = gr.Button("Play", scale=0, min_width=90, size="md", elem_id="meq-play")
            self.shown = gr.HTML('<p class="meq-empty">Nothing to see yet.</p>', elem_id="meq-shown")
        self.buttons, self.measures = [], []
        for name in MEASURES:
            with gr.Tab(name.capitalize()):
                self.buttons.append(gr.Button(f"Measure the {name}", elem_id=f"meq-measure-{name}"))
                self.measures.append(gr.HTML(NOT_MEASURED, elem_id=f"meq-{name}"))


class Handlers:
    """What happens when something on the page is used; no call depends on another."""

    def __init__(self, explorer: Explorer, uploads: Uploads) -> None:
        self.explorer, self.uploads = explorer, uploads

    def look(self, picture: Picture | None, caption: str, other: str, k: float) -> LookOutputs:
        """Message, the pair, the view of it, and both measures, which are now of another pair."""
        try:
            pair, shown = self.explorer.look(picture, caption, other, self._step(k))
        except Exception as error:
            return _refused(error)
        return "", pair, shown, NOT_MEASURED, NOT_MEASURED

    def choose(self, place: int | None) -> tuple[Any, ...]:
        """Picture, preview and captions of an example, and the look at it; the page itself then goes to step k."""
        pairs = self.explorer.pairs
        chosen = place if isinstance(place, int) and 0 <= place < len(pairs) else 0
        try:
            example, (pair, shown) = pairs[chosen], self.explorer.look_at_example(chosen)
            preview = _preview(example.picture)
        except Exception as error:
            return *(gr.skip() for _ in range(4)), *_refused(error)
        looked = "", pair, shown, NOT_MEASURED, NOT_MEASURED
        return example.picture, preview, example.caption, example.other, *looked

    def admit(self, ticket: Any, upload: None, caption: str, other: str, k: float) -> tuple[Any, ...]:
        """An empty field, the picture and its preview, and the look at it; what is refused changes nothing.

        The page sends the ticket of the upload, and nothing of the field itself: Gradio would look for a file.
        """
        try:
            picture = admit_upload(self.uploads, ticket)
            preview = _preview(picture)
        except Exception as error:
            return None, gr.skip(), gr.skip(), *_refused(error)
        return None, picture, preview, *self.look(picture, caption, other, k)

    def measure(self, which: str, pair: Pair | None) -> str:
        try:
            return self.explorer.measure(which, pair)
        except Exception as error:
            return panel("refusal", _in_words(error))

    def _step(self, k: float) -> int:
        """A step that is on the page, whatever was sent."""
        number = k if isinstance(k, int | float) else math.nan
        return min(max(int(number), 0), self.explorer.last) if math.isfinite(number) else self.explorer.read


def _connect(page: gr.Blocks, handlers: Handlers, fields: _Fields, results: _Results) -> None:
    picture, pair = gr.State(None, time_to_live=HOUR), gr.State(None, time_to_live=HOUR)
    looked = [fields.message, pair, results.shown, *results.measures]
    typed = [fields.caption, fields.other, results.k]

    def on(listen: Callable[..., Any], handler: Callable[..., Any], inputs: list[Any], outputs: list[Any]) -> None:
        """Connect an event; when its answer is there, the page shows the step that the slider is at."""
        event = listen(
            handler, inputs, outputs + looked, js=TICKET if handler == handlers.admit else None,
            show_progress="minimal", show_progress_on=results.shown, api_visibility="private",
            concurrency_limit=LOOKS_AT_ONCE, concurrency_id="look",
        )  # fmt: skip
        event.then(None, results.k, js=SHOW, api_visibility="private")

    if handlers.explorer.pairs:
        example = [picture, fields.preview, fields.caption, fields.other]
        on(page.load, handlers.choose, [fields.example], example)
        on(fields.example.input, handlers.choose, [fields.example], example)
    arrived = [fields.ticket, fields.upload, *typed]
    on(fields.upload.upload, handlers.admit, arrived, [fields.upload, picture, fields.preview])
    for listen in (fields.look.click, fields.caption.submit, fields.other.submit):
        on(listen, handlers.look, [picture, *typed], [])
    results.k.change(None, results.k, js=SHOW, api_visibility="private")
    results.play.click(None, js=PLAY, api_visibility="private")
    for name, button, place in zip(MEASURES, results.buttons, results.measures, strict=True):
        button.click(
            partial(handlers.measure, name), pair, place, show_progress="minimal", api_visibility="private",
            concurrency_limit=1, concurrency_id="measure",
        )  # fmt: skip


def _refused(error: Exception) -> LookOutputs:
    """What a look gives that comes to nothing: a message, and everything else stays as it is."""
    return panel("refusal", _in_words(error)), gr.skip(), gr.skip(), gr.skip(), gr.skip()


def _in_words(error: Exception) -> str:
    """The message for the person. Of a bug it is one sentence, and the traceback goes to the server's log."""
    if isinstance(error, ERRORS_SHOWN):
        return str(error)
    LOG.error("a request failed", exc_info=error)
    return BUG


def _preview(picture: Picture) -> str:
    return preview_panel(picture.open(), str(picture))
