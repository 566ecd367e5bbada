// GGUF, the files of llama.cpp: typed metadata and tensors in many quantised types, versions 2 and
// 3, little-endian. The format is described in docs/gguf.md of github.com/ggml-org/ggml.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "tiny/base/file.h"
#include "tiny/ir/shape.h"
#include "tiny/models/files/formats/metadata.h"
#include "tiny/models/files/formats/output.h"
#include "tiny/models/files/formats/stored_type.h"

namespace tiny {

struct GgufTensor {
  std::string name;
  const StoredType* type;
  Shape shape;           // row-major: the file lists the axes the other way round
  int64_t begin, bytes;  // in the file
};

struct GgufHeader {
  int version = 0;
  Metadata metadata;
  std::vector<GgufTensor> tensors;  // in the order of the header
};

// Throws Error for a file that is in any way inconsistent: truncated, sizes that do not fit it,
// tensors that overlap, a key or a name twice, types that are unknown, a version other than 2 and 3
// and the byte order of big-endian machines. What it allocates is at most a small multiple of the
// header in the file. `file` was opened as "gguf".
GgufHeader read_gguf_header(const MappedFile& file);

// Writes the file aside and renames it. The alignment is general.alignment of the metadata, or 32.
// Throws Error for types that GGUF lacks, names given twice or of more than 63 bytes (which
// llama.cpp does not read), more than 4 axes, rows that are not of whole blocks, an alignment that
// is no power of two of at least 8, and where the file cannot be written.
void write_gguf(const std::string& path, const Metadata& metadata,
                const std::vector<OutputTensor>& tensors, int version = 3);

}  // namespace tiny
