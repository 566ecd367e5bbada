#include "tiny/models/tokenizers/tokenizer.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "tiny/base/error.h"
#include "tiny/models/text/unicode.h"

using namespace tiny;
using namespace tiny::models;
using namespace tiny::models::tokenizers;
using nlohmann::json;

namespace {

using Ids = std::vector<int32_t>;

const std::filesystem::path kModels = std::filesystem::path(TINY_ROOT) / "../shared/models";
const std::vector<std::string> kSamples = {"gpt2", "llama", "llama2", "bert"};

bool has_samples() {
  if (std::filesystem::exists(kModels / "gpt2" / "tokenizer.json")) return true;
  MESSAGE("no ../shared/models: encodings of whole models are not compared");
  return false;
}

std::string read_text(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// A tokenizer.json with this model and nothing around it, but for `more`.
Tokenizer made(const json& model, const json& more = json::object()) {
  json all = {{"version", "1.0"}, {"model", model}};
  all.update(more);
  return Tokenizer::from_json(all.dump());
}

json letters_bpe(const json& merges, const json& more = json::object()) {
  json vocab = {{"<unk>", 0}, {"a", 1}, {"b", 2}, {"c", 3}, {"ab", 4}, {"bc", 5}, {"abc", 6}};
  json model = {{"type", "BPE"}, {"vocab", vocab}, {"merges", merges}};
  model.update(more);
  return model;
}

std::string error_of(const std::string& text) {
  try {
    Tokenizer::from_json(text);
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

std::string streamed(const Tokenizer& tokenizer, const Ids& ids) {
  DecodeStream stream(tokenizer);
  std::string all;
  for (const int32_t id : ids) {
    const std::string part = stream.push(id);
    CHECK(is_valid_utf8(part));
    CHECK(part.find("\ufffd") == std::string::npos);
    all += part;
  }
  return all + stream.finish();
}

}  // namespace

TEST_CASE("the sample tokenizers encode and decode as the library tokenizers does") {
  if (!has_samples()) return;
  for (const std::string& name : kSamples) {
    const auto tokenizer = Tokenizer::load(kModels / name);
    const json encodings = json::parse(read_text(kModels / name / "encodings.json"));
    CHECK(encodings.size() == 300);
    for (const json& e : encodings) {
      const Ids ids = e["ids"];
      CHECK_MESSAGE(tokenizer.encode(e["text"].get<std::string>()) == ids, name, ": ", e["text"]);
      CHECK_MESSAGE(tokenizer.decode(ids) == e["decoded"], name, ": ", e["text"]);
    }
  }
}

TEST_CASE("byte-level tokenizers give any valid text back, in a stream too") {
  if (!has_samples()) return;
  std::mt19937 random(1);
  for (const char* name : {"gpt2", "llama"}) {
    const auto tokenizer = Tokenizer::load(kModels / name);
    for (int i = 0; i < 200; ++i) {
      std::string bytes;
      for (unsigned n = random() % 40; n > 0; --n) bytes += static_cast<char>(random());
      for (unsigned n = random() % 10; n > 0; --n) append_utf8(bytes, random() % 0xd800);
      const std::string text = valid_utf8(bytes);
      const Ids ids = tokenizer.encode(bytes);
      CHECK(ids == tokenizer.encode(text));
      CHECK(tokenizer.decode(ids) == text);
      DecodeStream stream(tokenizer);
      std::string all;
      for (const int32_t id : ids) {
        const std::string part = stream.push(id);
        CHECK(is_valid_utf8(part));
        all += part;
      }
      CHECK(all + stream.finish() == text);
    }
  }
}

TEST_CASE("a stream gives whole characters and what decoding all at once gives") {
  if (!has_samples()) return;
  for (const std::string& name : kSamples) {
    const auto tokenizer = Tokenizer::load(kModels / name);
    for (const char* text :
         {"Hello, world! don't", "日本語テキスト 👩‍👧", "  a  b", ""}) {
      const Ids ids = tokenizer.encode(text);
      CHECK(streamed(tokenizer, ids) == tokenizer.decode(ids));
    }
  }
  const auto gpt2 = Tokenizer::load(kModels / "gpt2");
  Ids ids = gpt2.encode("a😀");
  ids.pop_back();
  DecodeStream stream(gpt2);
  std::string given;
  for (const int32_t id : ids) given += stream.push(id);
  CHECK(given == "a");
  CHECK(stream.finish() == "\ufffd");
}

TEST_CASE("a stream of bytes that stop being a character gives no half of one") {
  const auto tokenizer =
      made(letters_bpe(json::array(), {{"vocab", {{"<0xC3>", 0}, {"<0xA9>", 1}}}}),
           {{"decoder", {{"type", "ByteFallback"}}}});
  DecodeStream stream(tokenizer);
  CHECK(stream.push(0) == "");
  CHECK(stream.push(1) == "é");
  CHECK(stream.push(0) == "");
  CHECK(stream.finish() == "\ufffd");
}

TEST_CASE("BPE merges the lowest rank first, the leftmost of it") {
  CHECK(made(letters_bpe({"b c", "a b", "a bc"})).encode("abcab") == Ids{6, 4});
  CHECK(made(letters_bpe({"a b", "b c"})).encode("abc") == Ids{4, 3});
  const json pairs = json::array({json::array({"a", "b"}), json::array({"ab", "c"})});
  CHECK(made(letters_bpe(pairs)).encode("abcabb") == Ids{6, 4, 2});
}

TEST_CASE("BPE has unknown tokens, bytes, prefixes, suffixes and whole words") {
  const json merges = {"a b"};
  CHECK(made(letters_bpe(merges)).encode("axxb") == Ids{4});
  CHECK(made(letters_bpe(merges, {{"unk_token", "<unk>"}})).encode("axxb") == Ids{1, 0, 0, 2});
  CHECK(made(letters_bpe(merges, {{"unk_token", "<unk>"}, {"fuse_unk", true}})).encode("axxb") ==
        Ids{1, 0, 2});
  CHECK(made(letters_bpe(merges, {{"ignore_merges", true}})).encode("abc") == Ids{6});
  CHECK(made(letters_bpe(merges, {{"ignore_merges", true}})).encode("abcb") == Ids{4, 3, 2});
  json bytes = letters_bpe(merges, {{"unk_token", "<unk>"}, {"byte_fallback", true}});
  bytes["vocab"]["<0xC3>"] = 7, bytes["vocab"]["<0xA9>"] = 8;
  CHECK(made(bytes).encode("éa日") == Ids{7, 8, 1, 0});
  const json decorated = {
      {"type", "BPE"},
      {"vocab", {{"a", 0}, {"##b", 1}, {"##b</w>", 2}, {"ab</w>", 3}, {"a</w>", 4}}},
      {"merges", {"a ##b</w>"}},
      {"continuing_subword_prefix", "##"},
      {"end_of_word_suffix", "</w>"}};
  CHECK(made(decorated).encode("abb") == Ids{0, 1, 2});
  CHECK(made(decorated).encode("ab") == Ids{3});
  CHECK(made(decorated).encode("a") == Ids{4});
}

TEST_CASE("BPE of long pieces gives what short ones give, and takes time in proportion") {
  // Merges reach over "a|b" but not over "b|a": segments are split there.
  const auto tokenizer = made(letters_bpe({"a b", "b c", "a bc"}));
  std::string text;
  Ids expected;
  for (int i = 0; i < 50000; ++i) {
    text += "abcbb";
    for (const int32_t id : {4, 3, 2, 2}) expected.push_back(id);
  }
  CHECK(tokenizer.encode(text) == expected);
  // Tokens that share an id, so that merges go round in circles.
  json circle = letters_bpe({"a b", "ab c"});
  circle["vocab"]["abc"] = 1;
  CHECK(made(circle).encode(text).size() == 100000);
  json doubling = {{"type", "BPE"}, {"vocab", {{"a", 0}}}, {"merges", json::array()}};
  std::string token = "a";
  for (int i = 1; i < 8; ++i) {
    doubling["merges"].push_back(json::array({token, token}));
    token += token;
    doubling["vocab"][token] = i;
  }
  Ids powers(781, 7);  // 100000 = 781 * 128 + 32
  powers.push_back(5);
  CHECK(made(doubling).encode(std::string(100000, 'a')) == powers);
}

TEST_CASE("WordPiece takes the longest token, WordLevel the whole word") {
  const json vocab = {{"[UNK]", 0}, {"un", 1}, {"##aff", 2}, {"##able", 3}, {"##a", 4}, {"x", 5}};
  const json model = {{"type", "WordPiece"},
                      {"unk_token", "[UNK]"},
                      {"continuing_subword_prefix", "##"},
                      {"max_input_chars_per_word", 8},
                      {"vocab", vocab}};
  const json spaces = {{"pre_tokenizer", {{"type", "WhitespaceSplit"}}}};
  CHECK(made(model, spaces).encode("unaffable unaable unb unaaffaff x") ==
        Ids{0, 1, 4, 3, 0, 0, 5});
  const json words = {{"type", "WordLevel"}, {"unk_token", "[UNK]"}, {"vocab", vocab}};
  CHECK(made(words, spaces).encode("un unx x") == Ids{1, 0, 5});
  const json none = {{"type", "WordLevel"}, {"unk_token", "?"}, {"vocab", vocab}};
  CHECK_THROWS_WITH_AS(made(none).encode("un!"),
                       "the vocabulary has neither \"un!\" nor its unknown token \"?\"", Error);
}

TEST_CASE("Unigram takes the tokens of the highest sum of scores") {
  json vocab = json::array();
  for (const auto& [token, score] :
       {std::pair("<unk>", 0.), {"a", -2.}, {"b", -2.}, {"ab", -3.}, {"abc", -9.}, {"c", -7.}})
    vocab.push_back({token, score});
  json model = {{"type", "Unigram"}, {"unk_id", 0}, {"vocab", vocab}};
  CHECK(made(model).encode("abc") == Ids{4});  // -9 beside ab and c with -10
  CHECK(made(model).encode("abab") == Ids{3, 3});
  CHECK(made(model).encode("axxb") == Ids{1, 0, 2});  // unknown neighbours are one
  for (const char* byte : {"<0xC3>", "<0xA9>"}) vocab.push_back({byte, -20.});
  model["vocab"] = vocab;
  model["byte_fallback"] = true;
  CHECK(made(model).encode("aéx") == Ids{1, 0});  // all bytes of "éx" are needed
  CHECK(made(model).encode("aé") == Ids{1, 6, 7});
  model.erase("unk_id");
  CHECK_THROWS_WITH_AS(made(model).encode("ax"), doctest::Contains("no token for \"x\""), Error);
}

TEST_CASE("added tokens are found before anything else") {
  const auto added = [](const json& flags) {
    json token = {{"id", 7}, {"content", "<x>"}, {"special", true}, {"normalized", false}};
    token.update(flags);
    return made(letters_bpe({"a b"}),
                {{"added_tokens", {token}}, {"normalizer", {{"type", "Lowercase"}}}});
  };
  CHECK(added(json::object()).encode("a<x>b <x>") == Ids{1, 7, 2, 7});
  CHECK(added(json::object()).encode("A<X>") == Ids{1});
  CHECK(added({{"normalized", true}, {"content", "<X>"}}).encode("<X><x>") == Ids{7, 7});
  CHECK(added({{"content", "b"}, {"single_word", true}}).encode("ab b b_") == Ids{4, 2, 2});
  CHECK(added(json::object()).id("<x>") == 7);
  CHECK(added(json::object()).token(7) == "<x>");
  CHECK(added(json::object()).is_special(7));
  CHECK(added(json::object()).size() == 8);
  CHECK(added(json::object()).id_end() == 8);
  CHECK(added(json::object()).decode(Ids{1, 7, 99}) == "a");
  CHECK(added(json::object()).decode(Ids{1, 7}, false) == "a <x>");
  CHECK(added({{"special", false}}).decode(Ids{1, 7}) == "a <x>");
  CHECK_THROWS_WITH_AS(added(json::object()).token(8), "no token has the id 8: there are 8 tokens",
                       Error);
}

TEST_CASE("added tokens take white space along, the longest at a place wins") {
  json model = letters_bpe(json::array());
  model["vocab"][" "] = 7;
  json token = {{"id", 8}, {"content", "<x>"}, {"special", true}, {"normalized", false}};
  const auto with = [&](const char* flag) {
    json t = token;
    t[flag] = true;
    return made(model, {{"added_tokens", {t}}}).encode("a  <x> \tb");
  };
  CHECK(with("normalized") == Ids{1, 7, 7, 8, 7, 2});
  CHECK(with("lstrip") == Ids{1, 8, 7, 2});
  CHECK(with("rstrip") == Ids{1, 7, 7, 8, 2});
  json longer = {{"id", 9}, {"content", "<x><x>"}, {"normalized", false}};
  CHECK(made(model, {{"added_tokens", {token, longer}}}).encode("<x><x><x>") == Ids{9, 8});
}

TEST_CASE("Metaspace prepends at the begin of the text alone, a normalizer to each part") {
  json model = letters_bpe(json::array());
  model["vocab"]["_"] = 7;
  const json token = {{"id", 8}, {"content", "<x>"}, {"normalized", false}};
  const json first = {{"type", "Metaspace"}, {"replacement", "_"}, {"prepend_scheme", "first"}};
  const auto metaspace = made(model, {{"added_tokens", {token}}, {"pre_tokenizer", first}});
  CHECK(metaspace.encode("a b<x>c") == Ids{7, 1, 7, 2, 8, 3});
  CHECK(metaspace.encode("<x>c") == Ids{8, 3});
  const auto prepend = made(
      model, {{"added_tokens", {token}}, {"normalizer", {{"type", "Prepend"}, {"prepend", "_"}}}});
  CHECK(prepend.encode("a<x>c") == Ids{7, 1, 8, 7, 3});
  CHECK(prepend.encode("") == Ids{});
}

TEST_CASE("truncation and padding of a file") {
  const auto with = [](const json& truncation, const json& padding) {
    return made(
        letters_bpe(json::array()),
        {{"truncation", truncation},
         {"padding", padding},
         {"post_processor", {{"type", "BertProcessing"}, {"cls", {"x", 8}}, {"sep", {"y", 9}}}}});
  };
  const json left = {{"max_length", 4}, {"direction", "Left"}, {"strategy", "LongestFirst"}};
  CHECK(with(left, nullptr).encode("abc") == Ids{8, 2, 3, 9});
  CHECK(with(left, nullptr).encode("abcabc", false) == Ids{3, 1, 2, 3});
  const json pair = {{"max_length", 8}, {"strategy", "LongestFirst"}};
  CHECK(with(pair, nullptr).encode_pair("aaaaaa", "bb").ids == Ids{8, 1, 1, 1, 9, 2, 2, 9});
  CHECK(with(pair, nullptr).encode_pair("aaaa", "bbbb").ids == Ids{8, 1, 1, 9, 2, 2, 2, 9});
  CHECK(with(pair, nullptr).encode_pair("aaaa", "b").types == Ids{0, 0, 0, 0, 0, 0, 1, 1});
  const json second = {{"max_length", 8}, {"strategy", "OnlySecond"}};
  CHECK(with(second, nullptr).encode_pair("aaa", "bbbbb").ids == Ids{8, 1, 1, 1, 9, 2, 2, 9});
  CHECK_THROWS_WITH_AS(with(second, nullptr).encode_pair("aaaaaaa", "b"),
                       "truncation to 8 ids takes 3 ids from a text of 1", Error);
  CHECK_THROWS_WITH_AS(with({{"max_length", 1}}, nullptr).encode("a"),
                       "truncation to 1 ids, of which 2 are special tokens", Error);
  const json fixed = {{"strategy", {{"Fixed", 4}}},
                      {"direction", "Left"},
                      {"pad_id", 5},
                      {"pad_to_multiple_of", 3}};
  CHECK(with(nullptr, fixed).encode("a") == Ids{5, 5, 5, 8, 1, 9});
}

TEST_CASE("a batch is padded on either side, with a mask") {
  const auto tokenizer =
      made(letters_bpe(json::array()),
           {{"added_tokens", {{{"id", 7}, {"content", "<pad>"}, {"special", true}}}}});
  const std::vector<std::string> texts = {"ab", "", "abcab"};
  TokenBatchOptions o;
  o.max_length = 3;
  const TokenBatch right = tokenizer.encode_batch(texts, o);
  CHECK(right.rows == 3);
  CHECK(right.length == 3);
  CHECK(right.ids == Ids{1, 2, 7, 7, 7, 7, 1, 2, 3});
  CHECK(right.attention_mask == Ids{1, 1, 0, 0, 0, 0, 1, 1, 1});
  o.padding_side = Side::Left;
  o.truncation_side = Side::Left;
  o.padding_id = 0;
  o.multiple_of = 4;
  const TokenBatch left = tokenizer.encode_batch(texts, o);
  CHECK(left.length == 4);
  CHECK(left.ids == Ids{0, 0, 1, 2, 0, 0, 0, 0, 0, 3, 1, 2});
  CHECK(left.attention_mask == Ids{0, 0, 1, 1, 0, 0, 0, 0, 0, 1, 1, 1});
  CHECK(left.types == Ids(12, 0));
  CHECK(tokenizer.encode_batch({}).ids.empty());
}

TEST_CASE("special tokens are known by their names or as a file beside says") {
  const auto folder = std::filesystem::temp_directory_path() / cat("tiny_tokenizer_", getpid());
  std::filesystem::create_directories(folder);
  const json added = {{{"id", 7}, {"content", "<s>"}, {"special", true}},
                      {{"id", 8}, {"content", "</s>"}, {"special", true}}};
  const json all = {{"model", letters_bpe(json::array())}, {"added_tokens", added}};
  std::ofstream(folder / "tokenizer.json") << all.dump();
  CHECK(Tokenizer::load(folder).special_ids().bos == 7);
  CHECK(Tokenizer::load(folder).special_ids().eos == 8);
  CHECK(!Tokenizer::load(folder).special_ids().unknown);  // an ordinary token
  CHECK(!Tokenizer::load(folder).special_ids().padding);
  std::ofstream(folder / "tokenizer_config.json")
      << R"({"eos_token": {"content": "c"}, "pad_token": "a", "bos_token": null})";
  CHECK(Tokenizer::load(folder).special_ids().eos == 3);
  CHECK(Tokenizer::load(folder).special_ids().padding == 1);
  CHECK(!Tokenizer::load(folder).special_ids().bos);
  std::filesystem::remove(folder / "tokenizer.json");
  CHECK_THROWS_WITH_AS(Tokenizer::load(folder), doctest::Contains("tokenizer.json"), Error);
  std::filesystem::remove_all(folder);
}

TEST_CASE("a GGUF vocabulary of SentencePiece's BPE merges by scores") {
  GgufVocabulary v;
  v.model = "llama";
  v.tokens = {"<unk>", "<s>", "</s>", "<0xC3>", "<0xA9>", "▁", "a", "b", "ab", "▁a", "▁ab", "ba"};
  v.scores = {0, 0, 0, 0, 0, -9, -9, -9, -2, -3, -4, -2};
  v.token_types = {2, 3, 3, 6, 6, 1, 1, 1, 1, 1, 1, 1};
  const Tokenizer tokenizer(v);
  CHECK(tokenizer.encode("ab") == Ids{1, 10});
  // Of the same score the leftmost: ▁ ab a, not ▁ a ba.
  CHECK(tokenizer.encode("aba", false) == Ids{10, 6});
  CHECK(tokenizer.encode("é</s>b", false) == Ids{5, 3, 4, 2, 5, 7});
  CHECK(tokenizer.encode("x", false) == Ids{5, 0});
  CHECK(tokenizer.encode("") == Ids{1});
  CHECK(tokenizer.decode(Ids{1, 10, 5, 3, 4, 2}) == "ab é");
  CHECK(tokenizer.special_ids().eos == 2);
  v.add_space_prefix = false, v.add_bos = false, v.add_eos = true;
  CHECK(Tokenizer(v).encode("ab") == Ids{8, 2});
  v.scores.pop_back();
  CHECK_THROWS_WITH_AS(Tokenizer{v}, "tokenizer.ggml.scores has 11 values for 12 tokens", Error);
}

TEST_CASE("a GGUF vocabulary of byte-level BPE splits by its pre-tokenizer's name") {
  GgufVocabulary v;
  v.model = "gpt2";
  v.pre = "qwen2";
  v.tokens = {"<|end|>", "a", "1", "2", "12", "Ġ", "Ġa", "Ã", "©"};
  v.token_types = {3, 1, 1, 1, 1, 1, 1, 1, 1};
  v.merges = {"1 2", "Ġ a"};
  v.bos = v.eos = 0;
  CHECK(Tokenizer(v).encode("a a12<|end|>é") == Ids{1, 6, 2, 3, 0, 7, 8});
  v.pre = "gpt-2";
  CHECK(Tokenizer(v).encode("a12") == Ids{1, 4});
  v.pre = "llama-bpe";  // which begins with bos
  CHECK(Tokenizer(v).encode("a12") == Ids{0, 1, 4});
  CHECK(Tokenizer(v).decode(Ids{0, 1, 6, 7, 8}) == "a aé");
  v.pre = "morse";
  CHECK_THROWS_WITH_AS(Tokenizer{v}, "tokenizer.ggml.pre is not supported: \"morse\"", Error);
  v.pre = "gpt-2";
  v.eos = 9;
  CHECK_THROWS_WITH_AS(Tokenizer{v}, "tokenizer.ggml.eos_token_id is 9, but there are 9 tokens",
                       Error);
  v.model = "rwkv";
  CHECK_THROWS_WITH_AS(Tokenizer{v}, "tokenizer.ggml.model is not supported: \"rwkv\"", Error);
  CHECK_THROWS_WITH_AS(Tokenizer{GgufVocabulary{}}, "tokenizer.ggml.tokens is empty", Error);
}

TEST_CASE("GGUF vocabularies of WordPiece and Unigram") {
  GgufVocabulary v;
  v.model = "bert";
  v.tokens = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "▁hel", "lo", "▁,", "▁x"};
  v.token_types = {3, 2, 3, 3, 1, 1, 1, 1};
  v.unknown = 1, v.cls = 2, v.separator = 3, v.padding = 0;
  CHECK(Tokenizer(v).encode("Hello, Xy x") == Ids{2, 4, 5, 6, 1, 7, 3});
  CHECK(Tokenizer(v).decode(Ids{2, 4, 5, 6, 7, 3}) == "hello, x");

  GgufVocabulary u;
  u.model = "t5";
  u.tokens = {"<pad>", "</s>", "<unk>", "▁", "▁a", "b", "▁ab"};
  u.scores = {0, 0, 0, -2, -3, -3, -7};
  u.token_types = {3, 3, 2, 1, 1, 1, 1};
  u.eos = 1, u.unknown = 2;
  CHECK(Tokenizer(u).encode("ab  ab") == Ids{4, 5, 3, 4, 5, 1});
  u.remove_extra_whitespaces = true;
  CHECK(Tokenizer(u).encode("  ab  xb ") == Ids{4, 5, 3, 2, 5, 1});
  CHECK(Tokenizer(u).decode(Ids{4, 5, 3, 2, 5, 1}) == "ab b");
}

TEST_CASE("files that are damaged or not supported are errors with their key and value") {
  const auto model = [](const char* text) { return error_of(cat(R"({"model": )", text, "}")); };
  CHECK(error_of("{").starts_with("no valid JSON: "));
  CHECK(error_of("\"\xff\"").starts_with("no valid JSON: "));
  CHECK(error_of("[]") == "the file is not an object: []");
  CHECK(error_of("{}") == "model is not an object: null");
  CHECK(model(R"({"type": "Trie", "vocab": {}})") == "model.type is not supported: \"Trie\"");
  CHECK(model(R"({"type": "BPE", "vocab": {"a": -1}, "merges": []})") ==
        "model.vocab.a is not an integer from 0 to 1073741824: -1");
  CHECK(model(R"({"type": "BPE", "vocab": {"a": 18446744073709551615}, "merges": []})")
            .starts_with("model.vocab.a is not an integer"));
  CHECK(model(R"({"type": "BPE", "vocab": {"a": 0}, "merges": ["a a"]})") ==
        "the merge of \"a\" and \"a\" needs \"aa\", which is not in the vocabulary");
  CHECK(model(R"({"type": "BPE", "vocab": {"a": 0}, "merges": ["a"]})") ==
        "model.merges[0] is not two tokens with a space between them: \"a\"");
  CHECK(model(R"({"type": "Unigram", "vocab": [["a", 0]], "unk_id": 1})") ==
        "the unknown token is number 1 of 1 tokens");
  CHECK(error_of(
            json{{"model", letters_bpe(json::array())}, {"added_tokens", {{{"id", 1}}}}}.dump()) ==
        "added_tokens[0].content is not a string: null");
}

TEST_CASE("damaged sample files give errors or tokenizers, never anything worse") {
  if (!has_samples()) return;
  std::mt19937 random(1);
  int errors = 0;
  for (const std::string& name : kSamples) {
    const std::string text = read_text(kModels / name / "tokenizer.json");
    for (int i = 0; i < 100; ++i) {
      std::string damaged = text;
      // Half of the changes hit the steps before the vocabulary, which is most of the file.
      for (unsigned n = 1 + random() % 4; n > 0; --n) {
        const size_t at = random() % (random() % 2 ? damaged.size() : damaged.size() / 8);
        const char bytes[] = {'"', '0', '}', '{', ' ', '[', ',', static_cast<char>(random())};
        if (random() % 3 == 0)
          damaged.erase(at, random() % 8);
        else
          damaged[at] = bytes[random() % sizeof bytes];
      }
      try {
        const auto tokenizer = Tokenizer::from_json(damaged);
        tokenizer.decode(tokenizer.encode("Hello, wörld! <s> 123\n"));
      } catch (const Error&) {
        ++errors;
      }
    }
  }
  CHECK(errors > 100);
}
