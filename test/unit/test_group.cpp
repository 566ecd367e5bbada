// Threads of a block that combine what they have, as neighbours and with others between them: right
// in every shape of a block, on every emulated GPU.
#include <doctest/doctest.h>

#include "codegen/kernel/option.h"
#include "codegen/lower.h"
#include "codegen/options/launchable.h"
#include "codegen/options/thread_group.h"
#include "codegen/proof/prove.h"
#include "runtime/device/buffer.h"
#include "runtime/device/device.h"
#include "runtime/schedule/normalize.h"
#include "test/devices.h"
#include "tiny/rewrite/algebra.h"
#include "tiny/tiny.h"

using namespace tiny;

namespace {

constexpr const char* kGpus[] = {"EMU:CUDA:sm_90a", "EMU:HIP:gfx942", "EMU:HIP:gfx1201"};

Node loop(int64_t n, int id, RangeKind kind) {
  return make(Op::Range, kIndex, {index(n)}, RangeArg{id, kind});
}

Node buffer(int slot, int64_t size, DType t) {
  const int64_t arg[] = {slot, size};
  return make(Op::Param, t, {}, Ints(arg));
}

// out[p, c] = the combination of in[p, r, c] over r.
struct Columns {
  int64_t planes, rows, columns;
  Op op;
  DType dtype;

  Node kernel() const {
    const Node p = loop(planes, 0, RangeKind::Loop), c = loop(columns, 1, RangeKind::Loop);
    const Node r = loop(rows, 2, RangeKind::Reduce);
    const Node at = index_add(index_mul(index_add(index_mul(p, rows), r), columns), c);
    const Node x = make(Op::Load, dtype, {buffer(1, planes * rows * columns, dtype), at});
    const Node sum = make(Op::Reduce, dtype, {x, r}, OpArg{op});
    const Node to = index_add(index_mul(p, columns), c);
    return make(Op::Sink, kVoid,
                {make(Op::Store, kVoid, {buffer(0, planes * columns, dtype), to, sum})});
  }

  // Small integers: exact in any order.
  void check_with(const std::string& gpu, const std::string& options) const {
    INFO(gpu, ": ", options);
    Device& device = find_device(gpu);
    const Choice choice{options_from_text(options), false};
    const Lowered low = lower(kernel(), "columns", device.target(), nullptr, &choice);
    for (const Finding& f : prove_groups(low.machine, device.target().warp))
      REQUIRE(f.verdict == Verdict::Proved);
    std::vector<int32_t> in(static_cast<size_t>(planes * rows * columns));
    for (size_t i = 0; i < in.size(); ++i) in[i] = static_cast<int32_t>(i * 7919 % 1009) % 13 - 6;
    const Tensor x = Tensor::from(in, {planes * rows * columns}, gpu).to(dtype).realize();
    const Tensor y = Tensor::zeros({planes * columns}).to(gpu).to(dtype).contiguous().realize();
    const auto program = device.load(device.compile(low.source), low.source.entry);
    const auto data = [](const Tensor& tensor) {
      const Node root = tensor.node();
      return normalize({&root, 1}).buffers.at(0)->arg<BufferArg>().buffer->data();
    };
    device.launch(*program, low.launch, {data(y), data(x)});
    device.synchronize();
    const auto got = y.to(kI32).to_vector<int32_t>();
    for (int64_t p = 0; p < planes; ++p)
      for (int64_t c = 0; c < columns; ++c) {
        int32_t want = op == Op::Add ? 0 : INT32_MIN;
        for (int64_t r = 0; r < rows; ++r) {
          const int32_t v = in[static_cast<size_t>((p * rows + r) * columns + c)];
          want = op == Op::Add ? want + v : std::max(want, v);
        }
        INFO("plane ", p, ", column ", c);
        REQUIRE(got[static_cast<size_t>(p * columns + c)] == want);
      }
  }
};

}  // namespace

