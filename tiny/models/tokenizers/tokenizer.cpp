#include "tiny/models/tokenizers/tokenizer.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "tiny/base/error.h"
#include "tiny/base/file.h"
#include "tiny/base/parallel.h"
#include "tiny/ir/sizes.h"
#include "tiny/models/text/unicode.h"
#include "tiny/models/tokenizers/read_gguf.h"
#include "tiny/models/tokenizers/read_json.h"

namespace tiny::models {

using namespace tokenizers;

namespace {

std::string read_file(const std::string& path) { return InputFile("tokenizer", path).read_all(); }

void keep(std::vector<int32_t>& ids, size_t count, Side side) {
  if (ids.size() <= count) return;
  const auto excess = static_cast<ptrdiff_t>(ids.size() - count);
  if (side == Side::Left) {
    ids.erase(ids.begin(), ids.begin() + excess);
  } else {
    ids.erase(ids.end() - excess, ids.end());
  }
}

// Both get shorter where the shorter one alone takes more than half of the room.
void truncate_longest(std::vector<int32_t>& first, std::vector<int32_t>& second, size_t room,
                      Side side) {
  const bool swapped = first.size() > second.size();
  size_t least = std::min(first.size(), second.size());
  size_t most = least > room ? least : std::max(least, room - least);
  if (least + most > room) {
    least = room / 2;
    most = room - least;
  }
  keep(first, swapped ? most : least, side);
  keep(second, swapped ? least : most, side);
}

// `room`: how many ids of the texts may stay.
void truncate(std::vector<int32_t>& first, std::vector<int32_t>* second, size_t room,
              const Truncation& t) {
  const size_t total = first.size() + (second ? second->size() : 0);
  if (total <= room) return;
  if (room == 0) {
    first.clear();
    if (second) second->clear();
    return;
  }
  if (t.strategy == TruncationStrategy::LongestFirst) {
    if (second) return truncate_longest(first, *second, room, t.side);
    return keep(first, room, t.side);
  }
  const bool only_first = t.strategy == TruncationStrategy::OnlyFirst;
  check(only_first || second, "truncation only of the second text, but there is none");
  std::vector<int32_t>& target = only_first ? first : *second;
  const size_t excess = total - room;
  check(target.size() > excess, "truncation to ", t.max_length, " ids takes ", excess,
        " ids from a text of ", target.size());
  keep(target, target.size() - excess, t.side);
}

// Of a text alone. Bytes that are no UTF-8 count as U+FFFD.
std::vector<int32_t> ids_of(const TokenizerParts& parts, std::string_view given) {
  const std::string replaced = is_valid_utf8(given) ? "" : valid_utf8(given);
  const std::string_view text = replaced.empty() ? given : std::string_view(replaced);
  std::vector<int32_t> ids;
  const auto encode_piece = [&](std::string_view piece, bool starts_text) {
    if (!parts.pre_tokenizer) return parts.model->encode(piece, ids);
    Pieces pieces(std::string(piece), starts_text);
    parts.pre_tokenizer(pieces);
    for (const Pieces::Span& span : pieces.spans) parts.model->encode(pieces.piece(span), ids);
  };
  for (const AddedTokens::Part& part : parts.added.split(text, false)) {
    if (part.id) {
      ids.push_back(*part.id);
      continue;
    }
    std::string between(text.substr(part.begin, part.end - part.begin));
    if (parts.normalizer) between = parts.normalizer(between);
    for (const AddedTokens::Part& inner : parts.added.split(between, true)) {
      const std::string_view piece =
          std::string_view(between).substr(inner.begin, inner.end - inner.begin);
      if (inner.id) {
        ids.push_back(*inner.id);
      } else {
        encode_piece(piece, part.begin == 0 && inner.begin == 0);
      }
    }
  }
  return ids;
}

// One text or two, with what is put around them.
TypedIds encode_texts(const TokenizerParts& parts, std::string_view first,
                      const std::string_view* second, bool add_special_tokens,
                      const std::optional<Truncation>& truncation) {
  std::vector<int32_t> ids = ids_of(parts, first), more;
  if (second) more = ids_of(parts, *second);
  if (truncation) {
    const size_t added =
        add_special_tokens ? parts.post_processor.added_tokens(second != nullptr) : 0;
    check(truncation->max_length >= static_cast<int64_t>(added), "truncation to ",
          truncation->max_length, " ids, of which ", added, " are special tokens");
    truncate(ids, second ? &more : nullptr, static_cast<size_t>(truncation->max_length) - added,
             *truncation);
  }
  return parts.post_processor.apply(ids, second ? &more : nullptr, add_special_tokens);
}

int64_t padded_length(int64_t length, const Padding& p) {
  const int64_t least = std::max(length, p.length), multiple = std::max<int64_t>(p.multiple_of, 1);
  return round_up(least, multiple);
}

void pad(std::vector<int32_t>& values, int64_t length, Side side, int32_t value) {
  const auto missing = static_cast<size_t>(length) - values.size();
  values.insert(side == Side::Left ? values.begin() : values.end(), missing, value);
}

void pad(TypedIds& out, const Padding& p) {
  const int64_t length = padded_length(static_cast<int64_t>(out.ids.size()), p);
  pad(out.ids, length, p.side, p.id);
  pad(out.types, length, p.side, p.type);
}

// The rows, padded to the same length.
TokenBatch joined(const std::vector<TypedIds>& rows, const Padding& p) {
  int64_t longest = 0;
  for (const TypedIds& row : rows)
    longest = std::max(longest, static_cast<int64_t>(row.ids.size()));
  TokenBatch batch;
  batch.rows = static_cast<int64_t>(rows.size());
  batch.length = padded_length(longest, p);
  const auto append = [&](std::vector<int32_t>& to, std::vector<int32_t> row, int32_t padding) {
    pad(row, batch.length, p.side, padding);
    to.insert(to.end(), row.begin(), row.end());
  };
  for (const TypedIds& row : rows) {
    append(batch.ids, row.ids, p.id);
    append(batch.attention_mask, std::vector<int32_t>(row.ids.size(), 1), 0);
    append(batch.types, row.types, p.type);
  }
  return batch;
}

}  // namespace

Tokenizer::Tokenizer(TokenizerParts parts)
    : parts_(std::make_shared<const TokenizerParts>(std::move(parts))) {}

Tokenizer::Tokenizer(const GgufVocabulary& vocabulary) : Tokenizer(parts_of_gguf(vocabulary)) {}

Tokenizer Tokenizer::from_json(std::string_view text) {
  TokenizerParts parts = parts_of_json(text);
  parts.special = common_special_ids(parts);
  return Tokenizer(std::move(parts));
}

Tokenizer Tokenizer::load(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  const bool folder = fs::is_directory(path, ignored);
  const fs::path file = folder ? fs::path(path) / "tokenizer.json" : fs::path(path);
  try {
    TokenizerParts parts = parts_of_json(read_file(file));
    parts.special = common_special_ids(parts);
    for (const char* name : {"special_tokens_map.json", "tokenizer_config.json"}) {
      const fs::path beside = file.parent_path() / name;
      if (fs::is_regular_file(beside, ignored)) read_special_ids(read_file(beside), name, parts);
    }
    return Tokenizer(std::move(parts));
  } catch (const Error& e) {
    throw Error(cat(file.string(), ": ", e.what()));
  }
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, bool add_special_tokens) const {
  TypedIds out = encode_texts(*parts_, text, nullptr, add_special_tokens, parts_->truncation);
  if (parts_->padding) pad(out, *parts_->padding);
  return std::move(out.ids);
}

TypedIds Tokenizer::encode_pair(std::string_view first, std::string_view second,
                                bool add_special_tokens) const {
  TypedIds out = encode_texts(*parts_, first, &second, add_special_tokens, parts_->truncation);
  if (parts_->padding) pad(out, *parts_->padding);
  return out;
}

TokenBatch Tokenizer::encode_batch(std::span<const std::string> texts,
                                   const TokenBatchOptions& options) const {
  std::optional<Truncation> truncation = parts_->truncation;
  if (options.max_length) truncation = Truncation{*options.max_length, options.truncation_side};
  const SpecialIds& special = parts_->special;
  Padding padding =
      parts_->padding.value_or(Padding{.id = special.padding.value_or(special.eos.value_or(0))});
  padding.length = std::max(padding.length, options.length);
  padding.multiple_of = std::max(padding.multiple_of, options.multiple_of);
  padding.side = options.padding_side.value_or(padding.side);
  padding.id = options.padding_id.value_or(padding.id);
  std::vector<TypedIds> rows(texts.size());
  size_t bytes = 0;
  for (const std::string& text : texts) bytes += text.size();
  constexpr size_t kWorthThreads = 1 << 16;
  in_parallel(texts.size(), bytes < kWorthThreads ? 1 : core_count(), [&](size_t i, size_t) {
    rows[i] = encode_texts(*parts_, texts[i], nullptr, options.add_special_tokens, truncation);
  });
  return joined(rows, padding);
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special_tokens) const {
  Texts texts;
  for (const int32_t id : ids) {
    const std::string* token = parts_->added.token(id);
    if (!token) token = parts_->model->vocabulary().token(id);
    if (token && !(skip_special_tokens && parts_->added.is_special(*token)))
      texts.push_back(*token);
  }
  if (parts_->decoder) parts_->decoder(texts);
  std::string text;
  for (size_t i = 0; i < texts.size(); ++i) {
    if (i > 0 && !parts_->decoder) text += ' ';
    text += texts[i];
  }
  return text;
}

int64_t Tokenizer::size() const {
  const Vocabulary& vocabulary = parts_->model->vocabulary();
  auto size = static_cast<int64_t>(vocabulary.size());
  for (const auto& [id, token] : parts_->added.tokens()) size += !vocabulary.id(token.content);
  return size;
}

int64_t Tokenizer::id_end() const {
  int64_t end = 0;
  const auto see = [&](int32_t id) { end = std::max<int64_t>(end, int64_t{id} + 1); };
  parts_->model->vocabulary().for_each([&](const std::string&, int32_t id) { see(id); });
  for (const auto& [id, token] : parts_->added.tokens()) see(id);
  return end;
}

std::optional<int32_t> Tokenizer::id(const std::string& token) const {
  const auto added = parts_->added.id(token);
  return added ? added : parts_->model->vocabulary().id(token);
}

std::string Tokenizer::token(int32_t id) const {
  const std::string* token = parts_->added.token(id);
  if (!token) token = parts_->model->vocabulary().token(id);
  check(token != nullptr, "no token has the id ", id, ": there are ", size(), " tokens");
  return *token;
}

const SpecialIds& Tokenizer::special_ids() const { return parts_->special; }

bool Tokenizer::is_special(int32_t id) const {
  const std::string* token = parts_->added.token(id);
  return token && parts_->added.is_special(*token);
}

// The text of the ids that are not given, as it follows those that are. Where bytes that were a
// character are none with those that follow, it is the text of these alone.
std::string DecodeStream::new_text() const {
  const std::string text = tokenizer_.decode(ids_, skip_special_tokens_);
  if (text.starts_with(given_text_)) return text.substr(given_text_.size());
  return tokenizer_.decode(std::span(ids_).subspan(given_ids_), skip_special_tokens_);
}

std::string DecodeStream::push(int32_t id) {
  ids_.push_back(id);
  std::string text = new_text();
  if (text.empty() || text.ends_with("\ufffd")) return "";
  ids_.erase(ids_.begin(), ids_.begin() + static_cast<ptrdiff_t>(given_ids_));
  given_ids_ = ids_.size();
  given_text_ = tokenizer_.decode(ids_, skip_special_tokens_);
  return text;
}

std::string DecodeStream::finish() {
  std::string text = new_text();
  ids_.clear();
  given_ids_ = 0;
  given_text_.clear();
  return text;
}

}  // namespace tiny::models
