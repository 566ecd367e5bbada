// Language models of a few thousand random parameters.
#pragma once
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "tiny/base/error.h"
#include "tiny/models/transformer.h"
#include "tiny/tensor/random.h"

namespace tiny::test {

// A config.json of this type, with more members where they are given.
inline std::string small_config(const std::string& type, const std::string& members = "") {
  return cat(R"({"model_type": ")", type, R"(", "hidden_size": 24, "num_attention_heads": 6,
      "num_key_value_heads": 2, "head_dim": 4, "num_hidden_layers": 2, "intermediate_size": 20,
      "vocab_size": 101, "max_position_embeddings": 40)",
             members.empty() ? "" : ", ", members, "}");
}

inline models::Transformer random_model(const std::string& json) {
  models::ModelConfig c = models::parse_config(json);
  c.init_deviation = 0.3;
  manual_seed(11);
  models::Transformer model(c);
  model.initialize();
  return model;
}

inline double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  REQUIRE(a.size() == b.size());
  double most = 0;
  for (size_t i = 0; i < a.size(); ++i)
    most = std::max(most, std::abs(static_cast<double>(a[i]) - b[i]));
  return most;
}

}  // namespace tiny::test
