#include "tiny/models/tokenizers/parts/post_processor.h"

#include <utility>

namespace tiny::models::tokenizers {
namespace {

using Kind = TemplatePiece::Kind;

// Of a pair that no template is for.
const std::vector<TemplatePiece> kPlainPair = {{Kind::First, 0}, {Kind::Second, 1}};

TypedIds applied(const std::vector<TemplatePiece>& pieces, const std::vector<int32_t>& first,
                 const std::vector<int32_t>* second, bool add_special_tokens) {
  TypedIds out;
  static const std::vector<int32_t> kNothing;
  for (const TemplatePiece& piece : pieces) {
    const bool special = piece.kind == Kind::Special;
    if (special && !add_special_tokens) continue;
    const auto& ids = special                     ? piece.ids
                      : piece.kind == Kind::First ? first
                      : second                    ? *second
                                                  : kNothing;
    for (const int32_t id : ids) out.append(id, piece.type);
  }
  return out;
}

}  // namespace

PostProcessor::PostProcessor(std::vector<PostTemplate> templates)
    : templates_(std::move(templates)) {
  if (templates_.empty()) templates_.push_back({{{Kind::First, 0}}, kPlainPair});
}

TypedIds PostProcessor::apply(const std::vector<int32_t>& first, const std::vector<int32_t>* second,
                              bool add_special_tokens) const {
  const PostTemplate& inner = templates_.front();
  TypedIds out = applied(second ? inner.pair : inner.single, first, second, add_special_tokens);
  for (size_t i = 1; i < templates_.size(); ++i)
    out = applied(templates_[i].single, out.ids, nullptr, add_special_tokens);
  return out;
}

size_t PostProcessor::added_tokens(bool pair) const {
  const std::vector<int32_t> nothing;
  return apply(nothing, pair ? &nothing : nullptr, true).ids.size();
}

}  // namespace tiny::models::tokenizers
