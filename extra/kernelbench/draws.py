"""Random numbers by formula: what a problem draws (parameters, inputs, numbers in forward) are
hashes of the element's position, so that the C++ side (problem.h) makes the same values bit for bit
and no file holds them. Runs with PyTorch 1.13 and later.

    with Draws(seed=0, device="cuda") as draws:
        model, inputs = Model(*get_init_inputs()), get_inputs()
"""
import contextlib
import types

import torch
from torch.overrides import TorchFunctionMode

MASK = 0xFFFFFFFF
CHUNK = 1 << 26  # elements that are made at a time: the integers take several times their memory
FACTORIES = frozenset("empty zeros ones full arange eye linspace tensor rand randn randint "
                      "randperm empty_like zeros_like ones_like full_like rand_like randn_like "
                      "randint_like".split())
RANDOM = frozenset("rand randn randint rand_like randn_like randint_like uniform_ normal_ random_ "
                   "bernoulli bernoulli_ normal randperm multinomial exponential_".split())


def mixed(x):
    """MurmurHash3's finalizer of 32 bits (A. Appleby, 2011), in int64."""
    x = x ^ (x >> 16)
    x = (x * 0x85EBCA6B) & MASK
    x = x ^ (x >> 13)
    x = (x * 0xC2B2AE35) & MASK
    return x ^ (x >> 16)


def scalar_mixed(x):
    x = (x ^ (x >> 16)) * 0x85EBCA6B & MASK
    x = (x ^ (x >> 13)) * 0xC2B2AE35 & MASK
    return x ^ (x >> 16)


def key_of(stream, seed):
    return scalar_mixed((stream * 0x9E3779B1 + seed * 0x85EBCA77 + 1) & MASK)


def words(begin, count, key, device):
    """Words begin .. begin + count - 1 of a stream: 32 bits each, as int64."""
    at = torch.arange(begin, begin + count, device=device)
    return mixed(((at * 0x9E3779B1) & MASK) ^ key)


def part(draw, begin, count, seed, device):
    kind, low, high = draw["kind"], draw["low"], draw["high"]
    w = words(begin, count, key_of(draw["stream"], seed), device)
    if kind == "uniform":
        return (w >> 8).to(torch.float32) * 2.0**-24 * (high - low) + low
    if kind == "integer":
        return (((w >> 8) * (high - low)) >> 24) + low
    v = mixed(w ^ 0x5BD1E995)  # normal: a bell of deviation 1, the sum of four numbers of 16 bits
    total = (w & 0xFFFF) + (w >> 16) + (v & 0xFFFF) + (v >> 16)
    return (total.to(torch.float32) * 2.0**-16 - 2) * 3.0**0.5 * high + low


def values(draw, seed, device):
    """A draw's values as a tensor of its shape and dtype."""
    count = 1
    for size in draw["shape"]:
        count *= size
    out = torch.empty(count, dtype=draw["dtype"], device=device)
    for begin in range(0, count, CHUNK):
        n = min(CHUNK, count - begin)
        out[begin:begin + n] = part(draw, begin, n, seed, device)
    return out.reshape(draw["shape"])


def shape_of(args):
    if len(args) == 1 and not isinstance(args[0], int):
        args = args[0]
    return [int(size) for size in args]


class Descent:
    """Lets a function of torch written in Python run with the mode on, so that the functions it is
    made of are seen: the first thing it does is to ask whether a mode wants it, and for once the
    answer is no."""

    def __init__(self):
        self.skips = False
        self.patched = []

    def __enter__(self):
        for module in (torch.nn.functional, torch.functional, torch._tensor, torch.overrides,
                       torch.nn.init):
            for name in [n for n in vars(module) if n.startswith("has_torch_function")]:
                self.patched.append((module, name, getattr(module, name)))
                setattr(module, name, self.asked(getattr(module, name)))
        return self

    def __exit__(self, *_):
        for module, name, value in reversed(self.patched):
            setattr(module, name, value)
        self.patched = []

    def asked(self, ask):
        def answer(*args):
            if self.skips:
                self.skips = False
                return False
            return ask(*args)
        return answer


