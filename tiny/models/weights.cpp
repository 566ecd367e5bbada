#include "tiny/models/weights.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <set>

#include "tiny/base/file.h"
#include "tiny/models/files/formats/gguf.h"
#include "tiny/models/files/save_shards.h"
#include "tiny/models/files/tensor_file.h"
#include "tiny/models/gguf_model.h"
#include "tiny/models/tokenizers/read_gguf.h"
#include "tiny/models/tokenizers/write_gguf.h"

namespace tiny::models {

namespace {

std::string read_text(const std::string& path) {
  const InputFile file("models::load", path);
  constexpr int64_t kMax = int64_t{256} << 20;  // indices of the largest models have some MB
  check(file.size() <= kMax, "models::load: ", path, " has ", file.size(), " bytes");
  std::string text(static_cast<size_t>(file.size()), '\0');
  file.read_at(0, text.data(), file.size());
  return text;
}

bool exists(const std::string& path) {
  std::error_code status;
  return std::filesystem::exists(path, status);
}

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
  Finder(const TensorFile& file, const Architecture& row) : row_(row), is_gguf_(file.is_gguf()) {
    for (const FileTensor& t : file.tensors()) names_.insert(t.name);
  }

  bool is_gguf() const { return is_gguf_; }

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
  const bool is_gguf_;
};

// What a tensor of the model is read from.
struct Source {
  NamedTensor named;
  std::vector<std::string> pieces;
  int along = 0;       // the axis of pieces that are joined
  int64_t paired = 0;  // heads whose rows lie in pairs
};

// The shape that each of the pieces of a tensor should have.
Shape piece_shape(const NamedTensor& named, const std::vector<std::string>& pieces,
                  bool is_gguf = false) {
  const Tensor& t = *named.tensor;
  if (is_gguf && pieces.size() == 2) return {t.size(0), t.size(1) / 2, t.size(2)};
  if (is_gguf) return to_shape(t.shape());
  if (t.rank() != 3 || pieces[0] == named.name) return to_shape(t.shape());
  const int64_t each = std::ssize(pieces) / t.size(0);
  return {t.size(1) / each, t.size(2)};
}

void read_into(const TensorFile& file, const Source& source, const LoadOptions& options) {
  std::vector<Tensor> pieces;
  for (const std::string& piece : source.pieces)
    pieces.push_back(file.load(piece, options.device, options.dtype));
  Tensor value = pieces[0];
  if (pieces.size() > 1)
    value = Tensor::cat(pieces, source.along).reshape(to_shape(source.named.tensor->shape()));
  if (source.paired > 0) value = unpaired_rows(value, source.paired);
  pieces.clear();
  *source.named.tensor = value.realize().requires_grad_();
}

// Leaves a matrix quantised; false where it cannot be.
bool keep_quantized(const TensorFile& file, const Source& source, const LoadOptions& options,
                    const QuantizedPlaces& places) {
  const auto place = places.find(source.named.tensor);
  if (!options.keep_quantized || place == places.end() || source.pieces.size() != 1) return false;
  const StoredType& type = *file.at(source.pieces[0]).type;
  if (!has_quantized_blocks(type)) return false;
  Tensor bytes = file.load_stored(source.pieces[0], options.device);
  if (source.paired > 0) bytes = unpaired_rows(bytes, source.paired).realize();
  const auto weight = std::make_shared<QuantizedWeight>(bytes, type, *options.keep_quantized);
  const Tensor values = weight->values().to(options.dtype.value_or(kF32));
  *place->second = {weight, values};
  *source.named.tensor = values;
  return true;
}

// The pieces of all tensors. Error with those that are missing or of another shape or dtype.
std::vector<Source> find_sources(const TensorFile& file, const std::string& folder,
                                 const Architecture& row, Transformer& model, Finder& finder) {
  std::string wrong;
  std::vector<Source> out;
  for (const NamedTensor& named : model.state_dict()) {
    // Files may have experts in one tensor already.
    std::vector<std::string> pieces{named.name};
    if (finder.is_gguf())
      pieces = gguf_names(named.name);
    else if (finder.find(named.name).empty())
      pieces = pieces_of(row, model.config(), named.name);
    Source source{named, {}};
    if (finder.is_gguf()) {
      source.along = 1;
      source.paired = paired_heads(model.config(), named.name);
    }
    for (const std::string& piece : pieces) {
      const std::string name = finder.find(piece);
      const Shape wanted = piece_shape(named, pieces, finder.is_gguf());
      if (name.empty()) {
        wrong += cat("\n  missing: ", piece, " ", to_text(wanted));
        continue;
      }
      source.pieces.push_back(name);
      const FileTensor& found = file.at(name);
      if (!same(found.shape, wanted))
        wrong += cat("\n  shape: ", name, " is ", to_text(found.shape), " in the file and ",
                     to_text(wanted), " in the model");
      const bool has_values = found.type->dtype.is_float() || found.type->decode;
      if (!has_values || found.type != file.at(source.pieces[0]).type)
        wrong +=
            cat("\n  dtype: ", name, " is ", found.type->name, ", expected a float as its parts");
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
  const TensorFile file(folder);
  ModelConfig config = file.is_gguf() ? gguf_config(file) : read_config(folder);
  config.eager_attention = options.eager_attention;
  Transformer model(config);
  const Architecture& row = find_architecture(model.config().type);
  Finder finder(file, row);
  const std::vector<Source> sources = find_sources(file, folder, row, model, finder);
  int64_t all = 0, done = 0;
  for (const Source& source : sources) all += source.named.tensor->numel();
  const QuantizedPlaces places = model.quantized_places();
  for (const Source& source : sources) {
    if (!keep_quantized(file, source, options, places)) read_into(file, source, options);
    done += source.named.tensor->numel();
    if (options.on_tensor) options.on_tensor(done, all);
  }
  if (file.is_gguf()) finder.find("rope_freqs.weight");  // which the configuration is read from
  // A tied head may be in the files all the same.
  if (model.config().tied && row.names.head) finder.find(cat(row.names.head, "weight"));
  if (report) *report = {std::ssize(sources), all, finder.unused()};
  return model;
}

void save(const std::string& folder, Transformer& model) {
  const ModelConfig& config = model.config();
  check(!config.source.empty(), "models::save: ", folder,
        ": the model's configuration was not read from a config.json");
  const Architecture& row = find_architecture(config.type);
  std::filesystem::create_directories(folder);
  std::vector<OutputTensor> tensors;
  for (const NamedTensor& named : model.state_dict()) {
    const std::vector<std::string> names = pieces_of(row, config, named.name);
    Shape shape = piece_shape(named, names);
    shape.insert(shape.begin(), std::ssize(names));
    const Tensor pieces = named.tensor->detach().reshape(shape);
    for (size_t i = 0; i < names.size(); ++i)
      tensors.push_back(output_tensor(names[i], pieces.select(0, static_cast<int64_t>(i))));
  }
  save_shards(folder + "/model.safetensors", tensors);
  FileAside file("models::save", folder + "/config.json");
  file.write(config.source);
  file.commit();
}

namespace {

// llama.cpp counts the rows of the tokens' matrix by the vocabulary, and models have more of them.
void fill_vocabulary(Metadata& metadata, int64_t count) {
  GgufVocabulary v = gguf_vocabulary(metadata);
  check(std::ssize(v.tokens) <= count, "save_gguf: a vocabulary of ", v.tokens.size(),
        " tokens for a model of ", count);
  if (std::ssize(v.tokens) == count) return;
  const auto size = static_cast<size_t>(count);
  if (v.token_types.empty()) v.token_types.assign(v.tokens.size(), tokenizers::kNormal);
  for (size_t i = v.tokens.size(); i < size; ++i) v.tokens.push_back(cat("[PAD", i, "]"));
  v.token_types.resize(size, tokenizers::kUnused);
  metadata.set("tokenizer.ggml.tokens", MetadataArray{v.tokens});
  metadata.set("tokenizer.ggml.token_type", MetadataArray{v.token_types});
  if (v.scores.empty()) return;
  v.scores.resize(size, *std::ranges::min_element(v.scores));
  metadata.set("tokenizer.ggml.scores", MetadataArray{v.scores});
}

}  // namespace

void save_gguf(const std::string& path, Transformer& model, const StoredType& type,
               const Metadata& more) {
  const ModelConfig& config = model.config();
  std::vector<OutputTensor> tensors;
  for (const NamedTensor& named : model.state_dict()) {
    Tensor value = named.tensor->detach();
    if (const int64_t heads = paired_heads(config, named.name)) value = paired_rows(value, heads);
    const std::vector<std::string> names = gguf_names(named.name);
    for (size_t i = 0; i < names.size(); ++i) {
      Tensor part = value;
      if (names.size() == 2) {  // gates and ups
        const int64_t each = value.size(1) / 2;
        part = value.narrow(1, static_cast<int64_t>(i) * each, each);
      }
      // Vectors, and rows that are not of whole blocks, stay f32, as llama.cpp has them.
      const bool fits = part.rank() > 1 && part.size(-1) % type.elements == 0;
      tensors.push_back(output_tensor(names[i], part, fits ? &type : find_stored_type(kF32)));
    }
  }
  if (const std::vector<float> divisors = gguf_divisors(config); !divisors.empty())
    tensors.push_back(output_tensor("rope_freqs.weight", Tensor::from(divisors)));
  Metadata metadata = gguf_metadata(config);
  // How a text begins is the vocabulary's, where it ends the model's.
  for (const auto& [key, value] : more.items())
    if (key != "tokenizer.ggml.eos_token_id" || !metadata.contains(key)) metadata.set(key, value);
  if (metadata.contains("tokenizer.ggml.tokens")) fill_vocabulary(metadata, config.vocab);
  write_gguf(path, metadata, tensors);
}

Metadata vocabulary_metadata(const std::string& path) {
  std::error_code status;
  const bool is_folder = std::filesystem::is_directory(path, status);
  const std::string json = is_folder ? path + "/tokenizer.json" : path;
  if (json.ends_with(".json") && exists(json)) {
    try {
      return gguf_metadata(tokenizers::gguf_vocabulary_of(read_text(json), Tokenizer::load(path)));
    } catch (const Error& e) {
      throw Error(cat("models::vocabulary_metadata: ", json, ": ", e.what()));
    }
  }
  const TensorFile file(path);
  check(file.is_gguf(), "models::vocabulary_metadata: there is no tokenizer.json in ", path);
  Metadata out;
  for (const auto& [key, value] : file.metadata().items())
    if (key.starts_with("tokenizer.")) out.set(key, value);
  return out;
}

Tokenizer load_tokenizer(const std::string& path) {
  std::error_code status;
  if (std::filesystem::is_directory(path, status) && exists(path + "/tokenizer.json"))
    return Tokenizer::load(path);
  if (path.ends_with(".json")) return Tokenizer::load(path);
  const TensorFile file(path);
  check(file.is_gguf(), "models::load_tokenizer: there is no tokenizer.json in ", path);
  return Tokenizer(gguf_vocabulary(file.metadata()));
}

}  // namespace tiny::models
