// Tensor: what users compute with. A Tensor is a value that refers to a node of a lazy graph; every
// function gives a new Tensor and runs nothing until realize(), item() or to_vector() asks for
// values. Names and semantics are PyTorch's unless a comment says otherwise.
//
//   Tensor x = Tensor::from({1.0f, 2.0f, 3.0f, 4.0f}, {2, 2}).requires_grad_();
//   Tensor y = (x.matmul(x) + 1).relu().sum(1);                          // (2), not computed yet
//   y.sum().backward();
//   std::vector<float> values = y.to_vector<float>(), slopes = x.grad().to_vector<float>();
//
// Rules that hold throughout, not repeated below:
// - dim arguments count from the end where negative; one that is out of range throws Error;
// - binary operations broadcast and promote as PyTorch does: bool < integers < floats, a 0-d tensor
//   and a number only matter by their kind (tiny/ir/dtype.h: promote);
// - functions of real numbers (exp, sqrt, sigmoid, ...) give f32 for bool and integers; what sums
//   in f16 or bf16 accumulates in f32;
// - results have the shape and the dtype of the operand where nothing else is said;
// - everything is differentiable where its values are floats, except where a comment says so;
// - shapes, dtypes and axes that cannot work throw Error, before anything is computed, and leave
//   their operands valid; so do more than 2^62 elements and 32 axes. What takes more memory than
//   there is may be made, and a part of it computed. Two operands on different devices are among
//   these: to() moves one.
#pragma once
#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tiny/base/error.h"
#include "tiny/ir/dtype.h"
#include "tiny/ir/node.h"
#include "tiny/ir/shape.h"
#include "tiny/tensor/arguments.h"

namespace tiny {

class Index;
class Tensor;
class Variable;  // variable.h
struct WithIndices;
struct GradSlot;  // tensor.cpp: where backward() leaves a gradient
namespace runtime_seam {
void replace_node(Tensor& tensor, Node node);
}

class Tensor {
 public:
  Tensor() = default;  // no tensor at all: what is asked of it, save defined(), is an Error
  explicit Tensor(Node node);
  Tensor(const Tensor&);
  Tensor(Tensor&&) noexcept = default;
  Tensor& operator=(const Tensor&);
  Tensor& operator=(Tensor&&) noexcept;
  ~Tensor();
  // A 0-d tensor: bool, i64 or f32 by the kind of the number.
  template <class T>
  requires std::is_arithmetic_v<T>
  explicit Tensor(T value) : Tensor(full({}, value)) {}

  bool defined() const { return static_cast<bool>(node_); }
  Node node() const {
    if (!node_) throw_undefined();
    return node_.get();
  }
  DType dtype() const { return node()->dtype; }
  // Error where an axis holds as many elements as a Variable says (variable.h).
  Ints shape() const {
    if (node()->lengths) throw_without_shape();
    return node_->shape();
  }
  int rank() const { return node()->rank; }
  int64_t size(int64_t dim) const;
  int64_t numel() const { return tiny::numel(shape()); }
  // The shape, with its bound for an axis whose length is a Variable.
  Ints capacity() const { return node()->shape(); }
  // The shape that the values on the host have, read from there: Error while a Jit captures.
  Shape current_shape() const;
  std::string device() const;  // "" where any device will do (constants)

  // --- Making tensors --------------------------------------------------------------------------
  // Those that only compute their values live on no device until they meet a tensor that does.

  // Copies host values. Without a shape: 1-d. Throws Error unless the counts agree.
  template <class T>
  static Tensor from(std::span<const T> values, const Shape& shape, const std::string& device = "");
  template <class T>
  static Tensor from(const std::vector<T>& values, const Shape& shape,
                     const std::string& device = "");
  template <class T> static Tensor from(const std::vector<T>& values) {
    return from(values, {static_cast<int64_t>(values.size())});
  }
  template <class T> static Tensor from(std::initializer_list<T> values) {
    return from(std::vector<T>(values));
  }
  template <class T> static Tensor from(std::initializer_list<T> values, const Shape& shape) {
    return from(std::vector<T>(values), shape);
  }
  // The same from raw memory: numel(shape) elements of the dtype, row-major.
  static Tensor from_bytes(const void* data, DType dtype, const Shape& shape,
                           const std::string& device = "");

