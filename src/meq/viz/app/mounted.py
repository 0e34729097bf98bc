"""The page as one application: Gradio's, behind the guard."""

from __future__ import annotations

from dataclasses import dataclass

import gradio as gr
from fastapi import FastAPI

from meq.experiments.runs.load import TrainedRun
from meq.viz.app.explorer import Explorer
from meq.viz.app.guard import Guard
from meq.viz.app.page import build_page, looks_of_page
from meq.viz.app.rules import Rules
from meq.viz.app.uploads import MAX_BYTES, Uploads

SESSIONS = 200
"""Of which the pictures are remembered; the oldest is forgotten first."""


@dataclass(frozen=True)
class Mounted:
    """The application, and what it keeps busy."""

    app: Guard
    blocks: gr.Blocks
    explorer: Explorer

    def close(self) -> None:
        """Take no more questions, and end what is being measured."""
        self.blocks._queue.close()
        self.explorer.close()
        self.app.close()


def mounted(run: TrainedRun, rules: Rules) -> Mounted:
    """The page of a run, ready to be served."""
    explorer, uploads = Explorer(run), Uploads()
    if explorer.no_pairs is not None:
        print(explorer.no_pairs)
    if explorer.pairs:
        explorer.look_at_example(0)  # what everybody sees first, and the model has warmed up
    blocks = build_page(explorer, uploads)
    blocks.state_session_capacity = SESSIONS
    closed = {"docs_url": None, "redoc_url": None, "openapi_url": None}
    outer = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    gr.mount_gradio_app(
        outer, blocks, "/", app_kwargs=closed, footer_links=[], run_history=False, enable_monitoring=False, pwa=False,
        mcp_server=False, ssr_mode=False, show_error=False, allowed_paths=[], max_file_size=MAX_BYTES,
        **looks_of_page(),
    )  # fmt: skip
    return Mounted(Guard(outer, rules, uploads), blocks, explorer)
