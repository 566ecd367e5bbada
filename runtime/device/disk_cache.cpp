#include "runtime/device/disk_cache.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <mutex>
#include <set>
#include <vector>

#include "tiny/base/env.h"
#include "tiny/base/error.h"
#include "tiny/base/file.h"

namespace tiny {
namespace {

namespace fs = std::filesystem;

// A file: magic, length of the binary (8 bytes, native order), SHA-256 of key and binary, binary.
// The key is in the checksum so that an entry under a wrong name is not run.
constexpr std::string_view kMagic = "tinyker1";
constexpr int64_t kHashBytes = 32, kHeaderBytes = 8 + 8 + kHashBytes;
constexpr int64_t kMaxFileBytes = 256 << 20;  // of a file of the cache
constexpr const char* kEnding = ".kernel";
constexpr const char* kPartEnding = ".part";
constexpr auto kPartLife = std::chrono::hours(1);  // an older unfinished file has no writer

// ------------------------------------------------------------------------------ SHA-256

// Fractional parts of the cube roots of the first 64 primes.
constexpr std::array<uint32_t, 64> kRound = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

using HashState = std::array<uint32_t, 8>;

// Fractional parts of the square roots of the first 8 primes.
constexpr HashState kInitial = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

uint32_t load_big_endian(const unsigned char* p) {
  return uint32_t{p[0]} << 24 | uint32_t{p[1]} << 16 | uint32_t{p[2]} << 8 | p[3];
}

// Section 6.2.2 of the standard; `block` has 64 bytes.
void hash_block(HashState& state, const unsigned char* block) {
  using std::rotr;
  std::array<uint32_t, 64> w;
  for (int t = 0; t < 16; t++) w[t] = load_big_endian(block + 4 * t);
  for (int t = 16; t < 64; t++) {
    const uint32_t small0 = rotr(w[t - 15], 7) ^ rotr(w[t - 15], 18) ^ (w[t - 15] >> 3);
    const uint32_t small1 = rotr(w[t - 2], 17) ^ rotr(w[t - 2], 19) ^ (w[t - 2] >> 10);
    w[t] = small1 + w[t - 7] + small0 + w[t - 16];
  }
  auto [a, b, c, d, e, f, g, h] = state;
  for (int t = 0; t < 64; t++) {
    const uint32_t choose = (e & f) ^ (~e & g), majority = (a & b) ^ (a & c) ^ (b & c);
    const uint32_t t1 = h + (rotr(e, 6) ^ rotr(e, 11) ^ rotr(e, 25)) + choose + kRound[t] + w[t];
    const uint32_t t2 = (rotr(a, 2) ^ rotr(a, 13) ^ rotr(a, 22)) + majority;
    h = g, g = f, f = e, e = d + t1, d = c, c = b, b = a, a = t1 + t2;
  }
  const HashState change = {a, b, c, d, e, f, g, h};
  for (int i = 0; i < 8; i++) state[i] += change[i];
}

// -------------------------------------------------------------------------------- files

// Why a file or a folder is not taken: who else may write to it could have a program run anything.
std::string why_untrusted(const struct stat& info) {
  if (info.st_uid != geteuid())
    return cat("it belongs to user ", info.st_uid, ", not to user ", geteuid());
  if (info.st_mode & (S_IWGRP | S_IWOTH))
    return cat("others may write to it: chmod ", S_ISDIR(info.st_mode) ? "700" : "600");
  return "";
}

// Once for each path: a cache that is not used costs time at every start.
void say_unused(const std::string& path, const std::string& why) {
  static std::mutex mutex;
  static auto* said = new std::set<std::string>;
  const std::lock_guard lock(mutex);
  if (said->insert(path).second) std::cerr << cat("the cache ", path, " is not used: ", why, "\n");
}

// The folder, which entries are opened in: what is at its path may change. None where there is none
// or it is not trusted.
Descriptor open_folder(const std::string& path) {
  Descriptor folder(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  struct stat info {};
  if (!folder.ok() || fstat(folder.get(), &info) != 0) return Descriptor(-1);
  const std::string why = why_untrusted(info);
  if (why.empty()) return folder;
  say_unused(path, why);
  return Descriptor(-1);
}

std::string header_of(const std::string& key, std::string_view binary) {
  const uint64_t length = binary.size();
  std::string header(kMagic);
  header.append(reinterpret_cast<const char*>(&length), sizeof(length));
  return header + sha256(cat(key, binary));
}

// Of no other write of this process or of another one that runs now.
std::string part_name() {
  static std::atomic<uint64_t> count{0};
  const auto now = std::chrono::steady_clock::now().time_since_epoch().count();
  return cat(getpid(), "-", now, "-", count++, kPartEnding);
}

struct CacheFile {
  fs::path path;
  fs::file_time_type used;
  int64_t bytes = 0;
};

// The entries of a folder; unfinished files that nobody writes any more are removed on the way.
std::vector<CacheFile> list_entries(const std::string& folder) {
  std::vector<CacheFile> entries;
  const auto oldest = fs::file_time_type::clock::now() - kPartLife;
  std::error_code status;
  for (fs::directory_iterator it(folder, status), end; !status && it != end; it.increment(status)) {
    std::error_code gone;  // another process may remove files meanwhile
    const auto used = it->last_write_time(gone);
    const auto bytes = gone ? 0 : it->file_size(gone);
    if (gone) continue;
    const fs::path extension = it->path().extension();
    const bool useless = extension == kEnding ? bytes > static_cast<uintmax_t>(kMaxFileBytes)
                                              : extension == kPartEnding && used < oldest;
    if (useless)
      fs::remove(it->path(), gone);
    else if (extension == kEnding)
      entries.push_back({it->path(), used, static_cast<int64_t>(bytes)});
  }
  return entries;
}

// Lists of the folder are expensive, so one in 64 keys has it checked: that needs no state, and
// the bound is overshot by the size of some 64 kernels.
bool is_check_due(const std::string& key) { return key.compare(0, 2, "04") < 0; }

}  // namespace

std::string sha256(std::string_view bytes) {
  HashState state = kInitial;
  const auto* data = reinterpret_cast<const unsigned char*>(bytes.data());
  const size_t whole = bytes.size() / 64 * 64;
  for (size_t i = 0; i < whole; i += 64) hash_block(state, data + i);
  // The rest is padded with a one bit, zeros, and the number of bits, big endian.
  std::string tail(bytes.substr(whole));
  tail.push_back('\x80');
  tail.resize(tail.size() <= 56 ? 56 : 120, '\0');
  const uint64_t bits = uint64_t{bytes.size()} * 8;
  for (int shift = 56; shift >= 0; shift -= 8) tail.push_back(static_cast<char>(bits >> shift));
  for (size_t i = 0; i < tail.size(); i += 64)
    hash_block(state, reinterpret_cast<const unsigned char*>(tail.data()) + i);
  std::string digest;
  for (uint32_t word : state)
    for (int shift = 24; shift >= 0; shift -= 8) digest.push_back(static_cast<char>(word >> shift));
  return digest;
}

std::string hex(std::string_view bytes) {
  std::string out;
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    out.push_back("0123456789abcdef"[byte >> 4]);
    out.push_back("0123456789abcdef"[byte & 15]);
  }
  return out;
}

std::string cache_key(const Source& source, std::string_view compiler_id) {
  // Lengths keep the parts apart: no two different sources give the same text.
  const std::string all = cat("kernel ", static_cast<int>(source.language), " ", source.is_gemm,
                              " ", source.entry.size(), " ", compiler_id.size(), " ", source.entry,
                              compiler_id, source.text);
  return hex(sha256(all));
}

void make_folders(const std::string& path) {
  for (size_t at = 0; at != path.npos;) {
    at = path.find('/', at + 1);
    mkdir(path.substr(0, at).c_str(), 0700);
  }
}

Descriptor open_own_file(int folder, const std::string& path, int flags, int64_t& size) {
  constexpr int kSafe = O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
  Descriptor file(openat(folder, path.c_str(), flags | kSafe, 0600));
  struct stat info {};
  const bool plain = file.ok() && fstat(file.get(), &info) == 0 && S_ISREG(info.st_mode);
  size = info.st_size;
  if (!plain || size > kMaxFileBytes) return Descriptor(-1);
  const std::string why = why_untrusted(info);
  if (why.empty()) return file;
  if (folder == AT_FDCWD) say_unused(path, why);  // entries are many
  return Descriptor(-1);
}

std::optional<std::string> cache_get(const std::string& path, const std::string& key) {
  const Descriptor folder = open_folder(path);
  if (!folder.ok()) return std::nullopt;
  int64_t size = 0;
  const Descriptor file = open_own_file(folder.get(), key + kEnding, O_RDONLY, size);
  if (!file.ok() || size < kHeaderBytes) return std::nullopt;
  std::string bytes(static_cast<size_t>(size), '\0');
  if (read_some(file.get(), 0, bytes.data(), size) != size) return std::nullopt;
  const std::string_view binary = std::string_view(bytes).substr(kHeaderBytes);
  if (bytes.compare(0, kHeaderBytes, header_of(key, binary)) != 0) return std::nullopt;
  futimens(file.get(), nullptr);  // now; who may only read loses nothing but the order of use
  return bytes.substr(kHeaderBytes);
}

void cache_put(const std::string& path, const std::string& key, const std::string& binary) {
  make_folders(path);
  const Descriptor folder = open_folder(path);
  if (!folder.ok()) return;
  const std::string part = part_name();
  const Descriptor file(
      openat(folder.get(), part.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!file.ok()) return;
  const bool written =
      write_all(file.get(), header_of(key, binary)) && write_all(file.get(), binary);
  if (!written || renameat(folder.get(), part.c_str(), folder.get(), (key + kEnding).c_str()) != 0)
    unlinkat(folder.get(), part.c_str(), 0);
}

void cache_trim(const std::string& folder, int64_t limit) {
  std::vector<CacheFile> entries = list_entries(folder);
  int64_t total = 0;
  for (const CacheFile& entry : entries) total += entry.bytes;
  if (total <= limit) return;
  std::ranges::sort(entries, {}, &CacheFile::used);
  for (const CacheFile& entry : entries) {
    if (total <= limit / 4 * 3) return;
    std::error_code status;
    fs::remove(entry.path, status);
    total -= entry.bytes;
  }
}

namespace {

std::string wanted_folder() {
  if (std::string folder = env_text("CACHE_DIR"); !folder.empty()) return folder;
  if (const char* base = std::getenv("XDG_CACHE_HOME"); base && *base) return cat(base, "/tiny");
  if (const char* home = std::getenv("HOME"); home && *home) return cat(home, "/.cache/tiny");
  return "";
}

}  // namespace

std::string cache_folder() {
  if (env_int("CACHE") == 0) return "";
  const std::string folder = wanted_folder();
  struct stat info {};
  if (folder.empty() || stat(folder.c_str(), &info) != 0) return folder;
  const std::string why = why_untrusted(info);
  if (why.empty()) return folder;
  say_unused(folder, why);
  return "";
}

std::string cached_compile(Device& device, const Source& source) {
  const std::string folder = cache_folder();
  if (folder.empty()) return device.compile(source);
  const std::string key = cache_key(source, device.compiler_id());
  if (auto binary = cache_get(folder, key)) return *std::move(binary);
  std::string binary = device.compile(source);
  cache_put(folder, key, binary);
  if (is_check_due(key)) cache_trim(folder, env_int("CACHE_MB") << 20);
  return binary;
}

}  // namespace tiny
