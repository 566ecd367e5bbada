// The programs gpt2 and bert as a user runs them, on models small enough for a test: they learn,
// and a training that was stopped goes on bit for bit. `make test` builds them.
#include <doctest/doctest.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "test/command.h"
#include "test/error_of.h"
#include "test/temporary_folder.h"
#include "tiny/base/error.h"
#include "tiny/models/weights.h"

using namespace tiny;
using namespace tiny::test;
namespace fs = std::filesystem;

namespace {

// The number behind these words.
double number_after(const std::string& text, const std::string& words) {
  const size_t at = text.find(words);
  REQUIRE_MESSAGE(at != std::string::npos, text);
  return std::atof(text.c_str() + at + words.size());
}

std::string bytes_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

// Without packages the examples are not built: make says so.
bool is_built(const std::string& program) {
  const bool there = fs::exists(fs::path(TINY_BUILD) / "examples" / program);
  if (!there) MESSAGE("examples/", program, " is not built: it needs cxxopts");
  return there;
}

constexpr const char* kSmall =
    " --layers 1 --width 32 --heads 2 --context 24 --batch 16 --accumulate 2 --dropout 0.1";

// Whether a run that is stopped and one that goes on end with what a whole one ends with: weights,
// moments, losses of all steps, random numbers.
void check_resumed(const std::string& program, const std::string& more) {
  const test::TemporaryFolder folder("language");
  const std::string a = folder.file("a"), b = folder.file("b");
  const std::string small = cat(kSmall, " --steps 10 --every 4 ", more, " --checkpoint ");
  const CommandResult whole = run_example(program, small + a);
  REQUIRE_MESSAGE(whole.status == 0, whole.output);
  REQUIRE(run_example(program, small + b + " --stop 6").status == 0);
  CHECK(bytes_of(a) != bytes_of(b));
  const CommandResult rest = run_example(program, small + b);
  CHECK(has(rest.output, "going on with step 6"));
  CHECK(bytes_of(a) == bytes_of(b));
  const CommandResult other = run_example(program, small + b + " --lr 0.5");
  CHECK(other.status == 1);
  CHECK(has(other.output, "does not go on with --lr 0.5"));
}

}  // namespace

TEST_CASE("gpt2 learns the stories that it writes, and gives a model with its tokenizer") {
  if (!is_built("gpt2")) return;
  const test::TemporaryFolder folder("language");
  const CommandResult ended =
      run_example("gpt2", cat(kSmall, " --steps 60 --lr 0.01 --tokens 12 --curve ",
                              folder.file("curve.svg"), " --folder ", folder.file("m")));
  REQUIRE_MESSAGE(ended.status == 0, ended.output);
  const double before = number_after(ended.output, "loss of other texts "),
               after = number_after(ended.output, " s: loss of other texts ");
  CHECK(before > 5);  // of 256 bytes, ln(256) is 5.5
  CHECK(after < 0.7 * before);
  CHECK(number_after(ended.output, "tokens/s, ") > 0);
  CHECK(has(ended.output, "it writes: In the morning"));
  CHECK(has(bytes_of(folder.file("curve.svg")), "<svg"));
  models::Transformer model = models::load(folder.file("m"));
  const models::Tokenizer tokenizer = models::load_tokenizer(folder.file("m"));
  CHECK(tokenizer.encode("a\n\xc3\xa9") == std::vector<int32_t>{'a', '\n', 0xc3, 0xa9});
  CHECK(tokenizer.decode(tokenizer.encode("the lamp, twice.")) == "the lamp, twice.");
  CHECK(model.config().vocab == 256);
}

TEST_CASE("gpt2 reads a text, or its tokens") {
  if (!is_built("gpt2")) return;
  const test::TemporaryFolder folder("language");
  std::string text;
  for (int i = 0; i < 400; ++i) text += cat("line ", i, " of many\n");
  std::ofstream(folder.file("text")) << text;
  std::string tokens;
  for (const char c : text) tokens += std::string{c, '\0'};
  std::ofstream(folder.file("text.bin"), std::ios::binary) << tokens;
  const std::string small = cat(kSmall, " --steps 3 --tokens 0 --data ");
  const CommandResult plain = run_example("gpt2", small + folder.file("text")),
                      packed = run_example("gpt2", small + folder.file("text.bin"));
  REQUIRE_MESSAGE(plain.status == 0, plain.output);
  REQUIRE_MESSAGE(packed.status == 0, packed.output);
  CHECK(has(plain.output, cat(text.size(), " tokens of 256 kinds")));
  CHECK(number_after(plain.output, " s: loss of other texts ") ==
        number_after(packed.output, " s: loss of other texts "));
  CHECK(
      has(run_example("gpt2", "--data /nowhere/text").output, "--data: cannot open /nowhere/text"));
  CHECK(has(run_example("gpt2", "--heads 5").output, "a width of 128 is no multiple of 5"));
}

TEST_CASE("gpt2 goes on bit for bit") {
  if (is_built("gpt2")) check_resumed("gpt2", "--tokens 0");
}

TEST_CASE("bert fills gaps, and learns from a few labels what texts are about") {
  if (!is_built("bert")) return;
  const test::TemporaryFolder folder("language");
  const CommandResult ended = run_example(
      "bert", cat(kSmall, " --steps 150 --lr 0.01 --tune-steps 150 --tune-lr 0.005 --folder ",
                  folder.file("m")));
  REQUIRE_MESSAGE(ended.status == 0, ended.output);
  const double before = number_after(ended.output, "loss of other texts "),
               after = number_after(ended.output, " s: loss of other texts ");
  CHECK(after < 0.8 * before);
  // Of four topics: guesses are right in 25 % of all cases, ten seeds in 66 to 99.7 %.
  CHECK(number_after(ended.output, "accuracy ") > 50);
  const models::Tokenizer tokenizer = models::load_tokenizer(folder.file("m"));
  CHECK(tokenizer.special_ids().mask == 4);
  CHECK(tokenizer.decode(tokenizer.encode("The KEEPER ties a knot.")) == "the keeper ties a knot.");
  CHECK(models::load(folder.file("m")).config().head == models::Head::MaskedLanguage);
}

TEST_CASE("bert reads texts and labels from files") {
  if (!is_built("bert")) return;
  const test::TemporaryFolder folder("language");
  std::ofstream texts(folder.file("texts")), labelled(folder.file("labelled"));
  for (int i = 0; i < 400; ++i) {
    const bool is_long = i % 2 == 1;
    texts << "number " << i << (is_long ? " and so on and so on\n" : "\n");
    if (i < 200)
      labelled << (is_long ? "long" : "short") << '\t' << "number " << i
               << (is_long ? " and so on and so on\n" : "\n");
  }
  texts.close();
  labelled.close();
  const CommandResult ended =
      run_example("bert", cat(kSmall, " --steps 5 --tune-steps 25 --tune-lr 0.01 --data ",
                              folder.file("texts"), " --labelled ", folder.file("labelled")));
  REQUIRE_MESSAGE(ended.status == 0, ended.output);
  CHECK(has(ended.output, "400 texts"));
  CHECK(number_after(ended.output, "accuracy ") > 80);
  std::ofstream(folder.file("bad")) << "no label\n";
  const CommandResult bad =
      run_example("bert", cat(kSmall, " --steps 1 --labelled ", folder.file("bad")));
  CHECK(bad.status == 1);
  CHECK(has(bad.output, "no tab in the line 'no label'"));
}

TEST_CASE("bert goes on bit for bit") {
  if (is_built("bert")) check_resumed("bert", "--tune-steps 0");
}
