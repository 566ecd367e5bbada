"""Movement, reductions, indexing and linear algebra."""
import torch

from cpp import Struct, cpp_shape, number
from operations import TABLE, as_list, call, dims_text, op, operand, reduced, shape_args
from operations_elementwise import cast

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
    end = "" if dims is None else f", {cpp_shape(as_list(dims, 1))}"
    return f"{x}.roll({text}{end})"


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


@op("trace")
def trace(x):
    return f"{x}.diagonal().sum()"


@op("cdist")
def cdist(x, y, p=2.0, compute_mode=None):
    extra = "" if p == 2 else f", {number(p)}"
    return reduced(f"({x}.unsqueeze(-2) - {y}.unsqueeze(-3))", "norm", -1, False, extra)


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
        extra = "" if correction == 1 else f", {number(correction)}"
        return reduced(x, method, dim, keepdim, extra)
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
