// The same kernels on a GPU and on the emulator of it, one by one and with the same bytes to read:
// that is how the emulator itself is trusted. Results are the same bit for bit where arithmetic is
// exact, else within what contraction and approximations of functions may change. Without a GPU
// only the comparison is tested.
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <iostream>
#include <memory>

#include "codegen/lower.h"
#include "devices/cuda/cuda.h"
#include "runtime/device/buffer.h"
#include "runtime/schedule/schedule.h"
#include "test/devices.h"
#include "test/ops/ops.h"
#include "test/reference.h"
#include "tiny/base/env.h"
#include "tiny/tiny.h"

namespace tiny::ops {
namespace {

using Change = std::function<std::string(std::string text)>;

// Whether the kernel computes with floats in no way that could be rounded otherwise.
bool is_exact(Node kernel) {
  static const OpSet exact =
      op_set(Op::Where, Op::Max, Op::Min, Op::Neg, Op::Cast, Op::Bitcast, Op::Floor, Op::Trunc);
  for (Node n : topological(kernel)) {
    if (n->op == Op::ReduceAxis && n->dtype.is_float()) {
      const Op op = n->arg<ReduceArg>().op;
      if (op != Op::Max && op != Op::Min) return false;
    }
    if (is_elementwise(n->op) && n->dtype.is_float() && !exact.test(static_cast<size_t>(n->op)))
      return false;
  }
  return true;
}

// Two devices, and memory of the same contents on both.
class Pair {
 public:
  Pair(Device& first, Device& second) : first_(first), second_(second) {}
  Pair(const Pair&) = delete;
  ~Pair() {
    for (Value& v : values_) {
      if (v.on_second) second_.free(v.on_second, v.bytes);
      if (v.is_own) first_.free(v.on_first, v.bytes);
    }
  }

  // Runs what computes the tensors, which are on the first device. What differs, in words.
  std::string compare(const Outputs& tensors, double tolerance, const Change& change = {}) {
    std::vector<Node> roots;
    for (const Tensor& t : tensors) roots.push_back(t.node());
    if (roots.empty()) return "";
    const Normalized graph = normalize(roots);
    std::vector<int> devices;
    for (Node b : graph.buffers) {
      devices.push_back(b->device);
      add_input(*b->arg<BufferArg>().buffer);
    }
    const auto made = schedule(graph, devices, device_id("EMULATOR"));
    for (const Step& step : made->steps) {
      if (!step.kernel) return "";  // a copy from the host
      if (std::string why = run(step, tolerance, change); !why.empty()) return why;
    }
    return "";
  }

  int kernels() const { return kernels_; }
  int exact() const { return exact_; }
  const std::string& text() const { return text_; }  // of all kernels

 private:
  struct Value {
    void *on_first = nullptr, *on_second = nullptr;
    size_t bytes = 0;
    DType dtype;
    bool is_own = false;
  };

  void add_input(Buffer& buffer) {
    Value v{buffer.data(), nullptr, static_cast<size_t>(buffer.size()) * buffer.dtype().size(),
            buffer.dtype(), false};
    v.on_second = second_.alloc(v.bytes);
    values_.push_back(v);
    send(v);
  }

  void send(const Value& v) {
    std::string bytes(v.bytes, '\0');
    first_.download(bytes.data(), v.on_first, v.bytes);
    second_.upload(v.on_second, bytes.data(), v.bytes);
  }

  Value& value(const Step& step, Node param) {
    const auto at = static_cast<size_t>(step.values.at(static_cast<size_t>(param->ints()[0])));
    if (values_.size() <= at) values_.resize(at + 1);
    Value& v = values_[at];
    if (v.on_first) return v;
    v.bytes = static_cast<size_t>(numel(param->shape()) * param->dtype.size());
    v.dtype = param->dtype;
    v.is_own = true;
    v.on_first = first_.alloc(v.bytes);
    v.on_second = second_.alloc(v.bytes);
    send(v);
    return v;
  }

  std::string run(const Step& step, double tolerance, const Change& change) {
    std::vector<Node> params;
    for (Node n : topological(step.kernel.get()))
      if (n->is(Op::Param)) value(step, n), params.push_back(n);
    const Lowered low = lower(step.kernel.get(), "k", second_.target());
    text_ += low.source.text;
    std::vector<void*> on_first, on_second;
    for (int v : step.values) {
      on_first.push_back(values_[static_cast<size_t>(v)].on_first);
      on_second.push_back(values_[static_cast<size_t>(v)].on_second);
    }
    launch(first_, low.source, low.launch, on_first);
    Source other = low.source;
    if (change) other.text = change(other.text);
    launch(second_, other, low.launch, on_second);
    ++kernels_;
    const bool exact = tolerance == 0 || is_exact(step.kernel.get());
    exact_ += exact;
    for (Node p : params) {
      const Value& v = value(step, p);
      if (std::string why = difference(v, exact ? 0 : tolerance); !why.empty())
        return cat("kernel ", step.name, ", buffer ", p->ints()[0], ": ", why);
      send(v);  // what comes next reads the same
    }
    return "";
  }

  static void launch(Device& device, const Source& source, const LaunchSize& size,
                     const std::vector<void*>& args) {
    const auto program = device.load(device.compile(source), source.entry);
    device.launch(*program, size, args);
    device.synchronize();
  }