  // Without a dtype: bool, i64 or f32 by the kind of the value. Error for a float as an integer.
  static Tensor full(const Shape& shape, Number value);
  static Tensor full(const Shape& shape, Number value, DType dtype);
  static Tensor zeros(const Shape& shape, DType dtype = kF32);
  static Tensor ones(const Shape& shape, DType dtype = kF32);
  // start, start + step, ... below stop (above, where step is negative): 1-d, without a dtype i64
  // if all three are integers, else f32. Error for step 0.
  static Tensor arange(Number start, Number stop, Number step = 1, std::optional<DType> dtype = {});
  static Tensor arange(int64_t stop) { return arange(0, stop); }
  // `steps` numbers from start to stop, both included.
  static Tensor linspace(double start, double stop, int64_t steps, DType dtype = kF32);
  // (n, m), by default (n, n): 1 where the positions are equal, else 0.
  static Tensor eye(int64_t n, std::optional<int64_t> m = {}, DType dtype = kF32);
  Tensor full_like(Number value) const;
  Tensor zeros_like() const { return full_like(0); }
  Tensor ones_like() const { return full_like(1); }

  // --- Random tensors (tiny/tensor/random.h: the generator, manual_seed) -------------------------
  // The same seed gives the same bits on every device and for every number of threads. Float dtypes
  // but for randint. No gradient.

  static Tensor rand(const Shape& shape, DType dtype = kF32);   // uniform in [0, 1)
  static Tensor randn(const Shape& shape, DType dtype = kF32);  // normal, mean 0, variance 1
  // Integers in [low, high). Error where there are none.
  static Tensor randint(int64_t low, int64_t high, const Shape& shape, DType dtype = kI64);
  static Tensor uniform(const Shape& shape, double low, double high, DType dtype = kF32);
  static Tensor normal(const Shape& shape, double mean, double std, DType dtype = kF32);
  static Tensor randperm(int64_t n);  // i64 (n): 0 .. n-1 in random order
  Tensor bernoulli() const;           // floats: 1 with the probability x, else 0
  // x (n) or (m, n): weights >= 0 of n classes, not all 0; i64 (count) or (m, count). Error for
  // more classes than there are, without replacement.
  Tensor multinomial(int64_t count, bool replacement = false) const;
  // Uniform in +-sqrt(6 / ((1 + a^2) in)), K. He et al. (2015), and in +-sqrt(6 / (in + out)),
  // X. Glorot and Y. Bengio (2010). `in` and `out` count the kernel of a weight (out, in,
  // kernel...); Error for fewer axes than two.
  static Tensor kaiming_uniform(const Shape& shape, double a = 0, DType dtype = kF32);
  static Tensor glorot_uniform(const Shape& shape, DType dtype = kF32);

  // --- Values ----------------------------------------------------------------------------------

  // Computes the values now and keeps them. Several at once share what they have in common.
  Tensor& realize();
  static void realize(std::span<Tensor* const> tensors);
  // Values on the host, row-major. T must be the dtype exactly (bool: also uint8_t); Half and
  // BFloat16 stand for f16 and bf16. Throws Error otherwise, naming both.
  template <class T> std::vector<T> to_vector() const;
  // The value of a tensor of one element, of T exactly.
  template <class T> T item() const;
  // Host bytes of all elements, row-major: those of current_shape().
  void to_bytes(void* out) const;

  // The same values on another device. An unknown name throws when the tensor is realized.
  Tensor to(const std::string& device) const;
  Tensor to(const char* device) const { return to(std::string(device)); }
  Tensor contiguous() const;  // the same values, in memory of their own

  // The same values on several devices at once: cut along an axis into parts as even as can be, or
  // without one a copy on each. Operations on such tensors stay on each device as long as they can,
  // sums over the axis become sums over the devices, and other operands have to be on the same
  // devices (runtime/partition/shard.h says how the parts move). to("CPU") brings all of it to
  // one device; to("CPU,CPU:1") is shard() without an axis. Error for a device that is named twice.
  Tensor shard(const std::vector<std::string>& devices, std::optional<int64_t> axis = {}) const;
  // The same for a tensor in its place, which wants a gradient if it did: a parameter, or what an
  // optimizer keeps.
  Tensor& shard_(const std::vector<std::string>& devices, std::optional<int64_t> axis = {}) &;
  // The axis along which a tensor on several devices is cut, -1 where each has all of it.
  int shard_axis() const;

