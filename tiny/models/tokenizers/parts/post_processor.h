// Post-processors: templates that put special tokens around the ids of one text or two.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace tiny::models {

// Ids of tokens, and for each the segment that it belongs to (BERT's token_type_ids).
struct TypedIds {
  std::vector<int32_t> ids, types;

  void append(int32_t id, int32_t type) {
    ids.push_back(id);
    types.push_back(type);
  }
};

}  // namespace tiny::models

namespace tiny::models::tokenizers {

struct TemplatePiece {
  enum class Kind { Special, First, Second };
  Kind kind;
  int32_t type = 0;
  std::vector<int32_t> ids = {};  // of a special token: mostly one
};

struct PostTemplate {
  std::vector<TemplatePiece> single, pair;
};

class PostProcessor {
 public:
  // Without a template nothing is added; a pair is the first text and then the second.
  PostProcessor() : PostProcessor(std::vector<PostTemplate>{}) {}
  // Each template is applied to what the one before it gave.
  explicit PostProcessor(std::vector<PostTemplate> templates);

  // `second` is null for a single text. Special tokens only where `add_special_tokens`.
  TypedIds apply(const std::vector<int32_t>& first, const std::vector<int32_t>* second,
                 bool add_special_tokens) const;
  // How many special tokens are added.
  size_t added_tokens(bool pair) const;

 private:
  std::vector<PostTemplate> templates_;
};

}  // namespace tiny::models::tokenizers
