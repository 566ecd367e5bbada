#include "tiny/models/files/tensor_file.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <random>

#include "test/error_of.h"
#include "tiny/base/error.h"
#include "tiny/models/files/formats/gguf.h"
#include "tiny/models/files/formats/output.h"
#include "tiny/models/files/save_shards.h"
#include "tiny/run/memory.h"
#include "tiny/train/safetensors.h"

using namespace tiny;
namespace fs = std::filesystem;

namespace {

class Folder {
 public:
  Folder() { REQUIRE(mkdtemp(path_.data()) != nullptr); }
  ~Folder() { fs::remove_all(path_); }
  std::string path(const std::string& name = "") const {
    return name.empty() ? path_ : path_ + "/" + name;
  }
  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(path_))
      names.push_back(entry.path().filename().string());
    std::sort(names.begin(), names.end());
    return names;
  }
  void write(const std::string& name, const std::string& bytes) const {
    std::ofstream(path(name), std::ios::binary) << bytes;
  }

 private:
  std::string path_ = "/tmp/tiny-test-files-XXXXXX";
};

std::vector<std::byte> random_bytes(int64_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::byte> out(static_cast<size_t>(count));
  for (std::byte& b : out) b = static_cast<std::byte>(random());
  return out;
}

std::vector<std::byte> bytes_of(const Tensor& t) {
  std::vector<std::byte> out(static_cast<size_t>(t.numel()) * t.dtype().size());
  t.to_bytes(out.data());
  return out;
}

// As many bytes in a file's memory as the process ever held at once, in MiB: VmHWM.
double peak_mib() {
  std::ifstream in("/proc/self/status");
  for (std::string line; std::getline(in, line);)
    if (line.starts_with("VmHWM:")) return std::atof(line.c_str() + 6) / 1024;
  return 0;
}

// Makes the present use the peak. Linux: proc(5), clear_refs.
bool forget_peak() {
  std::ofstream out("/proc/self/clear_refs");
  out << 5 << std::flush;
  return out.good();
}

}  // namespace

TEST_CASE("the sample models have the same tensors by the mapped file as read as a whole") {
  const fs::path models = fs::path(TINY_ROOT) / "../shared/models";
  if (!fs::exists(models)) {
    std::cout << "left out: there are no sample models in ../shared/models\n";
    return;
  }
  int tensors = 0;
  for (const auto& folder : fs::directory_iterator(models)) {
    if (!folder.is_directory()) continue;
    CAPTURE(folder.path().string());
    const TensorFile file(folder.path().string());
    std::map<std::string, StateEntry> whole;
    for (const auto& entry : fs::directory_iterator(folder.path())) {
      const std::string name = entry.path().filename().string();
      if (!name.starts_with("model") || !name.ends_with(".safetensors")) continue;
      for (StateEntry& e : read_safetensors(entry.path().string()).entries) {
        const std::string tensor = e.name;
        whole[tensor] = std::move(e);
      }
    }
    REQUIRE(file.tensors().size() == whole.size());
    for (const FileTensor& t : file.tensors()) {
      const StateEntry& e = whole.at(t.name);
      const Tensor loaded = file.load(t.name);
      CHECK(loaded.dtype() == e.dtype);
      CHECK(same(loaded.shape(), e.shape));
      CHECK((bytes_of(loaded) == e.data));
      ++tensors;
    }
  }
  CHECK(tensors > 100);
}