  // This tensor becomes `value`, in the memory that it has where that is possible. Same shape; the
  // value is cast to this dtype. A tensor is a value: what was made from the old one (copies and
  // views too) keeps it, whether it has been computed or not, and only what is made from now on
  // sees the new one. A tensor whose gradient is wanted stays one, and no gradient flows into
  // `value`; nor does one where a NoGrad lives. A gradient that needs the old value is taken before
  // the new one is computed: later that is an Error, as in PyTorch.
  Tensor& assign(const Tensor& value) &;
  // x[at] = value for the part of this tensor that index(at) gives; the value is cast and
  // broadcasts. Several values for one element are treated as by index_put().
  Tensor& assign(const std::vector<Index>& at, const Operand& value) &;
  // A view is a value as well: assigning to x.narrow(...) would change nothing but a temporary.
  Tensor& assign(const Tensor& value) && = delete;
  Tensor& assign(const std::vector<Index>& at, const Operand& value) && = delete;

  // --- Gradients -------------------------------------------------------------------------------

  Tensor& requires_grad_(bool wanted = true);  // float dtypes; makes this tensor a leaf
  bool requires_grad() const { return node()->needs_grad; }
  Tensor detach() const;  // the same values; no gradient flows through
  // Adds d(this) / d(leaf) to the grad() of every leaf below. `seed`: the gradient of this tensor,
  // by default 1 for a tensor of one element. Throws Error where nothing below wants a gradient.
  void backward(const Tensor& seed = Tensor()) const;
  Tensor grad() const;  // of a leaf: what backward() left; not defined() before that
  void set_grad(const Tensor& grad) const;  // e.g. clipped; Tensor() clears it
  void zero_grad() const { set_grad(Tensor()); }
  // d(loss) / d(input) for each input, zeros where the loss does not depend on it.
  static std::vector<Tensor> gradient(const Tensor& loss, const std::vector<Tensor>& inputs);

  // --- Movement: views, nothing is computed ----------------------------------------------------

  Tensor reshape(const Shape& shape) const;  // as many elements; one size may be -1
  Tensor permute(const Shape& dims) const;   // result axis i is axis dims[i]
  Tensor transpose(int64_t dim0, int64_t dim1) const;
  Tensor t() const;                         // (n, m) to (m, n)
  Tensor expand(const Shape& shape) const;  // new leading axes allowed; -1 keeps a size
  Tensor unsqueeze(int64_t dim) const;
  Tensor squeeze(const Dims& dims = {}) const;  // drops axes of size 1; others stay
  Tensor flatten(int64_t start_dim = 0, int64_t end_dim = -1) const;  // both inclusive
  Tensor unflatten(int64_t dim, const Shape& sizes) const;            // one size may be -1
  // Elements [begin, end) of each axis, all of which lie in it.
  Tensor shrink(const std::vector<std::pair<int64_t, int64_t>>& begin_end) const;
  // x[start:stop:step, ...] as in Python, where bounds that lie outside are no error; one entry per
  // leading axis; steps >= 1.
  Tensor slice(const std::vector<Bound>& starts, const std::vector<Bound>& stops,
               const Shape& steps = {}) const;
  Tensor narrow(int64_t dim, int64_t start, int64_t length) const;  // Error beyond the axis
  Tensor select(int64_t dim, int64_t index) const;                  // drops the axis
  // The same where the length, or the start, is a Variable whose bounds lie in the axis. From a
  // start that is one, elements are gathered: no view.
  Tensor narrow(int64_t dim, int64_t start, const Variable& length) const;
  Tensor narrow(int64_t dim, const Variable& start, int64_t length) const;
  Tensor select(int64_t dim, const Variable& index) const;
  Tensor flip(const Dims& dims = {}) const;
  // The elements (i, i + offset) of two axes, which disappear: a new last axis.
  Tensor diagonal(int64_t offset = 0, int64_t dim1 = 0, int64_t dim2 = 1) const;
  // Windows of `size` elements every `step` along dim, `dilation` apart: a new last axis.
  Tensor unfold(int64_t dim, int64_t size, int64_t step, int64_t dilation = 1) const;

  // --- Movement that joins, repeats or fills ---------------------------------------------------

