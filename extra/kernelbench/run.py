#!/usr/bin/env python3
"""Runs KernelBench's problems as tiny's programs and with PyTorch, one after the other, and prints
how many are correct and how much faster they are.

    make kernelbench                                     all of it, also what is to be built
    python3 extra/kernelbench/run.py --program build/release/kernelbench [--problems FOLDER]
        [--levels 1,2] [--only 1/23,2/4] [--peers eager,torch.compile,max-autotune]
        [--precisions f32,default,tf32] [--seconds N] [--limit N] [--jobs N] [--warm N]
        [--results FILE | --append] [--retry] [--table]

Each thing that is measured is a line of the results, and what is there already is not measured
again: after --seconds the rest is left to the next call. --table prints the results alone. --jobs:
processes that compile our kernels into the cache on the disk before anything is timed; --warm: the
same with torch.compile. --limit: seconds for each step of a problem."""
import argparse
import collections
import concurrent.futures
import datetime
import json
import math
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
import time

import problems

HERE = os.path.dirname(os.path.abspath(__file__))
OURS = ("compile", "check", "time")


class Worker:
    """A process of peer.py. One that does not answer in time, or is gone, is started again."""

    def __init__(self, log):
        self.log, self.process, self.machine = log, None, None
        self.loaded = None

    def start(self):
        self.process = subprocess.Popen([sys.executable, os.path.join(HERE, "peer.py")],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=self.log, text=True)
        self.lines, self.loaded = queue.Queue(), None
        threading.Thread(target=self.read, args=(self.process, self.lines), daemon=True).start()
        self.machine = self.answer(300)

    def read(self, process, lines):
        for line in process.stdout:
            lines.put(line)
        lines.put(None)

    def answer(self, limit):
        try:
            line = self.lines.get(timeout=limit)
        except queue.Empty:
            self.stop()
            return {"error": f"no answer in {limit} s"}
        if line is None:
            self.stop()
            return {"error": "PyTorch's process ended"}
        return json.loads(line)

    def ask(self, limit, **request):
        if self.process is None:
            self.start()
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
        except (BrokenPipeError, AttributeError):
            self.stop()
            return {"error": "PyTorch's process ended"}
        return self.answer(limit)

    def load(self, limit, file, size):
        if self.loaded == file.key and self.process:
            return {}
        reply = self.ask(limit, do="load", path=file.path, factor=size[0], names=size[1])
        self.loaded = None if "error" in reply else file.key
        return reply

    def stop(self):
        if self.process:
            self.process.kill()
            self.process.wait()
        self.process = None


class Results:
    """Lines of JSON, the last one of a kind counts: what was measured of which problem at which
    precision."""

    def __init__(self, path, common, retry=False):
        self.path, self.common, self.last, self.retry = path, common, {}, retry
        if os.path.exists(path):
            with open(path, encoding="utf-8") as f:
                for line in f:
                    row = json.loads(line)
                    self.last[row["problem"], row["precision"], row["what"]] = row

    def get(self, key, precision, what):
        return self.last.get((key, precision, what))

    def has(self, key, precision, what):
        """What we measured at another commit is measured again, what PyTorch did is not."""
        row = self.get(key, precision, what)
        if row is not None and "error" in row and self.retry:
            return False
        return row is not None and (what not in OURS or row["commit"] == self.common["commit"])

    def add(self, key, precision, what, values):
        row = {**self.common, "problem": key, "precision": precision, "what": what,
               **{k: round(v, 6) if isinstance(v, float) else v for k, v in values.items()}}
        self.last[key, precision, what] = row
        with open(self.path, "a", encoding="utf-8") as f:
            f.write(json.dumps(row) + "\n")


def output_of(command):
    try:
        return subprocess.run(command, capture_output=True, text=True, cwd=HERE).stdout.strip()
    except OSError:
        return ""


def machine():
    name = output_of(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]).split("\n")[0]
    if name:
        return name
    with open("/proc/cpuinfo", encoding="utf-8") as f:
        return next((line.split(":", 1)[1].strip() for line in f if line.startswith("model name")),
                    "CPU")


