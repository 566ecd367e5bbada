// Compiled kernels on disk, one file each. A file's name is a hash of all inputs of the
// compilation, and its content carries a checksum: a damaged file counts as absent, as does
// anything but a plain file. Processes may share a folder, users may not: whoever can write there
// has programs run his code. Nothing here throws because of the disk: a cache that cannot be used
// is none.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/device/device.h"
#include "tiny/base/file.h"

namespace tiny {

// The kernel's binary from the cache, else compiled by the device and kept. Throws what
// device.compile throws. Obeys CACHE, CACHE_DIR and CACHE_MB.
std::string cached_compile(Device& device, const Source& source);

// CACHE_DIR, else $XDG_CACHE_HOME/tiny, else ~/.cache/tiny; empty when there is to be no cache, or
// when the folder is another user's or others may write to it, which it says once.
std::string cache_folder();

// Hash of source, entry, language, `is_gemm` and compiler: 64 hexadecimal digits.
std::string cache_key(const Source& source, std::string_view compiler_id);

// The entry of that key, or nothing; reading marks it as used just now.
std::optional<std::string> cache_get(const std::string& folder, const std::string& key);

// Writes or replaces an entry; the folder is made, for this user alone, when missing.
void cache_put(const std::string& folder, const std::string& key, const std::string& binary);

// When the entries take more than `limit` bytes, removes those used longest ago until they take
// three quarters of it. Also removes what interrupted writes have left behind.
void cache_trim(const std::string& folder, int64_t limit);

// The folders of a path that are missing, for this user alone.
void make_folders(const std::string& path);

// A file of the cache at a path, or one in an open folder; made with O_CREAT for this user alone.
// None, without waiting, where it is no plain file, is larger than entries are, another user's, or
// one that others may write to.
Descriptor open_own_file(int folder, const std::string& path, int flags, int64_t& size);

// SHA-256 (FIPS 180-4) as 32 bytes; bytes as hexadecimal digits.
std::string sha256(std::string_view bytes);
std::string hex(std::string_view bytes);

}  // namespace tiny
