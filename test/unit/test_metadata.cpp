#include "tiny/models/files/formats/metadata.h"

#include <doctest/doctest.h>

#include "test/error_of.h"
#include "tiny/base/error.h"

using namespace tiny;

TEST_CASE("metadata are had as integers, numbers and texts of any width") {
  Metadata m;
  m.set("a", uint8_t{7});
  m.set("b", int64_t{-7});
  m.set("c", 0.5f);
  m.set("d", std::string("text"));
  m.set("e", true);
  m.set("f", MetadataArray{std::vector<uint16_t>{1, 65535}});
  m.set("g", MetadataArray{std::vector<std::string>{"x", "y"}});
  CHECK(m.integer("a") == 7);
  CHECK(m.integer("b") == -7);
  CHECK(m.number("a") == 7);
  CHECK(m.number("c") == 0.5);
  CHECK(m.text("d") == "text");
  CHECK(m.flag("e"));
  CHECK(m.integers("f") == std::vector<int64_t>{1, 65535});
  CHECK(m.numbers("f") == std::vector<double>{1, 65535});
  CHECK(m.texts("g") == std::vector<std::string>{"x", "y"});
  CHECK(m.integer("none", 3) == 3);
  CHECK(m.number("none", 3.5) == 3.5);
  CHECK(m.text("none", "t") == "t");
  CHECK(m.flag("none", true));
  m.set("a", int32_t{8});
  CHECK(m.integer("a") == 8);
  CHECK(m.items().size() == 7);
  CHECK(m.items()[0].first == "a");
}

TEST_CASE("metadata of another kind, too large or missing are errors that name the key") {
  Metadata m;
  m.set("d", std::string("text"));
  m.set("f", 1.5f);
  m.set("u", ~uint64_t{0});
  m.set("l", MetadataArray{std::vector<float>{1}});
  m.set("b", true);
  CHECK(error_of([&] { m.integer("x"); }) == "metadata: there is no x");
  CHECK(error_of([&] { m.texts("x"); }) == "metadata: there is no x");
  CHECK(error_of([&] { m.integer("f"); }) == "metadata: f is of kind f32, expected an integer");
  CHECK(error_of([&] { m.integer("b", 1); }) == "metadata: b is of kind bool, expected an integer");
  CHECK(error_of([&] { m.number("d"); }) == "metadata: d is of kind text, expected a number");
  CHECK(error_of([&] { m.text("l"); }) == "metadata: l is of kind array of f32, expected a text");
  CHECK(error_of([&] { m.integers("l"); }) ==
        "metadata: l is of kind array of f32, expected an array of integers");
  CHECK(error_of([&] { m.numbers("d"); }) ==
        "metadata: d is of kind text, expected an array of numbers");
  CHECK(error_of([&] { m.texts("l"); }) ==
        "metadata: l is of kind array of f32, expected an array of texts");
  CHECK(error_of([&] { m.integer("u"); }) ==
        "metadata: u is 18446744073709551615, expected an integer below 2^63");
}
