#include "tiny/train/state_dict.h"

#include <doctest/doctest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "tiny/base/error.h"
#include "tiny/tensor/random.h"
#include "tiny/tensor/variable.h"
#include "tiny/train/safetensors.h"

using namespace tiny;
namespace fs = std::filesystem;

namespace {

using Notes = std::map<std::string, std::string>;

// A file, two tensors of zeros and the state of the random numbers, which a load that fails leaves.
struct Checkpoint {
  std::string folder = "/tmp/tiny-test-dict-XXXXXX", path;
  Tensor a = Tensor::zeros({4}).contiguous().realize(), b = a.zeros_like().contiguous().realize();
  StateDict state{{"a", &a}, {"b", &b}};

  Checkpoint() {
    REQUIRE(mkdtemp(folder.data()) != nullptr);
    path = folder + "/a.safetensors";
    manual_seed(3);
  }
  ~Checkpoint() { fs::remove_all(folder); }

  // Of ones, with these notes.
  void write(const Notes& notes) const {
    Tensor ones = Tensor::ones({4});
    save(path, {{"a", &ones}, {"b", &ones}}, notes);
  }
  // What loading says; that it changed nothing.
  std::string error() {
    try {
      load_checkpoint(path, state);
    } catch (const Error& e) {
      CHECK(a.to_vector<float>() == std::vector<float>(4, 0));
      CHECK(b.to_vector<float>() == std::vector<float>(4, 0));
      CHECK(random_state().key == 3);
      CHECK(random_state().counter == 0);
      return e.what();
    }
    return "no error";
  }
};

}  // namespace

TEST_CASE("a checkpoint without a key, or with no number there, changes nothing") {
  Checkpoint c;
  c.write({{"counter", "5"}});
  CHECK(c.error() == c.path + ": no checkpoint, it does not say where random numbers go on");
  c.write({{"key", "5"}});
  CHECK(c.error() == c.path + ": no checkpoint, it does not say where random numbers go on");
  for (const char* wrong :
       {"", "12abc", "-1", "+1", " 1", "1 ", "0x1", "garbage", "18446744073709551616", "1.5"}) {
    c.write({{"key", "5"}, {"counter", wrong}});
    CHECK(c.error() ==
          cat(c.path, ": counter is '", wrong, "', expected an integer of 0 to 2^64 - 1"));
    c.write({{"key", wrong}, {"counter", "5"}});
    CHECK(c.error() == cat(c.path, ": key is '", wrong, "', expected an integer of 0 to 2^64 - 1"));
  }
  c.write({{"key", "18446744073709551615"}, {"counter", "0"}});
  CHECK(load_checkpoint(c.path, c.state));
  CHECK(c.b.to_vector<float>() == std::vector<float>(4, 1));
  CHECK(random_state().key == ~uint64_t{0});
}

TEST_CASE("a checkpoint that is damaged, a pipe or at a place that cannot be is an error") {
  Checkpoint c;
  std::ofstream(c.path) << "damaged file";
  CHECK(c.error().starts_with("safetensors: " + c.path));
  fs::remove(c.path);
  REQUIRE(mkfifo(c.path.c_str(), 0600) == 0);
  CHECK(c.error() == "safetensors: " + c.path + " is a pipe, not a file");
  c.path = c.folder + "/" + std::string(300, 'x');
  CHECK(c.error() == "safetensors: cannot open " + c.path + ": File name too long");
}

TEST_CASE("a file of 1 TB with another shape than the tensor's is an error that costs no memory") {
  Checkpoint c;
  constexpr int64_t kData = int64_t{1} << 40;
  std::string header =
      cat(R"({"a":{"dtype":"U8","shape":[)", kData, R"(],"data_offsets":[0,)", kData, "]}}");
  const uint64_t length = header.size();
  std::ofstream(c.path).write(reinterpret_cast<const char*>(&length), 8) << header;
  fs::resize_file(c.path, 8 + length + kData);
  std::string problem;
  try {
    load(c.path, {{"a", &c.a}});
  } catch (const Error& e) {
    problem = e.what();
  }
  CHECK(problem == cat("load: ", c.path, " does not fit:\n  shape: a is (", kData,
                       ") in the file and (4) here"));
}

TEST_CASE("where one tensor cannot be assigned to, all keep their values") {
  Checkpoint c;
  c.write({{"key", "5"}, {"counter", "5"}});
  Variable n("n", 1, 9);
  c.b = Tensor::zeros({9}).contiguous().realize().narrow(0, 0, n.bind(4));
  CHECK_THROWS_AS(load_checkpoint(c.path, c.state), Error);
  CHECK(c.a.to_vector<float>() == std::vector<float>(4, 0));
}

TEST_CASE("tensors get their values one after the other, in the memory that they have") {
  Checkpoint c;
  Tensor half = Tensor::zeros({2}).to(kF16).contiguous().realize();
  c.state.push_back({"half", &half});
  std::vector<size_t> asked;
  assign_in_turn(c.state, [&](size_t i) {
    asked.push_back(i);
    return Tensor::full(to_shape(c.state[i].tensor->shape()), 0.5f + static_cast<float>(i));
  });
  CHECK(asked == std::vector<size_t>{0, 1, 2});
  CHECK(c.b.to_vector<float>() == std::vector<float>(4, 1.5f));
  CHECK(half.dtype() == kF16);
  CHECK(half.to(kF32).to_vector<float>() == std::vector<float>(2, 2.5f));
}

TEST_CASE("a type that tensors lack is named among what does not fit") {
  Checkpoint c;
  stream_safetensors(c.path, {{"a", "F4", {4}, [](const ByteSink& sink) { sink("12"); }}});
  CHECK_THROWS_WITH_AS(
      load(c.path, {{"a", &c.a}}),
      cat("load: ", c.path, " does not fit:\n  dtype: a is F4 in the file").c_str(), Error);
}
