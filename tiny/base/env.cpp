#include "tiny/base/env.h"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cstdlib>
#include <map>
#include <mutex>

#include "tiny/base/error.h"

namespace tiny {
namespace {

enum class SettingKind { Int, Text };
enum class Scope { Host, Kernel };  // Kernel: the value changes generated kernels

struct SettingRow {
  const char* name;
  SettingKind kind;
  const char* standard;  // the default, as text
  Scope scope;
  const char* sentence;
};

constexpr SettingRow kRows[] = {
    {"DEVICE", SettingKind::Text, "", Scope::Host,
     "Device of new tensors; empty takes CUDA where a GPU and NVRTC are present, else CPU."},
    {"DEBUG", SettingKind::Int, "0", Scope::Host,
     "How much to print, cumulative: 1 devices and schedule, 2 one line per kernel, 3 options, 4 "
     "source, 5 graph per stage, 6 rules fired."},
    {"DEBUG_PASS", SettingKind::Text, "", Scope::Host,
     "Name of the one pass whose graphs DEBUG=5 and DEBUG=6 print; empty prints all."},
    {"CHECK", SettingKind::Int, "0", Scope::Host,
     "1 verifies the graph after every pass, as debug builds always do, and waits after each "
     "launch on a GPU, so that an error names its kernel."},
    {"CHECK_OOB", SettingKind::Int, "1", Scope::Host,
     "Proves that new kernels stay inside their buffers: 1 with 20000 steps of z3 a kernel and "
     "goes on when that is not enough, 2 takes what is unproved for an error, 0 is off."},
    {"CHECK_NAN", SettingKind::Int, "0", Scope::Host,
     "1 names the kernel, and the operation, that first makes a NaN or an infinity from finite "
     "values, at the price of reading all memory on the host."},
    {"PROFILE", SettingKind::Text, "", Scope::Host,
     "1 or a file name: times the program and writes a trace for ui.perfetto.dev (1: "
     "tiny_profile.json). Read once."},
    {"CHECK_REWRITE", SettingKind::Int, "0", Scope::Host,
     "1 proves of every rule that fires on integers that it keeps the value."},
    {"Z3_PATH", SettingKind::Text, "", Scope::Host,
     "File name of z3's runtime library; empty searches the usual places."},
    {"THREADS", SettingKind::Int, "0", Scope::Host, "Threads of the CPU device; 0 uses all cores."},
    {"CPU_COMPILER", SettingKind::Text, "", Scope::Host,
     "Compiler of the CPU device, llvm or cc; empty takes llvm where its library is found."},
    {"CPU_UNITS", SettingKind::Text, "", Scope::Host,
     "Matrix units that the CPU device uses, of amx-bf16, amx-fp16, amx-int8, avx512bf16 and "
     "avx512vnni, or none; as plain code where the processor lacks one, or with the word plain; "
     "empty takes those of the processor."},
    {"DAWN", SettingKind::Text, "", Scope::Host,
     "Folder of npm's package webgpu, which the device WEBGPU then uses in place of a browser."},
    {"CC", SettingKind::Text, "", Scope::Host,
     "C compiler that CPU_COMPILER=cc runs; empty looks for clang, gcc and cc."},
    {"CXX", SettingKind::Text, "", Scope::Host,
     "C++ compiler that the device EMULATOR runs; empty looks for g++, clang++ and c++."},
    {"LLVM_PATH", SettingKind::Text, "", Scope::Host,
     "File name of LLVM's runtime library; empty searches the usual places."},
    {"NVRTC_LIBRARY", SettingKind::Text, "", Scope::Host,
     "File name of CUDA's compiler library libnvrtc.so.*; empty searches the usual places."},
    {"NCCL_LIBRARY", SettingKind::Text, "", Scope::Host,
     "File name of NVIDIA's library of collectives libnccl.so.2; empty searches the usual places."},
    {"RCCL_LIBRARY", SettingKind::Text, "", Scope::Host,
     "File name of AMD's library of collectives librccl.so.1; empty searches the usual places."},
    {"AMD_COMPILER", SettingKind::Text, "", Scope::Host,
     "Compiler of the device HIP: hiprtc, clang (an installed one) or llvm (in this process, with "
     "lld); empty takes the first that is there, hiprtc where it knows the GPU."},
    {"AMD_LINKER", SettingKind::Text, "", Scope::Host,
     "lld that AMD_COMPILER=llvm links with, at least as new as LLVM's library; "
     "empty looks for ld.lld-19 (its version) and later, then ld.lld."},
    {"HIP_LIBRARY", SettingKind::Text, "", Scope::Host,
     "File name of AMD's runtime library libamdhip64.so.*; empty searches the usual places."},
    {"HIPRTC_LIBRARY", SettingKind::Text, "", Scope::Host,
     "File name of AMD's compiler library libhiprtc.so.*; empty searches the usual places."},
    {"HIP_CLANG", SettingKind::Text, "", Scope::Host,
     "clang 19 or later that compiles HIP kernels; empty looks for clang-21, clang-20, clang-19."},
    {"NVRTC_WORKERS", SettingKind::Int, "-1", Scope::Host,
     "Most processes that compile CUDA kernels beside this one; -1 takes one per core up to 16."},
    {"CACHE", SettingKind::Int, "1", Scope::Host, "0 neither reads nor writes the cache on disk."},
    {"CACHE_DIR", SettingKind::Text, "", Scope::Host,
     "Folder of the cache on disk, this user's alone; empty means the user's cache folder."},
    {"CACHE_MB", SettingKind::Int, "1024", Scope::Host,
     "Size in MiB that the cache on disk is kept under."},
    {"MEMORY_LIMIT", SettingKind::Text, "", Scope::Host,
     "What each device may hold at most, as 10.5GB or 800MiB (of 2^20 bytes): a step that takes "
     "more "
     "computes values again, or ends with an Error that names the largest; empty: what there is."},
    {"CACHE_SCHEDULES", SettingKind::Int, "1024", Scope::Host,
     "Schedules that are kept in memory, and four times as many kernels; those used longest ago go "
     "first."},
    {"ALLOW_TF32", SettingKind::Int, "0", Scope::Kernel,
     "1 multiplies f32 matrices on the matrix units of a GPU, which round operands to 11 bits."},
    {"OPT", SettingKind::Int, "1", Scope::Kernel, "0 turns the kernel optimiser off."},
    {"BEAM", SettingKind::Int, "0", Scope::Host,
     "Searches the options of each kernel by timing, keeping so many of the best at each round; 0 "
     "takes the heuristic's."},
    {"BEAM_BUDGET", SettingKind::Int, "60", Scope::Host,
     "Seconds that a program may search, shared out by each kernel's part of the run time."},
    {"BEAM_ASYNC", SettingKind::Int, "0", Scope::Host,
     "1 searches beside the program, which takes better kernels when they are found."},
    {"BEAM_ISOLATE", SettingKind::Int, "1", Scope::Host,
     "0 compiles and times candidates in this process: a crash or a hang is then the program's."},
    {"BEAM_CACHE", SettingKind::Text, "", Scope::Host,
     "File of the candidates' times; empty means beam.jsonl in the folder of the cache on disk."},
    {"FUSE", SettingKind::Int, "1", Scope::Kernel, "0 gives every operation a kernel of its own."},
    {"CHAIN", SettingKind::Int, "1", Scope::Kernel,
     "0 gives products that follow each other, as in attention, kernels of their own."},
    {"WINOGRAD", SettingKind::Int, "1", Scope::Kernel,
     "0 computes f32 convolutions on a GPU without Winograd's transforms, which take fewer "
     "multiplications and are less exact; 2 uses them wherever they can be, whatever they cost."},
    {"DETERMINISTIC", SettingKind::Int, "0", Scope::Kernel,
     "1 makes sums at indices (scatter_add, gradients of embeddings) independent of the order of "
     "a GPU's threads, at the price of sorting the indices."},
    {"ROW_SUMS", SettingKind::Int, "1", Scope::Kernel,
     "0 fills memory and adds to it for large sums of rows at indices (gradients of embeddings) on "
     "a GPU, instead of writing them: faster where nearly all indices are the same."},
    {"COLLECTIVE", SettingKind::Text, "", Scope::Host,
     "How sums over several devices are made: naive, two_shot, ring, one_shot, two_shot_direct, "
     "flags or nccl; empty chooses by size."},
    {"COLLECTIVE_BEAM", SettingKind::Int, "0", Scope::Host,
     "1 measures once which way is the fastest for each size and list of devices; 2 also says "
     "so."},
    {"COLLECTIVE_BEAM_LIMIT", SettingKind::Int, "30", Scope::Host,
     "Seconds after which a way that is measured counts as hopeless."},
    {"RANK", SettingKind::Int, "-1", Scope::Host,
     "Number of this process among several that run one program; -1 takes that of MPI or Slurm."},
    {"WORLD_SIZE", SettingKind::Int, "-1", Scope::Host, "How many these are; -1 as for RANK."},
    {"LOCAL_RANK", SettingKind::Int, "-1", Scope::Host,
     "Number of this process on its machine, which is that of its GPU; -1 as for RANK."},
    {"MASTER_ADDR", SettingKind::Text, "127.0.0.1", Scope::Host,
     "Host of the process with RANK 0."},
    {"MASTER_PORT", SettingKind::Int, "29500", Scope::Host,
     "The others meet it at the port behind this one, which torchrun keeps."},
    {"COLLECTIVE_TIMEOUT", SettingKind::Int, "60", Scope::Host,
     "Seconds after which a process that sends nothing is an error on those that wait for it."},
    {"RANK_TRANSPORT", SettingKind::Text, "", Scope::Host,
     "tls: messages between processes of one machine go over TLS as well, as between machines; "
     "empty: through memory that they share (UCX)."},
    {"TINY_SECRET", SettingKind::Text, "", Scope::Host,
     "Text that the processes of one run share and nobody else knows, needed on several machines; "
     "empty: those of one machine make one up."},
    {"JIT", SettingKind::Int, "1", Scope::Host,
     "0 calls the function of a Jit each time; 2 replays a list of launches where the device has "
     "graphs."},
    {"EARLY_LAUNCH", SettingKind::Int, "1", Scope::Host,
     "0: kernels of a graph on a GPU start when what those before them wrote is in memory, and not "
     "sooner. Read when the device opens."},
    {"JIT_CHECK", SettingKind::Int, "0", Scope::Host,
     "1 compares each replay of a Jit with a call of its function."},
    {"SEED", SettingKind::Int, "0", Scope::Host, "Seed of the random numbers before manual_seed."},
    {"FUZZ_PROGRAMS", SettingKind::Int, "300", Scope::Host,
     "How many random programs the property test tries."},
    {"FUZZ_SEED", SettingKind::Int, "0", Scope::Host,
     "Seed of the first of them; 0 takes one from the date."},
    {"BEAM_KERNELS", SettingKind::Int, "3", Scope::Host,
     "How many kernels of random programs the test of searches for options searches."},
    {"EMULATOR_PARTS", SettingKind::Int, "4", Scope::Host,
     "The tests run one in so many operator and conformance cases on the device EMULATOR, others "
     "on other days; 1 runs all."},
    {"TEST_PART", SettingKind::Text, "", Scope::Host,
     "Part of the operator and conformance cases that the tests run, on DEVICE alone: 3/16 is the "
     "fourth of 16; empty runs all."},
    {"MNIST_DIR", SettingKind::Text, "", Scope::Host,
     "Folder of the MNIST files; empty makes the example draw its own digits."},
    {"CIFAR_DIR", SettingKind::Text, "", Scope::Host,
     "Folder of CIFAR-10's binary files; empty makes the example draw its own pictures."},
    {"COCO_DIR", SettingKind::Text, "", Scope::Host,
     "Folder of a data set in COCO's format; empty makes the example draw its own scenes."},
};

const SettingRow* find_row(std::string_view name) {
  for (const SettingRow& row : kRows)
    if (name == row.name) return &row;
  return nullptr;
}

struct Overrides {
  std::mutex mutex;
  std::map<std::string, std::string, std::less<>> values;
  std::atomic<size_t> count{0};  // of values, so that reading without any takes no lock
  std::atomic<uint64_t> age{1};  // goes up with each change
};

Overrides& overrides() {
  static Overrides& instance = *new Overrides;
  return instance;
}

std::optional<std::string> find_override(std::string_view name) {
  Overrides& all = overrides();
  if (all.count.load(std::memory_order_acquire) == 0) return std::nullopt;
  std::lock_guard lock(all.mutex);
  auto found = all.values.find(name);
  if (found == all.values.end()) return std::nullopt;
  return found->second;
}

// Sets or removes an override and gives the one that was there.
std::optional<std::string> exchange_override(const std::string& name,
                                             const std::optional<std::string>& value) {
  Overrides& all = overrides();
  std::lock_guard lock(all.mutex);
  std::optional<std::string> before;
  if (auto found = all.values.find(name); found != all.values.end()) before = found->second;
  if (value)
    all.values[name] = *value;
  else
    all.values.erase(name);
  all.count.store(all.values.size(), std::memory_order_release);
  ++all.age;
  return before;
}

std::string text_of(const SettingRow& row) {
  std::string text;
  if (auto overridden = find_override(row.name))
    text = *overridden;
  else if (const char* set = std::getenv(row.name))
    text = set;
  return text.empty() ? row.standard : text;
}

int64_t int_of(const SettingRow& row) {
  const std::string text = text_of(row);
  int64_t value = 0;
  auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value);
  check(status == std::errc() && end == text.data() + text.size(), row.name, "=", text,
        ": expected an integer of at most 64 bits, such as ", row.standard);
  return value;
}

const SettingRow& row_of_kind(std::string_view name, SettingKind kind) {
  const SettingRow* row = find_row(name);
  expect(row != nullptr, "environment variable ", name,
         " is not in the table of tiny/base/env.cpp");
  expect(row->kind == kind, "environment variable ", name, " is of kind ",
         row->kind == SettingKind::Int ? "int" : "text");
  return *row;
}

}  // namespace

