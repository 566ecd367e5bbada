// Products on matrix units: the plan and the text, the values on the emulator and on a GPU where
// there is one.
#include <doctest/doctest.h>

#include <cstring>
#include <set>

#include "codegen/kernel/access.h"
#include "codegen/lower.h"
#include "codegen/wgmma/pipeline.h"
#include "devices/cuda/cuda.h"
#include "devices/cuda/nvrtc.h"
#include "runtime/launch/launch.h"
#include "runtime/realize/realize.h"
#include "runtime/schedule/schedule.h"
#include "test/unit/kernel_truth.h"
#include "test/unit/matrix_kernel.h"
#include "tiny/rewrite/rewrite.h"
#include "tiny/tiny.h"

using namespace tiny;
using namespace tiny::test;

TEST_CASE("matrix: GEMMs of 16-bit floats are put on wgmma, tiles fill the chip") {
  for (const auto& [size, columns] :
       {std::pair<int64_t, int>{512, 32}, {1024, 128}, {2048, 256}, {8192, 256}}) {
    const Lowered low = lower(kernel({{size, size}, {size, size}}), "product", hopper());
    REQUIRE(!low.options.empty());
    CHECK(low.options[0].kind == OptKind::Matrix);
    CHECK(low.options[0].tile.columns == columns);
    CHECK(low.launch.block[0] == (columns == 256 ? 384 : 160));
    CHECK(low.launch.grid[0] <= (columns == 256 ? 132 : 264));
    CHECK(low.launch.maps.size() == 2);
    CHECK(low.launch.shared_bytes <= hopper().shared_bytes);
    // Of 128 tiles none shares a multiprocessor: it has as many stages as there is room for.
    CHECK(to_text(low.options[0]).ends_with("deep") == (columns < 256));
    CHECK(low.launch.shared_bytes > hopper().shared_bytes / (columns == 32 ? 3 : 2));
  }
  // Tiles of 256 columns would be 72, for 132 multiprocessors.
  const Lowered narrower = lower(kernel({{1536, 1536}, {1536, 1536}}), "product", hopper());
  CHECK(narrower.options[0].tile.columns == 192);
  CHECK(narrower.launch.grid[0] == 96);
  // 392 tiles of 64 rows fill three waves; of 128 rows 196 would leave half of the second empty.
  const Lowered split_n = lower(kernel({{1792, 4096}, {4096, 3584}}), "product", hopper());
  CHECK(to_text(split_n.options[0]) == "matrix r0 r1 x 256 rows 64 halved wide");
  CHECK(split_n.launch.grid[0] == 132);
  // Those of f8 have the registers for half of such a tile, and are left as they were measured.
  const Form bytes{{1792, 4096}, {3584, 4096}, false, true, kF8E4M3};
  CHECK(to_text(lower(kernel(bytes), "product", hopper()).options[0]) == "matrix r0 r1 x 128");
  const Lowered shared = lower(kernel({{38400, 64}, {64, 128}}), "product", hopper());
  CHECK(shared.launch.grid[0] > 132);
  CHECK(shared.launch.shared_bytes <= hopper().shared_bytes / 2);
}

TEST_CASE("matrix: an operand that TMA cannot read is multiplied without wgmma") {
  const auto first = [](const Form& f) {
    const Lowered low = lower(kernel(f), "product", hopper());
    return low.options[0].kind;
  };
  CHECK(first({{256, 100}, {100, 256}}) != OptKind::Matrix);  // rows of 200 bytes
  CHECK(first({{256, 128}, {128, 12}}) != OptKind::Matrix);   // too few columns
  CHECK(first({{256, 104}, {104, 200}}) == OptKind::Matrix);
  Form f32{{256, 128}, {128, 256}};
  f32.dtype = kF32;
  CHECK(first(f32) != OptKind::Matrix);
}

