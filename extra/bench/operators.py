#!/usr/bin/env python3
"""Every operator of the vocabulary at about a million elements, ours and PyTorch's in turns: prints
a table sorted by ratio, appended to extra/bench/results/operators.jsonl with --append.

    make bench && python3 extra/bench/operators.py [--rounds 3] [--append] [NAME...]

The program lists its rows with their inputs; this file says how PyTorch computes each of them.
Operators that PyTorch 1.13 lacks are composed as its users would. A name with a dot is one more row
of an operator (another shape or dtype, or its gradient) and takes no part in the first mean.

Needs PyTorch (Debian: python3-torch). Both use all cores."""
import argparse
import datetime
import json
import math
import os
import statistics
import subprocess
import time
import warnings

import torch
import torch.nn.functional as F

from compare import ROOT, cpu_name

DTYPES = {"f32": torch.float32, "i32": torch.int32, "i64": torch.int64, "u8": torch.uint8,
          "bool": torch.bool}
N = 1024


def backward(f):
    """mean(y^2) of what f gives, and its gradient for each input that wants one."""
    def work(*x):
        y = f(*x)
        loss = y if y.dim() == 0 else y.square().mean()
        return torch.autograd.grad(loss, [t for t in x if t.requires_grad])
    return work


def step(kind, **options):
    """One step of the first input with the second one as its gradient."""
    state = []

    def work(p, g):
        if not state:
            leaf = p.clone().requires_grad_()
            state.extend([leaf, kind([leaf], **options)])
        state[0].grad = g
        state[1].step()
    return work


def f8_value(code):
    exponent, mantissa = (code >> 3) & 15, code & 7
    if exponent == 15 and mantissa == 7:
        return math.nan
    size = mantissa * 2.0 ** -9 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7)
    return -size if code & 128 else size


F8_VALUES = torch.tensor([f8_value(code) for code in range(256)])


def f8_encode(x):
    """To the bit patterns of e4m3fn, through the bits of f32; ties to even."""
    bits = x.view(torch.int32)
    size = x.abs().clamp(max=448.0)
    small = (size * 512).round().to(torch.int32)  # subnormal: a multiple of 2^-9
    b = size.view(torch.int32)
    normal = ((b + 0x7FFFF + ((b >> 20) & 1)) >> 20) - (120 << 3)
    code = torch.where(size < 2.0 ** -6, small, normal)
    return (code | ((bits >> 24) & 128)).to(torch.uint8)


def rope(x, cos, sin):
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def rms_norm(x, weight):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight


def attention(q, k, v, causal=False):
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    if causal:
        length = q.shape[-2]
        hidden = torch.ones(length, length, dtype=torch.bool).triu(1)
        scores = scores.masked_fill(hidden, -math.inf)
    return scores.softmax(-1) @ v


def slice_assign(x, v):
    y = x.clone()
    y[0:1024:2, 8:1016] = v
    return y


def index_put(accumulate):
    return lambda x, v, i: x.index_put((i,), v, accumulate)


def scatter_reduce(kind):
    return lambda x, i, v: x.scatter_reduce(1, i, v, kind)


def pad(mode):
    return lambda x: F.pad(x, (1, 1, 1, 1), mode)


def batch_norm(training):
    # The running statistics are updated in place; their drift does not matter.
    return lambda x, w, b, m, v: F.batch_norm(x, m, v, w, b, training)



UNARY = {name: getattr(torch, name) for name in """neg exp exp2 expm1 log log2 log10 log1p sin cos
    tan asin acos atan sinh cosh tanh asinh acosh atanh sqrt rsqrt reciprocal square abs sign floor
    ceil round trunc erf sigmoid isnan isinf isfinite logical_not bitwise_not""".split()}
ACTIVATIONS = {name: getattr(F, name) for name in """logsigmoid relu relu6 silu mish selu hardswish
    hardsigmoid gelu softplus elu celu leaky_relu""".split()}
BINARY = {name: getattr(torch, name) for name in """add sub mul div pow maximum minimum atan2
    copysign eq ne lt le gt ge logical_and logical_or logical_xor bitwise_and bitwise_or bitwise_xor
    where""".split()}

