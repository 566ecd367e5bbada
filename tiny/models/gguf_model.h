// Language models in GGUF files: their metadata as a configuration and a vocabulary, and what
// llama.cpp calls the tensors (gguf-py/gguf/tensor_mapping.py and constants.py of
// github.com/ggml-org/llama.cpp).
#pragma once
#include <string>
#include <vector>

#include "tiny/models/config/config.h"
#include "tiny/models/files/tensor_file.h"
#include "tiny/models/tokenizers/gguf_vocabulary.h"

namespace tiny::models {

// Of the architectures llama (Llama, Mistral, Mixtral), qwen2 and qwen3. Throws Error, naming key
// and value, for others, and for metadata that are missing or not supported.
ModelConfig gguf_config(const TensorFile& file);

// What gguf_config() reads, of a model of these architectures. Error for others and for positions
// that are scaled in ways that llama.cpp has not.
Metadata gguf_metadata(const ModelConfig& config);
// The tensor rope_freqs.weight of positions as Llama 3 scales them; else empty.
std::vector<float> gguf_divisors(const ModelConfig& config);

// Throws Error for a file without tokenizer.ggml.model and tokenizer.ggml.tokens.
GgufVocabulary gguf_vocabulary(const Metadata& metadata);
Metadata gguf_metadata(const GgufVocabulary& vocabulary);

// The tensors of a GGUF file that one of a model is made of, by the model's name:
// "blk.3.attn_q.weight" of "model.layers.3.self_attn.q_proj.weight". Of a layer's experts, whose
// gates and ups are one tensor of the model, two, to be joined along the axis of their rows.
std::vector<std::string> gguf_names(const std::string& name);

// The heads whose rows llama.cpp keeps in pairs in this tensor, 0 for most tensors: its rotary
// positions of the architecture llama turn elements 2i and 2i + 1 of a head and not i and
// i + head_dim / 2.
int64_t paired_heads(const ModelConfig& config, const std::string& name);
// Rows (heads head_dim, ...) from pairs to split halves, and back.
Tensor unpaired_rows(const Tensor& rows, int64_t heads);
Tensor paired_rows(const Tensor& rows, int64_t heads);

}  // namespace tiny::models
