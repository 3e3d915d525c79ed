"""tests/shared/parsed.py returns the trees of the files in their present state."""

import ast
import gc

import parsed


def test_a_changed_file_is_parsed_again(tmp_path):
    path = tmp_path / "a.py"
    path.write_text("x = 1\n", encoding="utf-8")
    first = parsed.tree(path)
    assert parsed.tree(path) is first
    path.write_text("y = 2\n", encoding="utf-8")
    assert ast.unparse(parsed.tree(path)) == "y = 2" and ast.unparse(first) == "x = 1"
    assert gc.isenabled()


def test_walk_returns_and_caches_the_nodes_of_ast_walk():
    tree = ast.parse("def f(x):\n    return [g(x), 1]\n")
    assert parsed.walk(tree) == tuple(ast.walk(tree)) and parsed.walk(tree) is parsed.walk(tree)
