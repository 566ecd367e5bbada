#include "tiny/models/files/formats/gguf.h"

#include <dlfcn.h>
#include <doctest/doctest.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <limits>
#include <random>

#include "tiny/base/error.h"

using namespace tiny;
namespace fs = std::filesystem;

namespace {

class Folder {
 public:
  Folder() { REQUIRE(mkdtemp(path_.data()) != nullptr); }
  ~Folder() { fs::remove_all(path_); }
  std::string file() const { return path_ + "/a.gguf"; }
  void write(const std::string& bytes) const {
    std::ofstream(file(), std::ios::binary).write(bytes.data(), std::ssize(bytes));
  }
  std::string bytes() const {
    std::ifstream in(file(), std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }

 private:
  std::string path_ = "/tmp/tiny-test-gguf-XXXXXX";
};

template <class T> void put(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}
std::string text(const std::string& s) {
  std::string out;
  put(out, uint64_t{s.size()});
  return out + s;
}
template <class T> std::string raw(T value) {
  std::string out;
  put(out, value);
  return out;
}

// The begin of a file of so many tensors and values.
std::string begin(uint64_t tensors, uint64_t values, uint32_t version = 3) {
  return "GGUF" + raw(version) + raw(tensors) + raw(values);
}

// A tensor of f32 of one axis.
std::string info(const std::string& name, uint64_t size, uint64_t offset, uint32_t type = 0) {
  return text(name) + raw(uint32_t{1}) + raw(size) + raw(type) + raw(offset);
}

std::string padded(std::string bytes, size_t data) {
  bytes.resize((bytes.size() + 31) / 32 * 32);
  return bytes + std::string(data, '\1');
}

// The error of reading the file, after its name.
std::string read_error(const Folder& folder) {
  try {
    read_gguf_header(MappedFile("gguf", folder.file()));
  } catch (const Error& e) {
    const std::string start = cat("gguf: ", folder.file(), ": "), message = e.what();
    return message.starts_with(start) ? message.substr(start.size()) : message;
  }
  return "no error";
}

std::string error_of(const Folder& folder, const std::string& bytes) {
  folder.write(bytes);
  return read_error(folder);
}

Metadata all_kinds() {
  Metadata m;
  m.set("general.architecture", std::string("test"));
  m.set("u8", uint8_t{255});
  m.set("i8", int8_t{-128});
  m.set("u16", uint16_t{65535});
  m.set("i16", int16_t{-32768});
  m.set("u32", uint32_t{4294967295});
  m.set("i32", std::numeric_limits<int32_t>::min());
  m.set("f32", 0.1f);
  m.set("yes", true);
  m.set("no", false);
  m.set("u64", ~uint64_t{0});
  m.set("i64", std::numeric_limits<int64_t>::min());
  m.set("f64", 0.1);
  m.set("empty text", std::string());
  m.set("bytes", std::string("a\0\xff", 3));
  m.set("u8s", MetadataArray{std::vector<uint8_t>{1, 2}});
  m.set("i8s", MetadataArray{std::vector<int8_t>{-1}});
  m.set("u16s", MetadataArray{std::vector<uint16_t>{3}});
  m.set("i16s", MetadataArray{std::vector<int16_t>{-3}});
  m.set("u32s", MetadataArray{std::vector<uint32_t>{4, 5, 6}});
  m.set("i32s", MetadataArray{std::vector<int32_t>{}});
  m.set("f32s", MetadataArray{std::vector<float>{1.5f}});
  m.set("bools", MetadataArray{std::vector<bool>{true, false, true}});
  m.set("texts", MetadataArray{std::vector<std::string>{"a", "", "\xe2\x96\x81the"}});
  m.set("u64s", MetadataArray{std::vector<uint64_t>{7}});
  m.set("i64s", MetadataArray{std::vector<int64_t>{-7}});
  m.set("f64s", MetadataArray{std::vector<double>{2.5}});
  const MetadataArray inner{std::vector<int32_t>{1, 2}}, other{std::vector<std::string>{"x"}};
  m.set("nested", MetadataArray{std::vector<MetadataArray>{
                      inner, other, MetadataArray{std::vector<MetadataArray>{inner}}}});
  return m;
}

// One tensor of every type of GGUF, of two rows, with a scalar and an empty one.
struct EveryType {
  std::vector<std::vector<std::byte>> data;
  std::vector<OutputTensor> tensors;

