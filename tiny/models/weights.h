// Models as folders, config.json with safetensors files, as transformers writes and reads them, and
// as GGUF files.
#pragma once
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tiny/models/files/formats/metadata.h"
#include "tiny/models/files/formats/stored_type.h"
#include "tiny/models/tokenizers/tokenizer.h"
#include "tiny/models/transformer.h"

namespace tiny::models {

struct LoadOptions {
  // Of the parameters, and so of most of what is computed with them; by default what the files
  // have.
  std::optional<DType> dtype = {};
  // Matrices of quantised blocks stay as they are, and their products are computed so; what cannot
  // (weights of experts, types without a decoder by tensor operations) and vectors become floats.
  // Without a dtype the others, and what lies between products, are f32.
  std::optional<QuantizedProduct> keep_quantized = {};
  std::string device = "";       // the default one
  bool eager_attention = false;  // see ModelConfig
  // Called after each tensor: parameters that are there, of all.
  std::function<void(int64_t done, int64_t all)> on_tensor = {};
};

// How a folder's tensors fit a model.
struct LoadReport {
  int64_t tensors = 0, parameters = 0;  // of the model
  std::vector<std::string> unexpected;  // in the files, and of no use here
};

// The model of a folder with a config.json and safetensors files (TensorFile says which); one
// tensor at a time is read, so that the host holds little beside the model. Names without the
// prefix of the model ("h.0.ln_1.weight") are found as well. Throws Error, with all names, for
// tensors that are missing (the head of a tied model may be) or of another shape, and for what
// parse_config() throws.
Transformer load(const std::string& folder, const LoadOptions& options = {},
                 LoadReport* report = nullptr);

// Writes config.json and model.safetensors, or more than 5 GiB in shards with an index, with names
// as transformers has them in files: experts one by one. Error for a model whose configuration was
// not read from a config.json.
void save(const std::string& folder, Transformer& model);

// Writes a GGUF file of the architectures that gguf_config() reads; matrices as `type`, where their
// rows are of whole blocks, and all else as f32. `more`: metadata besides those of the model, such
// as the vocabulary, without which llama.cpp does not load the file; with fewer tokens than the
// model has it is padded. Error for other architectures, and for positions that are scaled in
// ways that llama.cpp has not.
void save_gguf(const std::string& path, Transformer& model, const StoredType& type,
               const Metadata& more = {});

// A vocabulary as save_gguf() takes it: of a GGUF file, or of a tokenizer.json or its folder, where
// that is BPE. Error for others, with key and value.
Metadata vocabulary_metadata(const std::string& path);

// A folder's tokenizer.json, or the vocabulary in a GGUF file.
Tokenizer load_tokenizer(const std::string& path);

}  // namespace tiny::models
