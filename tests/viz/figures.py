"""What stands in a figure, and what reaches beyond it."""

from __future__ import annotations

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

from meq.viz.style import styled


def words_of(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.findobj(Text) if text.get_visible() and text.get_text()]


def cut_off(figure: Figure) -> list[str]:
    """The sides at which something that is drawn reaches beyond the page."""
    with styled():
        figure.draw_without_rendering()
        assert isinstance(figure.canvas, FigureCanvasAgg)
        drawn = figure.get_tightbbox(figure.canvas.get_renderer())
    width, height = figure.get_size_inches()
    room = {"left": drawn.x0, "bottom": drawn.y0, "right": width - drawn.x1, "top": height - drawn.y1}
    return [side for side, inches in room.items() if inches < -0.01]
