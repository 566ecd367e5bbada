"""What each function of PyTorch is on tiny's public API: a table of translators, by the function's
name, each with the arguments of the function. Tensors arrive as Ref, which is their C++ name with
`shape` and `dtype`; a translator gives C++ text, a list of texts for several tensors, or a Struct."""
import inspect

import torch

from cpp import TYPES, Struct, cpp_shape, number


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
    except (NotImplementedError, RuntimeError) as error:
        if name in SHAPES:
            return SHAPES[name](*args, **kwargs)
        raise error


def flops(name, out, args):
    """Of products and convolutions, roughly; a step of a recurrent layer counts as many, since it is
    a step of the graph."""
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
    if name.strip("_") in ("matmul", "mm", "bmm", "linear", "addmm", "baddbmm", "einsum") and shapes[0]:
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


# --- Element-wise --------------------------------------------------------------------------------


def unary(names, method=None):
    for name in names.split():
        TABLE[name] = lambda x, m=method or name: f"{x}.{m}()"


unary("abs sign floor ceil round trunc square sqrt rsqrt reciprocal exp exp2 expm1 log log2 log10 "
      "log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh erf isnan isinf isfinite "
      "logical_not bitwise_not relu relu6 sigmoid silu mish selu hardswish hardsigmoid")
unary("neg negative", "neg")
unary("absolute", "abs")
unary("logsigmoid", "logsigmoid")
unary("expit", "sigmoid")
unary("invert", "bitwise_not")
for name in ("softsign", "tanhshrink"):
    TABLE[name] = lambda x, n=name: f"{n}({x})"


@op("gelu")
def gelu(x, approximate="none"):
    return f"{x}.gelu({'true' if approximate == 'tanh' else ''})"


@op("softplus")
def softplus(x, beta=1, threshold=20):
    return f"{x}.softplus()" if (beta, threshold) == (1, 20) else \
        f"{x}.softplus({number(beta)}, {number(threshold)})"


@op("elu")
def elu(x, alpha=1.0):
    return f"{x}.elu({number(alpha)})"


@op("celu")
def celu(x, alpha=1.0):
    return f"{x}.celu({number(alpha)})"


@op("leaky_relu")
def leaky_relu(x, negative_slope=0.01):
    return f"{x}.leaky_relu({number(negative_slope)})"


@op("prelu")
def prelu(x, weight):
    return f"prelu({x}, {weight})"


@op("hardtanh")
def hardtanh(x, min_val=-1.0, max_val=1.0):
    return f"{x}.hardtanh({number(min_val)}, {number(max_val)})"


@op("hardshrink")
def hardshrink(x, lambd=0.5):
    return with_defaults("hardshrink", [x], [lambd], [0.5])


@op("softshrink")
def softshrink(x, lambd=0.5):
    return with_defaults("softshrink", [x], [lambd], [0.5])


@op("threshold")
def threshold(x, threshold, value):
    return f"threshold({x}, {number(threshold)}, {number(value)})"


@op("glu")
def glu(x, dim=-1):
    return f"glu({x}, {dim})"


@op("clamp", "clip")
def clamp(x, min=None, max=None):
    text = ["{}" if v is None else operand(v) for v in (min, max)]
    return f"{x}.clamp({text[0]}, {text[1]})"


@op("clamp_min")
def clamp_min(x, min):
    return f"{x}.clamp({operand(min)}, {{}})"


@op("clamp_max")
def clamp_max(x, max):
    return f"{x}.clamp({{}}, {operand(max)})"


def infix(names, sign):
    def forward(x, y, alpha=1):
        y = operand(y) if alpha == 1 else f"{operand(y)} * {number(alpha)}"
        return f"({operand(x)} {sign} {y})"
    for name in names.split():
        TABLE[name] = forward
        TABLE["r" + name] = lambda x, y, alpha=1: forward(y, x, alpha)


infix("add and or xor", "+")
infix("add", "+")
infix("sub subtract", "-")
infix("mul multiply", "*")
infix("bitwise_and and", "&")
infix("bitwise_or or", "|")
infix("bitwise_xor xor", "^")
infix("lshift", "<<")
infix("rshift", ">>")
for names, sign in (("eq", "=="), ("ne not_equal", "!="), ("lt less", "<"),
                    ("le less_equal", "<="), ("gt greater", ">"), ("ge greater_equal", ">=")):
    infix(names, sign)


@op("rsub")
def rsub(x, y, alpha=1):
    return f"({operand(y)} - {operand(x)})"


@op("div", "truediv", "divide", "true_divide")
def div(x, y, rounding_mode=None):
    if rounding_mode:
        return f"{'floor_div' if rounding_mode == 'floor' else 'trunc_div'}({operand(x)}, {operand(y)})"
    return f"({operand(x)} / {operand(y)})"


@op("rdiv", "rtruediv")
def rdiv(x, y):
    return f"({operand(y)} / {operand(x)})"


