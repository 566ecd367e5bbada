#!/usr/bin/env python3
"""PyTorch's times of the rows of extra/bench/gpu that ../shared/peers/gpu_peers.py lacks, eager and
compiled, as JSON lines of the same form:

    python3 extra/bench/gpu_peers.py [conv | gemm | fused] > peers.jsonl
    python3 extra/bench/gpu_peers.py product bf16_nn_512x256x1024 f32_tn_... > peers.jsonl
    python3 extra/bench/gpu_peers.py --script ../shared/peers/gpu_peers.py [mem] >> peers.jsonl
    build/release/bench/gpu --peers peers.jsonl

Needs a GPU, PyTorch and Triton. Medians of triton.testing.do_bench with caches that are cold and
clean, as tiny's timed launches find them, also for a script that is run by --script: do_bench
overwrites the caches with zeros, which work that is timed next would pay for as it drives them out
to memory (6 to 8 us on an H200)."""
import json
import sys

import torch
import torch.nn.functional as F
from triton.testing import do_bench

DEVICE = "cuda"
READ_CACHES = """
import triton
def read_caches():
    driver = triton.runtime.driver.active
    overwrite = driver.clear_cache
    def clear(cache):
        overwrite(cache)
        cache.sum(dtype=cache.dtype)
    driver.clear_cache = clear
read_caches()
"""
exec(READ_CACHES)  # once more in what --script starts, which has a process of its own for a section


def both(name, work, *inputs):
    compiled = torch.compile(work, mode="max-autotune-no-cudagraphs")
    for kind, f in (("eager", work), ("compile", compiled)):
        ms = do_bench(lambda f=f: f(*inputs), warmup=50, rep=200, return_mode="median")
        print(json.dumps({"name": name, "impl": "torch-" + kind, "ms": ms}), flush=True)


def randn(*shape, grad=False):
    return torch.randn(*shape, device=DEVICE, requires_grad=grad)


def convolutions():
    torch.backends.cudnn.benchmark = True
    shapes = [(torch.bfloat16, s) for s in
              ((256, 64, 56, 64, 3, 1), (256, 128, 28, 128, 3, 1), (256, 256, 14, 256, 3, 1),
               (256, 3, 224, 64, 7, 2), (256, 256, 56, 64, 1, 1), (512, 64, 31, 64, 3, 1))]
    shapes += [(torch.float16, s) for s in
               ((2000, 24, 31, 64, 3, 1), (2000, 64, 15, 256, 3, 1), (2000, 256, 7, 256, 3, 1))]
    for dtype, (n, c, h, out, k, stride) in shapes:
        def last(*shape):
            return randn(*shape).to(dtype).to(memory_format=torch.channels_last)
        x, w, pad = last(n, c, h, h), last(out, c, k, k), k // 2
        g = torch.empty_like(F.conv2d(x, w, stride=stride, padding=pad)).normal_()

        def backward(mask):
            return torch.ops.aten.convolution_backward(
                g, x, w, None, [stride] * 2, [pad] * 2, [1, 1], False, [0, 0], 1, mask)
        for name, f in (("conv2d", lambda: F.conv2d(x, w, stride=stride, padding=pad)),
                        ("conv2d gradient of input", lambda: backward([True, False, False])),
                        ("conv2d gradient of weight", lambda: backward([False, True, False]))):
            ms = do_bench(f, warmup=50, rep=200, return_mode="median")
            print(json.dumps({"name": name, "impl": "cudnn-nhwc", "dtype": str(dtype),
                              "shape": [n, c, h, out, k, stride], "ms": ms}), flush=True)


def products():
    def line(name, work, **more):
        ms = do_bench(work, warmup=50, rep=200, return_mode="median")
        print(json.dumps({"name": name, "impl": "torch", **more, "ms": ms}), flush=True)

    n = 4096
    a, b = (randn(n, n).to(torch.bfloat16) for _ in range(2))
    for form in ("nt", "tn", "tt"):
        x, y = a.t() if form[0] == "t" else a, b.t() if form[1] == "t" else b
        line("gemm", lambda: x @ y, dtype="torch.bfloat16 " + form, N=n)
    x, y = a[1:, 1:].contiguous(), b[1:, 1:].contiguous()
    line("gemm", lambda: x @ y, dtype="torch.bfloat16 odd", N=n)
    r, bias = randn(n, n).to(torch.bfloat16), randn(n).to(torch.bfloat16)
    both("gemm bias+gelu+residual", lambda a, b, r, bias: F.gelu(a @ b + bias) + r, a, b, r, bias)
    x, y = (torch.randint(-100, 100, (n, n), device=DEVICE, dtype=torch.int8) for _ in range(2))
    line("gemm", lambda: torch._int_mm(x, y.t()), dtype="int8", N=n)
    for m in (1, 8, 16, 64):
        x, w = (randn(s, n).to(torch.bfloat16) for s in (m, 11008))
        line("gemv", lambda: F.linear(x, w), m=m, n=11008, k=n)
    for kind in (torch.float8_e4m3fn, torch.float8_e5m2):
        for size in (4096, 8192):
            x, y = randn(size, size).to(kind), randn(size, size).to(torch.float8_e4m3fn)
            one = torch.tensor(1.0, device=DEVICE)
            line("gemm", lambda: torch._scaled_mm(x, y.t(), scale_a=one, scale_b=one,
                                                  out_dtype=torch.bfloat16),
                 dtype=str(kind), N=size)


