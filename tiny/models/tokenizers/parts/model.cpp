#include "tiny/models/tokenizers/parts/model.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "tiny/base/error.h"
#include "tiny/models/text/unicode.h"

namespace tiny::models::tokenizers {

void Vocabulary::add(std::string token, int32_t id) {
  tokens_.insert_or_assign(id, token);
  ids_.insert_or_assign(std::move(token), id);
}

std::optional<int32_t> Vocabulary::id(std::string_view token) const {
  const auto found = ids_.find(token);
  return found == ids_.end() ? std::nullopt : std::optional(found->second);
}

const std::string* Vocabulary::token(int32_t id) const {
  const auto found = tokens_.find(id);
  return found == tokens_.end() ? nullptr : &found->second;
}

std::vector<int32_t> Model::byte_tokens(std::string_view bytes) const {
  std::vector<int32_t> ids;
  for (const char c : bytes) {
    const auto id =
        vocabulary_.id(formatted("<0x%02X>", static_cast<unsigned>(static_cast<uint8_t>(c))));
    if (!id) return {};
    ids.push_back(*id);
  }
  return ids;
}

WordPieceModel::WordPieceModel(Vocabulary vocabulary, const std::string& unknown_token,
                               const std::string& continuing_prefix, size_t max_characters)
    : Model(std::move(vocabulary)), unknown_token_(unknown_token), max_characters_(max_characters) {
  this->vocabulary().for_each([&](const std::string& token, int32_t id) {
    if (!token.empty()) first_.add(token, id);
    if (token.size() > continuing_prefix.size() && token.starts_with(continuing_prefix))
      continuing_.add(std::string_view(token).substr(continuing_prefix.size()), id);
  });
}

void WordPieceModel::encode(std::string_view piece, std::vector<int32_t>& ids) const {
  const size_t before = ids.size();
  size_t characters = 0, at = 0;
  for_each_code_point(piece, [&](char32_t, size_t, size_t) { ++characters; });
  while (characters <= max_characters_ && at < piece.size()) {
    const auto found = (at == 0 ? first_ : continuing_).longest_prefix(piece.substr(at));
    if (found.size == 0) break;
    ids.push_back(found.value);
    at += found.size;
  }
  if (at == piece.size()) return;
  const auto unknown = vocabulary().id(unknown_token_);
  check(unknown.has_value(), "the vocabulary lacks its unknown token \"", unknown_token_,
        "\", which \"", piece, "\" needs");
  ids.resize(before);
  ids.push_back(*unknown);
}

void WordLevelModel::encode(std::string_view piece, std::vector<int32_t>& ids) const {
  auto id = vocabulary().id(piece);
  if (!id) id = vocabulary().id(unknown_token_);
  check(id.has_value(), "the vocabulary has neither \"", piece, "\" nor its unknown token \"",
        unknown_token_, "\"");
  ids.push_back(*id);
}

namespace {

Vocabulary vocabulary_of(const std::vector<ScoredToken>& tokens) {
  Vocabulary vocabulary;
  for (size_t i = 0; i < tokens.size(); ++i)
    vocabulary.add(tokens[i].text, static_cast<int32_t>(i));
  return vocabulary;
}

}  // namespace

UnigramModel::UnigramModel(const std::vector<ScoredToken>& tokens, const UnigramOptions& options)
    : Model(vocabulary_of(tokens)), options_(options) {
  constexpr double kUnknownPenalty = 10;  // kUnkPenalty of sentencepiece's unigram_model.cc
  const int32_t unknown = options.unknown_id.value_or(0);
  check(unknown >= 0 && (!options.unknown_id || static_cast<size_t>(unknown) < tokens.size()),
        "the unknown token is number ", unknown, " of ", tokens.size(), " tokens");
  double least = std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < tokens.size(); ++i) {
    scores_.push_back(tokens[i].score);
    least = std::min(least, tokens[i].score);
    if (!tokens[i].text.empty()) trie_.add(tokens[i].text, static_cast<int32_t>(i));
  }
  unknown_score_ = least - kUnknownPenalty;
}

std::vector<UnigramModel::Step> UnigramModel::best_steps(std::string_view piece) const {
  std::vector<Step> steps(piece.size() + 1);
  for (size_t at = 0; at < piece.size();) {
    const double before = steps[at].score;
    const size_t character = utf8_size(piece[at]);
    bool has_character = false;
    const auto reach = [&](size_t size, int32_t id, double score) {
      Step& step = steps[at + size];
      has_character |= size == character;
      if (!step.reached || before + score > step.score)
        step = {before + score, id, static_cast<uint32_t>(at), true};
    };
    trie_.for_each_prefix(piece.substr(at),
                          [&](size_t size, int32_t id) { reach(size, id, scores_[id]); });
    if (!has_character) {
      check(options_.unknown_id.has_value(), "the vocabulary has no token for \"",
            piece.substr(at, character), "\" and no unknown token");
      reach(character, *options_.unknown_id, unknown_score_);
    }
    at += character;
  }
  return steps;
}

void UnigramModel::append_token(std::string_view text, std::vector<int32_t>& ids) const {
  if (const auto id = vocabulary().id(text)) {
    ids.push_back(*id);
    return;
  }
  if (options_.byte_fallback) {
    const auto bytes = byte_tokens(text);
    ids.insert(ids.end(), bytes.begin(), bytes.end());
    if (!bytes.empty()) return;
  }
  ids.push_back(*options_.unknown_id);
}

void UnigramModel::encode(std::string_view piece, std::vector<int32_t>& ids) const {
  check(piece.size() < std::numeric_limits<uint32_t>::max(), "a piece of text has ", piece.size(),
        " bytes: at most 2^32 - 2");
  const std::vector<Step> steps = best_steps(piece);
  // The tokens' texts from the last to the first. Unknown neighbours are one.
  std::vector<std::string_view> texts;
  bool after_unknown = false;
  for (size_t end = piece.size(); end > 0;) {
    const Step& step = steps[end];
    const bool unknown = options_.unknown_id == step.id;
    const size_t size = end - step.begin + (unknown && after_unknown ? texts.back().size() : 0);
    if (unknown && after_unknown) texts.pop_back();
    texts.push_back(piece.substr(step.begin, size));
    after_unknown = unknown;
    end = step.begin;
  }
  for (auto text = texts.rbegin(); text != texts.rend(); ++text) append_token(*text, ids);
}

}  // namespace tiny::models::tokenizers
