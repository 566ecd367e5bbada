#!/usr/bin/env python3
"""Writes KernelBench's problems as C++ programs on tiny's public API.

    python3 extra/kernelbench/translate.py [--problems FOLDER] [--levels 1,2] [--only 1/23,2/4]
        [--small] --to build/kernelbench/source

One file for each problem, the constants that modules compute in data/, and problems.json: what was
drawn, shapes of outputs, and why a problem has no program. Needs PyTorch, 1.13 or later, no GPU.
--small: each problem as large as a CPU computes at once, by smaller sizes at its file's top."""
import argparse
import collections
import hashlib
import json
import os
import re
import sys
import traceback
import warnings

import torch

import problems
from draws import listing
from record import Recorder, Unsupported, tensors_in

SMALL_ELEMENTS, SMALL_FLOPS = 1 << 21, 4e9


def inputs_of(value):
    return list(value) if isinstance(value, (list, tuple)) else [value]


def record(names, write_file):
    """Runs a problem's functions and gives the recording and its outputs."""
    recorder = Recorder(write_file)
    with torch.no_grad(), recorder:
        model = names["Model"](*names["get_init_inputs"]())
        for title, tensor in [*model.named_parameters(), *model.named_buffers()]:
            recorder.titles[id(tensor)] = title
            recorder.kept.append(tensor)
        inputs = inputs_of(names["get_inputs"]())
        for i, tensor in enumerate(tensors_in(inputs)):
            recorder.titles[id(tensor)] = f"input{i}" if i else "input"
            recorder.kept.append(tensor)
        recorder.section = "forward"
        outputs = list(tensors_in(model(*inputs)))
        refs = [recorder.ref(t) for t in outputs]
    return recorder, refs


def needed(statements, wanted):
    """Those that outputs or effects come from, in order."""
    kept = []
    for s in reversed(statements):
        if s.effect is True or s.name in wanted or (s.effect and s.effect in wanted):
            kept.append(s)
            wanted.update(u if isinstance(u, str) else u.name for u in s.uses)
    return kept[::-1]


def text_of(file, recorder, refs):
    forward = needed(recorder.sections["forward"],
                     {r.value.name for r in refs if r.value.section == "forward"})
    words = set(re.findall(r"\w+", " ".join([*(s.text for s in forward), *refs])))
    given = [v for v in recorder.given if v.title in words]
    make = needed(recorder.sections["make"], {v.name for v in given})
    lines = [f"// Written by extra/kernelbench/translate.py from {os.path.basename(file.path)}.",
             '#include "extra/kernelbench/problem.h"', "", "namespace tiny::kernelbench {",
             "namespace {", "", "Tensors make() {"]
    lines += [f"  {s.text}" for s in make]
    lines += [f"  return {{{', '.join(v.name for v in given)}}};", "}", "",
              "Tensors forward(Tensors& given) {"]
    lines += [f"  Tensor& {v.title} = given[{i}];" for i, v in enumerate(given)]
    lines += [f"  {s.text}" for s in forward]
    lines += [f"  return {{{', '.join(refs)}}};", "}", "",
              f"const Register kProblem({{{file.level}, {file.number}, \"{file.name}\", make, "
              "forward});",
              "", "}  // namespace", "}  // namespace tiny::kernelbench", ""]
    return "\n".join(lines)


Size = collections.namedtuple("Size", "factor names")


def sizes(small):
    """Ways to make a problem smaller, the largest first."""
    yield Size(1, "any")
    if small:
        for factor in (2, 4, 8, 16, 32, 64, 128, 256):
            for names in ("any", "room", "batch"):
                yield Size(factor, names)


def load(file, size):
    return problems.load(file, size.factor, getattr(problems, f"is_{size.names}"))


def translate(file, size, folder):
    data = os.path.join(folder, "data")

    def write_file(content):
        name = hashlib.sha256(content).hexdigest()[:16]
        os.makedirs(data, exist_ok=True)
        with open(os.path.join(data, name), "wb") as f:
            f.write(content)
        return name
    recorder, refs = record(load(file, size), write_file)
    entry = {"level": file.level, "number": file.number, "name": file.name,
             "size": list(size), "draws": listing(recorder.draws),
             "outputs": [[list(r.shape), str(r.dtype)] for r in refs],
             "operations": recorder.operations, "flops": recorder.flops,
             "elements": recorder.elements}
    return entry, text_of(file, recorder, refs)


def translate_any(file, folder, small):
    """The first size that works and is small enough; else the smallest one that works."""
    best, error = None, None
    for size in sizes(small):
        try:
            entry, text = translate(file, size, folder)
        except Exception as e:
            error = error or e
            if size.factor == 1 and isinstance(e, (Unsupported, NotImplementedError)):
                break
            continue
        cost = max(entry["elements"] / SMALL_ELEMENTS, entry["flops"] / SMALL_FLOPS)
        if best is None or cost < best[0]:
            best = (cost, entry, text)
        if cost <= 1 or not small:
            break
    if best is None:
        raise error
    return best[1], best[2]


def write(path, text):
    """Leaves a file alone that has this text already: nothing is built again for it."""
    try:
        with open(path, encoding="utf-8") as f:
            if f.read() == text:
                return
    except FileNotFoundError:
        pass
    with open(path, "w", encoding="utf-8") as f:
        f.write(text)


def numbers(text):
    return [int(v) for v in text.split(",")] if text else None


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", default=problems.DEFAULT_FOLDER)
    parser.add_argument("--levels")
    parser.add_argument("--only")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--to", required=True)
    parser.add_argument("--trace", action="store_true", help="prints where a translation failed")
    args = parser.parse_args()
    warnings.filterwarnings("ignore")
    os.makedirs(args.to, exist_ok=True)
    files = problems.find(args.problems, numbers(args.levels),
                          args.only.split(",") if args.only else None)
    if not files:
        sys.exit(f"no problems in {args.problems}")
    listed, failed = {}, 0
    for file in files:
        path = os.path.join(args.to, file.stem + ".cpp")
        try:
            listed[file.key], text = translate_any(file, args.to, args.small)
            write(path, text)
        except Exception as error:
            failed += 1
            print(f"{file.key} {file.name}: {type(error).__name__}: {str(error)[:300]}")
            if args.trace:
                traceback.print_exc()
            listed[file.key] = {"level": file.level, "number": file.number, "name": file.name,
                                "error": f"{type(error).__name__}: {error}"}
            if os.path.exists(path):
                os.remove(path)
    with open(os.path.join(args.to, "problems.json"), "w", encoding="utf-8") as f:
        json.dump({"torch": torch.__version__, "problems": listed}, f, indent=1)
    print(f"{len(files) - failed} of {len(files)} problems translated")


if __name__ == "__main__":
    main()
