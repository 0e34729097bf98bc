"""Things with names: data sets, encoders, metrics, solvers, penalties, studies, figures.

Each kind has one `Registry`. A new one joins with a decorator, `@register_encoder("my-encoder")`; a name taken twice is
an error, and so is a name that nobody registered, which is answered with the nearest one that exists.

Modules of your own that register something are named in the environment variable MEQ_PLUGINS, as `meq --plugin MODULE`
does for one command: they are imported before a registry is first read, in every process that the command starts.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

from meq.options import nearest

Kind = TypeVar("Kind")
Registered = TypeVar("Registered")
PLUGINS = "MEQ_PLUGINS"
_LOADED: set[str] = set()


def plugin_names() -> list[str]:
    """The modules that MEQ_PLUGINS names, with commas or spaces between them."""
    return os.environ.get(PLUGINS, "").replace(",", " ").split()


def load_plugins() -> None:
    """Import the plugins, each once."""
    for name in plugin_names():
        if name in _LOADED:
            continue
        _LOADED.add(name)  # first, since a plugin may read a registry while it is imported
        try:
            importlib.import_module(name)
        except Exception as error:
            _LOADED.discard(name)
            raise ImportError(f"the plugin {name!r} cannot be imported: {type(error).__name__}: {error}") from error


def imported(value: Any) -> Any:
    """What the text "module:name" stands for; anything else as it is."""
    if not isinstance(value, str):
        return value
    module, _, attribute = value.partition(":")
    return getattr(importlib.import_module(module), attribute)


class Registry(Generic[Kind]):
    """Objects of one kind by name, in the order in which they were registered.

    An entry may be given as text, "meq.encoders.image:ImageEncoder": it is imported when it is first asked for, so that
    listing names loads nothing. `error` is the exception for an unknown name.

    >>> from meq.registry import Registry
    >>> KINDS: Registry[type] = Registry("kind", {"equilibrium": "meq.models.equilibrium:MutualEquilibrium"})
    >>> register_kind = KINDS.register
    >>> KINDS.get("equilibrium") is meq.MutualEquilibrium
    True
    """

    def __init__(
        self, kind: str, entries: dict[str, Kind | str] | None = None, *, error: type[Exception] = ValueError
    ) -> None:
        self.kind = kind
        self.error = error
        self._written: dict[str, Any] = {}
        for name, value in (entries or {}).items():
            self.add(name, value)

    def register(self, name: str) -> Callable[[Registered], Registered]:
        """A decorator that gives the function or class below it this name."""
        if not isinstance(name, str) or not name:
            raise TypeError(f"the name of a {self.kind} must be text, got {name!r:.80}")

        def decorate(value: Registered) -> Registered:
            self.add(name, value)
            return value

        return decorate

    def add(self, name: str, value: Any) -> None:
        """Register a value, or the text "module:name" of one that is imported when it is needed."""
        if name in self._written and self._written[name] != _place(value):  # a module may register its own text
            raise ValueError(f"there is a {self.kind} {name!r} already: choose another name")
        self._written[name] = value

    def get(self, name: str) -> Kind:
        """The entry of this name, or an error that names the nearest one there is."""
        if name not in self._entries:
            raise self.error(f"there is no {self.kind} {name!r}: {nearest(name, self._entries)}")
        value = self._entries[name]
        if isinstance(value, str):
            value = self._written[name] = imported(value)
        return value

    def __getitem__(self, name: str) -> Kind:
        return self.get(name)

    def names(self) -> list[str]:
        """All names, in the order in which they were registered; nothing is imported."""
        return list(self._entries)

    def items(self) -> list[tuple[str, Kind]]:
        """All names with their entries; those given as text are imported now."""
        return [(name, self.get(name)) for name in self._entries]

    def name_of(self, value: Any) -> str | None:
        """The name under which this very object is registered, or None."""
        return next((name for name, entry in self._entries.items() if entry is value or entry == _place(value)), None)

    def remove(self, name: str) -> None:
        """Forget an entry: for tests that register one."""
        del self._written[name]

    @property
    def _entries(self) -> dict[str, Any]:
        """What is registered, by plugins too."""
        load_plugins()
        return self._written

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


def _place(value: Any) -> str:
    """Where a function or class is defined, as the text of an entry says it."""
    return f"{getattr(value, '__module__', '')}:{getattr(value, '__qualname__', '')}"
