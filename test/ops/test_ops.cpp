// Runs the table of operator cases on every device and compares it with the reference evaluator.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iostream>
#include <set>

#include "test/devices.h"
#include "test/ops/ops.h"
#include "test/reference.h"

namespace tiny::ops {

namespace {

// Splitmix64 (G. Steele, D. Lea, C. Flood, OOPSLA 2014).
class Generator {
 public:
  explicit Generator(const std::string& seed) {
    for (char c : seed) state_ = (state_ ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
  }
  double uniform() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return static_cast<double>((z ^ (z >> 31)) >> 11) * 0x1p-53;
  }

 private:
  uint64_t state_ = 0xcbf29ce484222325ull;
};

template <class T> Tensor filled(const Input& in, Generator& random, const std::string& device) {
  std::vector<T> values;
  const bool whole = !in.dtype.is_float();
  for (int64_t i = 0, n = numel(in.shape); i < n; ++i) {
    const double u = random.uniform();
    const double v =
        whole ? std::floor(in.low + u * (in.high - in.low + 1)) : in.low + u * (in.high - in.low);
    if constexpr (std::is_arithmetic_v<T>)
      values.push_back(static_cast<T>(v));
    else
      values.push_back(T(static_cast<float>(v)));
  }
  return Tensor::from(values, in.shape, device);
}

Tensor make_input(const Input& in, Generator& random, const std::string& device) {
  switch (in.dtype.scalar) {
    case Scalar::Bool: return filled<bool>(in, random, device);
    case Scalar::I8: return filled<int8_t>(in, random, device);
    case Scalar::I16: return filled<int16_t>(in, random, device);
    case Scalar::I32: return filled<int32_t>(in, random, device);
    case Scalar::I64: return filled<int64_t>(in, random, device);
    case Scalar::U8: return filled<uint8_t>(in, random, device);
    case Scalar::U16: return filled<uint16_t>(in, random, device);
    case Scalar::U32: return filled<uint32_t>(in, random, device);
    case Scalar::U64: return filled<uint64_t>(in, random, device);
    case Scalar::F16: return filled<Half>(in, random, device);
    case Scalar::BF16: return filled<BFloat16>(in, random, device);
    case Scalar::F64: return filled<double>(in, random, device);
    default: return filled<float>(in, random, device);
  }
}

double tolerance_of(DType t) {
  if (t == kF64) return 1e-11;
  if (t == kF16) return 1e-3;
  return t == kBF16 ? 8e-3 : 2e-6;
}

void note_dtype(Built& b, DType t) {
  if (t.is_float() && tolerance_of(t) > tolerance_of(b.least)) b.least = t;
}

// Sum over the outputs of y * r with a fixed random r, differentiated by every input that wants it.
void add_gradients(Built& b, Generator& random, const std::string& device) {
  std::vector<Tensor> wanted;
  for (const Tensor& x : b.inputs)
    if (x.requires_grad()) wanted.push_back(x);
  Tensor loss;
  for (const Tensor& y : b.outputs) {
    if (!y.requires_grad()) continue;
    const Tensor r = make_input({to_shape(y.shape()), y.dtype(), -1, 1}, random, device);
    const Tensor part = (y * r).to(kF64).sum();
    loss = loss.defined() ? loss + part : part;
  }
  if (loss.defined()) b.gradients = Tensor::gradient(loss, wanted);
}

std::vector<HostTensor> expected(const Outputs& tensors, OpSet& seen) {
  std::vector<Node> roots;
  for (const Tensor& t : tensors) roots.push_back(t.node());
  for (Node n : topological(roots)) seen.set(static_cast<size_t>(n->op));
  return evaluate(roots);
}

bool is_close(double a, double e, double tolerance) {
  if (std::isnan(e) || std::isnan(a)) return std::isnan(e) && std::isnan(a);
  if (a == e) return true;
  return std::isfinite(e) && std::abs(a - e) <= tolerance * (1 + std::abs(e));
}

std::string difference(const std::string& what, const Tensor& found, const HostTensor& wanted,
                       double tolerance) {
  if (found.dtype() != wanted.dtype || !same(found.shape(), wanted.shape))
    return cat(what, ": ", found.dtype(), to_text(found.shape()), " and not ", wanted.dtype,
               to_text(wanted.shape));
  HostTensor host(wanted.dtype, wanted.shape);
  found.to_bytes(host.data.data());
  if (!wanted.dtype.is_float()) {
    const auto a = host.integers(), e = wanted.integers();
    for (size_t i = 0; i < e.size(); ++i)
      if (a[i] != e[i]) return cat(what, "[", i, "] is ", a[i], " and not ", e[i]);
    return "";
  }
  const auto a = host.numbers(), e = wanted.numbers();
  for (size_t i = 0; i < e.size(); ++i)
    if (!is_close(a[i], e[i], tolerance))
      return cat(what, "[", i, "] is ", a[i], " and not ", e[i]);
  return "";
}

std::string difference(const std::string& what, Outputs& found,
                       const std::vector<HostTensor>& wanted, double tolerance) {
  std::vector<Tensor*> all;
  for (Tensor& t : found) all.push_back(&t);
  Tensor::realize(all);
  for (size_t i = 0; i < found.size(); ++i) {
    const std::string text = difference(cat(what, " ", i), found[i], wanted[i], tolerance);
    if (!text.empty()) return text;
  }
  return "";
}

// Whether a case runs on a device today; says once which part of an emulator's it is.
bool is_in_turn_on(const std::string& device, const Case& c) {
  static std::set<std::string> said;
  const int64_t parts = parts_on(device);
  if (parts > 1 && said.insert(device).second)
    std::cout << "operator cases on " << device << ": part " << today() % parts << " of " << parts
              << std::endl;
  return is_in_turn(c.name, parts);
}

void run(const Cases& cases) {
  OpSet seen;
  const TestPart part = test_part();
  std::vector<std::string> devices = test_devices();
  if (part.count > 1 && !env_text("DEVICE").empty()) devices = {devices.back()};
  for (const std::string& device : devices)
    for (const Case& c : cases) {
      if (!part.has(c.name) || !is_in_turn_on(device, c)) continue;
      const std::string problem = problem_of(c, device, seen);
      CHECK_MESSAGE(problem == "", device, ", ", c.name, ": ", problem);
    }
}

}  // namespace

Built built(const Case& c, const std::string& device) {
  Built b;
  Generator random(c.name);
  for (const Input& in : c.inputs) {
    b.inputs.push_back(make_input(in, random, device));
    if (in.dtype.is_float()) b.inputs.back().requires_grad_();
    note_dtype(b, in.dtype);
  }
  b.outputs = c.build(b.inputs);
  for (const Tensor& y : b.outputs) note_dtype(b, y.dtype());
  add_gradients(b, random, device);
  return b;
}

Cases all_cases() {
  Cases out;
  for (const auto& table :
       {unary_cases, binary_cases, integer_cases, cast_cases, movement_cases, reduce_cases,
        scan_cases, index_cases, matmul_cases, conv_cases, pool_cases, norm_cases, loss_cases})
    for (Case& c : table()) out.push_back(std::move(c));
  return out;
}

std::string problem_of(const Case& c, const std::string& device, OpSet& seen) {
  try {
    Built b = built(c, device);
    const auto values = expected(b.outputs, seen), gradients = expected(b.gradients, seen);
    const double tolerance = c.factor * tolerance_of(b.least);
    const std::string text = difference("output", b.outputs, values, tolerance);
    return text.empty() ? difference("gradient", b.gradients, gradients, tolerance) : text;
  } catch (const std::exception& e) {
    return e.what();
  }
}

}  // namespace tiny::ops

