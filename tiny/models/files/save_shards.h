// Writing tensors as safetensors, in one file or in shards with an index.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tiny/models/files/formats/output.h"

namespace tiny {

// Writes the tensors to `path`, "folder/model.safetensors", or, where they are more than
// `max_shard_bytes`, in their order to "model-00001-of-00003.safetensors" and so on, with
// "model.safetensors.index.json" beside them; a tensor larger than that has a shard of its own. All
// files are written aside and renamed when the last is complete, and what is left of the other form
// (the one file, the index) is removed, so that whoever opens the folder sees the new tensors.
// Throws Error for types that the format lacks, and as stream_safetensors.
void save_shards(const std::string& path, const std::vector<OutputTensor>& tensors,
                 int64_t max_shard_bytes = int64_t{5} << 30,
                 const std::map<std::string, std::string>& metadata = {{"format", "pt"}});

}  // namespace tiny
