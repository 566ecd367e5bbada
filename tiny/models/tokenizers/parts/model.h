// The models of tokenizers: they turn a piece of text into the ids of tokens.
#pragma once
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tiny/models/text/byte_trie.h"
#include "tiny/models/text/integer_map.h"

namespace tiny::models::tokenizers {

// Tokens and their ids, which need not be consecutive.
class Vocabulary {
 public:
  // Replaces the id of a token that is there already.
  void add(std::string token, int32_t id);
  std::optional<int32_t> id(std::string_view token) const;
  // Null for an id that no token has.
  const std::string* token(int32_t id) const;
  size_t size() const { return ids_.size(); }
  // Whether no two tokens share an id, and none was added twice.
  bool is_bijective() const { return ids_.size() == tokens_.size(); }
  template <class Visit> void for_each(const Visit& visit) const {
    for (const auto& [token, id] : ids_) visit(token, id);
  }

 private:
  struct Hash : std::hash<std::string_view> {
    using is_transparent = void;
  };
  std::unordered_map<std::string, int32_t, Hash, std::equal_to<>> ids_;
  std::unordered_map<int32_t, std::string> tokens_;
};

// May be used by several threads at once.
class Model {
 public:
  explicit Model(Vocabulary vocabulary) : vocabulary_(std::move(vocabulary)) {}
  virtual ~Model() = default;
  // Appends the ids of a piece of text, which is valid UTF-8. Throws Error for text that the model
  // has no tokens for, where it has no token for the unknown either.
  virtual void encode(std::string_view piece, std::vector<int32_t>& ids) const = 0;
  const Vocabulary& vocabulary() const { return vocabulary_; }

 protected:
  // The ids of the bytes as <0x00> to <0xFF>; none where the vocabulary lacks one of them.
  std::vector<int32_t> byte_tokens(std::string_view bytes) const;

 private:
  Vocabulary vocabulary_;
};

// Joining two neighbours into one. Lower ranks come first; the leftmost of the same rank.
struct Merge {
  int32_t left, right, merged;
  uint32_t rank;
};

struct BpeOptions {
  std::optional<std::string> unknown_token;
  std::string continuing_prefix;  // before all characters of a piece but the first
  std::string word_suffix;        // after the last
  bool fuse_unknown = false;      // one token for several unknown characters in a row
  bool byte_fallback = false;     // <0x..> tokens for unknown characters
  bool ignore_merges = false;     // a piece that is a token is that token, whatever the merges
};

// The merges of tokens as texts, in the order of their ranks. Throws Error for tokens that are not
// in the vocabulary.
std::vector<Merge> merges_of(const Vocabulary& vocabulary,
                             const std::vector<std::pair<std::string, std::string>>& pairs,
                             const std::string& continuing_prefix);

// Byte pair encoding: Sennrich, Haddow, Birch 2016. What neither a token nor bytes nor an unknown
// token stand for is left out.
class BpeModel : public Model {
 public:
  BpeModel(Vocabulary vocabulary, const std::vector<Merge>& merges, BpeOptions options);
  void encode(std::string_view piece, std::vector<int32_t>& ids) const override;

 private:
  static constexpr size_t kFastCharacters = 0x800;

  void first_symbols(std::string_view piece, std::vector<int32_t>& symbols) const;
  int32_t character_id(char32_t c, std::string_view text) const;
  // What joining gives: the rank above, the merged token below; IntegerMap::kAbsent: nothing.
  uint64_t find_merge(int32_t left, int32_t right) const {
    return merges_.find(uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right));
  }
  void merge_short(std::vector<int32_t>& symbols) const;
  void merge_long(std::vector<int32_t>& symbols) const;
  void merge_segments(std::vector<int32_t>& symbols, std::vector<int32_t>& ids) const;
  void find_joints() const;
  bool merges_into_symbol(uint64_t pair, int32_t merged) const;

  BpeOptions options_;
  int32_t unknown_id_ = -1;
  std::vector<int32_t> characters_;  // the ids of the first code points; -1: none
  IntegerMap merges_;
  // Pairs of first symbols that a merge joins: no token reaches over any other.
  mutable std::once_flag joints_found_;
  mutable IntegerMap joints_;
  mutable bool all_joined_ = false;
};

// Wu et al. 2016: the longest token at each place, the unknown token for a word with a place where
// there is none.
class WordPieceModel : public Model {
 public:
  WordPieceModel(Vocabulary vocabulary, const std::string& unknown_token,
                 const std::string& continuing_prefix, size_t max_characters);
  void encode(std::string_view piece, std::vector<int32_t>& ids) const override;

 private:
  std::string unknown_token_;
  size_t max_characters_;
  ByteTrie first_, continuing_;
};

// A piece is a token or unknown.
class WordLevelModel : public Model {
 public:
  WordLevelModel(Vocabulary vocabulary, std::string unknown_token)
      : Model(std::move(vocabulary)), unknown_token_(std::move(unknown_token)) {}
  void encode(std::string_view piece, std::vector<int32_t>& ids) const override;

 private:
  std::string unknown_token_;
};

struct ScoredToken {
  std::string text;
  double score;  // logarithm of its probability
};

struct UnigramOptions {
  std::optional<int32_t> unknown_id;
  bool byte_fallback = false;
};

// Kudo 2018: the tokens of the highest sum of scores, by Viterbi's algorithm. Unknown characters
// cost ten more than the least likely token; several in a row are one unknown token.
class UnigramModel : public Model {
 public:
  // The ids are the tokens' places. Throws Error for an unknown id that is none of them.
  UnigramModel(const std::vector<ScoredToken>& tokens, const UnigramOptions& options);
  void encode(std::string_view piece, std::vector<int32_t>& ids) const override;

 private:
  // The best way to reach a byte: its score, its last token, and where that begins.
  struct Step {
    double score = 0;
    int32_t id = -1;
    uint32_t begin = 0;
    bool reached = false;
  };
  std::vector<Step> best_steps(std::string_view piece) const;
  void append_token(std::string_view text, std::vector<int32_t>& ids) const;

  UnigramOptions options_;
  std::vector<double> scores_;
  double unknown_score_ = 0;
  ByteTrie trie_;
};

}  // namespace tiny::models::tokenizers