TEST_CASE("matrix: each warpgroup's columns are whole boxes of TMA") {
  const Opt half = options_from_text("matrix r0 r1 x 32 rows 256 halved")[0];
  Arena arena;
  ArenaScope scope(arena);
  for (bool turned : {false, true}) {  // columns side by side, or rows of the sum
    const Form form{{256, 64}, turned ? Shape{256, 64} : Shape{64, 256}, false, turned};
    std::string why;
    CHECK(is_legal(loops_of(kernel(form), hopper()), half, hopper(), &why) == turned);
    CHECK(why.find(turned ? "" : "so few columns") != std::string::npos);
  }
}

TEST_CASE("matrix: all orders of the operands compile without spills") {
  if (!nvrtc_available()) return;
  for (DType t : {kBF16, kF16})
    for (bool turn_a : {false, true})
      for (bool turn_b : {false, true}) {
        const Form f{turn_a ? Shape{320, 1000} : Shape{1000, 320},
                     turn_b ? Shape{504, 320} : Shape{320, 504}, turn_a, turn_b, t};
        const Lowered low = lower(kernel(f), "product", hopper());
        std::string log;
        CHECK(!compile_cuda(low.source.text, "sm_90a", &log).empty());
        CHECK(low.source.text.find("wgmma") != std::string::npos);
        CHECK(cuda_resources(log).spill_bytes == 0);
      }
}

TEST_CASE("matrix: TF32, bytes and f8 compile without spills; f32 only where it may be rounded") {
  const auto lowered = [](DType t, bool turn_b) {
    const Form f{{1024, 1024}, {1024, 1024}, false, turn_b, t, t == kF32};
    return lower(kernel(f), "product", hopper());
  };
  const auto uses_unit = [](const Lowered& low) { return low.options[0].kind == OptKind::Matrix; };
  CHECK(!uses_unit(lowered(kF32, true)));
  const EnvOverride rounds("ALLOW_TF32", "1");
  for (const auto& [t, instruction] : {std::pair<DType, const char*>{kF32, "k8.f32.tf32.tf32"},
                                       {kI8, "k32.s32.s8.s8"},
                                       {kF8E4M3, "k32.f32.e4m3.e4m3"},
                                       {kF8E5M2, "k32.f32.e5m2.e5m2"}}) {
    CHECK(!uses_unit(lowered(t, false)));  // columns that do not lie along the sum
    const Lowered low = lowered(t, true);
    REQUIRE(uses_unit(low));
    CHECK(low.source.text.find(instruction) != std::string::npos);
    CHECK(low.launch.maps[0].dtype == t);
    if (!nvrtc_available()) continue;
    std::string log;
    CHECK(!compile_cuda(low.source.text, "sm_90a", &log).empty());
    CHECK(cuda_resources(log).spill_bytes == 0);
  }
}

namespace {

// The emulator of the chip, and a GPU where there is one.
std::vector<std::string> devices() {
  std::vector<std::string> out{"EMU:CUDA:sm_90a"};
  if (cuda_available()) out.push_back("CUDA");
  return out;
}

// A product's kernel, its text changed, on the emulator: how many elements are wrong, or the error.
std::string run_changed(const std::string& from, const std::string& to) {
  constexpr int64_t m = 200, k = 1024, n = 72;
  Device& device = find_device("EMU:CUDA:sm_90a");
  Target few = device.target();
  few.cores = 1;  // that a tile of two warpgroups fills
  Lowered low = lower(kernel({{m, k}, {n, k}, false, true}), "product", few);
  REQUIRE(low.options[0].kind == OptKind::Matrix);
  std::string& text = low.source.text;
  if (!from.empty()) {
    REQUIRE(text.find(from) != std::string::npos);
    for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
      text.replace(at, from.size(), to);
  }
  const Tensor a = integers({m, k}, kBF16, "CPU"), b = integers({n, k}, kBF16, "CPU");
  const auto want = a.matmul(b.t()).to(kF32).to_vector<float>();
  std::vector<char> bytes(m * k * 2);
  std::vector<void*> args;
  for (const auto& [size, tensor] :
       {std::pair<size_t, const Tensor*>{m * n * 2, nullptr}, {m * k * 2, &a}, {k * n * 2, &b}}) {
    args.push_back(device.alloc(size));
    if (!tensor) continue;
    tensor->to_bytes(bytes.data());
    device.upload(args.back(), bytes.data(), size);
  }
  std::string result;
  try {
    const auto program = device.load(device.compile(low.source), "product");
    device.launch(*program, low.launch, args);
    device.download(bytes.data(), args[0], m * n * 2);
    size_t wrong = 0;
    for (size_t i = 0; i < want.size(); ++i) {
      uint16_t bits;
      std::memcpy(&bits, &bytes[i * 2], 2);
      wrong += bf16_to_f32(bits) != want[i];
    }
    result = wrong ? cat("wrong: ", wrong) : "right";
  } catch (const DeviceError& error) {
    result = error.what();
  }
  const size_t sizes[] = {m * n * 2, m * k * 2, k * n * 2};
  for (size_t i = 0; i < args.size(); ++i) device.free(args[i], sizes[i]);
  return result;
}

}  // namespace