@op("floordiv", "floor_divide")
def floordiv(x, y):
    return f"floor_div({operand(x)}, {operand(y)})"


@op("remainder", "mod")
def remainder(x, y):
    return f"mod({operand(x)}, {operand(y)})"


@op("pow")
def power(x, y):
    if y == 2 and isinstance(x, str):
        return f"{x}.square()"
    return f"pow({operand(x)}, {operand(y)})"


@op("rpow")
def rpow(x, y):
    return f"pow({operand(y)}, {operand(x)})"


for name in ("maximum", "minimum", "atan2", "copysign", "logical_and", "logical_or", "logical_xor"):
    TABLE[name] = lambda x, y, n=name: f"{n}({operand(x)}, {operand(y)})"


@op("where")
def where(condition, x=None, y=None):
    if x is None:
        raise Enter()
    return f"where({condition}, {operand(x)}, {operand(y)})"


@op("lerp")
def lerp(x, end, weight):
    return f"{x}.lerp({end}, {operand(weight)})"


@op("masked_fill")
def masked_fill(x, mask, value):
    if isinstance(value, str):
        return f"where({mask}, {value}, {x})"
    return f"{x}.masked_fill({mask}, {number(value)})"


@op("addcmul")
def addcmul(x, a, b, value=1):
    return f"({x} + {a} * {b} * {number(value)})"


@op("addcdiv")
def addcdiv(x, a, b, value=1):
    return f"({x} + {a} / {b} * {number(value)})"


def cast(x, dtype):
    return f"{x}" if x.dtype == dtype else f"{x}.to({TYPES[dtype]})"


@op("to", "type_as", "type")
def to(x, *args, **kwargs):
    for a in [*args, *kwargs.values()]:
        if isinstance(a, torch.dtype):
            return cast(x, a)
        if isinstance(a, Ref):
            return cast(x, a.dtype)
    return f"{x}"


for name, dtype in (("float", torch.float32), ("double", torch.float64), ("half", torch.float16),
                    ("bfloat16", torch.bfloat16), ("long", torch.int64), ("int", torch.int32),
                    ("bool", torch.bool)):
    TABLE[name] = lambda x, d=dtype, memory_format=None: cast(x, d)


@op("copy")
def copy(x, source, non_blocking=False):
    text = cast(source, x.dtype)
    return text if list(source.shape) == list(x.shape) else f"{text}.expand({cpp_shape(x.shape)})"


@op("zero")
def zero(x):
    return f"Tensor::zeros({cpp_shape(x.shape)}, {TYPES[x.dtype]})"


@op("fill")
def fill(x, value):
    if isinstance(value, str):
        return f"{cast(value, x.dtype)}.expand({cpp_shape(x.shape)})"
    return f"Tensor::full({cpp_shape(x.shape)}, {number(value)}, {TYPES[x.dtype]})"


# --- Making tensors ------------------------------------------------------------------------------


def full_text(out, value):
    return f"Tensor::full({cpp_shape(out.shape)}, {value}, {TYPES[out.dtype]})"


@op("zeros", "zeros_like", "new_zeros")
def zeros(*args, out_, **kwargs):
    return full_text(out_, 0)


@op("ones", "ones_like", "new_ones")
def ones(*args, out_, **kwargs):
    return full_text(out_, 1)


@op("full", "full_like", "new_full")
def full(x, value=None, *, out_, fill_value=None, **kwargs):
    return full_text(out_, operand(fill_value if value is None else value))


@op("empty", "empty_like", "new_empty")
def empty(*args, out_, **kwargs):
    return full_text(out_, 0)


@op("arange")
def arange(*args, out_, **kwargs):
    low, high, step = [*args, 1] if len(args) == 2 else args if len(args) == 3 else (0, args[0], 1)
    return f"Tensor::arange({number(low)}, {number(high)}, {number(step)}, {TYPES[out_.dtype]})"


@op("linspace")
def linspace(start, end, steps, *, out_, **kwargs):
    return f"Tensor::linspace({number(start)}, {number(end)}, {steps}, {TYPES[out_.dtype]})"


@op("eye")
def eye(n, m=None, *, out_, **kwargs):
    return f"Tensor::eye({out_.shape[0]}, {out_.shape[1]}, {TYPES[out_.dtype]})"


@op("tensor", "as_tensor", "scalar_tensor")
def tensor(data, *, out_, **kwargs):
    if isinstance(data, str):
        return str(data)
    if out_.dim() == 0:
        return full_text(out_, number(out_.item()))
    raise Enter()


# --- Movement ------------------------------------------------------------------------------------


@op("view", "reshape")
def reshape(x, *shape, out_):
    if len(shape) == 1 and isinstance(shape[0], torch.dtype):
        raise NotImplementedError("view of another dtype")
    return f"{x}.reshape({cpp_shape(out_.shape)})"


