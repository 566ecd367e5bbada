"""What each function of PyTorch is on tiny's public API: a table of translators, by the function's
name, each with the arguments of the function. Tensors arrive as Ref, which is their C++ name with
`shape` and `dtype`; a translator gives C++ text, a list of texts for several tensors, or a Struct.

Here is the table and what translators share; operations_elementwise.py, operations_tensor.py and
operations_nn.py fill it."""
import collections
import inspect

import torch

from cpp import cpp_shape, number


class Ref(str):
    """The name of a tensor in C++."""
    shape, dtype, value, uses = (), None, None, ()

    def dim(self):
        return len(self.shape)


class Enter(Exception):
    """Let the function's own text be recorded instead."""


TABLE = {}
# Names whose in-place forms are operators: `x += y`.
IN_PLACE = frozenset("add sub mul truediv div floordiv mod pow and or xor".split())
VIEWS = frozenset("view reshape transpose permute flatten unflatten expand expand_as unsqueeze "
                  "squeeze narrow select getitem split chunk unbind t movedim swapaxes unfold "
                  "diagonal view_as reshape_as swapdims tensor_split".split())


def op(*names):
    def add(f):
        for name in names:
            TABLE[name] = f
        return f
    return add


def find(name):
    name = name.strip("_")
    return TABLE.get(name)


def apply(translator, recorder, out, args, kwargs):
    """Calls a translator; those that ask for `out` get the result's stand-in."""
    parameters = inspect.signature(translator).parameters
    for wanted, value in (("out_", out), ("recorder_", recorder)):
        if wanted in parameters:
            kwargs = {**kwargs, wanted: value}
    return translator(*args, **kwargs)


def run(name, func, args, kwargs):
    """The result without values, for functions that PyTorch 1.13 has not on meta tensors too."""
    try:
        with torch.no_grad():
            return func(*args, **kwargs)
    except (NotImplementedError, RuntimeError, TypeError) as error:
        if name in SHAPES:
            return SHAPES[name](*args, **kwargs)
        raise error


def flops(name, out, args):
    """Of products and convolutions, roughly; a step of a recurrent layer counts as many, since it
    is a step of the graph."""
    if name in ("lstm", "gru"):
        steps = max(args[0].shape[:2])
        return steps * len(args[2]) * (1 << 23)
    shapes = [a.shape for a in args if isinstance(a, Ref)]
    if not isinstance(out, torch.Tensor) or len(shapes) < 2:
        return 0
    if name.startswith("conv_transpose"):
        size = 1
        for v in [*shapes[0], *shapes[1][1:]]:
            size *= v
        return 2 * size
    if name.startswith("conv"):
        size = out.numel()
        for v in shapes[1][1:]:
            size *= v
        return 2 * size
    products = ("matmul", "mm", "bmm", "linear", "addmm", "baddbmm", "einsum")
    if name in products and shapes[0]:
        return 2 * out.numel() * shapes[0][-1]
    return 0


# --- Text of arguments ---------------------------------------------------------------------------


def operand(v):
    return str(v) if isinstance(v, str) else number(v)


def positive(x, dim):
    return dim % max(1, len(x.shape))


def dims_text(dim):
    if isinstance(dim, int):
        return str(dim)
    return cpp_shape(dim)


def reduced(x, method, dim=None, keepdim=False, extra=""):
    if dim is None or (isinstance(dim, (list, tuple)) and not dim):
        if not keepdim and not extra:
            return f"{x}.{method}()"
        return f"{x}.{method}({{}}, {number(bool(keepdim))}{extra})"
    if not keepdim and not extra:
        return f"{x}.{method}({dims_text(dim)})"
    return f"{x}.{method}({dims_text(dim)}, {number(bool(keepdim))}{extra})"


def as_list(v, n):
    return [v] * n if isinstance(v, int) else list(v) * (n if len(v) == 1 else 1)


def per_axis(v):
    if isinstance(v, int):
        return str(v)
    v = list(v)
    return str(v[0]) if len(set(v)) == 1 else cpp_shape(v)


def designated(fields, defaults):
    """{.a = 1, .b = 2} of what is no default."""
    return "{" + ", ".join(f".{k} = {v}" for k, v in fields.items() if v != defaults[k]) + "}"


def call(name, args, options=None):
    args = [a if isinstance(a, str) else "Tensor()" if a is None else number(a) for a in args]
    if options in (None, "{}"):
        while args and args[-1] == "Tensor()":
            args.pop()
    else:
        args.append(options)
    return f"{name}({', '.join(args)})"


def with_defaults(name, tensors, values, defaults):
    """Arguments up to the last one that is not the default."""
    while values and values[-1] == defaults[len(values) - 1]:
        values = values[:-1]
    return f"{name}({', '.join([*tensors, *map(number, values)])})"


def shape_args(sizes):
    if len(sizes) == 1 and isinstance(sizes[0], (list, tuple, torch.Size)):
        sizes = sizes[0]
    return [int(s) for s in sizes]


# --- Shapes that PyTorch 1.13 does not know without values ---------------------------------------


def pooled(x, rank, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False):
    sizes = list(x.shape)
    kernel, padding, dilation = (as_list(v, rank) for v in (kernel_size, padding, dilation))
    stride = kernel if stride in (None, [], ()) else as_list(stride, rank)
    for i in range(rank):
        n = sizes[i - rank] + 2 * padding[i] - dilation[i] * (kernel[i] - 1) - 1
        size = (n + (stride[i] - 1 if ceil_mode else 0)) // stride[i] + 1
        if ceil_mode and (size - 1) * stride[i] >= sizes[i - rank] + padding[i]:
            size -= 1
        sizes[i - rank] = size
    return torch.empty(sizes, dtype=x.dtype, device=x.device)


WithIndices = collections.namedtuple("WithIndices", "values indices")


def with_indices(x):
    return WithIndices(x, torch.empty(x.shape, dtype=torch.int64, device=x.device))


def pooled3(x, *args, return_indices=False, **kwargs):
    y = pooled(x, 3, *args, **kwargs)
    return with_indices(y) if return_indices else y


SHAPES = {
    "max_pool3d": pooled3,
    "cummax": lambda x, dim: with_indices(torch.empty_like(x)),
    "cummin": lambda x, dim: with_indices(torch.empty_like(x)),
    "median": lambda x: torch.empty((), dtype=x.dtype, device=x.device),
    "cdist": lambda x, y, *a, **o: torch.empty([*x.shape[:-1], y.shape[-2]], dtype=x.dtype,
                                               device=x.device),
    "channel_shuffle": lambda x, groups: torch.empty_like(x),
    "scaled_dot_product_attention": lambda q, k, v, *a, **o: torch.empty(
        [*q.shape[:-1], v.shape[-1]], dtype=q.dtype, device=q.device),
}