using namespace tiny;
using namespace tiny::ops;

TEST_CASE("unary operators agree with the reference evaluator") { run(unary_cases()); }
TEST_CASE("binary operators agree with the reference evaluator") { run(binary_cases()); }
TEST_CASE("integer operators agree with the reference evaluator") { run(integer_cases()); }
TEST_CASE("casts agree with the reference evaluator") { run(cast_cases()); }
TEST_CASE("movement agrees with the reference evaluator") { run(movement_cases()); }
TEST_CASE("reductions agree with the reference evaluator") { run(reduce_cases()); }
TEST_CASE("scans and sorts agree with the reference evaluator") { run(scan_cases()); }
TEST_CASE("indexing agrees with the reference evaluator") { run(index_cases()); }
TEST_CASE("matrix products agree with the reference evaluator") { run(matmul_cases()); }
TEST_CASE("convolutions agree with the reference evaluator") { run(conv_cases()); }
TEST_CASE("pools agree with the reference evaluator") { run(pool_cases()); }
TEST_CASE("normalisations and cells agree with the reference evaluator") { run(norm_cases()); }
TEST_CASE("losses agree with the reference evaluator") { run(loss_cases()); }

TEST_CASE("a wrong value, gradient or dtype in a case is found") {
  OpSet seen;
  int calls = 0;
  const auto at = [&](auto build) { return problem_of({"wrong", {{{2}}}, build}, "CPU", seen); };
  CHECK(at([](const Inputs& in) { return Outputs{in[0] * 2}; }) == "");
  CHECK(at([&](const Inputs&) -> Outputs { throw Error(cat("call ", ++calls)); }) == "call 1");
  CHECK_FALSE(is_close(1.0, 1.1, 1e-3));
  CHECK_FALSE(is_close(1.0, NAN, 1e-3));
  CHECK_FALSE(is_close(INFINITY, 1, 1e-3));
  CHECK(is_close(NAN, NAN, 0));
}

TEST_CASE("the table of cases covers every operation of tensor graphs") {
  OpSet seen;
  for (const auto& table : {unary_cases(), binary_cases(), integer_cases(), cast_cases(),
                            movement_cases(), reduce_cases(), index_cases()})
    for (const Case& c : table) {
      const Built b = built(c, "CPU");
      for (const Outputs* outputs : {&b.outputs, &b.gradients})
        for (const Tensor& t : *outputs)
          for (Node n : topological(t.node())) seen.set(static_cast<size_t>(n->op));
    }
  // Copies need a second device, Variables are in test_variable.cpp, a gradient that is written
  // down is attention's (ops_nn.cpp); the others belong to kernels or to the end of a graph.
  const OpSet elsewhere =
      op_set(Op::Param, Op::Range, Op::Copy, Op::Shard, Op::Multi, Op::Sink, Op::Bound, Op::Limit,
             Op::Whole, Op::MulAdd, Op::Exp, Op::CustomGradient);
  for (int i = 0; i < kOps; ++i) {
    const Op op = static_cast<Op>(i);
    if (info(op).cls >= OpClass::Kernel || elsewhere.test(static_cast<size_t>(i))) continue;
    CHECK_MESSAGE(seen.test(static_cast<size_t>(i)), "no case uses ", std::string(info(op).name));
  }
}
