// Byte pair encoding. Short pieces, which are nearly all where a pattern splits the text, look for
// the lowest rank by scanning; long ones keep a heap, so that n characters take O(n log n).
#include <algorithm>
#include <limits>
#include <queue>
#include <utility>

#include "tiny/base/error.h"
#include "tiny/models/text/unicode.h"
#include "tiny/models/tokenizers/parts/model.h"

namespace tiny::models::tokenizers {
namespace {

constexpr size_t kShort = 48;  // symbols: beyond it a heap is faster than scanning
constexpr uint32_t kNever = std::numeric_limits<uint32_t>::max();

constexpr uint32_t rank_of(uint64_t merge) { return static_cast<uint32_t>(merge >> 32); }
constexpr int32_t merged_of(uint64_t merge) { return static_cast<int32_t>(merge); }

// Symbols of a piece as a doubly linked list over an array.
struct Symbol {
  int32_t id;
  uint32_t previous, next;  // kNever at the ends
  bool removed = false;
};

struct Candidate {
  uint32_t rank, at;  // the left symbol
  int32_t merged;
  bool operator<(const Candidate& other) const {  // the top of a heap is its greatest element
    return std::pair(rank, at) > std::pair(other.rank, other.at);
  }
};

}  // namespace

std::vector<Merge> merges_of(const Vocabulary& vocabulary,
                             const std::vector<std::pair<std::string, std::string>>& pairs,
                             const std::string& continuing_prefix) {
  std::vector<Merge> merges;
  const auto id_of = [&](const std::string& token, const auto& pair) {
    const auto id = vocabulary.id(token);
    check(id.has_value(), "the merge of \"", pair.first, "\" and \"", pair.second, "\" needs \"",
          token, "\", which is not in the vocabulary");
    return *id;
  };
  for (const auto& pair : pairs) {
    const int32_t left = id_of(pair.first, pair), right = id_of(pair.second, pair);
    check(pair.second.size() >= continuing_prefix.size(), "the merge of \"", pair.first,
          "\" and \"", pair.second, "\": the latter is shorter than the prefix \"",
          continuing_prefix, "\"");
    const std::string merged = pair.first + pair.second.substr(continuing_prefix.size());
    merges.push_back({left, right, id_of(merged, pair), static_cast<uint32_t>(merges.size())});
  }
  return merges;
}

BpeModel::BpeModel(Vocabulary vocabulary, const std::vector<Merge>& merges, BpeOptions options)
    : Model(std::move(vocabulary)), options_(std::move(options)) {
  for (const Merge& m : merges)
    merges_.set(uint64_t{static_cast<uint32_t>(m.left)} << 32 | static_cast<uint32_t>(m.right),
                uint64_t{m.rank} << 32 | static_cast<uint32_t>(m.merged));
  if (options_.unknown_token)
    unknown_id_ = this->vocabulary().id(*options_.unknown_token).value_or(-1);
  characters_.assign(kFastCharacters, -1);
  for (char32_t c = 0; c < kFastCharacters; ++c) {
    std::string text;
    append_utf8(text, c);
    characters_[c] = this->vocabulary().id(text).value_or(-1);
  }
}

int32_t BpeModel::character_id(char32_t c, std::string_view text) const {
  return c < kFastCharacters ? characters_[c] : vocabulary().id(text).value_or(-1);
}

void BpeModel::first_symbols(std::string_view piece, std::vector<int32_t>& symbols) const {
  bool unknown = false;  // an unknown token that is still to be appended
  const auto append_unknown = [&] {
    if (unknown) symbols.push_back(unknown_id_);
    unknown = false;
  };
  const bool plain = options_.continuing_prefix.empty() && options_.word_suffix.empty();
  for_each_code_point(piece, [&](char32_t c, size_t at, size_t size) {
    std::string_view text = piece.substr(at, size);
    std::string decorated;
    if (!plain) {
      decorated = (at > 0 ? options_.continuing_prefix : "") + std::string(text) +
                  (at + size == piece.size() ? options_.word_suffix : "");
      text = decorated;
    }
    const int32_t id = plain ? character_id(c, text) : vocabulary().id(text).value_or(-1);
    if (id >= 0) {
      append_unknown();
      symbols.push_back(id);
      return;
    }
    if (options_.byte_fallback) {
      const auto bytes = byte_tokens(text);
      symbols.insert(symbols.end(), bytes.begin(), bytes.end());
      if (!bytes.empty()) return;
    }
    check(!options_.unknown_token || unknown_id_ >= 0, "the vocabulary lacks its unknown token \"",
          options_.unknown_token.value_or(""), "\", which \"", text, "\" needs");
    if (!options_.fuse_unknown) append_unknown();
    unknown = unknown_id_ >= 0;
  });
  append_unknown();
}

void BpeModel::merge_short(std::vector<int32_t>& symbols) const {
  uint64_t merges[kShort];  // of each symbol with the next
  size_t size = symbols.size();
  for (size_t i = 0; i + 1 < size; ++i) merges[i] = find_merge(symbols[i], symbols[i + 1]);
  while (size > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < size; ++i)
      if (rank_of(merges[i]) < rank_of(merges[best])) best = i;
    if (merges[best] == IntegerMap::kAbsent) break;
    symbols[best] = merged_of(merges[best]);
    std::copy(symbols.begin() + static_cast<ptrdiff_t>(best) + 2,
              symbols.begin() + static_cast<ptrdiff_t>(size),
              symbols.begin() + static_cast<ptrdiff_t>(best) + 1);
    if (best + 2 < size) std::copy(merges + best + 2, merges + size - 1, merges + best + 1);
    --size;
    if (best > 0) merges[best - 1] = find_merge(symbols[best - 1], symbols[best]);
    if (best + 1 < size) merges[best] = find_merge(symbols[best], symbols[best + 1]);
  }
  symbols.resize(size);
}

