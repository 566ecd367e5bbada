// Clusters of blocks on Hopper: neighbouring tiles that multicast operands, and split-K slices that
// are added up through distributed shared memory.
#include <doctest/doctest.h>

#include <bit>
#include <cstring>

#include "codegen/heuristics/heuristics.h"
#include "codegen/kernel/access.h"
#include "codegen/lower.h"
#include "codegen/wgmma/pipeline.h"
#include "devices/cuda/cuda.h"
#include "devices/cuda/nvrtc.h"
#include "runtime/launch/launch.h"
#include "test/unit/kernel_truth.h"
#include "test/unit/matrix_kernel.h"
#include "tiny/rewrite/rewrite.h"

using namespace tiny;
using namespace tiny::test;

namespace {

struct Sizes {
  int64_t m, n, k;
};

Form form_of(const Sizes& s, bool turn_a, bool turn_b, DType dtype = kBF16) {
  return {turn_a ? Shape{s.k, s.m} : Shape{s.m, s.k}, turn_b ? Shape{s.n, s.k} : Shape{s.k, s.n},
          turn_a, turn_b, dtype};
}

// The kernel with tiles that begin with this option.
Lowered lowered(const Form& form, const std::string& option, const Target& target) {
  Node k = kernel(form);
  Choice choice;
  {
    Arena arena;
    ArenaScope scope(arena);
    choice.options = matrix_options(loops_of(k, target), target, options_from_text(option).at(0));
  }
  return lower(k, "product", target, {}, &choice);
}

// Its results on a device, the kernel's text changed: how many elements are wrong, or the error.
// `cores`: how many multiprocessors its blocks are to fill; 0: the device's.
std::string run(const std::string& name, const Form& form, const std::string& option,
                const std::string& from = "", const std::string& to = "", int cores = 0) {
  Device& device = find_device(name);
  Target target = device.target();
  if (cores) target.cores = cores;
  Lowered low = lowered(form, option, target);
  std::string& text = low.source.text;
  REQUIRE((text.find(") CLUSTER(") != std::string::npos) == (low.launch.cluster > 1));
  if (!from.empty()) {
    const size_t kernel = text.find("extern \"C\""), in_kernel = text.find(from, kernel);
    const size_t at = in_kernel != std::string::npos ? in_kernel : text.find(from);
    REQUIRE(at != std::string::npos);
    text.replace(at, from.size(), to);
  }
  const Tensor a = integers(form.a, form.dtype, "CPU"), b = integers(form.b, form.dtype, "CPU");
  const Tensor product = (form.turn_a ? a.t() : a).matmul(form.turn_b ? b.t() : b, kF32);
  const auto want = product.to_vector<float>();
  const size_t each = static_cast<size_t>(form.dtype.size());
  const size_t out = form.dtype.is_half() && !form.float_result ? 2 : 4;
  std::vector<std::vector<char>> bytes{std::vector<char>(want.size() * out)};
  for (const Tensor& x : {a, b}) {
    bytes.emplace_back(static_cast<size_t>(numel(x.shape())) * each);
    x.to_bytes(bytes.back().data());
  }
  std::vector<void*> args;
  for (const auto& data : bytes) {
    args.push_back(device.alloc(data.size()));
    device.upload(args.back(), data.data(), data.size());
  }
  std::string result;
  try {
    const auto program = device.load(device.compile(low.source), "product");
    device.launch(*program, low.launch, args);
    device.synchronize();
    device.download(bytes[0].data(), args[0], bytes[0].size());
    size_t wrong = 0;
    for (size_t i = 0; i < want.size(); ++i) {
      uint32_t bits = 0;
      std::memcpy(&bits, &bytes[0][i * out], out);
      wrong += (out == 2 ? bf16_to_f32(static_cast<uint16_t>(bits)) : std::bit_cast<float>(bits)) !=
               (out == 2 ? bf16_to_f32(f32_to_bf16(want[i])) : want[i]);
    }
    result = wrong ? cat("wrong: ", wrong) : "right";
  } catch (const DeviceError& error) {
    result = error.what();
  }
  for (size_t i = 0; i < args.size(); ++i) device.free(args[i], bytes[i].size());
  return result;
}

std::vector<std::string> devices() {
  std::vector<std::string> out{"EMU:CUDA:sm_90a"};
  if (cuda_available()) out.push_back("CUDA");
  return out;
}

constexpr const char* kShared = "matrix r0 r1 x 64 rows 64 down 2";
constexpr const char* kParts = "matrix r0 r1 x 64 rows 64 parts 2";

}  // namespace

