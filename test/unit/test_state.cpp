#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>

#include "test/error_of.h"
#include "tiny/base/error.h"
#include "tiny/train/safetensors.h"

using namespace tiny;
namespace fs = std::filesystem;

namespace {

// A folder with one file name in it, removed at the end of the test.
class TemporaryFile {
 public:
  TemporaryFile() : folder_(fs::temp_directory_path() / cat("tiny_test_state_", ::getpid())) {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  ~TemporaryFile() { fs::remove_all(folder_); }
  std::string path() const { return (folder_ / "a.safetensors").string(); }
  std::string folder() const { return folder_.string(); }
  int count_files() const {
    return static_cast<int>(std::distance(fs::directory_iterator(folder_), {}));
  }
  std::string bytes() const {
    std::ifstream file(path(), std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void write(const std::string& bytes) const {
    std::ofstream(path(), std::ios::binary).write(bytes.data(), static_cast<int64_t>(bytes.size()));
  }
  // A header with the length before it, and zeros as data.
  void write(const std::string& header, size_t data_size) const {
    const uint64_t length = header.size();
    std::string text(sizeof length, ' ');
    std::memcpy(text.data(), &length, sizeof length);
    write(text + header + std::string(data_size, '\0'));
  }

 private:
  fs::path folder_;
};

StateEntry entry(const std::string& name, DType dtype, std::vector<int64_t> shape) {
  int64_t bytes = dtype.size();
  for (int64_t size : shape) bytes *= size;
  StateEntry result{name, dtype, std::move(shape), {}};
  for (int64_t i = 0; i < bytes; i++)
    result.data.push_back(static_cast<std::byte>(dtype == kBool ? i % 2 : i * 7 + 1));
  return result;
}

// The error of reading a file of this header and so many bytes of data, after "safetensors: PATH".
std::string read_error(const std::string& header, size_t data_size) {
  TemporaryFile file;
  file.write(header, data_size);
  const std::string message = error_of([&] { read_safetensors(file.path()); });
  const std::string start = cat("safetensors: ", file.path());
  return message.starts_with(start) ? message.substr(start.size()) : message;
}

constexpr DType kAll[] = {kBool, kI8,  kI16, kI32,  kI64, kU8, kU16,
                          kU32,  kU64, kF16, kBF16, kF32, kF64};

}  // namespace

TEST_CASE("every dtype, a scalar and an empty tensor come back from a file as they were") {
  TemporaryFile file;
  std::vector<StateEntry> entries;
  for (DType dtype : kAll) entries.push_back(entry(cat("layer.", dtype), dtype, {3, 5}));
  entries.push_back(entry("scalar \"quoted\" \xc3\xa4", kF32, {}));
  entries.push_back(entry("empty", kF64, {2, 0, 3}));
  write_safetensors(file.path(), entries, {{"step", "12"}, {"by", "a test"}});
  const SafetensorsFile read = read_safetensors(file.path());
  CHECK(read.metadata == std::map<std::string, std::string>{{"by", "a test"}, {"step", "12"}});
  REQUIRE(read.entries.size() == entries.size());
  for (const StateEntry& written : entries) {
    const auto found = std::find_if(read.entries.begin(), read.entries.end(),
                                    [&](const StateEntry& e) { return e.name == written.name; });
    REQUIRE(found != read.entries.end());
    CHECK(found->dtype == written.dtype);
    CHECK(found->shape == written.shape);
    CHECK((found->data == written.data));
  }
}

TEST_CASE("a file of no tensors can be written and read") {
  TemporaryFile file;
  write_safetensors(file.path(), {});
  CHECK(read_safetensors(file.path()).entries.empty());
}

TEST_CASE("safetensors are laid out aligned, without gaps and the same each time") {
  TemporaryFile file;
  const std::vector<StateEntry> entries = {entry("b", kU8, {3}), entry("h", kF16, {1}),
                                           entry("d", kF64, {1}), entry("a", kU8, {2})};
  write_safetensors(file.path(), entries, {{"k", "v"}});
  const std::string bytes = file.bytes();
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof length);
  CHECK(length % 8 == 0);
  CHECK(bytes.size() == 8 + length + 8 + 2 + 3 + 2);
  const std::string header =
      R"({"__metadata__":{"k":"v"},"d":{"dtype":"F64","shape":[1],"data_offsets":[0,8]},)"
      R"("h":{"dtype":"F16","shape":[1],"data_offsets":[8,10]},)"
      R"("b":{"dtype":"U8","shape":[3],"data_offsets":[10,13]},)"
      R"("a":{"dtype":"U8","shape":[2],"data_offsets":[13,15]}})";
  CHECK(bytes.substr(8, header.size()) == header);
  CHECK(bytes.substr(8 + header.size(), length - header.size()).find_first_not_of(' ') ==
        std::string::npos);
  write_safetensors(file.path(), entries, {{"k", "v"}});
  CHECK(file.bytes() == bytes);
  CHECK(file.count_files() == 1);
}

TEST_CASE("tensors that cannot be saved are an error that leaves the old file") {
  TemporaryFile file;
  file.write("old");
  const auto save_error = [&](std::vector<StateEntry> entries) {
    const std::string message = error_of([&] { write_safetensors(file.path(), entries); });
    CHECK(file.bytes() == "old");
    CHECK(file.count_files() == 1);
    const std::string start = cat("safetensors: ", file.path(), ": ");
    return message.starts_with(start) ? message.substr(start.size()) : message;
  };
  const StateEntry good = entry("w", kF32, {2, 3});
  CHECK(save_error({good, good}) == "tensor w: the name is given twice or reserved");
  CHECK(save_error({entry("__metadata__", kF32, {1})}) ==
        "tensor __metadata__: the name is given twice or reserved");
  StateEntry bad = good;
  bad.data.resize(20);
  CHECK(save_error({bad}) == "tensor w: shape (2,3) of F32 takes 24 bytes, the data has 20");
  bad = good;
  bad.shape = {-2, -3};
  CHECK(save_error({bad}) == "tensor w: the shape (-2,-3) has a negative size");
  bad.dtype = kF32.vec(4);
  CHECK(save_error({bad}) ==
        "tensor w: the format has no dtype f32x4; it has BOOL, I8, I16, I32, I64, U8, U16, U32, "
        "U64, F16, BF16, F32, F8_E4M3, F8_E5M2, F64");
  bad = good;
  bad.name = "\xff";
  CHECK(save_error({bad}) == "a tensor's name or the metadata is not UTF-8");
}

TEST_CASE("a place where no file can be made is an error") {
  TemporaryFile file;
  const std::string path = file.folder() + "/none/a.safetensors";
  CHECK(error_of([&] { write_safetensors(path, {}); }) ==
        cat("safetensors: cannot write ", path, ": No such file or directory"));
  CHECK(error_of([&] { read_safetensors(path); }) ==
        cat("safetensors: cannot open ", path, ": No such file or directory"));
  CHECK(error_of([&] { read_safetensors(file.folder()); }) ==
        cat("safetensors: ", file.folder(), " is a folder, not a file"));
  CHECK(error_of([&] { write_safetensors(file.folder(), {}); }) ==
        cat("safetensors: cannot write ", file.folder(), ": it is a folder, not a file"));
  CHECK(file.count_files() == 0);
}

TEST_CASE("a header longer than the file is an error that costs no memory") {
  TemporaryFile file;
  file.write("short");
  CHECK(error_of([&] { read_safetensors(file.path()); }) ==
        cat("safetensors: ", file.path(), " is too short: expected at least 8 bytes, found 5"));
  file.write(std::string(8, '\xff') + "{}");
  CHECK(error_of([&] { read_safetensors(file.path()); }) ==
        cat("safetensors: ", file.path(), " is damaged: expected a header of ",
            "18446744073709551615 bytes, found 2 bytes after its length"));
}

TEST_CASE("a truncated safetensors file is an error at every length") {
  TemporaryFile file;
  write_safetensors(file.path(), {entry("w", kF32, {2, 3}), entry("b", kI8, {3})});
  const std::string whole = file.bytes();
  for (size_t length = 0; length < whole.size(); length++) {
    file.write(whole.substr(0, length));
    CHECK(error_of([&] {
            read_safetensors(file.path());
          }).starts_with(cat("safetensors: ", file.path())));
  }
  file.write(whole + "x");
  CHECK(error_of([&] { read_safetensors(file.path()); }) ==
        cat("safetensors: ", file.path(), ": expected 27 bytes of data, found 28"));
}

TEST_CASE("a header that is no JSON object of tensors is an error") {
  CHECK(read_error("{", 0).starts_with(": the header is no JSON: "));
  CHECK(read_error("[1]", 0) == ": the header is no JSON object");
  CHECK(read_error(R"({"w":3})", 0) == ": tensor w: its description is no JSON object");
  CHECK(read_error(R"({"__metadata__":{"a":1}})", 0) == ": __metadata__ is no object of texts");
  CHECK(read_error(R"({"w":{"shape":[1],"data_offsets":[0,1]}})", 1) ==
        ": tensor w: dtype is no text");
  CHECK(read_error(R"({"w":{"dtype":"U8","data_offsets":[0,1]}})", 1) ==
        ": tensor w: shape is no list");
  CHECK(read_error(R"({"w":{"dtype":"U8","shape":[-1],"data_offsets":[0,1]}})", 1) ==
        ": tensor w: shape holds -1, expected integers of at least 0");
  CHECK(read_error(R"({"w":{"dtype":"U8","shape":[1.5],"data_offsets":[0,1]}})", 1) ==
        ": tensor w: shape holds 1.5, expected integers of at least 0");
  CHECK(read_error(R"({"w":{"dtype":"U8","shape":[1],"data_offsets":[1]}})", 1) ==
        ": tensor w: data_offsets are not a begin and an end");
  CHECK(read_error(R"({"w":{"dtype":"U8","shape":[1],"data_offsets":[1,0]}})", 1) ==
        ": tensor w: data_offsets are not a begin and an end");
  CHECK(read_error(R"({"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                   R"("w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
                   1) == ": tensor w is in the header twice");
}

TEST_CASE("an unknown dtype in a file is an error that lists the known ones") {
  CHECK(read_error(R"({"w":{"dtype":"F8","shape":[1],"data_offsets":[0,1]}})", 1) ==
        ": tensor w: the dtype F8 is unknown; known are BOOL, I8, I16, I32, I64, U8, U16, U32, "
        "U64, F16, BF16, F32, F8_E4M3, F8_E5M2, F64, F8_E8M0, F8_E4M3FNUZ, F8_E5M2FNUZ, F4, "
        "F6_E2M3, F6_E3M2, C64");
}

TEST_CASE("offsets that do not fit the file, the shape or each other are an error") {
  CHECK(read_error(R"({"w":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})", 3) ==
        ": tensor w: expected its data to end at byte 4, found only 3 bytes of data in the file");
  CHECK(read_error(R"({"w":{"dtype":"F32","shape":[2,3],"data_offsets":[0,20]}})", 20) ==
        ": tensor w: expected 24 bytes for shape (2,3) of F32, found 20 between its data_offsets");
  CHECK(read_error(R"({"w":{"dtype":"F32","shape":[4611686018427387904,4],)"
                   R"("data_offsets":[0,0]}})",
                   0) ==
        ": tensor w: the shape (4611686018427387904,4) of F32 takes more than 2^60 bytes");
  const std::string first = R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)";
  CHECK(read_error(first + R"("b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}})", 6) ==
        ": tensor b: its data overlaps another tensor's: expected it to begin at byte 4, found 2");
  CHECK(read_error(first + R"("b":{"dtype":"U8","shape":[4],"data_offsets":[5,9]}})", 9) ==
        ": tensor b: its data leaves a gap: expected it to begin at byte 4, found 5");
}