ELEMENTWISE = {
    **UNARY, **ACTIVATIONS, **BINARY,
    "logsigmoid": F.logsigmoid,
    "detach": lambda x: x.detach() + 1,
    "contiguous": lambda x: x.t().contiguous(),
    "gelu.tanh": lambda x: F.gelu(x, approximate="tanh"),
    "hardtanh": lambda x: F.hardtanh(x, -0.5, 0.5),
    "clamp": lambda x: x.clamp(-0.5, 0.5),
    "trunc_div": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "floor_div": lambda x, y: torch.div(x, y, rounding_mode="floor"),
    "mod": torch.remainder,
    "trunc_div.f32": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "floor_div.f32": lambda x, y: torch.div(x, y, rounding_mode="floor"),
    "mod.f32": torch.remainder,
    "pow.3": lambda x: x.pow(3),
    "shl": torch.bitwise_left_shift,
    "shr": torch.bitwise_right_shift,
    "lerp": lambda x, y: torch.lerp(x, y, 0.3),
    "clamp_tensor": lambda x, lo, hi: torch.clamp(x, min=lo, max=hi),
    "add.rows": torch.add,
    "add.columns": torch.add,
    "cast": lambda x: x.to(torch.float16),
    "cast.bf16": lambda x: x.to(torch.bfloat16),
    "cast.i32": lambda x: x.to(torch.int32),
    "cast.f64": lambda x: x.to(torch.float64),
    "bitcast": lambda x: x.view(torch.int32) + 1,
    "f8_encode": f8_encode,
    "f8_decode": lambda x: F8_VALUES[x.long()],
}

MOVEMENT = {
    "full": lambda: torch.full((N, N), 1.5),
    "arange": lambda: torch.arange(N * N),
    "linspace": lambda: torch.linspace(0, 1, N * N),
    "eye": lambda: torch.eye(N),
    "reshape": lambda x: x.reshape(512, 2048) + 1,
    "permute": lambda x: x.permute(2, 0, 1).contiguous(),
    "transpose": lambda x: x.transpose(0, 1).contiguous(),
    "expand": lambda x: x.expand(N, N).contiguous(),
    "slice": lambda x: x[0:2048:2, 8:1016].contiguous(),
    "slice.step": lambda x: x[:, ::2].neg(),
    "flip": lambda x: x.flip(0, 1),
    "split": lambda x: [part + 1 for part in x.split(256, 0)],
    "chunk": lambda x: [part + 1 for part in x.chunk(4, 1)],
    "unsqueeze": lambda x: x.unsqueeze(1) + 1,
    "squeeze": lambda x: x.squeeze() + 1,
    "flatten": lambda x: x.flatten() + 1,
    "unflatten": lambda x: x.unflatten(1, (32, 32)) + 1,
    "diagonal": lambda x: x.diagonal(0, 1, 2).contiguous(),
    "unfold": lambda x: x.unfold(1, 8, 4).contiguous(),
    "pad": pad("constant"),
    "pad.reflect": pad("reflect"),
    "pad.replicate": pad("replicate"),
    "pad.circular": pad("circular"),
    "roll": lambda x: x.roll((3, 5), (0, 1)),
    "repeat": lambda x: x.repeat(4, 1),
    "repeat_interleave": lambda x: x.repeat_interleave(2, 1),
    "cat": lambda *x: torch.cat(x, 0),
    "cat.columns": lambda *x: torch.cat(x, 1),
    "stack": lambda *x: torch.stack(x, 1),
    "tril": torch.tril,
    "triu": torch.triu,
}


def embedding(i, w):
    return F.embedding(i, w)


