// The steps of tokenizers, each by itself, as the library `tokenizers` documents them.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <tuple>
#include <vector>

#include "tiny/base/error.h"
#include "tiny/models/text/oniguruma.h"
#include "tiny/models/text/regex.h"
#include "tiny/models/text/unicode.h"
#include "tiny/models/tokenizers/read_steps.h"

using namespace tiny;
using namespace tiny::models;
using namespace tiny::models::tokenizers;

namespace {

template <class Step>
auto made(Step (*read)(const JsonValue&, int), const char* key, const std::string& json) {
  const nlohmann::json value = nlohmann::json::parse(json);
  return read(JsonValue(value, key), 0);
}

std::string joined(const std::vector<std::string>& texts, const char* between = "|") {
  std::string all;
  for (size_t i = 0; i < texts.size(); ++i) all += (i > 0 ? between : "") + texts[i];
  return all;
}

std::string normalized(const std::string& json, const std::string& text) {
  return made(read_normalizer, "normalizer", json)(text);
}

std::string pieces(const std::string& json, const std::string& text, bool starts_text = true) {
  Pieces p(text, starts_text);
  made(read_pre_tokenizer, "pre_tokenizer", json)(p);
  std::vector<std::string> out;
  for (const Pieces::Span& span : p.spans) out.emplace_back(p.piece(span));
  return joined(out);
}

std::string decoded(const std::string& json, Texts texts) {
  made(read_decoder, "decoder", json)(texts);
  return joined(texts);
}

std::string processed(const std::string& json, const std::vector<int32_t>& first,
                      const std::vector<int32_t>* second = nullptr, bool special = true) {
  const PostProcessor p(made(read_post_processor, "post_processor", json));
  const TypedIds out = p.apply(first, second, special);
  std::vector<std::string> words;
  for (size_t i = 0; i < out.ids.size(); ++i) words.push_back(cat(out.ids[i], ":", out.types[i]));
  return joined(words, " ");
}

std::string split_by(const std::string& pattern, const std::string& text) {
  const nlohmann::json json = {{"type", "Split"},
                               {"pattern", {{"Regex", pattern}}},
                               {"behavior", "Isolated"},
                               {"invert", false}};
  return pieces(json.dump(), text);
}

}  // namespace

TEST_CASE("text that is no UTF-8 has U+FFFD for each maximal part of a character") {
  CHECK(valid_utf8("a\xc3\xa9") == "a\xc3\xa9");
  CHECK(valid_utf8("a\xff") == "a\ufffd");
  CHECK(valid_utf8("\xe2\x96") == "\ufffd");  // one character cut short
  CHECK(valid_utf8("\xe2\x96"
                   "a\xf0\x9f\x98") ==
        "\ufffd"
        "a\ufffd");
  CHECK(valid_utf8("\xc0\xaf") == "\ufffd\ufffd");                      // an overlong form
  CHECK(valid_utf8("\xed\xa0\x80") == "\ufffd\ufffd\ufffd");            // a surrogate
  CHECK(valid_utf8("\xf4\x90\x80\x80") == "\ufffd\ufffd\ufffd\ufffd");  // beyond U+10FFFF
  CHECK(is_valid_utf8("\xf4\x8f\xbf\xbf"));
}

