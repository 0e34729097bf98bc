"""Linux, macOS and Windows: nothing that only one of them has is taken for granted; locks and paths hold on each."""

from __future__ import annotations

import ast
import errno
import importlib
import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from meq.records import BusyError, alone, files, sync, write_bytes

SOURCE = Path(__file__).resolve().parents[1] / "src" / "meq"
ONLY_SOMEWHERE = {
    *("crypt", "curses", "fcntl", "grp", "nis", "ossaudiodev", "posix", "pty", "pwd", "readline", "resource"),
    *("spwd", "syslog", "termios", "tty", "_winapi", "msvcrt", "winreg", "winsound"),
}
"""Modules of the standard library that not every system has."""
SIGNALS = ("SIGALRM", "SIGCHLD", "SIGHUP", "SIGKILL", "SIGPIPE", "SIGQUIT", "SIGUSR1", "SIGUSR2")
ONLY_POSIX = {
    "os": {
        *("fork", "forkpty", "getuid", "geteuid", "getgid", "chown", "fchmod", "fchown", "mkfifo", "statvfs", "nice"),
        *("killpg", "setsid", "getpgid", "sched_getaffinity", "sched_setaffinity", "posix_fadvise", "posix_fallocate"),
        *("getloadavg", "uname", "O_NONBLOCK", "O_CLOEXEC", "O_NOFOLLOW", "O_DIRECTORY", "WNOHANG"),
    },
    "signal": {*SIGNALS, "alarm", "setitimer", "pthread_sigmask"},
    "time": {"tzset"},
    "socket": {"AF_UNIX"},
}
"""Names of modules that every system has, and that only POSIX has in them."""

WORDS = re.compile(rf"\b({'|'.join([*ONLY_SOMEWHERE, *(name for names in ONLY_POSIX.values() for name in names)])})\b")


def unguarded(text: str) -> list[str]:
    """What runs on every system and is there on some only: imports with the module, names without a question before."""
    if not WORDS.search(text):  # most files: reading their trees would take long
        return []
    tree, found = ast.parse(text), []
    inside = {
        id(inner)
        for outer in ast.walk(tree)
        if isinstance(outer, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.Try)
        or (isinstance(outer, ast.If) and _asks(outer.test))
        for inner in ast.walk(outer)
    }
    asked = {
        id(inner)
        for outer in ast.walk(tree)
        if isinstance(outer, ast.If | ast.IfExp) and _asks(outer.test)
        for inner in ast.walk(outer)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom) and id(node) not in inside:
            names = [each.name for each in node.names] if isinstance(node, ast.Import) else [str(node.module)]
            found += [f"line {node.lineno}: {name}" for name in names if name.partition(".")[0] in ONLY_SOMEWHERE]
        elif isinstance(node, ast.Attribute) and id(node) not in asked:
            module = ast.unparse(node.value)
            found += [f"line {node.lineno}: {module}.{node.attr}"] if node.attr in ONLY_POSIX.get(module, ()) else []
    return found


def _asks(test: ast.expr) -> bool:
    return any(word in ast.unparse(test) for word in ("hasattr(", "os.name", "sys.platform", "POSIX"))


def test_no_module_needs_at_its_import_what_only_some_systems_have() -> None:
    paths = sorted(SOURCE.rglob("*.py"))
    assert len(paths) > 200
    found = {str(path.relative_to(SOURCE)): unguarded(path.read_text(encoding="utf-8")) for path in paths}
    assert {name: lines for name, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("import fcntl", ["line 1: fcntl"]),
        ("from resource import getrusage", ["line 1: resource"]),
        ("def lock():\n    import fcntl", []),
        ("try:\n    import fcntl\nexcept ImportError:\n    fcntl = None", []),
        ("import os\nos.fork()", ["line 2: os.fork"]),
        ("import os\nif hasattr(os, 'nice'):\n    os.nice(1)", []),
        ("import signal\ndef end(code):\n    return code == signal.SIGKILL", ["line 3: signal.SIGKILL"]),
    ],
)
def test_what_is_not_guarded_is_found(text: str, lines: list[str]) -> None:
    assert unguarded(text) == lines


# -- locks -------------------------------------------------------------------------------------------------------------


HOLD = """
import sys
from pathlib import Path
from meq.records import alone
with alone(Path(sys.argv[1]), "busy"):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture(params=["folder", "file"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A folder and a file, with a space and a letter beyond ASCII in their names."""
    found = tmp_path / "a run, gründlich"
    found.mkdir()
    if request.param == "folder":
        return found
    (found / "study.json").write_text("{}", encoding="utf-8")
    return found / "study.json"


def test_a_process_that_holds_a_place_keeps_others_out_until_it_ends(place: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(place)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(BusyError, match="somebody else"), alone(place, "somebody else is there"):
            pass
        other.kill()
        other.wait()
    with alone(place, "somebody else is there", patience=5.0) as locked:
        assert locked


@pytest.fixture
def windows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """As on Windows, as far as files go: no folder can be opened, no fcntl, and locks that are those of msvcrt."""
    if os.name == "nt":
        pytest.skip("here it is the real one")
    flock = importlib.import_module("fcntl")

    def locking(handle: int, mode: int, size: int) -> None:
        assert (mode, size) == (2, 1)
        try:
            flock.flock(handle, flock.LOCK_EX | flock.LOCK_NB)
        except BlockingIOError as error:
            raise OSError(errno.EACCES, "Permission denied") from error

    real = os.open

    def opened(path: str | Path, flags: int, mode: int = 0o777) -> int:
        if Path(path).is_dir():
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return real(path, flags, mode)

    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(files, "POSIX", False)
    monkeypatch.setattr(files.tempfile, "gettempdir", lambda: str(temporary))
    monkeypatch.setitem(sys.modules, "fcntl", None)
    monkeypatch.setitem(sys.modules, "msvcrt", SimpleNamespace(LK_NBLCK=2, locking=locking))
    monkeypatch.setattr(os, "open", opened)
    return temporary


def test_where_no_folder_can_be_opened_a_file_elsewhere_is_locked_for_it(windows: Path, place: Path) -> None:
    folder = place if place.is_dir() else place.parent
    before = sorted(folder.rglob("*"))
    told: list[type | None] = []

    def another() -> None:
        try:
            with alone(place, "busy"):
                told.append(None)
        except BusyError as error:
            told.append(type(error))

    with alone(place, "busy") as locked:
        assert locked
        with alone(place, "busy") as again:
            assert again, "the same thread may come back"
        for _ in range(2):
            thread = threading.Thread(target=another)
            thread.start()
            thread.join()
        assert sorted(folder.rglob("*")) == before, "nothing is left in a folder that is sealed"
    assert told == [BusyError, BusyError]
    another()
    assert told[2] is None
    assert len(list((windows / "meq-locks").iterdir())) == 1


def test_two_places_have_two_locks_where_files_stand_for_them(windows: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    with alone(tmp_path / "one", "busy"), alone(tmp_path / "two", "busy"):
        assert len(list((windows / "meq-locks").iterdir())) == 2


def test_files_are_written_and_flushed_where_no_folder_can_be_opened(windows: Path, tmp_path: Path) -> None:
    write_bytes(tmp_path / "record.json", b"{}")
    sync(tmp_path / "record.json")
    sync(tmp_path)
    assert (tmp_path / "record.json").read_bytes() == b"{}"
