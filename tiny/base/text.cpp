#include "tiny/base/text.h"

#include <locale.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <locale>

namespace tiny {

namespace {

// This thread's C locale while it lives: printf asks it for the decimal point.
class PlainLocale {
 public:
  PlainLocale() : before_(uselocale(plain())) {}
  ~PlainLocale() { uselocale(before_); }
  PlainLocale(const PlainLocale&) = delete;
  PlainLocale& operator=(const PlainLocale&) = delete;

 private:
  static locale_t plain() {
    static const locale_t made = newlocale(LC_ALL_MASK, "C", locale_t{});
    return made;
  }
  const locale_t before_;
};

}  // namespace

TextStream::TextStream() {
  if (getloc() != std::locale::classic()) imbue(std::locale::classic());  // which takes its time
}
TextStream::~TextStream() = default;
std::string TextStream::str() const { return std::ostringstream::str(); }

TextReader::TextReader(const std::string& text) : std::istringstream(text) {
  imbue(std::locale::classic());
}
TextReader::~TextReader() = default;

std::string formatted(const char* format, ...) {
  const PlainLocale plain;
  va_list args, again;
  va_start(args, format);
  va_copy(again, args);
  std::string out(static_cast<size_t>(std::max(0, std::vsnprintf(nullptr, 0, format, args))), ' ');
  std::vsnprintf(out.data(), out.size() + 1, format, again);
  va_end(again);
  va_end(args);
  return out;
}

namespace detail {

template void print_part<char>(std::ostream&, const void*);
template void print_part<int>(std::ostream&, const void*);
template void print_part<int64_t>(std::ostream&, const void*);
template void print_part<size_t>(std::ostream&, const void*);
template void print_part<const char*>(std::ostream&, const void*);
template void print_part<std::string>(std::ostream&, const void*);

std::string join(std::initializer_list<TextPart> parts) {
  TextStream out;
  for (const TextPart& part : parts) part.print_(out, part.value_);
  return out.str();
}

}  // namespace detail

}  // namespace tiny
