#include "runtime/device/lru.h"

#include <doctest/doctest.h>

using namespace tiny;

TEST_CASE("an Lru forgets what was used longest ago") {
  Lru<int> cache;
  cache.insert("a", 1, 3);
  cache.insert("b", 2, 3);
  cache.insert("c", 3, 3);
  CHECK(*cache.find("a") == 1);
  cache.insert("d", 4, 3);
  CHECK(cache.size() == 3);
  CHECK_FALSE(cache.contains("b"));
  CHECK(cache.contains("a"));
  cache.insert("e", 5, 1);
  CHECK(cache.size() == 1);
  CHECK(*cache.find("e") == 5);
}

TEST_CASE("an Lru keeps the value that it has") {
  Lru<std::string> cache;
  std::string& first = cache.insert("a", "one", 2);
  CHECK(&cache.insert("a", "two", 2) == &first);
  CHECK(first == "one");
  cache.clear();
  CHECK(cache.size() == 0);
  CHECK(cache.find("a") == nullptr);
}
