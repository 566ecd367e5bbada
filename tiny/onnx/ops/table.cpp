#include "tiny/onnx/ops/table.h"

#include <algorithm>
#include <map>
#include <unordered_map>

#include "tiny/base/text.h"

namespace tiny::onnx {

const std::vector<OperatorGroup>& operator_groups() {
  static const auto& groups = *new std::vector<OperatorGroup>({
      {"element-wise", elementwise_operators()},
      {"reductions, sorting", reduce_operators()},
      {"movement", movement_operators()},
      {"indexing, selection", indexing_operators()},
      {"products, transforms", product_operators()},
      {"convolutions, pools", window_operators()},
      {"normalization, losses", normalization_operators()},
      {"resampling", resample_operators()},
      {"recurrent", recurrent_operators()},
      {"quantised", quantised_operators()},
      {"constants, random numbers", generator_operators()},
      {"control flow", control_operators()},
  });
  return groups;
}

const Operator* find_operator(const std::string& name, int64_t version) {
  static const auto& rows = *[] {
    auto* all = new std::unordered_map<std::string, std::vector<const Operator*>>;
    for (const OperatorGroup& group : operator_groups())
      for (const Operator& row : group.operators) (*all)[row.name].push_back(&row);
    return all;
  }();
  const auto at = rows.find(name);
  if (at == rows.end()) return nullptr;
  const Operator* best = nullptr;
  for (const Operator* row : at->second)
    if (row->since <= version && (best == nullptr || row->since > best->since)) best = row;
  return best;
}

std::string refusal_of(const std::string& name) {
  static const std::map<std::string, const char*> kReasons = {
      {"ConcatFromSequence", "it takes a sequence, and only tensors are values"},
      {"ImageDecoder", "it decodes files of pictures"},
      {"Optional", "it makes an optional value, and only tensors are values"},
      {"OptionalGetElement", "it takes an optional value, and only tensors are values"},
      {"OptionalHasElement", "it takes an optional value, and only tensors are values"},
      {"RegexFullMatch", "it takes strings, which no tensor holds"},
      {"SequenceAt", "it takes a sequence, and only tensors are values"},
      {"SequenceConstruct", "it makes a sequence, and only tensors are values"},
      {"SequenceEmpty", "it makes a sequence, and only tensors are values"},
      {"SequenceErase", "it takes a sequence, and only tensors are values"},
      {"SequenceInsert", "it takes a sequence, and only tensors are values"},
      {"SequenceLength", "it takes a sequence, and only tensors are values"},
      {"SequenceMap", "it takes a sequence, and only tensors are values"},
      {"SplitToSequence", "it makes a sequence, and only tensors are values"},
      {"StringConcat", "it takes strings, which no tensor holds"},
      {"StringNormalizer", "it takes strings, which no tensor holds"},
      {"StringSplit", "it takes strings, which no tensor holds"},
  };
  const auto at = kReasons.find(name);
  return at == kReasons.end() ? "" : at->second;
}

std::string operator_table_markdown() {
  TextStream out;
  out << "| group | operators |\n|---|---|\n";
  for (const OperatorGroup& group : operator_groups()) {
    std::map<std::string, int64_t> oldest;
    for (const Operator& row : group.operators) {
      const auto [at, is_new] = oldest.emplace(row.name, row.since);
      if (!is_new) at->second = std::min(at->second, row.since);
    }
    out << "| " << group.name << " |";
    for (const auto& [name, since] : oldest) {
      out << " `" << name << '`';
      if (since > 7) out << " (" << since << ')';
    }
    out << " |\n";
  }
  return out.str();
}

}  // namespace tiny::onnx
