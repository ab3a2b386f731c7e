"""Options, declared once as fields of a dataclass; signatures, help, checks and the reference are made from them.

For example:

    @dataclass(frozen=True, kw_only=True)
    class Settings:
        topic: Annotated[str, Option(help="the topic")]
        wait_ms: int = option(100, "time to wait", unit="ms", least=1)
"""

import functools
import inspect
import re
import textwrap
from collections.abc import Callable, Collection, Iterable
from dataclasses import MISSING, dataclass, field, fields, replace
from enum import Enum
from types import NoneType
from typing import Any, Concatenate, ParamSpec, TypeVar, get_args, get_type_hints

P = ParamSpec("P")
T = TypeVar("T")
Owner = TypeVar("Owner")

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1


_LINK, _TEXT = re.compile(r"\[(.+?)\]\(.+?\)"), r"\1"


class Required(Enum):
    """Marks an option without a default."""

    REQUIRED = "required"


REQUIRED = Required.REQUIRED


@dataclass(frozen=True, slots=True)
class Option:
    """One option.

    For a field, `declared` sets name, kind and default from the field itself.

    name: the keyword. kind: its type, as shown in the reference. help: its meaning, without its name. default: REQUIRED
    if there is none. unit: unit of a number, such as "ms". least, most: bounds of a whole number, both inclusive;
    `least` is None for other types. choices: the only permitted values, if limited. kafka: name of the option with the
    same meaning in Kafka's clients, if there is one. spark: likewise in Spark's Kafka source. flag: its name as an
    option of `roster broker`, without dashes, if it is one; with `is_flag`, the field's name.
    """

    name: str = ""
    kind: str = ""
    help: str = ""
    default: object = REQUIRED
    unit: str = ""
    least: int | None = None
    most: int = INT32_MAX
    choices: tuple[str, ...] = ()
    kafka: str = ""
    spark: str = ""
    flag: str = ""
    is_flag: bool = False

    def problem(self, value: object) -> str:
        """Return what is wrong with a value according to the declaration, "" if nothing is."""
        if value is None and self.default is None:
            return ""
        if self.least is not None:
            if not isinstance(value, int) or isinstance(value, bool) or not self.least <= value <= self.most:
                return f"{shown(value)} is not a whole number from {self.least} to {self.most}"
        elif self.choices and value not in self.choices:
            return f"{shown(value)} is not known: use {' or '.join(map(repr, self.choices))}"
        elif self.kind == "bool" and not isinstance(value, bool):
            return f"{shown(value)} is neither True nor False"
        return ""


def option(
    default: T,
    help: str,  # noqa: A002 - as in Option
    *,
    kind: str = "",
    unit: str = "",
    least: int | None = None,
    most: int = INT32_MAX,
    choices: tuple[str, ...] = (),
    kafka: str = "",
    spark: str = "",
    flag: str = "",
    is_flag: bool = False,
) -> T:
    """Declare a field of a dataclass as an option with a default; the rest is as in `Option`."""
    declaration = Option("", kind, help, default, unit, least, most, choices, kafka, spark, flag, is_flag)
    declared_field: T = field(default=default, metadata={Option: declaration})
    return declared_field


def shown(value: object) -> str:
    """Format a value for an error message; long ones, such as a number with hundreds of digits, are truncated."""
    try:
        text = repr(value)
    except ValueError:
        return "a number of thousands of digits"
    return text if len(text) <= 60 else f"{text[:40]}... ({len(text)} characters)"


def by_name(options: Iterable[Option]) -> dict[str, Option]:
    """Return the options by name, in their order. Raises ValueError if two have the same name."""
    listed = list(options)
    named = {option.name: option for option in listed}
    if len(named) != len(listed):
        raise ValueError("an option is declared twice")
    return named


