// Texts of tensors beside those that PyTorch 1.13 printed, but for its names of dtypes.
#include "tiny/tensor/print.h"

#include <doctest/doctest.h>

#include <cmath>
#include <sstream>

#include "test/error_of.h"
#include "tiny/run/jit.h"
#include "tiny/tensor/variable.h"

using namespace tiny;

namespace {

constexpr float kInf = INFINITY, kNan = NAN;

Tensor floats(const std::vector<float>& values) { return Tensor::from(values); }
Tensor counted(const Shape& shape) { return Tensor::arange(numel(shape)).reshape(shape); }

}  // namespace

TEST_CASE("floats are printed with four digits, whole ones with a point alone") {
  CHECK(to_string(floats({1, 2.5, -3.25})) == "tensor([ 1.0000,  2.5000, -3.2500])");
  CHECK(to_string(floats({1, 2, -30})) == "tensor([  1.,   2., -30.])");
  CHECK(to_string(floats({0, 0})) == "tensor([0., 0.])");
  CHECK(to_string(Tensor(3.5f)) == "tensor(3.5000)");
  CHECK(to_string(Tensor(7.0f)) == "tensor(7.)");
}

TEST_CASE("floats of very different or extreme magnitudes are printed scientifically") {
  CHECK(to_string(floats({1, 20000})) == "tensor([1.0000e+00, 2.0000e+04])");
  CHECK(to_string(floats({1, 1000})) == "tensor([   1., 1000.])");
  CHECK(to_string(floats({0.5, 20000, -1e-3})) ==
        "tensor([ 5.0000e-01,  2.0000e+04, -1.0000e-03])");
  CHECK(to_string(floats({1e-5, 2e-5})) == "tensor([1.0000e-05, 2.0000e-05])");
  CHECK(to_string(floats({1e9, 2e9})) == "tensor([1.0000e+09, 2.0000e+09])");
}

TEST_CASE("infinities and NaN have no point, and leave the width to the others") {
  CHECK(to_string(floats({1, kInf, -kInf, kNan})) == "tensor([1., inf, -inf, nan])");
  CHECK(to_string(floats({1.5, kInf, -kInf, kNan, 0})) ==
        "tensor([1.5000,    inf,   -inf,    nan, 0.0000])");
  CHECK(to_string(floats({0, -0.0f, kNan, kInf})) == "tensor([0., -0., nan, inf])");
  CHECK(to_string(floats({1e-10, kInf, kNan, 0})) ==
        "tensor([1.0000e-10,        inf,        nan, 0.0000e+00])");
  CHECK(to_string(floats({1, kInf, 1e5, 3}).reshape({2, 2})) ==
        "tensor([[1.0000e+00,        inf],\n"
        "        [1.0000e+05, 3.0000e+00]])");
}

TEST_CASE("integers and bools are printed at one width") {
  CHECK(to_string(Tensor::from({1, -200, 3, 4}, {2, 2}).to(kI64)) ==
        "tensor([[   1, -200],\n        [   3,    4]])");
  CHECK(to_string(Tensor::from({1, 0}).to(kBool)) == "tensor([ True, False])");
  CHECK(to_string(Tensor(true)) == "tensor(True)");
  CHECK(to_string(Tensor(3)) == "tensor(3)");
  CHECK(to_string(Tensor::from({UINT64_MAX})) == "tensor([18446744073709551615], dtype=u64)");
}

TEST_CASE("tensors without elements say their size and dtype") {
  CHECK(to_string(Tensor::zeros({0})) == "tensor([])");
  CHECK(to_string(Tensor::zeros({0, 3})) == "tensor([], size=(0, 3))");
  CHECK(to_string(Tensor::zeros({0}, kI64)) == "tensor([], dtype=i64)");
  CHECK(to_string(Tensor::zeros({3, 2, 0}, kF16).requires_grad_()) ==
        "tensor([], size=(3, 2, 0), dtype=f16, requires_grad=True)");
  CHECK(to_string(Tensor()) == "undefined");
}

TEST_CASE("axes are brackets, with an empty line more for each") {
  CHECK(to_string(counted({1, 2, 3})) == "tensor([[[0, 1, 2],\n         [3, 4, 5]]])");
  CHECK(to_string(Tensor::zeros({2, 2, 1, 2})) ==
        "tensor([[[[0., 0.]],\n\n         [[0., 0.]]],\n\n\n"
        "        [[[0., 0.]],\n\n         [[0., 0.]]]])");
}