  std::string difference(const Value& v, double tolerance) {
    const Shape shape{static_cast<int64_t>(v.bytes) / v.dtype.size()};
    HostTensor a(v.dtype, shape), b(v.dtype, shape);
    first_.download(a.data.data(), v.on_first, v.bytes);
    second_.download(b.data.data(), v.on_second, v.bytes);
    if (std::memcmp(a.data.data(), b.data.data(), v.bytes) == 0) return "";
    if (!v.dtype.is_float()) {
      const auto x = a.integers(), y = b.integers();
      for (size_t i = 0; i < x.size(); ++i)
        if (x[i] != y[i]) return cat("element ", i, " is ", x[i], " and ", y[i]);
    }
    const auto x = a.numbers(), y = b.numbers();
    for (size_t i = 0; i < x.size(); ++i) {
      if (x[i] == y[i] || (std::isnan(x[i]) && std::isnan(y[i]))) continue;
      if (!(std::abs(x[i] - y[i]) <= tolerance * (1 + std::abs(x[i]))))
        return cat("element ", i, " is ", x[i], " and ", y[i]);
    }
    return "";
  }

  Device &first_, &second_;
  std::vector<Value> values_;
  int kernels_ = 0, exact_ = 0;
  std::string text_;
};

// Small integers: exact in every dtype, in any order.
Tensor integers(const Shape& shape, DType dtype) {
  return (mod(Tensor::arange(0, numel(shape)) * 7, 11) - 5)
      .to(dtype)
      .reshape(shape)
      .to("EMULATOR")
      .realize();
}

// Several times what the tests of operators allow between a device and the reference.
double tolerance_of(DType t, double factor) {
  const double one = t == kF64 ? 1e-11 : t == kF16 ? 1e-3 : t == kBF16 ? 8e-3 : 2e-6;
  return 4 * factor * one;
}

}  // namespace
}  // namespace tiny::ops

using namespace tiny;
using namespace tiny::ops;

// Without a GPU few of them, on the emulator twice.
TEST_CASE("GPU: kernels of the operator cases give there what they give on the emulator") {
  const EnvOverride device("DEVICE", "EMULATOR");
  Device& emulator = find_device("EMULATOR");
  Device& gpu = cuda_available() ? find_device("CUDA") : emulator;
  int kernels = 0, exact = 0;
  const int64_t parts = 4 * parts_on("EMULATOR") * (&gpu == &emulator ? 4 : 1);
  for (const Case& c : all_cases()) {
    if (!is_in_turn(c.name, parts)) continue;
    const Built b = built(c, "EMULATOR");
    const double tolerance = tolerance_of(b.least, c.factor);
    for (const Outputs& of : {b.outputs, b.gradients}) {
      Pair pair(emulator, gpu);
      CHECK_MESSAGE(pair.compare(of, tolerance) == "", c.name);
      kernels += pair.kernels();
      exact += pair.exact();
    }
  }
  std::cout << kernels << " kernels on " << (&gpu == &emulator ? "the emulator" : "the GPU")
            << " and on the emulator, " << exact << " of them bit for bit (part " << today() % parts
            << " of " << parts << ")" << std::endl;
  CHECK(kernels > 0);
}

TEST_CASE("GPU: products of small integers are the same to the bit there and on the emulator") {
  if (!cuda_available()) return;
  const EnvOverride device("DEVICE", "EMULATOR");
  const auto check = [](const Tensor& t, const std::string& instruction) {
    Pair pair(find_device("EMULATOR"), find_device("CUDA"));
    CAPTURE(instruction);
    CHECK(pair.compare({t}, 0) == "");
    CHECK(pair.text().find(instruction) != std::string::npos);
  };
  for (DType t : {kF16, kBF16}) {
    const Tensor a = integers({128, 192}, t), b = integers({192, 256}, t);
    check(a.matmul(b), "wgmma");
    check((a.matmul(b) + integers({256}, t)).relu(), "wgmma");
    check(integers({48, 80}, t).matmul(integers({80, 40}, t)), "mma.sync");
  }
  const EnvOverride allow("ALLOW_TF32", "1");
  check(integers({64, 64}, kF32).matmul(integers({64, 64}, kF32)), "mma.sync");
  check(integers({1024, 256}, kF32).matmul(integers({256, 1024}, kF32)), "cp.async");
  const Tensor x = integers({2, 16, 10, 10}, kF32), w = integers({32, 16, 3, 3}, kF32);
  check(conv2d(x, w, Tensor(), {.padding = 1}), "mma.sync");
}

TEST_CASE("GPU: what differs between two devices is found, where arithmetic is exact to the bit") {
  const EnvOverride device("DEVICE", "EMULATOR");
  Device& emulator = find_device("EMULATOR");
  const auto changed = [](const std::string& from, const std::string& to) {
    return [=](std::string text) {
      const size_t at = text.rfind(from);
      REQUIRE(at != std::string::npos);
      return text.replace(at, from.size(), to);
    };
  };
  const auto compare = [&](const Tensor& t, double tolerance, const Change& change) {
    Pair pair(emulator, emulator);
    return pair.compare({t}, tolerance, change);
  };
  const Tensor x = integers({64}, kF32);
  CHECK(compare(x * 2 + 1, 1e-6, {}) == "");
  CHECK(compare(x * 2 + 1, 1e-6, changed("2.0f", "2.00001f")).find("element ") !=
        std::string::npos);
  CHECK(compare(x * 2 + 1, 1e-3, changed("2.0f", "2.00001f")) == "");
  // A maximum is exact, whatever is tolerated elsewhere.
  CHECK(
      compare(maximum(x, 0.25), 1e-3, changed("0.25f", "0.25001f")).find(" is 0.25 and 0.25001") !=
      std::string::npos);
}
