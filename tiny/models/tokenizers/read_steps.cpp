#if __has_include(<nlohmann/json.hpp>)
#include "tiny/models/tokenizers/read_steps.h"

#include <limits>

#include "tiny/models/text/unicode.h"

namespace tiny::models::tokenizers {
namespace {

constexpr char kMetaspace[] = "\u2581";

// A list of steps under `key`.
template <class Step>
std::vector<Step> read_steps(Step (*read)(const JsonValue&, int), const JsonValue& value,
                             const char* key, int depth) {
  std::vector<Step> steps;
  for (const JsonValue& item : value[key].items()) steps.push_back(read(item, depth + 1));
  return steps;
}

// {"String": text} or {"Regex": pattern}, given to one of two. Empty text matches between all
// characters, as an empty pattern does.
template <class OfText, class OfRegex>
auto read_pattern(const JsonValue& value, const OfText& of_text, const OfRegex& of_regex) {
  if (value.has("String") && !value["String"].text().empty())
    return of_text(value["String"].text());
  if (value.has("String")) return of_regex(Regex(""));
  if (!value.has("Regex")) value.fail_unsupported();
  return of_regex(Regex(value["Regex"].text()));
}

// --- Normalizers
// ----------------------------------------------------------------------------------

template <NormalForm form> Normalizer read_normal_form(const JsonValue&, int) {
  return normalize_to(form);
}

Normalizer read_bert_normalizer(const JsonValue& v, int) {
  BertNormalization o;
  o.clean_text = v["clean_text"].boolean_or(true);
  o.handle_chinese_chars = v["handle_chinese_chars"].boolean_or(true);
  o.lowercase = v["lowercase"].boolean_or(true);
  o.strip_accents = v["strip_accents"].boolean_or(o.lowercase);
  return normalize_for_bert(o);
}

Normalizer read_replace(const JsonValue& v, int) {
  const std::string content = v["content"].text();
  return read_pattern(
      v["pattern"], [&](const std::string& text) { return replace_text(text, content); },
      [&](const Regex& regex) { return replace_regex(regex, content); });
}

// --- Pre-tokenizers
// -------------------------------------------------------------------------------

SplitBehavior read_behavior(const JsonValue& v) {
  const std::string name = v.text_or("Isolated");
  if (name == "Removed") return SplitBehavior::Removed;
  if (name == "Isolated") return SplitBehavior::Isolated;
  if (name == "MergedWithPrevious") return SplitBehavior::MergedWithPrevious;
  if (name == "MergedWithNext") return SplitBehavior::MergedWithNext;
  if (name == "Contiguous") return SplitBehavior::Contiguous;
  v.fail_unsupported();
}

PrependScheme read_prepend_scheme(const JsonValue& v) {
  const JsonValue scheme = v["prepend_scheme"];
  const std::string name = scheme.text_or("always");
  if (!v["add_prefix_space"].boolean_or(true)) {
    if (name != "never" && !scheme.is_null())
      scheme.require(false, "\"never\" as add_prefix_space");
    return PrependScheme::Never;
  }
  if (name == "first") return PrependScheme::First;
  if (name == "never") return PrependScheme::Never;
  if (name == "always") return PrependScheme::Always;
  scheme.fail_unsupported();
}

std::string read_metaspace(const JsonValue& v) {
  return v.has("replacement") ? v["replacement"].character() : kMetaspace;
}

PreTokenizer read_split(const JsonValue& v, int) {
  const SplitBehavior behavior = read_behavior(v["behavior"]);
  const bool invert = v["invert"].boolean_or(false);
  const auto split = [&](const Regex& regex) { return split_at(regex, behavior, invert); };
  return read_pattern(
      v["pattern"], [&](const std::string& text) { return split(Regex::literal(text)); }, split);
}

PreTokenizer read_delimiter(const JsonValue& v, int) {
  const char32_t delimiter = code_point_at(v["delimiter"].character(), 0).value;
  return split_at([delimiter](char32_t c) { return c == delimiter; }, SplitBehavior::Removed);
}

PreTokenizer read_digits(const JsonValue& v, int) {
  return split_at(is_numeric, v["individual_digits"].boolean_or(false) ? SplitBehavior::Isolated
                                                                       : SplitBehavior::Contiguous);
}

// --- Post-processors
// ------------------------------------------------------------------------------

using Templates = std::vector<PostTemplate>;
using Kind = TemplatePiece::Kind;

// ["[SEP]", 102]
TemplatePiece read_token_and_id(const JsonValue& v, int32_t type) {
  const auto items = v.items();
  v.require(items.size() == 2, "a token and its id");
  return {Kind::Special, type, {static_cast<int32_t>(items[1].integer(0, kMaxTokenId))}};
}

Templates read_bert_processing(const JsonValue& v, int) {
  const TemplatePiece cls = read_token_and_id(v["cls"], 0), sep = read_token_and_id(v["sep"], 0),
                      last = read_token_and_id(v["sep"], 1);
  const TemplatePiece first{Kind::First}, second{Kind::Second, 1};
  return {{{cls, first, sep}, {cls, first, sep, second, last}}};
}

Templates read_roberta_processing(const JsonValue& v, int) {
  const TemplatePiece cls = read_token_and_id(v["cls"], 0), sep = read_token_and_id(v["sep"], 0);
  const TemplatePiece first{Kind::First}, second{Kind::Second};
  return {{{cls, first, sep}, {cls, first, sep, sep, second, sep}}};
}

TemplatePiece read_template_piece(const JsonValue& v, const JsonValue& special_tokens) {
  const bool special = v.has("SpecialToken");
  const JsonValue body = v[special ? "SpecialToken" : "Sequence"];
  const std::string name = body["id"].text();
  const auto type = static_cast<int32_t>(body["type_id"].integer_or(0, 0, kMaxTokenId));
  if (!special) {
    if (name != "A" && name != "B") body["id"].fail_unsupported();
    return {name == "A" ? Kind::First : Kind::Second, type};
  }
  TemplatePiece piece{Kind::Special, type};
  const JsonValue ids = special_tokens[name]["ids"];
  for (const JsonValue& id : ids.items())
    piece.ids.push_back(static_cast<int32_t>(id.integer(0, kMaxTokenId)));
  return piece;
}

Templates read_template(const JsonValue& v, int) {
  PostTemplate out;
  for (const JsonValue& piece : v["single"].items()) {
    out.single.push_back(read_template_piece(piece, v["special_tokens"]));
    piece.require(out.single.back().kind != Kind::Second, "of a single text");
  }
  if (v.has("pair"))
    for (const JsonValue& piece : v["pair"].items())
      out.pair.push_back(read_template_piece(piece, v["special_tokens"]));
  return {out};
}

Templates read_post_sequence(const JsonValue& v, int depth) {
  Templates all;
  for (const Templates& templates : read_steps(read_post_processor, v, "processors", depth))
    all.insert(all.end(), templates.begin(), templates.end());
  return all;
}

// --- Decoders
// -------------------------------------------------------------------------------------

Decoder read_replace_decoder(const JsonValue& v, int) {
  const std::string content = v["content"].text();
  return read_pattern(
      v["pattern"], [&](const std::string& text) { return replace_in_texts(text, content); },
      [&](const Regex& regex) { return replace_in_texts(regex, content); });
}

Decoder read_strip_decoder(const JsonValue& v, int) {
  const auto count = [&](const char* key) {
    return static_cast<size_t>(v[key].integer_or(0, 0, std::numeric_limits<int32_t>::max()));
  };
  return strip_texts(v["content"].character(), count("start"), count("stop"));
}

}  // namespace

Normalizer read_normalizer(const JsonValue& value, int depth) {
  static constexpr StepReader<Normalizer> kReaders[] = {
      {"Sequence",
       [](const JsonValue& v, int d) {
         return normalize_in_sequence(read_steps(read_normalizer, v, "normalizers", d));
       }},
      {"NFC", read_normal_form<NormalForm::C>},
      {"NFD", read_normal_form<NormalForm::D>},
      {"NFKC", read_normal_form<NormalForm::KC>},
      {"NFKD", read_normal_form<NormalForm::KD>},
      {"Lowercase", [](const JsonValue&, int) { return normalize_to_lower_case(); }},
      {"StripAccents", [](const JsonValue&, int) { return strip_accents(); }},
      {"Strip",
       [](const JsonValue& v, int) {
         return strip_white_space(v["strip_left"].boolean_or(true),
                                  v["strip_right"].boolean_or(true));
       }},
      {"BertNormalizer", read_bert_normalizer},
      {"Replace", read_replace},
      {"Prepend", [](const JsonValue& v, int) { return prepend_text(v["prepend"].text()); }},
      {"ByteLevel", [](const JsonValue&, int) { return map_bytes(); }},
      {"Nmt", [](const JsonValue&, int) { return normalize_nmt(); }},
      {"Precompiled",
       [](const JsonValue& v, int) {
         return apply_character_map(CharacterMap::from_base64(v["precompiled_charsmap"].text()));
       }},
  };
  return read_step(kReaders, value, depth);
}

PreTokenizer read_pre_tokenizer(const JsonValue& value, int depth) {
  static constexpr StepReader<PreTokenizer> kReaders[] = {
      {"Sequence",
       [](const JsonValue& v, int d) {
         return pre_tokenize_in_sequence(read_steps(read_pre_tokenizer, v, "pretokenizers", d));
       }},
      {"ByteLevel",
       [](const JsonValue& v, int) {
         return pre_tokenize_byte_level(v["add_prefix_space"].boolean_or(true),
                                        v["use_regex"].boolean_or(true));
       }},
      {"Split", read_split},
      {"Whitespace", [](const JsonValue&, int) { return split_words(); }},
      {"WhitespaceSplit",
       [](const JsonValue&, int) { return split_at(is_white_space, SplitBehavior::Removed); }},
      {"BertPreTokenizer", [](const JsonValue&, int) { return split_for_bert(); }},
      {"Metaspace",
       [](const JsonValue& v, int) {
         return pre_tokenize_metaspace(read_metaspace(v), read_prepend_scheme(v),
                                       v["split"].boolean_or(true));
       }},
      {"Digits", read_digits},
      {"Punctuation", [](const JsonValue& v,
                         int) { return split_at(is_punctuation, read_behavior(v["behavior"])); }},
      {"CharDelimiterSplit", read_delimiter},
      {"FixedLength",
       [](const JsonValue& v, int) {
         return split_every(static_cast<size_t>(v["length"].integer_or(5, 1, kMaxTokenId)));
       }},
  };
  return read_step(kReaders, value, depth);
}

std::vector<PostTemplate> read_post_processor(const JsonValue& value, int depth) {
  static constexpr StepReader<Templates> kReaders[] = {
      {"Sequence", read_post_sequence},
      {"TemplateProcessing", read_template},
      {"BertProcessing", read_bert_processing},
      {"RobertaProcessing", read_roberta_processing},
      // Which changes offsets in the text alone.
      {"ByteLevel", [](const JsonValue&, int) { return Templates{}; }},
  };
  return read_step(kReaders, value, depth);
}

Decoder read_decoder(const JsonValue& value, int depth) {
  static constexpr StepReader<Decoder> kReaders[] = {
      {"Sequence",
       [](const JsonValue& v, int d) {
         return decode_in_sequence(read_steps(read_decoder, v, "decoders", d));
       }},
      {"ByteLevel", [](const JsonValue&, int) { return decode_byte_level(); }},
      {"BPEDecoder",
       [](const JsonValue& v, int) { return decode_bpe(v["suffix"].text_or("</w>")); }},
      {"WordPiece",
       [](const JsonValue& v, int) {
         return decode_word_piece(v["prefix"].text_or("##"), v["cleanup"].boolean_or(true));
       }},
      {"Metaspace",
       [](const JsonValue& v, int) {
         return decode_metaspace(read_metaspace(v), read_prepend_scheme(v));
       }},
      {"ByteFallback", [](const JsonValue&, int) { return decode_byte_fallback(); }},
      {"Fuse", [](const JsonValue&, int) { return fuse_texts(); }},
      {"Strip", read_strip_decoder},
      {"Replace", read_replace_decoder},
      {"CTC",
       [](const JsonValue& v, int) {
         return decode_ctc(v["pad_token"].text_or("<pad>"), v["word_delimiter_token"].text_or("|"),
                           v["cleanup"].boolean_or(true));
       }},
  };
  return read_step(kReaders, value, depth);
}

}  // namespace tiny::models::tokenizers

#endif