int64_t env_int(std::string_view name) { return int_of(row_of_kind(name, SettingKind::Int)); }

std::string env_text(std::string_view name) {
  return text_of(row_of_kind(name, SettingKind::Text));
}

EnvCondition::operator bool() const {
  const uint64_t age = overrides().age.load(std::memory_order_acquire);
  uint64_t known = known_.load(std::memory_order_relaxed);
  if (known >> 1 != age) [[unlikely]] {
    known = 2 * age + now_();
    known_.store(known, std::memory_order_relaxed);
  }
  return known & 1;
}

EnvOverride::EnvOverride(std::string_view name, std::string_view value) : name_(name) {
  if (find_row(name) == nullptr)
    throw Error(cat("EnvOverride: no environment variable ", name, " is read. ", env_help()));
  outer_ = exchange_override(name_, std::string(value));
}

EnvOverride::~EnvOverride() { exchange_override(name_, outer_); }

std::string env_kernel_key() {
  std::string key;
  for (const SettingRow& row : kRows) {
    if (row.scope != Scope::Kernel) continue;
    if (!key.empty()) key += ' ';
    key += row.name;
    key += '=';
    key += row.kind == SettingKind::Int ? std::to_string(int_of(row)) : text_of(row);
  }
  return key;
}

std::vector<std::pair<std::string, std::string>> env_settings() {
  std::vector<std::pair<std::string, std::string>> out;
  for (const SettingRow& row : kRows)
    if (std::string text = text_of(row); text != row.standard) out.push_back({row.name, text});
  return out;
}

std::string env_table_markdown() {
  std::string table = "| variable | kind | default | meaning |\n|---|---|---|---|\n";
  for (const SettingRow& row : kRows)
    table += cat("| `", row.name, "` | ", row.kind == SettingKind::Int ? "int" : "text", " | ",
                 row.standard, " | ", row.sentence, " |\n");
  return table;
}

std::string env_help() {
  size_t width = 0;
  for (const SettingRow& row : kRows) width = std::max(width, std::string_view(row.name).size());
  std::string help = "Environment variables:\n";
  for (const SettingRow& row : kRows) {
    std::string name = row.name;
    name.resize(width + 2, ' ');
    help += cat("  ", name, row.sentence, *row.standard ? cat(" [", row.standard, "]") : "", "\n");
  }
  return help;
}

}  // namespace tiny
