#include "tiny/models/files/save_shards.h"

#include <deque>
#include <filesystem>
#include <unordered_set>
#include <utility>

#include "tiny/base/error.h"
#include "tiny/base/file.h"
#include "tiny/models/files/formats/shard_index.h"

namespace tiny {

namespace {

constexpr std::string_view kEnd = ".safetensors";

struct Shard {
  std::vector<SafetensorsOutput> tensors;
  int64_t bytes = 0;
};

SafetensorsOutput converted(const std::string& path, const OutputTensor& tensor) {
  check(tensor.type->safetensors, "safetensors: ", path, ": tensor ", tensor.name,
        ": the format has no type ", tensor.type->name);
  return {tensor.name, tensor.type->name, tensor.shape, tensor.write};
}

std::vector<Shard> cut(const std::string& path, const std::vector<OutputTensor>& tensors,
                       int64_t max_shard_bytes) {
  std::vector<Shard> shards(1);
  std::unordered_set<std::string> names;
  for (const OutputTensor& tensor : tensors) {
    check(names.insert(tensor.name).second, "safetensors: ", path, ": tensor ", tensor.name,
          ": the name is given twice");
    SafetensorsOutput out = converted(path, tensor);
    const int64_t bytes = bytes_of(path, out);
    if (!shards.back().tensors.empty() && bytes > max_shard_bytes - shards.back().bytes)
      shards.emplace_back();
    shards.back().tensors.push_back(std::move(out));
    shards.back().bytes += bytes;
  }
  return shards;
}

}  // namespace

void save_shards(const std::string& path, const std::vector<OutputTensor>& tensors,
                 int64_t max_shard_bytes, const std::map<std::string, std::string>& metadata) {
  check(path.ends_with(kEnd), "save_shards: ", path, " is no name of a ", kEnd, " file");
  check(max_shard_bytes > 0, "save_shards: shards of ", max_shard_bytes, " bytes");
  const std::vector<Shard> shards = cut(path, tensors, max_shard_bytes);
  const std::string stem = path.substr(0, path.size() - kEnd.size());
  const std::string index_path = path + ".index.json";
  const bool is_one = shards.size() == 1;
  std::deque<FileAside> files;
  std::vector<std::pair<std::string, std::string>> places;
  int64_t total = 0;
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string name =
        is_one ? path : stem + formatted("-%05zu-of-%05zu.safetensors", i + 1, shards.size());
    stream_safetensors(files.emplace_back("safetensors", name), shards[i].tensors, metadata);
    total += shards[i].bytes;
    for (const SafetensorsOutput& tensor : shards[i].tensors)
      places.emplace_back(tensor.name, std::filesystem::path(name).filename().string());
  }
  if (!is_one) files.emplace_back("safetensors", index_path).write(shard_index_text(places, total));
  for (FileAside& file : files) file.commit();
  std::error_code status;  // it need not be there
  std::filesystem::remove(is_one ? index_path : path, status);
}

}  // namespace tiny