TEST_CASE("matrix: products on matrix units are right, in all orders and at ragged sizes") {
  std::vector<Form> forms{{{128, 64}, {64, 256}},
                          {{64, 64}, {64, 32}},
                          {{200, 136}, {136, 328}},
                          {{3, 200, 72}, {3, 72, 136}},
                          {{4, 256, 64}, {64, 128}}};
  const std::vector<Form> large{
      {{1000, 1032}, {1032, 504}}, {{512, 512}, {512, 512}}, {{1024, 2048}, {2048, 1024}}};
  if (cuda_available()) forms.insert(forms.end(), large.begin(), large.end());
  for (const std::string& device : devices())
    for (const Form& form : forms)
      for (bool turn_a : {false, true})
        for (bool turn_b : {false, true})
          for (DType t : {kBF16, kF16}) {
            Form f = form;
            f.turn_a = turn_a;
            f.turn_b = turn_b;
            f.dtype = t;
            if (turn_a) std::swap(f.a[f.a.size() - 1], f.a[f.a.size() - 2]);
            if (turn_b) std::swap(f.b[f.b.size() - 1], f.b[f.b.size() - 2]);
            const auto want = product(f, "CPU").to(kF32).to_vector<float>();
            const auto have = product(f, device).to(kF32).to_vector<float>();
            size_t wrong = 0;
            for (size_t i = 0; i < want.size(); ++i) wrong += want[i] != have[i];
            CAPTURE(device);
            CAPTURE(to_text(f.a));
            CAPTURE(to_text(f.b));
            CAPTURE(turn_a);
            CAPTURE(turn_b);
            CHECK(wrong == 0);
          }
}

TEST_CASE("matrix: TF32, bytes and f8 are right, in all orders and at ragged sizes") {
  const EnvOverride rounds("ALLOW_TF32", "1");
  const auto run = [](const Form& f, const std::string& device) {
    Tensor a = integers(f.a, f.dtype, device).realize();
    Tensor b = integers(f.b, f.dtype, device).realize();
    if (f.turn_a) a = a.transpose(-1, -2);
    if (f.turn_b) b = b.transpose(-1, -2);
    return a.matmul(b, f.dtype == kI8 ? kI32 : kF32).to(kF32).to_vector<float>();
  };
  for (DType t : {kF32, kI8, kF8E4M3, kF8E5M2})
    for (bool turn_a : {false, true})
      for (bool turn_b : {false, true})
        for (const Shape& mnk : {Shape{128, 128, 64}, Shape{200, 136, 144}}) {
          Form f{{mnk[0], mnk[2]}, {mnk[2], mnk[1]}, turn_a, turn_b, t};
          if (turn_a) std::swap(f.a[0], f.a[1]);
          if (turn_b) std::swap(f.b[0], f.b[1]);
          for (const std::string& device : devices()) {
            const auto have = run(f, device);
            CAPTURE(device);
            CAPTURE(t.name());
            CAPTURE(turn_a);
            CAPTURE(turn_b);
            CHECK(have == run(f, "CPU"));
          }
        }
  // Operands are rounded when they are copied: the unit itself would drop what is below 2^-10.
  for (const std::string& device : devices()) {
    const auto filled = [&](float x) { return Tensor::full({128, 64}, x).to(device).realize(); };
    const Tensor y = filled(1 + 3 * 0x1p-12f).matmul(filled(2).t());
    CHECK(y.to_vector<float>() == std::vector<float>(128 * 128, 128 * (1 + 0x1p-10f)));
  }
}

