// Saved tensors: the safetensors container (8 bytes of header length, a JSON header, the data;
// the format is described at github.com/huggingface/safetensors). A file is mapped, and of its data
// only what is asked for is read; tiny/models/files has the files of whole models.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tiny/base/file.h"
#include "tiny/ir/dtype.h"
#include "tiny/ir/shape.h"

namespace tiny {

// --- What a file has -----------------------------------------------------------------------------

// A type of the format's elements. Those of fewer than 8 bits are packed without gaps.
struct SafetensorsType {
  const char* name;  // "BF16"
  int bits;          // of an element
  DType dtype;       // of tensors; kVoid where they have none
};

// The format's name of a dtype. Throws Error for one that it lacks.
std::string safetensors_name(DType dtype);

// What the header says of one tensor. Its bytes lie in the file.
struct SafetensorsEntry {
  std::string name;
  const SafetensorsType* type;
  Shape shape;
  int64_t begin, bytes;  // in the file
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> entries;  // in the order of their data
  std::map<std::string, std::string> metadata;
};

// Throws Error for a file that is in any way inconsistent: the message names the file, the tensor,
// the expected and the found bytes. `file` was opened as "safetensors".
SafetensorsHeader read_safetensors_header(const MappedFile& file);

// Throws Error unless each byte of the BOOLs there is 0 or 1: any other would be no bool in C++.
void check_bools(const MappedFile& file, const std::string& name, int64_t begin, int64_t bytes);

// --- Writing -------------------------------------------------------------------------------------

// A tensor to be written, whose bytes come when it is its turn: so the host holds one at a time.
using ByteSink = std::function<void(std::string_view)>;
struct SafetensorsOutput {
  std::string name;
  std::string type;  // a name of the format
  Shape shape;
  std::function<void(const ByteSink&)> write;  // gives all bytes, row-major and little-endian
};

// Bytes that the tensor takes. Throws Error, as if `path` were written, for a type that the format
// lacks and a shape that does not fill whole bytes.
int64_t bytes_of(const std::string& path, const SafetensorsOutput& tensor);

// Writes the tensors, those of larger elements first and otherwise in the given order: so each is
// aligned to its element size without the gaps that the format forbids. The same arguments give the
// same bytes. The file is written aside and renamed, so that a failure leaves what was there.
// Throws Error for a name given twice, a type that the format lacks, data that does not fit its
// shape, and where the file cannot be written.
void stream_safetensors(const std::string& path, const std::vector<SafetensorsOutput>& tensors,
                        const std::map<std::string, std::string>& metadata = {});
// The same into a file that the caller commits.
void stream_safetensors(FileAside& file, const std::vector<SafetensorsOutput>& tensors,
                        const std::map<std::string, std::string>& metadata);

// --- Whole files on the host ---------------------------------------------------------------------

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

// As stream_safetensors.
void write_safetensors(const std::string& path, const std::vector<StateEntry>& entries,
                       const std::map<std::string, std::string>& metadata = {});

// As read_safetensors_header; moreover for a type that tensors lack, and for more than this
// machine's memory.
SafetensorsFile read_safetensors(const std::string& path);

}  // namespace tiny
