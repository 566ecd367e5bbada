// How the configuration of each architecture is read, with the defaults that transformers has for
// what a config.json leaves out.
#pragma once
#include "tiny/models/config/config.h"
#include "tiny/models/config/fields.h"

namespace tiny::models {

// Everything but the type. Throw Error, naming key and value, for what is not supported.
ModelConfig read_bert(const Fields& fields);
ModelConfig read_gpt2(const Fields& fields);
ModelConfig read_llama(const Fields& fields);
ModelConfig read_llama4(const Fields& fields);
ModelConfig read_mistral(const Fields& fields);
ModelConfig read_mixtral(const Fields& fields);
ModelConfig read_olmoe(const Fields& fields);
ModelConfig read_qwen2(const Fields& fields);
ModelConfig read_qwen3(const Fields& fields);

}  // namespace tiny::models