TEST_CASE("matrix: an operand that TMA cannot read is packed, transposed or padded") {
  const EnvOverride rounds("ALLOW_TF32", "1");
  const auto kernels = [](const Form& form, int64_t k) {
    Form f = form;
    f.a = f.turn_a ? Shape{k, 520} : Shape{520, k};
    f.b = f.turn_b ? Shape{520, k} : Shape{k, 520};
    const auto run = [&](const std::string& device, int& count) {
      Tensor a = integers(f.a, f.dtype, device).realize();
      Tensor b = integers(f.b, f.dtype, device).realize();
      if (f.turn_a) a = a.t();
      if (f.turn_b) b = b.t();
      KernelClock clock;
      Tensor y = a.matmul(b, f.dtype == kI8 ? kI32 : kF32);
      y.realize();
      count = clock.kernels;
      return y.to(kF32).to_vector<float>();
    };
    int count = 0, other = 0;
    CHECK(run("EMU:CUDA:sm_90a", count) == run("CPU", other));
    return count;
  };
  const Form tf32{{}, {}, false, false, kF32};
  Form turned = tf32;
  turned.turn_b = true;
  CHECK(kernels(turned, 512) == 1);
  CHECK(kernels(tf32, 512) == 2);
  CHECK(kernels({{}, {}, true, false, kI8}, 512) == 3);
  CHECK(kernels({{}, {}, false, false, kF8E4M3}, 512) == 2);
  CHECK(kernels(turned, 513) == 3);
  CHECK(kernels({{}, {}, false, false, kBF16}, 513) == 2);
  CHECK(kernels({{}, {}, true, true, kBF16}, 513) == 2);
  CHECK(kernels({{}, {}, true, false, kBF16}, 513) == 1);
}

TEST_CASE("matrix: a bias, an activation and a residual are done with the product") {
  const auto run = [](const std::string& device) {
    Tensor bias = integers({264}, kBF16, device).realize();
    Tensor rest = integers({300, 264}, kBF16, device).realize();
    return ((product({{300, 128}, {128, 264}}, device) + bias).relu() + rest).to(kF32);
  };
  for (const std::string& device : devices())
    CHECK(run(device).to_vector<float>() == run("CPU").to_vector<float>());
}

TEST_CASE("matrix: threads write eight columns at a time where those lie side by side") {
  const auto shape = [](const Form& form) {
    return lower(kernel(form), "product", hopper()).options[0].tile;
  };
  CHECK(shape({{512, 256}, {256, 512}}).vectorized_epilogue);
  CHECK(shape({{512, 256}, {256, 264}}).vectorized_epilogue);  // the last columns end within a box
  CHECK(!shape({{512, 256}, {268, 256}, false, true})
             .vectorized_epilogue);  // rows that begin anywhere
  CHECK(!shape({{512, 256}, {256, 512}, false, false, kBF16, true})
             .vectorized_epilogue);  // pairs are enough
  const Lowered low = lower(kernel({{512, 256}, {256, 512}}), "product", hopper());
  CHECK(low.source.text.find("exchange(acc[0])") != std::string::npos);
  CHECK(low.source.text.find("*(bf16x8*)(b0") != std::string::npos);
}

TEST_CASE("matrix: f32 that an epilogue reads and writes in rows is right at ragged sizes") {
  std::vector<std::vector<float>> got;
  for (const char* device : {"EMU:CUDA:sm_90a", "CPU"}) {
    const auto wide = [&](const Shape& shape) { return integers(shape, kBF16, device).to(kF32); };
    const Tensor w = integers({200, 1032}, kF32, device);
    const Tensor now = w - wide({200, 96}).matmul(wide({96, 1032})) * 0.5;
    got.push_back(now.to("CPU").to_vector<float>());
  }
  CHECK(got[0] == got[1]);
}