TEST_CASE("normalizers") {
  using Case = std::tuple<const char*, const char*, const char*>;
  const Case cases[] = {
      {R"({"type": "NFC"})", "e\u0301", "\u00e9"},
      {R"({"type": "NFD"})", "\u00e9", "e\u0301"},
      {R"({"type": "NFKC"})", "\ufb01 \u00bd", "fi 1\u20442"},
      {R"({"type": "NFKD"})", "\u2116\u00e9", "Noe\u0301"},
      {R"({"type": "Lowercase"})", "\u0130\u01c4\u03a3", "i\u0307\u01c6\u03c3"},
      {R"({"type": "StripAccents"})", "e\u0301\u00e9", "e\u00e9"},
      {R"({"type": "Strip", "strip_left": true, "strip_right": false})", "\u3000 a \n", "a \n"},
      {R"({"type": "Strip", "strip_left": false, "strip_right": true})", " a \n", " a"},
      {R"({"type": "Strip", "strip_left": true, "strip_right": true})", " \n", ""},
      {R"({"type": "Replace", "pattern": {"String": "a."}, "content": "-"})", "a.ab", "-ab"},
      {R"({"type": "Replace", "pattern": {"Regex": " {2,}|\\n"}, "content": "_"})", "a  b c\n",
       "a_b c_"},
      {R"({"type": "Prepend", "prepend": "_"})", "a", "_a"},
      {R"({"type": "Prepend", "prepend": "_"})", "", ""},
      {R"({"type": "Nmt"})", "a\u200b\x01\tb\u00ad", "a  b\u00ad"},
      {R"({"type": "ByteLevel"})", "\u00e9 ", "\u00c3\u00a9\u0120"},
      {R"({"type": "Sequence", "normalizers": [{"type": "NFD"}, {"type": "StripAccents"}]})",
       "\u00e9", "e"},
      {R"({"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true,
           "strip_accents": null, "lowercase": true})",
       "\u00c9\t\u4e2d\u200b\x01", "e  \u4e2d "},
      // Accents go with the case, unless it is said otherwise.
      {R"({"type": "BertNormalizer", "clean_text": false, "handle_chinese_chars": false,
           "strip_accents": null, "lowercase": false})",
       "\u00c9\t", "\u00c9\t"},
      {R"({"type": "BertNormalizer", "clean_text": false, "handle_chinese_chars": false,
           "strip_accents": false, "lowercase": true})",
       "\u00c9", "\u00e9"},
  };
  for (const auto& [json, text, expected] : cases)
    CHECK_MESSAGE(normalized(json, text) == expected, json);
}

TEST_CASE("a character map replaces by graphemes or the longest string") {
  // "a" becomes "x", "ab" becomes "yz". Units of darts-clone: label, end bit 8, offset from bit 10.
  std::vector<uint32_t> units(512, 0);
  const auto offset = [](uint32_t to, uint32_t at) { return (to ^ at) << 10; };
  units[0] = offset(1, 0);  // children at 1 ^ byte
  const uint32_t a = 1 ^ 'a';
  units[a] = 'a' | 1u << 8 | offset(256, a);  // ends; children at 256 ^ byte
  units[256] = 1u << 31 | 0;                  // the value: place 0
  const uint32_t ab = 256 ^ 'b';
  units[ab] = 'b' | 1u << 8 | offset(400, ab);
  units[400] = 1u << 31 | 2;  // place 2
  std::string bytes;
  const auto append = [&](uint32_t n) {
    for (int shift = 0; shift < 32; shift += 8) bytes += static_cast<char>(n >> shift);
  };
  append(2048);
  for (const uint32_t unit : units) append(unit);
  bytes += std::string("x\0yz\0", 5);
  const CharacterMap map(bytes);
  CHECK(map.replace_longest("cabad") == "cyzxd");
  CHECK(map.replace_graphemes("cabad") == "cxbxd");
  // A grapheme of fewer than six bytes is replaced as a whole.
  CHECK(map.replace_graphemes("a\u0301b") == "xb");
  CHECK(map.replace_longest("a\u0301b") == "x\u0301b");
  CHECK_THROWS_WITH_AS(CharacterMap("abc"), "a character map has 3 bytes", Error);
  CHECK_THROWS_AS(CharacterMap(bytes.substr(0, 100)), Error);
  CHECK_THROWS_AS(CharacterMap::from_base64("?"), Error);
  // A replacement beyond the end is an error once text asks for it.
  CHECK_THROWS_AS(CharacterMap(bytes.substr(0, 2053)).replace_longest("ab"), Error);
}

