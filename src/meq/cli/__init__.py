"""The command line. It parses and calls; there is no logic here."""

from __future__ import annotations

from meq.cli.analyze import analyze
from meq.cli.app import app_command
from meq.cli.cost import cost
from meq.cli.data import data_app
from meq.cli.demo import demo
from meq.cli.encode import encode
from meq.cli.evaluate import evaluate
from meq.cli.explain import explain
from meq.cli.predict import predict
from meq.cli.report import report
from meq.cli.root import Book
from meq.cli.study import study_app
from meq.cli.train import train

book = Book()
book.add("Data", "data", data_app)
book.add("Data", "encode", encode)
book.add("Train", "train", train)
book.add("Train", "evaluate", evaluate)
book.add("Use", "predict", predict)
book.add("Use", "app", app_command)
book.add("Understand", "explain", explain)
book.add("Understand", "analyze", analyze)
book.add("Understand", "cost", cost)
book.add("Understand", "report", report)
book.add("Laboratory", "study", study_app)
book.add("Laboratory", "demo", demo)
app = book.app


def main() -> None:
    app()
