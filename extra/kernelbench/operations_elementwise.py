"""Element by element, and tensors that are made."""
import torch

from cpp import TYPES, cpp_shape, number
from operations import TABLE, Enter, Ref, op, operand, with_defaults

# --- Element-wise --------------------------------------------------------------------------------


def unary(names, method=None):
    for name in names.split():
        TABLE[name] = lambda x, m=method or name: f"{x}.{m}()"


unary("abs sign floor ceil round trunc square sqrt rsqrt reciprocal exp exp2 expm1 log log2 log10 "
      "log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh erf isnan isinf isfinite "
      "logical_not bitwise_not relu relu6 sigmoid silu mish selu hardswish hardsigmoid")
unary("neg negative", "neg")
unary("absolute", "abs")
unary("logsigmoid log_sigmoid", "logsigmoid")
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
        name = "floor_div" if rounding_mode == "floor" else "trunc_div"
        return f"{name}({operand(x)}, {operand(y)})"
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
