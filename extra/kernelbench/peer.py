#!/usr/bin/env python3
"""PyTorch's side of KernelBench's problems: a process that run.py gives requests, a line of JSON
each, and that answers each with one. It keeps the last problem's module and inputs.

    {"do": "load", "path": ..., "factor": 1, "names": "any"}
    {"do": "check", "files": PREFIX, "whole": N, "draws": [...]}   compares the outputs in PREFIX.0,
                                                                   ... with its own
    {"do": "time", "mode": "eager" | "torch.compile" | "max-autotune", "precision": "f32"}

Precisions: "f32": no product is rounded to TF32; "default": as PyTorch stands, which rounds those
of convolutions; "tf32": all are. Times are those of KernelBench's timing with events, as main.cpp
has them: calls to warm up, then trials, each with caches that are full of other data."""
import gc
import json
import os
import sys
import time
import traceback
import warnings

import torch

import problems
from draws import Draws, listing
from record import tensors_in

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TOLERANCE = {"f32": 1e-4, "default": 1e-4, "tf32": 1e-2}
SHORT = (torch.float16, torch.bfloat16)


def set_precision(precision):
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.allow_tf32 = precision != "f32"


def parts_of(count, whole):
    """As main.cpp has it."""
    if count <= whole:
        return [(0, count)]
    length = whole // 64
    return [((count - length) // 63 * i, length) for i in range(64)]


def synchronize():
    if DEVICE == "cuda":
        torch.cuda.synchronize()


class Peer:
    def __init__(self):
        self.model = self.inputs = self.draws = None
        self.cache = None

    def load(self, path, factor=1, names="any", seed=0):
        self.free()
        start = time.perf_counter()
        wanted = problems.load(problems.File(path), factor, getattr(problems, f"is_{names}"))
        self.draws = Draws(seed, DEVICE)
        with torch.no_grad(), self.draws:
            self.model = wanted["Model"](*wanted["get_init_inputs"]()).to(DEVICE)
            inputs = wanted["get_inputs"]()
        self.inputs = [x.to(DEVICE) if isinstance(x, torch.Tensor) else x for x in inputs]
        synchronize()
        return {"load_s": time.perf_counter() - start}

    def release(self):
        self.free()
        return {}

    def free(self):
        self.model = self.inputs = self.draws = None
        gc.collect()
        if DEVICE == "cuda":
            torch.cuda.empty_cache()

    # --- Comparison ------------------------------------------------------------------------------

    def check(self, files, whole, draws=None, precision="f32"):
        """Of our outputs with those of eager f32, with what forward draws drawn by formula. Of more
        than `whole` elements 64 parts are compared."""
        set_precision("f32")
        begin = len(self.draws.draws)
        with torch.no_grad(), self.draws:
            outputs = list(tensors_in(self.model(*self.inputs)))
        if draws is not None and draws != listing(self.draws.draws):
            return {"error": "this PyTorch draws other numbers than the one that translated",
                    "correct": False}
        del self.draws.draws[begin:]  # a second call draws the same
        reply = self.compared(files, outputs, whole, precision)
        if not reply["correct"] and "error" not in reply:
            reply.update(self.in_double(files, outputs, whole, precision))
        return reply

    def in_double(self, files, outputs, whole, precision):
        """How far our outputs and PyTorch's in f32 are from PyTorch's in f64: whether the problem
        has that many digits at all."""
        try:
            self.model.double()
            with torch.no_grad(), self.draws:
                exact = list(tensors_in(self.model(*[
                    x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x
                    for x in self.inputs])))
            own = max((float(((a.double() - b).abs() / (1 + b.abs())).max())
                       for a, b in zip(outputs, exact) if b.is_floating_point() and b.numel()),
                      default=0.0)
            ours = self.compared(files, [b.to(a.dtype) for a, b in zip(outputs, exact)], whole,
                                 precision)
            return {"max_error_f64": ours["max_error"], "torch_error_f64": own}
        except Exception as error:  # a module that makes f32 tensors, too little memory
            return {"f64": f"{type(error).__name__}: {str(error)[:200]}"}
        finally:
            self.model.float()

    def compared(self, files, outputs, whole, precision):
        short = any(output.dtype in SHORT for output in outputs)
        reply = {"correct": True, "tolerance": 1e-2 if short else TOLERANCE[precision],
                 "max_error": 0.0, "wrong": 0, "compared": 0, "nan": 0}
        for i, output in enumerate(outputs):
            path = f"{files}.{i}"
            wanted = sum(n for _, n in parts_of(output.numel(), whole)) * output.element_size()
            if os.path.getsize(path) != wanted:
                return {"error": f"output {i}: {os.path.getsize(path)} bytes, not {wanted}",
                        "correct": False}
            stored = torch.uint8 if output.dtype == torch.bool else output.dtype
            ours = torch.from_file(path, shared=False, size=wanted // output.element_size(),
                                   dtype=stored) if wanted else torch.empty(0, dtype=stored)
            self.compare(ours.to(output.dtype), output.flatten(), parts_of(output.numel(), whole),
                         reply)
        return reply

    def compare(self, ours, reference, parts, reply):
        at = 0
        for begin, length in parts:
            for start in range(0, length, 1 << 24):
                n = min(1 << 24, length - start)
                a = ours[at + start:at + start + n].to(DEVICE)
                b = reference[begin + start:begin + start + n]
                self.compare_part(a, b, reply)
            at += length

    def compare_part(self, a, b, reply):
        limit = reply["tolerance"]
        if b.is_floating_point():
            a, b = a.double(), b.double()
            same = ((a - b).abs() <= limit + limit * b.abs()) | (a == b)
            error = ((a - b).abs() / (1 + b.abs())).nan_to_num(0, 0, 0)
            reply["max_error"] = max(reply["max_error"], error.max().item() if len(a) else 0)
            reply["nan"] += int(b.isnan().sum())
        else:
            same = a == b
        reply["wrong"] += int((~same).sum())
        reply["compared"] += a.numel()
        reply["correct"] = reply["wrong"] == 0

    # --- Times -----------------------------------------------------------------------------------

    def time(self, mode="eager", precision="f32", trials=100):
        set_precision(precision)
        torch.manual_seed(0)
        call = self.model
        if mode != "eager":
            torch._dynamo.reset()
            call = torch.compile(self.model) if mode == "torch.compile" else \
                torch.compile(self.model, mode="max-autotune")
        start = time.perf_counter()
        with torch.no_grad():
            call(*self.inputs)
            synchronize()
            first = time.perf_counter() - start
            reply = self.measured(lambda: call(*self.inputs), trials)
        if mode != "eager":
            torch._dynamo.reset()
        return {"first_s": first, **reply}

    def warm(self, modes=("torch.compile",), precision="f32"):
        """Compiles, so that later processes find the kernels on the disk."""
        for mode in modes:
            self.time(mode, precision, trials=0)
        return {}

    def measured(self, call, trials):
        times = []
        for _ in range(3 if trials else 0):
            call()
        while trials and (len(times) < min(10, trials) or sum(times) < 1 and len(times) < trials):
            times.append(self.one(call))
        if not times:
            return {}
        times.sort()
        return {"ms": sum(times) / len(times) * 1e3, "median_ms": times[len(times) // 2] * 1e3,
                "best_ms": times[0] * 1e3, "trials": len(times)}

    def one(self, call):
        """Seconds of a call, the caches full of other data."""
        if DEVICE == "cpu":
            start = time.perf_counter()
            call()
            return time.perf_counter() - start
        if self.cache is None:
            self.cache = torch.ones(64 << 20, device=DEVICE)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        self.cache.sum()
        begin.record()
        call()
        end.record()
        torch.cuda.synchronize()
        return begin.elapsed_time(end) * 1e-3


def machine():
    if DEVICE == "cuda":
        return {"machine": torch.cuda.get_device_name(), "torch": torch.__version__}
    return {"machine": "CPU", "torch": torch.__version__}


def main():
    warnings.filterwarnings("ignore")
    # What libraries print goes to the errors: the answers are alone on the output.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    print(json.dumps(machine()), file=answers, flush=True)
    peer = Peer()
    for line in sys.stdin:
        request = json.loads(line)
        try:
            reply = getattr(peer, request.pop("do"))(**request)
        except Exception as error:
            traceback.print_exc()
            reply = {"error": f"{type(error).__name__}: {str(error)[:500]}"}
        print(json.dumps(reply), file=answers, flush=True)


if __name__ == "__main__":
    main()