@functools.cache
def declared(declaration: type) -> dict[str, Option]:
    """Return the options that the fields of a dataclass declare, by name, in the order of its signature.

    Fields without an `Option` are left out.
    """
    hints = get_type_hints(declaration, include_extras=True)
    fields_by_name = {field.name: field for field in fields(declaration)}
    options = {}
    for name in inspect.signature(declaration).parameters:
        declared_field, annotation = fields_by_name[name], hints[name]
        kind, *metadata = get_args(annotation) if hasattr(annotation, "__metadata__") else (annotation,)
        for own in (*metadata, *declared_field.metadata.values()):
            if isinstance(own, Option):
                default = REQUIRED if declared_field.default is MISSING else declared_field.default
                flag = name.replace("_", "-") if own.is_flag else own.flag
                options[name] = replace(own, name=name, kind=own.kind or _kind(kind), default=default, flag=flag)
    return options


def _kind(annotation: Any) -> str:
    one = [kind for kind in get_args(annotation) if kind is not NoneType] or [annotation]
    return str(one[0].__name__) if len(one) == 1 and isinstance(one[0], type) else str(annotation)


def problem_of(instance: object) -> str:
    """Return the first problem of an instance's options, with the option's name; "" if there is none."""
    kind: Any = type(instance)
    for name, option in declared(kind).items():
        if problem := option.problem(getattr(instance, name)):
            return f"{name}: {problem}"
    return ""


def values(declaration: type, instance: object) -> dict[str, Any]:
    """Return {field of the declaration: its value in the instance}."""
    return {field.name: getattr(instance, field.name) for field in fields(declaration)}


def taking(
    declaration: Callable[P, T], refuse: Callable[[Iterable[str], Collection[str]], None] | None = None
) -> Callable[[Callable[[Owner, T], None]], Callable[Concatenate[Owner, P], None]]:
    """Decorate an `__init__` that takes an instance of a dataclass, so that callers pass the fields as keywords.

    Its signature and help are made from the fields. `refuse` is called with the given and the known keywords and may
    raise an error; otherwise unknown keywords cause Python's TypeError.
    """

    def decorated(init: Callable[[Owner, T], None]) -> Callable[Concatenate[Owner, P], None]:
        signature = _signature(declaration)

        @functools.wraps(init)
        def taken(self: Owner, /, *given: P.args, **named: P.kwargs) -> None:
            if refuse is not None:
                refuse(named, signature.parameters)
            signature.bind(*given, **named)
            init(self, declaration(*given, **named))

        own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        shown = signature.replace(parameters=[own, *signature.parameters.values()], return_annotation=None)
        taken.__signature__ = shown  # type: ignore[attr-defined]
        taken.__annotations__ = {
            parameter.name: parameter.annotation for parameter in signature.parameters.values()
        } | {"return": None}
        taken.__doc__ = _help(inspect.getdoc(init) or "", declared(declaration))
        del taken.__wrapped__
        return taken

    return decorated


def explained(declaration: type[T]) -> type[T]:
    """Decorate a dataclass so that its signature and help have the types and meanings of its options."""
    declaration.__signature__ = _signature(declaration)  # type: ignore[attr-defined]
    options = declared(declaration)  # type: ignore[arg-type]
    declaration.__doc__ = _help(inspect.getdoc(declaration) or "", options)
    return declaration


def _signature(declaration: Callable[..., object]) -> inspect.Signature:
    """Return the signature of a dataclass, with plain types instead of `Annotated` ones."""
    signature, hints = inspect.signature(declaration), get_type_hints(declaration)
    parameters = [parameter.replace(annotation=hints[name]) for name, parameter in signature.parameters.items()]
    return signature.replace(parameters=parameters, return_annotation=inspect.Signature.empty)


def _help(text: str, options: dict[str, Option]) -> str:
    """Return the docstring with a section for the options, before its `Raises:` section."""
    explained = [
        textwrap.fill(
            f"{name}: {_LINK.sub(_TEXT, option.help)}.",
            100,
            initial_indent="    ",
            subsequent_indent="        ",
            break_long_words=False,
            break_on_hyphens=False,
        )
        for name, option in options.items()
    ]
    before, raises, errors = text.partition("Raises:")
    return "\n".join([before.rstrip(), "", "Args:", *explained, "", raises + errors]).strip()
