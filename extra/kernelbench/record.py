"""Records what a PyTorch module computes as statements on tiny's public API.

The module runs once on meta tensors, which have shapes and no values, under a TorchFunctionMode:
the calls that it sees are those of torch.nn.functional, torch and Tensor, so that the C++ text
reads as a user would have written it. operations.py says what each of them is in C++; a function
that is not listed there and is written in Python is entered, and what it calls is recorded.

What depends on no random number and no input (masks, tables of positions) is computed as it stands
and becomes a constant, in forward also operations on constants that tiny has."""
import re
import types

import torch

import operations
import operations_elementwise  # noqa: F401 each fills the table
import operations_nn  # noqa: F401
import operations_tensor  # noqa: F401
from cpp import TYPES, Struct, cpp_shape, number
from draws import FACTORIES, RANDOM, Draws

NO_DATA = frozenset(
    "size dim stride numel nelement element_size is_contiguous is_floating_point is_complex "
    "__len__ ndimension storage_offset get_device is_set_to _is_view has_names is_same_size "
    "__format__ __repr__ type_as_name retain_grad register_hook is_shared __hash__ "
    "is_inference result_type can_cast".split())
SAME = frozenset("detach requires_grad_ cuda cpu alias detach_ pin_memory "
                 "_make_subclass as_subclass".split())
HOST = frozenset("item tolist numpy __bool__ __float__ __int__ __index__ __contains__".split())
LITERAL = 256  # elements of a constant that stand in the text; longer ones have a file


RESERVED = frozenset("given make forward int float double bool long short char auto new delete "
                     " const for if else while do class struct union operator this default "
                     "switch case register template signed unsigned static return".split())


class Unsupported(Exception):
    pass


class Value:
    """A tensor of the program: its name there, and the tensor that stands for it here."""

    def __init__(self, name, tensor, section, concrete=None):
        self.name, self.section, self.concrete = name, section, concrete
        self.title = None  # as what forward is given
        self.origin = self  # of a copy: what it was copied from, the same name
        self.memory, self.stale = {self}, False  # values that share memory; whether it was changed
        self.shape, self.dtype = list(tensor.shape), tensor.dtype
        self.twin = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype,
                                        device="meta")


class Statement:
    def __init__(self, name, text, uses, effect=False):
        self.name, self.text, self.uses, self.effect = name, text, uses, effect


