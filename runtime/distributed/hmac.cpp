#include "runtime/distributed/hmac.h"

#include <sys/random.h>

#include <cerrno>
#include <cstring>

#include "runtime/device/disk_cache.h"
#include "tiny/base/error.h"

namespace tiny {

std::string hmac_sha256(std::string_view key, std::string_view text) {
  constexpr size_t kBlock = 64;  // bytes that SHA-256 takes at a time
  std::string inner = key.size() > kBlock ? sha256(key) : std::string(key);
  inner.resize(kBlock, '\0');
  std::string outer = inner;
  for (char& c : inner) c ^= 0x36;
  for (char& c : outer) c ^= 0x5c;
  return sha256(outer + sha256(inner.append(text)));
}

bool equal_in_constant_time(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  int different = 0;
  for (size_t i = 0; i < a.size(); ++i) different |= a[i] ^ b[i];
  return different == 0;
}

std::string random_bytes(size_t count) {
  std::string out(count, '\0');
  for (size_t done = 0; done < count;) {
    const ssize_t n = ::getrandom(out.data() + done, count - done, 0);
    if (n < 0 && errno != EINTR) throw DeviceError(cat("getrandom: ", std::strerror(errno)));
    if (n > 0) done += static_cast<size_t>(n);
  }
  return out;
}

}  // namespace tiny
