#include "tiny/models/tokenizers/added_tokens.h"

#include <algorithm>

#include "tiny/models/text/unicode.h"

namespace tiny::models::tokenizers {
namespace {

// Where the code point begins that ends at `end`.
size_t character_before(std::string_view text, size_t end) {
  do --end;
  while (end > 0 && (text[end] & 0xc0) == 0x80);
  return end;
}

bool is_within_word(std::string_view text, size_t begin, size_t end) {
  return (begin > 0 && is_word(code_point_at(text, character_before(text, begin)).value)) ||
         (end < text.size() && is_word(code_point_at(text, end).value));
}

size_t white_space_begin(std::string_view text, size_t end) {
  while (end > 0) {
    const size_t before = character_before(text, end);
    if (!is_white_space(code_point_at(text, before).value)) break;
    end = before;
  }
  return end;
}

size_t white_space_end(std::string_view text, size_t begin) {
  while (begin < text.size()) {
    const CodePoint c = code_point_at(text, begin);
    if (!is_white_space(c.value)) break;
    begin += c.size;
  }
  return begin;
}

}  // namespace

void AddedTokens::add(const AddedToken& token, const Vocabulary& vocabulary) {
  if (token.content.empty()) return;
  auto known = id(token.content);
  if (!known) known = vocabulary.id(token.content);
  const int32_t id = known.value_or(std::max(next_, static_cast<int32_t>(vocabulary.size())));
  next_ = std::max(next_, id + 1);
  ids_[token.content] = id;
  tokens_[id] = token;
  if (token.special) special_.insert(token.content);
}

void AddedTokens::prepare(const Normalizer& normalizer) {
  for (const auto& [id, token] : tokens_) {
    const bool normalize = token.normalized && normalizer;
    const std::string content = normalize ? normalizer(token.content) : token.content;
    if (!content.empty()) (token.normalized ? normalized_ : plain_).add(content, id);
  }
}

std::optional<int32_t> AddedTokens::id(const std::string& token) const {
  const auto found = ids_.find(token);
  return found == ids_.end() ? std::nullopt : std::optional(found->second);
}

const std::string* AddedTokens::token(int32_t id) const {
  const auto found = tokens_.find(id);
  return found == tokens_.end() ? nullptr : &found->second.content;
}

std::vector<AddedTokens::Part> AddedTokens::split(std::string_view text, bool normalized) const {
  const ByteTrie& trie = normalized ? normalized_ : plain_;
  std::vector<Part> parts;
  size_t done = 0;
  for (size_t at = trie.empty() ? text.size() : 0; at < text.size();) {
    const ByteTrie::Found found = trie.longest_prefix(text.substr(at));
    if (found.size == 0) {
      ++at;
      continue;
    }
    const AddedToken& token = tokens_.at(found.value);
    size_t begin = at, end = at + found.size;
    at = end;
    if (token.single_word && is_within_word(text, begin, end)) continue;
    if (token.lstrip) begin = std::max(white_space_begin(text, begin), done);
    if (token.rstrip) end = white_space_end(text, end);
    // All of it was white space that the token before it took.
    if (begin >= end) continue;
    if (done < begin) parts.push_back({std::nullopt, done, begin});
    parts.push_back({found.value, begin, end});
    done = end;
  }
  if (done < text.size()) parts.push_back({std::nullopt, done, text.size()});
  return parts;
}

}  // namespace tiny::models::tokenizers
