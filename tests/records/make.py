"""Writes the records of the version in hand to `tests/records/VERSION`, once per released format.

A whole study without its weights: later versions must still read and verify it. Run it before a release that changes a
format, and commit what it writes: python tests/records/make.py
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from shutil import copytree, ignore_patterns

from meq import __version__
from meq.studies import make_study, run_study
from meq.training import record

if __name__ == "__main__":
    machine = record.Hardware(device="cpu", name="a processor", processors=2, threads=1, system="Linux x86_64")
    record.hardware = lambda device: machine
    record.commit_of = lambda folder: record.Commit(sha="0" * 40, dirty=False)
    study = replace(make_study("statements-tiny"), seeds=(0, 1))
    with tempfile.TemporaryDirectory() as folder:
        run_study(study, folder)
        copytree(folder, Path(__file__).parent / __version__, ignore=ignore_patterns("*.safetensors"))
