"""C++ text of numbers, shapes and types."""
import math

import torch

TYPES = {torch.float32: "kF32", torch.float64: "kF64", torch.float16: "kF16",
         torch.bfloat16: "kBF16", torch.int64: "kI64", torch.int32: "kI32", torch.int16: "kI16",
         torch.int8: "kI8", torch.uint8: "kU8", torch.bool: "kBool"}


def number(v):
    if isinstance(v, bool):
        return "true" if v else "false"
    if isinstance(v, int):
        return str(v) if abs(v) < 2**31 else f"int64_t{{{v}}}"
    v = float(v)
    if math.isnan(v):
        return "std::nan(\"\")"
    if math.isinf(v):
        return "kInfinity" if v > 0 else "-kInfinity"
    return repr(v)


def cpp_shape(sizes):
    return "{" + ", ".join(str(int(s)) for s in sizes) + "}"


class Struct:
    """An expression of several tensors: its type, how to get at each, and statements that go with
    it ($ is the name of the result)."""

    def __init__(self, type, text, parts, effects=()):
        self.type, self.text, self.parts, self.effects = type, text, parts, effects

    def part(self, name, i):
        return f"{name}{self.parts[i]}"