  // One Padding per axis, first axis first. Cropping comes before the mode extends what is left:
  // Reflect by less than its size, Circular by no more.
  Tensor pad(const std::vector<Padding>& pads, PadMode mode = PadMode::Constant,
             Number value = 0) const;
  // Towards higher indices, one shift for each dim; without dims one of the flattened tensor.
  Tensor roll(const Shape& shifts, const Dims& dims = {}) const;
  Tensor repeat(const Shape& repeats) const;  // tiles; may add leading axes
  // Each element so often in a row (a list: one count per element); without dim of the flattened
  // tensor.
  Tensor repeat_interleave(int64_t repeats, std::optional<int64_t> dim = {}) const;
  Tensor repeat_interleave(const Shape& repeats, std::optional<int64_t> dim = {}) const;
  static Tensor cat(const std::vector<Tensor>& parts, int64_t dim = 0);    // dtypes promote
  static Tensor stack(const std::vector<Tensor>& parts, int64_t dim = 0);  // along a new axis
  std::vector<Tensor> split(const Shape& sizes, int64_t dim = 0) const;    // sizes add up to it
  std::vector<Tensor> split(int64_t size, int64_t dim = 0) const;  // the last may be smaller
  std::vector<Tensor> chunk(int64_t chunks, int64_t dim = 0) const;
  Tensor tril(int64_t diagonal = 0) const;  // zero above the diagonal of the last two axes
  Tensor triu(int64_t diagonal = 0) const;

  // --- Element-wise, one operand ---------------------------------------------------------------

  Tensor to(DType dtype) const;       // nearest even; to integers: to zero, saturated, NaN 0
  Tensor bitcast(DType dtype) const;  // the same bits; Error unless of the same size. No gradient
  Tensor f8_encode(Float8 format) const;  // u8 bit patterns, rounded to nearest even
  Tensor f8_decode(Float8 format) const;  // u8 bit patterns to f32

  Tensor neg() const;
  Tensor abs() const;   // gradient 0 at 0
  Tensor sign() const;  // no gradient, as all roundings
  Tensor floor() const;
  Tensor ceil() const;
  Tensor round() const;  // ties to even
  Tensor trunc() const;
  Tensor square() const;
  Tensor sqrt() const;
  Tensor rsqrt() const;
  Tensor reciprocal() const;
  Tensor exp() const;
  Tensor exp2() const;
  Tensor expm1() const;
  Tensor log() const;
  Tensor log2() const;
  Tensor log10() const;
  Tensor log1p() const;
  Tensor sin() const;
  Tensor cos() const;
  Tensor tan() const;
  Tensor asin() const;
  Tensor acos() const;
  Tensor atan() const;
  Tensor sinh() const;
  Tensor cosh() const;
  Tensor tanh() const;
  Tensor asinh() const;
  Tensor acosh() const;
  Tensor atanh() const;
  Tensor erf() const;
  Tensor isnan() const;  // bool, as the next four
  Tensor isinf() const;
  Tensor isfinite() const;
  Tensor logical_not() const;
  Tensor bitwise_not() const;  // integers; bool: logical not

  Tensor relu() const;  // gradient 0 at 0
  Tensor relu6() const;
  Tensor sigmoid() const;
  Tensor logsigmoid() const;
  Tensor silu() const;
  Tensor mish() const;
  Tensor selu() const;
  Tensor gelu(bool tanh_approximation = false) const;
  Tensor softplus(double beta = 1, double threshold = 20) const;  // x where beta x > threshold
  Tensor elu(double alpha = 1) const;
  Tensor celu(double alpha = 1) const;
  Tensor leaky_relu(double negative_slope = 0.01) const;
  Tensor hardtanh(double min = -1, double max = 1) const;
  Tensor hardswish() const;
  Tensor hardsigmoid() const;
  // Limits to [min, max], of which one may be left out; keeps the dtype where a bound is a number.
  // NaN where the element or a bound is.
  Tensor clamp(std::optional<Operand> min, std::optional<Operand> max) const;
  Tensor lerp(const Tensor& end, const Operand& weight) const;  // this + weight (end - this)
  Tensor masked_fill(const Tensor& mask, Number value) const;   // mask bool, broadcasts

  // --- Reductions over some axes or all --------------------------------------------------------
  // Reduced axes disappear, or stay with size 1 with keepdim.

