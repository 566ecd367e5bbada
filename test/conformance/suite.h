// A conformance suite: programs over tensors with stored inputs and expected results. The format is
// described in the README.md next to the suites.
#pragma once
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tiny/train/safetensors.h"

namespace tiny::conformance {

using Json = nlohmann::json;

struct Input {
  std::string id, key;
  bool grad = false;
};

struct Step {
  std::string op;
  std::vector<std::string> in;  // "" stands for an input that is left out
  std::vector<std::string> out;
  Json args;
};

// The value `id` of a program and the name under which a tensor is stored for it.
struct Stored {
  std::string id, key;
};

struct Case {
  std::string name;
  std::vector<std::string> tags;
  std::vector<Input> inputs;
  std::vector<Step> steps;
  std::vector<Stored> outputs, cotangents, grads;
  double rtol = 0, atol = 0;
};

struct Suite {
  std::vector<Case> cases;
  std::map<std::string, StateEntry> tensors;

  // Throws Error for a key that the file of tensors lacks.
  const StateEntry& tensor(const std::string& key) const;
};

// Reads PREFIX.json and the file of tensors that it names. Throws Error where one is missing or
// malformed.
Suite read_suite(const std::string& prefix);

}  // namespace tiny::conformance
