"""Options of commands: those that several commands share, and those that the fields of a dataclass give."""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer

from meq.cli.errors import errors_in_words
from meq.data.request import DATA_SETS, DataRequest, parse_options
from meq.encoders.catalogue import names_for
from meq.training.config import SMALL

Data = Annotated[
    str, typer.Argument(help=f"A data set ({', '.join(DATA_SETS)}), or a table: .csv, .tsv, .jsonl, .parquet, .csv.gz.")
]
Root = Annotated[
    Path | None, typer.Argument(help="The data set's folder; for a table, the folder its paths start from.")
]
Settings = Annotated[
    list[str] | None, typer.Option("--set", help="Further option of the data set, NAME=VALUE; repeatable.")
]
SkipBad = Annotated[bool, typer.Option(help="Leave bad rows out and count them, instead of stopping at the first.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for machines.")]
Run = Annotated[str, typer.Argument(help="A trained run: its folder, or its name on the Hub.")]
OtherData = Annotated[
    str | None, typer.Argument(help="A table with the columns of training, or a data set; else the run's own data.")
]
Steps = Annotated[
    int | None,
    typer.Option(help="Read every answer at this step, beyond K too; else by the run's rule, or at K.", min=1),
]
Full = Annotated[bool, typer.Option("--full", help="Read at the model's own depth K, whatever rule was calibrated.")]
Part = Annotated[str | None, typer.Option("--split", help="One split only: train, dev, test, or all of a table.")]
Store = Annotated[
    Path | None,
    typer.Option("--store", "--features", help="Feature store: what is encoded once is kept; else that of training."),
]
Int8 = Annotated[
    bool,
    typer.Option("--int8", help="Answer with an int8 model, made on the spot: faster on this machine's CPU."),
]


Epochs = Annotated[
    int | None,
    typer.Option(help=f"Passes over the train split; {SMALL.epochs}, or more where a small table needs them."),
]
Device = Annotated[
    str | None, typer.Option(help="Where to compute, such as cpu or cuda; the accelerator that is found unless given.")
]
OwnDevice = Annotated[
    str | None, typer.Option(help="Where model and encoders compute, such as cpu or cuda; cpu unless given.")
]


def _encoder_option(what: str, kind: str) -> Any:
    names = names_for(kind)
    return typer.Option(help=f"For {what}: {', '.join(names)}, a model on the Hub (its name has a slash) or a folder.")


ImageEncoder = Annotated[str | None, _encoder_option("pictures", "image")]
TextEncoder = Annotated[str | None, _encoder_option("texts", "text")]


@dataclass(frozen=True, kw_only=True)
class EncoderNames:
    """Which encoder reads which kind of content; None leaves the choice to meq."""

    image_encoder: ImageEncoder = None
    text_encoder: TextEncoder = None
    region_encoder: Annotated[str | None, _encoder_option("regions of pictures", "regions")] = None
    audio_encoder: Annotated[str | None, _encoder_option("sounds", "audio")] = None

    def by_kind(self) -> dict[str, str | None]:
        return {
            "image": self.image_encoder,
            "text": self.text_encoder,
            "regions": self.region_encoder,
            "audio": self.audio_encoder,
        }


WRITTEN_HERE: Mapping[str, tuple[str, Any]] = {
    "data": ("data", Data),
    "root": ("root", Root),
    "options": ("set_", Settings),
}
"""Fields of DataRequest that are no plain flags: by field, the parameter's name and what typer is told of it."""


@dataclass(frozen=True, kw_only=True)
class FieldOption:
    """One field of a dataclass as an option of a command."""

    field: str
    parameter: inspect.Parameter
    required: bool
    convert: Callable[[Any], Any]
    """From what typer gives to what the field holds."""


