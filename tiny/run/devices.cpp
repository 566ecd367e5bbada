#include "tiny/run/devices.h"

#include <charconv>

#include "tiny/base/error.h"
#include "tiny/tensor/tensor.h"

namespace tiny {

std::vector<std::string> devices_from(const std::string& first, int64_t count) {
  check(count >= 1, "devices_from: ", count, " devices; there has to be one");
  const std::string name = first.empty() ? runtime_seam::default_device() : first;
  const size_t colon = name.rfind(':');
  // "EMU:CUDA:sm_80" ends in no number.
  int64_t number = 0;
  std::string kind = name;
  if (colon != std::string::npos) {
    const char* end = name.data() + name.size();
    const auto read = std::from_chars(name.data() + colon + 1, end, number);
    if (read.ec == std::errc() && read.ptr == end)
      kind = name.substr(0, colon);
    else
      number = 0;
  }
  std::vector<std::string> out;
  for (int64_t i = number; i < number + count; ++i)
    out.push_back(i == 0 ? kind : cat(kind, ':', i));
  return out;
}

}  // namespace tiny