@op("view_as", "reshape_as", "unflatten")
def reshape_as(x, *args, out_, **kwargs):
    return f"{x}.reshape({cpp_shape(out_.shape)})"


@op("expand", "expand_as", "broadcast_to")
def expand(x, *args, out_, **kwargs):
    return f"{x}.expand({cpp_shape(out_.shape)})"


@op("permute")
def permute(x, *dims):
    return f"{x}.permute({cpp_shape(shape_args(dims))})"


@op("transpose", "swapaxes", "swapdims")
def transpose(x, dim0, dim1):
    return f"{x}.transpose({dim0}, {dim1})"


@op("movedim", "moveaxis")
def movedim(x, source, destination):
    n = len(x.shape)
    source, destination = ([d % n for d in as_list(v, 1)] for v in (source, destination))
    order = [d for d in range(n) if d not in source]
    for d, s in sorted(zip(destination, source)):
        order.insert(d, s)
    return f"{x}.permute({cpp_shape(order)})"


@op("t")
def t(x):
    return f"{x}.t()" if len(x.shape) == 2 else f"{x}"


@op("flatten")
def flatten(x, start_dim=0, end_dim=-1):
    return f"{x}.flatten({start_dim}, {end_dim})" if end_dim != -1 else f"{x}.flatten({start_dim})"


@op("unsqueeze")
def unsqueeze(x, dim):
    return f"{x}.unsqueeze({dim})"


@op("squeeze")
def squeeze(x, dim=None):
    return f"{x}.squeeze()" if dim is None else f"{x}.squeeze({dims_text(dim)})"


@op("narrow")
def narrow(x, dim, start, length):
    return f"{x}.narrow({dim}, {int(start)}, {length})"


@op("select")
def select(x, dim, index):
    return f"{x}.select({dim}, {index})"


@op("flip")
def flip(x, *dims):
    return f"{x}.flip({cpp_shape(shape_args(dims))})"


@op("fliplr")
def fliplr(x):
    return f"{x}.flip(1)"


@op("flipud")
def flipud(x):
    return f"{x}.flip(0)"


@op("roll")
def roll(x, shifts, dims=None):
    text = cpp_shape(as_list(shifts, 1))
    return f"{x}.roll({text})" if dims is None else f"{x}.roll({text}, {cpp_shape(as_list(dims, 1))})"


@op("repeat", "tile")
def repeat(x, *sizes):
    return f"{x}.repeat({cpp_shape(shape_args(sizes))})"


@op("repeat_interleave")
def repeat_interleave(x, repeats, dim=None, output_size=None):
    return f"{x}.repeat_interleave({repeats}" + (")" if dim is None else f", {dim})")


@op("cat", "concat", "concatenate")
def cat(tensors, dim=0):
    return f"Tensor::cat({{{', '.join(tensors)}}}, {dim})"


@op("stack")
def stack(tensors, dim=0):
    return f"Tensor::stack({{{', '.join(tensors)}}}, {dim})"


def narrows(x, dim, sizes):
    start, out = 0, []
    for size in sizes:
        out.append(f"{x}.narrow({dim}, {start}, {size})")
        start += size
    return out


@op("split", "chunk", "tensor_split", "split_with_sizes")
def split(x, *args, out_, dim=None, **kwargs):
    axis = dim if dim is not None else args[1] if len(args) > 1 else 0
    return narrows(x, axis, [t.shape[axis] for t in out_])


@op("unbind")
def unbind(x, dim=0):
    return [f"{x}.select({dim}, {i})" for i in range(x.shape[dim])]


@op("tril")
def tril(x, diagonal=0):
    return f"{x}.tril({diagonal or ''})"


@op("triu")
def triu(x, diagonal=0):
    return f"{x}.triu({diagonal or ''})"


@op("diagonal")
def diagonal(x, offset=0, dim1=0, dim2=1):
    return f"{x}.diagonal({offset}, {dim1}, {dim2})"


@op("diag")
def diag(x, diagonal=0):
    if len(x.shape) != 1 or diagonal:
        return f"{x}.diagonal({diagonal})"
    return f"(Tensor::eye({x.shape[0]}) * {x})"


@op("unfold")
def unfold(x, dimension=None, size=None, step=None, **kwargs):
    if kwargs or step is None:  # of torch.nn.functional: image to columns
        raise NotImplementedError("unfold of images")
    return f"{x}.unfold({dimension}, {size}, {step})"