TEST_CASE("a BOOL byte other than 0 and 1 is an error") {
  TemporaryFile file;
  write_safetensors(file.path(), {entry("m", kBool, {4})});
  std::string bytes = file.bytes();
  bytes.back() = 5;
  file.write(bytes);
  CHECK(error_of([&] { read_safetensors(file.path()); }) ==
        cat("safetensors: ", file.path(),
            ": tensor m: expected each byte of a BOOL to be 0 or 1, found 5"));
}

TEST_CASE("a header of 40000 tensors is read, and each name is found once") {
  TemporaryFile file;
  std::vector<StateEntry> entries;
  for (int i = 0; i < 40000; ++i) entries.push_back(entry(cat("layers.", i, ".weight"), kU8, {1}));
  write_safetensors(file.path(), entries);
  const SafetensorsFile read = read_safetensors(file.path());
  REQUIRE(read.entries.size() == entries.size());
  CHECK(read.entries[12345].name == "layers.12345.weight");
  CHECK(read.entries[12345].data == entries[12345].data);
}

TEST_CASE("lists and objects in a header may be as deep as they like") {
  const auto deep = [](const std::string& open, const std::string& close) {
    std::string text;
    for (int i = 0; i < 100000; ++i) text += open;
    for (int i = 0; i < 100000; ++i) text += close;
    return text;
  };
  const std::string begin = R"({"w":{"dtype":"U8","data_offsets":[0,1],"shape":)";
  CHECK(read_error(begin + deep("[", "]") + "}}", 1) ==
        ": tensor w: shape holds a list, expected integers of at least 0");
  CHECK(read_error(begin + R"([{"a":1}]}})", 1) ==
        ": tensor w: shape holds an object, expected integers of at least 0");
  CHECK(read_error(begin + R"({"a":1}}})", 1) == ": tensor w: shape is no list");
  CHECK(read_error(begin + R"([1],"other":)" + deep("[", "]") + "}}", 1) == "no error");
  CHECK(read_error(begin + R"([1],"other":{"shape":[7],"shape":[8]}}})", 1) == "no error");
  CHECK(read_error(deep("[", "]"), 0) == ": the header is no JSON object");
  CHECK(read_error(R"({"w":)" + deep("[", "]") + "}", 0) ==
        ": tensor w: its description is no JSON object");
  CHECK(read_error(R"({"__metadata__":{"a":{"b":"c"}}})", 0) ==
        ": __metadata__ is no object of texts");
}