class Run:
    def __init__(self, args):
        self.args = args
        self.end = time.monotonic() + args.seconds
        with open(os.path.join(args.program, "problems.json"), encoding="utf-8") as f:
            self.listed = json.load(f)["problems"]
        self.files = [f for f in problems.find(args.problems, args.levels, args.only)
                      if f.key in self.listed]
        commit = args.commit or output_of(["git", "rev-parse", "--short", "HEAD"]) or "unknown"
        self.results = Results(args.results, {"date": datetime.date.today().isoformat(),
                                              "commit": commit, "machine": machine()}, args.retry)
        self.log = open(args.log, "a", encoding="utf-8")
        self.worker = Worker(self.log)

    def left(self):
        return self.end - time.monotonic()

    def size(self, file):
        return self.listed[file.key].get("size", [1, "any"])

    # --- Ours ------------------------------------------------------------------------------------

    def ours(self, file, precision, *what, limit=None):
        """Runs our program; the JSON lines that it printed, or what went wrong."""
        if what[0] != "--compile" and self.worker.loaded:  # its memory is needed
            self.worker.ask(60, do="release")
            self.worker.loaded = None
        command = [os.path.join(self.args.program, "kernelbench"), "--problem", file.key, *what]
        limit = limit or self.args.limit
        environment = {**os.environ, "ALLOW_TF32": "1" if precision == "tf32" else "0"}
        try:
            out = subprocess.run(command, capture_output=True, text=True, timeout=limit,
                                 env=environment)
        except subprocess.TimeoutExpired:
            return [], f"not done in {limit} s"
        self.log.write(out.stderr)
        lines = [json.loads(line) for line in out.stdout.splitlines() if line.startswith("{")]
        return lines, "" if out.returncode == 0 else (out.stderr.strip()[-500:] or
                                                      f"ended with {out.returncode}")

    def compile_all(self, precision):
        wanted = [f for f in self.files if "error" not in self.listed[f.key] and
                  not self.results.has(f.key, precision, "compile")]

        def compile_one(file):
            if self.left() < 20:
                return
            lines, error = self.ours(file, precision, "--compile",
                                     limit=min(self.args.limit, self.left() - 10))
            values = lines[0] if lines else {"error": error}
            self.results.add(file.key, precision, "compile", values)
            if error:
                print(f"{file.key} {file.name}: compile: {error.splitlines()[-1]}", flush=True)
        start = time.monotonic()
        with concurrent.futures.ThreadPoolExecutor(self.args.jobs) as pool:
            list(pool.map(compile_one, wanted))
        if wanted:
            seconds = time.monotonic() - start
            print(f"{len(wanted)} problems compiled in {seconds:.0f} s", flush=True)

    def check(self, file, precision):
        with tempfile.TemporaryDirectory(dir=self.args.scratch) as folder:
            prefix = os.path.join(folder, "out")
            lines, error = self.ours(file, precision, "--check", prefix, "--whole",
                                     str(self.args.whole))
            if error:
                return {"error": error, "correct": False}
            reply = self.worker.load(self.args.limit, file, self.size(file))
            if "error" not in reply:
                reply = self.worker.ask(self.args.limit, do="check", files=prefix,
                                        whole=self.args.whole,
                                        draws=self.listed[file.key]["draws"], precision=precision)
            return {**lines[0], "correct": False, **reply}

    # --- Both ------------------------------------------------------------------------------------

    def step(self, file, precision, what):
        if what == "check":
            values = self.check(file, precision)
        elif what == "time":
            lines, error = self.ours(file, precision, "--time")
            values = {"error": error} if error else lines[0]
        else:
            values = self.worker.load(self.args.limit, file, self.size(file))
            if "error" not in values:
                values = self.worker.ask(self.args.limit, do="time", mode=what, precision=precision)
        self.results.add(file.key, precision, what, values)
        return values

    def steps(self, file, precision):
        if "error" in self.listed[file.key]:
            return list(self.args.peers)
        return (["time", "check"] if not self.args.no_ours else []) + list(self.args.peers)

    def problem(self, file, precision):
        """False where the time is up."""
        said = []
        for what in self.steps(file, precision):
            if self.results.has(file.key, precision, what):
                continue
            if self.left() < 15:
                return False
            values = self.step(file, precision, what)
            said.append(f"{what} " + (values.get("error", "").splitlines() or [""])[-1][:160]
                        if "error" in values else
                        f"{what} {values['ms']:.4f} ms" if "ms" in values else
                        f"{'correct' if values.get('correct') else 'WRONG'}"
                        f" (error {values.get('max_error', 0):.1e}{in_double(values)})")
        if said:
            print(f"{file.key} {file.name} {precision}: {'; '.join(said)}", flush=True)
        return True

    def warm(self, precision):
        wanted = [f for f in self.files if not self.results.has(f.key, precision, "torch.compile")]
        work = queue.Queue()
        for file in wanted:
            work.put(file)

        def serve():
            worker = Worker(self.log)
            while self.left() > 60:
                try:
                    file = work.get_nowait()
                except queue.Empty:
                    break
                if "error" not in worker.load(self.args.limit, file, self.size(file)):
                    worker.ask(min(self.args.limit, self.left()), do="warm", precision=precision)
            worker.stop()
        threads = [threading.Thread(target=serve) for _ in range(self.args.warm)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()

    def run(self):
        for precision in self.args.precisions:
            if not self.args.no_ours:
                self.compile_all(precision)
            if self.args.warm and "torch.compile" in self.args.peers:
                self.warm(precision)
            for file in self.files:
                if not self.problem(file, precision):
                    print("the time is up: call again for the rest")
                    self.worker.stop()
                    return
        self.worker.stop()


# --- The table -----------------------------------------------------------------------------------


def in_double(values):
    if "torch_error_f64" not in values:
        return ""
    return (f"; from f64: ours {values['max_error_f64']:.1e}, "
            f"PyTorch's {values['torch_error_f64']:.1e}")


def geometric(values):
    return math.exp(sum(map(math.log, values)) / len(values)) if values else float("nan")


def table(results, listed, files, precisions, peers):
    """Of each level: how many there are, are translated, compile, are correct; against each peer
    the geometric mean of speedups of those that are correct, and fast_p: the share of all that are
    correct and more than p times as fast."""
    for precision in precisions:
        levels = collections.defaultdict(list)
        for file in files:
            levels[file.level].append(file)
        print(f"\nprecision {precision}")
        print(f"{'level':>5} {'of':>4} {'translated':>10} {'compiled':>8} {'correct':>7}  "
              f"{'peer':14} {'timed':>5} {'speedup':>8} {'fast_0':>7} {'fast_1':>7} "
              f"{'fast_1.5':>8} {'fast_2':>7}")
        for level, members in sorted(levels.items()):
            row(results, listed, level, members, precision, peers)


def row(results, listed, level, members, precision, peers):
    def ok(file, what):
        found = results.get(file.key, precision, what)
        return found is not None and "error" not in found
    translated = [f for f in members if "error" not in listed[f.key]]
    compiled = [f for f in translated if ok(f, "time") or ok(f, "compile")]
    correct = [f for f in compiled if (results.get(f.key, precision, "check") or {}).get("correct")]
    begin = f"{level:5} {len(members):4} {len(translated):10} {len(compiled):8} {len(correct):7}"
    for peer in peers or ["none"]:
        both = [f for f in members if ok(f, "time") and ok(f, peer)]
        ratio = {f.key: results.get(f.key, precision, peer)["ms"] /
                 results.get(f.key, precision, "time")["ms"] for f in both if f in correct}
        share = [sum(r > p for r in ratio.values()) / len(members) for p in (1, 1.5, 2)]
        print(f"{begin}  {peer:14} {len(both):5} {geometric(list(ratio.values())):8.3f} "
              f"{len(correct) / len(members):7.2f} {share[0]:7.2f} {share[1]:8.2f} {share[2]:7.2f}")


def scratch_folder():
    """Memory, where there is enough of it."""
    memory = "/dev/shm"
    if os.path.isdir(memory) and shutil.disk_usage(memory).free > 8 << 30:
        return memory
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    split = lambda text: [part for part in text.split(",") if part]  # noqa: E731
    parser.add_argument("--program", required=True, help="the folder of the program")
    parser.add_argument("--problems", default=problems.DEFAULT_FOLDER)
    parser.add_argument("--levels", type=lambda t: [int(v) for v in split(t)])
    parser.add_argument("--only", type=split)
    parser.add_argument("--peers", type=split, default=["eager", "torch.compile"])
    parser.add_argument("--precisions", type=split, default=["f32"])
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--limit", type=float, default=180)
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 2) // 2))
    parser.add_argument("--warm", type=int, default=0)
    parser.add_argument("--no-ours", action="store_true")
    parser.add_argument("--results")
    parser.add_argument("--append", action="store_true")
    parser.add_argument("--whole", type=int, default=1 << 26,
                        help="elements of an output that are compared; of more 64 parts of it")
    parser.add_argument("--scratch", help="a folder for outputs: some have gigabytes")
    parser.add_argument("--commit")
    parser.add_argument("--log", default=os.devnull)
    parser.add_argument("--retry", action="store_true",
                        help="does again what ended in an error")
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args()
    if args.append:
        args.results = os.path.join(problems.ROOT, "extra", "bench", "results", "kernelbench.jsonl")
    args.results = args.results or os.path.join(args.program, "results.jsonl")
    args.scratch = args.scratch or scratch_folder()
    run = Run(args)
    if not args.table:
        run.run()
    table(run.results, run.listed, run.files, args.precisions, args.peers)


if __name__ == "__main__":
    main()
