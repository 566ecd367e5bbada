#!/usr/bin/env python3
"""Trains GPT-2 in PyTorch beside the example gpt2: from the same weights, on the same tokens in the
same order, with the same optimizer, and draws the losses into one picture.

    make all && extra/bench/gpt2_peer.py --layers 2 --width 64 --heads 2 --words 512 --steps 60
    extra/bench/gpt2_peer.py --device CUDA --dtypes bf16,fp8 --picture docs/gpt2_losses.svg

The first dtype is PyTorch's too (f32 or bf16, by autocast), where --peer-dtypes names no others.
Tokens are drawn from a chain of words that the script makes: half of the time one of four that
follow the last word, else any, the first ones more often. Status 1 where the first 20 losses of the
first dtype are more than 1 % from PyTorch's, or the mean of the last 50 more than 2 % for any
dtype. The numbers are GPT-2's of 124 million parameters where no others are given. At a rate of
6e-4 losses jump in the first steps, and rounding decides by how much. Needs PyTorch and NumPy."""
import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from retinanet_peer import ROOT, rate_at, read_safetensors  # noqa: E402

DECAY, CLIP, BETAS = 0.1, 1.0, (0.9, 0.95)


# --- The model ------------------------------------------------------------------------------------


class Linear(nn.Module):
    """A weight of (in, out), as GPT-2's files have them."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(inputs, outputs))
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x):
        return F.linear(x, self.weight.t(), self.bias)


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = nn.ModuleDict({"c_attn": Linear(width, 3 * width),
                                   "c_proj": Linear(width, width)})
        self.mlp = nn.ModuleDict({"c_fc": Linear(width, 4 * width),
                                  "c_proj": Linear(4 * width, width)})

    def forward(self, x):
        rows, length, width = x.shape
        parts = self.attn["c_attn"](self.ln_1(x)).view(rows, length, 3, self.heads, -1)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        if hasattr(F, "scaled_dot_product_attention"):
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
            hidden = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
            y = scores.masked_fill(hidden, -math.inf).softmax(-1) @ v
        x = x + self.attn["c_proj"](y.transpose(1, 2).reshape(rows, length, width))
        y = F.gelu(self.mlp["c_fc"](self.ln_2(x)), approximate="tanh")
        return x + self.mlp["c_proj"](y)


class Gpt2(nn.Module):
    def __init__(self, words, context, layers, width, heads):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(words, width), nn.Embedding(context, width)
        self.h = nn.ModuleList([Block(width, heads) for _ in range(layers)])
        self.ln_f = nn.LayerNorm(width)

    def forward(self, tokens):
        x = self.wte(tokens) + self.wpe.weight[:tokens.shape[1]]
        for block in self.h:
            x = block(x)
        logits = F.linear(self.ln_f(x), self.wte.weight)
        return F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), tokens[:, 1:].flatten())


# --- Tokens ---------------------------------------------------------------------------------------


def write_tokens(path, count, words):
    random = np.random.default_rng(5)
    ranks = random.random(count) ** 3 * words  # the first words come often
    usual = (ranks // 1).astype(np.int64)
    follows = random.integers(0, words, (words, 4))
    is_next, which = random.random(count) < 0.5, random.integers(0, 4, count)
    out = np.zeros(count, np.uint16)
    word = 0
    for i in range(count):
        word = follows[word, which[i]] if is_next[i] else usual[i]
        out[i] = word
    out.tofile(path)


def write_tokenizer(path, words):
    """A vocabulary of so many words, which no text is made of here."""
    vocabulary = {f"w{i}": i for i in range(words)}
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"version": "1.0", "added_tokens": [], "pre_tokenizer": None, "decoder": None,
                   "normalizer": None, "post_processor": None,
                   "model": {"type": "BPE", "vocab": vocabulary, "merges": []}}, file)


# --- Training -------------------------------------------------------------------------------------


def run_program(args, dtype, paths):
    command = [args.program, "--device", args.device, "--data", paths["tokens"], "--tokenizer",
               paths["tokenizer"], "--layers", args.layers, "--width", args.width, "--heads",
               args.heads, "--context", args.context, "--batch", args.batch, "--steps", args.steps,
               "--lr", args.lr, "--warmup", args.steps // 10, "--decay", DECAY, "--clip", CLIP,
               "--dtype", dtype, "--tokens", 0, "--evaluate", args.steps, "--save-initial",
               paths["initial"], "--dump-batches", paths["batches"], "--losses", paths["losses"],
               "--save", paths["final"]]
    out = subprocess.run([str(c) for c in command], check=True, capture_output=True, text=True)
    rate = [line for line in out.stdout.splitlines() if "tokens/s" in line]
    print(f"tiny, {dtype}: {rate[-1] if rate else ''}", flush=True)
    with open(paths["losses"], encoding="utf-8") as file:
        return [float(line) for line in file]


def read_weights(path):
    return {name.removeprefix("transformer."): value
            for name, value in read_safetensors(path).items()}


def peer_losses(args, dtype, paths):
    device = "cuda" if args.device.startswith("CUDA") else "cpu"
    model = Gpt2(args.words, args.context, args.layers, args.width, args.heads)
    report = model.load_state_dict(read_weights(paths["initial"]), strict=False)
    missing = [name for name in report.missing_keys]
    unknown = [name for name in report.unexpected_keys if name != "lm_head.weight"]
    if missing or unknown:
        sys.exit(f"weights do not fit: missing {missing}, unexpected {unknown}")
    model.to(device).train()
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(
        [{"params": [p for p in parameters if p.dim() >= 2], "weight_decay": DECAY},
         {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0}],
        lr=args.lr, betas=BETAS)
    batches = read_safetensors(paths["batches"])
    losses, times = [], []
    for step in range(args.steps):
        begin = time.perf_counter()
        tokens = batches[f"step{step}.tokens"].to(device).long()
        for group in optimizer.param_groups:
            group["lr"] = args.lr * rate_at(step + 1, args.steps // 10, args.steps)
        with torch.autocast(device, torch.bfloat16, enabled=dtype != "f32"):
            loss = model(tokens)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, CLIP)
        optimizer.step()
        losses.append(float(loss.detach()))
        times.append(time.perf_counter() - begin)
    ms = 1e3 * sorted(times)[len(times) // 2]
    print(f"PyTorch {torch.__version__}, {dtype}: {ms:.1f} ms a step", flush=True)
    return losses, model.state_dict()


# --- The comparison -------------------------------------------------------------------------------

COLOURS = ["#1f6feb", "#d1242f", "#1a7f37", "#8250df"]


def draw(path, curves):
    """Lines of losses by step, as SVG."""
    width, height, left, top = 720, 400, 52, 16
    steps = max(len(losses) for _, losses in curves)
    low = min(min(losses) for _, losses in curves)
    high = max(max(losses) for _, losses in curves)
    x = [left + (width - left - 10) * i / max(1, steps - 1) for i in range(steps)]
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height + 44}" '
           'font-family="sans-serif" font-size="12">',
           f'<rect width="{width}" height="{height + 44}" fill="white"/>']
    for i in range(6):
        value = low + (high - low) * i / 5
        y = top + (height - top) * (1 - i / 5)
        out.append(f'<path d="M{left} {y:.1f}H{width - 10}" stroke="#d0d7de"/>')
        out.append(f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{value:.2f}</text>')
    for i in range(0, steps, max(1, steps // 6)):
        out.append(f'<text x="{x[i]:.1f}" y="{height + 16}" text-anchor="middle">{i + 1}</text>')
    for n, (name, losses) in enumerate(curves):
        points = " ".join(f"{x[i]:.1f},{top + (height - top) * (high - v) / (high - low):.1f}"
                          for i, v in enumerate(losses))
        colour = COLOURS[n % len(COLOURS)]
        out.append(f'<polyline points="{points}" fill="none" stroke="{colour}"/>')
        out.append(f'<text x="{left + 10 + 160 * n}" y="{height + 36}" fill="{colour}">{name}'
                   '</text>')
    with open(path, "w", encoding="utf-8") as file:
        file.write("\n".join(out) + "\n</svg>\n")


def show_changes(paths, theirs):
    """What the training changed: tensors that differ most from PyTorch's."""
    first, last = read_weights(paths["initial"]), read_weights(paths["final"])
    rows = []
    for name, value in theirs.items():
        own, other = last[name] - first[name], value.cpu() - first[name]
        rows.append((float((own - other).norm() / other.norm()), name,
                     float(own.norm() / other.norm())))
    print("changes of tensors beside PyTorch's, the least alike first:")
    for apart, name, share in sorted(rows, reverse=True)[:12]:
        print(f"  {name:24s} apart by {apart:.4f} of the change, {share:.4f} times as large")