TEST_CASE("a key that is twice in a tensor's description or in the metadata is an error") {
  CHECK(read_error(R"({"w":{"dtype":"U8","shape":[1],"shape":[2],"data_offsets":[0,1]}})", 1) ==
        ": tensor w: shape is there twice");
  CHECK(read_error(R"({"w":{"dtype":"U8","dtype":"I8","shape":[1],"data_offsets":[0,1]}})", 1) ==
        ": tensor w: dtype is there twice");
  CHECK(read_error(R"({"__metadata__":{"a":"1","a":"2"}})", 0) ==
        ": __metadata__: a is there twice");
}

TEST_CASE("a shape of more axes than tensors have is an error") {
  std::string ones = "1";
  for (int i = 0; i < 32; ++i) ones += ",1";
  CHECK(read_error(cat(R"({"w":{"dtype":"U8","data_offsets":[0,1],"shape":[)", ones, "]}}"), 1) ==
        ": tensor w: shape has more than 32 integers");
}

TEST_CASE("a header that is not UTF-8, or ends in the middle, is an error of a line") {
  for (const std::string& header : {std::string("{\"\xff\":{}}"), std::string("{\"w\":{\"dty"),
                                    "{\"" + std::string(100000, 'w')}) {
    const std::string message = read_error(header, 0);
    CHECK(message.starts_with(": the header is no JSON: "));
    CHECK(message.size() < 300);
  }
}

