// The page of a language model: its tokenizer by node, its tokens in a browser.
#include "tiny/models/page/chat_page.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "devices/webgpu/webgpu.h"
#include "examples/common/tokenizers.h"
#include "test/command.h"
#include "test/error_of.h"
#include "test/temporary_folder.h"
#include "test/unit/small_models.h"
#include "tiny/base/file.h"
#include "tiny/models.h"

using namespace tiny;
using namespace tiny::models;
using nlohmann::json;

namespace {

const std::string kScript = cat(TINY_ROOT, "/tiny/models/page/tokenizer.js");
const std::string kByteLevel = R"({"type": "ByteLevel", "add_prefix_space": false, "use_regex": )";
// GPT-4's pattern, and one that has what else patterns of models have.
const json kWords =
    "(?i:'s|'t|'re|'k)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|"
    "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
const json kOther = "[\\p{Lu}\\p{Lt}]*[\\p{Ll}\\p{M}\\-]+|\\d{2}|[^\\s\\w']+|\\w|.";

void write(const std::string& path, const json& value) { std::ofstream(path) << value.dump(); }

json split(const json& pattern, const std::string& behavior) {
  return {{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", behavior}};
}

// Byte pairs of some of these characters, merged at random.
json random_bpe(std::vector<std::string> tokens, size_t merges, const json& more = json::object()) {
  std::mt19937 random(5);
  json model = {{"type", "BPE"}, {"merges", json::array()}, {"vocab", json::object()}};
  model.update(more);
  for (size_t i = 0; i < tokens.size(); ++i) model["vocab"][tokens[i]] = i;
  while (model["merges"].size() < merges) {
    const std::string a = tokens[random() % tokens.size()], b = tokens[random() % tokens.size()];
    if (a[0] == '<' || b[0] == '<' || model["vocab"].contains(a + b)) continue;
    model["merges"].push_back({a, b});
    model["vocab"][a + b] = tokens.size();
    tokens.push_back(a + b);
  }
  return model;
}

// Characters of the byte-level alphabet for "etaon sN1'." and what has several bytes.
std::vector<std::string> byte_level_tokens() {
  const json bytes = json::parse(examples::byte_tokenizer())["model"]["vocab"];
  std::vector<std::string> out(bytes.size());
  for (const auto& [token, id] : bytes.items()) out[id.get<size_t>()] = token;
  std::stable_partition(out.begin(), out.end(), [](const std::string& t) {
    return std::string("etaonsN1'.").find(t) != std::string::npos || t == "\u0120";
  });
  return out;
}

std::vector<json> made_tokenizers() {
  const json byte_level = json::parse(kByteLevel + "false}"), bytes = {{"type", "ByteLevel"}};
  const auto steps = [](const json& list) {
    return json{{"type", "Sequence"}, {"pretokenizers", list}};
  };
  const auto added = [](const std::string& text, const json& more) {
    json out = {{"id", 0}, {"content", text}, {"special", true}};
    out.update(more);
    return out;
  };
  std::vector<json> out;
  for (const char* behavior :
       {"Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"})
    out.push_back({{"model", random_bpe(byte_level_tokens(), 40)},
                   {"decoder", bytes},
                   {"pre_tokenizer", steps({split(kOther, behavior), byte_level})}});
  out.push_back(
      {{"model", random_bpe(byte_level_tokens(), 60, {{"ignore_merges", true}})},
       {"decoder", bytes},
       {"pre_tokenizer", steps({split(kWords, "Isolated"), byte_level})},
       {"normalizer", {{"type", "NFC"}}},
       {"added_tokens",
        {added("<|end|>", {{"lstrip", true}}), added("<|e", {{"rstrip", true}}),
         added("tea", {{"special", false}, {"single_word", true}})}},
       {"post_processor",
        {{"type", "TemplateProcessing"},
         {"special_tokens", {{"<|e", {{"id", "<|e"}, {"ids", {3}}, {"tokens", {"<|e"}}}}}},
         {"single",
          {{{"SpecialToken", {{"id", "<|e"}, {"type_id", 0}}}},
           {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}}},
         {"pair", json::array()}}}});
  std::vector<std::string> pieces{"<unk>", "\u2581", "e", "t", "a", "o", "n", "s", "\u00e9"};
  for (int byte = 0; byte < 256; ++byte) pieces.push_back(formatted("<0x%02X>", byte));
  const json fallback = {{"unk_token", "<unk>"}, {"fuse_unk", true}, {"byte_fallback", true}};
  const json decoders = {
      {{"type", "Replace"}, {"pattern", {{"String", "\u2581"}}}, {"content", " "}},
      {{"type", "ByteFallback"}},
      {{"type", "Fuse"}},
      {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}};
  out.push_back({{"model", random_bpe(pieces, 30, fallback)},
                 {"pre_tokenizer", {{"type", "Metaspace"}, {"prepend_scheme", "first"}}},
                 {"decoder", {{"type", "Sequence"}, {"decoders", decoders}}},
                 {"added_tokens", {added("<unk>", json::object())}}});
  pieces.resize(9);  // no bytes: what is not there is unknown
  out.push_back(
      {{"model", random_bpe(pieces, 10, {{"unk_token", "<unk>"}, {"fuse_unk", true}})},
       {"pre_tokenizer", steps({{{"type", "Digits"}}, {{"type", "Whitespace"}}})},
       {"normalizer",
        {{"type", "Sequence"}, {"normalizers", {{{"type", "Lowercase"}}, {{"type", "Strip"}}}}}}});
  return out;
}

std::vector<std::string> made_texts() {
  const std::vector<std::string> parts{
      "e",       "t",   "a",      "o",  "n",      "s",       "N",      " ",          "  ",
      "\n",      "1",   "22",     "'s", "'S",     "'K",      "\u212a", "\u017f",     "tea",
      ".",       "-",   "\t",     "\r", "\u00e9", "e\u0301", "\u0130", "\U0001f600", "\u4e2d\u6587",
      "<|end|>", "<|e", "\u00a0", "_",  "!?",     "\ufeff",  "\u0085"};
  std::mt19937 random(3);
  std::vector<std::string> texts{"", " ", "a text of tea and teas at noon"};
  for (int i = 0; i < 200; ++i) {
    std::string text;
    for (size_t n = random() % 24; n > 0; --n) text += parts[random() % parts.size()];
    texts.push_back(text);
  }
  return texts;
}

bool has_node() {
  if (test::run_command("node --version").status == 0) return true;
  MESSAGE("no node: the page's tokenizer is not run");
  return false;
}

test::CommandResult node(const std::string& arguments) {
  return test::run_command(cat("cd '", TINY_ROOT, "' && node ", arguments));
}

// What page and Generator write on from a line and, in the same conversation, from another one.
void check_same_tokens(const std::string& type, const SamplingOptions& sampling) {
  const std::vector<std::string> lines{"The gull", " and the sea"};
  Transformer model = test::random_model(test::small_config(
      type, R"("vocab_size": 256, "max_position_embeddings": 200, "n_positions": 200)"));
  const Tokenizer tokenizer = Tokenizer::from_json(examples::byte_tokenizer());
  const test::TemporaryFolder folder("chat_page");
  const ChatPageOptions options{.max_new_tokens = 9, .sampling = sampling};
  export_chat(model, examples::byte_tokenizer(), folder.file("page"), options);
  const std::string plan = InputFile("test", folder.file("page/plan.json")).read_all();
  CHECK(has(plan, "\"zero\""));  // the caches, which no file has
  std::vector<json> expected;
  std::string text;
  Generator write(model);
  for (const std::string& line : lines) {
    const std::vector<int32_t> ids = tokenizer.encode(text += line);
    const GenerateOptions o{.max_new_tokens = 9, .sampling = sampling, .sample_on_device = false};
    const Tokens tokens = write({{ids.begin(), ids.end()}}, o).tokens[0];
    text += tokenizer.decode(std::vector<int32_t>(tokens.begin(), tokens.end()));
    expected.push_back(tokens);
  }
  const json given = {
      {"tokens", 9}, {"temperature", sampling.temperature}, {"seed", sampling.seed}};
  const test::CommandResult out = node(cat("test/webgpu/chat.mjs '", folder.file("page"), "' '",
                                           json(lines).dump(), "' '", given.dump(), "'"));
  REQUIRE_MESSAGE(out.status == 0, out.output);
  std::istringstream answers(out.output);
  for (const json& tokens : expected) {
    std::string answer;
    REQUIRE(std::getline(answers, answer));
    const json read = json::parse(answer);
    CHECK(read["tokens"] == tokens);
    CHECK(read["pieces"] >= 2);  // the text comes in parts
  }
}

}  // namespace

TEST_CASE("the page's tokenizer encodes and decodes as Tokenizer does") {
  if (!has_node()) return;
  const test::TemporaryFolder folder("page_tokenizer");
  const std::string file = folder.file("tokenizer.json"), encodings = folder.file("encodings.json");
  std::vector<json> all = made_tokenizers();
  all.push_back(json::parse(examples::byte_tokenizer()));
  for (size_t i = 0; i < all.size(); ++i) {
    CAPTURE(i);
    const Tokenizer tokenizer = Tokenizer::from_json(all[i].dump());
    json rows = json::array();
    for (const std::string& text : made_texts()) {
      const std::vector<int32_t> ids = tokenizer.encode(text);
      rows.push_back({{"text", text}, {"ids", ids}, {"decoded", tokenizer.decode(ids)}});
    }
    write(file, all[i]);
    write(encodings, rows);
    const auto out = node(cat("test/webgpu/tokenizer.mjs ", kScript, " ", file, " ", encodings));
    CHECK_MESSAGE(out.status == 0, out.output);
  }
}

TEST_CASE("the page's tokenizer gives the encodings of the shared models") {
  if (!has_node()) return;
  const std::string models = cat(TINY_ROOT, "/../shared/models/");
  for (const char* name : {"gpt2", "llama", "llama2"}) {
    CAPTURE(name);
    if (!std::filesystem::exists(models + name + "/encodings.json")) {
      MESSAGE("no ../shared/models: encodings of whole models are not compared");
      return;
    }
    const auto out = node(cat("test/webgpu/tokenizer.mjs ", kScript, " ", models, name,
                              "/tokenizer.json ", models, name, "/encodings.json"));
    CHECK(out.status == 0);
    CHECK(out.output == "300 of 300 encodings agree\n");
  }
}

TEST_CASE("the page's tokenizer names what it does not know") {
  if (!has_node()) return;
  const test::TemporaryFolder folder("page_tokenizer");
  write(folder.file("encodings.json"), json::array());
  const auto error = [&](const char* key, const json& value) {
    json tokenizer = json::parse(examples::byte_tokenizer());
    tokenizer[key] = value;
    write(folder.file("tokenizer.json"), tokenizer);
    return node(cat("test/webgpu/tokenizer.mjs ", kScript, " ", folder.file("tokenizer.json"), " ",
                    folder.file("encodings.json")))
        .output;
  };
  CHECK(has(error("normalizer", {{"type", "Nmt"}}),
            "tokenizer.json: normalizer.type is not supported: \"Nmt\""));
  CHECK(has(error("pre_tokenizer", split("[a&&b]", "Isolated")),
            "the regular expression is not supported: \"[a&&b]\""));
  CHECK(has(error("model", {{"type", "Unigram"}, {"vocab", json::array()}}),
            "model.type is not supported: \"Unigram\""));
}

TEST_CASE("a page of a language model writes the tokens that Generator writes") {
  if (const std::string why = missing_for_webgpu(); !why.empty()) {
    MESSAGE("no page of a language model is opened: " << why);
    return;
  }
  check_same_tokens("llama", {});
  check_same_tokens("qwen3", {});
  check_same_tokens("gpt2", {});
  check_same_tokens("llama", {.temperature = 0.9, .seed = 7});
  check_same_tokens("llama", {.temperature = 1.5,
                              .top_k = 20,
                              .top_p = 0.9,
                              .min_p = 0.01,
                              .repetition_penalty = 1.3,
                              .seed = 8});
}

TEST_CASE("a page of a language model that cannot be is an error with the values") {
  Transformer model = test::random_model(test::small_config("llama"));
  const std::string bytes = examples::byte_tokenizer();
  const test::TemporaryFolder folder("chat_page");
  const auto error = [&](const std::string& tokenizer, const ChatPageOptions& options) {
    return error_of([&] { export_chat(model, tokenizer, folder.file("page"), options); });
  };
  CHECK(error(bytes, {}) ==
        "export_chat: the tokenizer has ids up to 255, and the model tokens up to 100");
  CHECK(has(error("{", {}), "no valid JSON"));
  CHECK(has(error(bytes, {.wrap = "no line"}), "wrap 'no line' has no {}"));
  CHECK(has(error(bytes, {.max_new_tokens = 0}), "max_new_tokens 0"));
  CHECK(has(error(bytes, {.sampling = {.temperature = -1}}), "temperature -1"));
  Transformer learned = test::random_model(test::small_config("gpt2", R"("vocab_size": 256)"));
  const ChatPageOptions long_text{.context = 50};
  CHECK(error_of([&] { export_chat(learned, bytes, folder.file("page"), long_text); }) ==
        "export_chat: context 50, expected 1 to the model's 40 positions");
}
