"""The Equilibrium Explorer: a page on which one watches a picture and a caption come to an agreement."""

from __future__ import annotations

from meq.errors import require

require("gradio", "the explorer")
