"""What older versions kept of a run goes on loading and showing, and is not taken for more than it knew."""

from __future__ import annotations

import json
from typing import Any

from meq.experiments.runs.analysis import DiagnosisFile
from meq.experiments.runs.showcase_file import ExampleFile, ExplanationFile
from meq.training.plain import typed
from meq.viz.report.run_equilibrium import diagnosis

ORIGIN = {"schema": 1, "data": "scenes", "split": "dev", "same_data": True, "weights_sha256": "0" * 64}
PAIRS = {"image": {"image": [1.0], "text": [0.1]}, "text": {"image": [0.1], "text": [1.0]}}


def old_diagnosis() -> dict[str, Any]:
    """As it was written before the verdict asked about answers."""
    each = {"image": [0.2], "text": [0.3]}
    numbers = {key: [0.9] for key in ("radius", "damped_radius", "statistic", "residual", "further_steps")}
    return {
        **{"origin": ORIGIN, "verdict": "healthy", "evidence": "every input counts", "samples": 1, "measured": 1},
        **{"diverged": 0, "tol": 0.001, "spread": 0.5, "page": "verdict: healthy", **numbers},
        **{"cross_self": each, "gates": each, "answer": each, "influence": PAIRS, "inputs": PAIRS},
    }


def test_a_diagnosis_of_an_older_version_loads_and_its_healthy_is_not_shown_as_good() -> None:
    found = typed(DiagnosisFile, json.loads(json.dumps(old_diagnosis())), "diagnosis.json")
    assert found.findings == {}
    assert found.answers is None
    page = diagnosis(found)
    assert 'class="good"' not in page
    assert "did not ask whether the answers are right" in page


def test_an_explanation_by_a_method_that_is_gone_still_loads_and_prints() -> None:
    kept = {
        **{"steps": [0, 1], "read": 1, "head": "classes", "labels": ["no", "yes"], "logits": [[0.0, 1.0], [0.0, 2.0]]},
        **{"residuals": {"text": [0.5, 0.1]}, "stopped": None, "method": "state-gradient", "explained": 1},
        "target": 1,
        "views": {
            "text": {
                **{"kind": "text", "attribution": [[1.0, 1.0], [1.0, 1.0]], "boxes": None, "times": None},
                **{"spans": [[0, 3], [4, 7]], "size": None, "truncated": False},
            }
        },
    }
    example = {
        **{"id": "one", "reason": "least sure", "answer": "yes", "truth": "yes", "confidence": 0.7},
        **{"texts": {"text": "red dog"}, "pictures": {}, "explanation": kept},
    }
    assert typed(ExplanationFile, kept, "showcase.json").effects == {}
    found = typed(ExampleFile, example, "showcase.json").explained()
    assert found is not None
    assert "state-gradient" in str(found)
    assert "no longer offered" in str(found)
    assert found.modality_shares == {}
