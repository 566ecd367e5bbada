#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <set>

#include "test/error_of.h"
#include "tiny/data/datasets.h"

using namespace tiny;

namespace {

bool has_word(const std::string& text, const std::string& word) {
  return has(" " + text, " " + word + " ");
}

}  // namespace

TEST_CASE("the same seed writes the same stories, whatever their number") {
  const auto some = write_stories(5, 7), more = write_stories(50, 7), other = write_stories(5, 8);
  for (size_t i = 0; i < 5; ++i) {
    CHECK(some[i].text == more[i].text);
    CHECK(some[i].topic == more[i].topic);
  }
  CHECK(some[0].text != other[0].text);
  CHECK(write_stories(0, 1).empty());
  CHECK(has(error_of([] { write_stories(-1, 1); }), "-1 stories"));
}

TEST_CASE("stories are of all topics, and each stays with its person") {
  std::map<int, int> topics;
  std::set<std::string> texts;
  for (const Story& s : write_stories(400, 1)) {
    ++topics[s.topic];
    texts.insert(s.text);
    CHECK(std::all_of(s.text.begin(), s.text.end(), [](char c) { return c >= ' ' && c <= 'z'; }));
    CHECK(s.text.ends_with(" away."));
    // "her" and "She", or "his" and "He".
    CHECK(has_word(s.text, "her") != has_word(s.text, "his"));
    CHECK(!(has_word(s.text, "her") && has_word(s.text, "He")));
    CHECK(!(has_word(s.text, "his") && has_word(s.text, "She")));
  }
  CHECK(topics.size() == kStoryTopics);
  for (const auto& [topic, count] : topics) CHECK(count > 60);
  CHECK(texts.size() > 390);
}