TEST_CASE("clusters: blocks copy for each other or share a sum, and results are right") {
  const std::pair<const char*, Sizes> cases[] = {
      {kShared, {200, 72, 136}},
      {"matrix r0 r1 x 64 rows 64 wide across 2", {72, 200, 136}},
      {"matrix r0 r1 x 128 wide down 2", {200, 328, 192}},
      {"matrix r0 r1 x 128 rows 64 across 2", {136, 512, 128}},
      {kParts, {104, 72, 328}},
      {"matrix r0 r1 x 64 wide parts 4", {136, 96, 448}},
      {"matrix r0 r1 x 32 rows 64 deep parts 4", {64, 32, 192}},  // more parts than steps
  };
  for (const std::string& device : devices())
    for (const auto& [option, sizes] : cases)
      for (bool turn_a : {false, true})
        for (bool turn_b : {false, true}) {
          if (!turn_b && std::string(option).find("64 down") != std::string::npos) continue;
          if (turn_a && std::string(option).find("across") != std::string::npos) continue;
          if (!turn_b && std::string(option).find("x 32") != std::string::npos) continue;
          CAPTURE(device);
          CAPTURE(option);
          CAPTURE(turn_a);
          CAPTURE(turn_b);
          CHECK(run(device, form_of(sizes, turn_a, turn_b), option) == "right");
        }
}

TEST_CASE("clusters: tiles that fill no turn of all blocks are shared, as many as have blocks") {
  // Of tiles: those of whole turns, then some for pairs of the same blocks.
  const Sizes few{64 * 3, 64 * 2 - 8, 272};  // 6
  for (const std::string& device : devices())
    for (const int cores : {2, 4, 5, 6, 8, 132}) {
      CAPTURE(device);
      CAPTURE(cores);
      CHECK(run(device, form_of(few, false, true), kParts, "", "", cores) == "right");
      CHECK(run(device, form_of(few, true, false), "matrix r0 r1 x 64 rows 64 wide deep parts 2",
                "", "", cores) == "right");
    }
  const EnvOverride allow("ALLOW_TF32", "1");
  for (const std::string& device : devices()) {
    CAPTURE(device);
    const Sizes wide{128 * 3 - 4, 256 + 40, 200};
    CHECK(run(device, form_of(wide, false, false), "matrix r0 r1 x 256 wide parts 2", "", "", 4) ==
          "right");
    for (DType dtype : {kF8E4M3, kF32})
      CHECK(run(device, form_of(few, false, true, dtype), "matrix r0 r1 x 64 rows 64 deep parts 2",
                "", "", 4) == "right");
  }
}

TEST_CASE("clusters: what blocks copy for each other begins where the swizzle does") {
  Arena arena;
  ArenaScope scope(arena);
  Node loops = loops_of(kernel(form_of({256, 256, 128}, false, true)), hopper());
  for (const auto& [option, what] :
       {std::pair{"matrix r0 r1 x 8 rows 64 down 2", "multiples of 1024"},
        std::pair{"matrix r0 r1 x 16 rows 64 down 2", ""}}) {
    std::string why;
    CHECK(is_legal(loops, options_from_text(option).at(0), hopper(), &why) == (*what == 0));
    CHECK_MESSAGE(why.find(what) != std::string::npos, why);
  }
}

TEST_CASE("matrix: tiles of columns that are no power of two or shared out are right") {
  for (const std::string& device : devices())
    for (const char* option :
         {"matrix r0 r1 x 192", "matrix r0 r1 x 192 rows 64 wide deep",
          "matrix r0 r1 x 192 wide halved", "matrix r0 r1 x 96 wide", "matrix r0 r1 x 160 wide",
          "matrix r0 r1 x 224 wide parts 2", "matrix r0 r1 x 256 rows 64 wide halved"})
      for (bool turn_b : {false, true}) {
        CAPTURE(device);
        CAPTURE(option);
        CAPTURE(turn_b);
        CHECK(run(device, form_of({200, 392, 136}, false, turn_b), option) == "right");
      }
}

TEST_CASE(
    "clusters: the emulator finds faults that are planted into what blocks say to each other") {
  const auto found = [](const char* option, const char* from, const char* to, const char* how) {
    const std::string result =
        run("EMU:CUDA:sm_90a", form_of({256, 64, 1024}, false, true), option, from, to);
    CHECK_MESSAGE(result.find(how) != std::string::npos, std::string(from), ": ", result);
  };
  found(kShared, "fence_cluster();", "", "a block of its cluster that may not have begun");
  found(kShared, "  cluster_barrier();\n}", "}", "may still reach into it");
  found(kShared, "3 << rank", "1 << rank", "waits for ever at");
  found(kShared, "thread_x() % 128 < 2", "thread_x() % 128 < 1", "waits for ever at");
  found(kShared, "rank % 2 * 1 + 0) * 4096", "rank % 2 * 0 + 0) * 4096", "wrong: ");
  found(kParts, "cluster_barrier();  // all stages have been read", "",
        "copies or products may be under way");
  found(kParts, "  }\n  cluster_barrier();\n  if (of", "  }\n  if (of", "before all met");
  found(kParts, "(rank + 1) * 16 / 2", "16 / 2", "waits for ever at");
  found(kParts, "whole + block_x() / 2", "whole + block_x() % 2", "wrong: ");
}