def compare(args):
    dtypes = args.dtypes.split(",")
    with tempfile.TemporaryDirectory() as folder:
        paths = {name: os.path.join(folder, name)
                 for name in ("initial", "batches", "losses", "final")}
        paths.update(tokens=os.path.join(folder, "tokens.bin"),
                     tokenizer=os.path.join(folder, "tokenizer.json"))
        rows = args.steps * args.batch + 5 * args.batch
        write_tokens(paths["tokens"], int(rows * args.context / 0.9) + args.context, args.words)
        write_tokenizer(paths["tokenizer"], args.words)
        curves = [(f"tiny, {dtype}", run_program(args, dtype, paths)) for dtype in dtypes[::-1]]
        curves.reverse()
        peers = [peer_losses(args, dtype, paths) for dtype in args.peer_dtypes.split(",")]
        if args.changes:
            show_changes(paths, peers[0][1])
    theirs = peers[0][0]
    for dtype, (losses, _) in zip(args.peer_dtypes.split(","), peers):
        curves.append((f"PyTorch, {dtype}", losses))
    if args.picture:
        draw(args.picture, curves)
    for i in sorted({0, 1, 4, 9, 19} | set(range(49, args.steps, 50))):
        if i < args.steps:
            print(f"step {i + 1:4d}  " + "  ".join(f"{name} {c[i]:.5f}" for name, c in curves))
    ours = curves[0][1]
    first = max(abs(a - b) / abs(b) for a, b in zip(ours[:20], theirs[:20]))
    last = min(50, args.steps)
    ends = [sum(losses[-last:]) / last for _, losses in curves]
    print(f"largest difference of the first 20 steps {100 * first:.3f} %; "
          f"means of the last {last}: "
          + ", ".join(f"{name} {end:.4f}" for (name, _), end in zip(curves, ends)))
    peer = ends[len(dtypes)]
    return first < 0.01 and all(abs(end - peer) < 0.02 * peer for end in ends)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default=os.path.join(ROOT, "build/release/examples/gpt2"))
    parser.add_argument("--device", default="CPU")
    parser.add_argument("--dtypes", default="f32")
    parser.add_argument("--peer-dtypes", default="", help="PyTorch's [the first of --dtypes]")
    parser.add_argument("--picture")
    parser.add_argument("--changes", action="store_true", help="compare the trained weights, too")
    parser.add_argument("--lr", type=float, default=1e-4)
    for name, standard in (("layers", 12), ("width", 768), ("heads", 12), ("context", 1024),
                           ("batch", 16), ("words", 50257), ("steps", 300)):
        parser.add_argument("--" + name, type=int, default=standard)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    args = parser.parse_args()
    args.peer_dtypes = args.peer_dtypes or args.dtypes.split(",")[0]
    sys.exit(0 if compare(args) else 1)


if __name__ == "__main__":
    main()