TEST_CASE("a file with holes costs no memory where it is damaged, or larger than the memory") {
  TemporaryFile file;
  constexpr int64_t kSize = int64_t{1} << 42;
  const auto error = [&](const std::string& header, uint64_t length) {
    std::string bytes(8, ' ');
    std::memcpy(bytes.data(), &length, 8);
    file.write(bytes + header);
    fs::resize_file(file.path(), kSize);
    return error_of([&] { read_safetensors(file.path()); }).substr(13 + file.path().size());
  };
  CHECK(error("", 0).starts_with(": the header is no JSON: "));
  CHECK(error("", 100'000'001) == ": a header of 100000001 bytes, the format allows 100000000");
  const std::string text =
      cat(R"({"w":{"dtype":"U8","shape":[)", kSize, R"(],"data_offsets":[0,)", kSize, "]}}");
  CHECK(error(text, text.size()) == cat(": tensor w: expected its data to end at byte ", kSize,
                                        ", found only ", kSize - 8 - text.size(),
                                        " bytes of data in the file"));
  const int64_t held = kSize - 8 - static_cast<int64_t>(text.size());
  const std::string whole =
      cat(R"({"w":{"dtype":"U8","shape":[)", held, R"(],"data_offsets":[0,)", held, "]}}");
  REQUIRE(whole.size() == text.size());
  CHECK(
      error(whole, whole.size()).starts_with(cat(": its ", held, " bytes of data are more than")));
}