class Mode(TorchFunctionMode):
    def __init__(self, owner):
        super().__init__()
        self.owner = owner

    def __torch_function__(self, func, types_, args=(), kwargs=None):
        return self.owner.call(func, args, dict(kwargs or {}))


class Draws:
    """While entered, what torch draws is made by formula, on `device` and with everything else that
    is made there; `draws` lists it."""

    def __init__(self, seed=0, device="cpu"):
        self.seed, self.device, self.draws = seed, device, []
        self.descent, self.stack = Descent(), None
        self.entered = []  # functions of torch that are running with the mode on

    def __enter__(self):
        self.stack = contextlib.ExitStack()
        self.stack.enter_context(self.descent)
        self.stack.enter_context(Mode(self))
        return self

    def __exit__(self, *error):
        return self.stack.__exit__(*error)

    def descend(self, func, args, kwargs):
        if func in self.entered:  # a function in Python around one of the same name
            return func(*args, **kwargs)
        self.entered.append(func)
        with Mode(self):
            self.descent.skips = True
            try:
                return func(*args, **kwargs)
            finally:
                self.descent.skips = False
                self.entered.pop()

    def call(self, func, args, kwargs):
        name = getattr(func, "__name__", "")
        if name in FACTORIES and not name.endswith("_like"):
            kwargs["device"] = self.device
        if name in RANDOM and not isinstance(func, types.FunctionType):
            return self.random(name, args, kwargs)
        if name == "dropout" and isinstance(func, types.FunctionType):
            return self.dropout(*args, **kwargs)
        if isinstance(func, types.FunctionType):
            return self.descend(func, args, kwargs)
        return func(*args, **kwargs)

    # --- What is drawn ---------------------------------------------------------------------------

    def random(self, name, args, kwargs):
        dtype = kwargs.get("dtype") or torch.get_default_dtype()
        if name in ("rand", "randn"):
            shape = shape_of(kwargs["size"] if "size" in kwargs else args)
            return self.draw("uniform" if name == "rand" else "normal", shape, dtype, 0.0, 1.0)
        if name in ("rand_like", "randn_like"):
            dtype = kwargs.get("dtype") or args[0].dtype
            kind = "uniform" if name == "rand_like" else "normal"
            return self.draw(kind, list(args[0].shape), dtype, 0.0, 1.0)
        if name == "randint":
            numbers = list(args)
            shape = kwargs["size"] if "size" in kwargs else numbers.pop()
            if "high" in kwargs:
                numbers.append(kwargs["high"])
            low, high = numbers if len(numbers) == 2 else (kwargs.get("low", 0), numbers[0])
            return self.draw("integer", shape_of([shape]), kwargs.get("dtype") or torch.int64, low,
                             high)
        if name in ("uniform_", "normal_"):
            return self.fill(name[:-1], *args, **kwargs)
        raise NotImplementedError(f"random numbers of torch's {name}")

    def fill(self, kind, tensor, low=0.0, high=1.0, generator=None, **names):
        """uniform_(from, to), normal_(mean, std)."""
        low = names.get("from", names.get("a", names.get("mean", low)))
        high = names.get("to", names.get("b", names.get("std", high)))
        drawn = self.draw(kind, list(tensor.shape), tensor.dtype, float(low), float(high))
        return self.replace(tensor, drawn)

    def replace(self, tensor, drawn):
        with torch.no_grad():
            return tensor.copy_(drawn)

    def note(self, kind, shape, dtype, low, high):
        draw = {"kind": kind, "shape": shape, "dtype": dtype, "low": low, "high": high,
                "stream": len(self.draws)}
        self.draws.append(draw)
        return draw

    def draw(self, kind, shape, dtype, low, high):
        return values(self.note(kind, shape, dtype, low, high), self.seed, self.device)

    def dropout(self, input, p=0.5, training=True, inplace=False):
        """Keeps what the formula says; a drop of nothing draws nothing."""
        if not training or p == 0:
            return input
        kept = self.draw("uniform", list(input.shape), torch.float32, 0.0, 1.0) >= p
        return input * kept / (1 - p)


def listing(draws):
    """Draws as plain data, to compare what two versions of PyTorch draw."""
    return [[d["kind"], list(d["shape"]), str(d["dtype"]), float(d["low"]), float(d["high"])]
            for d in draws]
