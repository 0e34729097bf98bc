"""Examples as they are kept for showing: content, answer, truth, and what the answer rests on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from PIL import Image

from meq.data.content import Picture, Regions
from meq.data.contract import Example
from meq.encoders import Encoder
from meq.encoders.survey import Progress
from meq.experiments.runs.explain import Explainer
from meq.experiments.runs.explanation import Explanation
from meq.experiments.runs.judged import Judged, Notable
from meq.experiments.runs.load import TrainedRun
from meq.experiments.runs.showcase_file import ExampleFile, kept_explanation, kept_picture
from meq.training.predictions import Predictions


def explained_one_by_one(
    run: TrainedRun, examples: Sequence[Example], encoders: Mapping[str, Encoder], progress: Progress
) -> list[Explanation | None]:
    """Explanations at the first steps, half way, at K and at 2 K; one at a time, so that large models fit."""
    explainer = Explainer(run, encoders=encoders)
    steps = sorted({0, 1, 2, 3, explainer.read // 2, explainer.read, 2 * explainer.read})
    found: list[Explanation | None] = []
    for done, example in enumerate(examples):
        progress("explaining examples", done, len(examples))
        found += explainer([example], steps=steps)
    progress("explaining examples", len(examples), len(examples))
    return found


@dataclass(frozen=True, eq=False)
class ExampleMaker:
    """Puts together what is known of an example."""

    run: TrainedRun
    stored: Predictions
    judged: Judged

    def __call__(self, example: Example, why: Notable, explanation: Explanation | None) -> ExampleFile:
        texts, pictures = _contents(example, explanation)
        return ExampleFile(
            id=example.id,
            reason=why.reason,
            answer=self._answer(why.row),
            truth=self._truth(why.row, example),
            confidence=float(self.judged.confidence[why.row]),
            texts=texts,
            pictures={name: kept_picture(picture) for name, picture in pictures.items()},
            explanation=None if explanation is None else kept_explanation(explanation),
        )

    def _answer(self, row: int) -> str:
        """What was stored at the end of training, not what is computed now."""
        if self.judged.head == "score":
            return f"{float(self.stored.logits[row, 0]):.4g}"
        return self._named(int(self.judged.answer[row]))

    def _truth(self, row: int, example: Example) -> str:
        if self.judged.head == "score":
            return "" if example.target is None else f"{float(example.target):.4g}"
        return self._named(int(self.judged.truth[row]))

    def _named(self, place: int) -> str:
        if place < 0:
            return "not finite"
        labels = self.run.labels
        return labels[place] if self.judged.head != "choices" and place < len(labels) else f"choice {place + 1}"


def _contents(example: Example, explanation: Explanation | None) -> tuple[dict[str, str], dict[str, Image.Image]]:
    """Texts and pictures by modality: of an explained example as they were explained, so that places fit."""
    contents: dict[str, Any] = dict(example.content)
    if explanation is not None:
        contents |= {name: view.content for name, view in explanation.views.items()}
    texts, pictures = {}, {}
    for name, content in contents.items():
        if isinstance(content, str):
            texts[name] = content
        elif isinstance(content, tuple) and all(isinstance(each, str) for each in content):
            texts[name] = "\n".join(f"{place}. {each}" for place, each in enumerate(content, start=1))
        elif isinstance(content, Regions | Picture):
            pictures[name] = (content.picture if isinstance(content, Regions) else content).open()
    return texts, pictures
