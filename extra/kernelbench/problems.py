"""KernelBench's problems: finding them, loading one, and a smaller one of the same form."""
import ast
import glob
import os
import re

import missing

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
DEFAULT_FOLDER = os.path.join(os.path.dirname(ROOT), "shared", "kernelbench")


class File:
    """A problem's file: levelL/N_name.py."""

    def __init__(self, path):
        self.path = path
        level = re.search(r"level(\d+)", os.path.basename(os.path.dirname(path)))
        number, self.name = os.path.basename(path)[:-3].split("_", 1)
        self.level, self.number = int(level.group(1)) if level else 0, int(number)
        self.key = f"{self.level}/{self.number}"
        self.stem = f"level{self.level}_{self.number}"


def find(folder, levels=None, numbers=None):
    """All of a folder, of these levels and numbers ("1/23", or "23" of any level)."""
    files = [File(p) for p in glob.glob(os.path.join(folder, "level*", "[0-9]*_*.py"))]
    files.sort(key=lambda f: (f.level, f.number))
    return [f for f in files if (not levels or f.level in levels) and
            (not numbers or f.key in numbers or str(f.number) in numbers)]


class Smaller(ast.NodeTransformer):
    """Divides integers that a module's top level gives names to."""

    def __init__(self, factor, is_wanted, least=2):
        self.factor, self.is_wanted, self.least = factor, is_wanted, least

    def visit_FunctionDef(self, node):
        return node

    visit_ClassDef = visit_FunctionDef

    def visit_Assign(self, node):
        names = [n.id for t in node.targets for n in ([t] if isinstance(t, ast.Name) else
                                                      getattr(t, "elts", []))
                 if isinstance(n, ast.Name)]
        if names and all(self.is_wanted(n) for n in names):
            node.value = self.divided(node.value)
        return node

    def divided(self, node):
        """Of an expression of integers alone; others stay."""
        if isinstance(node, (ast.Tuple, ast.List)):
            node.elts = [self.divided(e) for e in node.elts]
            return node
        try:
            value = eval(compile(ast.Expression(ast.fix_missing_locations(node)), "", "eval"), {})
        except Exception:
            return node
        if not isinstance(value, int) or isinstance(value, bool) or value < 8:
            return node
        return ast.copy_location(ast.Constant(self.smaller(value)), node)

    def smaller(self, value):
        """Divided, and still a multiple of 4 where it can be."""
        out = max(self.least, value // self.factor)
        return out - out % 4 if out > 8 else out


def is_batch(name):
    return "batch" in name.lower() or name in ("N", "B", "b", "n")


def is_room(name):
    words = "height width depth length seq image stream size dim input_shape H W D L T".split()
    return is_batch(name) or any(w in name for w in words) and "kernel" not in name \
        and "patch" not in name and "window" not in name and "pool" not in name


def is_any(name):
    return "kernel" not in name and "pool" not in name and "window" not in name


def load(file, factor=1, is_wanted=is_any):
    """The module's names, with its sizes divided."""
    missing.install()
    with open(file.path, encoding="utf-8") as f:
        tree = ast.parse(f.read(), file.path)
    if factor > 1:
        tree = ast.fix_missing_locations(Smaller(factor, is_wanted).visit(tree))
    names = {"__name__": "kernelbench_problem", "__file__": file.path}
    exec(compile(tree, file.path, "exec"), names)
    return names