def command(body: Callable[..., None]) -> Callable[..., None]:
    """A command: errors are told in words, --debug shows their traceback, and dataclasses stand for their fields.

    `config: TrainConfig = SMALL` becomes --epochs, --learning-rate and so on. Names and types are those of the fields,
    defaults those of the given object, and the help is the text below each field. A field of several texts, `images`,
    becomes an option to repeat, --image. A parameter of the command's own that has the name of such an option is asked
    in its place; where it is not None, the dataclass gets its value, too.
    """
    hints = get_type_hints(body, include_extras=True)
    parameters: dict[str, inspect.Parameter] = {}
    made: dict[str, tuple[type, Any, list[FieldOption]]] = {}
    own = inspect.signature(body).parameters
    for name, parameter in own.items():
        kind = hints[name]
        if not (isinstance(kind, type) and dataclasses.is_dataclass(kind)):
            parameters[name] = parameter.replace(annotation=kind, kind=inspect.Parameter.KEYWORD_ONLY)
            continue
        defaults = None if parameter.default is inspect.Parameter.empty else parameter.default
        options = list(_field_options(kind, defaults))
        made[name] = (kind, defaults, options)
        parameters |= {each.parameter.name: each.parameter for each in options if each.parameter.name not in own}

    @functools.wraps(body)
    def call(**given: Any) -> None:
        arguments = {name: value for name, value in given.items() if name in own}
        with errors_in_words(given["debug"]):
            for name, (kind, defaults, options) in made.items():
                values = {} if defaults is None else {each.field: getattr(defaults, each.field) for each in options}
                for each in options:
                    value = given.get(each.parameter.name)
                    if value is not None:
                        values[each.field] = each.convert(value)
                    elif each.required:
                        values[each.field] = None
                arguments[name] = kind(**values)
            body(**arguments)

    parameters["debug"] = inspect.Parameter("debug", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Debug)
    call.__signature__ = inspect.Signature(list(parameters.values()))  # type: ignore[attr-defined]
    call.__annotations__ = {name: each.annotation for name, each in parameters.items()}
    del call.__wrapped__  # or typer would look at the body
    return call


def _field_options(kind: type, defaults: Any) -> Iterator[FieldOption]:
    """The options that the fields of a dataclass give."""
    hints, texts = get_type_hints(kind, include_extras=True), field_texts(kind)
    for field in dataclasses.fields(kind):
        name, hint = field.name, hints[field.name]
        convert: Callable[[Any], Any] = lambda given: given  # noqa: E731
        required = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        default: Any = inspect.Parameter.empty if required else getattr(defaults, name, field.default)
        if kind is DataRequest and name in WRITTEN_HERE:
            name, hint = WRITTEN_HERE[name]
            default = default if required else None
            convert = parse_options if name == "set_" else convert
        elif _holds_texts(hint):
            name, default, convert = name.removesuffix("s"), None, tuple
            hint = Annotated[list[str] | None, typer.Option(help=texts.get(field.name))]
        elif get_origin(hint) is not Annotated:
            hint = Annotated[hint, typer.Option(help=texts.get(field.name))]
        parameter = inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)
        yield FieldOption(field=field.name, parameter=parameter, required=required, convert=convert)


@functools.cache  # several commands take the same dataclass
def field_texts(kind: type) -> dict[str, str]:
    """By field of a dataclass, which stands at the top of its module: the text below it."""
    body = next(
        each for each in _written(kind.__module__) if isinstance(each, ast.ClassDef) and each.name == kind.__name__
    )
    texts = {}
    for field, below in zip(body.body, body.body[1:], strict=False):
        match field, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                texts[name] = " ".join(text.split())
    return texts


@functools.cache
def _written(module: str) -> Sequence[ast.stmt]:
    """The statements of a module; to find a class in it, `inspect.getsource` would read it again for each."""
    return ast.parse(inspect.getsource(sys.modules[module])).body


def _holds_texts(hint: Any) -> bool:
    origin = get_origin(hint)
    return isinstance(origin, type) and issubclass(origin, Sequence) and str in get_args(hint)
