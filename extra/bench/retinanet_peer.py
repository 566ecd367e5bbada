#!/usr/bin/env python3
"""Trains RetinaNet in PyTorch beside the example retinanet: from the same weights, on the same
pictures in the same order, with the same optimizer, and compares the losses step by step.

    make all && extra/bench/retinanet_peer.py [--steps 200] [--model small] [--device CPU]
    extra/bench/retinanet_peer.py --device CUDA --model resnet50 --steps 200 --dtype bf16
    extra/bench/retinanet_peer.py --device CUDA --throughput      # 800 x 800, batch 16, bf16

Status 1 where one of the first 20 losses in f32 is more than 1 % away, or in bf16 the mean of the
last twenty more than 5 %. With torchvision installed, --torchvision trains its own model
(torchvision.models.detection) in place of the one below, which follows its definitions.
The learning rate is a small one: with the example's own, steps of Adam from fresh weights are
chaotic, and PyTorch in f32 is after twenty of them as far from itself in f64. Needs PyTorch and
NumPy."""
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

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SETTINGS = {  # as examples/retinanet.cpp has them
    "small": {"depths": [1, 1, 1, 1], "width": 16, "channels": 64, "head_depth": 2, "anchor": 16,
              "side": 128, "batch": 8},
    "resnet50": {"depths": [3, 4, 6, 3], "width": 64, "channels": 256, "head_depth": 4,
                 "anchor": 32, "side": 256, "batch": 32},
}
CLASSES, DECAY, CLIP = 5, 0.05, 10
MEAN, DEVIATION = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
TYPES = {"F32": np.float32, "U8": np.uint8, "I32": np.int32}


def read_safetensors(path):
    with open(path, "rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
        data = file.read()
    out = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        values = np.frombuffer(data[begin:end], TYPES[entry["dtype"]]).reshape(entry["shape"])
        out[name] = torch.from_numpy(values.copy())
    return out


# --- The network ----------------------------------------------------------------------------------


class Bottleneck(nn.Module):
    def __init__(self, inputs, width, stride, has_shortcut):
        super().__init__()
        outputs = 4 * width
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.downsample = None
        if has_shortcut:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False),
                                            nn.BatchNorm2d(outputs))

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)))
        y = F.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        return F.relu(y + (x if self.downsample is None else self.downsample(x)))


class Body(nn.Module):
    def __init__(self, s):
        super().__init__()
        width = s["width"]
        self.conv1 = nn.Conv2d(3, width, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        inputs = width
        for stage, depth in enumerate(s["depths"]):
            blocks = []
            for i in range(depth):
                blocks.append(Bottleneck(inputs, width << stage, 2 if stage and not i else 1,
                                         i == 0))
                inputs = 4 * (width << stage)
            setattr(self, f"layer{stage + 1}", nn.Sequential(*blocks))

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 3, 2, 1)
        x = self.layer1(x)
        c3 = self.layer2(x)
        c4 = self.layer3(c3)
        return [c3, c4, self.layer4(c4)]


class Pyramid(nn.Module):
    def __init__(self, inputs, channels):
        super().__init__()
        self.inner_blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(n, channels, 1)) for n in inputs)
        self.layer_blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1)) for _ in inputs)
        self.extra_blocks = nn.ModuleDict(
            {name: nn.Conv2d(channels, channels, 3, 2, 1) for name in ("p6", "p7")})

    def forward(self, maps):
        out, above = [None] * len(maps), None
        for i in reversed(range(len(maps))):
            here = self.inner_blocks[i](maps[i])
            if above is not None:
                here = here + F.interpolate(above, size=here.shape[-2:], mode="nearest")
            out[i], above = self.layer_blocks[i](here), here
        p6 = self.extra_blocks["p6"](out[-1])
        return out + [p6, self.extra_blocks["p7"](F.relu(p6))]


