"""One style for all figures, and how they are saved; nothing global is changed."""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import meq.viz.needs  # noqa: F401

# isort: split
import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from PIL import Image

from meq.records import write_bytes
from meq.viz.colours import FAINT, HEAT, INK, PAPER, RULE
from meq.viz.text import MOST_LETTERS, clipped

DPI = 144
MOST_OF_NAME = 48
"""Characters of a label or a name, of which several stand side by side."""
HEAT_MAP = LinearSegmentedColormap.from_list("heat", [tuple(part / 255 for part in each) for each in HEAT])
SETTINGS: Any = {
    **{"font.family": "DejaVu Sans", "font.size": 9, "axes.titlesize": 10, "axes.titleweight": "bold"},
    **{"axes.titlelocation": "left", "axes.labelsize": 9, "legend.fontsize": 8.5, "legend.frameon": False},
    **{"axes.edgecolor": FAINT, "axes.labelcolor": INK, "text.color": INK, "axes.linewidth": 0.8},
    **{"xtick.color": FAINT, "ytick.color": FAINT, "xtick.labelcolor": INK, "ytick.labelcolor": INK},
    **{"axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.color": RULE},
    **{"grid.linewidth": 0.6, "axes.axisbelow": True, "lines.linewidth": 1.8, "lines.markersize": 4.5},
    **{"figure.facecolor": PAPER, "axes.facecolor": PAPER, "savefig.facecolor": PAPER},
    # Text as outlines looks the same everywhere; the salt makes the names inside an SVG the same every time.
    **{"svg.fonttype": "path", "svg.hashsalt": "meq", "figure.dpi": DPI},
}


@dataclass(frozen=True, kw_only=True, eq=False)
class Drawing:
    """A figure with its words."""

    figure: Figure
    alt: str
    """What it shows, for those who do not see it."""
    caption: str
    """What to know of it."""
    photograph: bool = False
    """There are pictures in it, so that it is kept as pixels and is not scaled down."""
    group: str = ""
    """What it belongs to, where one place of a report shows several drawings."""


@contextmanager
def styled() -> Iterator[None]:
    """The style, for as long as something is drawn; the caller's own settings come back afterwards."""
    with matplotlib.rc_context(SETTINGS), warnings.catch_warnings():
        # A caption may hold letters that the font lacks: they are shown as boxes, and that is no fault of the reader.
        warnings.filterwarnings("ignore", message="Glyph .* missing from", category=UserWarning)
        yield


def new_figure(width: float, height: float, *, constrained: bool = True) -> Figure:
    """An empty figure in inches, with a canvas of its own."""
    figure = Figure(figsize=(width, height), layout="constrained" if constrained else None)
    FigureCanvasAgg(figure)
    return figure


def as_png(figure: Figure, *, dpi: int = DPI) -> bytes:
    return _rendered(figure, "png", {"Software": None}, dpi)


def as_pixels(figure: Figure, *, dpi: int = DPI) -> Image.Image:
    pixels = _rendered(figure, "rgba", None, dpi)
    wide, tall = (int(inches * dpi) for inches in figure.get_size_inches())
    return Image.frombytes("RGBA", (wide, tall), pixels).convert("RGB")


def as_svg(figure: Figure) -> bytes:
    return _rendered(figure, "svg", {"Date": None, "Creator": None}, DPI)


def save(figure: Figure, stem: Path | str) -> tuple[Path, Path]:
    """Write stem.png and stem.svg, whole or not at all; the same figure gives the same bytes."""
    stem = Path(stem)
    stem.parent.mkdir(parents=True, exist_ok=True)
    png, svg = stem.with_name(f"{stem.name}.png"), stem.with_name(f"{stem.name}.svg")
    write_bytes(png, as_png(figure))
    write_bytes(svg, as_svg(figure))
    return png, svg


def plain(text: str, most: int = MOST_LETTERS) -> str:
    """Text that matplotlib shows as it is: a dollar is a dollar, not the beginning of a formula.

    A figure has room for so many letters: more would push everything else out of it, and take minutes to lay out.
    """
    line = clipped(text, most).replace("$", r"\$")
    return f" {line}" if line.startswith("_") else line  # a legend leaves out what begins with an underscore


def mark_read(axes: Axes, read: int) -> None:
    """K, the step that is read, as a line with its name."""
    axes.axvline(read, color=FAINT, linewidth=1.0, linestyle=(0, (4, 3)), zorder=1)
    axes.annotate(
        f"K = {read}", (read, 1), xycoords=("data", "axes fraction"), xytext=(0, 2), textcoords="offset points",
        va="bottom", ha="center", color=FAINT, fontsize=8,
    )  # fmt: skip


def whole_decades(axes: Axes, values: Iterable[float]) -> None:
    """A logarithmic axis from one power of ten to another around the values: on less, it would have no labels."""
    axes.set_yscale("log")
    exponents = [math.log10(value) for value in values if math.isfinite(value) and value > 0]
    if exponents:
        low, high = math.floor(min(exponents) + 1e-6), math.ceil(max(exponents) - 1e-6)
        axes.set_ylim(10.0**low, 10.0 ** max(high, low + 1))


def whole_steps(axes: Axes) -> None:
    """The horizontal axis counts steps: whole numbers only."""
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=12))
    axes.set_xlabel("step k of the iteration")


def _rendered(figure: Figure, form: str, metadata: dict[str, Any] | None, dpi: int) -> bytes:
    out = io.BytesIO()
    with styled():
        layout = figure.get_layout_engine()
        if layout is not None:  # once, and here: saving would draw the whole figure for it first
            layout.execute(figure)
            figure.set_layout_engine("none")
        figure.savefig(out, format=form, metadata=metadata, dpi=dpi)
    return out.getvalue()