  Tensor sum(const Dims& dims = {}, bool keepdim = false) const;   // bool, integers: i64
  Tensor prod(const Dims& dims = {}, bool keepdim = false) const;  // bool, integers: i64
  Tensor mean(const Dims& dims = {}, bool keepdim = false) const;  // floats only
  Tensor max(const Dims& dims = {}, bool keepdim = false) const;   // NaN wins; ties share the
  Tensor min(const Dims& dims = {}, bool keepdim = false) const;   // gradient; Error for no element
  Tensor any(const Dims& dims = {}, bool keepdim = false) const;   // bool
  Tensor all(const Dims& dims = {}, bool keepdim = false) const;   // bool
  // Floats: sum (x - mean)^2 / (n - correction), and its root, whose gradient is 0 where it is 0.
  Tensor var(const Dims& dims = {}, bool keepdim = false, double correction = 1) const;
  Tensor std(const Dims& dims = {}, bool keepdim = false, double correction = 1) const;
  // (sum |x|^p)^(1/p); p infinite: the largest (smallest) magnitude; 0: the count of nonzeros.
  Tensor norm(const Dims& dims = {}, bool keepdim = false, double p = 2) const;
  // These three are right for numbers of any size.
  Tensor logsumexp(const Dims& dims = {}, bool keepdim = false) const;
  Tensor softmax(int64_t dim) const;
  Tensor log_softmax(int64_t dim) const;
  // i64: position along dim, or in the flattened tensor; the first of equals, NaN wins.
  Tensor argmax(std::optional<int64_t> dim = {}, bool keepdim = false) const;
  Tensor argmin(std::optional<int64_t> dim = {}, bool keepdim = false) const;
  // The lower one; NaN where there is one.
  Tensor median(std::optional<int64_t> dim = {}, bool keepdim = false) const;

  // --- Scans and sorting along one axis --------------------------------------------------------

  Tensor cumsum(int64_t dim) const;       // bool, integers: i64
  Tensor cumprod(int64_t dim) const;      // bool, integers: i64
  WithIndices cummax(int64_t dim) const;  // the latest of equals
  WithIndices cummin(int64_t dim) const;
  Tensor logcumsumexp(int64_t dim) const;
  WithIndices sort(int64_t dim = -1, bool descending = false) const;  // stable; NaN is largest
  Tensor argsort(int64_t dim = -1, bool descending = false) const;
  // The k largest (smallest), best first. Error unless the axis has as many.
  WithIndices topk(int64_t k, int64_t dim = -1, bool largest = true) const;

  // --- Indexing by tensors ---------------------------------------------------------------------
  // Index tensors are integers. Only index() and index_put() count negative ones from the end; in
  // the others they lie in [0, size). Values are not checked: outside the axis zero is read, and
  // nothing is written.

  // out[i][j] = x[index[i][j]][j] for dim 0; the index has as many axes as x, and is no longer
  // beside dim.
  Tensor gather(int64_t dim, const Tensor& index) const;
  Tensor take_along_dim(const Tensor& index, int64_t dim) const;  // gather that broadcasts
  Tensor index_select(int64_t dim, const Tensor& index) const;    // index 1-d
  // Rows of x (rows, width): (..., width). The row padding_idx receives no gradient.
  Tensor embedding(const Tensor& index, std::optional<int64_t> padding_idx = {}) const;
  Tensor one_hot(int64_t num_classes) const;  // of integers: i64 of 0 and 1, a new last axis
  // x[...] of numbers, Slice, kNewAxis, kEllipsis, integer tensors and bool ones, which are read
  // back, with NumPy's rules; but numbers take their axes away before tensors index, as in PyTorch.
  Tensor index(const std::vector<Index>& at) const;

  // A copy of this tensor with some elements replaced or combined; what goes in is cast to its
  // dtype. Where several values replace one element the last one stays (on GPUs one of them, unless
  // DETERMINISTIC=1); where they are added all count.
  Tensor index_put(const std::vector<Index>& at, const Tensor& values,
                   bool accumulate = false) const;
  Tensor slice_assign(const std::vector<Bound>& starts, const std::vector<Bound>& stops,
                      const Shape& steps, const Tensor& value) const;
  // Adds source's part i along dim to part index[i]; index 1-d.
  Tensor index_add(int64_t dim, const Tensor& index, const Tensor& source) const;
  // out[index[i][j]][j] = source[i][j] for dim 0. The index has as many axes as x and as source,
  // and is no longer than source, nor than x beside dim.
  Tensor scatter(int64_t dim, const Tensor& index, const Operand& source) const;
  Tensor scatter_add(int64_t dim, const Tensor& index, const Tensor& source) const;
  // reduce: "sum", "prod", "mean", "amax", "amin". Without include_self what was there takes no
  // part where something comes.
  Tensor scatter_reduce(int64_t dim, const Tensor& index, const Tensor& source,
                        const std::string& reduce, bool include_self = true) const;

