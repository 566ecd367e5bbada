#include "tiny/data/npz.h"

#include <doctest/doctest.h>

#include <fstream>
#include <random>

#include "test/error_of.h"
#include "test/temporary_folder.h"
#if __has_include(<zlib.h>)
#include <zlib.h>
#endif

using namespace tiny;

namespace {

template <class T> std::string raw(T value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

// A file .npy as NumPy writes it.
std::string npy(const std::string& type, const std::string& shape, const std::string& data,
                bool is_column_major = false) {
  std::string header = "{'descr': '" + type +
                       "', 'fortran_order': " + (is_column_major ? "True" : "False") +
                       ", 'shape': " + shape + ", }";
  header.resize((header.size() + 10) / 64 * 64 + 64 - 10, ' ');
  return "\x93NUMPY\x01" + std::string(1, '\0') + raw(static_cast<uint16_t>(header.size())) +
         header + data;
}

struct Entry {
  std::string name, data;
  bool is_deflated = false;
};

std::string deflated(const std::string& data) {
#if __has_include(<zlib.h>)
  std::string out(data.size() + 1000, '\0');
  z_stream stream{};
  deflateInit2(&stream, 9, Z_DEFLATED, -MAX_WBITS, 8, Z_DEFAULT_STRATEGY);
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(data.data()));
  stream.avail_in = static_cast<uInt>(data.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  deflate(&stream, Z_FINISH);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
#else
  return data;
#endif
}

// A ZIP file: entries, the list of them, its record.
std::string zip(const std::vector<Entry>& entries) {
  std::string file, list;
  for (const Entry& e : entries) {
    const std::string packed = e.is_deflated ? deflated(e.data) : e.data;
    const std::string common =
        raw(uint16_t{20}) + raw(uint16_t{0}) + raw(static_cast<uint16_t>(e.is_deflated ? 8 : 0)) +
        raw(uint32_t{0}) + raw(uint32_t{0}) + raw(static_cast<uint32_t>(packed.size())) +
        raw(static_cast<uint32_t>(e.data.size())) + raw(static_cast<uint16_t>(e.name.size()));
    list += raw(uint32_t{0x02014b50}) + raw(uint16_t{20}) + common + std::string(12, '\0') +
            raw(static_cast<uint32_t>(file.size())) + e.name;
    file += raw(uint32_t{0x04034b50}) + common + raw(uint16_t{0}) + e.name + packed;
  }
  const auto count = static_cast<uint16_t>(entries.size());
  return file + list + raw(uint32_t{0x06054b50}) + raw(uint32_t{0}) + raw(count) + raw(count) +
         raw(static_cast<uint32_t>(list.size())) + raw(static_cast<uint32_t>(file.size())) +
         raw(uint16_t{0});
}

std::string write(const test::TemporaryFolder& folder, const std::string& bytes) {
  const std::string path = folder.file("a");
  std::ofstream(path, std::ios::binary).write(bytes.data(), std::ssize(bytes));
  return path;
}

std::string shorts(std::initializer_list<int16_t> values) {
  std::string out;
  for (const int16_t v : values) out += raw(v);
  return out;
}

}  // namespace

TEST_CASE("arrays of NumPy become tensors of their dtypes and shapes") {
  const test::TemporaryFolder folder("npz");
  const auto load = [&](const std::string& bytes) { return load_npy(write(folder, bytes)); };
  const Tensor a = load(npy("<i2", "(2, 3)", shorts({1, 2, 3, 4, 5, -6})));
  CHECK(to_shape(a.shape()) == Shape{2, 3});
  CHECK(a.to_vector<int16_t>() == std::vector<int16_t>{1, 2, 3, 4, 5, -6});
  const Tensor columns = load(npy("<i2", "(2, 3)", shorts({1, 4, 2, 5, 3, -6}), true));
  CHECK(columns.to_vector<int16_t>() == std::vector<int16_t>{1, 2, 3, 4, 5, -6});
  CHECK(load(npy("<f4", "()", raw(1.5f))).item<float>() == 1.5f);
  CHECK(load(npy("|b1", "(3,)", std::string("\1\0\1", 3))).to_vector<bool>() ==
        std::vector<bool>{true, false, true});
  CHECK(to_shape(load(npy("<f8", "(0, 4)", "")).shape()) == Shape{0, 4});
}

TEST_CASE("a file of arrays has them by name, stored and deflated") {
  const test::TemporaryFolder folder("npz");
  std::string zeros(4000, '\0');
  const auto arrays =
      load_npz(write(folder, zip({{"x.npy", npy("<i2", "(2,)", shorts({7, 8}))},
                                  {"long name.npy", npy("<f4", "(1000,)", zeros), true}})));
  REQUIRE(arrays.size() == 2);
  CHECK(arrays.at("x").to_vector<int16_t>() == std::vector<int16_t>{7, 8});
  CHECK(arrays.at("long name").sum().item<float>() == 0);
}

TEST_CASE("damaged arrays of NumPy are errors that say what is wrong") {
  const test::TemporaryFolder folder("npz");
  const std::string path = folder.file("a");
  const auto error = [&](const std::string& bytes) {
    write(folder, bytes);
    const std::string text = error_of([&] { load_npy(path); });
    return text.starts_with("npy: " + path + ": ") ? text.substr(path.size() + 7) : text;
  };
  CHECK(error("abc") == "the file does not begin as an array of NumPy");
  CHECK(error(npy("<U4", "(1,)", "")) == "elements of the type '<U4', which no tensor has");
  CHECK(error(npy(">f4", "(1,)", "abcd")) == "elements of the type '>f4', which no tensor has");
  CHECK(error(npy("<f4", "(2,)", "abcd")) == "expected 2 elements of f32, found 4 bytes");
  CHECK(error(npy("<f4", "(-1,)", "")) == "the shape is (-1,)");
  CHECK(error(npy("<f4", "(a)", "")) == "the shape is (a)");
  CHECK(error(npy("<f4", "(4611686018427387904,)", "")).starts_with("expected 46116860184273"));
  CHECK(error(std::string("\x93NUMPY\x01\x00\xff\xff{}", 12)) ==
        "a header of 65535 bytes, found 2");
  CHECK(error(std::string("\x93NUMPY\x09\x00\x02\x00{}", 12)) == "version 9, expected 1 to 3");
  CHECK(error(std::string("\x93NUMPY\x01\x00\x02\x00{}", 12)) == "the header has no descr");
}

TEST_CASE("a file of arrays that is cut off or changed anywhere is an error or a file") {
  const test::TemporaryFolder folder("npz");
  const std::string whole = zip({{"x.npy", npy("<i2", "(2,)", shorts({7, 8}))},
                                 {"y.npy", npy("<f4", "(100,)", std::string(400, '\1')), true}});
  for (size_t size = 0; size < whole.size(); ++size) {
    const std::string path = write(folder, whole.substr(0, size));
    CHECK(error_of([&] { load_npz(path); }) != "no error");
  }
  std::mt19937 random(1);
  int refused = 0;
  for (int round = 0; round < 3000; ++round) {
    std::string bytes = whole;
    for (size_t i = 0, changes = 1 + random() % 3; i < changes; ++i)
      bytes[random() % bytes.size()] = static_cast<char>(random());
    const std::string path = write(folder, bytes);
    refused += error_of([&] { load_npz(path); }) != "no error" ? 1 : 0;
  }
  CHECK(refused > 300);
  CHECK(refused < 3000);
}
