#include "tiny/base/error.h"

namespace tiny::detail {

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

void fail(std::initializer_list<TextPart> parts) { throw Error(join(parts)); }
void fail_bug(std::initializer_list<TextPart> parts) { throw Bug(join(parts)); }

}  // namespace tiny::detail
