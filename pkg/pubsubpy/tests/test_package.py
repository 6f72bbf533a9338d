"""The package as it is installed."""

from __future__ import annotations

import ast
import email
import importlib
import io
import tarfile
import tokenize
import zipfile
from pathlib import Path

import pytest

import pubsubpy

PROJECT = Path(__file__).parents[1]

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
    assert sum(code_lines(file.read_text()) for file in folder.glob("*.py")) <= 993


def test_all_names_have_a_docstring() -> None:
    for name in pubsubpy.__all__:
        if name != "Item":
            assert getattr(pubsubpy, name).__doc__, name


def test_the_wheel_and_the_sdist_say_whose_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(PROJECT)
    backend = importlib.import_module("flit_core.buildapi")
    with zipfile.ZipFile(tmp_path / backend.build_wheel(str(tmp_path))) as wheel:
        members = {name: wheel.read(name) for name in wheel.namelist()}
    info = next(name for name in members if name.endswith("/METADATA")).removesuffix("METADATA")
    licence = (PROJECT / "../../LICENSE").read_bytes()
    assert members[info + "licenses/LICENSE"] == licence
    archive = backend.build_sdist(str(tmp_path))
    with tarfile.open(tmp_path / archive) as sdist:
        file = sdist.extractfile(archive.removesuffix(".tar.gz") + "/LICENSE")
        assert file is not None and file.read() == licence

    metadata = email.message_from_bytes(members[info + "METADATA"])
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Author"] == "The pubsubd authors"
    assert metadata["Requires-Python"] == ">=3.11"
    assert "Programming Language :: Python :: 3.11" in metadata.get_all("Classifier", [])
    assert "Homepage, https://github.com/pubsubd/pubsubd" in metadata.get_all("Project-URL", [])
