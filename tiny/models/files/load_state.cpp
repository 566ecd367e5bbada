#include "tiny/models/files/load_state.h"

#include <regex>
#include <unordered_map>

#include "tiny/base/error.h"

namespace tiny {

namespace {

std::regex regex_of(const std::string& pattern) {
  try {
    return std::regex(pattern);
  } catch (const std::regex_error& error) {
    throw Error(cat("rename: ", pattern, " is no regular expression: ", error.what()));
  }
}

class Renamer {
 public:
  explicit Renamer(const std::vector<Rename>& renames) : renames_(renames) {
    for (const Rename& rename : renames)
      patterns_.push_back(rename.is_pattern ? regex_of(rename.from) : std::regex());
  }

  std::string operator()(std::string name) const {
    for (size_t i = 0; i < renames_.size(); ++i) {
      const Rename& rename = renames_[i];
      if (rename.is_pattern)
        name = replaced(name, patterns_[i], rename.to);
      else if (name.starts_with(rename.from))
        name = rename.to + name.substr(rename.from.size());
    }
    return name;
  }

 private:
  // The library's matching goes as deep as a name is long.
  static std::string replaced(const std::string& name, const std::regex& pattern,
                              const std::string& to) {
    constexpr size_t kMax = 1024;
    check(name.size() <= kMax, "rename: a name of ", name.size(), " bytes, expected at most ", kMax,
          ": ", name.substr(0, 80), "...");
    return std::regex_replace(name, pattern, to);
  }

  const std::vector<Rename>& renames_;
  std::vector<std::regex> patterns_;
};

// The names that the file's tensors get, in their order.
std::vector<std::string> new_names(const TensorFile& file, const StateLoadOptions& options) {
  const Renamer rename(options.renames);
  std::vector<std::string> names;
  std::unordered_map<std::string, const FileTensor*> seen;
  for (const FileTensor& tensor : file.tensors()) {
    const auto [at, is_new] = seen.try_emplace(rename(tensor.name), &tensor);
    check(is_new, "load: ", file.path(), ": ", at->second->name, " and ", tensor.name,
          " both become ", at->first);
    names.push_back(at->first);
  }
  return names;
}

}  // namespace

Rename rename_prefix(const std::string& from, const std::string& to) { return {from, to, false}; }

Rename rename_pattern(const std::string& from, const std::string& to) {
  regex_of(from);
  return {from, to, true};
}

std::string StateLoadReport::text() const {
  std::string text;
  for (const std::string& name : missing) text += cat("missing: ", name, '\n');
  for (const std::string& name : unexpected) text += cat("unexpected: ", name, '\n');
  for (const OtherShape& other : other_shape)
    text += cat("shape: ", other.name, " is ", to_text(other.in_file), " in the file and ",
                to_text(other.here), " here\n");
  return text;
}

StateLoadReport load_state(const TensorFile& file, const StateDict& state,
                           const StateLoadOptions& options) {
  std::unordered_map<std::string, const NamedTensor*> wanted;
  for (const NamedTensor& named : state) wanted[named.name] = &named;
  const std::vector<std::string> names = new_names(file, options);
  StateLoadReport report;
  StateDict fitting;
  std::vector<const FileTensor*> sources;
  for (size_t i = 0; i < names.size(); ++i) {
    const FileTensor& tensor = file.tensors()[i];
    const auto at = wanted.find(names[i]);
    if (at == wanted.end()) {
      if (!is_batch_count(names[i])) report.unexpected.push_back(tensor.name);
      continue;
    }
    const NamedTensor& named = *at->second;
    if (same(tensor.shape, named.tensor->shape())) {
      fitting.push_back(named);
      sources.push_back(&tensor);
      report.loaded.push_back(named.name);
    } else {
      report.other_shape.push_back({named.name, tensor.shape, to_shape(named.tensor->shape())});
    }
    wanted.erase(at);
  }
  for (const NamedTensor& named : state)
    if (wanted.contains(named.name)) report.missing.push_back(named.name);
  assign_in_turn(fitting, [&](size_t i) {
    const Tensor& to = *fitting[i].tensor;
    return file.load(sources[i]->name, to.device(), to.dtype());
  });
  return report;
}

StateLoadReport load_state(const std::string& path, const StateDict& state,
                           const StateLoadOptions& options) {
  return load_state(TensorFile(path), state, options);
}

}  // namespace tiny