TEST_CASE("matrix: the emulator finds the faults that are planted into a kernel") {
  CHECK(run_changed("", "") == "right");
  const auto is_found = [](const char* from, const char* to, const char* how) {
    const std::string result = run_changed(from, to);
    CHECK_MESSAGE(result.find(how) != std::string::npos, std::string(from), ": ", result);
  };
  // Operands are swizzled by TMA and not where they are read.
  is_found("1ull : 2ull", "0ull : 2ull", "wrong: ");
  // Rows eight apart change places: another layout of lanes and registers.
  is_found("acc[0][0], acc[0][1]", "acc[0][2], acc[0][3]", "wrong: ");
  // Stages are read before the copies have arrived, or filled again while they are read.
  is_found("    pipeline.wait_full();", "", "once more than its count");
  is_found("products_wait<1>()", "products_wait<2>()", "wrong: ");
  is_found("    products_wait<0>();", "", "wrong: ");
  is_found("      products_fence();", "", "multiplies with no wgmma.fence");
  is_found("    fence_async();", "", "copies with no fence");
  is_found("mbarrier_init(empty + 8 * s, empty_count)", "mbarrier_init(empty + 8 * s, 3)",
           "waits for ever at");
  is_found("mbarrier_init(empty + 8 * s, empty_count)", "mbarrier_init(empty + 8 * s, 1)",
           "waits for ever at");
}

namespace {

// The ring of a product's kernel as it is rendered and proved.
Ring ring_of(const Form& form) {
  const Lowered low = lower(kernel(form), "product", hopper());
  REQUIRE(low.options[0].kind == OptKind::Matrix);
  return ring_of(MatrixTile(all_of(low.machine, Op::Matrix).at(0)));
}

}  // namespace

TEST_CASE("matrix: the ring of stages is proved for every tile") {
  std::set<int> stages;
  for (int64_t size : {512, 768, 1152, 2048, 2304})
    for (bool turn_a : {false, true})
      for (bool turn_b : {false, true}) {
        const Ring ring = ring_of({{size, size}, {size, size}, turn_a, turn_b});
        stages.insert(ring.stages);
        const Finding f = prove_ring(ring);
        CHECK_MESSAGE(f.verdict == Verdict::Proved, f.text);
      }
  CHECK(stages == std::set<int>{4, 5, 7, 8});
  for (int64_t size : {512, 2048}) {  // of one warpgroup, and of two
    Form f8{{size, size}, {size, size}, false, true, kF8E4M3};
    Ring ring = ring_of(f8);
    CHECK(ring.reads.size() == (size == 512 ? 1 : 2));
    const Finding f = prove_ring(ring);
    CHECK_MESSAGE(f.verdict == Verdict::Proved, f.text);
    std::erase_if(ring.read, [](const RingStep& s) { return s.op == RingOp::WaitProducts; });
    CHECK(prove_ring(ring).text ==
          "ring of stages: stage 0, step 0: warpgroup 1 adds up what its products may be writing");
  }
  // The proof is part of the kernel's.
  Form form{{512, 512}, {512, 512}};
  Node k = kernel(form);
  const Lowered low = lower(k, "product", hopper());
  ProofSettings settings;
  read_kernel(k, hopper(), settings);
  const Proof p = prove(low.machine, settings);
  CHECK_MESSAGE(p.verdict == Verdict::Proved, p.text);
  // All of it lies in what is asked for, behind an address that is a multiple of 1024.
  const Ring ring = ring_of(form);
  CHECK(low.launch.shared_bytes >= ring.stages * ring.stage_bytes + 1023);
}

