"""Cases for `test_specs.py`, run in a fresh interpreter."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from meq.encoders import EncoderError


def a_run_answers_once_the_module_is_imported(run: str, table: str, answers: str) -> None:
    from meq.runs import load_run

    known = load_run(run).predict_table(table)  # what training has encoded needs no encoder
    shutil.rmtree(Path(run) / "features")
    with pytest.raises(EncoderError, match=r"'letters' is not registered here: import the module 'encoders.letters'"):
        load_run(run).predict_table(table)
    import encoders.letters  # noqa: F401

    answered = load_run(run).predict_table(table)
    assert answered.rows() == known.rows()
    answered.save(answers)


def names_need_no_torch() -> None:
    import meq.encoders.catalogue

    assert "patches" in meq.encoders.catalogue.ENCODERS
    assert "minilm" in meq.encoders.catalogue.names_for("text")
    assert meq.encoders.catalogue.offline_is_installed("text") in (True, False)
    heavy = {"torch", "transformers", "PIL"} & set(sys.modules)
    assert not heavy, heavy
