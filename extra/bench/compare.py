#!/usr/bin/env python3
"""Runs our CPU benchmark and PyTorch's same work in turns, prints ratios of medians, and appends
them to extra/bench/results/cpu.jsonl with --append.

    make bench && python3 extra/bench/compare.py [--rounds 3] [--append]

Needs PyTorch (Debian: python3-torch) with a fast BLAS (libopenblas0): Debian's own takes tens of
times as long for products of f32. Both use all cores."""
import argparse
import datetime
import json
import math
import os
import platform
import statistics
import subprocess
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def measure(work, count=9):
    work()
    times = []
    for _ in range(count):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e3


def mnist_step():
    model = nn.Sequential(
        nn.Conv2d(1, 32, 5), nn.ReLU(), nn.Conv2d(32, 32, 5), nn.ReLU(), nn.BatchNorm2d(32),
        nn.MaxPool2d(2), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.Conv2d(64, 64, 3), nn.ReLU(),
        nn.BatchNorm2d(64), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(576, 10))
    optimizer = torch.optim.Adam(model.parameters())
    x, y = torch.rand(128, 1, 28, 28), torch.randint(0, 10, (128,))

    def step():
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()

    return measure(step, 20)


def attention(dtype, causal, backward):
    """Spelt out, as PyTorch 1.13 has no function for it; the mask is added by the product."""
    length, width = 2048, 64
    q, k, v, seed = (torch.randn(8, length, width).to(dtype) for _ in range(4))
    bias = torch.zeros(1, 1, 1, dtype=dtype)
    if causal:
        hidden = torch.ones(length, length, dtype=torch.bool).triu(1)
        bias = torch.zeros(length, length, dtype=dtype).masked_fill(hidden, -math.inf)

    def forward(q, k, v):
        scores = torch.baddbmm(bias.expand(8, length, length), q, k.transpose(1, 2),
                               beta=int(causal), alpha=width**-0.5)
        return torch.bmm(scores.softmax(-1), v)

    def step():
        forward(*(x.detach().requires_grad_() for x in (q, k, v))).backward(seed)

    def only_forward():
        with torch.no_grad():
            forward(q, k, v)

    return measure(step if backward else only_forward, 5)


def torch_times():
    x = torch.rand(4096, 4096)
    out = {
        "sin": measure(lambda: ((x + 1) * 2).sin()),
        "softmax": measure(lambda: torch.softmax(x, 1)),
        "layer_norm": measure(lambda: F.layer_norm(x, (4096,))),
        "transpose_add": measure(lambda: x + x.t()),
        "sum_all": measure(lambda: x.sum()),
        "sum_rows": measure(lambda: x.sum(1)),
        "sum_columns": measure(lambda: x.sum(0)),
    }
    for n in (512, 1024, 2048):
        a, b = torch.rand(n, n), torch.rand(n, n)
        out[f"matmul_{n}"] = measure(lambda: a @ b)
        x, y = a.bfloat16(), b.bfloat16()
        out[f"matmul_bf16_{n}"] = measure(lambda: x @ y)
    for kind, dtype in (("bf16", torch.bfloat16), ("f32", torch.float32)):
        for causal in (False, True):
            for backward in (False, True):
                name = f"attention_{kind}_2048" + "_causal" * causal + "_grad" * backward
                out[name] = attention(dtype, causal, backward)
    out["mnist_step"] = mnist_step()
    return out


def our_times(program):
    lines = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    return {row["name"]: row for row in map(json.loads, lines.splitlines())}


def cpu_name():
    with open("/proc/cpuinfo") as f:
        for line in f:
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor()


def main():
    torch.set_num_threads(os.cpu_count())
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--append", action="store_true")
    parser.add_argument("--program", default=os.path.join(ROOT, "build/release/bench/cpu"))
    args = parser.parse_args()
    ours, peers = [], []
    for _ in range(args.rounds):
        ours.append(our_times(args.program))
        peers.append(torch_times())
    commit = subprocess.run(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"],
                            capture_output=True, text=True).stdout.strip()
    common = {"date": datetime.date.today().isoformat(), "commit": commit,
              "machine": f"{cpu_name()}, {os.cpu_count()} cores",
              "peer": f"PyTorch {torch.__version__}"}
    rows = []
    print(f"{'work':28} {'ours ms':>10} {'peer ms':>10} {'ours/peer':>10} {'ours/copy':>10}")
    for name in ours[0]:
        ms = statistics.median(r[name]["ms"] for r in ours)
        row = {**common, "name": name, "ms": round(ms, 3)}
        if name in peers[0]:
            row["peer_ms"] = round(statistics.median(p[name] for p in peers), 3)
            row["ratio"] = round(ms / row["peer_ms"], 3)
        if "peak_mb" in ours[0][name]:
            row["peak_mb"] = ours[0][name]["peak_mb"]
        if "ratio_to_copy" in ours[0][name]:
            row["ratio_to_copy"] = statistics.median(r[name]["ratio_to_copy"] for r in ours)
        rows.append(row)
        print(f"{name:28} {ms:10.2f} {row.get('peer_ms', float('nan')):10.2f} "
              f"{row.get('ratio', float('nan')):10.2f} {row.get('ratio_to_copy', float('nan')):10.2f}")
    if args.append:
        with open(os.path.join(ROOT, "extra/bench/results/cpu.jsonl"), "a") as f:
            f.writelines(json.dumps(row) + "\n" for row in rows)


if __name__ == "__main__":
    main()
