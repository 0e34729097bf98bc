"""Answers to what a person asks on the page; a refusal says what to do instead.

There is no web server here, and no request leaves anything behind.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from meq.data.content import DrawnPicture, Picture
from meq.data.findings import DataError
from meq.errors import in_words
from meq.runs.explain import Explainer
from meq.runs.explanation import Explanation
from meq.runs.load import TrainedRun
from meq.runs.own_data import encoders_of_run
from meq.runs.pairs import ExamplePair, example_pairs
from meq.studies.study import StudyError
from meq.viz.app.measuring import MeasuringProcess
from meq.viz.app.panels import look_panel
from meq.web.bodies import RefusedError

PATIENCE = 30.0
"""Seconds that looks are waited for when the page is closed."""
MAX_CHARACTERS = 4000
"""More than any text encoder here reads; what is longer does not even reach it."""
PAIRS = 8
"""Contents whose features are remembered: one picture is asked with several texts, and looked at again."""
ENDING = 40
"""Characters of a long text that are quoted, to show where it was cut."""


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A picture and a caption that were looked at: what the other tabs measure."""

    picture: Picture
    caption: str


class Explorer:
    """One model for everybody. It is only read, and every answer depends on its own request alone.

    Looks are taken one at a time: one already keeps every core busy. Measurements take much longer and are made in a
    process of their own, so that nobody's look waits for them.
    """

    def __init__(self, run: TrainedRun) -> None:
        self.run = run
        encoders = encoders_of_run(run, remember=PAIRS)
        for encoder in encoders.values():
            _ = encoder.loaded  # now, and not when somebody asks
        self.explainer = Explainer(run, encoders=encoders, by_rule=True)
        check_showable(self.explainer)
        self._one_at_a_time = threading.Lock()
        self._measuring = MeasuringProcess(run.folder)
        self._changed = threading.Condition()
        self._running, self._closed = 0, False
        self._looks: dict[int, tuple[Pair, str]] = {}
        self.pairs: list[ExamplePair] = []
        self.no_pairs: str | None = None
        try:
            self.pairs = example_pairs(run)
        except (DataError, StudyError, OSError) as error:  # a fault of ours must not look like data
            said = in_words(error)
            self.no_pairs = f"the run's own data cannot be read here, so there are no examples to choose from: {said}"

    @property
    def read(self) -> int:
        """K, the step the model's answer is read at."""
        return self.explainer.read

    @property
    def last(self) -> int:
        """The last step that is looked at."""
        return 2 * self.read

    def explain(self, picture: Picture, caption: str, other: str | None = None) -> list[Explanation]:
        """The explanation of the pair and, with another caption, of that one; all steps, or a RefusedError."""
        image = picture.open()
        drawn = DrawnPicture(str(picture), lambda: image)  # decoded once, though it is asked for several times
        texts = {"caption": caption, **({} if other is None else {"other caption": other})}
        examples = [self.explainer.pair(drawn, text) for text in texts.values()]
        with self._one_at_a_time:
            found = self.explainer(examples)
        for what, each in zip(texts, found, strict=True):
            check_read_whole(each, what)
        return found

    def look(self, picture: Picture | None, caption: str | None, other: str | None, k: int) -> tuple[Pair, str]:
        """The pair, and the page's view of it at every step, of which step k is shown first."""
        if picture is None:
            raise RefusedError(
                "There is no picture yet: upload one" + (", or choose an example." if self.pairs else ".")
            )
        first = checked_caption(caption)
        second = checked_caption(other, "other caption") if (other or "").strip() else None
        with self._counted():
            found = self.explain(picture, first, second)
            return Pair(picture=picture, caption=first), look_panel(found, k)

    def look_at_example(self, place: int) -> tuple[Pair, str]:
        """The look at an example, which is the same for everybody and computed once; step K is shown first."""
        if place not in self._looks:
            pair = self.pairs[place]
            self._looks[place] = self.look(pair.picture, pair.caption, pair.other, self.read)
        return self._looks[place]

    def measure(self, which: str, pair: Pair | None) -> str:
        """The panel "influence" (who moves whom) or "spectrum" (leading eigenvalues) for a pair that was looked at."""
        if pair is None:
            raise RefusedError("There is nothing to measure yet: look at a picture and a caption first.")
        with self._counted():
            batch = self.explainer.batch([self.explainer.pair(pair.picture, pair.caption)])
            return self._measuring.measure(which, batch, pair.caption)

    def close(self) -> None:
        """End what is being measured, wait for the looks that are being taken, and take no other.

        An interpreter that ends while one of its threads computes is aborted by PyTorch.
        """
        with self._changed:
            self._closed = True
        self._measuring.close()
        with self._changed:
            self._changed.wait_for(lambda: self._running == 0, timeout=PATIENCE)

    @contextmanager
    def _counted(self) -> Iterator[None]:
        """A request that `close` waits for."""
        with self._changed:
            if self._closed:
                raise RefusedError("The page is being closed.")
            self._running += 1
        try:
            yield
        finally:
            with self._changed:
                self._running -= 1
                self._changed.notify_all()


def checked_caption(text: str | None, what: str = "caption") -> str:
    """The text without the space around it, if there is any and it is not absurdly long."""
    caption = (text or "").strip()
    if not caption:
        raise RefusedError(f"The {what} is empty: type a sentence about the picture.")
    if len(caption) > MAX_CHARACTERS:
        raise RefusedError(
            f"The {what} has {len(caption):,} characters, more than the {MAX_CHARACTERS:,} that are taken: shorten it."
        )
    try:
        caption.encode()
    except UnicodeEncodeError as error:
        raise RefusedError(f"The {what} holds half a character that cannot be written: type it again.") from error
    return caption


def check_read_whole(explanation: Explanation, what: str = "caption") -> None:
    """A refusal if the encoder did not read all of the text, or found no word in it."""
    if not explanation.texts:
        raise RefusedError(f"The {what} has no word that the model can read: type a sentence about the picture.")
    (view,) = explanation.texts
    if not view.truncated:
        return
    assert view.spans is not None
    text, end = str(view.content), int(view.spans.max())
    begin = max(0, end - ENDING)
    quoted = ("…" if begin else "") + text[begin:end]
    raise RefusedError(
        f"The {what} is longer than the model reads: it would see {len(view.spans)} tokens, up to “{quoted}”, and "
        f"nothing of the {len(text) - end:,} characters after that. Shorten it."
    )


def check_showable(explainer: Explainer) -> None:
    """An error for a model that is not one of one picture and one text, which is what the page shows."""
    kinds = explainer.kinds
    if explainer.run.task.head == "choices":
        has = "chooses among several texts"
    elif sorted(kinds.values()) != ["image", "text"]:
        has = "was trained on " + ", ".join(f"{name!r} ({kind})" for name, kind in kinds.items())
    else:
        return
    raise ValueError(
        f"the explorer shows models of one picture and one text, and this one {has}: use meq.runs.explain for it"
    )
