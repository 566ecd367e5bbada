#include "runtime/kernels/choice_cache.h"

#include <fcntl.h>
#include <sys/file.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <mutex>

#include "runtime/device/disk_cache.h"
#include "tiny/base/env.h"
#include "tiny/base/error.h"
#include "tiny/base/text.h"
#include "tiny/ir/print.h"

#if __has_include(<nlohmann/json.hpp>)
#include <nlohmann/json.hpp>
#define TINY_HAS_JSON 1
#endif

namespace tiny {

namespace {

constexpr const char* kSearchVersion = "search 3";  // a new version discards older measurements

std::string hash_of(const std::string& text) { return hex(sha256(text).substr(0, 16)); }

std::string to_text(const Target& t) {
  return cat(static_cast<int>(t.kind), ' ', static_cast<int>(t.language), ' ', t.vector_bytes, ' ',
             t.vector_registers, ' ', t.cores, ' ', t.l1_bytes, ' ', t.l2_bytes, ' ', t.has_f16,
             t.has_bf16, t.has_wgmma, t.has_f8_mma, ' ', t.arch, ' ', t.warp, ' ', t.most_threads,
             ' ', t.shared_bytes);
}

// Numbers that are sizes, strides or extents as '#'.
std::string without_sizes(const std::string& text) {
  TextReader lines(text);
  std::string out;
  for (std::string line; std::getline(lines, line); out += line + '\n') {
    const bool sizes = line.find(" Param ") != line.npos || line.find(" Const index ") != line.npos;
    if (!sizes) continue;
    const size_t from = line.find(' ') + 1;
    std::string shorter = line.substr(0, from);
    for (size_t i = from; i < line.size(); ++i)
      if (!is_digit(line[i]))
        shorter += line[i];
      else if (shorter.back() != '#')
        shorter += '#';
    line = shorter;
  }
  return out;
}

std::mutex mutex;  // of all caches of this process

// --- Lines ---------------------------------------------------------------------------------------

#if TINY_HAS_JSON

using nlohmann::json;

std::string line_of(const KernelKey& k, const std::string& name) {
  return json{{"kernel", k.key}, {"family", k.family}, {"name", name}, {"device", k.device}}.dump();
}
std::string line_of(const std::string& key, const TryRecord& t) {
  return json{{"kernel", key},      {"choice", t.choice}, {"outcome", name_of(t.outcome)},
              {"source", t.source}, {"least", t.least},   {"median", t.median}}
      .dump();
}
std::string line_of(const std::string& key, const DoneRecord& d) {
  return json{{"kernel", key},      {"choice", d.choice},       {"width", d.width},
              {"budget", d.budget}, {"exhausted", d.exhausted}, {"heuristic", d.heuristic},
              {"best", d.best},     {"source", d.source}}
      .dump();
}

// Adds a line to the record of its kernel, which `record(key)` gives. Throws json::exception where
// it is damaged.
template <class Find> void take_line(const std::string& line, const Find& record) {
  const json j = json::parse(line);
  KernelRecord& k = record(j.at("kernel"));
  const auto number = [&](const char* name) { return j.at(name).get<double>(); };
  if (j.contains("family")) {
    k.family = j.at("family");
    k.name = j.at("name");
    k.device = j.at("device");
  } else if (j.contains("width")) {
    k.done = {j.at("width"),  number("budget"), j.at("exhausted"), number("heuristic"),
              number("best"), j.at("choice"),   j.at("source")};
  } else {
    auto outcome = Outcome::Good;
    while (outcome < Outcome::Rejected && j.at("outcome") != name_of(outcome))
      outcome = static_cast<Outcome>(static_cast<int>(outcome) + 1);
    const TryRecord t{
        {outcome, number("least"), number("median"), ""}, j.at("source"), j.at("choice")};
    k.tries[t.choice] = t;
  }
}

#else

template <class... Of> std::string line_of(const Of&...) { return ""; }
template <class Find> void take_line(const std::string&, const Find&) {}

#endif

std::vector<std::string> lines_of(const KernelRecord& k) {
  std::vector<std::string> out{line_of({k.key, k.family, k.device}, k.name)};
  for (const auto& [choice, t] : k.tries) out.push_back(line_of(k.key, t));
  if (k.done) out.push_back(line_of(k.key, *k.done));
  return out;
}

}  // namespace

KernelKey key_of_kernel(Node loops, Device& device, const std::string& device_name) {
  const std::string text = tiny::to_text(loops),
                    where = device_name.substr(0, device_name.find(':'));
  const std::string about = cat(kSearchVersion, '\n', where, '\n', to_text(device.target()), '\n',
                                device.compiler_id(), '\n', env_kernel_key(), '\n');
  return {hash_of(about + text), hash_of(about + without_sizes(text)),
          cat(where, " ", device.target().arch, " ", device.compiler_id())};
}

std::string source_key(const Source& source, Device& device) {
  return cache_key(source, device.compiler_id()).substr(0, 16);
}

SearchCache& SearchCache::current() {
  static auto* open = new std::map<std::string, std::unique_ptr<SearchCache>>;
  std::string path = env_text("BEAM_CACHE");
  if (const std::string folder = cache_folder(); path.empty() && !folder.empty())
    path = folder + "/beam.jsonl";
  std::lock_guard lock(mutex);
  auto& slot = (*open)[path];
  if (!slot) slot = std::make_unique<SearchCache>(path);
  return *slot;
}

// False where the line is damaged or of another version.
bool SearchCache::take(const std::string& line) {
  try {
    take_line(line, [&](const std::string& key) -> KernelRecord& {
      const auto [at, fresh] = kernels_.try_emplace(key);
      if (fresh) order_.push_back(key);
      at->second.key = key;
      return at->second;
    });
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

// Reads what was added since. A file that became shorter is another one.
void SearchCache::refresh() {
  if (path_.empty()) return;
  int64_t size = 0;
  const Descriptor file = open_own_file(AT_FDCWD, path_, O_RDONLY, size);
  if (!file.ok()) size = 0;
  if (size == read_) return;
  if (size < read_) {
    kernels_.clear();
    order_.clear();
    read_ = 0;
  }
  std::string fresh(static_cast<size_t>(size - read_), '\0');
  fresh.resize(static_cast<size_t>(read_some(file.get(), read_, fresh.data(), size - read_)));
  // Text behind the last line's end is still being written.
  for (size_t at = 0, end; (end = fresh.find('\n', at)) != fresh.npos; at = end + 1) {
    read_ += static_cast<int64_t>(end + 1 - at);
    take(fresh.substr(at, end - at));
  }
}

// A line that cannot be written is only known in this process.
void SearchCache::append(const std::string& line) {
  std::lock_guard lock(mutex);
  refresh();
  if (!path_.empty()) make_folders(std::filesystem::path(path_).parent_path().string());
  int64_t size = 0;
  Descriptor file = open_own_file(AT_FDCWD, path_, O_WRONLY | O_APPEND | O_CREAT, size);
  const bool written =
      file.ok() && flock(file.get(), LOCK_EX) == 0 && write_all(file.get(), line + "\n");
  file = Descriptor(-1);
  if (written)
    refresh();
  else
    take(line);
}

std::optional<KernelRecord> SearchCache::find(const std::string& key) {
  std::lock_guard lock(mutex);
  refresh();
  const auto found = kernels_.find(key);
  return found == kernels_.end() ? std::nullopt : std::optional(found->second);
}

std::vector<KernelRecord> SearchCache::all() {
  std::lock_guard lock(mutex);
  refresh();
  std::vector<KernelRecord> out;
  for (const std::string& key : order_) out.push_back(kernels_.at(key));
  return out;
}

std::vector<std::string> SearchCache::family_choices(const KernelKey& key) {
  const std::vector<KernelRecord> known = all();
  std::vector<std::string> out;
  for (auto k = known.rbegin(); k != known.rend(); ++k)
    if (k->family == key.family && k->key != key.key && k->done && !k->done->choice.empty())
      out.push_back(k->done->choice);
  return out;
}

void SearchCache::add(const KernelKey& key, const std::string& name) { append(line_of(key, name)); }
void SearchCache::add(const std::string& key, const TryRecord& r) { append(line_of(key, r)); }
void SearchCache::add(const std::string& key, const DoneRecord& r) { append(line_of(key, r)); }

size_t SearchCache::import(const std::string& path) {
  InputFile("beam cache", path);
  size_t count = 0;
  for (KernelRecord k : SearchCache(path).all()) {
    const auto known = find(k.key);
    std::vector<std::string> here;
    if (known) here = lines_of(*known);
    if (known && known->done && k.done && known->done->width >= k.done->width) k.done.reset();
    for (const std::string& line : lines_of(k)) {
      if (contains(here, line)) continue;
      append(line);
      ++count;
    }
  }
  return count;
}

size_t SearchCache::drop(const std::string& text) {
  std::string kept;
  size_t count = 0;
  for (const KernelRecord& k : all()) {
    const bool goes = k.name.find(text) != k.name.npos || k.key.find(text) != k.key.npos;
    count += goes;
    if (!goes)
      for (const std::string& line : lines_of(k)) kept += line + '\n';
  }
  std::lock_guard lock(mutex);
  FileAside file("beam cache", path_, 0600);
  file.write(kept);
  file.commit();
  kernels_.clear();
  order_.clear();
  read_ = 0;
  return count;
}

const char* name_of(Outcome outcome) {
  constexpr const char* names[] = {"waiting", "good",    "slow", "wrong",
                                   "failed",  "crashed", "hung", "rejected"};
  return names[static_cast<int>(outcome)];
}

std::optional<Known> find_known(Node kernel, const std::string& device_name) {
  Device& device = find_device(device_name);
  Arena arena;
  ArenaScope scope(arena);
  Node loops = loops_of(kernel, device.target());
  const auto record = SearchCache::current().find(key_of_kernel(loops, device, device_name).key);
  if (!record || !record->done) return {};
  Known out{*record->done, {}};
  try {
    if (!out.done.choice.empty()) out.choice = choice_from_text(out.done.choice);
    const Lowered low = lower(loops, kCandidateEntry, device.target(), nullptr,
                              out.choice ? &*out.choice : nullptr);
    if (source_key(low.source, device) == out.done.source) return out;
  } catch (const std::exception&) {  // of another version of the code generator
  }
  return {};
}

}  // namespace tiny