TEST_CASE("tensors of every type of safetensors are written, listed, loaded and had as stored") {
  const Folder folder;
  std::vector<std::vector<std::byte>> data;
  std::vector<OutputTensor> tensors;
  std::vector<std::string> names = {
      "U8",  "I8",      "U16",         "I16",         "U32",     "I32",    "U64",  "I64",
      "F16", "F32",     "F64",         "F8_E4M3",     "F8_E5M2", "BF16",   "BOOL", "C64",
      "F4",  "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "F6_E2M3", "F6_E3M2"};
  for (const std::string& name : names) {
    const StoredType& type = stored_type(name);
    data.push_back(random_bytes(*type.bytes_of(Shape{3, 8}), 1));
    if (name == "BOOL")
      for (std::byte& b : data.back()) b &= std::byte{1};
    tensors.push_back(output_bytes(name, type, {3, 8}, data.back()));
  }
  save_shards(folder.path("a.safetensors"), tensors);
  const TensorFile file(folder.path());
  REQUIRE(file.tensors().size() == names.size());
  for (size_t i = 0; i < names.size(); ++i) {
    CAPTURE(names[i]);
    const FileTensor& t = file.at(names[i]);
    CHECK(t.type == &stored_type(names[i]));
    CHECK((bytes_of(file.load_stored(names[i])) == data[i]));
    CHECK(file.load_stored(names[i]).size(0) == 3);
    if (t.type->dtype != kVoid) {
      CHECK(file.load(names[i]).dtype() == t.type->dtype);
      CHECK((bytes_of(file.load(names[i])) == data[i]));
    } else if (t.type->decode == nullptr) {
      CHECK(error_of([&] { file.load(names[i]); }) ==
            cat(folder.path(), ": tensor ", names[i], " is of type ", names[i],
                ", which cannot be decoded; load_stored() gives its bytes"));
    }
  }
  CHECK(file.load("F4").dtype() == kF32);
  CHECK(same(file.load("F4").shape(), Shape{3, 8}));
}

TEST_CASE("values are cast while they are loaded as Tensor::to casts them") {
  const Folder folder;
  std::vector<float> values;
  for (int i = 0; i < 4096; ++i)
    values.push_back(std::ldexp(static_cast<float>(i - 2048), i % 9 - 9));
  const Tensor x = Tensor::from(values, {4, 1024});
  std::vector<OutputTensor> tensors;
  const DType floats[] = {kF32, kF16, kBF16, kF8E4M3, kF8E5M2, kF64};
  for (DType from : floats) tensors.push_back(output_tensor(from.name(), x.to(from)));
  tensors.push_back(output_tensor("i32", x.to(kI32)));
  save_shards(folder.path("model.safetensors"), tensors);
  const TensorFile file(folder.path());
  for (const FileTensor& t : file.tensors())
    for (DType to : {kF32, kF16, kBF16, kF8E4M3, kF8E5M2, kF64, kI32}) {
      CAPTURE(t.name);
      CAPTURE(to.name());
      const Tensor loaded = file.load(t.name, "", to);
      CHECK(loaded.dtype() == to);
      CHECK((bytes_of(loaded) == bytes_of(file.load(t.name).to(to))));
    }
}

TEST_CASE("tensors of several pieces are loaded whole, cast and quantised") {
  const Folder folder;
  const int64_t rows = 5, columns = (int64_t{1} << 19) + 256;
  const Tensor x = (mod(Tensor::arange(rows * columns), 977).to(kF32) / 977 - 0.5)
                       .reshape({rows, columns})
                       .contiguous()
                       .realize();
  write_gguf(
      folder.path("a.gguf"), {},
      {output_tensor("f32", x), output_tensor("bf16", x, &stored_type("BF16")),
       output_tensor("q8", x, &stored_type("Q8_0")), output_tensor("q4", x, &stored_type("Q4_0"))});
  const TensorFile file(folder.path());
  CHECK(file.is_gguf());
  CHECK((bytes_of(file.load("f32")) == bytes_of(x)));
  CHECK((bytes_of(file.load("bf16")) == bytes_of(x.to(kBF16))));
  CHECK((file.load("q8") - x).abs().max().item<float>() < 0.5f / 127 * 0.6f);
  CHECK((file.load("q4") - x).abs().max().item<float>() < 0.5f / 8);
  CHECK(same(file.load_stored("q4").shape(), Shape{rows, columns / 32 * 18}));
  CHECK(file.load("q4", "", kF16).dtype() == kF16);
}

TEST_CASE("what a file's type cannot hold is an error") {
  const Tensor x = Tensor::from({1.0f, NAN}).reshape({1, 2});
  CHECK(error_of([&] { output_tensor("w", x, &stored_type("Q8_0")); }) ==
        "tensor w: rows of 2 elements cannot be written as Q8_0, whose blocks have 32");
  CHECK(error_of([&] { output_tensor("w", x, &stored_type("Q3_K")); }) ==
        "tensor w: f32 cannot be written as Q3_K");
  CHECK(error_of([&] { output_tensor("w", x.to(kI32), &stored_type("F32")); }) ==
        "tensor w: i32 cannot be written as F32");
  std::vector<float> values(64, 1);
  values[0] = INFINITY;
  const Tensor bad = Tensor::from(values);
  const Folder folder;
  CHECK(error_of([&] {
          write_gguf(folder.path("a.gguf"), {}, {output_tensor("w", bad, &stored_type("Q8_0"))});
        }) == "tensor w: element 0 is inf, which Q8_0 cannot hold");
  CHECK(folder.names().empty());
  CHECK(error_of([] { stored_type("Q9"); }).starts_with("files have no type Q9; they have F32, "));
}

TEST_CASE("a folder, an index, a file and the parts of a GGUF model open alike") {
  const Folder folder;
  const Tensor x = Tensor::arange(8).to(kF32), y = x + 1;
  CHECK(error_of([&] { TensorFile(folder.path()); }) ==
        folder.path() + " has no model: neither *.safetensors nor *.gguf");
  Metadata m;
  m.set("split.count", uint16_t{2});
  write_gguf(folder.path("m-00001-of-00002.gguf"), m, {output_tensor("x", x)});
  CHECK(error_of([&] { TensorFile(folder.path()); }) ==
        cat("gguf: of the 2 files that begin with ", folder.path("m-00001-of-00002.gguf"),
            ", 1 are missing: ", folder.path("m-00002-of-00002.gguf")));
  write_gguf(folder.path("m-00002-of-00002.gguf"), m, {output_tensor("y", y)});
  CHECK((bytes_of(TensorFile(folder.path()).load("y")) == bytes_of(y)));
  CHECK(error_of([&] {
          TensorFile(folder.path("m-00002-of-00002.gguf"));
        }).ends_with("open the first of them, by a name that ends in -00001-of-00002.gguf"));
  write_gguf(folder.path("n.gguf"), {}, {output_tensor("x", y)});
  CHECK(error_of([&] { TensorFile(folder.path()); }) ==
        folder.path() + " has several models, name one of them: m-00001-of-00002.gguf, n.gguf");
  save_shards(folder.path("b.safetensors"), {output_tensor("x", x)});
  CHECK(!TensorFile(folder.path()).is_gguf());
  save_shards(folder.path("model.safetensors"), {output_tensor("x", x), output_tensor("y", y)}, 33);
  CHECK(TensorFile(folder.path()).tensors().size() == 2);
  CHECK(TensorFile(folder.path("model.safetensors.index.json")).tensors().size() == 2);
  save_shards(folder.path("model.safetensors"), {output_tensor("y", y)});
  const TensorFile file(folder.path());
  CHECK(file.tensors().size() == 1);
  CHECK(file.find("x") == nullptr);
  CHECK(file.file_name(file.at("y")) == folder.path("model.safetensors"));
  CHECK(file.metadata().text("format") == "pt");
  CHECK(error_of([&] { file.load("x"); }) == folder.path() + ": there is no tensor x among its 1");
  CHECK(error_of([&] { TensorFile(folder.path("none")); }) ==
        cat("tensor file: cannot open ", folder.path("none"), ": No such file or directory"));
}

TEST_CASE("shards are as large as they may be, and the index names them") {
  const Folder folder;
  std::vector<OutputTensor> tensors;
  for (int i = 0; i < 5; ++i)
    tensors.push_back(output_tensor(cat("t", i), Tensor::full({i == 3 ? 100 : 10}, 1.0f * i)));
  const std::string path = folder.path("m.safetensors");
  save_shards(path, tensors, 80);
  CHECK(folder.names() ==
        std::vector<std::string>{"m-00001-of-00004.safetensors", "m-00002-of-00004.safetensors",
                                 "m-00003-of-00004.safetensors", "m-00004-of-00004.safetensors",
                                 "m.safetensors.index.json"});
  const TensorFile file(folder.path());
  CHECK(file.metadata().integer("total_size") == 4 * 140);
  for (int i = 0; i < 5; ++i) CHECK(file.load(cat("t", i)).max().item<float>() == i);
  CHECK(file.file_name(file.at("t1")).ends_with("m-00001-of-00004.safetensors"));
  CHECK(file.file_name(file.at("t3")).ends_with("m-00003-of-00004.safetensors"));
  fs::remove(folder.path("m-00002-of-00004.safetensors"));
  fs::remove(folder.path("m-00004-of-00004.safetensors"));
  CHECK(error_of([&] { TensorFile(folder.path()); }) ==
        cat("safetensors: of the 4 files that ", path, ".index.json names, 2 are missing: ",
            "m-00002-of-00004.safetensors, m-00004-of-00004.safetensors"));
  CHECK(error_of([&] {
          save_shards(path, {tensors[0], tensors[0]}, 10);
        }).ends_with("tensor t0: the name is given twice"));
  CHECK(error_of([&] {
          save_shards(folder.path("m"), tensors);
        }).ends_with("/m is no name of a .safetensors file"));
}

TEST_CASE("an index that is damaged or leads out of its folder is an error") {
  const Folder folder;
  save_shards(folder.path("a.safetensors"), {output_tensor("x", Tensor::full({2}, 1.0f))});
  const std::string path = folder.path("b.safetensors.index.json");
  const auto error = [&](const std::string& text) {
    folder.write("b.safetensors.index.json", text);
    const std::string message = error_of([&] { TensorFile file(path); });
    const std::string start = cat("safetensors: the index ", path);
    return message.starts_with(start) ? message.substr(start.size()) : message;
  };
  CHECK(error(R"({"weight_map": {"x": "a.safetensors"}})") == "no error");
  CHECK(error("{").starts_with(" is no JSON: "));
  CHECK(error("").starts_with(" is no JSON: "));
  CHECK(error("[]") == " is no JSON object");
  CHECK(error("{}") == " has no weight_map");
  CHECK(error(R"({"weight_map": 3})") == " is damaged: weight_map is no object");
  CHECK(error(R"({"weight_map": {"x": 3}})") == " is damaged: the file of tensor x is no text");
  CHECK(error(R"({"weight_map": {"x": "a.safetensors", "x": "a.safetensors"}})") ==
        " is damaged: tensor x is there twice");
  for (const char* name : {"../a.safetensors", "/a.safetensors", "..", ""})
    CHECK(error(cat(R"({"weight_map": {"x": ")", name, "\"}}")) ==
          cat(" is damaged: the file of tensor x is '", name, "', which is none in its folder"));
  CHECK(error(R"({"weight_map": {"y": "a.safetensors"}})") ==
        cat("safetensors: ", path, " says that ", folder.path("a.safetensors"),
            " has tensor y, which it has not"));
  std::string deep = R"({"metadata": )";
  for (int i = 0; i < 100000; ++i) deep += '[';
  CHECK(error(deep).starts_with(" is no JSON: "));
}

