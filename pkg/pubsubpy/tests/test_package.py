"""The package as it is installed."""

from __future__ import annotations

import ast
import io
import tokenize
from pathlib import Path

import pubsubpy

LAYOUT = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)


def code_lines(source: str) -> int:
    """Counts lines that hold code: not empty ones, comments and docstrings."""
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in LAYOUT:
            code |= set(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            code -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(code)


def test_the_package_is_small_and_typed() -> None:
    folder = Path(pubsubpy.__file__).parent
    assert (folder / "py.typed").exists()
    assert sum(code_lines(file.read_text()) for file in folder.glob("*.py")) <= 979


def test_all_names_have_a_docstring() -> None:
    for name in pubsubpy.__all__:
        if name != "Item":
            assert getattr(pubsubpy, name).__doc__, name
