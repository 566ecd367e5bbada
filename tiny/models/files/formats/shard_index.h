// The index of a model in several safetensors files: "model.safetensors.index.json", as Hugging
// Face's libraries write it.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tiny/models/files/formats/metadata.h"

namespace tiny {

struct ShardIndex {
  Metadata metadata;                                        // texts and numbers, as "total_size"
  std::vector<std::pair<std::string, std::string>> shards;  // of each tensor the file's name
};

// Throws Error for what is no such index, a tensor that is there twice, and the name of a file in
// another folder.
ShardIndex read_shard_index(const std::string& path);

// The text of an index of which the metadata are the bytes of all tensors.
std::string shard_index_text(const std::vector<std::pair<std::string, std::string>>& shards,
                             int64_t total_bytes);

}  // namespace tiny
