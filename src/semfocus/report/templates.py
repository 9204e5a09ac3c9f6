"""What the templates of all pages share: the environment they are filled in, the figures, the style sheet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from .parts import Cell, Figure, Section, Table, leaves
from .slim import rules
from .style import COLOURS, DARK, ArmStyle
from .svg import inline, swatch, themed
from .verdicts import tone

HERE = Path(__file__).parent


def environment(*folders: Path) -> Environment:
    """For templates of this folder, and of others whose pages have the same parts."""
    made = Environment(
        loader=FileSystemLoader([HERE, *folders]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"swatch": _swatch, "tone": tone}
    made.tests |= {kind.__name__.lower(): _is(kind) for kind in (Cell, Figure, Section, Table)}
    return made


def shared(sections: Sequence[Section]) -> dict[str, object]:
    """What every page's template needs: its figures, the style sheet and the colours."""
    figures = [part for part in leaves(sections) if isinstance(part, Figure)]
    known = {name: style for figure in figures for name, style in rules(figure.svg).items()}
    drawn_by = [f".plot .{name} {{ {themed(style)} }}" for name, style in known.items()]
    return {
        "drawn": {
            figure.name: Markup(inline(figure.svg, f"f{i}", _described(figure))) for i, figure in enumerate(figures)
        },
        "css": Markup("\n".join([style_sheet(), *drawn_by])),
        "colours": _variables(COLOURS),
        "dark_colours": _variables(DARK),
    }


def style_sheet() -> Markup:
    return Markup((HERE / "page.css").read_text(encoding="utf-8"))


def _is(kind: type) -> Callable[[object], bool]:
    return lambda value: isinstance(value, kind)


def _described(figure: Figure) -> str:
    return f"{figure.name.replace('-', ' ')}. {figure.caption}".strip()


def _swatch(style: ArmStyle) -> Markup:
    return Markup(themed(swatch(style)))


def _variables(colours: dict[str, str]) -> list[tuple[str, str]]:
    return [(family.replace("_", "-"), colour) for family, colour in colours.items() if family != "full"]
