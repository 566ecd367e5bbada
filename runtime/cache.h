// Compiled kernels on disk, one file each. A file's name is a hash of everything that the binary
// depends on, and its content carries a checksum: a damaged file counts as absent. Processes may
// share a folder. Nothing here throws because of the disk: a cache that cannot be used is none.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/device.h"

namespace tiny {

// The kernel's binary from the cache, else compiled by the device and kept. Throws what
// device.compile throws. Obeys CACHE, CACHE_DIR and CACHE_MB.
std::string cached_compile(Device& device, const Source& source);

// CACHE_DIR, else $XDG_CACHE_HOME/tiny, else ~/.cache/tiny; empty when there is to be no cache.
std::string cache_folder();

// Hash of source, entry, language, `heavy` and compiler: 64 hexadecimal digits.
std::string cache_key(const Source& source, std::string_view compiler_id);

// The entry of that key, or nothing; reading marks it as used just now.
std::optional<std::string> cache_get(const std::string& folder, const std::string& key);

// Writes or replaces an entry; the folder is made when missing.
void cache_put(const std::string& folder, const std::string& key, const std::string& binary);

// When the entries take more than `limit` bytes, removes those used longest ago until they take
// three quarters of it. Also removes what interrupted writes have left behind.
void cache_trim(const std::string& folder, int64_t limit);

// SHA-256 (FIPS 180-4) as 32 bytes; bytes as hexadecimal digits.
std::string sha256(std::string_view bytes);
std::string hex(std::string_view bytes);

}  // namespace tiny