TEST_CASE("matrix: skinny GEMMs get as few columns of tiles, and are right") {
  for (const auto& [rows, columns] :
       {std::pair<int64_t, int>{4, 8}, {8, 8}, {16, 16}, {33, 64}, {48, 48}, {100, 128}}) {
    const Form f{{rows, 72}, {8504, 72}, false, true};
    const Lowered low = lower(kernel(f), "product", hopper());
    CHECK(low.options[0].kind == OptKind::Matrix);
    CHECK(low.options[0].axis == 1);
    CHECK(low.options[0].tile.columns == columns);
    const Finding ring = prove_ring(ring_of(f));
    CHECK_MESSAGE(ring.verdict == Verdict::Proved, ring.text);
  }
  for (const int64_t rows : {24, 40, 72, 120}) {  // as stages of 128 bytes for each column allow
    const Form f{{rows, 256}, {8504, 256}, false, true};
    const Lowered low = lower(kernel(f), "product", hopper());
    CHECK(low.options[0].tile.columns == rows);
    const Form bytes{f.a, f.b, false, true, kI8};
    const Lowered of_bytes = lower(kernel(bytes), "product", hopper());
    CHECK(of_bytes.options[0].tile.columns == (rows + 31) / 32 * 32);
  }
  // What no cache holds and is read for one tile of columns leaves L2 first.
  Target cached = hopper();
  cached.l2_bytes = 50 << 20;
  const auto copies_once = [&](int64_t rows, int64_t from) {
    const Form f{{rows, from}, {11008, from}, false, true};
    const Lowered low = lower(kernel(f), "product", cached);
    return low.source.text.find("copy_box_once(pipeline") != std::string::npos;
  };
  CHECK(copies_once(8, 4096));
  CHECK(copies_once(64, 4096));
  CHECK(!copies_once(8, 1024));     // may stay there
  CHECK(!copies_once(2048, 4096));  // is read again
  // A miss then fetches no more than was asked for.
  const auto is_once = [](const Form& f) {
    const Lowered low = lower(kernel(f), "product", hopper());
    REQUIRE(low.launch.maps.size() == 2);
    CHECK(low.launch.maps[0].once == low.launch.maps[1].once);
    return low.launch.maps[0].once;
  };
  CHECK(is_once({{8, 4096}, {11008, 4096}, false, true}));
  CHECK(is_once({{64, 4096}, {4096, 11008}}));
  CHECK(!is_once({{256, 4096}, {11008, 4096}, false, true}));
  CHECK(!is_once({{2048, 2048}, {2048, 2048}}));
  // What all blocks read again, and much of it, is read by fewer of them.
  const auto rows_of = [&](int64_t rows) {
    const Lowered low =
        lower(kernel({{rows, 4096}, {11008, 4096}, false, true}), "product", cached);
    return std::pair(low.options[0].tile.rows, low.launch.shared_bytes);
  };
  CHECK(rows_of(32) == std::pair<int, int64_t>(64, 6 * 96 * 128 + 1024));
  CHECK(rows_of(64) == std::pair<int, int64_t>(64, 6 * 128 * 128 + 1024));
  CHECK(rows_of(120) == std::pair<int, int64_t>(128, 7 * 248 * 128 + 1024));
  // Operands that are not contiguous along the sum come in boxes of 64 bytes or more: 32 columns.
  const Lowered across = lower(kernel({{72, 8}, {72, 8504}, true, false}), "product", hopper());
  CHECK(across.options[0].tile == TileShape{64, 32});
  // Where the rows of the other operand are read again and again, multiplying is what takes time.
  const Lowered small = lower(kernel({{8, 64}, {64, 512}}), "product", hopper());
  CHECK(small.options[0].kind != OptKind::Matrix);
  for (const std::string& device : devices())
    for (const int64_t rows : {4, 12, 16, 40})
      for (bool turn_a : {false, true})
        for (bool turn_b : {false, true}) {
          if (turn_a && rows % 8) continue;
          Form f{{rows, 72}, {72, 8504}, turn_a, turn_b};
          if (turn_a) std::swap(f.a[0], f.a[1]);
          if (turn_b) std::swap(f.b[0], f.b[1]);
          CAPTURE(device);
          CAPTURE(rows);
          CAPTURE(turn_a);
          CAPTURE(turn_b);
          CHECK(product(f, device).to(kF32).to_vector<float>() ==
                product(f, "CPU").to(kF32).to_vector<float>());
        }
  for (const std::string& device : devices())
    for (const int64_t rows : {21, 56, 72}) {
      const Form f{{rows, 256}, {8504, 256}, false, true};
      CAPTURE(device);
      CAPTURE(rows);
      CHECK(product(f, device).to(kF32).to_vector<float>() ==
            product(f, "CPU").to(kF32).to_vector<float>());
    }
}

