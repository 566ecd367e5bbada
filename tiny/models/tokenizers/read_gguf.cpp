#include "tiny/models/tokenizers/read_gguf.h"

#include <algorithm>
#include <map>
#include <utility>

#include "tiny/base/error.h"
#include "tiny/models/text/unicode.h"
#include "tiny/models/tokenizers/parts/byte_level.h"

namespace tiny::models::tokenizers {
namespace {

constexpr char kMetaspace[] = "\u2581";

// --- Pre-tokenizers of "gpt2"
// ---------------------------------------------------------------------

using Patterns = std::vector<std::string>;

// How a model's tokenizer splits text: each pattern splits the pieces that the one before it left.
struct PreTokenization {
  Patterns patterns;
  bool ignore_merges = false;
  bool add_bos = false;  // where the file does not say
};

constexpr char kLlama3[] =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|)"
    R"(\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr char kQwen2[] =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|)"
    R"(\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr char kO200k[] =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"(\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr char kTekken[] =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|)"
    R"(\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr char kDeepseekWords[] =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|)"
    R"( ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr char kBloom[] = R"( ?[^(\s|.,!?…。，、।۔،)]+)";

const std::map<std::string, PreTokenization, std::less<>>& pre_tokenizations() {
  const PreTokenization gpt2{{kGpt2Pattern}}, digits{{R"(\p{N})", kGpt2Pattern}},
      llama3{{kLlama3}, true, true}, qwen2{{kQwen2}}, o200k{{kO200k}}, bloom{{kBloom}};
  // The names that gguf-py/convert_hf_to_gguf.py writes, with the patterns of the models' own
  // files.
  static const std::map<std::string, PreTokenization, std::less<>> kAll = {
      {"default", {{R"([\p{P}\$\+<=>\^~\|]+)", kGpt2Pattern, R"(\p{N}+)", "[0-9][0-9][0-9]"}}},
      {"gpt-2", gpt2},
      {"phi-2", gpt2},
      {"mpt", gpt2},
      {"olmo", gpt2},
      {"jais", gpt2},
      {"trillion", gpt2},
      {"gigachat", gpt2},
      {"modern-bert", gpt2},
      {"roberta-bpe", gpt2},
      {"jina-es", gpt2},
      {"jina-de", gpt2},
      {"jina-v1-en", gpt2},
      {"jina-v2-es", gpt2},
      {"jina-v2-de", gpt2},
      {"starcoder", digits},
      {"refact", digits},
      {"command-r", digits},
      {"smollm", digits},
      {"codeshell", digits},
      {"exaone", digits},
      {"minerva-7b", digits},
      {"falcon", {{R"([\p{P}\$\+<=>\^~\|`]+)", kGpt2Pattern, "[0-9][0-9][0-9]"}}},
      {"llama3", llama3},
      {"llama-v3", llama3},
      {"llama-bpe", llama3},
      {"falcon3", llama3},
      {"dbrx", {{kLlama3}}},
      {"smaug-bpe", {{kLlama3}}},
      {"chatglm-bpe", {{kLlama3}}},
      {"glm4", {{kLlama3}}},
      {"qwen2", qwen2},
      {"stablelm2", qwen2},
      {"deepseek-r1-qwen", qwen2},
      {"megrez", qwen2},
      {"gpt-4o", o200k},
      {"llama4", o200k},
      {"tekken", {{kTekken}, true, true}},
      {"deepseek-v3", {{R"(\p{N}{1,3})", "[一-龥぀-ゟ゠-ヿ]+", kDeepseekWords}}},
      {"deepseek-coder",
       {{"[\r\n]", R"(\s?\p{L}+)", R"(\s?\p{P}+)", "[一-龥ࠀ-一가-퟿]+", R"(\p{N})"}}},
      {"bloom", bloom},
      {"gpt3-finnish", bloom},
      {"poro-chat", bloom},
      {"viking", {{kBloom, R"(\p{N})"}}},
  };
  return kAll;
}

const PreTokenization& pre_tokenization_of(const std::string& name) {
  const auto found = pre_tokenizations().find(name.empty() ? "default" : name);
  check(found != pre_tokenizations().end(), "tokenizer.ggml.pre is not supported: \"", name, "\"");
  return found->second;
}

PreTokenizer byte_level_after(const Patterns& patterns) {
  std::vector<PreTokenizer> steps;
  for (const std::string& pattern : patterns)
    steps.push_back(split_at(Regex(pattern), SplitBehavior::Isolated, false));
  steps.push_back(pre_tokenize_byte_level(false, false));
  return pre_tokenize_in_sequence(std::move(steps));
}

// --- Vocabularies and special tokens
// --------------------------------------------------------------

int32_t type_of(const GgufVocabulary& v, size_t id) {
  return v.token_types.empty() ? kNormal : v.token_types[id];
}

void check_arrays(const GgufVocabulary& v) {
  check(!v.tokens.empty(), "tokenizer.ggml.tokens is empty");
  check(v.tokens.size() < size_t{1} << 30, "tokenizer.ggml.tokens has ", v.tokens.size());
  check(v.scores.empty() || v.scores.size() == v.tokens.size(), "tokenizer.ggml.scores has ",
        v.scores.size(), " values for ", v.tokens.size(), " tokens");
  check(v.token_types.empty() || v.token_types.size() == v.tokens.size(),
        "tokenizer.ggml.token_type has ", v.token_types.size(), " values for ", v.tokens.size(),
        " tokens");
  for (size_t id = 0; id < v.tokens.size(); ++id)
    if (!is_valid_utf8(v.tokens[id]))
      throw Error(
          cat("tokenizer.ggml.tokens[", id, "] is no valid UTF-8: ", valid_utf8(v.tokens[id])));
}

Vocabulary vocabulary_of(const std::vector<std::string>& tokens) {
  Vocabulary vocabulary;
  for (size_t id = 0; id < tokens.size(); ++id)
    vocabulary.add(tokens[id], static_cast<int32_t>(id));
  return vocabulary;
}

void add_special_tokens(const GgufVocabulary& v, TokenizerParts& parts) {
  for (size_t id = 0; id < v.tokens.size(); ++id) {
    const int32_t type = type_of(v, id);
    if (type != kUnknown && type != kControl && type != kUserDefined) continue;
    AddedToken token{v.tokens[id]};
    token.normalized = false;
    token.special = type != kUserDefined;
    parts.added.add(token, parts.model->vocabulary());
  }
  parts.added.prepare(parts.normalizer);
}

// What the file says, or what llama.cpp assumes, where the vocabulary is as large.
SpecialIds special_ids_of(const GgufVocabulary& v, const SpecialIds& assumed) {
  const auto either = [&](std::optional<int32_t> said, std::optional<int32_t> otherwise,
                          const char* key) {
    check(!said || (*said >= 0 && static_cast<size_t>(*said) < v.tokens.size()), "tokenizer.ggml.",
          key, "_token_id is ", said.value_or(0), ", but there are ", v.tokens.size(), " tokens");
    if (said) return said;
    return otherwise && static_cast<size_t>(*otherwise) < v.tokens.size() ? otherwise : said;
  };
  return {either(v.bos, assumed.bos, "bos"),
          either(v.eos, assumed.eos, "eos"),
          either(v.unknown, assumed.unknown, "unknown"),
          either(v.padding, assumed.padding, "padding"),
          either(v.cls, assumed.cls, "cls"),
          either(v.separator, assumed.separator, "seperator"),  // as the key is spelled
          either(v.mask, assumed.mask, "mask")};
}

// The begin and the end token around a text, each where it is there.
PostProcessor surrounding(std::optional<int32_t> begin, std::optional<int32_t> end) {
  using Kind = TemplatePiece::Kind;
  PostTemplate t;
  const auto add = [&](std::optional<int32_t> id, int32_t type) {
    if (id) t.pair.push_back({Kind::Special, type, {*id}});
  };
  add(begin, 0);
  t.pair.push_back({Kind::First});
  add(end, 0);
  t.single = t.pair;
  t.pair.push_back({Kind::Second, 1});
  add(end, 1);
  return PostProcessor({t});
}

std::optional<int32_t> where(bool wanted, std::optional<int32_t> id) {
  return wanted ? id : std::nullopt;
}

// --- Kinds of models
// ------------------------------------------------------------------------------

TokenizerParts byte_level_parts(const GgufVocabulary& v) {
  const PreTokenization& pre = pre_tokenization_of(v.pre);
  std::vector<std::pair<std::string, std::string>> pairs;
  for (const std::string& merge : v.merges) {
    const size_t space = merge.find(' ', 1);
    check(space != std::string::npos, "tokenizer.ggml.merges has \"", valid_utf8(merge),
          "\": two tokens with a space between them");
    pairs.emplace_back(merge.substr(0, space), merge.substr(space + 1));
  }
  TokenizerParts parts;
  Vocabulary vocabulary = vocabulary_of(v.tokens);
  const auto merges = merges_of(vocabulary, pairs, "");
  BpeOptions options;
  options.ignore_merges = pre.ignore_merges;
  parts.model = std::make_unique<BpeModel>(std::move(vocabulary), merges, options);
  parts.pre_tokenizer = byte_level_after(pre.patterns);
  parts.decoder = decode_byte_level();
  parts.special = special_ids_of(v, {11, 11, {}, {}, {}, {}, {}});
  parts.post_processor = surrounding(where(v.add_bos.value_or(pre.add_bos), parts.special.bos),
                                     where(v.add_eos.value_or(false), parts.special.eos));
  return parts;
}

// All ways to join two tokens to a third. Tokens of the same score have the same rank.
std::vector<Merge> merges_of_scores(const GgufVocabulary& v, const Vocabulary& vocabulary) {
  std::vector<float> ranks(v.scores);
  std::ranges::sort(ranks, std::greater<>());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  std::vector<Merge> merges;
  vocabulary.for_each([&](const std::string& token, int32_t id) {
    const float score = v.scores[id];
    const auto rank = std::lower_bound(ranks.begin(), ranks.end(), score, std::greater<>());
    for_each_code_point(token, [&](char32_t, size_t at, size_t) {
      if (at == 0) return;
      const auto left = vocabulary.id(std::string_view(token).substr(0, at)),
                 right = vocabulary.id(std::string_view(token).substr(at));
      if (left && right)
        merges.push_back({*left, *right, id, static_cast<uint32_t>(rank - ranks.begin())});
    });
  });
  return merges;
}

Normalizer normalize_spaces(bool add_prefix) {
  std::vector<Normalizer> steps;
  if (add_prefix) steps.push_back(prepend_text(" "));
  steps.push_back(replace_text(" ", kMetaspace));
  return normalize_in_sequence(std::move(steps));
}

// `prefixed`: the first space of a text was put there.
Decoder decode_spaces(bool prefixed) {
  std::vector<Decoder> steps = {replace_in_texts(std::string(kMetaspace), " "),
                                decode_byte_fallback(), fuse_texts()};
  if (prefixed) steps.push_back(strip_texts(" ", 1, 0));
  return decode_in_sequence(std::move(steps));
}

// SentencePiece's BPE: pairs are joined in the order of the scores of what they become.
TokenizerParts sentence_piece_parts(const GgufVocabulary& v) {
  check(!v.scores.empty(), "tokenizer.ggml.scores is missing: the model \"llama\" needs it");
  for (const float score : v.scores)
    check(score == score, "tokenizer.ggml.scores has a value that is no number");
  TokenizerParts parts;
  const bool prefix = v.add_space_prefix.value_or(true);
  parts.special = special_ids_of(v, {1, 2, 0, {}, {}, {}, {}});
  BpeOptions options;
  options.byte_fallback = true;
  if (parts.special.unknown) options.unknown_token = v.tokens[*parts.special.unknown];
  Vocabulary vocabulary = vocabulary_of(v.tokens);
  const auto merges = merges_of_scores(v, vocabulary);
  parts.model = std::make_unique<BpeModel>(std::move(vocabulary), merges, options);
  parts.normalizer = normalize_spaces(prefix);
  parts.decoder = decode_spaces(prefix);
  parts.post_processor = surrounding(where(v.add_bos.value_or(true), parts.special.bos),
                                     where(v.add_eos.value_or(false), parts.special.eos));
  return parts;
}

// Back from the file's way, where words begin with U+2581, to BERT's, where others begin with ##.
std::string word_piece_token(const std::string& token) {
  if (token.starts_with('[') && token.ends_with(']')) return token;
  const std::string space = kMetaspace;
  return token.starts_with(space) ? token.substr(space.size()) : "##" + token;
}

TokenizerParts word_piece_parts(const GgufVocabulary& v) {
  constexpr size_t kAnyLength = ~size_t{0};
  TokenizerParts parts;
  parts.special = special_ids_of(v, {101, {}, 100, 0, 101, 102, 103});
  check(parts.special.unknown.has_value(), "tokenizer.ggml.unknown_token_id is missing");
  const auto unknown = static_cast<size_t>(*parts.special.unknown);
  Vocabulary vocabulary;
  for (size_t id = 0; id < v.tokens.size(); ++id) {
    const int32_t type = type_of(v, id);
    const bool special = type == kControl || type == kUnknown || id == unknown;
    vocabulary.add(special ? v.tokens[id] : word_piece_token(v.tokens[id]),
                   static_cast<int32_t>(id));
  }
  parts.model =
      std::make_unique<WordPieceModel>(std::move(vocabulary), v.tokens[unknown], "##", kAnyLength);
  parts.normalizer = normalize_for_bert({});
  parts.pre_tokenizer = split_for_bert();
  parts.decoder = decode_word_piece("##", true);
  const auto begin = v.cls || !v.bos ? parts.special.cls : parts.special.bos;
  parts.post_processor = surrounding(where(v.add_bos.value_or(true), begin),
                                     where(v.add_sep.value_or(true), parts.special.separator));
  return parts;
}

// SentencePiece's normalization: its character map, then one space before each word.
Normalizer normalize_for_unigram(const GgufVocabulary& v) {
  std::vector<Normalizer> steps;
  if (!v.precompiled_charsmap.empty())
    steps.emplace_back([map = CharacterMap(v.precompiled_charsmap)](std::string_view text) {
      return map.replace_longest(text);
    });
  const bool merge_spaces = v.remove_extra_whitespaces.value_or(false);
  if (merge_spaces) {
    steps.push_back(replace_regex(Regex("\\A +| +\\z"), ""));
    steps.push_back(replace_regex(Regex(" +"), " "));
  }
  steps.push_back(normalize_spaces(merge_spaces || v.add_space_prefix.value_or(true)));
  return normalize_in_sequence(std::move(steps));
}

TokenizerParts unigram_parts(const GgufVocabulary& v) {
  check(!v.scores.empty(), "tokenizer.ggml.scores is missing: the model \"t5\" needs it");
  TokenizerParts parts;
  parts.special = special_ids_of(v, {{}, 1, 2, 0, {}, {}, {}});
  std::vector<ScoredToken> tokens;
  for (size_t id = 0; id < v.tokens.size(); ++id)
    tokens.push_back({v.tokens[id], type_of(v, id) == kUserDefined ? 0 : v.scores[id]});
  UnigramOptions options;
  options.unknown_id = parts.special.unknown;
  parts.model = std::make_unique<UnigramModel>(tokens, options);
  parts.normalizer = normalize_for_unigram(v);
  parts.decoder = decode_spaces(true);
  parts.post_processor = surrounding(where(v.add_bos.value_or(false), parts.special.bos),
                                     where(v.add_eos.value_or(true), parts.special.eos));
  return parts;
}

}  // namespace

std::string pre_tokenization_name(const Patterns& patterns, bool ignore_merges) {
  const auto fits = [&](const PreTokenization& p) {
    return p.patterns == patterns && p.ignore_merges == ignore_merges;
  };
  for (const char* usual : {"gpt-2", "llama-bpe", "smaug-bpe", "qwen2"})
    if (fits(pre_tokenization_of(usual))) return usual;
  for (const auto& [name, p] : pre_tokenizations())
    if (fits(p)) return name;
  return "";
}

TokenizerParts parts_of_gguf(const GgufVocabulary& v) {
  constexpr std::pair<const char*, TokenizerParts (*)(const GgufVocabulary&)> kKinds[] = {
      {"gpt2", byte_level_parts},
      {"llama", sentence_piece_parts},
      {"bert", word_piece_parts},
      {"t5", unigram_parts},
  };
  check_arrays(v);
  for (const auto& [name, make] : kKinds) {
    if (v.model != name) continue;
    TokenizerParts parts = make(v);
    add_special_tokens(v, parts);
    return parts;
  }
  throw Error(cat("tokenizer.ggml.model is not supported: \"", v.model, "\""));
}

}  // namespace tiny::models::tokenizers
