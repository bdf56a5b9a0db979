"""Imports go strictly downward: cli at the top, errors at the bottom."""

import ast
from collections.abc import Iterator
from pathlib import Path

import eagle3

ROOT = Path(eagle3.__file__).parent
LAYERS = [
    {"errors"},
    {"config", "parallel"},
    {"text"},
    {"ops"},
    {"kv"},
    {"nn"},
    {"models"},
    {"spec"},
    {"engine"},
    {"build"},
    {"train", "bench"},
    {"cli"},
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}


def imports(tree: ast.AST) -> Iterator[str]:
    """Modules that a file imports, those inside functions included."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide the layer"
            assert node.module is not None
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def upward(source: str, part: str) -> list[str]:
    """Imports in `source`, a file of the layer of `part`, that do not go down."""
    found = []
    for name in imports(ast.parse(source)):
        words = name.split(".")
        if words[0] == "eagle3" and len(words) > 1 and words[1] in LEVEL:
            other = words[1]
            if other != part and LEVEL[other] >= LEVEL[part]:
                found.append(name)
    return found


def test_imports_go_down() -> None:
    wrong = []
    for path in sorted(ROOT.rglob("*.py")):
        relative = path.relative_to(ROOT)
        part = relative.parts[0].removesuffix(".py")
        if part in ("__init__", "__main__", "conf", "recipes"):
            continue
        assert part in LEVEL, f"{relative} belongs to no layer"
        wrong += [f"{relative} imports {name}" for name in upward(path.read_text(), part)]
    assert not wrong, "\n".join(wrong)


def test_the_walk_sees_what_it_should() -> None:
    assert upward("from eagle3.engine.engine import Engine", "spec") == [
        "eagle3.engine.engine",
        "eagle3.engine.engine.Engine",
    ]
    assert upward("def f():\n    import eagle3.parallel", "config") == ["eagle3.parallel"]
    assert upward("from eagle3 import cli", "errors") == ["eagle3.cli"]
    assert not upward("from eagle3.kv.pool import KVPool\nimport torch", "spec")