TEST_CASE("matrix: tiles with partial edges are proved; a row more, or no gate, is found") {
  Node k = kernel({{200, 136}, {136, 328}});
  const Lowered low = lower(k, "product", hopper());
  REQUIRE(low.options[0].kind == OptKind::Matrix);
  ProofSettings settings = test::patient();
  read_kernel(k, hopper(), settings);
  const Proof p = prove(low.machine, settings);
  CHECK_MESSAGE(p.verdict == Verdict::Proved, p.text);
  Arena arena;
  ArenaScope scope(arena);
  for (int operand : {0, 1}) {  // TMA's map of an operand's size
    Node matrix = all_of(low.machine, Op::Matrix).at(0);
    std::vector<int64_t> numbers(matrix->ints().begin(), matrix->ints().end());
    const size_t of_operand = 7 + 5 * 3 + 3 * 3 + 8 * 7;
    int64_t& rows = numbers[6 + static_cast<size_t>(operand) * of_operand + 7 + 3];
    CHECK(rows == (operand ? 136 : 200));
    ++rows;
    Node longer = make(Op::Matrix, kVoid, matrix->srcs(), Ints(numbers));
    const Proof wrong = prove(substitute(low.machine, matrix, longer), settings);
    CHECK(wrong.text == cat("wrong: TMA reads buffer ", 1 + operand, " of ",
                            operand ? 44608 : 27200, " up to element ", operand ? 44935 : 27335));
  }
  int gates = 0;
  for (Node access : test::accesses_of(low.machine)) {
    if (!access->is(Op::Store)) continue;  // registers are read without need of one
    Node faulty = test::with_fault(low.machine, access, test::Fault::NoGate);
    if (!faulty || faulty == low.machine) continue;
    const Proof wrong = prove(faulty, settings);
    CHECK(wrong.verdict == Verdict::Wrong);
    CHECK_MESSAGE(wrong.text.find("writes element ") != std::string::npos, wrong.text);
    if (++gates == 4) break;
  }
  CHECK(gates > 0);
}

