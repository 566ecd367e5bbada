#!/usr/bin/env python3
"""Times an epoch of the CIFAR-10 example's small recipe on the CPU beside the same network, moves
and optimizers in PyTorch, in turns, and appends the ratio of medians to
extra/bench/results/cpu.jsonl with --append.

    make all && extra/bench/cifar_epoch.py [--rounds 3] [--append]

4,000 drawn pictures, batches of 250, 16 channels in the first group and 64 in the others, f32.
PyTorch orthogonalises in f32, which is its faster way on a CPU. Needs PyTorch and NumPy."""
import argparse
import datetime
import json
import os
import statistics
import subprocess
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

from compare import ROOT, cpu_name

COUNT, BATCH, WIDTH = 4000, 250, 16


def group(inputs, outputs):
    def norm():
        layer = nn.BatchNorm2d(outputs, eps=1e-12, momentum=0.4)
        layer.weight.requires_grad_(False)
        return layer

    def conv(n):
        return nn.Conv2d(n, outputs, 3, padding=1, bias=False)

    return nn.Sequential(conv(inputs), nn.MaxPool2d(2), norm(), nn.GELU(), conv(outputs), norm(),
                         nn.GELU())


class Head(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, 10, bias=False)

    def forward(self, x):
        return self.linear(x) / x.size(1)


def orthogonalized(g, steps=3):
    x = g / (g.norm() + 1e-7)
    for _ in range(steps):
        a = x @ x.T
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x


class Muon(torch.optim.Optimizer):
    def __init__(self, params, lr, momentum):
        super().__init__(params, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self):
        for settings in self.param_groups:
            for p in settings["params"]:
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                m.mul_(settings["momentum"]).add_(p.grad)
                g = p.grad.add(m, alpha=settings["momentum"]).reshape(len(p), -1)
                wide = g if g.shape[0] <= g.shape[1] else g.T
                update = orthogonalized(wide)
                p.mul_(len(p) ** 0.5 / p.norm())
                p.add_((update if wide is g else update.T).view_as(p), alpha=-settings["lr"])


class TorchEpoch:
    def __init__(self):
        self.images = torch.randint(0, 256, (COUNT, 3, 32, 32), dtype=torch.uint8)
        self.labels = torch.randint(0, 10, (COUNT,))
        self.mirrored = torch.rand(COUNT) < 0.5
        whiten = nn.Conv2d(3, 24, 2)
        whiten.weight.requires_grad_(False)
        self.network = nn.Sequential(whiten, nn.GELU(), group(24, WIDTH), group(WIDTH, 4 * WIDTH),
                                     group(4 * WIDTH, 4 * WIDTH), nn.MaxPool2d(3), nn.Flatten(),
                                     Head(4 * WIDTH))
        trained = [p for p in self.network.parameters() if p.requires_grad]
        self.optimizers = [
            torch.optim.SGD([p for p in trained if p.dim() != 4], lr=0.01, momentum=0.85,
                            nesterov=True, weight_decay=1e-3),
            Muon([p for p in trained if p.dim() == 4], lr=0.24, momentum=0.6)]

    def moved(self, at):
        line = torch.arange(32)
        def reflected(shift):
            return 31 - (31 - (line + shift[:, None]).abs()).abs()
        y = reflected(torch.randint(-2, 3, (BATCH,)))
        x = reflected(torch.randint(-2, 3, (BATCH,)))
        x = torch.where(self.mirrored[at][:, None], 31 - x, x)
        return self.images[at[:, None, None, None], torch.arange(3)[:, None, None],
                           y[:, None, :, None], x[:, None, None, :]]

    def run(self):
        start = time.perf_counter()
        order = torch.randperm(COUNT)
        for i in range(COUNT // BATCH):
            at = order[i * BATCH:(i + 1) * BATCH]
            x = (self.moved(at).float() - 120) / 60
            loss = F.cross_entropy(self.network(x), self.labels[at], label_smoothing=0.2,
                                   reduction="sum")
            loss.backward()
            for optimizer in self.optimizers:
                optimizer.step()
            self.network.zero_grad(set_to_none=True)
        return time.perf_counter() - start


def our_epochs(program):
    """Seconds of the epochs but for the first, which compiles, and the last, which tests."""
    command = [program, "--device", "CPU", "--epochs", "5", "--batch", str(BATCH), "--width",
               str(WIDTH)]
    text = subprocess.run(command, check=True, capture_output=True, text=True,
                          env={**os.environ, "CIFAR_DIR": ""}).stdout
    lines = [line.split() for line in text.splitlines()]
    head = next(i for i, line in enumerate(lines) if line[:2] == ["epoch", "loss"])
    ends = [float(line[-2]) for line in lines[head + 1:head + 6]]  # "1  1.92 ...  10.23 s"
    return [b - a for a, b in zip(ends[:-2], ends[1:-1])]


def main():
    torch.set_num_threads(os.cpu_count())
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--append", action="store_true")
    parser.add_argument("--program", default=os.path.join(ROOT, "build/release/examples/cifar"))
    args = parser.parse_args()
    peer = TorchEpoch()
    peer.run()
    ours, theirs = [], []
    for _ in range(args.rounds):
        ours += our_epochs(args.program)
        theirs += [peer.run() for _ in range(3)]
        print(f"ours {ours[-3:]}, PyTorch {theirs[-3:]}", flush=True)
    ms, peer_ms = statistics.median(ours) * 1e3, statistics.median(theirs) * 1e3
    commit = subprocess.run(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"],
                            capture_output=True, text=True).stdout.strip()
    row = {"date": datetime.date.today().isoformat(), "commit": commit,
           "machine": f"{cpu_name()}, {os.cpu_count()} cores", "peer": f"PyTorch {torch.__version__}",
           "name": "cifar_epoch", "ms": round(ms), "peer_ms": round(peer_ms),
           "ratio": round(ms / peer_ms, 3)}
    print(json.dumps(row))
    if args.append:
        with open(os.path.join(ROOT, "extra/bench/results/cpu.jsonl"), "a") as f:
            f.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
