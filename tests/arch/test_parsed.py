"""Trees that tests share (tests/shared/parsed.py) are those of the files as they are now."""

import ast
import gc

import parsed


def test_a_changed_file_is_parsed_anew(tmp_path):
    path = tmp_path / "a.py"
    path.write_text("x = 1\n", encoding="utf-8")
    first = parsed.tree(path)
    assert parsed.tree(path) is first
    path.write_text("y = 2\n", encoding="utf-8")
    assert ast.unparse(parsed.tree(path)) == "y = 2" and ast.unparse(first) == "x = 1"
    assert gc.isenabled()


def test_nodes_are_those_of_ast_walk():
    tree = ast.parse("def f(x):\n    return [g(x), 1]\n")
    assert parsed.walk(tree) == tuple(ast.walk(tree)) and parsed.walk(tree) is parsed.walk(tree)
