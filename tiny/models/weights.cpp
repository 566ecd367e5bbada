#include "tiny/models/weights.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <set>

#include "tiny/base/file.h"
#include "tiny/train/safetensors.h"

namespace tiny::models {

namespace {

std::string read_text(const std::string& path) {
  const InputFile file("models::load", path);
  constexpr int64_t kMost = int64_t{256} << 20;  // indices of the largest models have some MB
  check(file.size() <= kMost, "models::load: ", path, " has ", file.size(), " bytes");
  std::string text(static_cast<size_t>(file.size()), '\0');
  file.read_at(0, text.data(), file.size());
  return text;
}

bool exists(const std::string& path) {
  std::error_code status;
  return std::filesystem::exists(path, status);
}

// The files that hold a folder's tensors.
std::vector<std::string> weight_files(const std::string& folder) {
  const std::string whole = folder + "/model.safetensors", index = whole + ".index.json";
  if (exists(whole)) return {whole};
  check(exists(index), "models::load: there is neither model.safetensors nor ",
        "model.safetensors.index.json in ", folder);
  std::set<std::string> files;
  for (const std::string& name :
       Fields::parse(read_text(index), index).object({"weight_map"}).values())
    files.insert(name);
  for (const std::string& name : files)
    check(name.find('/') == name.npos && name != "..", "models::load: ", index, ": weight_map has ",
          name, ", expected a file of the same folder");
  std::vector<std::string> out;
  for (const std::string& name : files) out.push_back(cat(folder, "/", name));
  return out;
}

}  // namespace

// The one place that reads files of weights.
WeightFiles open_weights(const std::string& folder) {
  using Entries = std::map<std::string, StateEntry>;
  const auto entries = std::make_shared<Entries>();
  WeightFiles out;
  for (const std::string& path : weight_files(folder))
    for (StateEntry& entry : read_safetensors(path).entries) {
      check(!entries->contains(entry.name), "models::load: ", path, ": ", entry.name,
            " is in another file too");
      out.names.push_back(entry.name);
      entries->emplace(entry.name, std::move(entry));
    }
  out.view = [entries](const std::string& name) {
    const StateEntry& e = entries->at(name);
    return WeightView{e.dtype, Shape(e.shape.begin(), e.shape.end()), e.data};
  };
  return out;
}

namespace {

std::string replaced_end(const std::string& name, const std::string& end, const std::string& by) {
  return name.ends_with(end) ? name.substr(0, name.size() - end.size()) + by : std::string();
}

// A layer's tensor: "model.layers.3." and what follows; nothing for others.
struct LayerName {
  std::string layer, rest;
};
std::optional<LayerName> layer_name(const TensorNames& names, const std::string& name) {
  if (!name.starts_with(names.layers)) return {};
  const size_t number = std::string(names.layers).size(), point = name.find('.', number);
  return LayerName{name.substr(0, point + 1), name.substr(point + 1)};
}

// Where the pieces of a model's tensor are in files. One piece: the tensor itself. Several:
// experts, (out, in) each, one after the other, of which each has one or two.
std::vector<std::string> pieces_of(const Architecture& row, const ModelConfig& config,
                                   const std::string& name) {
  const auto at = layer_name(row.names, name);
  const ExpertFileNames& files = row.expert_files;
  if (!at || !files.experts) return {name};
  if (at->rest == cat(row.names.router, "weight")) return {cat(at->layer, files.router, "weight")};
  const bool both = at->rest == cat(row.names.experts, "gate_up_proj");
  if (!both && at->rest != cat(row.names.experts, "down_proj")) return {name};
  std::vector<std::string> out;
  for (int64_t e = 0; e < config.experts.count; ++e) {
    const std::string expert = cat(at->layer, files.experts, e, ".");
    if (both) out.push_back(cat(expert, files.gate, ".weight"));
    out.push_back(cat(expert, both ? files.up : files.down, ".weight"));
  }
  return out;
}

// Names of a folder's tensors, as a model looks for them.
class Finder {
 public:
  Finder(const WeightFiles& files, const Architecture& row)
      : names_(files.names.begin(), files.names.end()), row_(row) {}

  // The name in the files; empty where it is not there.
  std::string find(const std::string& name) {
    for (const std::string& spelling : spellings(name)) {
      if (!names_.contains(spelling)) continue;
      used_.insert(spelling);
      return spelling;
    }
    return {};
  }

  std::vector<std::string> unused() const {
    std::vector<std::string> out;
    std::set_difference(names_.begin(), names_.end(), used_.begin(), used_.end(),
                        std::back_inserter(out));
    return out;
  }

 private:
  // As it is; as files of a model without a head have it; of the part for texts of a model of texts
  // and pictures; with the names that norms had in BERT's first files.
  std::vector<std::string> spellings(const std::string& name) const {
    std::vector<std::string> out{name};
    const std::string base = row_.names.base;
    if (name.starts_with(base)) out.push_back(name.substr(base.size()));
    out.push_back("language_model." + name);
    for (size_t i = 0, n = out.size(); i < n; ++i)
      for (const std::string& old : {replaced_end(out[i], "LayerNorm.weight", "LayerNorm.gamma"),
                                     replaced_end(out[i], "LayerNorm.bias", "LayerNorm.beta")})
        if (!old.empty()) out.push_back(old);
    return out;
  }

