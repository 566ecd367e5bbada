#include "tiny/base/text.h"

#include <doctest/doctest.h>

#include <clocale>
#include <locale>
#include <string>

#include "tiny/base/env.h"
#include "tiny/base/error.h"
#include "tiny/ir/dtype.h"
#include "tiny/tensor/tensor.h"
#include "tiny/train/chart.h"

using namespace tiny;

namespace {

// 1.234.567,5
struct Comma : std::numpunct<char> {
  char do_decimal_point() const override { return ','; }
  char do_thousands_sep() const override { return '.'; }
  std::string do_grouping() const override { return "\3"; }
};

// The locale of all streams that are made while it lives, and printf's where the system has one
// with a decimal comma.
class GermanLocale {
 public:
  GermanLocale()
      : before_(std::locale::global(std::locale(std::locale(), new Comma))),
        numbers_(std::setlocale(LC_NUMERIC, nullptr)) {
    for (const char* name : {"de_DE.UTF-8", "de_DE.utf8", "de_DE", "fr_FR.UTF-8"})
      if (std::setlocale(LC_NUMERIC, name)) break;
  }
  ~GermanLocale() {
    std::locale::global(before_);
    std::setlocale(LC_NUMERIC, numbers_.c_str());
  }

 private:
  std::locale before_;
  std::string numbers_;
};

}  // namespace

TEST_CASE("parts of a text are literals, buffers of characters, numbers and what can be printed") {
  const char buffer[8] = "of";
  const char* const word = "tiles";
  CHECK(cat("axis ", 3, ' ', buffer, " ", word, std::string(", "), std::string_view("f32")) ==
        "axis 3 of tiles, f32");
  CHECK_THROWS_WITH_AS(check(false, "axis ", 3, " ", buffer), "axis 3 of", Error);
  CHECK_THROWS_WITH_AS(expect(false, word), "tiles", Bug);
  CHECK_NOTHROW(check(true, word));
}

TEST_CASE("text that is made and read does not depend on the global locale") {
  const GermanLocale german;
  CHECK(cat(1234567, " ", 1234.5) == "1234567 1234.5");
  CHECK(formatted("%d %.2f", 1234567, 1234.5) == "1234567 1234.50");
  TextReader in("1234567 1234.5");
  int whole = 0;
  double number = 0;
  in >> whole >> number;
  CHECK_FALSE(in.fail());
  CHECK(whole == 1234567);
  CHECK(number == 1234.5);
}

TEST_CASE("a chart is the same under a locale with a decimal comma") {
  const Chart chart{"loss", "step", "loss", {{"a", {{1, 0.5}, {2000, 1234.25}}}}};
  const std::string plain = to_svg(chart);
  const GermanLocale german;
  CHECK(to_svg(chart) == plain);
}

TEST_CASE("kernels compile and compute the same under a locale with groups of digits") {
  const EnvOverride uncached("CACHE", "0");
  const auto run = [] {
    const Tensor x = Tensor::arange(0, 5000, 1, kF32).contiguous();
    return (x * 0.123 + 1234.5).reshape({5, 1000}).sum(1).to_vector<float>();
  };
  const GermanLocale german;
  const std::vector<float> sums = run();
  CHECK(sums[0] == doctest::Approx(1000 * 1234.5 + 0.123 * 499500));
  CHECK(sums[4] == doctest::Approx(1000 * 1234.5 + 0.123 * 4499500));
}

TEST_CASE("letters and digits are those of ASCII") {
  CHECK(is_digit('0'));
  CHECK_FALSE(is_digit('a'));
  CHECK(is_letter('Z'));
  CHECK_FALSE(is_letter('\xe4'));
  CHECK_FALSE(is_letter('_'));
  CHECK(to_lower('A') == 'a');
  CHECK(to_lower('\xc4') == '\xc4');
}