TEST_CASE("rows are broken after 80 columns") {
  CHECK(to_string(counted({40})) ==
        "tensor([ 0,  1,  2,  3,  4,  5,  6,  7,  8,  9, 10, 11, 12, 13, 14, 15, 16, 17,\n"
        "        18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35,\n"
        "        36, 37, 38, 39])");
  CHECK(to_string(counted({16}) * 1.25) ==
        "tensor([ 0.0000,  1.2500,  2.5000,  3.7500,  5.0000,  6.2500,  7.5000,  8.7500,\n"
        "        10.0000, 11.2500, 12.5000, 13.7500, 15.0000, 16.2500, 17.5000, 18.7500])");
}

TEST_CASE("of more than 1000 elements the first and last three of each axis are printed") {
  CHECK(to_string(counted({1000})).size() > 4000);
  CHECK(to_string(counted({1001})) == "tensor([   0,    1,    2,  ...,  998,  999, 1000])");
  CHECK(to_string(counted({60, 40})) ==
        "tensor([[   0,    1,    2,  ...,   37,   38,   39],\n"
        "        [  40,   41,   42,  ...,   77,   78,   79],\n"
        "        [  80,   81,   82,  ...,  117,  118,  119],\n"
        "        ...,\n"
        "        [2280, 2281, 2282,  ..., 2317, 2318, 2319],\n"
        "        [2320, 2321, 2322,  ..., 2357, 2358, 2359],\n"
        "        [2360, 2361, 2362,  ..., 2397, 2398, 2399]])");
  CHECK(to_string(counted({2, 1000}) * 1.5) ==
        "tensor([[0.0000e+00, 1.5000e+00, 3.0000e+00,  ..., 1.4955e+03, 1.4970e+03,\n"
        "         1.4985e+03],\n"
        "        [1.5000e+03, 1.5015e+03, 1.5030e+03,  ..., 2.9955e+03, 2.9970e+03,\n"
        "         2.9985e+03]])");
  CHECK(to_string(counted({7, 2, 100}))
            .starts_with("tensor([[[   0,    1,    2,  ...,   97,   98,   99],\n"
                         "         [ 100,  101,  102,  ...,  197,  198,  199]],\n\n"
                         "        [[ 200,"));
  CHECK(has(to_string(counted({7, 2, 100})), "599]],\n\n        ...,\n\n        [[ 800,"));
}

TEST_CASE("the width is that of what is printed, not of what is left out") {
  const Tensor x = where(counted({2000}) == 1000, 123456789, mod(counted({2000}), 5));
  CHECK(to_string(x) == "tensor([0, 1, 2,  ..., 2, 3, 4])");
}

TEST_CASE("dtypes that are not usual, gradients and devices stand behind the values") {
  CHECK(to_string(Tensor::from({1.5f, 2.25f}).to(kF16)) == "tensor([1.5000, 2.2500], dtype=f16)");
  CHECK(to_string(Tensor::from({1.5, 2.25})) == "tensor([1.5000, 2.2500], dtype=f64)");
  CHECK(to_string(Tensor::from({1, 2}).to(kU8)) == "tensor([1, 2], dtype=u8)");
  CHECK(to_string(Tensor::from({1.5f}).requires_grad_()) == "tensor([1.5000], requires_grad=True)");
  CHECK(to_string(Tensor::from({1}).to("CPU:1")) == "tensor([1], device='CPU:1', dtype=i32)");
  // PyTorch's last line of values has room for the first suffix here, not for the second.
  Tensor x = (counted({21}).to(kF64) * 1.37 - 3).to(kF64).requires_grad_();
  CHECK(to_string(x).ends_with("24.4000], dtype=f64,\n       requires_grad=True)"));
  x = (counted({24}) * 1.37 - 3).requires_grad_();
  CHECK(to_string(x).ends_with("28.5100],\n       requires_grad=True)"));
}

TEST_CASE("precision, threshold, edges and width are options") {
  const PrintOptions options{.precision = 2, .threshold = 10, .edge_items = 2, .line_width = 40};
  CHECK(to_string(counted({3, 10}) / 7, options) ==
        "tensor([[0.00, 0.14,  ..., 1.14, 1.29],\n"
        "        [1.43, 1.57,  ..., 2.57, 2.71],\n"
        "        [2.86, 3.00,  ..., 4.00, 4.14]])");
  CHECK(to_string(Tensor(2.0f), {.is_scientific = true}) == "tensor(2.0000e+00)");
  CHECK(has(error_of([] { to_string(Tensor(1), {.edge_items = 0}); }), "0 edge items"));
}

TEST_CASE("a tensor goes into a stream, lazy or as long as a Variable says") {
  std::ostringstream out;
  out << Tensor::arange(3) + 1;
  CHECK(out.str() == "tensor([1, 2, 3])");
  Variable n("n", 1, 8);
  CHECK(to_string(counted({8}).contiguous().narrow(0, 0, n.bind(3))) == "tensor([0, 1, 2])");
}