class Recorder(Draws):
    def __init__(self, write_file):
        super().__init__()
        self.write_file = write_file  # (name, bytes) of a constant
        self.known, self.kept = {}, []
        self.sections, self.section = {"make": [], "forward": []}, "make"
        self.given = []  # values of "make" that forward reads
        self.count, self.flops, self.elements = 0, 0, 0
        self.titles = {}  # of parameters and inputs
        self.operations = {}
        self.extra_uses = []
        self.new_parameter, self.getitem, self.by_slot = None, None, None
        self.busy = False  # what is called now is no call of the module's

    def __enter__(self):
        original = torch.nn.Parameter.__new__

        def new(cls, data=None, requires_grad=True):
            out = original(cls, torch.empty(0) if data is None else data, requires_grad)
            if data is not None and id(data) in self.known:
                self.bind(out, self.known[id(data)])
            return out
        self.new_parameter = original
        torch.nn.Parameter.__new__ = new
        by_slot = torch._C._TensorBase.__getitem__
        # PyTorch 1.13 shows a mode few kinds of indices.
        self.getitem = lambda x, at: self.call(by_slot, (x, at), {})
        self.by_slot, torch.Tensor.__getitem__ = by_slot, self.getitem
        return super().__enter__()

    def __exit__(self, *error):
        torch.nn.Parameter.__new__ = self.new_parameter
        del torch.Tensor.__getitem__
        return super().__exit__(*error)

    # --- Tensors and values ----------------------------------------------------------------------

    def bind(self, tensor, value):
        self.known[id(tensor)] = value
        self.kept.append(tensor)
        return tensor

    def value_of(self, tensor):
        return self.known.get(id(tensor))

    def new_name(self):
        self.count += 1
        return f"t{self.count}"

    def state(self, name, text, uses, effect=False):
        self.sections[self.section].append(Statement(name, text, uses, effect))

    def result(self, tensor, text, uses, concrete=None):
        """A new value that this text computes; gives the tensor that stands for it."""
        value = Value(self.new_name(), tensor, self.section, concrete)
        self.state(value.name, f"const Tensor {value.name} = {bare(text)};", uses)
        self.elements = max(self.elements, value.twin.numel())
        return self.bind(value.twin if concrete is None else concrete, value)

    def use(self, value):
        """The name by which the current section knows a value."""
        if value.stale:
            raise Unsupported("a tensor is read whose memory was changed through another one")
        if value.section == self.section:
            return value.name
        value = value.origin
        if value not in self.given:
            self.given.append(value)
            value.title = self.title_of(value)
        return value.title

    def title_of(self, value):
        """A name for what forward is given: that of the parameter or buffer."""
        title = next((t for key, t in self.titles.items()
                      if self.known.get(key) is value), f"given{len(self.given)}")
        title = re.sub(r"\W", "_", title)
        taken = {v.title for v in self.given} | RESERVED
        while title in taken or re.fullmatch(r"t\d+", title) or title in operations.TABLE:
            title += "_"
        return title

    def ref(self, tensor):
        """A tensor as an operand of C++ text."""
        value = self.value_of(tensor)
        if value is None:
            value = self.constant(tensor)
        out = operations.Ref(self.use(value))
        out.shape, out.dtype, out.value = value.shape, value.dtype, value
        out.uses = [value]
        return out

    def refs_in(self, tree):
        """The values of the operands in a nest."""
        if isinstance(tree, operations.Ref):
            return list(tree.uses)
        if isinstance(tree, (list, tuple)):
            return [v for part in tree for v in self.refs_in(part)]
        return []

    def constant(self, tensor):
        """A tensor with values that nothing recorded made."""
        if tensor.device.type == "meta":
            raise Unsupported("a tensor that nothing known has made")
        tensor_values = tensor.detach()
        section = "make"
        first = tensor_values.flatten().select(0, 0).item() if tensor.numel() else 0
        if tensor.dim() == 0 or bool((tensor_values == first).all()):
            shape = cpp_shape(tensor.shape)
            text = f"Tensor::full({shape}, {number(first)}, {TYPES[tensor.dtype]})"
            section = self.section if id(tensor) not in self.titles else "make"
        elif tensor.numel() <= LITERAL:
            ctype = {torch.bool: "bool", torch.float32: "float", torch.int64: "int64_t",
                     torch.int32: "int32_t", torch.float64: "double"}[tensor.dtype]
            data = ", ".join(number(v) for v in tensor_values.flatten().tolist())
            if tensor.dtype == torch.bool:
                text = (f"Tensor::from(std::vector<uint8_t>{{{data}}}, {cpp_shape(tensor.shape)})"
                        ".to(kBool)")
            else:
                text = f"Tensor::from(std::vector<{ctype}>{{{data}}}, {cpp_shape(tensor.shape)})"
        else:
            file = self.write_file(tensor_values.contiguous().cpu().numpy().tobytes())
            text = f'read("{file}", {TYPES[tensor.dtype]}, {cpp_shape(tensor.shape)})'
        value = Value(self.new_name(), tensor, section, tensor)
        self.sections[section].append(
            Statement(value.name, f"const Tensor {value.name} = {text};", []))
        self.bind(tensor, value)
        return value

    # --- Calls -----------------------------------------------------------------------------------

    def call(self, func, args, kwargs):
        func = self.by_slot if func is self.getitem else func
        if self.busy:
            return func(*args, **kwargs)
        name = getattr(func, "__name__", "")
        if name == "__get__":
            return self.attribute(func, args[0])
        if name in FACTORIES and not name.endswith("_like") and "device" in kwargs:
            kwargs["device"] = "cpu"
        python = isinstance(func, types.FunctionType)
        if name in RANDOM and not python:
            return self.random(name, args, kwargs)
        tensors = list(tensors_in((args, kwargs)))
        tracked = [t for t in tensors if id(t) in self.known]
        if name == "dropout" and python:
            return self.dropout(*args, **kwargs)
        if not tracked and self.section == "make" or name in NO_DATA:
            return self.plain(func, args, kwargs, python)
        if name in SAME or name == "to" and only_moves(args, kwargs, tracked):
            return self.bind(self.plain_one(args[0]), self.known[id(tracked[0])]) if tracked \
                else func(*args, **kwargs)
        if name in ("clone", "contiguous") and tracked:
            return self.copied(self.known[id(args[0])])
        if name in HOST:
            return self.host_value(func, args, kwargs)
        if not tracked and name not in FACTORIES:
            return self.plain(func, args, kwargs, python)
        return self.operation(name, func, args, kwargs, python)

    def plain(self, func, args, kwargs, python):
        if python:
            return self.descend(func, args, kwargs)
        args, kwargs = swap((args, kwargs), self.twin_of)
        return self.run("", func, args, kwargs)

    def twin_of(self, tensor):
        value = self.known.get(id(tensor))
        return tensor if value is None or value.concrete is not None else value.twin

    def plain_one(self, tensor):
        """Another tensor object for the same value."""
        return self.twin_of(tensor).detach()

    def copied(self, value):
        """The same value in memory of its own, row-major."""
        self.use(value)
        twin = (value.twin if value.concrete is None else value.concrete).contiguous()
        copy = Value(value.name, twin, value.section, value.concrete)
        copy.origin = value.origin
        return self.bind(twin if twin is not value.concrete else twin.clone(), copy)

    def attribute(self, func, tensor):
        name = getattr(func.__self__, "__name__", "")
        value = self.known.get(id(tensor))
        if value is None:
            return func(tensor)
        if name == "device":
            return torch.device("cpu")
        if name in ("data", "_base"):
            return self.bind(self.plain_one(tensor), value)
        if name in ("T", "mT"):
            return self.call(torch.Tensor.transpose, (tensor, -2, -1), {}) if tensor.dim() > 1 \
                else tensor
        if name in ("is_cuda", "is_meta", "is_mkldnn", "is_sparse", "is_quantized", "is_nested"):
            return False
        if name == "grad":
            return None
        return func(self.twin_of(tensor)) if name != "requires_grad" else func(tensor)

    def host_value(self, func, args, kwargs):
        value = self.known.get(id(args[0]))
        if value is not None and value.concrete is None:
            raise Unsupported("the program depends on the value of a tensor")
        return func(*(value.concrete if value else args[0], *args[1:]), **kwargs)

    def operation(self, name, func, args, kwargs, python):
        base, in_place = name, False
        if name.endswith("_") and not name.endswith("__"):
            base, in_place = name[:-1], True
        if name.startswith("__"):
            base = name.strip("_")
            if base[0] == "i" and base[1:] in operations.IN_PLACE:
                base, in_place = base[1:], True
        if base in ("getitem", "setitem"):
            at = args[1] if isinstance(args[1], tuple) else (args[1],)
            at = tuple(torch.tensor(i) if isinstance(i, list) else i for i in at)
            args = (args[0], at, *args[2:])
        if kwargs.pop("inplace", False):
            in_place = True
        kwargs.pop("out", None)
        translator = operations.find(base)
        if translator is None:
            if python:
                return self.descend(func, args, kwargs)
            raise Unsupported(f"no translation of {name}")
        self.operations[base] = self.operations.get(base, 0) + 1
        try:
            return self.translate(translator, base, func, args, kwargs, in_place)
        except operations.Enter:
            return self.plain(func, args, kwargs, python)

    def translate(self, translator, name, func, args, kwargs, in_place):
        uses = []

        def as_ref(tensor):
            r = self.ref(tensor)
            uses.extend(r.uses)
            return r
        ref_args, ref_kwargs = swap((args, kwargs), as_ref)
        concrete = all(self.known[id(t)].concrete is not None for t in tensors_in((args, kwargs)))
        pick = (lambda t: self.known[id(t)].concrete) if concrete else \
            (lambda t: self.known[id(t)].twin)
        # The translator may ask for the result's shape: it is computed first, without values.
        run_args, run_kwargs = swap((args, kwargs), pick)
        if name == "setitem":
            out = run_args[0]
        else:
            out = self.run(name, func, run_args, run_kwargs)
        self.extra_uses = []
        text = operations.apply(translator, self, out, ref_args, ref_kwargs)
        uses += self.extra_uses  # statements that the translator made
        self.flops += operations.flops(name, out, ref_args)
        results = self.bind_results(out, text, uses, concrete)
        if name in operations.VIEWS and ref_args:
            self.share(self.known[id(args[0])], results)
        if not in_place and name != "setitem":
            return results
        for value in self.known[id(args[0])].memory:
            value.stale = True
        return self.bind(args[0], self.known[id(results)])

    def run(self, *what):
        self.busy = True
        try:
            return operations.run(*what)
        finally:
            self.busy = False

    def share(self, value, results):
        for result in tensors_in(results):
            view = self.known[id(result)]
            value.memory.add(view)
            view.memory = value.memory

    def bind_results(self, out, text, uses, concrete):
        if isinstance(text, Struct):
            name = self.new_name()
            self.state(name, f"const {text.type} {name} = {text.text};", uses)
            for effect in text.effects:
                self.state(None, effect.replace("$", name) + ";", [*uses, name], effect=True)
            parts = list(tensors_in(out)) if not isinstance(out, torch.Tensor) else [out]
            bound = iter([self.result(t, text.part(name, i), [name], t if concrete else None)
                          for i, t in enumerate(parts)])
            return swap(out, lambda t: next(bound))
        texts = [text] if isinstance(text, str) else list(text)
        bound = iter([self.result(t, s, uses, t if concrete else None)
                      for t, s in zip(tensors_in(out), texts)])
        return swap(out, lambda t: next(bound))

    # --- Random numbers --------------------------------------------------------------------------

    def draw(self, kind, shape, dtype, low, high):
        d = self.note(kind, shape, dtype, low, high)
        text = draw_text(d, self.section)
        return self.result(torch.empty(shape, dtype=dtype, device="meta"), text, [])

    def replace(self, tensor, drawn):
        return self.bind(tensor, self.known[id(drawn)])

    def dropout(self, input, p=0.5, training=True, inplace=False):
        if not training or p == 0:
            return input
        d = self.note("uniform", list(input.shape), torch.float32, 0.0, 1.0)
        ref = self.ref(input)
        text = f"forward_dropout({ref}, {number(p)}, {d['stream']})"
        out = self.result(self.twin_of(input), text, ref.uses)
        return self.bind(input, self.known[id(out)]) if inplace else out


