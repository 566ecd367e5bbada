// How fast texts become token ids on one core, in MB of UTF-8 for each second of processor time, of
// which a busy machine takes nothing away: one JSON line for each tokenizer and text. Arguments:
// files tokenizer.json or folders, and with --text a file to encode; else the sample models of
// ../shared and sentences of English words.
#include <algorithm>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "tiny/base/error.h"
#include "tiny/models/tokenizers/tokenizer.h"

using namespace tiny;

namespace {

// Words by Zipf's law, with punctuation, numbers and paragraphs, as prose has them.
std::string english_text(size_t size) {
  static constexpr const char* kWords[] = {
      "the",      "of",       "and",        "to",          "in",         "that",
      "is",       "was",      "it",         "for",         "on",         "with",
      "language", "as",       "model",      "which",       "token",      "be",
      "from",     "this",     "have",       "they're",     "their",      "one",
      "by",       "memory",   "not",        "computation", "word",       "but",
      "what",     "some",     "we'll",      "can",         "out",        "other",
      "were",     "all",      "there",      "when",        "network",    "your",
      "learning", "said",     "gradient",   "each",        "Tokyo",      "Europe",
      "doesn't",  "question", "experience", "between",     "scientific", "understanding",
      "thirty",   "naïve"};
  std::mt19937 random(1);
  std::string text;
  for (size_t words = 1; text.size() < size; ++words) {
    const double u = std::uniform_real_distribution<double>(0, 1)(random);
    text += kWords[static_cast<size_t>(u * u * static_cast<double>(std::size(kWords)))];
    text += words % 131 == 0 ? ".\n\n" : words % 13 == 0 ? ". " : words % 7 == 0 ? ", " : " ";
    if (words % 41 == 0) text += cat(random() % 100000, " ");
  }
  return text;
}

std::string read_text(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  check(in.good(), "cannot read ", path);
  return {std::istreambuf_iterator<char>(in), {}};
}

// The best of several repetitions.
template <class Work> double megabytes_per_second(size_t bytes, const Work& work) {
  double best = 0;
  for (int i = 0; i < 5; ++i) {
    const std::clock_t start = std::clock();
    work();
    const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
    best = std::max(best, static_cast<double>(bytes) * 1e-6 / std::max(seconds, 1e-6));
  }
  return best;
}

void report(const std::string& path, const std::string& kind, const std::string& text) {
  const auto tokenizer = models::Tokenizer::load(path);
  const auto ids = tokenizer.encode(text, false);
  const double encoded = megabytes_per_second(text.size(), [&] { tokenizer.encode(text, false); });
  const double decoded = megabytes_per_second(text.size(), [&] { tokenizer.decode(ids); });
  std::printf(
      "{\"tokenizer\": \"%s\", \"text\": \"%s\", \"bytes\": %zu, \"tokens\": %zu, \"encode_MB_s\": "
      "%.1f, \"decode_MB_s\": %.1f}\n",
      path.c_str(), kind.c_str(), text.size(), ids.size(), encoded, decoded);
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> paths;
  std::string text_path;
  for (int i = 1; i < argc; ++i) {
    if (std::string(argv[i]) == "--text" && i + 1 < argc) {
      text_path = argv[++i];
    } else {
      paths.emplace_back(argv[i]);
    }
  }
  for (const char* name : {"gpt2", "llama", "llama2", "bert"}) {
    const std::string path = cat("../shared/models/", name);
    if (argc == 1 && std::filesystem::exists(path)) paths.push_back(path);
  }
  if (paths.empty()) std::printf("no tokenizers: name files, ../shared/models is not there\n");
  const std::string prose = text_path.empty() ? english_text(4 << 20) : read_text(text_path);
  for (const std::string& path : paths) {
    report(path, text_path.empty() ? "words" : text_path, prose);
    report(path, "one letter", std::string(100000, 'a'));
  }
}