INDEXING = {
    "gather": lambda x, i: x.gather(1, i),
    "gather.dim0": lambda x, i: x.gather(0, i),
    "take_along_dim": lambda x, i: x.take_along_dim(i, 1),
    "index_select": lambda x, i: x.index_select(0, i),
    "index_select.dim1": lambda x, i: x.index_select(1, i),
    "index": lambda x, i, j: x[i, j],
    "index.rows": lambda x, i: x[i],
    "index.mask": lambda x, mask: x[mask],
    "masked_select": torch.masked_select,
    "masked_fill": lambda x, mask: x.masked_fill(mask, 2.5),
    "nonzero": torch.nonzero,
    "one_hot": lambda i: F.one_hot(i, 256),
    "embedding": embedding,
    "embedding.backward": backward(embedding),
    "index_add": lambda x, i, v: x.index_add(0, i, v),
    "index_put": index_put(False),
    "index_put.accumulate": index_put(True),
    "slice_assign": slice_assign,
    "scatter": lambda x, i, v: x.scatter(1, i, v),
    "scatter.dim0": lambda x, i, v: x.scatter(0, i, v),
    "scatter_add": lambda x, i, v: x.scatter_add(1, i, v),
    "scatter_add.dim0": lambda x, i, v: x.scatter_add(0, i, v),
    "scatter_reduce": scatter_reduce("amax"),
    "scatter_reduce.prod": scatter_reduce("prod"),
    "scatter_reduce.mean": scatter_reduce("mean"),
}

REDUCTIONS = {
    "sum": lambda x: x.sum(),
    "sum.rows": lambda x: x.sum(1),
    "sum.columns": lambda x: x.sum(0),
    "sum.i32": lambda x: x.sum(),
    "mean": lambda x: x.mean(),
    "prod": lambda x: x.prod(),
    "max": lambda x: x.max(),
    "max.rows": lambda x: x.amax(1),
    "max.columns": lambda x: x.amax(0),
    "min": lambda x: x.min(),
    "any": lambda x: x.any(1),
    "all": lambda x: x.all(1),
    "logsumexp": lambda x: x.logsumexp(1),
    "var": lambda x: x.var(),
    "var.rows": lambda x: x.var(1),
    "std": lambda x: x.std(),
    "norm": lambda x: x.norm(),
    "argmax": lambda x: x.argmax(),
    "argmax.rows": lambda x: x.argmax(1),
    "argmax.columns": lambda x: x.argmax(0),
    "argmin": lambda x: x.argmin(),
    "median": lambda x: x.median(1).values,
    "softmax": lambda x: x.softmax(1),
    "softmax.columns": lambda x: x.softmax(0),
    "softmax.backward": backward(lambda x: x.softmax(1)),
    "log_softmax": lambda x: x.log_softmax(1),
    "cumsum": lambda x: x.cumsum(1),
    "cumsum.columns": lambda x: x.cumsum(0),
    "cumsum.flat": lambda x: x.cumsum(0),
    "cumprod": lambda x: x.cumprod(1),
    "cummax": lambda x: x.cummax(1),
    "cummin": lambda x: x.cummin(1),
    "logcumsumexp": lambda x: x.logcumsumexp(1),
    "sort": lambda x: x.sort(stable=True),
    "sort.flat": lambda x: x.sort(stable=True),
    "argsort": lambda x: x.sort(stable=True).indices,
    "topk": lambda x: x.topk(10),
    "topk.flat": lambda x: x.topk(10),
}


def conv2d(x, w, b):
    return F.conv2d(x, w, b, padding=1)


PRODUCTS = {
    "matmul": torch.matmul,
    "matmul.backward": backward(torch.matmul),
    "matmul.vector": torch.matmul,
    "bmm": torch.bmm,
    "dot": torch.dot,
    "outer": torch.outer,
    "einsum": lambda *x: torch.einsum("bhqd,bhkd->bhqk", *x),
    "linear": F.linear,
    "conv1d": lambda x, w, b: F.conv1d(x, w, b, padding=2),
    "conv2d": conv2d,
    "conv2d.depthwise": lambda x, w: F.conv2d(x, w, padding=1, groups=64),
    "conv2d.backward": backward(conv2d),
    "conv3d": lambda x, w, b: F.conv3d(x, w, b, padding=1),
    "conv_transpose1d": lambda x, w: F.conv_transpose1d(x, w, stride=2, padding=1),
    "conv_transpose2d": lambda x, w: F.conv_transpose2d(x, w, stride=2),
    "conv_transpose3d": lambda x, w: F.conv_transpose3d(x, w, stride=2),
}


def max_pool2d(x):
    return F.max_pool2d(x, 3, 2, 1)


def layer_norm(x, w, b):
    return F.layer_norm(x, (N,), w, b)