  EveryType() {
    std::mt19937 random(3);
    for (uint32_t number = 0; number < 64; ++number)
      if (const StoredType* type = find_gguf_type(number))
        add(cat("t.", type->name), *type, {2, 1, 2 * type->elements}, random);
    add("scalar", stored_type("F32"), {}, random);
    add("empty", stored_type("F16"), {0, 4}, random);
  }

 private:
  void add(const std::string& name, const StoredType& type, const Shape& shape,
           std::mt19937& random) {
    data.emplace_back(static_cast<size_t>(*type.bytes_of(shape)));
    for (std::byte& b : data.back()) b = static_cast<std::byte>(random());
    tensors.push_back(output_bytes(name, type, shape, data.back()));
  }
};

std::string deep_array(int depth) {
  std::string out = text("k") + raw(uint32_t{9});
  for (int i = 1; i < depth; ++i) out += raw(uint32_t{9}) + raw(uint64_t{1});
  return out + raw(uint32_t{0}) + raw(uint64_t{1}) + raw(uint8_t{7});
}

}  // namespace

TEST_CASE("metadata of every kind and tensors of every type come back from GGUF as they were") {
  const Folder folder;
  const EveryType all;
  for (int version : {2, 3}) {
    write_gguf(folder.file(), all_kinds(), all.tensors, version);
    const MappedFile file("gguf", folder.file());
    const GgufHeader header = read_gguf_header(file);
    CHECK(header.version == version);
    const Metadata expected = all_kinds();
    REQUIRE(header.metadata.items().size() == expected.items().size());
    for (size_t i = 0; i < expected.items().size(); ++i) {
      CAPTURE(expected.items()[i].first);
      CHECK((header.metadata.items()[i] == expected.items()[i]));
    }
    REQUIRE(header.tensors.size() == all.tensors.size());
    for (size_t i = 0; i < all.tensors.size(); ++i) {
      const GgufTensor& t = header.tensors[i];
      CAPTURE(t.name);
      CHECK(t.name == all.tensors[i].name);
      CHECK(t.type == all.tensors[i].type);
      CHECK(t.shape == all.tensors[i].shape);
      CHECK(t.begin % 32 == 0);
      const auto bytes = file.bytes(t.begin, t.bytes);
      CHECK(std::equal(bytes.begin(), bytes.end(), all.data[i].begin(), all.data[i].end()));
    }
  }
}

TEST_CASE("a GGUF file has the bytes that its description says") {
  const Folder folder;
  Metadata m;
  m.set("general.alignment", uint32_t{64});
  const std::vector<std::byte> data(24, std::byte{5});
  write_gguf(folder.file(), m, {output_bytes("w", stored_type("F32"), {2, 3}, data)});
  std::string expected = begin(1, 1) + text("general.alignment") + raw(uint32_t{4}) +
                         raw(uint32_t{64}) + text("w") + raw(uint32_t{2}) + raw(uint64_t{3}) +
                         raw(uint64_t{2}) + raw(uint32_t{0}) + raw(uint64_t{0});
  expected.resize(128);
  expected += std::string(24, '\5');
  expected.resize(192);
  CHECK(folder.bytes() == expected);
}

TEST_CASE("what GGUF cannot hold is an error that leaves the old file") {
  const Folder folder;
  folder.write("old");
  const std::vector<std::byte> data(24);
  const auto error = [&](const Metadata& m, std::vector<OutputTensor> tensors, int version = 3) {
    std::string message = "no error";
    try {
      write_gguf(folder.file(), m, tensors, version);
    } catch (const Error& e) {
      message = std::string(e.what()).substr(8 + folder.file().size());
    }
    CHECK(folder.bytes() == "old");
    return message;
  };
  const OutputTensor good = output_bytes("w", stored_type("F32"), {2, 3}, data);
  CHECK(error({}, {good, good}) == "tensor w is given twice");
  CHECK(error({}, {good}, 1) == "there is no writing version 1, expected 2 or 3");
  OutputTensor bad = good;
  bad.type = &stored_type("U8");
  CHECK(error({}, {bad}) == "tensor w: the format has no type U8");
  bad = good;
  bad.name = std::string(64, 'n');
  CHECK(error({}, {bad}) == "tensor " + bad.name + ": a name of 64 bytes, the format allows 63");
  bad = good;
  bad.shape = {1, 1, 1, 2, 3};
  CHECK(error({}, {bad}) == "tensor w has 5 axes, the format allows 4");
  bad = good;
  bad.type = &stored_type("Q4_0");
  CHECK(error({}, {bad}) ==
        "tensor w: the shape (2,3) is none of Q4_0, whose blocks have 32 elements");
  bad = good;
  bad.shape = {2, 4};
  CHECK(error({}, {bad}) == "tensor w of shape (2,4) as F32 takes 32 bytes, the data has 24");
  Metadata m;
  m.set("general.alignment", uint32_t{24});
  CHECK(error(m, {good}) == "general.alignment is 24, expected a power of two of 8 to 2^30");
}

TEST_CASE("sizes and counts near 2^64 in a GGUF file are errors that say what was found") {
  const Folder folder;
  const uint64_t huge = ~uint64_t{0};
  const auto error = [&](const std::string& bytes) { return error_of(folder, bytes); };
  CHECK(error("GGUX") == "the file does not begin with GGUF");
  CHECK(error("GGUF") == "expected 4 bytes of the version at byte 4, found 0");
  CHECK(error(begin(0, 0, 1)) == "the file is of version 1, expected 2 or 3");
  CHECK(error(begin(0, 0, 0x03000000)) ==
        "the file is of a big-endian machine, expected a little-endian one");
  CHECK(error(begin(huge, 0)) ==
        "expected 18446744073709551615 tensors at byte 16, found only 8 bytes");
  CHECK(error(begin(0, huge)) ==
        "expected 18446744073709551615 metadata at byte 24, found only 0 bytes");
  CHECK(error(begin(0, 1) + raw(huge) + "12345") ==
        "a metadata key has 18446744073709551615 bytes, the format allows 65535");
  CHECK(error(begin(0, 1) + text("k") + raw(uint32_t{13})) ==
        "metadata k is of the unknown kind 13");
  CHECK(error(begin(0, 1) + text("k") + raw(uint32_t{8}) + raw(huge)) ==
        "expected 18446744073709551615 bytes of k at byte 45, found 0");
  CHECK(error(begin(0, 1) + text("k") + raw(uint32_t{9}) + raw(uint32_t{10}) + raw(huge / 8 + 1)) ==
        "expected 2305843009213693952 elements of k at byte 49, found only 0 bytes");
  CHECK(error(begin(0, 1) + text("k") + raw(uint32_t{7}) + raw(uint8_t{2})) ==
        "metadata k: a bool is 2, expected 0 or 1");
  CHECK(error(padded(begin(1, 0) + info("w", huge, 0), 4)) ==
        "tensor w has an axis of 18446744073709551615 elements, which no file holds");
  CHECK(error(padded(begin(1, 0) + info("w", 1, huge), 4)) ==
        "tensor w begins at 18446744073709551615, expected a multiple of 32");
  CHECK(error(padded(begin(1, 0) + info("w", 1, huge / 4 - 31), 4))
            .starts_with("tensor w: expected 4 bytes at byte "));
  CHECK(error(padded(begin(1, 0) + info("w", uint64_t{1} << 61, 0), 4)) ==
        "tensor w: the shape (2305843009213693952) is none of F32, whose blocks have 1 elements, "
        "or takes more than 2^62 bytes");
  CHECK(error(padded(begin(1, 0) + text("w") + raw(uint32_t{4000000000}) + std::string(40, 'x'),
                     0)) == "tensor w has 4000000000 axes, the format allows 4");
}

TEST_CASE("a GGUF file with holes, larger than the memory, costs no memory") {
  const Folder folder;
  constexpr int64_t kSize = int64_t{1} << 42;
  const auto error = [&](const std::string& bytes) {
    folder.write(bytes);
    fs::resize_file(folder.file(), kSize);
    return read_error(folder);
  };
  CHECK(error(begin(0, 1) + text("k") + raw(uint32_t{9}) + raw(uint32_t{0}) + raw(kSize / 2)) ==
        "expected 2199023255552 elements of k at byte 49, found only 268435407 bytes to the limit "
        "of 268435456 bytes of a header");
  CHECK(error(begin(0, 1) + text("k") + raw(uint32_t{8}) + raw(kSize / 2)) ==
        "expected 2199023255552 bytes of k at byte 45, found 268435411 to the limit of 268435456 "
        "bytes of a header");
  CHECK(error(padded(begin(1, 0) + info("w", kSize / 8, 0), 0)) == "no error");
}

TEST_CASE("tensors of a GGUF file that overlap, are unaligned, unknown or twice are errors") {
  const Folder folder;
  const auto error = [&](const std::string& bytes) { return error_of(folder, bytes); };
  CHECK(error(padded(begin(2, 0) + info("a", 8, 0) + info("b", 8, 32), 64)) == "no error");
  CHECK(error(padded(begin(2, 0) + info("b", 8, 32) + info("a", 9, 0), 64)) ==
        "tensor b at byte 128 overlaps tensor a, which ends at 132");
  CHECK(error(padded(begin(2, 0) + info("a", 8, 0) + info("b", 8, 32), 63)) ==
        "tensor b: expected 32 bytes at byte 128, found 31");
  CHECK(error(padded(begin(2, 0) + info("a", 8, 0) + info("a", 8, 32), 64)) ==
        "tensor a is there twice");
  CHECK(error(padded(begin(1, 0) + info("a", 8, 8), 64)) ==
        "tensor a begins at 8, expected a multiple of 32");
  CHECK(error(padded(begin(1, 0) + info("a", 8, 0, 4), 64)) == "tensor a is of the unknown type 4");
  CHECK(error(padded(begin(1, 0) + info("a", 33, 0, 2), 64)) ==
        "tensor a: the shape (33) is none of Q4_0, whose blocks have 32 elements, or takes more "
        "than 2^62 bytes");
  const auto aligned = [](uint32_t to) {
    return begin(0, 1) + text("general.alignment") + raw(uint32_t{4}) + raw(to);
  };
  CHECK(error(aligned(48)).starts_with("general.alignment is 48, expected a power of two"));
  CHECK(error(aligned(0)).starts_with("general.alignment is 0, expected a power of two"));
  CHECK(error(begin(0, 2) + text("k") + raw(uint32_t{0}) + 'x' + text("k") + raw(uint32_t{0}) +
              "x") == "metadata k is there twice");
  const std::string strange =
      error(padded(begin(1, 0) + info("a\n" + std::string(500, 'b'), 8, 8), 0));
  CHECK(strange.starts_with("tensor a?bbb"));
  CHECK(strange.size() < 200);
}

TEST_CASE("arrays in a GGUF file may be nested, but not without end") {
  const Folder folder;
  CHECK(error_of(folder, begin(0, 1) + deep_array(32)) == "no error");
  CHECK(error_of(folder, begin(0, 1) + deep_array(33)) ==
        "metadata k: arrays are nested more than 32 deep");
  CHECK(error_of(folder, begin(0, 1) + deep_array(100000)) ==
        "metadata k: arrays are nested more than 32 deep");
}

TEST_CASE("a GGUF file that is truncated anywhere in what it needs is an error") {
  const Folder folder;
  const EveryType all;
  write_gguf(folder.file(), all_kinds(), all.tensors);
  const std::string whole = folder.bytes();
  size_t needed = 0;
  {
    const MappedFile file("gguf", folder.file());
    for (const GgufTensor& t : read_gguf_header(file).tensors)
      needed = std::max(needed, static_cast<size_t>(t.begin + t.bytes));
  }
  for (size_t size = whole.size(); size-- > 0;) {
    fs::resize_file(folder.file(), size);
    CAPTURE(size);
    REQUIRE((read_error(folder) == "no error") == (size >= needed));
  }
}

TEST_CASE("bytes changed at random in a GGUF file give tensors inside it or an error") {
  const Folder folder;
  const EveryType all;
  write_gguf(folder.file(), all_kinds(), all.tensors);
  const std::string whole = folder.bytes();
  const size_t header = static_cast<size_t>(
      read_gguf_header(MappedFile("gguf", folder.file())).tensors.front().begin);
  std::mt19937 random(7);
  int errors = 0;
  for (int round = 0; round < 4000; ++round) {
    std::string bytes = whole.substr(0, header);
    for (unsigned i = 0; i <= random() % 4; ++i) {
      const size_t at = random() % header;
      if (random() % 3 == 0)  // counts and offsets are of 8 bytes
        for (size_t k = at; k < std::min(at + 8, header); ++k) bytes[k] = '\xff';
      else
        bytes[at] = static_cast<char>(random());
    }
    std::fstream(folder.file(), std::ios::in | std::ios::out | std::ios::binary) << bytes;
    const MappedFile file("gguf", folder.file());
    try {
      for (const GgufTensor& t : read_gguf_header(file).tensors)
        REQUIRE(file.bytes(t.begin, t.bytes).size() == static_cast<size_t>(t.bytes));
    } catch (const Error& e) {
      ++errors;
      REQUIRE(std::string(e.what()).size() < 500);
    }
  }
  CHECK(errors > 1000);
  CHECK(errors < 4000);
}

TEST_CASE("llama.cpp reads what is written as GGUF") {
  const char* set = std::getenv("NODE_MODULES");
  const std::string modules = set ? set : TINY_ROOT "/build/node_modules";
  void* library = dlopen(
      (modules + "/@node-llama-cpp/linux-x64/bins/linux-x64/libggml-base.so").c_str(), RTLD_NOW);
  if (library == nullptr) {
    std::cout << "left out: llama.cpp's library is not in $NODE_MODULES (docs/files.md)\n";
    return;
  }
  struct Parameters {
    bool no_alloc;
    void** context;
  };
  const auto function = [&]<class F>(F*, const char* name) {
    return reinterpret_cast<F*>(dlsym(library, name));
  };
  const auto open =
      function(static_cast<void* (*)(const char*, Parameters)>(nullptr), "gguf_init_from_file");
  const auto tensors = function(static_cast<int64_t (*)(void*)>(nullptr), "gguf_get_n_tensors");
  const auto items = function(static_cast<int64_t (*)(void*)>(nullptr), "gguf_get_n_kv");
  const auto find =
      function(static_cast<int64_t (*)(void*, const char*)>(nullptr), "gguf_find_tensor");
  const auto offset =
      function(static_cast<size_t (*)(void*, int64_t)>(nullptr), "gguf_get_tensor_offset");
  const auto data = function(static_cast<size_t (*)(void*)>(nullptr), "gguf_get_data_offset");
  const auto size =
      function(static_cast<size_t (*)(void*, int64_t)>(nullptr), "gguf_get_tensor_size");
  const Folder folder;
  const EveryType all;
  Metadata metadata;  // theirs knows arrays of arrays no more than it knows tensors of no element
  const Metadata kinds = all_kinds();
  for (const auto& [key, value] : kinds.items())
    if (key != "nested") metadata.set(key, value);
  std::vector<OutputTensor> some(all.tensors.begin(), all.tensors.end() - 1);
  for (int version : {2, 3}) {
    write_gguf(folder.file(), metadata, some, version);
    void* theirs = open(folder.file().c_str(), {true, nullptr});
    REQUIRE(theirs != nullptr);
    CHECK(items(theirs) == static_cast<int64_t>(metadata.items().size()));
    CHECK(tensors(theirs) == static_cast<int64_t>(some.size()));
    for (const GgufTensor& t : read_gguf_header(MappedFile("gguf", folder.file())).tensors) {
      CAPTURE(t.name);
      const int64_t id = find(theirs, t.name.c_str());
      REQUIRE(id >= 0);
      CHECK(static_cast<int64_t>(data(theirs) + offset(theirs, id)) == t.begin);
      CHECK(static_cast<int64_t>(size(theirs, id)) == t.bytes);
    }
    function(static_cast<void (*)(void*)>(nullptr), "gguf_free")(theirs);
  }
}

TEST_CASE("@huggingface/gguf reads what is written as GGUF") {
  const char* set = std::getenv("NODE_MODULES");
  const std::string modules = set ? set : TINY_ROOT "/build/node_modules";
  if (!fs::exists(modules + "/@huggingface/gguf") || std::system("node --version >/dev/null")) {
    std::cout << "left out: node or @huggingface/gguf is not in $NODE_MODULES (docs/files.md)\n";
    return;
  }
  const Folder folder;
  const EveryType all;
  write_gguf(folder.file(), all_kinds(), all.tensors);
  std::string expected;
  for (const OutputTensor& t : all.tensors) {
    expected += t.name;
    for (auto size = t.shape.rbegin(); size != t.shape.rend(); ++size) expected += cat(' ', *size);
    expected += cat(' ', t.type->gguf, '\n');
  }
  const std::string script =
      cat("const {gguf} = require('", modules, "/@huggingface/gguf');gguf('", folder.file(),
          "', {allowLocalFile: true}).then(({metadata, tensorInfos}) => {",
          "if (metadata.texts[2] !== '\\u2581the' || metadata.u64 !== 18446744073709551615n ||",
          " metadata.nested[2][0][1] !== 2 || metadata.bools.join() !== 'true,false,true')",
          " throw new Error('metadata');",
          "for (const t of tensorInfos) console.log([t.name, ...t.shape, t.dtype].join(' '));});");
  std::ofstream(folder.file() + ".cjs") << script;
  const std::string out = folder.file() + ".txt";
  REQUIRE(std::system(("node " + folder.file() + ".cjs >" + out).c_str()) == 0);
  std::ifstream in(out);
  CHECK(std::string(std::istreambuf_iterator<char>(in), {}) == expected);
}