void BpeModel::merge_long(std::vector<int32_t>& ids) const {
  std::vector<Symbol> symbols;
  const auto count = static_cast<uint32_t>(ids.size());
  for (uint32_t i = 0; i < count; ++i)
    symbols.push_back({ids[i], i == 0 ? kNever : i - 1, i + 1 == count ? kNever : i + 1});
  std::priority_queue<Candidate> queue;
  const auto enqueue = [&](uint32_t left) {
    if (left == kNever || symbols[left].next == kNever) return;
    const uint64_t merge = find_merge(symbols[left].id, symbols[symbols[left].next].id);
    if (merge != IntegerMap::kAbsent) queue.push({rank_of(merge), left, merged_of(merge)});
  };
  for (uint32_t i = 0; i < count; ++i) enqueue(i);
  while (!queue.empty()) {
    const Candidate best = queue.top();
    queue.pop();
    Symbol& left = symbols[best.at];
    if (left.removed || left.next == kNever) continue;
    Symbol& right = symbols[left.next];
    // One of the two may have become another since.
    const uint64_t merge = find_merge(left.id, right.id);
    if (merge == IntegerMap::kAbsent || merged_of(merge) != best.merged) continue;
    left.id = best.merged;
    right.removed = true;
    left.next = right.next;
    if (left.next != kNever) symbols[left.next].previous = best.at;
    enqueue(left.previous);
    enqueue(best.at);
  }
  ids.clear();
  for (const Symbol& s : symbols)
    if (!s.removed) ids.push_back(s.id);
}

// A token is as long as the two that it is merged from, so that all merges that give it agree on
// its first and last symbol. Not so where a token that text begins with, a character or a byte, is
// merged from others too, or where tokens share an id: then every pair counts as joined.
void BpeModel::find_joints() const {
  IntegerMap parts;  // how a token is merged
  all_joined_ = !vocabulary().is_bijective();
  merges_.for_each([&](uint64_t pair, uint64_t merge) {
    parts.set(static_cast<uint32_t>(merged_of(merge)), pair);
    all_joined_ |= merges_into_symbol(pair, merged_of(merge));
  });
  if (all_joined_) return;
  const auto end_of = [&](uint32_t id, bool last) {
    uint64_t pair;
    while ((pair = parts.find(id)) != IntegerMap::kAbsent)
      id = static_cast<uint32_t>(last ? pair : pair >> 32);
    return id;
  };
  merges_.for_each([&](uint64_t pair, uint64_t) {
    const uint32_t left = end_of(static_cast<uint32_t>(pair >> 32), true),
                   right = end_of(static_cast<uint32_t>(pair), false);
    joints_.set(uint64_t{left} << 32 | right, 1);
  });
}

bool BpeModel::merges_into_symbol(uint64_t pair, int32_t merged) const {
  const std::string* text = vocabulary().token(merged);
  const auto id = static_cast<uint32_t>(merged);
  return !text || text->empty() || text->size() <= utf8_size((*text)[0]) || merged == unknown_id_ ||
         (options_.byte_fallback && text->size() == 6 && text->starts_with("<0x")) ||
         id == static_cast<uint32_t>(pair) || id == static_cast<uint32_t>(pair >> 32);
}

// Text that no pattern splits, as SentencePiece's: it is as one piece, but falls into short
// segments where no merge joins two neighbours, which merge by themselves.
void BpeModel::merge_segments(std::vector<int32_t>& symbols, std::vector<int32_t>& ids) const {
  std::call_once(joints_found_, [this] { find_joints(); });
  std::vector<int32_t> segment;
  for (size_t begin = 0, end; begin < symbols.size(); begin = end) {
    end = begin + 1;
    const auto joined = [&] {
      return all_joined_ ||
             joints_.find(uint64_t{static_cast<uint32_t>(symbols[end - 1])} << 32 |
                          static_cast<uint32_t>(symbols[end])) != IntegerMap::kAbsent;
    };
    while (end < symbols.size() && joined()) ++end;
    segment.assign(symbols.begin() + static_cast<ptrdiff_t>(begin),
                   symbols.begin() + static_cast<ptrdiff_t>(end));
    segment.size() <= kShort ? merge_short(segment) : merge_long(segment);
    ids.insert(ids.end(), segment.begin(), segment.end());
  }
}

void BpeModel::encode(std::string_view piece, std::vector<int32_t>& ids) const {
  check(piece.size() < kNever, "a piece of text has ", piece.size(), " bytes: at most 2^32 - 2");
  if (options_.ignore_merges) {
    if (const auto id = vocabulary().id(piece)) {
      ids.push_back(*id);
      return;
    }
  }
  thread_local std::vector<int32_t> symbols;
  symbols.clear();
  first_symbols(piece, symbols);
  if (symbols.size() > kShort) return merge_segments(symbols, ids);
  merge_short(symbols);
  ids.insert(ids.end(), symbols.begin(), symbols.end());
}

}  // namespace tiny::models::tokenizers