def draw_text(d, section):
    shape, stream = cpp_shape(d["shape"]), d["stream"]
    low, high = number(d["low"]), number(d["high"])
    if section == "forward" and (d["low"], d["high"]) == (0.0, 1.0) and d["kind"] != "integer":
        name = "forward_uniform" if d["kind"] == "uniform" else "forward_bell"
        text = f"{name}({shape}, {stream})"
    else:
        name = {"uniform": "uniform", "normal": "bell", "integer": "integers"}[d["kind"]]
        text = f"{name}({shape}, {stream}, {low}, {high})"
    own = torch.int64 if d["kind"] == "integer" else torch.float32
    return text if d["dtype"] == own else f"{text}.to({TYPES[d['dtype']]})"


def bare(text):
    """Without parentheses around all of it."""
    if not text.startswith("("):
        return text
    depth = 0
    for i, c in enumerate(text):
        depth += (c == "(") - (c == ")")
        if depth == 0:
            return text[1:-1] if i == len(text) - 1 else text
    return text


def tensors_in(tree):
    if isinstance(tree, torch.Tensor):
        yield tree
    elif isinstance(tree, dict):
        for v in tree.values():
            yield from tensors_in(v)
    elif isinstance(tree, (list, tuple)):
        for v in tree:
            yield from tensors_in(v)


def swap(tree, f):
    """The same nest with f of each tensor."""
    if isinstance(tree, torch.Tensor):
        return f(tree)
    if isinstance(tree, dict):
        return {k: swap(v, f) for k, v in tree.items()}
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*[swap(v, f) for v in tree])
    if isinstance(tree, tuple) and type(tree) is not tuple:  # torch.return_types
        return type(tree)([swap(v, f) for v in tree])
    if isinstance(tree, (list, tuple)):
        return type(tree)(swap(v, f) for v in tree)
    return tree


def only_moves(args, kwargs, tracked):
    """Whether to() leaves the dtype."""
    wanted = [a for a in [*args[1:], *kwargs.values()]]
    dtypes = [a for a in wanted if isinstance(a, torch.dtype)]
    dtypes += [a.dtype for a in wanted if isinstance(a, torch.Tensor)]
    return bool(tracked) and all(d == args[0].dtype for d in dtypes)

