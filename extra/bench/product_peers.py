#!/usr/bin/env python3
"""PyTorch's times of the variants of extra/bench/product_variants.h, compiled, under the same names
as JSON lines for extra/bench/products --peers:

    python3 extra/bench/product_peers.py [--dtype bf16,f16,tf32,e4m3] [--only TEXT,TEXT]
        [--seconds N] [--side 4096] [--mode max-autotune-no-cudagraphs] > products.jsonl

Needs a GPU, PyTorch and Triton. Times are those of gpu_peers.py: medians with caches that are cold
and clean. torch.compile takes 5 to 10 s for a variant: --seconds is when none is begun any more,
--only takes those with one of the texts in their name, --mode "default" searches nothing. A variant
that PyTorch refuses (8-bit floats of odd sizes) is named on stderr and left out."""
import argparse
import json
import sys
import time

import torch
import torch.nn.functional as F
from gpu_peers import read_caches  # noqa: F401  (importing it makes do_bench read what it wrote)
from triton.testing import do_bench

DEVICE = "cuda"
DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "tf32": torch.float32,
          "e4m3": torch.float8_e4m3fn}


class Inputs:
    """Makes the tensors of a variant in one dtype, and its products."""

    def __init__(self, name):
        self.dtype = DTYPES[name]
        self.f8 = name == "e4m3"
        self.result = torch.bfloat16 if self.f8 else self.dtype
        self.one = torch.tensor(1.0, device=DEVICE)

    def __call__(self, *shape):
        return self.of(self.dtype, *shape)

    def of(self, dtype, *shape):
        return torch.randn(*shape, device=DEVICE).to(dtype)

    def other(self, *shape):
        return self.of(self.result, *shape)

    def mask(self, *shape):
        return torch.rand(*shape, device=DEVICE) < 0.8

    def bytes(self, *shape):
        return torch.randint(-100, 100, shape, device=DEVICE, dtype=torch.int8)

    def nibbles(self, *shape):
        return torch.randint(0, 256, shape, device=DEVICE, dtype=torch.uint8)

    def places(self, count, length):
        return torch.arange(count, device=DEVICE) * 7919 % length

    def product(self, a, b):
        if self.f8:
            return torch._scaled_mm(a.to(self.dtype).contiguous(),
                                    b.to(self.dtype).t().contiguous().t(), scale_a=self.one,
                                    scale_b=self.one, out_dtype=self.result)
        return a.to(self.dtype) @ b.to(self.dtype)


def scaled(y, k):
    return y * (1 / (k + 1) ** 0.5)


def nibbles(w, first_low, n, k):
    low, high = w & 15, w >> 4
    return torch.stack((low, high) if first_low else (high, low), 2).reshape(n, k)