TEST_CASE("pre-tokenizers") {
  using Case = std::tuple<const char*, const char*, const char*>;
  const Case cases[] = {
      {R"({"type": "Whitespace"})", "Hi, naïve_1 you!?", "Hi|,|naïve_1|you|!?"},
      {R"({"type": "WhitespaceSplit"})", " a,b\u3000c ", "a,b|c"},
      {R"({"type": "BertPreTokenizer"})", "don't $5", "don|'|t|$|5"},
      {R"({"type": "Digits", "individual_digits": true})", "a12½", "a|1|2|½"},
      {R"({"type": "Digits", "individual_digits": false})", "a12½b", "a|12½|b"},
      {R"({"type": "Punctuation", "behavior": "Contiguous"})", "a?!b", "a|?!|b"},
      {R"({"type": "CharDelimiterSplit", "delimiter": "-"})", "a-b--c", "a|b|c"},
      {R"({"type": "FixedLength", "length": 2})", "aébcd", "aé|bc|d"},
      {R"({"type": "ByteLevel", "add_prefix_space": true, "use_regex": true})", "it's 42\n",
       "Ġit|'s|Ġ42|Ċ"},
      {R"({"type": "ByteLevel", "add_prefix_space": false, "use_regex": false})", "a b", "aĠb"},
      {R"({"type": "Metaspace", "replacement": "_", "prepend_scheme": "always"})", "a b  c",
       "_a|_b|_|_c"},
      {R"({"type": "Metaspace", "replacement": "_", "prepend_scheme": "never", "split": false})",
       "a b", "a_b"},
      {R"({"type": "Metaspace", "replacement": "_", "add_prefix_space": false})", "a b", "a|_b"},
      {R"({"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"},
           {"type": "Metaspace", "replacement": "_", "prepend_scheme": "first"}]})",
       "a b", "_a|b"},
  };
  for (const auto& [json, text, expected] : cases)
    CHECK_MESSAGE(pieces(json, text) == expected, json);
  // The text begins before this piece.
  CHECK(pieces(R"({"type": "Metaspace", "replacement": "_", "prepend_scheme": "first"})", "a b",
               false) == "a|_b");
}

TEST_CASE("a split keeps, drops or joins what it splits at") {
  const auto split = [](const char* behavior, bool invert) {
    return pieces(cat(R"({"type": "Split", "pattern": {"String": "-"}, "behavior": ")", behavior,
                      R"(", "invert": )", invert ? "true}" : "false}"),
                  "the-final--countdown");
  };
  CHECK(split("Removed", false) == "the|final|countdown");
  CHECK(split("Isolated", false) == "the|-|final|-|-|countdown");
  CHECK(split("MergedWithPrevious", false) == "the-|final-|-|countdown");
  CHECK(split("MergedWithNext", false) == "the|-final|-|-countdown");
  CHECK(split("Contiguous", false) == "the|-|final|--|countdown");
  CHECK(split("Removed", true) == "-|-|-");
}

TEST_CASE("patterns of known models split as Oniguruma does") {
  const std::string llama3 = R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|)"
                             R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
  CHECK(split_by(llama3, "I'LL pay 12345 $$\n\n  now\u180e x") ==
        "I|'LL| pay| |123|45| $$\n\n| | now|\u180e| x");
  CHECK(split_by(R"(\p{N}| ?\p{L}+|\s+(?!\S)|\s+)", "a  b12") == "a| | b|1|2");
  const std::string cl100k =
      R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|)"
      R"(\s++$|\s*[\r\n]|\s+(?!\S)|\s)";
  // To Oniguruma {1,3}+ repeats, where PCRE2 would take three digits and keep them.
  CHECK(split_by(cl100k, "x1234  \ny  ") == "x|1234|  \n|y|  ");
  const std::string o200k =
      R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t)?|)"
      R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+|\s+)";
  CHECK(split_by(o200k, "HelloWorld's ABC") == "Hello|World's| ABC");
}

