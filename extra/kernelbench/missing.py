"""What a problem may use and a machine may lack: rearrange() of einops (patterns of names,
parentheses and an ellipsis, as reshapes and a permutation), and functions of later versions of
PyTorch."""
import math
import re
import sys
import types

import torch
import torch.nn.functional as F


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


def scaled_dot_product_attention(query, key, value, attn_mask=None, dropout_p=0.0,
                                 is_causal=False, scale=None, enable_gqa=False):
    """As PyTorch 2 has it, without dropout."""
    if F.has_torch_function_variadic(query, key, value):
        return torch.overrides.handle_torch_function(
            scaled_dot_product_attention, (query, key, value), query, key, value, attn_mask,
            dropout_p, is_causal, scale, enable_gqa)
    scores = query @ key.transpose(-2, -1) * (scale or 1 / math.sqrt(query.size(-1)))
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=query.device).tril()
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attn_mask, float("-inf"))
    elif attn_mask is not None:
        scores = scores + attn_mask
    return torch.softmax(scores, -1) @ value


def install():
    if not hasattr(F, "scaled_dot_product_attention"):
        F.scaled_dot_product_attention = scaled_dot_product_attention
    try:
        import einops  # noqa: F401
    except ImportError:
        module = types.ModuleType("einops")
        module.rearrange = rearrange
        sys.modules["einops"] = module
