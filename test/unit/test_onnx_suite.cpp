// The ONNX standard's own test data (Debian's libonnx-testdata): each case is a model with inputs
// and the outputs that it must give.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <map>

#include "tiny/base/env.h"
#include "tiny/onnx/call/host_values.h"
#include "tiny/onnx/module.h"

using namespace tiny;
namespace fs = std::filesystem;

namespace {

std::string data_folder() {
  const char* folder = std::getenv("ONNX_TESTDATA");
  return folder != nullptr ? folder : "/usr/share/libonnx-testdata/data";
}

// Why a case is none that passes. `is_demanded`: of the default domain's operators on tensors.
struct Reason {
  const char* text;
  bool is_demanded;
};
const Reason kSequences{"sequences, optional values: refused", false};
const Reason kTraining{"domain ai.onnx.preview.training", false};
const Reason kStrings{"tensors of strings", true};
const Reason kRandom{"random numbers of NumPy: shapes alone are compared", true};

// Names of cases, or with a star what they begin with.
const std::vector<std::pair<const char*, const Reason*>> kExceptions = {
    {"test_adagrad*", &kTraining},
    {"test_adam*", &kTraining},
    {"test_gradient_of_add*", &kTraining},
    {"test_momentum*", &kTraining},
    {"test_nesterov_momentum", &kTraining},
    {"test_identity_opt", &kSequences},
    {"test_identity_sequence", &kSequences},
    {"test_if_opt", &kSequences},
    {"test_if_seq", &kSequences},
    {"test_loop13_seq", &kSequences},
    {"test_loop16_seq_none", &kSequences},
    {"test_optional_*", &kSequences},
    {"test_sequence_*", &kSequences},
    {"test_cast_FLOAT_to_STRING", &kStrings},
    {"test_cast_STRING_to_FLOAT", &kStrings},
    {"test_castlike_FLOAT_to_STRING*", &kStrings},
    {"test_castlike_STRING_to_FLOAT*", &kStrings},
    {"test_strnorm*", &kStrings},
    {"test_bernoulli*", &kRandom},
    {"test_training_dropout", &kRandom},
    {"test_training_dropout_default", &kRandom},
    {"test_training_dropout_default_mask", &kRandom},
    {"test_training_dropout_mask", &kRandom},
};

const Reason* exception_of(const std::string& name) {
  for (const auto& [pattern, reason] : kExceptions) {
    const std::string p = pattern;
    const bool fits = p.ends_with("*") ? name.starts_with(p.substr(0, p.size() - 1)) : name == p;
    if (fits) return reason;
  }
  return nullptr;
}

onnx::HostArray read_array(const fs::path& path, DType wanted) {
  const MappedFile file("onnx", path.string());
  const onnx::TensorData data = onnx::read_tensor_data(file);
  DType dtype = onnx::dtype_of_type(data.type).value();
  if (wanted == kBF16 && dtype == kU16) dtype = kBF16;  // the data has bits where NumPy has no type
  return onnx::host_array(onnx::element_bytes(data, "").data(), dtype, data.dims);
}

Tensor read_input(const fs::path& path, const onnx::Port& port) {
  const MappedFile file("onnx", path.string());
  const onnx::TensorData data = onnx::read_tensor_data(file);
  const Tensor x = Tensor::from_bytes(onnx::element_bytes(data, "").data(),
                                      onnx::dtype_of_type(data.type).value(), data.dims);
  const Tensor typed = port.dtype == kBF16 && x.dtype() == kU16 ? x.bitcast(kBF16) : x;
  // CastLike asks for a dtype alone: of that input the data have one element.
  if (port.name != "like" || x.numel() != 1) return typed;
  Shape shape;
  for (const onnx::Dimension& d : *port.shape) shape.push_back(d.value);
  return typed.expand(shape);
}

// The tolerance of the standard's own runner; bf16 are cut in its data, where they are rounded
// here.
bool is_close(double got, double expected, DType dtype) {
  const double relative = dtype == kBF16 ? 0x1p-7 : 1e-3;
  return got == expected || (std::isnan(got) && std::isnan(expected)) ||
         std::abs(got - expected) <= 1e-7 + relative * std::abs(expected);
}

// What differs; empty where nothing does. `with_values`: not of random numbers.
std::string difference(const Tensor& got, const onnx::HostArray& expected, bool with_values) {
  if (got.dtype() != expected.dtype)
    return cat("dtype ", got.dtype(), ", expected ", expected.dtype);
  if (!same(got.shape(), expected.shape))
    return cat("shape ", to_text(got.shape()), ", expected ", to_text(expected.shape));
  if (!with_values) return "";
  std::vector<std::byte> bytes(static_cast<size_t>(got.numel() * got.dtype().size()));
  got.to_bytes(bytes.data());
  const auto values = onnx::host_array(bytes.data(), got.dtype(), expected.shape);
  for (size_t i = 0; i < expected.size(); ++i) {
    const bool fits = got.dtype().is_float()
                          ? is_close(values.reals[i], expected.reals[i], got.dtype())
                          : values.integers[i] == expected.integers[i];
    if (fits) continue;
    if (!got.dtype().is_float())
      return cat("element ", i, " is ", values.integers[i], ", expected ", expected.integers[i]);
    return cat("element ", i, " is ", values.reals[i], ", expected ", expected.reals[i]);
  }
  return "";
}

std::string run_set(onnx::Module& model, const fs::path& set, bool with_values) {
  const auto file = [&](const char* kind, size_t i) { return set / cat(kind, "_", i, ".pb"); };
  std::vector<Tensor> inputs;
  for (size_t i = 0; i < model.inputs().size(); ++i)
    inputs.push_back(read_input(file("input", i), model.inputs()[i]));
  std::vector<Tensor> outputs = model.run(inputs);
  std::vector<Tensor*> all;
  for (Tensor& t : outputs) all.push_back(&t);
  Tensor::realize(all);
  for (size_t i = 0; i < outputs.size(); ++i) {
    const std::string text =
        difference(outputs[i], read_array(file("output", i), outputs[i].dtype()), with_values);
    if (!text.empty()) return cat("output ", i, ": ", text);
  }
  return "";
}

// Why a case fails; empty where it passes.
std::string run_case(const fs::path& folder, bool with_values) {
  try {
    onnx::Module model = onnx::load((folder / "model.onnx").string());
    for (int i = 0;; ++i) {
      const fs::path set = folder / cat("test_data_set_", i);
      if (!fs::exists(set)) return i > 0 ? "" : "there are no data";
      if (std::string text = run_set(model, set, with_values); !text.empty()) return text;
    }
  } catch (const Error& e) {
    return e.what();
  }
}

struct Counts {
  int passed = 0, failed = 0;
  std::map<const char*, int> excepted;
};

std::vector<fs::path> cases_of(const std::string& suite) {
  std::vector<fs::path> out;
  for (const auto& entry : fs::directory_iterator(data_folder() + "/" + suite))
    out.push_back(entry.path());
  std::sort(out.begin(), out.end());
  return out;
}

void run_suite(const std::string& suite, Counts& counts) {
  for (const fs::path& folder : cases_of(suite)) {
    const std::string name = folder.filename().string();
    const Reason* exception = exception_of(name);
    const std::string failure = run_case(folder, exception != &kRandom);
    INFO(suite, "/", name, ": ", failure);
    if (exception == nullptr) {
      CHECK(failure.empty());
      ++(failure.empty() ? counts.passed : counts.failed);
      continue;
    }
    ++counts.excepted[exception->text];
    // An exception that passes is none.
    CHECK(failure.empty() == (exception == &kRandom));
    CHECK(failure.find("Bug") == std::string::npos);
  }
}

}  // namespace

TEST_CASE("the ONNX standard's test data give the outputs that they come with") {
  if (!fs::exists(data_folder())) {
    std::cout << "no " << data_folder() << " (package libonnx-testdata): the standard's own cases "
              << "of ONNX are left out\n";
    return;
  }
  // Of a thousand kernels that each run once the code is made in the least time.
  const EnvOverride cheap("OPT", "0");
  int demanded = 0, excepted = 0;
  for (const char* suite : {"node", "pytorch-converted", "pytorch-operator", "simple"}) {
    Counts counts;
    run_suite(suite, counts);
    std::cout << "onnx " << suite << ": " << counts.passed << " passed, " << counts.failed
              << " failed";
    demanded += counts.passed + counts.failed;
    for (const auto& [reason, count] : counts.excepted) {
      std::cout << "; " << count << " " << reason;
      const bool counts_here = reason == kStrings.text || reason == kRandom.text;
      demanded += counts_here ? count : 0;
      excepted += counts_here ? count : 0;
    }
    std::cout << '\n';
  }
  CHECK(excepted * 100 <= demanded * 3);
}