TEST_CASE("expressions mean to PCRE2 what they mean to Oniguruma") {
  using Case = std::tuple<const char*, const char*, const char*>;
  const Case cases[] = {
      {R"(\h+)", "xc0ffee-", "x|c0ffee|-"},             // hexadecimal digits, not white space
      {R"(\s)", "a\u180e\u0085b", "a\u180e|\u0085|b"},  // U+180E is no White_Space
      {"(?m).+", "a\nb", "a\nb"},                       // m lets . match \n
      {".+", "a\nb", "a|\n|b"},
      {"^b", "a\nb", "a\n|b"},  // ^ and $ see all lines
      {"a{,2}b", "aaab", "a|aab"},
      {"[a-z&&[^aeiou]]+", "trees", "tr|ee|s"},  // intersection and nested class
      {"[^a-c[x-z]]+", "abqrx", "ab|qr|x"},
      {R"([^\W\d]+)", "a1_", "a|1|_"},
      {R"(\u0062)", "abc", "a|b|c"},
      {"a(?i)b|c", "aBacAb", "aB|ac|Ab"},  // the option holds for both alternatives
      {"(?x) a b # ab", "abc", "ab|c"},
      {R"(\p{Uppercase_Letter}|\p{^L})", "aB1", "a|B|1"},
      {"[[:punct:]]+", "a$.b", "a|$.|b"},
      {R"(\p{Han}+)", "a\u4e2d\u3002", "a|\u4e2d|\u3002"},  // the script, no extensions of it
      {"[]a]+", "]ab", "]a|b"},
      {"{x", "a{x", "a|{x"},
      {R"(\v)", "a\u000bb\n", "a|\u000b|b\n"},
      {"a**", "aab", "aa|b"},
      {"(?<=[a-z])(?=[A-Z])", "aBc", "a|Bc"},  // an empty match
  };
  for (const auto& [pattern, text, expected] : cases)
    CHECK_MESSAGE(split_by(pattern, text) == expected, to_pcre2(pattern));
  for (const char* wrong : {"(", ")", "[", "[]", "*a", R"(\p{Foo})", "a{2,1}", "[z-a]", "(?~a)",
                            R"(\x{110000})", "\\", R"(\xe9)", "(?<n>a"})
    CHECK_THROWS_WITH_AS(Regex{wrong}, doctest::Contains(wrong), Error);
}

TEST_CASE("an expression takes time in proportion to a long text") {
  const Regex words(R"( ?\p{L}+| ?[^\s\p{L}]+|\s+(?!\S)|\s+)");
  CHECK(words.find_all(std::string(1 << 20, ' ')).size() == 1);
  CHECK(words.find_all(std::string(1 << 20, 'a')).size() == 1);
  const Regex lines(R"(\s*[\r\n]+|\s+(?!\S)|\s+)");
  CHECK(lines.find_all(std::string(1 << 24, ' ')).size() == 1);
  // Nested repetition over many steps ends in an error, not in a crash.
  CHECK_THROWS_WITH_AS(Regex("(a|aa)+$").find_all(std::string(60, 'a') + "b"),
                       doctest::Contains("gives up on a text of 61 bytes"), Error);
}

TEST_CASE("post-processors put special tokens around one text and two") {
  const std::vector<int32_t> a = {5, 6}, b = {7};
  const std::string bert =
      R"({"type": "BertProcessing", "sep": ["[SEP]", 2], "cls": ["[CLS]", 1]})";
  CHECK(processed(bert, a) == "1:0 5:0 6:0 2:0");
  CHECK(processed(bert, a, &b) == "1:0 5:0 6:0 2:0 7:1 2:1");
  CHECK(processed(bert, a, &b, false) == "5:0 6:0 7:1");
  const std::string roberta =
      R"({"type": "RobertaProcessing", "sep": ["</s>", 2], "cls": ["<s>", 1], "trim_offsets": true,
          "add_prefix_space": false})";
  CHECK(processed(roberta, a, &b) == "1:0 5:0 6:0 2:0 2:0 7:0 2:0");
  const std::string both = R"({"type": "Sequence", "processors": [
      {"type": "ByteLevel", "trim_offsets": false},
      {"type": "TemplateProcessing",
       "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}},
                  {"Sequence": {"id": "A", "type_id": 3}}],
       "pair": [{"Sequence": {"id": "B", "type_id": 1}},
                {"SpecialToken": {"id": "<s>", "type_id": 2}},
                {"Sequence": {"id": "A", "type_id": 0}}],
       "special_tokens": {"<s>": {"id": "<s>", "ids": [8, 9], "tokens": ["<s>", "x"]}}}]})";
  CHECK(processed(both, a) == "8:0 9:0 5:3 6:3");
  CHECK(processed(both, a, &b) == "7:1 8:2 9:2 5:0 6:0");
  CHECK(processed(R"({"type": "ByteLevel"})", a, &b) == "5:0 6:0 7:1");
}