  // Shapes that depend on values: these read one integer back, or take the result's size, and then
  // read nothing (missing positions are 0).
  Tensor masked_select(const Tensor& mask, std::optional<int64_t> size = {}) const;  // 1-d
  Tensor nonzero(std::optional<int64_t> size = {}) const;  // i64 (n, rank), row-major order

  // --- Linear algebra --------------------------------------------------------------------------

  // NumPy's matmul: 1-d operands gain and lose an axis, leading axes broadcast.
  Tensor matmul(const Tensor& other) const;
  // The same, not rounded to the operands' dtype: halves as kF32 (their gradients are rounded),
  // 8-bit floats summed in f32 and rounded to bf16 (kBF16), bytes summed as kI32.
  Tensor matmul(const Tensor& other, DType result) const;
  Tensor bmm(const Tensor& other) const;    // (b, n, k) by (b, k, m)
  Tensor dot(const Tensor& other) const;    // 1-d by 1-d: 0-d
  Tensor outer(const Tensor& other) const;  // (n) and (m): (n, m)
  // x (..., in) times weight (out, in), plus bias (out): (..., out).
  Tensor linear(const Tensor& weight, const Tensor& bias = Tensor()) const;
  // Einstein summation, "ij,jk->ik": lower-case letters, with the arrow.
  static Tensor einsum(const std::string& equation, const std::vector<Tensor>& operands);

 private:
  friend void runtime_seam::replace_node(Tensor&, Node);
  [[noreturn]] static void throw_undefined();
  [[noreturn]] void throw_without_shape() const;
  mutable NodeRef node_;            // realizing exchanges it for another node of the same values
  std::shared_ptr<GradSlot> slot_;  // of a leaf; shared by its copies
};

// What gives values and says where they were.
struct WithIndices {
  Tensor values, indices;  // indices: i64
};

// --- Element-wise, two operands ------------------------------------------------------------------
// Tensors or numbers on either side.

Tensor operator+(const Operand& x, const Operand& y);  // bool: or
Tensor operator-(const Operand& x, const Operand& y);  // not for two bools
Tensor operator*(const Operand& x, const Operand& y);  // bool: and
Tensor operator/(const Operand& x, const Operand& y);  // true division; integers give f32
Tensor operator-(const Tensor& x);
Tensor trunc_div(const Operand& x, const Operand& y);  // towards zero, keeps the dtype
Tensor floor_div(const Operand& x, const Operand& y);  // towards minus infinity, keeps the dtype
Tensor mod(const Operand& x, const Operand& y);        // the sign of y; 0 for floats beyond 2^52 y
Tensor pow(const Operand& x, const Operand& y);
Tensor maximum(const Operand& x, const Operand& y);  // NaN if either is NaN
Tensor minimum(const Operand& x, const Operand& y);
Tensor atan2(const Operand& y, const Operand& x);
Tensor copysign(const Operand& x, const Operand& y);  // magnitude of x, sign of y

// Comparisons give bool. (To compare two handles, compare their nodes.)
Tensor operator==(const Operand& x, const Operand& y);
Tensor operator!=(const Operand& x, const Operand& y);
Tensor operator<(const Operand& x, const Operand& y);
Tensor operator<=(const Operand& x, const Operand& y);
Tensor operator>(const Operand& x, const Operand& y);
Tensor operator>=(const Operand& x, const Operand& y);
Tensor logical_and(const Operand& x, const Operand& y);
Tensor logical_or(const Operand& x, const Operand& y);
Tensor logical_xor(const Operand& x, const Operand& y);

// Bits of integers and bools; the amount of a shift is below the width.
Tensor operator&(const Operand& x, const Operand& y);
Tensor operator|(const Operand& x, const Operand& y);
Tensor operator^(const Operand& x, const Operand& y);
Tensor operator<<(const Operand& x, const Operand& y);
Tensor operator>>(const Operand& x, const Operand& y);

Tensor where(const Tensor& condition, const Operand& x, const Operand& y);  // condition bool
// Of i32 words of four bytes each, which broadcast: sum + the products of x's bytes, unsigned, and
// y's, signed. One instruction where the processor has it.
Tensor byte_dot(const Tensor& x, const Tensor& y, const Tensor& sum);

// The dtype that an operation on both gives.
DType result_type(const Operand& x, const Operand& y);

// One position of an index expression.
class Index {
 public:
  enum class Kind { Integer, Range, NewAxis, Ellipsis, Tensor };
  template <std::integral T> Index(T i) : kind(Kind::Integer), integer(static_cast<int64_t>(i)) {}
  Index(Slice s) : kind(Kind::Range), slice(s) {}
  Index(NewAxis) : kind(Kind::NewAxis) {}
  Index(Ellipsis) : kind(Kind::Ellipsis) {}
  Index(Tensor t) : kind(Kind::Tensor), tensor(std::move(t)) {}
  Index(const Variable& v);  // a number within its bounds