TEST_CASE("a header tells names, types, shapes and places without the data") {
  TemporaryFile file;
  write_safetensors(file.path(), {entry("w", kF32, {2, 3}), entry("b", kBF16, {3})}, {{"a", "b"}});
  const MappedFile mapped("safetensors", file.path());
  const SafetensorsHeader header = read_safetensors_header(mapped);
  CHECK(header.metadata.at("a") == "b");
  REQUIRE(header.entries.size() == 2);
  CHECK(header.entries[1].name == "b");
  CHECK(header.entries[1].type->dtype == kBF16);
  CHECK(header.entries[1].shape == Shape{3});
  CHECK(header.entries[1].bytes == 6);
  CHECK(header.entries[1].begin + 6 == mapped.size());
}

TEST_CASE("packed types take whole bytes, and tensors have no dtype for them") {
  CHECK(read_error(R"({"w":{"dtype":"F4","shape":[3,3],"data_offsets":[0,5]}})", 5) ==
        ": tensor w: the shape (3,3) of F4 takes 36 bits, which are no whole bytes");
  CHECK(read_error(R"({"w":{"dtype":"F6_E2M3","shape":[4],"data_offsets":[0,4]}})", 4) ==
        ": tensor w: expected 3 bytes for shape (4) of F6_E2M3, found 4 between its data_offsets");
  CHECK(read_error(R"({"w":{"dtype":"F4","shape":[2,3],"data_offsets":[0,3]}})", 3) ==
        ": tensor w: tensors have no dtype for F4; TensorFile (tiny/models/files) gives its bytes");
}

TEST_CASE("tensors come to a file one after the other, and have to fill their shapes") {
  TemporaryFile file;
  const auto output = [](const std::string& name, const std::string& bytes) {
    return SafetensorsOutput{name, "F4", {2, 4}, [bytes](const ByteSink& sink) {
                               for (char c : bytes) sink({&c, 1});
                             }};
  };
  stream_safetensors(file.path(), {output("a", "1234"), output("b", "5678")});
  CHECK(file.bytes().ends_with("12345678"));
  CHECK(error_of([&] { stream_safetensors(file.path(), {output("a", "123")}); }) ==
        cat("safetensors: ", file.path(),
            ": tensor a: shape (2,4) of F4 takes 4 bytes, the data has 3"));
  CHECK(file.bytes().ends_with("12345678"));
  SafetensorsOutput unknown = output("a", "1234");
  unknown.type = "F5";
  CHECK(error_of([&] {
          stream_safetensors(file.path(), {unknown});
        }).starts_with(cat("safetensors: ", file.path(), ": tensor a: the format has no type F5")));
}

TEST_CASE("bytes changed at random in a safetensors file give tensors inside it or an error") {
  TemporaryFile file;
  std::vector<StateEntry> entries;
  for (DType dtype : kAll) entries.push_back(entry(cat("layer.", dtype), dtype, {3, 5}));
  write_safetensors(file.path(), entries, {{"step", "12"}});
  const std::string whole = file.bytes();
  std::mt19937 random(4);
  int errors = 0;
  for (int round = 0; round < 2000; ++round) {
    std::string bytes = whole;
    for (unsigned i = 0; i <= random() % 3; ++i) {
      constexpr std::string_view kLikely = "0123456789[]{}\",:-eE";
      const size_t at = random() % (whole.size() - 600);
      bytes[at] = at >= 8 && random() % 2 ? kLikely[random() % kLikely.size()]
                                          : static_cast<char>(random());
    }
    file.write(bytes);
    const MappedFile mapped("safetensors", file.path());
    try {
      for (const SafetensorsEntry& e : read_safetensors_header(mapped).entries)
        REQUIRE(mapped.bytes(e.begin, e.bytes).size() == static_cast<size_t>(e.bytes));
    } catch (const Error& e) {
      ++errors;
    }
  }
  CHECK(errors > 1000);
  CHECK(errors < 2000);
}
