#include "tiny/models/tokenizers/write_gguf.h"

#include <unordered_map>
#include <utility>

#include "tiny/models/tokenizers/json_value.h"
#include "tiny/models/tokenizers/parts/byte_level.h"
#include "tiny/models/tokenizers/read_gguf.h"

namespace tiny::models::tokenizers {

namespace {

constexpr char kMetaspace[] = "\u2581";

using Merges = std::vector<std::pair<std::string, std::string>>;

// Files have a merge as "left right" or as a list of two.
Merges read_merges(const JsonValue& model) {
  Merges out;
  for (const JsonValue& merge : model["merges"].items()) {
    if (merge.json().is_array()) {
      const std::vector<JsonValue> parts = merge.items();
      merge.require(parts.size() == 2, "a list of two tokens");
      out.emplace_back(parts[0].text(), parts[1].text());
      continue;
    }
    const size_t space = merge.text().find(' ', 1);
    merge.require(space != std::string::npos, "two tokens with a space between them");
    out.emplace_back(merge.text().substr(0, space), merge.text().substr(space + 1));
  }
  return out;
}

bool is_byte(const std::string& token) {
  return token.size() == 6 && token.starts_with("<0x") && token.ends_with('>');
}

// Tokens by their ids, and what they are. Ids without one get a name of their own.
void add_tokens(const JsonValue& file, const Tokenizer& tokenizer, GgufVocabulary& out) {
  out.tokens.resize(static_cast<size_t>(tokenizer.id_end()));
  out.token_types.assign(out.tokens.size(), kUnused);
  for (const auto& [token, id] : file["model"]["vocab"].json().items()) {
    const auto at = static_cast<size_t>(
        JsonValue(id, "model.vocab." + token).integer(0, std::ssize(out.tokens) - 1));
    out.tokens[at] = token;
    out.token_types[at] = kNormal;
  }
  if (file.has("added_tokens"))
    for (const JsonValue& added : file["added_tokens"].items()) {
      const std::string& content = added["content"].text();
      const std::optional<int32_t> id = tokenizer.id(content);
      if (!id) continue;  // such as an empty one
      const auto at = static_cast<size_t>(*id);
      out.tokens[at] = content;
      out.token_types[at] = added["special"].boolean_or(false) ? kControl : kUserDefined;
    }
  for (size_t i = 0; i < out.tokens.size(); ++i) {
    if (out.token_types[i] == kUnused) out.tokens[i] = cat("[PAD", i, "]");
    if (out.model == "llama" && is_byte(out.tokens[i])) out.token_types[i] = kByte;
  }
  if (const auto unknown = tokenizer.special_ids().unknown; unknown && out.model == "llama")
    out.token_types[*unknown] = kUnknown;
}

// The regular expressions that split a text, one after the other.
void add_patterns(const JsonValue& step, std::vector<std::string>& out) {
  const std::string type = step["type"].text();
  if (type == "Sequence") {
    for (const JsonValue& part : step["pretokenizers"].items()) add_patterns(part, out);
  } else if (type == "ByteLevel") {
    if (step["add_prefix_space"].boolean_or(true)) step["add_prefix_space"].fail_unsupported();
    if (step["use_regex"].boolean_or(true)) out.push_back(kGpt2Pattern);
  } else if (type == "Digits" && step["individual_digits"].boolean_or(false)) {
    out.push_back(R"(\p{N})");
  } else if (type == "Split" && step["pattern"].has("Regex") &&
             step["behavior"].text_or("") == "Isolated" && !step["invert"].boolean_or(false)) {
    out.push_back(step["pattern"]["Regex"].text());
  } else {
    step.fail_unsupported();
  }
}

void add_byte_level(const JsonValue& file, GgufVocabulary& out) {
  const JsonValue normalizer = file["normalizer"];
  if (!normalizer.is_null() && normalizer["type"].text() != "NFC") normalizer.fail_unsupported();
  std::vector<std::string> patterns;
  add_patterns(file["pre_tokenizer"], patterns);
  out.pre = pre_tokenization_name(patterns, file["model"]["ignore_merges"].boolean_or(false));
  if (out.pre.empty()) file["pre_tokenizer"].fail_unsupported();
  for (const auto& [left, right] : read_merges(file["model"]))
    out.merges.push_back(cat(left, " ", right));
}

// Pairs are joined in the order of the scores of what they become: the first merge says it. What no
// merge makes comes last.
void add_scores(const JsonValue& file, GgufVocabulary& out) {
  for (const char* key : {"normalizer", "pre_tokenizer"}) {
    const std::string text = file[key].json().dump();
    for (const char* other : {"Regex", "NFC", "NFKC", "Lowercase", "Strip", "ByteLevel", "Digits"})
      if (text.find(other) != std::string::npos) file[key].fail_unsupported();
  }
  std::unordered_map<std::string, float> scores;
  const Merges merges = read_merges(file["model"]);
  for (const auto& [left, right] : merges)
    scores.emplace(left + right, -static_cast<float>(scores.size()));
  const float last = -static_cast<float>(scores.size());
  for (const std::string& token : out.tokens) {
    const auto found = scores.find(token);
    out.scores.push_back(found == scores.end() ? last : found->second);
  }
}

}  // namespace

GgufVocabulary gguf_vocabulary_of(std::string_view text, const Tokenizer& tokenizer) {
  const JsonValue::Json json = JsonValue::Json::parse(text);
  const JsonValue file(json, ""), model = file["model"];
  if (model["type"].text_or("BPE") != "BPE") model["type"].fail_unsupported();
  GgufVocabulary out;
  const bool falls_back = model["byte_fallback"].boolean_or(false);
  out.model = falls_back ? "llama" : "gpt2";
  add_tokens(file, tokenizer, out);
  if (falls_back)
    add_scores(file, out);
  else
    add_byte_level(file, out);
  const SpecialIds& special = tokenizer.special_ids();
  out.bos = special.bos;
  out.eos = special.eos;
  out.unknown = special.unknown;
  out.padding = special.padding;
  const std::vector<int32_t> bare = tokenizer.encode("a", false), full = tokenizer.encode("a");
  const size_t more = full.size() - bare.size();
  out.add_bos = more > 0 && special.bos && full.front() == *special.bos;
  out.add_eos = more > (*out.add_bos ? 1 : 0) && special.eos && full.back() == *special.eos;
  if (falls_back && !bare.empty())
    out.add_space_prefix = tokenizer.token(bare[0]).starts_with(kMetaspace);
  return out;
}

}  // namespace tiny::models::tokenizers