def variants(t, s):
    """name: (function, inputs of it) of a side; functions are given what they read."""
    n = s
    x, w = lambda: t(n, n), lambda: t(n, n)
    ox, vector = lambda: t.other(n, n), lambda: t.other(n)
    mm = t.product

    def y(a, b):
        return scaled(mm(a, b.t()), n)

    def groups(w, scale):
        return (w.to(t.dtype).reshape(n, n // 128, 128) * scale).reshape(n, n)

    rows = {
        "gelu_first": (lambda x, w: mm(F.gelu(x), w.t()), ox, w),
        "gelu_second": (lambda x, w: mm(x, F.gelu(w).t()), x, ox),
        "relu_both": (lambda x, w: mm(F.relu(x), F.relu(w).t()), ox, ox),
        "dropout": (lambda x, kept, w: mm(torch.where(kept, x * 2, 0), w.t()), ox,
                    lambda: t.mask(n, n), w),
        "where": (lambda x, z, w: mm(torch.where(x > 0, x, z), w.t()), ox, ox, w),
        "triangle": (lambda x, w: mm(x.tril(), w.t()), ox, w),
        "swiglu_first": (lambda x, z, w: mm(F.silu(x) * z, w.t()), ox, ox, w),
        "normalised_rows": (lambda x, g, w: mm(F.rms_norm(x, (n,), g, 1e-6), w.t()), ox, vector, w),
        "softmax_of_product": (lambda x, w, v: mm(y(x, w).softmax(1), v.t()), x, w, w),
        "both_of_f32": (lambda x, w: mm(x, w.t()), lambda: t.of(torch.float32, n, n),
                        lambda: t.of(torch.float32, n, n)),
        "beside_f32": (lambda x, w: x.float() @ w.t(), x, lambda: t.of(torch.float32, n, n)),
        "mask_first": (lambda x, w: mm(x, w.t()), lambda: t.mask(n, n), w),
        "mask_second": (lambda x, w: mm(x, w.t()), x, lambda: t.mask(n, n)),
        "grouped_queries": (lambda q, k: mm(q, k.transpose(2, 3)), lambda: t(2, 2, n, 128),
                            lambda: t(2, 1, n, 128)),
        "one_second_for_all": (lambda x, w: mm(x, w.t()), lambda: t(4, n, n), w),
        "one_first_for_all": (lambda x, w: mm(x, w.transpose(1, 2)), x, lambda: t(4, n, n)),
        "heads_of_rows": (lambda q, k: mm(q.transpose(0, 1), k.permute(1, 2, 0)),
                          lambda: t(n, 4, 128), lambda: t(n, 4, 128)),
        "constant_first": (lambda w: mm(torch.full((n, n), 0.5, dtype=t.result, device=DEVICE),
                                        w.t()), w),
        "constant_second": (lambda x: mm(x, torch.full((n, n), 0.5, dtype=t.result,
                                                       device=DEVICE)), x),
        "constant_triangle": (lambda x: mm(x, torch.ones(n, n, dtype=t.result,
                                                         device=DEVICE).tril()), x),
        "squared": (lambda x: mm(x, x), x),
        "by_its_transpose": (lambda x: mm(x, x.t()), x),
        "gathered_rows": (lambda x, at, w: mm(x[at], w.t()), lambda: t(2 * n, n),
                          lambda: t.places(n, 2 * n), w),
        "gathered_columns": (lambda x, w, at: mm(x, w[at].t()), x, lambda: t(2 * n, n),
                             lambda: t.places(n, 2 * n)),
        "gathered_terms": (lambda x, w, at: mm(x, w[at]), x, lambda: t(2 * n, n),
                           lambda: t.places(n, 2 * n)),
        "gathered_blocks": (lambda x, w, at: mm(x, w[at].reshape(n, n).t()), x,
                            lambda: t(2 * n // 64, 64, n), lambda: t.places(n // 64, 2 * n // 64)),
        "gathered_for_experts": (lambda x, w, at: mm(x[at].reshape(4, n, n), w.transpose(1, 2)),
                                 lambda: t(4 * n, n), lambda: t(4, n, n),
                                 lambda: t.places(4 * n, 4 * n)),
        "concatenated_terms": (lambda x, z, w: mm(torch.cat((x, z), 1), w.t()),
                               lambda: t(n, n // 2), lambda: t(n, n // 2), w),
        "concatenated_rows": (lambda x, z, w: mm(torch.cat((x, z), 0), w.t()),
                              lambda: t(n // 2, n), lambda: t(n // 2, n), w),
        "concatenated_columns": (lambda x, v, w: mm(x, torch.cat((v, w), 0).t()), x,
                                 lambda: t(n // 2, n), lambda: t(n // 2, n)),
        "padded_terms": (lambda x, w: mm(F.pad(x, (2, 3)), w.t()), lambda: t(n, n - 5), w),
        "padded_rows": (lambda x, w: mm(F.pad(x, (0, 0, 2, 3)), w.t()), lambda: t(n - 5, n), w),
        "flipped_terms": (lambda x, w: mm(x.flip(1), w.t()), x, w),
        "flipped_rows": (lambda x, w: mm(x.flip(0), w.t()), x, w),
        "strided_rows": (lambda x, w: mm(x[::2], w.t()), lambda: t(2 * n, n), w),
        "strided_terms": (lambda x, w: mm(x[:, ::2], w.t()), lambda: t(n, 2 * n), w),
        "transposed_first": (lambda x, w: mm(x.t(), w.t()), x, w),
        "plain_second": (lambda x, w: mm(x, w), x, w),
        "transposed_first_plain_second": (lambda x, w: mm(x.t(), w), x, w),
        "odd_offset_first": (lambda x, w: mm(x[1:n + 1, 3:n + 3], w.t()),
                             lambda: t(n + 3, n + 5), w),
        "odd_offset_second": (lambda x, w: mm(x, w[1:n + 1, 3:n + 3].t()), x,
                              lambda: t(n + 3, n + 5)),
        "odd_offset_even_rows": (lambda x, w: mm(x[:, 3:n + 3], w.t()), lambda: t(n, n + 8), w),
        "row_max": (lambda x, w: y(x, w).amax(1), x, w),
        "row_sum": (lambda x, w: y(x, w).sum(1), x, w),
        "log_sum_exp": (lambda x, w: y(x, w).logsumexp(1), x, w),
        "arg_max": (lambda x, w: y(x, w).argmax(1), x, w),
        "column_sum": (lambda x, w: y(x, w).sum(0), x, w),
        "mean_of_squares": (lambda x, w: y(x, w).square().mean(), x, w),
        "softmax": (lambda x, w: y(x, w).softmax(1), x, w),
        "transposed_result": (lambda x, w: y(x, w).t().contiguous(), x, w),
        "quantised": (lambda x, w: (y(x, w) * 8).round().clamp(-127, 127).to(torch.int8), x, w),
        "heads_of_result": (lambda x, w: y(x, w).reshape(n, 8, n // 8).transpose(0, 1).contiguous(),
                            x, w),
        "bias_gelu": (lambda x, w, b: F.gelu(y(x, w) + b), x, w, vector),
        "bias_gelu_residual": (lambda x, w, b, r: F.gelu(y(x, w) + b) + r, x, w, vector, ox),
        "bias_gelu_residual_norm": (
            lambda x, w, b, r, g: F.layer_norm(F.gelu(y(x, w) + b) + r, (n,), g, b), x, w, vector,
            ox, vector),
        "several_outputs": (lambda x, w: (z := y(x, w), F.gelu(z), z * 2 + 1), x, w),
        "result_and_row_sum": (lambda x, w: (z := y(x, w), z.sum(1)), x, w),
        "into_cache": (lambda x, w, at, cache: cache.index_copy_(0, at, mm(x, w.t())), x, w,
                       lambda: t.places(n, 2 * n), lambda: t.other(2 * n, n)),
        "added_to": (lambda x, w, r: mm(x, w.t()) + r, x, w, ox),
        "added_for_tokens": (
            lambda x, w, scale, at: torch.zeros(n, n, dtype=t.result, device=DEVICE).index_add(
                0, at, mm(x, w.transpose(1, 2)).reshape(4 * n, n) * scale),
            lambda: t(4, n, n), lambda: t(4, n, n), lambda: t.other(4 * n, 1),
            lambda: t.places(4 * n, n)),
        "two_added": (lambda x, w, v, z: mm(x, w.t()) + mm(v, z.t()), x, w, x, w),
        "one_gates_another": (lambda x, w, v: F.silu(mm(x, w.t())) * mm(x, v.t()), x, w, w),
        "three_of_one": (lambda x, q, k, v: (mm(x, q.t()), mm(x, k.t()), mm(x, v.t())), x, w, w, w),
        "product_of_three": (lambda x, w, v: mm(y(x, w), v.t()), x, w, w),
        "two_layers": (lambda x, w, b, v, c: mm(F.gelu(y(x, w) + b), v.t()) + c, x, w, vector, w,
                       vector),
    }
    for suffix, m in (("", n), ("_8", 8), ("_40", 40)):
        def few(m=m):
            return t(m, n)
        scale, columns = lambda: t(n, 1), lambda: t(n)
        grouped = lambda: t(n, n // 128, 1)  # noqa: E731
        halves = lambda w, g: groups(  # noqa: E731
            torch.cat((w & 15, w >> 4), 2).reshape(n, n).to(t.dtype) - 8.0, g)
        rows |= {
            "int8_scaled_rows" + suffix: (lambda x, w, g: mm(x, (w.to(t.dtype) * g).t()), few,
                                          lambda: t.bytes(n, n), scale),
            "int8_groups" + suffix: (lambda x, w, g: mm(x, groups(w, g).t()), few,
                                     lambda: t.bytes(n, n), grouped),
            "int4_groups_halves" + suffix: (lambda x, w, g: mm(x, halves(w, g).t()), few,
                                            lambda: t.nibbles(n, n // 128, 64), grouped),
            "int4_scaled_rows" + suffix: (
                lambda x, w, g: mm(x, ((nibbles(w, True, n, n).to(t.dtype) - 8.0) * g).t()), few,
                lambda: t.nibbles(n, n // 2), scale),
            "f8_scaled_columns" + suffix: (lambda x, w, g: mm(x, w.to(t.dtype) * g), few,
                                           lambda: t.of(torch.float8_e4m3fn, n, n), columns),
            "f32_weights" + suffix: (lambda x, w: mm(x, w.t()), few,
                                     lambda: t.of(torch.float32, n, n)),
        }
        for name, low in (("int4_groups_low_first", True), ("int4_groups_high_first", False)):
            rows[name + suffix] = (
                lambda x, w, g, low=low: mm(x, groups(nibbles(w, low, n, n).to(t.dtype) - 8.0,
                                                      g).t()), few,
                lambda: t.nibbles(n, n // 2), grouped)

    def sized(name, m, n, k, batch=1):
        if batch == 1:
            rows[name] = (lambda x, w: mm(x, w.t()), lambda: t(m, k), lambda: t(n, k))
        else:
            rows[name] = (lambda x, w: mm(x, w.transpose(1, 2)), lambda: t(batch, m, k),
                          lambda: t(batch, n, k))

    for size in (1, 2, 3, 4, 5, 6, 7, 8, 9, 17, 77, 1000, 4095, 50257):
        sized(f"m_{size}", size, s, s)
        sized(f"n_{size}", s, size, s)
        if size < 50257:
            sized(f"k_{size}", s, s, size)
    sized("k_0", s, s, 0)
    for size in (1, 3, 8, 17, 77, 1000):
        sized(f"cube_{size}", size, size, size)
    for batch in (1, 4096):
        sized(f"cubes_of_8_{batch}", 8, 8, 8, batch)
    return rows


DEQUANTISED = ("int8_", "int4_", "f8_scaled", "f32_weights", "beside_f32")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--dtype", default="bf16")
    parser.add_argument("--only", default="")
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--side", type=int, default=4096)
    parser.add_argument("--mode", default="max-autotune-no-cudagraphs")
    args = parser.parse_args()
    begin = time.monotonic()
    torch.backends.cuda.matmul.allow_tf32 = True
    for dtype in args.dtype.split(","):
        t = Inputs(dtype)
        for name, (work, *inputs) in variants(t, args.side).items():
            if not any(text in name for text in args.only.split(",")):
                continue
            if t.f8 and name.startswith(DEQUANTISED):
                continue
            if time.monotonic() - begin > args.seconds:
                sys.exit(f"--seconds is over: {dtype}_{name} and what follows is left out")
            try:
                given = [make() for make in inputs]
                torch._dynamo.reset()
                compiled = torch.compile(work, mode=args.mode, dynamic=False)
                ms = do_bench(lambda: compiled(*given), warmup=20, rep=100, return_mode="median")
            except Exception as e:  # the others go on
                print(f"{dtype}_{name}: {str(e).splitlines()[0]}", file=sys.stderr)
                continue
            print(json.dumps({"name": f"{dtype}_{name}", "impl": "torch-compile", "ms": ms}),
                  flush=True)


if __name__ == "__main__":
    main()