TEST_CASE("clusters: options are printed and read, and what is not legal says why") {
  for (const char* text : {kShared, kParts, "matrix r0 r1 x 256 wide down 2 across 2",
                           "matrix r0 r1 x 128 rows 256 halved deep across 4"})
    CHECK(to_text(options_from_text(text)) == text);
  Arena arena;
  ArenaScope scope(arena);
  const auto why = [](const Form& form, const char* option) {
    std::string text;
    is_legal(loops_of(kernel(form), hopper()), options_from_text(option)[0], hopper(), &text);
    return text;
  };
  const Form even = form_of({256, 256, 256}, false, true);
  CHECK(why(even, kShared).empty());
  CHECK(why(even, "matrix r0 r1 x 64 rows 64 down 2 across 2") ==
        "clusters are two tiles, or 2, 4 or 8 slices of split-K");
  CHECK(why(even, "matrix r0 r1 x 64 rows 64 down 2 parts 2") ==
        "clusters are two tiles, or 2, 4 or 8 slices of split-K");
  CHECK(why(even, "matrix r0 r1 x 64 rows 64 parts 3") ==
        "clusters are two tiles, or 2, 4 or 8 slices of split-K");
  CHECK(why(even, "matrix r0 r1 x 128 wide parts 2") ==
        "what other blocks add needs registers too");
  CHECK(why(even, "matrix r0 r1 x 84") ==
        "a tile has 8, 16 or a multiple of 32 columns, of 16-bit floats any of 8, at most 256");
  CHECK(why(form_of({192, 256, 256}, false, true), kShared) ==
        "clusters would have tiles beyond the last");
  CHECK(why(form_of({256, 256, 256}, false, false), kShared) ==
        "the blocks of a cluster copy as many boxes each");
}

TEST_CASE("clusters: tiles that lie otherwise are not copied for each other") {
  Node k = kernel(form_of({512, 512, 512}, false, true));
  Choice choice = {{}, false};
  {
    Arena arena;
    ArenaScope scope(arena);
    choice.options = matrix_options(loops_of(k, hopper()), hopper(), options_from_text(kShared)[0]);
  }
  CHECK_NOTHROW(lower(k, "product", hopper(), {}, &choice));
  // Rows and columns of tiles change places.
  const auto last_merge = [&] {
    size_t at = choice.options.size();
    while (choice.options[--at].kind != OptKind::Merge) {
    }
    return at;
  }();
  Choice other = choice;
  for (size_t i = 0; i < last_merge; ++i)
    if (other.options[i].kind == OptKind::Merge && other.options[i].axis == 0) {
      std::swap(other.options[i], other.options[last_merge]);
      break;
    }
  std::string message;
  try {
    lower(k, "product", hopper(), {}, &other);
  } catch (const Error& e) {
    message = e.what();
  }
  CHECK(message.find("would copy for others what these do not read") != std::string::npos);
}

TEST_CASE("clusters: rings are proved, kernels compile without spills, grids are whole clusters") {
  const Form form = form_of({2176, 2048, 1024}, false, true);
  for (const char* option :
       {"matrix r0 r1 x 256 wide", "matrix r0 r1 x 256 wide across 2", kShared, kParts,
        "matrix r0 r1 x 128 wide deep parts 8", "matrix r0 r1 x 256 wide parts 2"}) {
    CAPTURE(option);
    const Lowered low = lowered(form, option, hopper());
    const MatrixTile tile(all_of(low.machine, Op::Matrix).at(0));
    CHECK(low.launch.cluster == tile.cluster());
    CHECK(low.launch.grid[0] % tile.cluster() == 0);
    if (tile.split_k <= 2) CHECK(low.launch.grid[0] <= hopper().cores * tile.blocks());
    // Sums are not read before the products are done, whatever the compiler moves.
    CHECK(low.source.text.find("products_wait<0>();\n    UNROLL\n") != std::string::npos);
    CHECK(low.source.text.find("settle(acc[") != std::string::npos);
    const Finding f = prove_ring(ring_of(tile));
    CHECK_MESSAGE(f.verdict == Verdict::Proved, f.text);
    if (!nvrtc_available()) continue;
    std::string log;
    CHECK(!compile_cuda(low.source.text, "sm_90a", &log).empty());
    CHECK(cuda_resources(log).spill_bytes == 0);
  }
  // Whoever fills must hear of the readers of both blocks.
  Ring ring =
      ring_of(MatrixTile(all_of(lowered(form, kShared, hopper()).machine, Op::Matrix).at(0)));
  CHECK(ring.empty_count == 2);
  ring.empty_count = 1;
  CHECK(prove_ring(ring).text.find("is filled before") != std::string::npos);
}