NETWORKS = {
    "max_pool1d": lambda x: F.max_pool1d(x, 3, 2, 1),
    "avg_pool1d": lambda x: F.avg_pool1d(x, 3, 2, 1),
    "adaptive_avg_pool1d": lambda x: F.adaptive_avg_pool1d(x, 100),
    "adaptive_max_pool1d": lambda x: F.adaptive_max_pool1d(x, 100),
    "max_pool2d": max_pool2d,
    "max_pool2d.backward": backward(max_pool2d),
    "max_pool2d.indices": lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True),
    "avg_pool2d": lambda x: F.avg_pool2d(x, 3, 2, 1),
    "adaptive_avg_pool2d": lambda x: F.adaptive_avg_pool2d(x, 7),
    "adaptive_max_pool2d": lambda x: F.adaptive_max_pool2d(x, 7),
    "max_pool3d": lambda x: F.max_pool3d(x, 3, 2, 1),
    "avg_pool3d": lambda x: F.avg_pool3d(x, 3, 2, 1),
    "avg_pool3d.large": lambda x: F.avg_pool3d(x, 8),
    "adaptive_avg_pool3d": lambda x: F.adaptive_avg_pool3d(x, 7),
    "adaptive_max_pool3d": lambda x: F.adaptive_max_pool3d(x, 7),
    "interpolate": lambda x: F.interpolate(x, (64, 64)),
    "interpolate.exact": lambda x: F.interpolate(x, (64, 64), mode="nearest-exact"),
    "interpolate.bilinear": lambda x: F.interpolate(x, (64, 64), mode="bilinear"),
    "batch_norm": batch_norm(True),
    "batch_norm.eval": batch_norm(False),
    "layer_norm": layer_norm,
    "layer_norm.backward": backward(layer_norm),
    "rms_norm": rms_norm,
    "group_norm": lambda x, w, b: F.group_norm(x, 8, w, b),
    "instance_norm": lambda x, w, b: F.instance_norm(x, weight=w, bias=b),
    "cross_entropy": F.cross_entropy,
    "cross_entropy.backward": backward(F.cross_entropy),
    "nll_loss": F.nll_loss,
    "mse_loss": F.mse_loss,
    "l1_loss": F.l1_loss,
    "smooth_l1_loss": F.smooth_l1_loss,
    "huber_loss": F.huber_loss,
    "bce": F.binary_cross_entropy,
    "bce_with_logits": F.binary_cross_entropy_with_logits,
    "kl_div": lambda x, y: F.kl_div(x, y, reduction="mean"),
    "sdpa": attention,
    "sdpa.causal": lambda q, k, v: attention(q, k, v, True),
    "rope": rope,
    "gru_cell": torch.gru_cell,
    "lstm_cell": lambda x, h, c, *w: torch.lstm_cell(x, (h, c), *w),
    "sgd": step(torch.optim.SGD, lr=0.01, momentum=0.9),
    "adam": step(torch.optim.Adam, lr=1e-3),
    "adamw": step(torch.optim.AdamW, lr=1e-3),
}

PEER = {**ELEMENTWISE, **MOVEMENT, **INDEXING, **REDUCTIONS, **PRODUCTS, **NETWORKS}


def make(spec):
    shape, low, high = spec["shape"], spec["low"], spec["high"]
    if spec["dtype"] == "f32":
        x = torch.rand(shape) * (high - low) + low
    else:
        x = torch.randint(int(low), int(high) + 1, shape, dtype=DTYPES[spec["dtype"]])
    return x.requires_grad_(spec["grad"])


def measure(work, inputs, seconds):
    """As in operators.cpp: at least 5 times and for so many seconds; after 2 s no more."""
    for _ in range(3):
        work(*inputs)
    times = []
    while (len(times) < 5 or sum(times) < seconds) and sum(times) < 2:
        start = time.perf_counter()
        work(*inputs)
        times.append(time.perf_counter() - start)
    return {"ms": statistics.median(times) * 1e3, "min_ms": min(times) * 1e3}