class Head(nn.Module):
    def __init__(self, s, last, numbers):
        super().__init__()
        c = s["channels"]
        self.conv = nn.ModuleList(
            nn.Sequential(nn.Conv2d(c, c, 3, padding=1)) for _ in range(s["head_depth"]))
        self.add_module(last, nn.Conv2d(c, 9 * numbers, 3, padding=1))
        self.last, self.numbers = last, numbers

    def forward(self, x):
        for conv in self.conv:
            x = F.relu(conv(x))
        x = getattr(self, self.last)(x)
        n, _, h, w = x.shape
        x = x.view(n, 9, self.numbers, h, w).permute(0, 3, 4, 1, 2)
        return x.reshape(n, -1, self.numbers)


class Detector(nn.Module):
    def __init__(self, s, classes):
        super().__init__()
        self.backbone = nn.Module()
        self.backbone.body = Body(s)
        self.backbone.fpn = Pyramid([8 * s["width"], 16 * s["width"], 32 * s["width"]],
                                    s["channels"])
        self.head = nn.Module()
        self.head.classification_head = Head(s, "cls_logits", classes)
        self.head.regression_head = Head(s, "bbox_reg", 4)
        self.anchor, self.known = s["anchor"], {}

    def forward(self, x):
        maps = self.backbone.fpn(self.backbone.body(x))
        grids = tuple(tuple(m.shape[-2:]) for m in maps)
        if grids not in self.known:
            self.known[grids] = anchors_of(x.shape[-2:], grids, self.anchor).to(x.device)
        logits = torch.cat([self.head.classification_head(m) for m in maps], 1)
        deltas = torch.cat([self.head.regression_head(m) for m in maps], 1)
        return logits.float(), deltas.float(), self.known[grids]


# --- Anchors, matching, losses --------------------------------------------------------------------


