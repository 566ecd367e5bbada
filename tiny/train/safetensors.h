// Saved tensors: the safetensors container (8 bytes of header length, a JSON header, the data;
// the format is described at github.com/huggingface/safetensors).
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "tiny/ir/dtype.h"

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
// shape, and where the file cannot be written.
void write_safetensors(const std::string& path, const std::vector<StateEntry>& entries,
                       const std::map<std::string, std::string>& metadata = {});

// Sees what the header says, in entries without data, before any of it takes memory; may throw.
using HeaderCheck = std::function<void(const SafetensorsFile&)>;

// Throws Error for a file that is missing, no plain file or in any way inconsistent: the message
// names the file, the tensor, the expected and the found bytes.
SafetensorsFile read_safetensors(const std::string& path, const HeaderCheck& fits = {});

}  // namespace tiny
