#include "tiny/tensor/tensor.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "tiny/autograd/grad.h"
#include "tiny/ir/sizes.h"
#include "tiny/tensor/assignments.h"
#include "tiny/tensor/detail.h"

namespace tiny {

namespace {

thread_local bool gradients_wanted = true;

int64_t leaf_id(Node n) { return n->int_value(); }

}  // namespace

// Where backward() leaves the gradient of a leaf: found by the leaf's id, gone with the last
// tensor that is this leaf.
struct GradSlot {
  int64_t id = 0;
  Tensor grad;
};

namespace {

struct SlotTable {
  std::mutex mutex;
  std::unordered_map<int64_t, std::weak_ptr<GradSlot>> slots;
};

SlotTable& slot_table() {
  static SlotTable* table = new SlotTable;
  return *table;
}

std::shared_ptr<GradSlot> make_slot(int64_t id) {
  std::shared_ptr<GradSlot> slot(new GradSlot{id, {}}, [](GradSlot* s) {
    {
      std::lock_guard lock(slot_table().mutex);
      slot_table().slots.erase(s->id);
    }
    delete s;
  });
  std::lock_guard lock(slot_table().mutex);
  slot_table().slots[id] = slot;
  return slot;
}

std::shared_ptr<GradSlot> find_slot(int64_t id) {
  std::lock_guard lock(slot_table().mutex);
  const auto at = slot_table().slots.find(id);
  return at == slot_table().slots.end() ? nullptr : at->second.lock();
}

}  // namespace

bool is_gradient(Node n) {
  std::vector<std::shared_ptr<GradSlot>>
      slots;  // let go without the lock, which the last one takes
  {
    std::lock_guard lock(slot_table().mutex);
    for (const auto& [id, slot] : slot_table().slots) slots.push_back(slot.lock());
  }
  return std::ranges::any_of(slots, [&](const std::shared_ptr<GradSlot>& slot) {
    return slot && slot->grad.defined() && slot->grad.node() == n;
  });
}

namespace {

// The memory behind a node, where it has been computed.
Node stored(Node n) {
  while (n->op == Op::Leaf && !n->realized) n = n->src(0);
  Node view = n->realized;
  return view ? view : n;
}

Node default_seed(const Tensor& loss) {
  check(loss.numel() == 1, "backward: the tensor has shape ", to_text(loss.shape()),
        ": only one element has a gradient without a seed");
  return build::full(loss.shape(), loss.dtype(), int64_t{1});
}

Node checked_seed(const Tensor& loss, const Tensor& seed) {
  if (!seed.defined()) return default_seed(loss);
  check(same(seed.capacity(), loss.capacity()), "backward: the seed has shape ",
        to_text(seed.capacity()), " and the tensor ", to_text(loss.capacity()));
  detail::check_lengths("backward", seed.node(), loss.node());
  return build::cast(seed.node(), loss.dtype());
}

}  // namespace

Tensor::Tensor(Node node) : node_(gradients_wanted ? node : build::detach(node)) {}
Tensor::Tensor(const Tensor&) = default;
Tensor& Tensor::operator=(const Tensor&) = default;
Tensor& Tensor::operator=(Tensor&&) noexcept = default;
Tensor::~Tensor() = default;

int64_t Tensor::size(int64_t dim) const {
  check(rank() > 0, "size: a 0-d tensor has no axes");
  const int axis = normalize_axis("size", dim, rank());
  if (node_->length(axis)) throw_without_shape();
  return capacity()[axis];
}

void Tensor::throw_undefined() {
  throw Error(
      "a tensor that is not defined: it was made by Tensor() and never given a value, was moved "
      "from, or is a grad() that no backward() has left");
}

void Tensor::throw_without_shape() const {
  int axis = 0;
  while (!node_->length(axis)) ++axis;
  throw Error(tiny::cat(
      "the length of axis ", axis, ", at most ", capacity()[axis], " in ", to_text(capacity()),
      ", is a Variable, which this function does not support, or which has no one size "
      "here: use the Variable's tensor(), capacity() or, for values on the host, "
      "current_shape()"));
}

Shape Tensor::current_shape() const {
  Shape out = to_shape(capacity());
  for (int i = 0; i < rank(); ++i)
    if (node_->length(i)) out[i] = detail::host_integer(node_->length(i));
  return out;
}

std::string Tensor::device() const { return device_name(node()->device); }

// --- Making tensors -----------------------------------------------------------------------------

Tensor Tensor::from_bytes(const void* data, DType dtype, const Shape& shape,
                          const std::string& device) {
  detail::require_shape("from", shape);
  const int64_t count = tiny::numel(shape);
  if (count == 0) return zeros(shape, dtype);
  if (const auto members = device_members(device_id(device)); !members.empty())
    return from_bytes(data, dtype, shape, device_name(members[0])).to(device);
  return Tensor(build::reshape(runtime_seam::upload(data, dtype, count, device), shape));
}

Tensor Tensor::full(const Shape& shape, Number value) {
  return full(shape, value, value.default_dtype());
}

Tensor Tensor::full(const Shape& shape, Number value, DType dtype) {
  LabelScope label("full");
  detail::require_shape("full", shape);
  return Tensor(build::full(shape, detail::number_node(value, dtype)));
}

Tensor Tensor::full_like(Number value) const {
  return detail::with_lengths(full(to_shape(capacity()), value, dtype()), *this);
}

Tensor Tensor::zeros(const Shape& shape, DType dtype) { return full(shape, 0, dtype); }

Tensor Tensor::ones(const Shape& shape, DType dtype) { return full(shape, 1, dtype); }

namespace {

// How many of start, start + step, ... come before stop; differences of i64 may need 65 bits.
int64_t steps_between(int64_t start, int64_t stop, int64_t step) {
  const __int128 span = static_cast<__int128>(stop) - start;
  if (span == 0 || (span < 0) != (step < 0)) return 0;
  return static_cast<int64_t>((span - (step > 0 ? 1 : -1)) / step + 1);
}

}  // namespace

Tensor Tensor::arange(Number start, Number stop, Number step, std::optional<DType> wanted) {
  LabelScope label("arange");
  check(step.real() != 0, "arange: the step is 0");
  const bool integral = !start.is_float() && !stop.is_float() && !step.is_float();
  const DType dtype = wanted.value_or(integral ? kI64 : kF32);
  const double span = std::ceil((stop.real() - start.real()) / step.real());
  check(span <= static_cast<double>(kMaxElements), "arange: from ", start.real(), " to ",
        stop.real(), " by ", step.real(), ": there may be 2^62 elements");
  int64_t count = span > 0 ? static_cast<int64_t>(span) : 0;
  if (integral) count = steps_between(start.integer(), stop.integer(), step.integer());
  if (integral) {
    const Tensor i(build::iota({{count}}, 0, kI64));
    return (i * step.integer() + start.integer()).to(dtype);
  }
  const Tensor i(build::iota({{count}}, 0, kI64));  // f64: no error adds up
  return (i.to(kF64) * step + start).to(dtype);
}

Tensor Tensor::linspace(double start, double stop, int64_t steps, DType dtype) {
  LabelScope label("linspace");
  check(steps >= 0, "linspace: ", steps, " steps");
  if (steps == 1) return full({1}, start, dtype);
  const Tensor i = Tensor(build::iota({{steps}}, 0, kI64)).to(kF64);
  // Each half counts from its own end, so that both ends are exact.
  const double step = (stop - start) / static_cast<double>(steps - 1);
  const Tensor up = i * step + start;
  const Tensor down = stop - (static_cast<double>(steps - 1) - i) * step;
  return where(i < static_cast<double>(steps / 2), up, down).to(dtype);
}

Tensor Tensor::eye(int64_t n, std::optional<int64_t> m, DType dtype) {
  LabelScope label("eye");
  const Shape shape{n, m.value_or(n)};
  detail::require_shape("eye", shape);
  return (detail::position(shape, 0) == detail::position(shape, 1)).to(dtype);
}

// --- Values -------------------------------------------------------------------------------------

Tensor& Tensor::realize() {
  Tensor* self = this;
  runtime_seam::realize({&self, 1});
  return *this;
}

void Tensor::realize(std::span<Tensor* const> tensors) { runtime_seam::realize(tensors); }

namespace {

// The box `part` at the beginning of a row-major array of this shape.
void copy_box(const std::byte* from, std::byte*& to, Ints shape, Ints part, size_t element) {
  if (shape.empty()) {
    std::memcpy(to, from, element);
    to += element;
    return;
  }
  const size_t row = static_cast<size_t>(tiny::numel(shape.subspan(1))) * element;
  if (same(shape.subspan(1), part.subspan(1))) {
    const size_t bytes = row * static_cast<size_t>(part[0]);
    std::memcpy(to, from, bytes);
    to += bytes;
    return;
  }
  for (int64_t i = 0; i < part[0]; ++i)
    copy_box(from + row * static_cast<size_t>(i), to, shape.subspan(1), part.subspan(1), element);
}

}  // namespace

void Tensor::to_bytes(void* out) const {
  const Shape part = current_shape(), whole = to_shape(capacity());
  if (tiny::numel(part) == 0) return;
  const_cast<Tensor*>(this)->realize();  // the values stay the same
  Node n = node()->realized ? node_->realized.load() : node();
  if (!node_->lengths) return runtime_seam::download(n, out);
  while (n->op == Op::Limit) n = n->src(0);
  const size_t element = static_cast<size_t>(dtype().size());
  std::vector<std::byte> all(static_cast<size_t>(tiny::numel(whole)) * element);
  runtime_seam::download(n, all.data());
  auto* to = static_cast<std::byte*>(out);
  copy_box(all.data(), to, whole, part, element);
}

Tensor Tensor::to(const std::string& device) const {
  LabelScope label("to");
  const std::string name = device.empty() ? runtime_seam::default_device() : device;
  return Tensor(build::copy_to(node(), device_id(name)));
}

Tensor Tensor::shard(const std::vector<std::string>& devices, std::optional<int64_t> axis) const {
  LabelScope label("shard");
  std::string names;
  for (const std::string& d : devices) names += (names.empty() ? "" : ",") + d;
  check(!devices.empty(), "shard: no device is named");
  const int cut = axis ? normalize_axis("shard", *axis, rank()) : -1;
  check(cut < 0 || rank() > 0, "shard: a 0-d tensor has no axis to cut");
  check(cut < 0 || !node()->length(cut), "shard: the length of axis ", cut, " of ",
        to_text(capacity()), " is a Variable: shard the whole tensor first");
  const int group = device_id(names);
  if (device_members(group).empty()) return Tensor(build::copy_to(node(), group));
  return Tensor(build::shard(node(), group, cut));
}

Tensor& Tensor::shard_(const std::vector<std::string>& devices, std::optional<int64_t> axis) & {
  const bool wanted = static_cast<bool>(slot_);
  // The part of the tensor's own device is memory of its own too, and the whole is freed.
  *this = detach().shard(devices, axis).contiguous().realize();
  return wanted ? requires_grad_() : *this;
}

int Tensor::shard_axis() const {
  check(!device_members(node()->device).empty(), "shard_axis: the tensor is on ",
        device().empty() ? "no device" : device(), " and not on several");
  return runtime_seam::shard_axis(node());
}

Tensor Tensor::contiguous() const {
  LabelScope label("contiguous");
  return Tensor(build::contiguous(node()));
}

Tensor& Tensor::assign(const Tensor& value) & {
  LabelScope label("assign");
  check(same(capacity(), value.capacity()), "assign: a tensor of shape ", to_text(capacity()),
        " cannot become one of shape ", to_text(value.capacity()));
  detail::check_lengths("assign", node(), value.node());
  Node v = build::cast(value.node(), dtype());
  if (slot_ || !gradients_wanted) v = build::detach(v);
  Node old = stored(node());
  while (old->op == Op::Assign && !old->realized) old = stored(old->src(0));  // one assignment less
  Node n = build::assign(old, v);
  if (slot_) n = make(Op::Leaf, dtype(), {n}, slot_->id);
  node_ = NodeRef(n);
  AssignmentLog::note(n);
  return *this;
}

namespace {

thread_local AssignmentLog* assignment_log = nullptr;

}  // namespace

AssignmentLog::AssignmentLog() : outer_(std::exchange(assignment_log, this)) {}

AssignmentLog::~AssignmentLog() {
  for (Node n : nodes_) Arena::global().unwatch(n);
  assignment_log = outer_;
}

void AssignmentLog::note(Node assigned) {
  if (!assignment_log) return;
  Arena::global().watch(assigned);
  assignment_log->nodes_.push_back(assigned);
}

std::vector<Node> AssignmentLog::pending() const {
  std::vector<Node> out;
  for (Node n : nodes_)
    if (n->handles && !n->realized && !contains(out, n)) out.push_back(n);
  return out;
}

// --- Gradients ----------------------------------------------------------------------------------

NoGrad::NoGrad() : before_(std::exchange(gradients_wanted, false)) {}
NoGrad::~NoGrad() { gradients_wanted = before_; }

Tensor& Tensor::requires_grad_(bool wanted) {
  detail::require_float("requires_grad_", dtype());
  if (wanted == static_cast<bool>(slot_)) return *this;
  if (wanted) {
    node_ = NodeRef(build::leaf(build::detach(node())));
    slot_ = make_slot(leaf_id(node()));
  } else {
    node_ = NodeRef(build::detach(stored(node())));
    slot_ = nullptr;
  }
  return *this;
}

Tensor Tensor::detach() const {
  LabelScope label("detach");
  return Tensor(build::detach(node()));
}

namespace {

// A gradient as its leaf lies: of a weight that is cut over devices each keeps its part alone, and
// a constant one is on the leaf's devices.
Node laid_out_like(Node grad, Node leaf) {
  const Node n = detail::memory_behind(leaf);
  const bool is_cut = (n->op == Op::Multi || n->op == Op::Shard) && n->ints().size() > 2;
  if (is_cut) return build::shard(grad, n->device, static_cast<int>(n->ints()[1]));
  return detail::beside(Tensor(grad), Tensor(leaf)).node();
}

}  // namespace

void Tensor::backward(const Tensor& seed) const {
  check(node()->needs_grad,
        "backward: nothing below this tensor wants a gradient: call "
        "requires_grad_() on a tensor before it is used");
  std::vector<Node> leaves;
  std::vector<std::shared_ptr<GradSlot>> slots;
  for (Node n : grad_leaves(node())) {
    if (auto slot = find_slot(leaf_id(n))) {
      leaves.push_back(n);
      slots.push_back(std::move(slot));
    }
  }
  const std::vector<Node> grads = gradients(node(), leaves, checked_seed(*this, seed));
  for (size_t i = 0; i < slots.size(); ++i) {
    const Tensor fresh(build::detach(laid_out_like(grads[i], leaves[i])));
    Tensor& grad = slots[i]->grad;
    grad = grad.defined() ? grad + fresh : fresh;
  }
}

Tensor Tensor::grad() const { return slot_ ? slot_->grad : Tensor(); }

void Tensor::set_grad(const Tensor& grad) const {
  check(static_cast<bool>(slot_), "set_grad: the tensor is no leaf: call requires_grad_() first");
  if (grad.defined()) {
    check(same(grad.capacity(), capacity()), "set_grad: a gradient of shape ",
          to_text(grad.capacity()), " for a tensor of shape ", to_text(capacity()));
    detail::check_lengths("set_grad", grad.node(), node());
  }
  slot_->grad = grad;
}

std::vector<Tensor> Tensor::gradient(const Tensor& loss, const std::vector<Tensor>& inputs) {
  std::vector<Node> targets;
  for (const Tensor& t : inputs) {
    check(t.requires_grad(), "gradient: input ", targets.size(), " of shape ",
          to_text(t.capacity()), " wants none: call requires_grad_() before it is used");
    targets.push_back(t.node());
  }
  std::vector<Tensor> out;
  for (Node n : gradients(loss.node(), targets, default_seed(loss)))
    out.push_back(detail::beside(Tensor(n), inputs[out.size()]));
  return out;
}

void runtime_seam::replace_node(Tensor& tensor, Node node) { tensor.node_.become(node); }

}  // namespace tiny