TEST_CASE("matrix: faults that are planted into the ring's table are found") {
  const Ring right = ring_of({{2048, 2048}, {2048, 2048}, true, true});  // several boxes each
  REQUIRE(right.boxes.size() >= 3);
  const auto found = [&](auto plant) {
    Ring ring = right;
    plant(ring);
    const Finding f = prove_ring(ring);
    CHECK(f.verdict == Verdict::Wrong);
    return f.text;
  };
  const auto stuck = [&](auto plant) {  // whom the first of the waits is reported of
    const std::string text = found(plant), begin = "ring of stages: nobody goes on: ";
    CHECK(text.starts_with(begin));
    return text.substr(begin.size(), text.find(';') - begin.size());
  };
  const auto without = [](std::vector<RingStep>& steps, RingOp op) {
    std::erase_if(steps, [&](const RingStep& s) { return s.op == op; });
  };
  const auto set = [](std::vector<RingStep>& steps, RingOp op, int64_t amount) {
    for (RingStep& s : steps)
      if (s.op == op) s.amount = amount;
  };
  CHECK(found([&](Ring& r) { without(r.fill, RingOp::WaitEmpty); }) ==
        "ring of stages: stage 0, step 4: the thread that fills arrives at its barrier full once "
        "more than its count");
  CHECK(found([&](Ring& r) { without(r.read, RingOp::WaitFull); }) ==
        "ring of stages: stage 0, step 0: warpgroup 1 reads it when it is empty");
  const char* reading =
      "ring of stages: stage 0, step 4: is filled when products of warpgroup 1 may be reading step "
      "0 there";
  CHECK(found([&](Ring& r) { without(r.read, RingOp::WaitProducts); }) == reading);
  CHECK(
      found([&](Ring& r) { set(r.read, RingOp::WaitProducts, 2); }) ==
      "ring of stages: stage 0, step 4: is filled when products of warpgroup 2 may be reading step "
      "0 there");
  CHECK(found([&](Ring& r) { std::swap(r.read[2], r.read[4]); }) == reading);
  CHECK(found([&](Ring& r) { without(r.end, RingOp::WaitProducts); }) ==
        "ring of stages: stage 0, step 0: warpgroup 1 uses the result when its products may be "
        "running");
  // Parities.
  CHECK(stuck([&](Ring& r) { r.fill_parity = 0; }) ==
        "the thread that fills waits at stage 0, step 0, to be empty, which lacks 2 arrivals");
  CHECK(found([&](Ring& r) { r.read_parity = 1; }) ==
        "ring of stages: stage 0, step 0: warpgroup 1 reads it when it is empty");
  // Arrivals.
  CHECK(found([&](Ring& r) { r.empty_count = 1; }) ==
        "ring of stages: stage 0, step 4: is filled before warpgroup 2 has read step 0 there");
  CHECK(stuck([&](Ring& r) { r.empty_count = 3; }) ==
        "the thread that fills waits at stage 0, step 4, to be empty, which lacks 1 arrivals");
  CHECK(stuck([&](Ring& r) { r.full_count = 2; }) ==
        "warpgroup 1 waits at stage 0, step 0, to be full, which lacks 1 arrivals");
  CHECK(stuck([&](Ring& r) { without(r.read, RingOp::Release); }) ==
        "the thread that fills waits at stage 0, step 4, to be empty, which lacks 2 arrivals");
  CHECK(stuck([&](Ring& r) { without(r.fill, RingOp::Expect); }) ==
        "warpgroup 1 waits at stage 0, step 0, to be full, which lacks 1 arrivals");
  CHECK(stuck([&](Ring& r) { r.stages = 1; }) ==
        "the thread that fills waits at stage 0, step 1, to be empty, which lacks 2 arrivals");
  // Bytes.
  CHECK(
      found([&](Ring& r) { set(r.fill, RingOp::Expect, r.stage_bytes - 8192); }) ==
      "ring of stages: stage 0, step 0: warpgroup 1 reads it before all of its bytes have landed");
  CHECK(stuck([&](Ring& r) { set(r.fill, RingOp::Expect, r.stage_bytes + 128); }) ==
        "warpgroup 1 waits at stage 0, step 0, to be full, which lacks 128 bytes");
  CHECK(stuck([&](Ring& r) { r.fill.erase(r.fill.begin() + 3); }) ==
        "warpgroup 1 waits at stage 0, step 0, to be full, which lacks 8192 bytes");
  CHECK(found([&](Ring& r) { r.boxes[1].offset = 0; }) ==
        "ring of stages: boxes overlap at byte 0 of a stage");
  CHECK(found([&](Ring& r) { r.boxes.back().offset += 1024; }) ==
        "ring of stages: boxes take 50176 bytes of a stage of 49152");
  CHECK(found([&](Ring& r) { r.reads[1][0].offset += r.stage_bytes; }) ==
        "ring of stages: byte 57344 of a stage is read and never filled");
  // Steps.
  CHECK(found([&](Ring& r) { without(r.read, RingOp::Advance); }) ==
        "ring of stages: stage 0, step 1: warpgroup 1 reads it when it holds step 0");
  CHECK(found([&](Ring& r) { r.read.push_back({RingOp::Advance}); }) ==
        "ring of stages: stage 2, step 1: warpgroup 1 reads it when it holds step 2");
  CHECK(found([&](Ring& r) { without(r.read, RingOp::Multiply); }) ==
        "ring of stages: step 0: warpgroup 1 multiplies it 0 times");
}