@op("pad")
def pad(x, pad, mode="constant", value=None):
    pads = [[0, 0] for _ in x.shape]
    for i in range(0, len(pad), 2):
        pads[-1 - i // 2] = [int(pad[i]), int(pad[i + 1])]
    text = ", ".join("{" + f"{a}, {b}" + "}" for a, b in pads)
    if mode == "constant":
        end = "" if not value else f", PadMode::Constant, {number(value)}"
    else:
        end = f", PadMode::{mode.capitalize()}"
    return f"{x}.pad({{{text}}}{end})"


@op("pixel_shuffle")
def pixel_shuffle(x, upscale_factor):
    return f"pixel_shuffle({x}, {upscale_factor})"


@op("channel_shuffle")
def channel_shuffle(x, groups):
    return f"channel_shuffle({x}, {groups})"


def index_text(at):
    parts = []
    for i in at if isinstance(at, tuple) else (at,):
        if isinstance(i, slice):
            fields = {"start": i.start, "stop": i.stop, "step": i.step}
            text = ", ".join(f".{k} = {int(v)}" for k, v in fields.items()
                             if v is not None and not (k == "step" and v == 1))
            parts.append(f"Slice{{{text}}}")
        elif i is None:
            parts.append("kNewAxis")
        elif i is Ellipsis:
            parts.append("kEllipsis")
        elif isinstance(i, str):
            parts.append(str(i))
        elif isinstance(i, (list, tuple)):
            parts.append(f"Tensor::from(std::vector<int64_t>{cpp_shape(i)})")
        else:
            parts.append(str(int(i)))
    return "{" + ", ".join(parts) + "}"


@op("getitem")
def getitem(x, at):
    return f"{x}.index({index_text(at)})"


@op("setitem")
def setitem(x, at, value, *, recorder_):
    """A copy of x with a part replaced."""
    name = recorder_.new_name()
    recorder_.state(name, f"Tensor {name} = {x};", list(x.uses))
    recorder_.state(None, f"{name}.assign({index_text(at)}, {operand(value)});",
                    [name, *recorder_.refs_in((at, value))], effect=name)
    recorder_.extra_uses.append(name)
    return name


# --- Reductions, scans, sorting ------------------------------------------------------------------


def reduction(names, method):
    for name in names.split():
        TABLE[name] = lambda x, dim=None, keepdim=False, dtype=None, m=method: reduced(
            x if dtype is None else f"{cast(x, dtype)}", m, dim, keepdim)


reduction("sum", "sum")
reduction("prod", "prod")
reduction("mean", "mean")
reduction("amax", "max")
reduction("amin", "min")
reduction("any", "any")
reduction("all", "all")
reduction("logsumexp", "logsumexp")
reduction("argmax", "argmax")
reduction("argmin", "argmin")


def extremum(method, pair):
    def forward(x, dim=None, keepdim=False, other=None):
        other = dim if isinstance(dim, str) else other
        if other is not None:
            return f"{pair}({x}, {other})"
        if dim is None:
            return f"{x}.{method}()"
        return [reduced(x, method, dim, keepdim), reduced(x, "arg" + method, dim, keepdim)]
    return forward


TABLE["max"], TABLE["min"] = extremum("max", "maximum"), extremum("min", "minimum")


def spread(method):
    def forward(x, dim=None, unbiased=True, keepdim=False, correction=None):
        if isinstance(dim, bool):
            dim, unbiased = None, dim
        correction = int(bool(unbiased)) if correction is None else correction
        return reduced(x, method, dim, keepdim, "" if correction == 1 else f", {number(correction)}")
    return forward


TABLE["var"], TABLE["std"] = spread("var"), spread("std")


@op("var_mean")
def var_mean(x, *args, **kwargs):
    keepdim = kwargs.get("keepdim", False)
    dim = kwargs.get("dim", args[0] if args else None)
    return [TABLE["var"](x, *args, **kwargs), reduced(x, "mean", dim, keepdim)]


@op("norm", "vector_norm", "linalg_vector_norm", "linalg_norm")
def norm(x, p=2, dim=None, keepdim=False, dtype=None, ord=None):
    p = ord if ord is not None else p
    if p in ("fro", None):
        p = 2
    return reduced(x, "norm", dim, keepdim, "" if p == 2 else f", {number(p)}")


@op("softmax", "softmin", "log_softmax")
def softmax(x, dim=None, _stacklevel=3, dtype=None):
    if dim is None:
        raise NotImplementedError("softmax without dim")
    return f"{x if dtype is None else cast(x, dtype)}.softmax({dim})"


TABLE["log_softmax"] = lambda x, dim=None, _stacklevel=3, dtype=None: \
    f"{x if dtype is None else cast(x, dtype)}.log_softmax({dim})"
TABLE["softmin"] = lambda x, dim=None, _stacklevel=3, dtype=None: f"{x}.neg().softmax({dim})"

for name in ("cumsum", "cumprod", "logcumsumexp"):
    TABLE[name] = lambda x, dim, dtype=None, n=name: f"{x}.{n}({dim})"
for name in ("cummax", "cummin"):
    TABLE[name] = lambda x, dim, n=name: Struct("WithIndices", f"{x}.{n}({dim})",
                                                [".values", ".indices"])


@op("sort")
def sort(x, dim=-1, descending=False, stable=False):
    return Struct("WithIndices", f"{x}.sort({dim}, {number(descending)})", [".values", ".indices"])


@op("argsort")
def argsort(x, dim=-1, descending=False, stable=False):
    return f"{x}.argsort({dim}, {number(descending)})"


@op("topk")
def topk(x, k, dim=-1, largest=True, sorted=True):
    return Struct("WithIndices", f"{x}.topk({k}, {dim}, {number(largest)})",
                  [".values", ".indices"])


@op("median")
def median(x, dim=None, keepdim=False):
    if dim is not None:
        raise NotImplementedError("positions of a median")
    return f"{x}.median()"


# --- Indexing by tensors -------------------------------------------------------------------------


@op("gather")
def gather(x, dim, index, sparse_grad=False):
    return f"{x}.gather({dim}, {index})"


@op("index_select")
def index_select(x, dim, index):
    return f"{x}.index_select({dim}, {index})"


@op("embedding")
def embedding(input, weight, padding_idx=None, *args, **kwargs):
    return f"{weight}.embedding({input})"


@op("one_hot")
def one_hot(x, num_classes):
    return f"{x}.one_hot({num_classes})"


@op("scatter")
def scatter(x, dim, index, src):
    return f"{x}.scatter({dim}, {index}, {operand(src)})"


@op("scatter_add")
def scatter_add(x, dim, index, src):
    return f"{x}.scatter_add({dim}, {index}, {src})"


@op("index_add")
def index_add(x, dim, index, source, alpha=1):
    return f"{x}.index_add({dim}, {index}, {source})"


# --- Linear algebra ------------------------------------------------------------------------------


@op("matmul", "mm", "bmm", "mv")
def matmul(x, y):
    return f"{x}.matmul({y})"


@op("rmatmul")
def rmatmul(x, y):
    return f"{y}.matmul({x})"


@op("dot")
def dot(x, y):
    return f"{x}.dot({y})"


@op("outer", "ger")
def outer(x, y):
    return f"{x}.outer({y})"


@op("addmm", "baddbmm", "addmv")
def addmm(x, a, b, beta=1, alpha=1):
    product = f"{a}.matmul({b})" if alpha == 1 else f"{a}.matmul({b}) * {number(alpha)}"
    return f"({product} + {x if beta == 1 else f'{x} * {number(beta)}'})"


@op("linear")
def linear(input, weight, bias=None):
    return call(f"{input}.linear", [weight, bias])


@op("einsum")
def einsum(equation, *operands):
    if len(operands) == 1 and isinstance(operands[0], (list, tuple)):
        operands = operands[0]
    equation = equation.replace(" ", "")
    if "..." in equation or "->" not in equation or equation.lower() != equation:
        equation = plain_equation(equation, [len(o.shape) for o in operands])
    return f'Tensor::einsum("{equation}", {{{", ".join(operands)}}})'


def plain_equation(equation, ranks):
    """Lower-case letters, an arrow and no dots."""
    left, _, right = equation.partition("->")
    terms = left.split(",")
    free = iter("abcdefghijklmnopqrstuvwxyz")
    names, dots = {}, 0
    for term, rank in zip(terms, ranks):
        if "..." in term:
            dots = max(dots, rank - len(term) + 3)
    letters = {}
    for c in left.replace(".", "").replace(",", ""):
        letters.setdefault(c, None)
    for c in letters:
        letters[c] = next(free)
    rest = [next(free) for _ in range(dots)]

    def spelled(term, rank):
        head, mark, tail = term.partition("...")
        n = rank - len(head) - len(tail) if mark else 0
        middle = rest[dots - n:] if rank is not None else rest
        return "".join([*(letters[c] for c in head), *(middle if mark else []),
                        *(letters[c] for c in tail)])
    if "->" not in equation:
        once = sorted(c for c in letters if left.count(c) == 1)
        right = ("..." if dots else "") + "".join(once)
    out_rank = len(right.replace("...", "")) + dots
    names = [spelled(t, r) for t, r in zip(terms, ranks)]
    return ",".join(names) + "->" + spelled(right, out_rank)


# --- Convolutions and pools ----------------------------------------------------------------------


def padding_of(padding, kernel, dilation):
    """A number for each axis, also of "same" and "valid"."""
    if padding == "valid":
        return 0
    if padding != "same":
        return padding
    dilation = as_list(dilation, len(kernel))
    total = [d * (k - 1) for d, k in zip(dilation, kernel)]
    if any(t % 2 for t in total):
        raise NotImplementedError("padding='same' of an even kernel")
    return [t // 2 for t in total]


def convolution(rank):
    def forward(input, weight, bias=None, stride=1, padding=0, dilation=1, groups=1):
        options = designated(
            {"stride": per_axis(stride), "padding": per_axis(padding_of(padding, weight.shape[2:], dilation)),
             "dilation": per_axis(dilation), "groups": str(groups)},
            {"stride": "1", "padding": "0", "dilation": "1", "groups": "1"})
        return call(f"conv{rank}d", [input, weight, bias], options)
    return forward


def transposed(rank):
    def forward(input, weight, bias=None, stride=1, padding=0, output_padding=0, groups=1,
                dilation=1):
        options = designated(
            {"stride": per_axis(stride), "padding": per_axis(padding),
             "output_padding": per_axis(output_padding), "dilation": per_axis(dilation),
             "groups": str(groups)},
            {"stride": "1", "padding": "0", "output_padding": "0", "dilation": "1", "groups": "1"})
        return call(f"conv_transpose{rank}d", [input, weight, bias], options)
    return forward


def pool_options(stride, padding=0, dilation=1, ceil_mode=False, count_include_pad=True):
    return designated(
        {"stride": "" if stride in (None, [], ()) else per_axis(stride), "padding": per_axis(padding),
         "dilation": per_axis(dilation), "ceil_mode": number(bool(ceil_mode)),
         "count_include_pad": number(bool(count_include_pad))},
        {"stride": "", "padding": "0", "dilation": "1", "ceil_mode": "false",
         "count_include_pad": "true"})


def max_pool(rank):
    def forward(x, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False,
                return_indices=False):
        options = pool_options(stride, padding, dilation, ceil_mode)
        if return_indices:
            text = call("max_pool_with_indices", [x, rank, per_axis(kernel_size)], options)
            return Struct("WithIndices", text, [".values", ".indices"])
        return call(f"max_pool{rank}d", [x, per_axis(kernel_size)], options)
    return forward


def avg_pool(rank):
    def forward(x, kernel_size, stride=None, padding=0, ceil_mode=False, count_include_pad=True,
                divisor_override=None):
        if divisor_override is not None:
            raise NotImplementedError("divisor_override")
        return call(f"avg_pool{rank}d", [x, per_axis(kernel_size)],
                    pool_options(stride, padding, 1, ceil_mode, count_include_pad))
    return forward


def adaptive(name):
    def forward(x, output_size, return_indices=False, *, out_):
        if return_indices:
            raise NotImplementedError("positions of adaptive pools")
        spatial = out_.shape[-int(name[-2]):]
        return f"{name}({x}, {per_axis(list(spatial))})"
    return forward


for rank in (1, 2, 3):
    TABLE[f"conv{rank}d"] = convolution(rank)
    TABLE[f"conv_transpose{rank}d"] = transposed(rank)
    TABLE[f"max_pool{rank}d"] = TABLE[f"max_pool{rank}d_with_indices"] = max_pool(rank)
    TABLE[f"avg_pool{rank}d"] = avg_pool(rank)
    for kind in ("avg", "max"):
        TABLE[f"adaptive_{kind}_pool{rank}d"] = adaptive(f"adaptive_{kind}_pool{rank}d")


@op("interpolate", "upsample")
def interpolate(x, size=None, scale_factor=None, mode="nearest", align_corners=None,
                recompute_scale_factor=None, antialias=False, *, out_):
    modes = {"nearest": "Nearest", "nearest-exact": "NearestExact", "linear": "Linear",
             "bilinear": "Linear", "trilinear": "Linear"}
    if mode not in modes or antialias:
        raise NotImplementedError(f"interpolation {mode}")
    corners = ", true" if align_corners else ""
    return f"interpolate({x}, {cpp_shape(out_.shape[2:])}, Resample::{modes[mode]}{corners})"


# --- Normalisations ------------------------------------------------------------------------------


@op("batch_norm")
def batch_norm(x, running_mean=None, running_var=None, weight=None, bias=None, training=False,
               momentum=0.1, eps=1e-5, *args):
    options = designated({"training": number(training), "momentum": number(momentum),
                          "eps": number(eps)},
                         {"training": "false", "momentum": "0.1", "eps": "1e-05"})
    text = call("batch_norm", [x, *(v or "Tensor()" for v in (weight, bias, running_mean,
                                                              running_var))], options)
    effects = [f"{running_mean}.assign($.running_mean)", f"{running_var}.assign($.running_var)"] \
        if training and running_mean is not None else []
    return Struct("BatchNormResult", text, [".y"], effects)


@op("layer_norm")
def layer_norm(x, normalized_shape, weight=None, bias=None, eps=1e-5, *args):
    end = [] if eps == 1e-5 else [weight or "Tensor()", bias or "Tensor()", number(eps)]
    return call("layer_norm", [x, cpp_shape(normalized_shape), *(end or [weight, bias])])


@op("rms_norm")
def rms_norm(x, normalized_shape, weight=None, eps=None):
    eps = 1.1920928955078125e-07 if eps is None else eps
    return call("rms_norm", [x, cpp_shape(normalized_shape), weight or "Tensor()", number(eps)])


@op("group_norm")
def group_norm(x, num_groups, weight=None, bias=None, eps=1e-5, *args):
    return call("group_norm", [x, num_groups, *([weight, bias] if eps == 1e-5 else
                                                [weight or "Tensor()", bias or "Tensor()",
                                                 number(eps)])])


@op("instance_norm")
def instance_norm(x, running_mean=None, running_var=None, weight=None, bias=None,
                  use_input_stats=True, momentum=0.1, eps=1e-5):
    if running_mean is not None:
        raise NotImplementedError("running statistics of instance_norm")
    return call("instance_norm", [x, *([weight, bias] if eps == 1e-5 else
                                       [weight or "Tensor()", bias or "Tensor()", number(eps)])])


@op("normalize")
def normalize(x, p=2.0, dim=1, eps=1e-12):
    return with_defaults("normalize", [x], [p, dim, eps], [2.0, 1, 1e-12])


@op("cosine_similarity")
def cosine_similarity(x1, x2, dim=1, eps=1e-8):
    return with_defaults("cosine_similarity", [x1, x2], [dim, eps], [1, 1e-8])


# --- Losses --------------------------------------------------------------------------------------

REDUCTIONS = {"none": "None", "mean": "Mean", "sum": "Sum", "batchmean": "BatchMean"}


def reduction_text(reduction):
    return "" if reduction == "mean" else f", Reduction::{REDUCTIONS[reduction]}"


def loss(name):
    def forward(input, target, *args, reduction="mean", **kwargs):
        return f"{name}({input}, {target}{reduction_text(reduction)})"
    return forward


TABLE["mse_loss"], TABLE["l1_loss"] = loss("mse_loss"), loss("l1_loss")


@op("smooth_l1_loss")
def smooth_l1_loss(input, target, size_average=None, reduce=None, reduction="mean", beta=1.0):
    end = f", Reduction::{REDUCTIONS[reduction]}, {number(beta)}" if beta != 1 else \
        reduction_text(reduction)
    return f"smooth_l1_loss({input}, {target}{end})"


@op("huber_loss")
def huber_loss(input, target, reduction="mean", delta=1.0):
    end = f", Reduction::{REDUCTIONS[reduction]}, {number(delta)}" if delta != 1 else \
        reduction_text(reduction)
    return f"huber_loss({input}, {target}{end})"


def classes_loss(name):
    def forward(input, target, weight=None, size_average=None, ignore_index=-100, reduce=None,
                reduction="mean", label_smoothing=0.0):
        options = designated(
            {"weight": str(weight), "reduction": f"Reduction::{REDUCTIONS[reduction]}",
             "ignore_index": str(ignore_index), "label_smoothing": number(label_smoothing)},
            {"weight": "None", "reduction": "Reduction::Mean", "ignore_index": "-100",
             "label_smoothing": "0.0"})
        return call(name, [input, target], options)
    return forward


TABLE["cross_entropy"], TABLE["nll_loss"] = classes_loss("cross_entropy"), classes_loss("nll_loss")


@op("triplet_margin_loss")
def triplet_margin_loss(anchor, positive, negative, margin=1.0, p=2, eps=1e-6, swap=False,
                        size_average=None, reduce=None, reduction="mean"):
    if isinstance(reduction, int):  # as torch.triplet_margin_loss has it
        reduction = ("none", "mean", "sum")[reduction]
    options = designated(
        {"margin": number(float(margin)), "p": number(float(p)), "eps": number(eps), "swap": number(swap),
         "reduction": f"Reduction::{REDUCTIONS[reduction]}"},
        {"margin": "1.0", "p": "2.0", "eps": "1e-06", "swap": "false",
         "reduction": "Reduction::Mean"})
    return call("triplet_margin_loss", [anchor, positive, negative], options)


@op("kl_div")
def kl_div(input, target, size_average=None, reduce=None, reduction="mean", log_target=False):
    end = f", Reduction::{REDUCTIONS[reduction]}, true" if log_target else reduction_text(reduction)
    return f"kl_div({input}, {target}{end})"


@op("binary_cross_entropy")
def binary_cross_entropy(input, target, weight=None, size_average=None, reduce=None,
                         reduction="mean"):
    return f"binary_cross_entropy({input}, {target}, {weight or 'Tensor()'}" \
        f"{reduction_text(reduction)})"


@op("binary_cross_entropy_with_logits")
def binary_cross_entropy_with_logits(input, target, weight=None, size_average=None, reduce=None,
                                     reduction="mean", pos_weight=None):
    return f"binary_cross_entropy_with_logits({input}, {target}, {weight or 'Tensor()'}, " \
        f"{pos_weight or 'Tensor()'}{reduction_text(reduction)})"


# --- Attention and recurrent layers --------------------------------------------------------------


@op("scaled_dot_product_attention")
def attention(q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None,
              enable_gqa=False):
    options = designated(
        {"mask": str(attn_mask), "is_causal": number(is_causal), "scale": str(scale),
         "enable_gqa": number(enable_gqa), "dropout_p": number(dropout_p)},
        {"mask": "None", "is_causal": "false", "scale": "None", "enable_gqa": "false",
         "dropout_p": "0.0"})
    return call("scaled_dot_product_attention", [q, k, v], options)


@op("multi_head_attention_forward")
def multi_head_attention(query, key, value, embed_dim, num_heads, in_proj_weight, in_proj_bias,
                         bias_k, bias_v, add_zero_attn, dropout_p, out_proj_weight, out_proj_bias,
                         training=True, key_padding_mask=None, need_weights=True, attn_mask=None,
                         use_separate_proj_weight=False, q_proj_weight=None, k_proj_weight=None,
                         v_proj_weight=None, static_k=None, static_v=None,
                         average_attn_weights=True, is_causal=False, *, recorder_):
    """Products, heads apart, attention, heads together, a product: nn::MultiheadAttention::forward.
    The weights of attention are given only where the program reads them, and none does: None."""
    if bias_k or bias_v or add_zero_attn or key_padding_mask or use_separate_proj_weight or \
            static_k or static_v or (training and dropout_p) or len(query.shape) != 3:
        raise NotImplementedError("an option of multi_head_attention_forward")
    n, e = num_heads, embed_dim

    def heads(x, shape):
        return f"{x}.reshape({cpp_shape([shape[0], shape[1] * n, e // n])}).transpose(0, 1)"

    def projected(x, i):
        bias = f"{in_proj_bias}.narrow(0, {i * e}, {e})" if in_proj_bias else None
        return heads(call(f"{x}.linear", [f"{in_proj_weight}.narrow(0, {i * e}, {e})", bias]), x.shape)
    if query == key == value:
        uses = [v for r in (query, in_proj_weight, in_proj_bias) if r for v in r.uses]
        all_three = recorder_.new_name()
        recorder_.state(all_three, f"const Tensor {all_three} = "
                        f"{call(query + '.linear', [in_proj_weight, in_proj_bias])};", uses)
        recorder_.extra_uses.append(all_three)
        q, k, v = (heads(f"{all_three}.narrow(2, {i * e}, {e})", query.shape) for i in range(3))
    else:
        q, k, v = projected(query, 0), projected(key, 1), projected(value, 2)
    options = designated({"mask": str(attn_mask), "is_causal": number(bool(is_causal and not attn_mask))},
                         {"mask": "None", "is_causal": "false"})
    length, batch = query.shape[0], query.shape[1]
    text = call("scaled_dot_product_attention", [q, k, v], options)
    return [f"{text}.transpose(0, 1).reshape({{{length}, {batch}, {e}}})"
            + call(".linear", [out_proj_weight, out_proj_bias]), "Tensor()"]


def recurrent(name, gates_hidden, initial, parts):
    def forward(x, hx, weights, has_biases, num_layers, dropout, train, bidirectional,
                batch_first=False):
        if dropout:
            raise NotImplementedError("dropout between recurrent layers")
        if isinstance(has_biases, (list, tuple)) or not isinstance(has_biases, bool):
            raise NotImplementedError("packed sequences")
        step = 4 if has_biases else 2
        cells = ["{" + ", ".join(weights[i:i + step]) + "}" for i in range(0, len(weights), step)]
        options = designated({"batch_first": number(batch_first),
                              "bidirectional": number(bidirectional)},
                             {"batch_first": "false", "bidirectional": "false"})
        return Struct(f"{name.capitalize()}Result", call(
            name, [x, initial(hx), "{" + ", ".join(cells) + "}"], options), parts)
    return forward


TABLE["lstm"] = recurrent("lstm", 4, lambda hx: f"{{{hx[0]}, {hx[1]}}}", [".y", ".state.h", ".state.c"])
TABLE["gru"] = recurrent("gru", 3, str, [".y", ".h"])

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


def with_indices(x):
    return x, torch.empty(x.shape, dtype=torch.int64, device=x.device)


def pooled3(x, *args, return_indices=False, **kwargs):
    y = pooled(x, 3, *args, **kwargs)
    return with_indices(y) if return_indices else y


SHAPES = {
    "max_pool3d": pooled3,
    "cummax": lambda x, dim: with_indices(torch.empty_like(x)),
    "cummin": lambda x, dim: with_indices(torch.empty_like(x)),
    "median": lambda x: torch.empty((), dtype=x.dtype, device=x.device),
    "channel_shuffle": lambda x, groups: torch.empty_like(x),
    "scaled_dot_product_attention": lambda q, k, v, *a, **o: torch.empty(
        [*q.shape[:-1], v.shape[-1]], dtype=q.dtype, device=q.device),
}