  Kind kind;
  int64_t integer = 0;
  Slice slice = {};
  Tensor tensor = {};
};

// While one lives, results of this thread want no gradient.
class NoGrad {
 public:
  NoGrad();
  ~NoGrad();
  NoGrad(const NoGrad&) = delete;
  NoGrad& operator=(const NoGrad&) = delete;

 private:
  bool before_;
};

// A seam: declared here, defined in runtime/realize/realize.cpp, because the runtime knows the
// front end and not the other way round.
namespace runtime_seam {
// Computes the tensors' values. A tensor's node then is, or has as `realized`, a view of a Buffer.
void realize(std::span<Tensor* const> tensors);
// A new Buffer node [count] with these values; device "": the default one.
Node upload(const void* data, DType dtype, int64_t count, const std::string& device);
// The values behind a realized node, row-major.
void download(Node realized, void* out);
std::string default_device();
bool is_gpu(const std::string& device);  // "": the default one; a group's: its first member
// Whether it is a CPU with matrix units that multiply tiles of bf16.
bool has_tiles_of_halves(const std::string& device);
int shard_axis(Node n);  // of a node on a group of devices
// The memory that a node's values are in, the first piece's of several: it stays the same where
// they are assigned to in place. Empty for values that are not computed.
std::weak_ptr<const void> memory_of(Node n);
// A Buffer node with next_random_state (tiny/tensor/random.h): in a capture, another one in each
// replay.
Node upload_random(int64_t blocks);
void forbid_seed_in_capture();
// For realize(): gives a tensor another node of the same values.
void replace_node(Tensor& tensor, Node node);
}  // namespace runtime_seam

// --- Templates -----------------------------------------------------------------------------------

template <class T>
Tensor Tensor::from(std::span<const T> values, const Shape& shape, const std::string& device) {
  check(static_cast<int64_t>(values.size()) == tiny::numel(shape), "from: ", values.size(),
        " values do not fill the shape ", to_text(shape));
  return from_bytes(values.data(), dtype_of<T>(), shape, device);
}

template <class T>
Tensor Tensor::from(const std::vector<T>& values, const Shape& shape, const std::string& device) {
  if constexpr (std::is_same_v<T, bool>) {
    const auto bytes = std::make_unique<bool[]>(values.size());
    std::ranges::copy(values, bytes.get());
    return from(std::span<const bool>(bytes.get(), values.size()), shape, device);
  } else {
    return from(std::span<const T>(values), shape, device);
  }
}

template <class T> std::vector<T> Tensor::to_vector() const {
  const bool bytes = std::is_same_v<T, uint8_t> && dtype() == kBool;
  check(dtype() == dtype_of<T>() || bytes, "to_vector: the tensor is ", dtype().name(), " and not ",
        dtype_of<T>().name(), ": convert it with to()");
  using Raw = std::conditional_t<std::is_same_v<T, bool>, uint8_t, T>;
  std::vector<Raw> out(static_cast<size_t>(tiny::numel(current_shape())));
  to_bytes(out.data());
  return std::vector<T>(out.begin(), out.end());
}

template <class T> T Tensor::item() const {
  check(numel() == 1, "item: shape ", to_text(shape()), " has ", numel(), " elements and not one");
  return to_vector<T>()[0];
}

}  // namespace tiny