  std::set<std::string> names_, used_;
  const Architecture& row_;
};

// What a tensor of the model is read from.
struct Source {
  Tensor* tensor;
  std::vector<std::string> pieces;
};

// The shape that each of the pieces of a tensor should have.
Shape piece_shape(const NamedTensor& named, const std::vector<std::string>& pieces) {
  const Tensor& t = *named.tensor;
  if (t.rank() != 3 || pieces[0] == named.name) return to_shape(t.shape());
  const int64_t each = std::ssize(pieces) / t.size(0);
  return {t.size(1) / each, t.size(2)};
}

void read_into(const WeightFiles& files, const Source& source, const LoadOptions& options) {
  const Shape shape = to_shape(source.tensor->shape());
  const WeightView first = files.view(source.pieces[0]);
  Tensor value;
  if (source.pieces.size() == 1) {
    value = Tensor::from_bytes(first.bytes.data(), first.dtype, shape, options.device);
  } else {
    std::vector<std::byte> all;
    for (const std::string& piece : source.pieces) {
      const WeightView view = files.view(piece);
      all.insert(all.end(), view.bytes.begin(), view.bytes.end());
    }
    value = Tensor::from_bytes(all.data(), first.dtype, shape, options.device);
  }
  const DType dtype = options.dtype.value_or(first.dtype);
  if (first.dtype != dtype) value = value.to(dtype).realize();
  *source.tensor = value.requires_grad_();
}

// The pieces of all tensors. Error with those that are missing or of another shape or dtype.
std::vector<Source> find_sources(const WeightFiles& files, const std::string& folder,
                                 const Architecture& row, Transformer& model, Finder& finder) {
  std::string wrong;
  std::vector<Source> out;
  for (const NamedTensor& named : model.state_dict()) {
    // Files may have experts in one tensor already.
    std::vector<std::string> pieces{named.name};
    if (finder.find(named.name).empty()) pieces = pieces_of(row, model.config(), named.name);
    Source source{named.tensor, {}};
    for (const std::string& piece : pieces) {
      const std::string name = finder.find(piece);
      const Shape wanted = piece_shape(named, pieces);
      if (name.empty()) {
        wrong += cat("\n  missing: ", piece, " ", to_text(wanted));
        continue;
      }
      source.pieces.push_back(name);
      const WeightView view = files.view(name);
      if (!same(view.shape, wanted))
        wrong += cat("\n  shape: ", name, " is ", to_text(view.shape), " in the file and ",
                     to_text(wanted), " in the model");
      if (!view.dtype.is_float() || view.dtype != files.view(source.pieces[0]).dtype)
        wrong += cat("\n  dtype: ", name, " is ", view.dtype, ", expected a float as its parts");
    }
    out.push_back(std::move(source));
  }
  check(wrong.empty(), "models::load: ", folder, " does not fit its config.json:", wrong);
  return out;
}

// Model and end tokens of a folder.
ModelConfig read_config(const std::string& folder) {
  const std::string path = folder + "/config.json", more = folder + "/generation_config.json";
  ModelConfig config = parse_config(read_text(path), path);
  if (exists(more)) {
    const std::vector<int64_t> eos = parse_end_tokens(read_text(more), more);
    if (!eos.empty()) config.eos = eos;
  }
  return config;
}

}  // namespace

Transformer load(const std::string& folder, const LoadOptions& options, LoadReport* report) {
  if (options.dtype)
    check(options.dtype->is_float(), "models::load: parameters of dtype ", *options.dtype,
          ", expected a float");
  ModelConfig config = read_config(folder);
  config.eager_attention = options.eager_attention;
  Transformer model(config);
  const Architecture& row = find_architecture(model.config().type);
  const WeightFiles files = open_weights(folder);
  Finder finder(files, row);
  const std::vector<Source> sources = find_sources(files, folder, row, model, finder);
  for (const Source& source : sources) read_into(files, source, options);
  // A tied head may be in the files all the same.
  if (model.config().tied && row.names.head) finder.find(cat(row.names.head, "weight"));
  if (report) {
    *report = {std::ssize(sources), 0, finder.unused()};
    for (const Source& source : sources) report->parameters += source.tensor->numel();
  }
  return model;
}

void save(const std::string& folder, Transformer& model) {
  const ModelConfig& config = model.config();
  check(!config.source.empty(), "models::save: ", folder,
        ": the model's configuration was not read from a config.json");
  const Architecture& row = find_architecture(config.type);
  std::filesystem::create_directories(folder);
  std::vector<StateEntry> entries;
  for (const NamedTensor& named : model.state_dict()) {
    const Tensor& t = *named.tensor;
    std::vector<std::byte> bytes(static_cast<size_t>(t.numel() * t.dtype().size()));
    t.to_bytes(bytes.data());
    const std::vector<std::string> pieces = pieces_of(row, config, named.name);
    const Shape shape = piece_shape(named, pieces);
    const size_t size = bytes.size() / pieces.size();
    for (size_t i = 0; i < pieces.size(); ++i) {
      const auto* begin = bytes.data() + i * size;
      entries.push_back(
          {pieces[i], t.dtype(), {shape.begin(), shape.end()}, {begin, begin + size}});
    }
  }
  write_safetensors(folder + "/model.safetensors", entries, {{"format", "pt"}});
  FileAside file("models::save", folder + "/config.json");
  file.write(config.source);
  file.commit();
}

}  // namespace tiny::models
