#include "tiny/models/tokenizers/read_json.h"

#include <algorithm>
#include <array>
#include <limits>
#include <string>
#include <utility>

#include "tiny/base/error.h"

#if __has_include(<nlohmann/json.hpp>)
#include "tiny/ir/sizes.h"
#include "tiny/models/tokenizers/json_value.h"
#include "tiny/models/tokenizers/read_steps.h"
#define TINY_HAS_JSON 1
#endif

namespace tiny::models::tokenizers {
namespace {

struct SpecialName {
  const char* key;  // in tokenizer_config.json
  std::optional<int32_t> SpecialIds::*id;
  std::array<const char*, 6> common;  // the first that there is
};

constexpr SpecialName kSpecialNames[] = {
    {"bos_token",
     &SpecialIds::bos,
     {"<s>", "<|begin_of_text|>", "<bos>", "<|startoftext|>", "<|endoftext|>", "[CLS]"}},
    {"eos_token",
     &SpecialIds::eos,
     {"</s>", "<|eot_id|>", "<|im_end|>", "<eos>", "<|endoftext|>", "[SEP]"}},
    {"unk_token", &SpecialIds::unknown, {"<unk>", "[UNK]", "<|endoftext|>"}},
    {"pad_token", &SpecialIds::padding, {"<pad>", "[PAD]", "<|pad|>", "<|endoftext|>"}},
    {"cls_token", &SpecialIds::cls, {"[CLS]", "<cls>"}},
    {"sep_token", &SpecialIds::separator, {"[SEP]", "<sep>"}},
    {"mask_token", &SpecialIds::mask, {"[MASK]", "<mask>"}},
};

}  // namespace

SpecialIds common_special_ids(const TokenizerParts& parts) {
  SpecialIds out;
  for (const SpecialName& name : kSpecialNames)
    for (const char* token : name.common)
      if (token && !(out.*name.id) && parts.added.is_special(token))
        out.*name.id = parts.added.id(token);
  return out;
}

#if TINY_HAS_JSON

namespace {

using Json = nlohmann::json;

std::optional<int32_t> id_of(const TokenizerParts& parts, const std::string& token) {
  const auto added = parts.added.id(token);
  return added ? added : parts.model->vocabulary().id(token);
}

Json parse(std::string_view text) {
  try {
    return Json::parse(text);
  } catch (const Json::exception& e) {
    throw Error(cat("no valid JSON: ", valid_utf8(e.what())));
  }
}

Vocabulary read_vocabulary(const JsonValue& value) {
  value.require(value.json().is_object(), "an object of tokens and ids");
  Vocabulary vocabulary;
  for (const auto& [token, id] : value.json().items())
    vocabulary.add(token, static_cast<int32_t>(
                              JsonValue(id, value.path() + "." + token).integer(0, kMaxTokenId)));
  return vocabulary;
}

using Pair = std::pair<std::string, std::string>;

// "left right" or ["left", "right"].
Pair read_merge(const JsonValue& value) {
  if (value.json().is_array()) {
    const auto items = value.items();
    value.require(items.size() == 2, "two tokens");
    return {items[0].text(), items[1].text()};
  }
  const std::string& text = value.text();
  const size_t space = text.find(' ');
  value.require(space != std::string::npos && text.find(' ', space + 1) == std::string::npos,
                "two tokens with a space between them");
  return {text.substr(0, space), text.substr(space + 1)};
}

std::unique_ptr<Model> read_bpe(const JsonValue& v) {
  BpeOptions o;
  if (v.has("unk_token")) o.unknown_token = v["unk_token"].text();
  o.continuing_prefix = v["continuing_subword_prefix"].text_or("");
  o.word_suffix = v["end_of_word_suffix"].text_or("");
  o.fuse_unknown = v["fuse_unk"].boolean_or(false);
  o.byte_fallback = v["byte_fallback"].boolean_or(false);
  o.ignore_merges = v["ignore_merges"].boolean_or(false);
  std::vector<Pair> pairs;
  for (const JsonValue& item : v["merges"].items()) {
    const bool header = item.json().is_string() && item.text().starts_with("#version");
    if (!header) pairs.push_back(read_merge(item));
  }
  Vocabulary vocabulary = read_vocabulary(v["vocab"]);
  const auto merges = merges_of(vocabulary, pairs, o.continuing_prefix);
  return std::make_unique<BpeModel>(std::move(vocabulary), merges, std::move(o));
}

std::unique_ptr<Model> read_word_piece(const JsonValue& v) {
  return std::make_unique<WordPieceModel>(
      read_vocabulary(v["vocab"]), v["unk_token"].text_or("[UNK]"),
      v["continuing_subword_prefix"].text_or("##"),
      static_cast<size_t>(
          v["max_input_chars_per_word"].integer_or(100, 0, std::numeric_limits<int64_t>::max())));
}

std::unique_ptr<Model> read_word_level(const JsonValue& v) {
  return std::make_unique<WordLevelModel>(read_vocabulary(v["vocab"]),
                                          v["unk_token"].text_or("<unk>"));
}

std::unique_ptr<Model> read_unigram(const JsonValue& v) {
  std::vector<ScoredToken> tokens;
  for (const JsonValue& item : v["vocab"].items()) {
    const auto pair = item.items();
    item.require(pair.size() == 2, "a token and its score");
    tokens.push_back({pair[0].text(), pair[1].number()});
  }
  UnigramOptions o;
  if (v.has("unk_id")) o.unknown_id = static_cast<int32_t>(v["unk_id"].integer(0, kMaxTokenId));
  o.byte_fallback = v["byte_fallback"].boolean_or(false);
  return std::make_unique<UnigramModel>(tokens, o);
}

// Files of old versions name no type.
std::string model_type(const JsonValue& v) {
  if (v.has("type")) return v["type"].text();
  if (v.has("merges")) return "BPE";
  if (v["vocab"].json().is_array()) return "Unigram";
  return v.has("max_input_chars_per_word") ? "WordPiece" : "WordLevel";
}

std::unique_ptr<Model> read_model(const JsonValue& v) {
  const std::string type = model_type(v);
  if (type == "BPE") return read_bpe(v);
  if (type == "WordPiece") return read_word_piece(v);
  if (type == "WordLevel") return read_word_level(v);
  if (type == "Unigram") return read_unigram(v);
  v["type"].fail_unsupported();
}

AddedToken read_added_token(const JsonValue& v) {
  AddedToken token;
  token.content = v["content"].text();
  token.single_word = v["single_word"].boolean_or(false);
  token.lstrip = v["lstrip"].boolean_or(false);
  token.rstrip = v["rstrip"].boolean_or(false);
  token.special = v["special"].boolean_or(false);
  token.normalized = v["normalized"].boolean_or(!token.special);
  return token;
}

Side read_side(const JsonValue& v) {
  const std::string name = v.text_or("Right");
  if (name != "Left" && name != "Right") v.fail_unsupported();
  return name == "Left" ? Side::Left : Side::Right;
}

constexpr int64_t kMaxLength = int64_t{1} << 40;

Truncation read_truncation(const JsonValue& v) {
  // Files without a limit have 2^63 and the like here.
  const JsonValue length = v["max_length"];
  const bool huge = length.json().is_number() && length.number() > static_cast<double>(kMaxLength);
  Truncation t{huge ? kMaxLength : length.integer(0, kMaxLength)};
  t.side = read_side(v["direction"]);
  const std::string strategy = v["strategy"].text_or("LongestFirst");
  if (strategy == "OnlyFirst") {
    t.strategy = TruncationStrategy::OnlyFirst;
  } else if (strategy == "OnlySecond") {
    t.strategy = TruncationStrategy::OnlySecond;
  } else if (strategy != "LongestFirst") {
    v["strategy"].fail_unsupported();
  }
  return t;
}

// "strategy" is "BatchLongest" or {"Fixed": length}.
Padding read_padding(const JsonValue& v) {
  constexpr int64_t kMax = 1 << 24;
  Padding p;
  const JsonValue strategy = v["strategy"];
  p.multiple_of = std::max<int64_t>(v["pad_to_multiple_of"].integer_or(1, 0, kMax), 1);
  if (strategy.has("Fixed")) {
    // Rounded up itself; what is longer is not.
    p.length = strategy["Fixed"].integer(0, kMax);
    p.length = round_up(p.length, p.multiple_of);
    p.multiple_of = 1;
  } else if (strategy.text_or("BatchLongest") != "BatchLongest") {
    strategy.fail_unsupported();
  }
  p.side = read_side(v["direction"]);
  p.id = static_cast<int32_t>(v["pad_id"].integer_or(0, 0, kMaxTokenId));
  p.type = static_cast<int32_t>(v["pad_type_id"].integer_or(0, 0, kMaxTokenId));
  return p;
}

}  // namespace

TokenizerParts parts_of_json(std::string_view text) {
  const Json json = parse(text);
  const JsonValue root(json, "");
  TokenizerParts parts;
  parts.model = read_model(root["model"]);
  if (root.has("normalizer")) parts.normalizer = read_normalizer(root["normalizer"]);
  if (root.has("pre_tokenizer")) parts.pre_tokenizer = read_pre_tokenizer(root["pre_tokenizer"]);
  if (root.has("post_processor"))
    parts.post_processor = PostProcessor(read_post_processor(root["post_processor"]));
  if (root.has("decoder")) parts.decoder = read_decoder(root["decoder"]);
  if (root.has("truncation")) parts.truncation = read_truncation(root["truncation"]);
  if (root.has("padding")) parts.padding = read_padding(root["padding"]);
  if (root.has("added_tokens"))
    for (const JsonValue& token : root["added_tokens"].items())
      parts.added.add(read_added_token(token), parts.model->vocabulary());
  parts.added.prepare(parts.normalizer);
  return parts;
}

void read_special_ids(std::string_view json, std::string_view name, TokenizerParts& parts) {
  const Json parsed = parse(json);
  const JsonValue root(parsed, std::string(name));
  for (const SpecialName& special : kSpecialNames) {
    if (!root.json().contains(special.key)) continue;
    parts.special.*special.id = {};  // null says that there is none
    if (!root.has(special.key)) continue;
    // Text, or an object with the text as its "content".
    const JsonValue value = root[special.key];
    const JsonValue content = value.json().is_object() ? value["content"] : value;
    parts.special.*special.id = id_of(parts, content.text());
  }
}

#else

TokenizerParts parts_of_json(std::string_view) {
  throw Error(
      "this build reads no tokenizer.json: nlohmann/json.hpp (package "
      "nlohmann-json3-dev) was missing");
}

void read_special_ids(std::string_view, std::string_view, TokenizerParts&) {}

#endif

}  // namespace tiny::models::tokenizers
