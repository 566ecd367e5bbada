"""rearrange() of einops, for machines without that package: patterns of names, parentheses and an
ellipsis, as reshapes and a permutation."""
import re
import sys
import types


def terms(side):
    """[["b"], ["c", "l"], ["..."]] of "b (c l) ..."."""
    return [part.strip("()").split() for part in re.findall(r"\([^)]*\)|\S+", side)]


def rearrange(x, pattern, **sizes):
    left, right = (terms(side) for side in pattern.split("->"))
    named = sum(t != ["..."] for t in left)
    dots = [f"...{i}" for i in range(x.dim() - named)]
    expanded = [t for term in left for t in ([[d] for d in dots] if term == ["..."] else [term])]
    sizes = dict(sizes)
    for term, size in zip(expanded, x.shape):
        known = 1
        for name in term:
            known *= sizes.get(name, 1)
        for name in term:
            if name not in sizes:
                sizes[name] = size // known
    flat = [name for term in expanded for name in term]
    groups = [g for term in right for g in ([[d] for d in dots] if term == ["..."] else [term])]
    order = [name for group in groups for name in group]
    x = x.reshape([sizes[name] for name in flat]).permute([flat.index(name) for name in order])
    shape = []
    for group in groups:
        size = 1
        for name in group:
            size *= sizes[name]
        shape.append(size)
    return x.reshape(shape)


def install():
    """Makes `from einops import rearrange` work where einops is missing."""
    try:
        import einops  # noqa: F401
    except ImportError:
        module = types.ModuleType("einops")
        module.rearrange = rearrange
        sys.modules["einops"] = module