def anchors_of(size, grids, first):
    out = []
    for level, (rows, columns) in enumerate(grids):
        scales = torch.tensor([float(int((first << level) * 2 ** (i / 3))) for i in range(3)])
        roots = torch.sqrt(torch.tensor([0.5, 1.0, 2.0]))
        w = (scales[None, :] / roots[:, None]).reshape(-1)
        h = (scales[None, :] * roots[:, None]).reshape(-1)
        base = (torch.stack([-w, -h, w, h], 1) / 2).round()
        y = torch.arange(rows) * (size[0] // rows)
        x = torch.arange(columns) * (size[1] // columns)
        y, x = torch.meshgrid(y, x, indexing="ij")
        shift = torch.stack([x, y, x, y], -1).reshape(-1, 1, 4)
        out.append((shift + base).reshape(-1, 4))
    return torch.cat(out)


def overlaps(a, b):
    def area(x):
        return (x[:, 2] - x[:, 0]) * (x[:, 3] - x[:, 1])

    low = torch.max(a[:, None, :2], b[None, :, :2])
    high = torch.min(a[:, None, 2:], b[None, :, 2:])
    sides = (high - low).clamp(min=0)
    common = sides[..., 0] * sides[..., 1]
    return common / (area(a)[:, None] + area(b)[None] - common)


def matches(anchors, boxes):
    """The number of each anchor's box; -1: none, -2: between the thresholds."""
    if len(boxes) == 0:
        return torch.full((len(anchors),), -1, dtype=torch.int64, device=anchors.device)
    iou = overlaps(boxes, anchors)
    most, mine = iou.max(0)
    out = torch.where(most >= 0.5, mine, torch.where(most >= 0.4, -2, -1))
    is_best = (iou == iou.max(1, keepdim=True)[0]).any(0)
    return torch.where(is_best, mine, out)


def encoded(boxes, anchors):
    size, anchor = boxes[:, 2:] - boxes[:, :2], anchors[:, 2:] - anchors[:, :2]
    middle, place = boxes[:, :2] + size / 2, anchors[:, :2] + anchor / 2
    return torch.cat([(middle - place) / anchor, torch.log(size / anchor)], 1)


def focal_sum(logits, targets, alpha=0.25, gamma=2):
    p = torch.sigmoid(logits)
    entropy = F.binary_cross_entropy_with_logits(logits, targets, reduction="none")
    of_target = p * targets + (1 - p) * (1 - targets)
    weight = alpha * targets + (1 - alpha) * (1 - targets)
    return (weight * entropy * (1 - of_target) ** gamma).sum()


def loss_of(outputs, boxes, labels):
    logits, deltas, anchors = outputs
    total = 0
    for i in range(len(logits)):
        mine = labels[i] >= 0
        match = matches(anchors, boxes[i][mine])
        has_box, counts = match >= 0, match != -2
        target = torch.zeros_like(logits[i])
        target[has_box, labels[i][mine][match[has_box]].long()] = 1
        number = max(1, int(has_box.sum()))
        total = total + focal_sum(logits[i][counts], target[counts]) / number
        wanted = encoded(boxes[i][mine][match[has_box]], anchors[has_box])
        total = total + F.l1_loss(deltas[i][has_box], wanted, reduction="sum") / number
    return total / len(logits)


# --- Training -------------------------------------------------------------------------------------


def torchvision_model(s):
    from torchvision.models.detection import retinanet_resnet50_fpn
    return retinanet_resnet50_fpn(weights=None, weights_backbone=None, num_classes=CLASSES,
                                  min_size=s["side"], max_size=s["side"],
                                  trainable_backbone_layers=5)


def torchvision_loss(model, images, boxes, labels):
    targets = [{"boxes": b[k >= 0], "labels": k[k >= 0].long()} for b, k in zip(boxes, labels)]
    return sum(model([image / 255 for image in images.float()], targets).values())


def own_loss(model, images, boxes, labels):
    shape = (3, 1, 1)
    mean = torch.tensor(MEAN, device=images.device).view(shape)
    deviation = torch.tensor(DEVIATION, device=images.device).view(shape)
    outputs = model((images.float() / 255 - mean) / deviation)
    with torch.autocast(images.device.type, enabled=False):
        return loss_of(outputs, boxes, labels)


def rate_at(step, warmup, steps, lowest=0.1):
    if step < warmup:
        return step / warmup
    at = min((step - warmup) / max(steps - warmup, 1e-9), 1.0)
    return lowest + (1 - lowest) * 0.5 * (1 + math.cos(math.pi * at))


def make_optimizer(model, lr):
    parameters = list(model.parameters())
    return torch.optim.AdamW([{"params": [p for p in parameters if p.dim() >= 2],
                               "weight_decay": DECAY},
                              {"params": [p for p in parameters if p.dim() < 2],
                               "weight_decay": 0}], lr=lr)


def autocast(device, dtype):
    return torch.autocast(device, torch.bfloat16, enabled=dtype == "bf16")


def peer_losses(args, s, weights, batches):
    device = "cuda" if args.device.startswith("CUDA") else "cpu"
    model = torchvision_model(s) if args.torchvision else Detector(s, CLASSES)
    loss_function = torchvision_loss if args.torchvision else own_loss
    report = model.load_state_dict(weights, strict=False)
    missing = [n for n in report.missing_keys if not n.endswith("num_batches_tracked")]
    if missing or report.unexpected_keys:
        sys.exit(f"weights do not fit: missing {missing}, unexpected {report.unexpected_keys}")
    model.to(device).train()
    optimizer = make_optimizer(model, args.lr)
    losses, times = [], []
    for step in range(args.steps):
        begin = time.perf_counter()
        batch = [batches[f"step{step}.{name}"].to(device) for name in ("images", "boxes", "labels")]
        for group in optimizer.param_groups:
            group["lr"] = args.lr * rate_at(step + 1, args.steps // 10, args.steps)
        with autocast(device, args.dtype):
            loss = loss_function(model, *batch)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        losses.append(float(loss))
        times.append(time.perf_counter() - begin)
    return losses, sorted(times)[len(times) // 2]


def run_program(args, s, folder):
    paths = {name: os.path.join(folder, name) for name in ("initial", "batches", "losses")}
    command = [args.program, "--device", args.device, "--model", args.model, "--side",
               str(s["side"]), "--batch", str(s["batch"]), "--steps", str(args.steps), "--jitter",
               "off", "--box-loss", "l1", "--dtype", args.dtype, "--tests", "1", "--lr", str(args.lr),
               "--warmup", str(args.steps // 10), "--save-initial",
               paths["initial"], "--dump-batches", paths["batches"], "--losses", paths["losses"]]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    print("\n".join(line for line in out.splitlines() if line.startswith("trained")))
    with open(paths["losses"], encoding="utf-8") as file:
        losses = [float(line) for line in file]
    return read_safetensors(paths["initial"]), read_safetensors(paths["batches"]), losses


def compare(args, s):
    with tempfile.TemporaryDirectory() as folder:
        weights, batches, ours = run_program(args, s, folder)
    theirs, ms = peer_losses(args, s, weights, batches)
    apart = [abs(a - b) / abs(b) for a, b in zip(ours, theirs)]
    for i in range(args.steps):
        if i < 20 or i % 10 == 9:
            print(f"step {i + 1:4d}  tiny {ours[i]:10.6f}  PyTorch {theirs[i]:10.6f}  "
                  f"{100 * apart[i]:8.4f} %")
    last = min(20, args.steps)
    ends = [sum(x[-last:]) / last for x in (ours, theirs)]
    print(f"PyTorch {torch.__version__}: {ms * 1e3:.1f} ms a step; largest difference in the "
          f"first 20 steps {100 * max(apart[:20]):.4f} %; mean of the last {last}: "
          f"{ends[0]:.4f} and {ends[1]:.4f}")
    if args.dtype == "f32":
        return max(apart[:20]) < 0.01
    return abs(ends[0] - ends[1]) / ends[1] < 0.05


def throughput(args, s):
    command = [args.program, "--bench", "--device", args.device, "--model", args.model, "--side",
               str(s["side"]), "--batch", str(s["batch"]), "--dtype", args.dtype, "--box-loss",
               "l1", "--jitter", "off"]
    print(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    device = "cuda" if args.device.startswith("CUDA") else "cpu"
    model = torchvision_model(s) if args.torchvision else Detector(s, CLASSES)
    model = model.to(device).train().to(memory_format=torch.channels_last)
    loss_function = torchvision_loss if args.torchvision else own_loss
    compiled = torch.compile(model) if hasattr(torch, "compile") else model
    optimizer = make_optimizer(model, args.lr)
    images = torch.randint(0, 256, (s["batch"], 3, s["side"], s["side"]), dtype=torch.uint8)
    corners = torch.rand(s["batch"], 6, 2) * s["side"] / 2
    boxes = torch.cat([corners, corners + 20 + torch.rand(s["batch"], 6, 2) * s["side"] / 3], 2)
    batch = [t.to(device) for t in (images, boxes, torch.randint(0, CLASSES, (s["batch"], 6)))]

    def step():
        with autocast(device, args.dtype):
            loss = loss_function(compiled, *batch)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()

    def wait():
        if device == "cuda":
            torch.cuda.synchronize()

    for _ in range(args.warm):
        step()
    wait()
    begin = time.perf_counter()
    for _ in range(args.rounds):
        step()
    wait()
    seconds = (time.perf_counter() - begin) / args.rounds
    print(f"PyTorch {torch.__version__}{' compiled' if compiled is not model else ''}: "
          f"{seconds * 1e3:.2f} ms a step, {s['batch'] / seconds:.1f} pictures/s")
    return True


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default=os.path.join(ROOT, "build/release/examples/retinanet"))
    parser.add_argument("--model", choices=SETTINGS)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--side", type=int)
    parser.add_argument("--batch", type=int)
    parser.add_argument("--dtype", choices=["f32", "bf16"])
    parser.add_argument("--device", default="CPU")
    parser.add_argument("--torchvision", action="store_true")
    parser.add_argument("--throughput", action="store_true")
    parser.add_argument("--warm", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=20)
    args = parser.parse_args()
    args.model = args.model or ("resnet50" if args.throughput else "small")
    args.dtype = args.dtype or ("bf16" if args.throughput else "f32")
    s = dict(SETTINGS[args.model])
    if args.throughput:
        s.update(side=800, batch=16)
    s.update({k: v for k, v in (("side", args.side), ("batch", args.batch)) if v})
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    sys.exit(0 if (throughput if args.throughput else compare)(args, s) else 1)


if __name__ == "__main__":
    main()
