// The table of architectures: for each model_type of a config.json how its configuration is read
// and what its tensors are called. A new architecture is a row here, and in layers.h what no other
// one has.
#pragma once
#include <span>
#include <string>

#include "tiny/models/config/config.h"
#include "tiny/models/config/fields.h"

namespace tiny::models {

// Names of tensors and of layers, those of layers with a point at the end. Those after `layers`
// follow the layer's number; nullptr: there is none.
struct TensorNames {
  const char* base = "";  // prefix that files of a model without a head leave out
  const char* tokens = nullptr;
  const char* positions = nullptr;
  const char* token_types = nullptr;
  const char* embedding_norm = nullptr;
  const char* layers = nullptr;

  const char *q = nullptr, *k = nullptr, *v = nullptr, *qkv = nullptr, *out = nullptr;
  const char *q_norm = nullptr, *k_norm = nullptr;
  const char *attention_norm = nullptr, *ffn_norm = nullptr;
  const char* ffn = "";  // before the next three
  const char *gate = nullptr, *up = nullptr, *down = nullptr;
  const char *router = nullptr, *experts = nullptr, *shared = nullptr;

  const char* norm = nullptr;  // after the last layer
  const char* head = nullptr;
  const char *head_dense = nullptr, *head_norm = nullptr, *head_bias = nullptr;  // of a masked head
  const char *pooler = nullptr, *classifier = nullptr;
};

// Names that files have for an expert of its own, where the model keeps all of a layer in one
// tensor: experts + "3." + gate + ".weight".
struct ExpertFileNames {
  const char* router = nullptr;
  const char* experts = nullptr;
  const char *gate = nullptr, *up = nullptr, *down = nullptr;
};

struct Architecture {
  const char* type;
  TensorNames names;
  ExpertFileNames expert_files;
  ModelConfig (*read)(const Fields& fields);
};

std::span<const Architecture> architectures();

// Error, with the types that there are, for another one.
const Architecture& find_architecture(const std::string& type, const std::string& where = "models");

}  // namespace tiny::models
