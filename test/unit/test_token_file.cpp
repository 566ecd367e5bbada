#include "tiny/data/token_file.h"

#include <doctest/doctest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "test/error_of.h"
#include "test/temporary_folder.h"

using namespace tiny;
namespace fs = std::filesystem;

namespace {

void write_bytes(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

using Ids = std::vector<int32_t>;

}  // namespace

TEST_CASE("a token file is integers of 16 or 32 bits without a header") {
  const test::TemporaryFolder folder("tokens");
  const std::string path = folder.file("a.bin");
  write_bytes(path, std::string("\x01\x00\xff\xff\x34\x12\x00\x00", 8));
  const TokenFile narrow(path), wide(path, kU32);
  CHECK(narrow.size() == 4);
  CHECK(narrow.read(0, 4) == Ids{1, 65535, 0x1234, 0});
  CHECK(narrow.read(2, 1) == Ids{0x1234});
  CHECK(narrow.read(4, 0).empty());
  CHECK(wide.size() == 2);
  CHECK(wide.read(1, 1) == Ids{0x1234});
  CHECK(has(error_of([&] { wide.read(0, 1); }), "the id 4294901761"));
  CHECK(has(error_of([&] { narrow.read(3, 2); }), "2 tokens at 3"));
  CHECK(has(error_of([&] { narrow.read(-1, 1); }), "1 tokens at -1"));
}

TEST_CASE("windows of a token file are rows") {
  const test::TemporaryFolder folder("tokens");
  Ids ids;
  for (int32_t i = 0; i < 100; ++i) ids.push_back(7 * i);
  for (const DType dtype : {kU16, kU32}) {
    write_tokens(folder.file("b.bin"), ids, dtype);
    const TokenFile file(folder.file("b.bin"), dtype);
    CHECK(file.size() == 100);
    CHECK(file.read(0, 100) == ids);
    const Tensor rows = file.windows({97, 0, 50}, 3);
    CHECK(rows.dtype() == kI32);
    CHECK(to_text(rows.shape()) == "(3,3)");
    CHECK(rows.to_vector<int32_t>() == Ids{679, 686, 693, 0, 7, 14, 350, 357, 364});
    CHECK(has(error_of([&] { file.windows({98}, 3); }), "which has 100"));
  }
}

TEST_CASE("a text file becomes a token file") {
  const test::TemporaryFolder folder("tokens");
  write_bytes(folder.file("text"), "tokens\n");
  const auto bytes = [](const std::string& text) { return Ids(text.begin(), text.end()); };
  CHECK(tokenize_file(folder.file("text"), folder.file("c.bin"), bytes) == 7);
  CHECK(TokenFile(folder.file("c.bin")).read(0, 3) == Ids{'t', 'o', 'k'});
  CHECK(fs::file_size(folder.file("c.bin")) == 14);
}

TEST_CASE("token files that cannot be say why") {
  const test::TemporaryFolder folder("tokens");
  write_bytes(folder.file("odd"), "abc");
  CHECK(
      has(error_of([&] { TokenFile(folder.file("odd")); }), "3 bytes, which are no whole tokens"));
  CHECK(has(error_of([&] { TokenFile(folder.file("none")); }), "cannot open"));
  CHECK(has(error_of([&] { TokenFile(folder.file("odd"), kI64); }), "u16 or u32 and not i64"));
  CHECK(has(error_of([&] { write_tokens(folder.file("d"), {65536}); }), "65536 does not fit u16"));
  CHECK(has(error_of([&] { write_tokens(folder.file("d"), {-1}); }), "-1 does not fit u16"));
  CHECK(!fs::exists(folder.file("d")));
}
