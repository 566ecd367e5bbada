#include "runtime/search_cache.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <mutex>
#include <sstream>

#include "runtime/cache.h"
#include "tiny/env.h"
#include "tiny/error.h"
#include "tiny/print.h"

namespace tiny {

namespace {

constexpr const char* kVersion = "search 1";  // what was measured before another one counts no more

std::string hex(std::string_view bytes, size_t count) {
  std::string out;
  for (size_t i = 0; i < count; ++i) {
    const auto byte = static_cast<unsigned char>(bytes[i]);
    out.push_back("0123456789abcdef"[byte >> 4]);
    out.push_back("0123456789abcdef"[byte & 15]);
  }
  return out;
}
std::string hash_of(const std::string& text) { return hex(sha256(text), 16); }

std::string checked(const std::string& body) { return hex(sha256(body), 4) + "\t" + body; }

std::string to_text(const Target& t) {
  return cat(static_cast<int>(t.kind), ' ', static_cast<int>(t.language), ' ', t.vector_bytes, ' ',
             t.vector_registers, ' ', t.cores, ' ', t.l1_bytes, ' ', t.l2_bytes, ' ', t.has_f16,
             t.has_bf16, t.has_wgmma, ' ', t.arch, ' ', t.warp, ' ', t.most_threads, ' ',
             t.shared_bytes);
}

// Numbers that are sizes, strides or extents as '#'.
std::string without_sizes(const std::string& text) {
  std::istringstream lines(text);
  std::string out;
  for (std::string line; std::getline(lines, line); out += line + '\n') {
    const bool sizes = line.find(" Param ") != line.npos || line.find(" Const index ") != line.npos;
    if (!sizes) continue;
    const size_t from = line.find(' ') + 1;
    std::string shorter = line.substr(0, from);
    for (size_t i = from; i < line.size(); ++i)
      if (!std::isdigit(static_cast<unsigned char>(line[i])))
        shorter += line[i];
      else if (shorter.back() != '#')
        shorter += '#';
    line = shorter;
  }
  return out;
}

std::vector<std::string> fields_of(const std::string& line) {
  std::vector<std::string> out;
  std::istringstream in(line);
  for (std::string field; std::getline(in, field, '\t');) out.push_back(field);
  return out;
}

std::string number(double v) {
  char text[32];
  std::snprintf(text, sizeof text, "%.9g", v);
  return text;
}

Outcome outcome_named(const std::string& name) {
  int i = 0;
  while (i < static_cast<int>(Outcome::Rejected) && name != name_of(static_cast<Outcome>(i))) ++i;
  return static_cast<Outcome>(i);
}

std::string body_of(const std::string& key, const TryRecord& t) {
  return cat("try\t", key, '\t', t.source, '\t', name_of(t.outcome), '\t', number(t.least), '\t',
             number(t.median), '\t', t.choice);
}
std::string body_of(const std::string& key, const DoneRecord& d) {
  return cat("done\t", key, '\t', d.width, '\t', number(d.budget), '\t', d.exhausted ? 1 : 0, '\t',
             number(d.heuristic), '\t', number(d.best), '\t', d.choice);
}

std::mutex mutex;  // of all caches of this process

}  // namespace

KernelKey key_of_kernel(Node loops, Device& device, const std::string& device_name) {
  const std::string text = tiny::to_text(loops),
                    where = device_name.substr(0, device_name.find(':'));
  const std::string about = cat(kVersion, '\n', where, '\n', to_text(device.target()), '\n',
                                device.compiler_id(), '\n', env_kernel_key(), '\n');
  std::string shown = cat(where, " ", device.target().arch, " ", device.compiler_id());
  std::replace_if(
      shown.begin(), shown.end(), [](char c) { return c == '\t' || c == '\n'; }, ' ');
  return {hash_of(about + text), hash_of(about + without_sizes(text)), shown};
}

std::string source_key(const Source& source, Device& device) {
  return cache_key(source, device.compiler_id()).substr(0, 16);
}

SearchCache::SearchCache(std::string path) : path_(std::move(path)) {}

SearchCache& SearchCache::current() {
  static auto* open = new std::map<std::string, std::unique_ptr<SearchCache>>;
  std::string path = env_text("BEAM_CACHE");
  if (const std::string folder = cache_folder(); path.empty() && !folder.empty())
    path = folder + "/beam.txt";
  std::lock_guard lock(mutex);
  auto& slot = (*open)[path];
  if (!slot) slot = std::make_unique<SearchCache>(path);
  return *slot;
}

// One line; false where it is damaged or of another version.
bool SearchCache::take(const std::string& line) {
  const size_t tab = line.find('\t');
  if (tab == line.npos || checked(line.substr(tab + 1)) != line) return false;
  const std::vector<std::string> f = fields_of(line.substr(tab + 1));
  if (f.size() < 2) return false;
  const auto slot = [&]() -> KernelRecord& {
    const auto [at, fresh] = kernels_.try_emplace(f[1]);
    if (fresh) order_.push_back(f[1]);
    at->second.key = f[1];
    return at->second;
  };
  try {
    if (f[0] == "kernel" && f.size() == 5) {
      KernelRecord& k = slot();
      k.family = f[2];
      k.name = f[3];
      k.device = f[4];
    } else if (f[0] == "try" && f.size() == 7) {
      slot().tries[f[6]] = {f[2], outcome_named(f[3]), std::stod(f[4]), std::stod(f[5]), f[6]};
    } else if (f[0] == "done" && f.size() == 8) {
      slot().done = {std::stoi(f[2]), std::stod(f[3]), f[4] == "1",
                     std::stod(f[5]), std::stod(f[6]), f[7]};
    } else {
      return false;
    }
  } catch (const std::exception&) {  // a number that is none
    return false;
  }
  return true;
}

// Reads what was added since. A file that became shorter is another one.
void SearchCache::refresh() {
  struct stat info {};
  if (path_.empty()) return;
  const bool there = stat(path_.c_str(), &info) == 0;
  if (there && info.st_size == read_) return;
  if (!there || info.st_size < read_) {
    kernels_.clear();
    order_.clear();
    read_ = 0;
  }
  std::ifstream in(path_, std::ios::binary);
  in.seekg(read_);
  for (std::string line; std::getline(in, line);) {
    if (in.eof()) break;  // somebody is still writing it
    read_ += static_cast<int64_t>(line.size()) + 1;
    take(line);
  }
}

// A line that cannot be written is only known in this process.
void SearchCache::append(std::string body) {
  const std::string line = checked(body);
  std::lock_guard lock(mutex);
  refresh();
  if (path_.empty()) {
    take(line);
    return;
  }
  std::error_code status;
  const auto folder = std::filesystem::path(path_).parent_path();
  if (!folder.empty()) std::filesystem::create_directories(folder, status);
  const int file = open(path_.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
  const std::string text = line + "\n";
  const bool written = file >= 0 && flock(file, LOCK_EX) == 0 &&
                       write(file, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  if (file >= 0) close(file);
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
    if (k->family == key.family && k->key != key.key && k->done) out.push_back(k->done->choice);
  return out;
}

void SearchCache::add(const KernelKey& key, const std::string& name) {
  append(cat("kernel\t", key.key, '\t', key.family, '\t', name, '\t', key.device));
}
void SearchCache::add(const std::string& key, const TryRecord& r) { append(body_of(key, r)); }
void SearchCache::add(const std::string& key, const DoneRecord& r) { append(body_of(key, r)); }

size_t SearchCache::import(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  check(in.good(), "beam cache: cannot read ", path);
  SearchCache other(path);
  size_t count = 0;
  for (const KernelRecord& k : other.all()) {
    const auto known = find(k.key);
    if (!known) add({k.key, k.family, k.device}, k.name), ++count;
    for (const auto& [choice, t] : k.tries)
      if (!known || !known->tries.count(choice)) add(k.key, t), ++count;
    const bool better = k.done && (!known || !known->done || known->done->width < k.done->width);
    if (better) add(k.key, *k.done), ++count;
  }
  return count;
}

size_t SearchCache::drop(const std::string& text) {
  const std::vector<KernelRecord> known = all();
  std::string kept;
  size_t count = 0;
  for (const KernelRecord& k : known) {
    if (k.name.find(text) != k.name.npos || k.key.find(text) != k.key.npos) {
      ++count;
      continue;
    }
    kept += checked(cat("kernel\t", k.key, '\t', k.family, '\t', k.name, '\t', k.device)) + '\n';
    for (const auto& [choice, t] : k.tries) kept += checked(body_of(k.key, t)) + '\n';
    if (k.done) kept += checked(body_of(k.key, *k.done)) + '\n';
  }
  std::lock_guard lock(mutex);
  const std::string part = path_ + ".part";
  std::ofstream(part, std::ios::binary) << kept;
  check(rename(part.c_str(), path_.c_str()) == 0, "beam cache: cannot write ", path_);
  kernels_.clear();
  order_.clear();
  read_ = 0;
  return count;
}

}  // namespace tiny