def our_time(name, args):
    command = [args.program, "--seconds", str(args.seconds), name]
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=args.limit)
    except subprocess.TimeoutExpired:
        return {"error": f"no end within {args.limit} s"}
    if run.returncode != 0 or not run.stdout:
        return {"error": f"ended with {run.returncode}: {run.stderr.strip()[-100:]}"}
    return json.loads(run.stdout)


def compare(row, args):
    """Medians of the rounds under ms, their best times under min_ms; {"error"} if one failed."""
    ours, peers = [], []
    # On a busy machine PyTorch's threads wait for one another in vain, up to 8 ms at a time: the
    # best time is then often that of one thread.
    peer_threads = [os.cpu_count(), 1] if args.best else [os.cpu_count()]
    inputs = [make(spec) for spec in row["inputs"]]
    for _ in range(args.rounds):
        ours.append(our_time(row["name"], args))
        if "error" in ours[-1]:
            return ours[-1]
        for threads in peer_threads:
            torch.set_num_threads(threads)
            peers.append(measure(PEER[row["name"]], inputs, args.seconds))
    out = {"ms": statistics.median(t["ms"] for t in ours),
           "peer_ms": statistics.median(t["ms"] for t in peers),
           "min_ms": min(t["min_ms"] for t in ours),
           "peer_min_ms": min(t["min_ms"] for t in peers)}
    best = "min_ms" if args.best else "ms"
    out["ratio"] = out[best] / out["peer_" + best]
    return out


def geometric_mean(rows):
    return math.exp(statistics.fmean(math.log(row["ratio"]) for row in rows)) if rows else math.nan


def report(rows):
    done = sorted((r for r in rows if "ratio" in r), key=lambda r: -r["ratio"])
    for row in rows:
        if "error" in row:
            print(f"{row['name']:24} error: {row['error'][:100]}")
    print(f"{'operator':24} {'ours ms':>10} {'peer ms':>10} {'ours best':>10} {'peer best':>10} "
          f"{'ratio':>8}")
    for r in done:
        print(f"{r['name']:24} {r['ms']:10.3f} {r['peer_ms']:10.3f} {r['min_ms']:10.3f} "
              f"{r['peer_min_ms']:10.3f} {r['ratio']:8.2f}")
    vocabulary = [r for r in done if "." not in r["name"]]
    for title, some in (("vocabulary", vocabulary), ("all rows", done)):
        print(f"{title}: {len(some)} rows, geometric mean {geometric_mean(some):.3f}, "
              f"{sum(r['ratio'] > 3 for r in some)} above 3, "
              f"{sum(r['ratio'] > 1 for r in some)} above 1")


def append(rows):
    commit = subprocess.run(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"],
                            capture_output=True, text=True).stdout.strip()
    common = {"date": datetime.date.today().isoformat(), "commit": commit,
              "machine": f"{cpu_name()}, {os.cpu_count()} cores",
              "peer": f"PyTorch {torch.__version__}"}
    with open(os.path.join(ROOT, "extra/bench/results/operators.jsonl"), "a") as f:
        for row in rows:
            rounded = {k: round(v, 4) if isinstance(v, float) else v for k, v in row.items()}
            f.write(json.dumps({**common, **rounded}) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="only these rows")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.05,
                        help="least time of one measurement (longer ones for a busy machine)")
    parser.add_argument("--best", action="store_true",
                        help="ratios of best times, for a busy machine; else of medians "
                             "(with OMP_WAIT_POLICY=passive, or PyTorch's are far too long)")
    parser.add_argument("--limit", type=float, default=60,
                        help="seconds for one run of our program")
    parser.add_argument("--append", action="store_true")
    parser.add_argument("--program", default=os.path.join(ROOT, "build/release/bench/operators"))
    args = parser.parse_args()
    warnings.filterwarnings("ignore")
    listed = subprocess.run([args.program, "--list", *args.names], check=True, capture_output=True,
                            text=True).stdout
    rows = []
    for row in map(json.loads, listed.splitlines()):
        rows.append({"name": row["name"], **compare(row, args)})
        print(f"\r{len(rows)} {row['name']:30}", end="", flush=True)
    print("\r" + " " * 40 + "\r", end="")
    report(rows)
    if args.append:
        append(rows)


if __name__ == "__main__":
    main()
