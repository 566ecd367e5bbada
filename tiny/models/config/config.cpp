#include "tiny/models/config/config.h"

#include "tiny/models/config/architectures.h"

namespace tiny::models {

namespace {

// A model of texts and pictures has the part for texts in an object of its own.
Fields text_part(const Fields& f) {
  return f.text({"model_type"}, "") == "llama4" ? f.object({"text_config"}) : f;
}

}  // namespace

ModelConfig parse_config(const std::string& json, const std::string& where) {
  const Fields whole = Fields::parse(json, where);
  check(whole.has({"model_type"}), where, ": there is no model_type");
  const Fields f = text_part(whole);
  const std::string type = f.text({"model_type"}, "llama4_text");
  ModelConfig c = find_architecture(type, where).read(f);
  c.type = type;
  c.source = f.dump();
  return c;
}

std::vector<int64_t> parse_end_tokens(const std::string& json, const std::string& where) {
  return Fields::parse(json, where).integers({"eos_token_id"});
}

}  // namespace tiny::models