def fused():
    n, out = 4096, 11008

    def linear(x, w, s, group):
        w = w.to(torch.bfloat16)
        if group:
            w = (w.reshape(w.shape[0], -1, group) * s).reshape(w.shape)
        return F.linear(x, w if group else w * s)

    for m, columns, group in ((1, out, 0), (8, out, 0), (16, out, 0), (64, out, 0), (8, out, 128),
                              (n, n, 0)):
        x = randn(m, n).to(torch.bfloat16)
        w = torch.randint(-100, 100, (columns, n), device=DEVICE, dtype=torch.int8)
        s = randn(*((columns, n // group, 1) if group else (columns, 1))).to(torch.bfloat16)
        both(f"linear int8 {m} group {group}", lambda x, w, s, g=group: linear(x, w, s, g), x, w, s)
    x, w = randn(8, 1024, n).to(torch.bfloat16), randn(8, n, n).to(torch.bfloat16)
    both("experts", lambda x, w: x @ w.transpose(1, 2), x, w)
    at = torch.randint(0, 8 * 1024, (8 * 1024,), device=DEVICE)
    both("experts looked up",
         lambda x, w, at: x.reshape(-1, n)[at].reshape(8, 1024, n) @ w.transpose(1, 2), x, w, at)
    x, a, b = (randn(n, n).to(torch.bfloat16) for _ in range(3))
    s = randn(n).to(torch.bfloat16)
    both("gemm of rms norm", lambda x, a, s: F.linear(F.rms_norm(x, (n,), s, 1e-6), a), x, a, s)
    both("gemm swiglu", lambda x, a, b: F.silu(F.linear(x, a)) * F.linear(x, b), x, a, b)


def product(text):
    """As bench/gpu --product takes it: dtype, whether each operand lies turned, sizes."""
    dtype, form, sizes = text.split("_")
    kind = {"bf16": torch.bfloat16, "f16": torch.float16}.get(dtype, torch.float32)
    torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"
    m, n, k = (int(s) for s in sizes.split("x"))
    a = randn(k, m).to(kind).t() if form[0] == "t" else randn(m, k).to(kind)
    b = randn(n, k).to(kind).t() if form[1] == "t" else randn(k, n).to(kind)
    ms = do_bench(lambda: a @ b, warmup=20, rep=100, return_mode="median")
    print(json.dumps({"name": "product " + text, "impl": "cublas", "ms": ms}), flush=True)


def main():
    n = 8192
    x, w = randn(n, n), randn(n)
    both("rmsnorm fp32 8192^2", lambda x, w: F.rms_norm(x, (n,), w, 1e-6), x, w)

    table, g = randn(50257, 768, grad=True), randn(4 * n, 768)
    at = torch.randint(0, 50257, (4 * n,), device=DEVICE)
    both("embedding 50257x768 fp32", lambda t, i: F.embedding(i, t), table.detach(), at)
    # The backward pass alone: what autograd runs for it.
    both("embedding gradient 50257x768 fp32",
         lambda g, i: torch.ops.aten.embedding_dense_backward(g, i, 50257, -1, False), g, at)

    x = randn(256, 64, 112, 112)
    both("max pool 3/2 256x64x112^2 fp32", lambda x: F.max_pool2d(x, 3, 2, 1), x)

    x, g = randn(256, 64, 56, 56), randn(256, 64, 56, 56)
    w, b, mean, var = randn(64), randn(64), randn(64), torch.ones(64, device=DEVICE)

    def norm(x, w, b):
        return F.batch_norm(x, mean, var, w, b, training=True)

    both("batch norm 256x64x56^2 fp32", norm, x, w, b)
    leaves = [t.clone().requires_grad_() for t in (x, w, b)]
    for kind, f in (("eager", norm), ("compile", torch.compile(norm))):
        ms = do_bench(lambda f=f: torch.autograd.grad(f(*leaves), leaves, g), warmup=50, rep=200,
                      return_mode="median")
        print(json.dumps({"name": "batch norm forward+backward 256x64x56^2 fp32",
                          "impl": "torch-" + kind, "ms": ms}), flush=True)


def run_script(path, sections):
    with open(path, encoding="utf-8") as file:
        text = file.read()
    timer = "from triton.testing import do_bench\n"
    if timer not in text:
        sys.exit(f"{path} has no line '{timer.strip()}' to put clean caches after")
    sys.argv = [path, *sections]
    exec(compile(text.replace(timer, timer + READ_CACHES), path, "exec"), {"__name__": "__main__"})


if __name__ == "__main__":
    if sys.argv[1:2] == ["--script"]:
        run_script(sys.argv[2], sys.argv[3:])
        sys.exit()
    if sys.argv[1:2] == ["product"]:
        for text in sys.argv[2:]:
            product(text)
        sys.exit()
    if not sys.argv[1:]:
        main()
    for name, rows in (("conv", convolutions), ("gemm", products), ("fused", fused)):
        if sys.argv[1:] in ([], [name]):
            rows()