TEST_CASE("threads combine with those of other groups between them") {
  for (const std::string gpu : kGpus)
    for (const auto& [t, o] : {std::pair{kF32, Op::Add}, {kF64, Op::Max}, {kI64, Op::Add}}) {
      const Columns c{3, 384, 64, o, t};
      // within a warp; over several, with fewer and with more between them than a warp has
      c.check_with(gpu,
                   "split r1 8, bind r3 thread, split r2 4, bind r4 thread, bind r0 block, "
                   "bind r1 block, order r0 r1 r4 r3 r2");
      c.check_with(gpu,
                   "split r1 8, bind r3 thread, split r2 64, bind r4 thread, bind r0 block, "
                   "bind r1 block, order r0 r1 r4 r3 r2");
      c.check_with(gpu,
                   "split r1 4, bind r3 vector, bind r1 thread, split r2 32, bind r4 thread, "
                   "bind r0 block, order r0 r4 r1 r2 r3");
      c.check_with(gpu,
                   "bind r1 thread, split r2 8, bind r3 thread, bind r0 block, "
                   "order r0 r3 r1 r2");
      // 6 warps of 32 threads: three parts that are no power of two
      if (gpu == kGpus[0])
        c.check_with(gpu,
                     "split r1 2, bind r3 thread, split r2 96, bind r4 thread, bind r0 block, "
                     "bind r1 block, order r0 r1 r4 r3 r2");
      // again and again in a loop, and with a range of threads on either side
      c.check_with(gpu,
                   "split r1 16, bind r3 thread, split r2 16, bind r4 thread, bind r1 block, "
                   "order r1 r4 r3 r0 r2");
      c.check_with(gpu,
                   "split r1 2, bind r3 thread, split r1 2, bind r4 thread, split r2 64, "
                   "bind r5 thread, bind r0 block, bind r1 block, order r0 r1 r4 r5 r3 r2");
    }
}

TEST_CASE("whole warps combine, however many there are: of 32 threads or of 64, as the GPU has") {
  const Columns c{4, 448, 2, Op::Add, kF32};
  const char* seven =
      "split r2 224, bind r3 thread, bind r0 block, bind r1 block, order r0 r1 r3 r2";
  c.check_with("EMU:CUDA:sm_90a", seven);
  c.check_with("EMU:HIP:gfx1201", seven);
  const Target gpu = find_device("EMU:CUDA:sm_90a").target();
  const Choice choice{options_from_text(seven), false};
  const Lowered low = lower(c.kernel(), "columns", gpu, nullptr, &choice);
  ProofSettings settings;
  read_kernel(c.kernel(), gpu, settings);
  CHECK(prove(low.machine, settings).verdict == Verdict::Proved);
  settings.warp = 64;
  const Proof p = prove(low.machine, settings);
  CHECK(p.verdict == Verdict::Wrong);
  CHECK(p.text.find("threads that combine 224 of 224: not whole warps") != std::string::npos);
}

TEST_CASE("threads that cannot combine are not launched") {
  Arena arena;
  ArenaScope scope(arena);
  const Target gpu = gpu_target("sm_90a");
  const auto problem = [&](const Columns& c, const char* options) {
    const Node kernel = c.kernel();
    return launch_problem(kernel, apply(kernel, options_from_text(options), gpu), gpu);
  };
  const Columns c{4, 384, 96, Op::Add, kF32};
  CHECK(problem(c,
                "split r1 8, bind r3 thread, split r2 64, bind r4 thread, bind r1 block, "
                "order r0 r1 r4 r3 r2") == "");
  CHECK(problem(c,
                "split r1 3, bind r3 thread, split r2 64, bind r4 thread, bind r1 block, "
                "order r0 r1 r4 r3 r2") ==
        "threads that combine 64 of 192: 3 of other groups between them");
  CHECK(problem(c,
                "split r2 4, bind r3 thread, split r2 8, bind r4 thread, split r1 2, "
                "bind r5 thread, order r0 r1 r3 r5 r4 r2") ==
        "threads that combine r2 lie apart: r3 runs between them");
  CHECK(problem(Columns{32, 384, 96, Op::Add, kF32},
                "split r1 32, bind r3 thread, split r2 32, bind r4 thread, split r0 16, "
                "bind r5 vector, bind r0 block, bind r1 block, order r0 r1 r4 r3 r2 r5") ==
        "threads combine by way of 65536 bytes of shared memory");
}

TEST_CASE("values of threads that lie apart are proved to come together") {
  for (const int warp : {32, 64})
    for (const int apart : {2, 8, 32, 64, 128})
      for (const int width : {2, 4, 32, 64, 96, 128})
        for (const bool in_loop : {false, true}) {
          ThreadGroup g{.threads = 2 * width * apart, .width = width, .warp = warp, .apart = apart};
          const int span = width * apart;
          if (g.threads > 2048 || (span > warp && span % warp) || (span < warp && warp % span))
            continue;
          g.turns = in_loop && span > warp;
          INFO(width, " at ", apart, " of warps of ", warp);
          const Finding f = prove_group(g, in_loop);
          CHECK_MESSAGE(f.verdict == Verdict::Proved, f.text);
        }
  const Finding f = prove_group({.threads = 256, .width = 32, .apart = 8}, true);
  CHECK(f.verdict == Verdict::Wrong);
  CHECK(f.text ==
        "threads that combine 32 of 256: what is read may be written for the next iteration");
}