TEST_CASE("decoders") {
  using Case = std::tuple<const char*, Texts, const char*>;
  const Case cases[] = {
      {R"({"type": "ByteLevel"})", {"ĠHi", "Ã", "©", " x"}, " Hi\u00e9 x"},
      {R"({"type": "ByteLevel"})",
       {"Ã", "a"},
       "\ufffd"
       "a"},
      {R"({"type": "BPEDecoder", "suffix": "</w>"})", {"he", "llo</w>", "you</w>"}, "he|llo |you"},
      {R"({"type": "WordPiece", "prefix": "##", "cleanup": true})",
       {"do", "##n", "'", "t", "you", "?"},
       "do|n| '| t| you|?"},
      {R"({"type": "WordPiece", "prefix": "##", "cleanup": false})",
       {"##a", "b", "!"},
       "##a| b| !"},
      {R"({"type": "Metaspace", "replacement": "_", "prepend_scheme": "always"})",
       {"_a", "_b_"},
       "a| b "},
      {R"({"type": "Metaspace", "replacement": "_", "prepend_scheme": "never"})", {"_a"}, " a"},
      {R"({"type": "ByteFallback"})", {"a", "<0xC3>", "<0xA9>", "b"}, "a|\u00e9|b"},
      {R"({"type": "ByteFallback"})", {"<0xC3>", "<0x41>"}, "\ufffd|\ufffd"},
      {R"({"type": "ByteFallback"})", {"<0xZZ>"}, "<0xZZ>"},
      {R"({"type": "Fuse"})", {"a", "b"}, "ab"},
      {R"({"type": "Strip", "content": " ", "start": 1, "stop": 1})", {"  a  ", " "}, " a |"},
      {R"({"type": "Replace", "pattern": {"String": "_"}, "content": " "})", {"_a_", "b"}, " a |b"},
      {R"({"type": "Replace", "pattern": {"Regex": "[0-9]+"}, "content": "#"})", {"a12b3"}, "a#b#"},
      {R"({"type": "CTC", "pad_token": "<pad>", "word_delimiter_token": "|", "cleanup": true})",
       {"<pad>", "h", "h", "e", "<pad>", "e", "|"},
       "h|e|e| "},
      {R"({"type": "Sequence", "decoders": [{"type": "Fuse"},
           {"type": "Strip", "content": "a", "start": 2, "stop": 0}]})",
       {"a", "aa"},
       "a"},
  };
  for (const auto& [json, texts, expected] : cases)
    CHECK_MESSAGE(decoded(json, texts) == expected, json);
}

TEST_CASE("steps that are not supported are errors with their key and value") {
  const auto error = [](auto read, const char* key, const std::string& json) {
    try {
      made(read, key, json);
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string("no error");
  };
  CHECK(error(read_pre_tokenizer, "pre_tokenizer", R"({"type": "UnicodeScripts"})") ==
        "pre_tokenizer.type is not supported: \"UnicodeScripts\"");
  CHECK(error(read_normalizer, "normalizer",
              R"({"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "X"}]})") ==
        "normalizer.normalizers[1].type is not supported: \"X\"");
  CHECK(error(read_pre_tokenizer, "pre_tokenizer",
              R"({"type": "Split", "pattern": {"String": "a"}, "behavior": "Kept"})") ==
        "pre_tokenizer.behavior is not supported: \"Kept\"");
  CHECK(error(read_pre_tokenizer, "pre_tokenizer",
              R"({"type": "Split", "pattern": {"Glob": "a"}})") ==
        "pre_tokenizer.pattern is not supported: {\"Glob\":\"a\"}");
  CHECK(error(read_decoder, "decoder", R"({"type": "Strip", "content": "ab"})") ==
        "decoder.content is not one character: \"ab\"");
  CHECK(error(read_decoder, "decoder", R"([])") == "decoder is not an object: []");
  CHECK(error(read_post_processor, "post_processor",
              R"({"type": "BertProcessing", "cls": ["a", -1], "sep": ["b", 1]})") ==
        "post_processor.cls[1] is not an integer from 0 to 1073741824: -1");
  std::string deep = R"({"type": "NFC"})";
  for (int i = 0; i < 1000; ++i) deep = R"({"type": "Sequence", "normalizers": [)" + deep + "]}";
  CHECK(error(read_normalizer, "normalizer", deep).ends_with("... is nested too deep"));
}
