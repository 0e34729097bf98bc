"""Whose error it is."""

from __future__ import annotations

import errno
import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from meq.data.findings import DataError
from meq.data.request import open_data
from meq.errors import EXTRAS, LONGEST, Interrupted, in_words, is_users, raised_on_purpose, terminable, told, where
from meq.models.match import match_parameters
from meq.options import nearest
from meq.records import loads
from meq.training import TrainConfig

ROOT = Path(__file__).parents[1]


def error_of(call: Callable[[], Any]) -> BaseException:
    with pytest.raises(BaseException) as caught:  # noqa: PT011, the kind is what is asked about
        call()
    return caught.value


def in_meq(code: str) -> Callable[[], Any]:
    """Code as it would run inside the package."""
    scope: dict[str, Any] = {"__name__": "meq.data.somewhere", "torch": torch, "np": np, "json": json}
    exec(f"def call():\n    {code}", scope)
    return scope["call"]


@pytest.mark.parametrize(
    "call",
    [
        lambda: open_data("statments"),
        lambda: open_data("statements", sedd=1),
        lambda: TrainConfig(epochs=0),
        lambda: TrainConfig(epoch=1),
        lambda: loads(b"{", "a file"),
        lambda: Path("no/such/file").read_text(),
        in_meq("raise ValueError('words')"),
        in_meq("raise TypeError('words') from None"),
        in_meq("raise OSError('words')"),
        in_meq("raise MemoryError"),
        in_meq("raise torch.OutOfMemoryError('CUDA out of memory')"),
        in_meq("torch.empty(1 << 60)"),
        in_meq("np.empty(1 << 55)"),
        in_meq("json.loads('[' * 100_000)"),
        in_meq("import h5py.nothing_of_that_name"),
    ],
)
def test_what_meq_says_on_purpose_and_what_the_machine_refuses_are_the_users(call: Callable[[], Any]) -> None:
    assert is_users(error_of(call))


@pytest.mark.parametrize(
    "call",
    [
        in_meq("1 / 0"),
        in_meq("return {}['a']"),
        in_meq("raise KeyError('a')"),
        in_meq("return None.a"),
        in_meq("return next(iter([]))"),
        in_meq("assert False, 'never'"),
        in_meq("raise NotImplementedError"),
        in_meq("return int('x')"),
        in_meq("return call(1)"),
        in_meq("return torch.zeros(2) @ torch.zeros(3)"),
        in_meq("return torch.zeros(2).reshape(3)"),
        in_meq("return np.zeros(2) + np.zeros(3)"),
        in_meq("return json.loads('{')"),
        in_meq("return max([])"),
        in_meq("import no_such_package"),
        in_meq("import meq.no_such_module"),
        in_meq("import os; os.close(-1)"),
        in_meq("call2 = lambda: call2(); return call2()"),
        lambda: match_parameters(None, None, None),  # type: ignore[arg-type, call-arg]
    ],
)
def test_what_nobody_foresaw_is_a_bug(call: Callable[[], Any]) -> None:
    assert not is_users(error_of(call))


def test_an_error_of_elsewhere_stays_one_when_meq_passes_it_on() -> None:
    passed_on = in_meq("\n    try:\n        int('x')\n    except ValueError as error:\n        raise error")
    again = in_meq("\n    try:\n        int('x')\n    except ValueError:\n        raise")
    anew = in_meq(
        "\n    try:\n        int('x')\n    except ValueError as error:\n        raise ValueError('no') from error"
    )
    assert not raised_on_purpose(error_of(passed_on))
    assert not raised_on_purpose(error_of(again))
    assert raised_on_purpose(error_of(anew))


def test_every_optional_package_names_the_extra_that_brings_it() -> None:
    tomllib = pytest.importorskip("tomllib")  # since Python 3.11
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for module, extra in EXTRAS.items():
        assert module in map(imported_as, extras[extra]), f"{module} does not come with {extra}"
    for_users = [extra for extra in extras if extra not in ("dev", "docs")]
    named = {name for extra in for_users for name in extras[extra] if not name.startswith("meq[")}
    assert set(map(imported_as, named)) == EXTRAS.keys()


def imported_as(requirement: str) -> str:
    """The name that a requirement such as "ray[tune]>=2.54" is imported by."""
    name = requirement.split(">")[0].split("[")[0].replace("-", "_")
    return {"scikit_learn": "sklearn"}.get(name, name)


def test_the_system_is_quoted_with_the_file_and_a_full_disk_with_the_way_on(tmp_path: Path) -> None:
    assert in_words(error_of((tmp_path / "a").read_text)) == f"{tmp_path / 'a'}: no such file or directory"
    full = error_of(in_meq(f"raise OSError({errno.ENOSPC}, 'No space left on device', 'there')"))
    assert "No space" in in_words(full)
    full.__traceback__ = None  # as the system raises it
    assert in_words(full) == "there: the disk is full: make room, and give the same command again"


def test_memory_and_extras_have_their_own_sentences() -> None:
    assert "not enough memory" in in_words(error_of(in_meq("torch.empty(1 << 60)")))
    assert "pip install -U 'meq[mosei]'" in in_words(error_of(in_meq("import h5py.nothing_of_that_name")))
    assert "nested too deeply" in in_words(error_of(in_meq("json.loads('[' * 100_000)")))


def test_a_message_is_short_and_holds_nothing_that_a_terminal_obeys() -> None:
    words = in_words(DataError("\x1b[31mred\x07 " + "x" * 5000 + " the end"))
    assert len(words) < LONGEST + 10
    assert words.isprintable()
    assert words.endswith("the end")


@pytest.mark.usefixtures("unchecked")
def test_a_bug_is_told_with_its_place_inside_meq() -> None:
    error = error_of(lambda: nearest("a", 1))  # type: ignore[arg-type]
    assert not is_users(error)
    assert where(error).startswith("options.py, line ")
    assert "this is a bug in meq, please report it: options.py" in told(error)
    assert told(error_of(lambda: open_data("statments"))).startswith("DataError: there is no data set 'statments'")


def test_sigterm_ends_a_block_once_and_is_given_back() -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)  # other tests in this process may have left a handler
    try:
        with pytest.raises(Interrupted), terminable():
            signal.raise_signal(signal.SIGTERM)
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before)