TEST_CASE("a file that becomes shorter while it is open is an error") {
  const Folder folder;
  save_shards(folder.path("a.safetensors"), {output_tensor("x", Tensor::full({1000}, 1.0f))});
  const TensorFile file(folder.path());
  fs::resize_file(folder.path("a.safetensors"), 500);
  CHECK(error_of([&] { file.load("x"); }).ends_with(" bytes when it was opened and now has 500"));
}

TEST_CASE("loading one tensor after the other and saving them holds little more than one") {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  constexpr bool kSanitized = true;  // which has memory of its own
#else
  constexpr bool kSanitized = false;
#endif
  if (kSanitized || !forget_peak()) {
    std::cout << "left out: the peak of memory cannot be reset here\n";
    return;
  }
  const Folder folder;
  constexpr int64_t kCount = int64_t{1} << 24;  // 64 MiB of f32 each
  constexpr double kMiB = 1 << 20, kTensor = 4 * kCount / kMiB;
  {
    const std::vector<std::byte> zeros(4 * kCount);
    std::vector<OutputTensor> tensors;
    for (int i = 0; i < 4; ++i)
      tensors.push_back(output_bytes(cat("t", i), stored_type("F32"), {kCount}, zeros));
    save_shards(folder.path("model.safetensors"), tensors, 2 * 4 * kCount);
  }
  clear_caches();
  REQUIRE(forget_peak());
  const double before = peak_mib();
  const TensorFile file(folder.path());
  for (const FileTensor& t : file.tensors()) file.load(t.name);
  CHECK(peak_mib() - before < kTensor + 64);
  for (const FileTensor& t : file.tensors()) file.load(t.name, "", kBF16);
  CHECK(peak_mib() - before < kTensor + 64);
  const Tensor held = file.load("t0");
  clear_caches();
  REQUIRE(forget_peak());
  const double with_one = peak_mib();
  save_shards(folder.path("b.safetensors"),
              {output_tensor("a", held), output_tensor("b", held, &stored_type("F16"))});
  write_gguf(folder.path("b.gguf"), {}, {output_tensor("c", held, &stored_type("Q8_0"))});
  CHECK(peak_mib() - with_one < kTensor + 64);
}
