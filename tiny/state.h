// Saved tensors: the safetensors container (8 bytes of header length, a JSON header, the data;
// the format is described at github.com/huggingface/safetensors).
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tiny/dtype.h"

namespace tiny {

// One tensor on the host, row-major and little-endian.
struct StateEntry {
  std::string name;
  DType dtype;
  std::vector<int64_t> shape;
  std::vector<std::byte> data;
};

struct SafetensorsFile {
  std::vector<StateEntry> entries;  // in the order of their data
  std::map<std::string, std::string> metadata;
};

// Writes the entries, those of larger elements first and otherwise in the given order: so each is
// aligned to its element size without the gaps that the format forbids. The same arguments give the
// same bytes. The file is written aside and renamed, so that a failure leaves what was there.
// Throws Error for a name given twice, a dtype that the format lacks, data that does not fit its
// shape and a place where no file can be made, DeviceError when writing fails.
void write_safetensors(const std::string& path, const std::vector<StateEntry>& entries,
                       const std::map<std::string, std::string>& metadata = {});

// Throws Error for a file that is missing or in any way inconsistent: the message names the file,
// the tensor, the expected and the found bytes.
SafetensorsFile read_safetensors(const std::string& path);

}  // namespace tiny
