// The search over a kernel's options: what it may try, what it must not believe, what it survives.
#include "runtime/search/search.h"

#include <doctest/doctest.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <mutex>
#include <set>
#include <sstream>

#include "codegen/heuristics/heuristics.h"
#include "codegen/heuristics/rates.h"
#include "codegen/kernel/option.h"
#include "codegen/options/launchable.h"
#include "codegen/options/mma.h"
#include "codegen/proof/prove.h"
#include "runtime/kernels/choice_cache.h"
#include "runtime/search/model.h"
#include "runtime/search/space.h"
#include "test/devices.h"
#include "test/unit/kernels.h"
#include "tiny/base/env.h"
#include "tiny/base/error.h"
#include "tiny/base/worker_process.h"

namespace tiny {
namespace {

using namespace test;

// A folder of its own for the cache, empty.
struct Folder {
  explicit Folder(const char* name)
      : path(std::filesystem::temp_directory_path() / cat("tiny-", name, "-", getpid())),
        scope("CACHE_DIR", path.string()) {
    std::filesystem::remove_all(path);
  }
  ~Folder() { std::filesystem::remove_all(path); }
  std::filesystem::path path;
  EnvOverride scope;
};

Node small_matmul(int64_t n = 32) {
  return kernel_of({matmul(tensor_param(1, {n, 2 * n}), tensor_param(2, {2 * n, n}))});
}

// A short search, of a thousand looks at its clock.
struct Quick : SearchSettings {
  explicit Quick(double least = 600) : counted(3e-3, least) {
    width = 2;
    seconds = 3;
    cached = false;
  }
  CountedBudgets counted;
};

int count(const Searched& s, Outcome o) {
  return static_cast<int>(std::count_if(s.candidates.begin(), s.candidates.end(),
                                        [&](const Candidate& c) { return c.outcome == o; }));
}

void replace_all(std::string& text, const std::string& from, const std::string& to) {
  for (size_t at = 0; (at = text.find(from, at)) != text.npos; at += to.size())
    text.replace(at, from.size(), to);
}

// A body of the kernel that does nothing but this, in the language of the CPU's compiler.
void plant(Lowered& low, const std::string& llvm, const std::string& c) {
  const bool is_llvm = low.source.language == Source::Language::LlvmIr;
  const std::string& name = low.source.entry;
  low.source.text =
      is_llvm ? cat("declare void @abort()\ndefine void @", name,
                    "(ptr %args, i64 %begin, i64 %end) {\n  br label %l\nl:\n", llvm, "\n}\n")
              : cat("void abort(void);\nvoid ", name, "(void** a, long long b, long long e) {", c,
                    "}\n");
}

TEST_CASE("options are read back from their text") {
  const std::string text =
      "split r1 16, merge r0 r2, join r0 r3, bind r4 vector, matrix r0 r1 x 256, order r0 r2 r1";
  CHECK(to_text(options_from_text(text)) == text);
  CHECK(options_from_text("").empty());
  const Choice choice = choice_from_text("gemm; " + text);
  CHECK(choice.is_gemm);
  CHECK(to_text(choice) == "gemm; " + text);
  for (const char* bad : {"split r1", "split 1 16", "bind r1 fast", "melt r0", "order r0 x", "r0"})
    CHECK_THROWS_AS(options_from_text(bad), Error);
  CHECK_THROWS_AS(choice_from_text("split r1 16"), Error);
}

TEST_CASE("neighbours of a choice are many, different, and none of them is the choice itself") {
  const Target& target = find_device("CPU").target();
  Arena arena;
  ArenaScope scope(arena);
  Node loops = loops_of(small_matmul(), target);
  const Choice start = lower(loops, "k", target).choice;
  const auto all = neighbours(loops, start, target);
  std::set<std::string> texts;
  for (const Choice& c : all) texts.insert(to_text(c));
  CHECK(all.size() > 30);
  CHECK(texts.size() == all.size());
  CHECK_FALSE(texts.count(to_text(start)));
  Choice other = start;
  other.is_gemm = !start.is_gemm;
  CHECK(texts.count(to_text(other)));
}

TEST_CASE("neighbours on a GPU give a thread several results, and a block several rows") {
  const Target target = gpu_target("sm_90a");
  Arena arena;
  ArenaScope scope(arena);
  Node x = tensor_param(1, {64, 48, 4096});
  Node loops = loops_of(kernel_of({build::reduce(Op::Add, x, 4)}), target);
  const auto all = neighbours(loops, lower(loops, "k", target).choice, target);
  for (const char* kind : {"unroll", "thread"})
    CHECK(std::any_of(all.begin(), all.end(), [&](const Choice& c) {
      const std::string text = to_text(c.options);
      if (!text.starts_with("split r0 4, bind r") || text.find(kind) > 24) return false;
      return lower(loops, "k", target, nullptr, &c).launch.grid[0] == 64 * 48 / 4;
    }));
}

TEST_CASE("a short sum that no result's loop goes around is there in each block of a GPU") {
  const Target target = gpu_target("sm_90a");
  for (int64_t rows : {2, 10}) {
    Arena arena;
    ArenaScope scope(arena);
    Node x = tensor_param(1, {rows, 512}), mask = tensor_param(2, {512});
    const int64_t shape[] = {rows, 512};
    Node all = build::expand(sum(mask, 1), shape);
    Node loops = loops_of(kernel_of({make(Op::Div, kF32, {x, all})}), target);
    CHECK((lower(loops, "k", target).launch.grid[0] > 1) == (rows == 10));
  }
}

// A GEMM of 16-bit floats, of which the last ones of `n` lie side by side.
Node product_of_halves(int64_t m, int64_t n, int64_t k) {
  Node a = tensor_param(1, {m, k}, kBF16), b = tensor_param(2, {k, n}, kBF16);
  const auto wide = [](Node x) { return make(Op::Cast, kF32, {x}); };
  return kernel_of({make(Op::Cast, kBF16, {matmul(wide(a), wide(b))})});
}

TEST_CASE("neighbours of a product on matrix units are whole tiles") {
  const Target target = gpu_target("sm_90a");
  Arena arena;
  ArenaScope scope(arena);
  Node kernel = product_of_halves(512, 1024, 256), loops = loops_of(kernel, target);
  const Choice start = lower(loops, "k", target).choice;
  REQUIRE(start.options[0].kind == OptKind::Matrix);
  std::set<std::string> tiles;
  size_t wrong = 0, proved = 0, turned = 0;
  for (const Choice& c : neighbours(loops, start, target)) {
    if (c.options[0].kind != OptKind::Matrix) continue;
    const Lowered low = lower(loops, "k", target, nullptr, &c);
    ProofSettings settings;
    read_kernel(kernel, target, settings);
    const Verdict verdict = prove(low.machine, settings).verdict;
    wrong += verdict == Verdict::Wrong;
    proved += verdict == Verdict::Proved;
    tiles.insert(to_text(c.options[0]));
    turned += c.options[0].axis > c.options[0].axes[0];
  }
  CHECK(wrong == 0);
  CHECK(proved > 50);  // of the others the last tile has fewer rows
  CHECK(turned > 10);
  CHECK(tiles.size() > 40);
  for (const char* shape :
       {" x 64", " x 160", " rows 64", " rows 256", " halved", " deep", " parts 2"})
    CHECK_MESSAGE(std::any_of(tiles.begin(), tiles.end(),
                              [&](const std::string& t) { return t.find(shape) != t.npos; }),
                  shape);
}

TEST_CASE("tiles of a product of f32 that a search tries can be lowered") {
  const Target target = gpu_target("sm_90a");
  Arena arena;
  ArenaScope scope(arena);
  Node weights = build::permute(tensor_param(2, {576, 100}), Shape{1, 0});
  Node loops = loops_of(kernel_of({matmul(tensor_param(1, {576, 100}), weights)}), target);
  std::set<std::string> offered;
  for (const Choice& c : neighbours(loops, lower(loops, "k", target).choice, target))
    offered.insert(to_text(c));
  int tried = 0;
  for (const TilePlan& plan : stage_plans(false)) {
    const auto staged = choose_stage_options(loops, target, std::span(&plan, 1));
    if (!staged || !offered.contains(to_text(*staged))) continue;
    CHECK_NOTHROW(lower(loops, "k", target, nullptr, &*staged));
    ++tried;
  }
  CHECK(tried > 3);
}

TEST_CASE("what cannot be launched is rejected before it is compiled") {
  Arena arena;
  ArenaScope scope(arena);
  Target cpu, gpu;
  gpu.kind = Target::Kind::Gpu;
  Node loops = loops_of(small_matmul(64), cpu);
  const auto why = [&](const char* options, const Target& t) {
    return launch_problem(loops, apply(loops, options_from_text(options), t), t);
  };
  CHECK(why("bind r0 core", cpu) == "");
  CHECK(why("bind r2 core", cpu) == "r2 of 128 is reduced along: cores do not meet");
  CHECK(why("bind r0 core, bind r1 core", cpu) == "two ranges for the cores");
  CHECK(why("bind r0 block", cpu) == "r0 of 64 is of a GPU");
  CHECK(why("bind r0 thread, bind r1 thread", gpu) == "blocks of 4096 threads, of 1024 at most");
  CHECK(why("bind r2 block", gpu) == "r2 of 128 is reduced along: blocks do not meet");
  CHECK(why("bind r0 unroll, bind r1 unroll", cpu) == "4096 copies of an innermost statement");
  Choice choice{options_from_text("bind r2 core"), false};
  CHECK_THROWS_WITH(lower(loops, "k", cpu, nullptr, &choice),
                    "lower: r2 of 128 is reduced along: cores do not meet");
  LaunchSize size;
  size.shared_bytes = 1 << 20;
  CHECK(launch_problem(size, gpu) == "1048576 bytes of shared memory, of 49152 at most");
}

TEST_CASE("made-up indices stay inside what they index") {
  const Target& target = find_device("CPU").target();
  const Node at[] = {tensor_param(2, {50}, kI64)};  // of a table of 100
  Node kernel = kernel_of({build::gather(tensor_param(1, {100}), at)});
  Arena arena;
  ArenaScope scope(arena);
  const KernelCase c = case_of(loops_of(kernel, target), "CPU", target);
  REQUIRE(c.buffers.size() == 3);
  CHECK(c.buffers[0].written);
  CHECK(c.buffers[0].kind == Filling::Kind::Poison);
  CHECK(c.buffers[2].kind == Filling::Kind::Indices);
  CHECK(c.buffers[2].top >= 90);
  CHECK(c.buffers[2].top < 100);
}

TEST_CASE("a length is filled with its bound") {
  const Target& target = find_device("CPU").target();
  const int64_t one[] = {1}, all[] = {64};
  Node n = build::bound(tensor_param(2, {1}, kI64), 3, 60);
  Node inside = build::binary(Op::Lt, build::iota(64, kI64), build::expand(n, all));
  Node values = build::where(inside, tensor_param(1, {64}), build::full(all, kF32, 0.0));
  Node kernel = kernel_of({build::reshape(sum(values, 1), one)});
  Arena arena;
  ArenaScope scope(arena);
  const KernelCase c = case_of(loops_of(kernel, target), "CPU", target);
  REQUIRE(c.buffers.size() == 3);
  CHECK(c.buffers[2].kind == Filling::Kind::Length);
  CHECK(c.buffers[2].top == 60);
  CHECK(c.buffers[2].low == 30);
}

TEST_CASE("results differ as much as the coarsest dtype that a kernel computes in makes them") {
  const Target& target = find_device("CPU").target();
  const auto fine_and_coarse = [&](DType through) {
    Node value = build::unary(Op::Exp2, build::cast(tensor_param(1, {64}, kF64), through));
    const NodeRef kernel(kernel_of({build::cast(value, kF64)}));
    Arena arena;
    ArenaScope scope(arena);
    const KernelCase c = case_of(loops_of(kernel.get(), target), "CPU", target);
    return std::pair(c.fine, c.coarse);
  };
  CHECK(fine_and_coarse(kF64) == std::pair(0x1p-52, 0.0));
  CHECK(fine_and_coarse(kF32) == std::pair(0x1p-23, 0.0));
  CHECK(fine_and_coarse(kBF16).second == 0x1p-7);
}

TEST_CASE("a search ends with the heuristic's choice or a better one") {
  const NodeRef kernel(small_matmul());
  for (const bool isolated : {true, false}) {
    SearchTools tools("CPU", isolated);
    const Searched s = search_kernel(kernel.get(), "k_matmul", tools, Quick());
    CHECK(s.trouble == "");
    CHECK(s.timed > 1);
    CHECK(count(s, Outcome::Wrong) == 0);
    CHECK(s.seconds <= s.heuristic);
    CHECK(worker_processes("search").empty() != isolated);
  }
  CHECK(worker_processes("search").empty());  // they end with what started them
}

TEST_CASE("what a search had time to compile is timed, too") {
  const NodeRef kernel(small_matmul());
  SearchTools tools("CPU", false);
  Quick s;
  std::mutex mutex;
  std::map<std::string, int> lowered;
  const double end = budget_seconds() + s.seconds;
  s.tamper = [&](const Choice& choice, Lowered&) {  // to be rated, and to be compiled
    std::unique_lock lock(mutex);
    if (++lowered[to_text(choice)] < 2) return;
    lock.unlock();
    while (budget_seconds() < end) continue;
  };
  const Searched found = search_kernel(kernel.get(), "k_matmul", tools, s);
  CHECK(found.trouble == "");
  CHECK(found.timed > 1);
}

TEST_CASE("a planted wrong candidate is dropped and reported") {
  const NodeRef kernel(small_matmul());
  SearchTools tools("CPU", false);
  Quick s;
  int planted = 0;
  s.tamper = [&](const Choice&, Lowered& low) {
    ++planted;
    // Sums begin with 1, and not with 0.
    replace_all(low.source.text, "float 0x0000000000000000", "float 0x3FF0000000000000");
  };
  std::ostringstream messages;
  std::streambuf* before = std::cerr.rdbuf(messages.rdbuf());
  const Searched found = search_kernel(kernel.get(), "k_planted", tools, s);
  std::cerr.rdbuf(before);
  CHECK(planted > 0);
  CHECK(found.trouble == "");
  REQUIRE(count(found, Outcome::Wrong) > 0);
  CHECK(to_text(found.best) == to_text(found.candidates[0].choice));
  const std::string text = messages.str();
  CHECK(text.find("BEAM: kernel k_planted is wrong with other options") != text.npos);
  CHECK(text.find("of buffer 0 is ") != text.npos);
  CHECK(text.find("--choice '") != text.npos);
}

TEST_CASE("candidates that crash or hang end their own process") {
  const NodeRef kernel(small_matmul());
  SearchTools tools("CPU", true);
  Quick s(0);
  s.run_limit = 600;                        // of the heuristic's kernel: candidates get two seconds
  std::set<std::string> crashing, hanging;  // tamper is called on several threads, twice for each
  std::mutex mutex;
  s.tamper = [&](const Choice& choice, Lowered& low) {
    std::lock_guard lock(mutex);
    const std::string text = to_text(choice);
    if (crashing.count(text) || crashing.size() < 20) {
      crashing.insert(text);
      plant(low, cat("  call void @abort()\n  unreachable ; ", crashing.size()), "abort();");
    } else if (hanging.count(text) || hanging.size() < 3) {
      hanging.insert(text);
      plant(low, cat("  br label %l ; ", hanging.size()), "for (;;);");
    }
    low.source.text += (low.source.language == Source::Language::LlvmIr ? "\n; " : "\n// ") + text;
  };
  const Searched found = search_kernel(kernel.get(), "k_planted", tools, s);
  CHECK(found.trouble == "");
  CHECK(count(found, Outcome::Crashed) + count(found, Outcome::Hung) > 0);
  CHECK(count(found, Outcome::Wrong) == 0);
  const std::string best = to_text(found.best);
  CHECK_FALSE(crashing.count(best));
  CHECK_FALSE(hanging.count(best));
}

TEST_CASE("a search knows what an earlier one found, and adds what is new") {
  const Folder folder("search");
  const NodeRef kernel(small_matmul());
  SearchTools tools("CPU", false);
  Quick s;
  s.cached = true;
  CHECK_FALSE(find_known(kernel.get(), "CPU"));
  const Searched first = search_kernel(kernel.get(), "k_matmul", tools, s);
  REQUIRE(first.timed > 1);
  const auto known = find_known(kernel.get(), "CPU");
  REQUIRE(known);
  REQUIRE(known->choice.has_value() == (first.speedup() > 1));
  if (known->choice) CHECK(to_text(*known->choice) == to_text(first.best));
  CHECK(known->done.width == 2);

  const Searched second = search_kernel(kernel.get(), "k_matmul", tools, s);
  const auto recalled = std::count_if(second.candidates.begin(), second.candidates.end(),
                                      [](const Candidate& c) { return c.recalled; });
  CHECK(recalled > 0);

  // Another size of the same kernel begins with this one's best.
  Arena arena;
  ArenaScope scope(arena);
  Device& cpu = find_device("CPU");
  const KernelKey larger = key_of_kernel(loops_of(small_matmul(64), cpu.target()), cpu, "CPU");
  const auto choices = SearchCache::current().family_choices(larger);
  if (second.speedup() > 1) CHECK(choices == std::vector<std::string>{to_text(second.best)});
}

TEST_CASE("a kernel that there was no time for keeps the heuristic's options") {
  const Folder folder("pass");
  const NodeRef kernel(small_matmul());
  pass_over(kernel.get(), "k_matmul", "CPU", 4, 60);
  const auto known = find_known(kernel.get(), "CPU");
  REQUIRE(known);
  CHECK_FALSE(known->choice);
  CHECK(known->done.budget == 60);
  CHECK_FALSE(known->done.exhausted);
}

TEST_CASE("the file of candidates is copied, mended and cleared") {
  const Folder folder("records");
  const std::string path = (folder.path / "beam.jsonl").string();
  const KernelKey key{"aa11", "ff", "CPU x"}, other{"bb22", "ff", "CPU x"};
  {
    SearchCache cache(path);
    cache.add(key, "k_one");
    cache.add(key.key, TryRecord{{Outcome::Good, 1.25e-3, 2e-3, ""}, "5e", "other; split r0 4"});
    cache.add(key.key, DoneRecord{4, 60, true, 2e-3, 1.25e-3, "other; split r0 4", "5e"});
    cache.add(other, "k_two");
  }
  SearchCache again(path);
  const auto found = again.find("aa11");
  REQUIRE(found);
  CHECK(found->name == "k_one");
  CHECK(found->tries.at("other; split r0 4").least == 1.25e-3);
  REQUIRE(found->done);
  CHECK(found->done->exhausted);
  CHECK(again.family_choices(other) == std::vector<std::string>{"other; split r0 4"});

  // A damaged line, one that is cut off, and what another process adds.
  {
    std::ofstream file(path, std::ios::app);
    file << "{\"kernel\": \"aa11\", \"choice\": \"other; spl\n";
  }
  SearchCache(path).add("aa11", TryRecord{{Outcome::Wrong, 1, 1, ""}, "5f", "other; split r0 2"});
  CHECK(again.find("aa11")->tries.size() == 2);

  const std::string copy = (folder.path / "copy.jsonl").string();
  SearchCache imported(copy);
  CHECK(imported.import(path) == 5);
  CHECK(imported.import(path) == 0);
  CHECK(imported.all().size() == 2);
  CHECK(imported.drop("two") == 1);
  CHECK(SearchCache(copy).all().size() == 1);
  CHECK_THROWS_AS(imported.import((folder.path / "none").string()), Error);
}

TEST_CASE("a file of searches that is a pipe, full of holes or others' to write counts as absent") {
  const Folder folder("beam-file");
  const std::string path = (folder.path / "beam.jsonl").string();
  const auto keeps = [&](size_t count) {
    SearchCache cache(path);
    cache.add({"aa11", "ff22", "CPU"}, "k_one");
    CHECK(cache.all().size() == 1);  // this process knows it all the same
    CHECK(SearchCache(path).all().size() == count);
  };
  keeps(1);
  std::filesystem::resize_file(path, uintmax_t{1} << 42);
  keeps(0);
  std::filesystem::remove(path);
  REQUIRE(mkfifo(path.c_str(), 0600) == 0);
  keeps(0);
  std::filesystem::remove(path);
  keeps(1);
  REQUIRE(chmod(path.c_str(), 0620) == 0);
  keeps(0);
  CHECK_THROWS_WITH_AS(SearchCache(path).import(folder.path.string()),
                       doctest::Contains("is a folder, not a file"), Error);
}

TEST_CASE("what changes a buffer in place is compared where only a part is computed as reference") {
  const auto devices = test_devices();
  if (std::find(devices.begin(), devices.end(), "EMULATOR") == devices.end()) return;
  const Node x = tensor_param(0, {1 << 19});
  const Node value =
      build::binary(Op::Sub, build::binary(Op::Mul, x, x), tensor_param(1, {1 << 19}));
  const NodeRef kernel(make(Op::Sink, kVoid, {make(Op::Store, kVoid, {x, value})}));
  SearchTools tools("EMULATOR", false);
  Quick s;
  const Choice choice = choice_from_text("other; split r0 64, bind r1 thread, bind r0 block");
  s.only = &choice;
  for (const char* wrong : {"", "1"}) {
    if (*wrong)
      s.tamper = [](const Choice&, Lowered& low) { replace_all(low.source.text, " - ", " + "); };
    const Searched found = search_kernel(kernel.get(), "k_in_place", tools, s);
    CHECK(found.trouble == "");
    REQUIRE(found.candidates.size() == 2);
    CHECK(found.candidates[1].outcome == (*wrong ? Outcome::Wrong : Outcome::Good));
  }
}

TEST_CASE("the heuristic's options are asked for like others") {
  const NodeRef kernel(kernel_of({tensor_param(1, {4096})}));
  const Target& target = find_device("CPU").target();
  Arena arena;
  ArenaScope scope(arena);
  const Choice choice = lower(kernel.get(), "k", target).choice;
  SearchTools tools("CPU", false);
  Quick s;
  s.only = &choice;
  const Searched found = search_kernel(kernel.get(), "k_again", tools, s);
  CHECK(found.trouble == "");
  CHECK(found.candidates.size() == 1);
  CHECK(to_text(found.best) == to_text(choice));
}

TEST_CASE("parts of large buffers are compared, to their ends") {
  const Shape shape{3 << 20};
  Node x = tensor_param(1, shape), y = tensor_param(2, shape);
  const NodeRef kernel(kernel_of({build::binary(Op::Sub, build::binary(Op::Mul, x, x), y)}));
  SearchTools tools("CPU", false);
  Quick s;
  const Choice choice = choice_from_text("other; split r0 32, bind r1 vector, bind r0 core");
  s.only = &choice;
  CHECK(search_kernel(kernel.get(), "k_large", tools, s).candidates.at(1).outcome == Outcome::Good);
  s.tamper = [](const Choice&, Lowered& low) { low.launch.grid[0] -= 1; };  // the end is missing
  const Searched found = search_kernel(kernel.get(), "k_large", tools, s);
  CHECK(found.candidates.at(1).outcome == Outcome::Wrong);
}

TEST_CASE("kernels of a GPU are searched on the emulator") {
  const auto devices = test_devices();
  if (std::find(devices.begin(), devices.end(), "EMULATOR") == devices.end()) return;
  const NodeRef kernel(kernel_of({sum(tensor_param(1, {8, 64}), 2)}));
  SearchTools tools("EMULATOR", true);
  Quick s;
  const Searched found = search_kernel(kernel.get(), "k_sum", tools, s);
  CHECK(found.trouble == "");
  CHECK(found.timed > 1);
  CHECK(count(found, Outcome::Wrong) == 0);
}

TEST_CASE("other tiles of matrix units compute the same on the emulator") {
  const auto devices = test_devices();
  if (std::find(devices.begin(), devices.end(), "EMULATOR") == devices.end()) return;
  const NodeRef kernel(product_of_halves(192, 128, 320));
  const Target& target = find_device("EMULATOR").target();
  Arena arena;
  ArenaScope scope(arena);
  Node loops = loops_of(kernel.get(), target);
  const auto all = neighbours(loops, lower(loops, "k", target).choice, target);
  SearchTools tools("EMULATOR", true);
  Quick s;
  for (const char* tile : {"matrix r0 r1 x 64 rows 64 wide", "matrix r1 r0 x 64 halved wide"}) {
    const auto at = std::find_if(all.begin(), all.end(),
                                 [&](const Choice& c) { return to_text(c.options[0]) == tile; });
    CAPTURE(tile);
    REQUIRE(at != all.end());
    s.only = &*at;
    const Searched tried = search_kernel(kernel.get(), "k_product", tools, s);
    CHECK(tried.trouble == "");
    CHECK(count(tried, Outcome::Good) == 2);
  }
}

TEST_CASE("TF32 in front of a gate is neither dropped for its rounding nor believed when wrong") {
  const auto devices = test_devices();
  if (std::find(devices.begin(), devices.end(), "EMULATOR") == devices.end()) return;
  const Folder folder("gate");
  const EnvOverride allow("ALLOW_TF32", "1");
  Node sums = matmul(tensor_param(1, {64, 64}), tensor_param(2, {64, 64}));
  const NodeRef kernel(kernel_of({make(Op::Max, kF32, {sums, tensor_param(3, {64, 64})})}));
  const Target& target = find_device("EMULATOR").target();
  Arena arena;
  ArenaScope scope(arena);
  const std::vector<Choice> all = mma_choices(loops_of(kernel.get(), target), target, 8);
  REQUIRE(all.size() == 8);
  SearchTools tools("EMULATOR", true);
  Quick s;
  s.only = &all.back();
  CHECK(count(search_kernel(kernel.get(), "k_gate", tools, s), Outcome::Good) == 2);
  s.tamper = [&](const Choice& choice, Lowered& low) {  // a fragment is multiplied by itself
    if (choice.options == s.only->options) replace_all(low.source.text, "acc2 = mma", "acc1 = mma");
  };
  const Searched found = search_kernel(kernel.get(), "k_gate", tools, s);
  CHECK(found.candidates.at(1).outcome == Outcome::Wrong);
}

}  // namespace
}  // namespace tiny
