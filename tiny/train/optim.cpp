#include "tiny/train/optim.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <set>
#include <tuple>
#include <utility>

#include "tiny/tensor/detail.h"

namespace tiny {

namespace {

// Values in memory of their own: constants are one node for all who ask, and
// are not updated in place.
Tensor stored_scalar(double value, const std::string& device) {
  return Tensor::from(std::vector<double>{value}, {}, device);
}

Tensor stored_zeros(const Tensor& like) {
  const DType t = detail::compute_dtype(like.dtype());
  const auto zeros_at = [t](Ints shape, const std::string& device) {
    const std::vector<std::byte> zeros(static_cast<size_t>(numel(shape)) * t.size());
    return Tensor::from_bytes(zeros.data(), t, to_shape(shape), device);
  };
  const Node n = detail::memory_behind(like.node());
  if (n->op != Op::Multi) return zeros_at(like.shape(), like.device());
  std::vector<Tensor> kept;  // each part where it belongs, and nowhere the whole
  std::vector<Node> pieces;
  for (size_t i = 0; i < n->num_src; ++i) {
    kept.push_back(
        zeros_at(n->src(static_cast<int>(i))->shape(), device_name(device_members(n->device)[i])));
    pieces.push_back(kept.back().node());
  }
  return Tensor(build::multi(pieces, n->device, static_cast<int>(n->ints()[1])));
}

Tensor norm_of(const Tensor& x) { return x.square().sum().sqrt(); }

}  // namespace

std::vector<ParameterGroup> decay_matrices(const std::vector<Tensor*>& tensors,
                                           double weight_decay) {
  std::vector<ParameterGroup> groups{{{}, {}, weight_decay}, {{}, {}, 0.0}};
  for (Tensor* t : tensors) groups[t->rank() >= 2 ? 0 : 1].tensors.push_back(t);
  return groups;
}

Optimizer::Optimizer(const ParameterGroups& tensors, double lr) : lr_value_(lr) {
  std::vector<Tensor*> all;
  std::set<const Tensor*> seen;
  for (const ParameterGroup& group : tensors.groups()) {
    check(!group.lr || lr > 0, "optimizer: a group with the learning rate ", group.lr.value_or(0),
          " beside ", lr, ": its part of that is not defined");
    for (Tensor* t : group.tensors) {
      check(seen.insert(t).second, "optimizer: a tensor of shape ", to_text(t->shape()),
            " is given twice");
      all.push_back(t);
      if (t->requires_grad())
        parameters_.push_back({t, group.lr ? *group.lr / lr : 1, group.weight_decay});
      else
        others_.push_back(t);
    }
  }
  check(!parameters_.empty(), "optimizer: none of ", all.size(), " tensors wants a gradient");
  Tensor::realize(all);
  lr_ = stored_scalar(lr, parameters_[0].tensor->device());
}

Tensor Optimizer::lr_of(size_t i) const {
  const double part = parameters_[i].lr;
  return (part == 1 ? lr_ : lr_ * part).to(parameters_[i].tensor->device());
}

double Optimizer::weight_decay_of(size_t i, double otherwise) const {
  return parameters_[i].weight_decay.value_or(otherwise);
}

std::vector<Tensor>& Optimizer::add_moments(const std::string& name) {
  moments_.push_back(std::make_unique<Moments>(Moments{name, 0, {}}));
  std::vector<Tensor>& values = moments_.back()->values;
  for (const Parameter& p : parameters_) values.push_back(stored_zeros(*p.tensor));
  return values;
}

std::vector<Tensor>& Optimizer::add_numbers(const std::string& name, double value) {
  moments_.push_back(std::make_unique<Moments>(Moments{name, value, {}}));
  std::vector<Tensor>& values = moments_.back()->values;
  for (const Parameter& p : parameters_) values.push_back(stored_scalar(value, p.tensor->device()));
  return values;
}

Tensor& Optimizer::add_row(const std::string& name, double value) {
  const std::vector<double> values(parameters_.size(), value);
  Tensor t =
      Tensor::from(values, {static_cast<int64_t>(values.size())}, parameters_[0].tensor->device());
  t.realize();  // on each device, before the first step waits for it
  rows_.push_back(std::make_unique<Row>(Row{name, value, t}));
  return rows_.back()->value;
}

Tensor Optimizer::number_of(size_t i, const Tensor& row) const {
  return row.narrow(0, static_cast<int64_t>(i), 1).reshape({}).to(parameters_[i].tensor->device());
}

void Optimizer::put_stepped(Tensor& row, const Tensor& next) {
  const Tensor at = detail::position(row.shape(), 0, kI32);
  const auto steps = [&](size_t i) { return parameters_[i].tensor->grad().defined(); };
  Tensor stepped;  // undefined: all have
  for (size_t begin = 0, end; begin < parameters_.size(); begin = end) {
    end = begin + 1;
    if (steps(begin)) continue;
    while (end < parameters_.size() && !steps(end)) ++end;
    const Tensor others =
        logical_or(at < static_cast<int64_t>(begin), at >= static_cast<int64_t>(end));
    stepped = stepped.defined() ? logical_and(stepped, others) : others;
  }
  put(row, stepped.defined() ? where(stepped.to(row.device()), next, row.detach()) : next);
}

void Optimizer::step(std::span<Tensor* const> also) {
  const NoGrad no_grad;
  update();
  std::vector<Tensor*> all = all_tensors();
  all.insert(all.end(), also.begin(), also.end());
  Tensor::realize(all);
}

void Optimizer::step_all(const std::vector<Optimizer*>& optimizers,
                         std::initializer_list<Tensor*> also) {
  const NoGrad no_grad;
  std::vector<Tensor*> all(also);
  for (Optimizer* o : optimizers) {
    o->update();
    const std::vector<Tensor*> own = o->all_tensors();
    all.insert(all.end(), own.begin(), own.end());
  }
  Tensor::realize(all);
}

void Optimizer::update() {
  // Not around realize(): the scheduler's nodes have the names of what they
  // come from.
  LabelScope label("step");
  begin_step();
  for (size_t i = 0; i < parameters_.size(); ++i) {
    Tensor& p = *parameters_[i].tensor;
    const Tensor grad = gradient(i);
    if (!grad.defined()) continue;
    put(p, updated(i, p.detach().to(grad.dtype()), grad));
    // Held any longer, the gradient would have to be stored with the rest of
    // the step, because it depends on the parameters' old values.
    p.zero_grad();
  }
}

Tensor Optimizer::gradient(size_t i) const {
  const Tensor grad = parameters_[i].tensor->grad();
  return grad.defined() ? grad.to(detail::compute_dtype(parameters_[i].tensor->dtype())) : grad;
}

void Optimizer::put(Tensor& t, const Tensor& value) {
  t.assign(taken_.defined() ? where(taken_.to(t.device()), value, t.detach()) : value);
}

std::vector<Tensor*> Optimizer::all_tensors() {
  std::vector<Tensor*> all;
  for (const Parameter& p : parameters_) all.push_back(p.tensor);
  all.insert(all.end(), others_.begin(), others_.end());
  for (const auto& m : moments_)
    for (Tensor& t : m->values) all.push_back(&t);
  for (const auto& r : rows_) all.push_back(&r->value);
  all.push_back(&lr_);
  return all;
}

void Optimizer::reset() {
  const NoGrad no_grad;
  std::vector<Tensor*> all;
  const auto restart = [&](Tensor& t, double start) {
    t.assign(t.full_like(start));
    all.push_back(&t);
  };
  for (const auto& m : moments_)
    for (Tensor& t : m->values) restart(t, m->start);
  for (const auto& r : rows_) restart(r->value, r->start);
  Tensor::realize(all);
}

void Optimizer::zero_grad() {
  for (const Parameter& p : parameters_) p.tensor->zero_grad();
}

void Optimizer::set_lr(double lr) {
  NoGrad no_grad;
  lr_.assign(stored_scalar(lr, lr_.device())).realize();
  lr_value_ = lr;
}

void Optimizer::set_lr(const Tensor& lr) {
  const NoGrad no_grad;
  check(lr.numel() == 1, "set_lr: takes a tensor of one element and not ", to_text(lr.shape()));
  lr_.assign(lr.detach().reshape({}).to(lr_.device()));
}

StateDict Optimizer::state_dict(const std::string& prefix) {
  StateDict out;
  for (const auto& r : rows_) out.push_back({prefix + r->name, &r->value});
  for (size_t i = 0; i < parameters_.size(); ++i)
    for (const auto& m : moments_) out.push_back({cat(prefix, i, ".", m->name), &m->values[i]});
  return out;
}

// --- Clipping ------------------------------------------------------------------------------------

Tensor clip_grad_norm_(const std::vector<Tensor*>& tensors, const Tensor& max_norm) {
  const NoGrad no_grad;
  Tensor sum;  // of squares, where the first gradient is; f64 where one of them is
  for (const Tensor* t : tensors) {
    const Tensor g = t->requires_grad() ? t->grad() : Tensor();
    if (!g.defined()) continue;
    const Tensor squares = g.to(detail::compute_dtype(g.dtype())).square().sum();
    sum = sum.defined() ? sum + squares.to(sum.device()) : squares;
  }
  check(sum.defined(), "clip_grad_norm_: none of ", tensors.size(), " tensors has a gradient");
  const Tensor norm = sum.sqrt();
  const Tensor factor = (max_norm.to(norm.device()).to(norm.dtype()) / (norm + 1e-6)).clamp({}, 1);
  for (Tensor* t : tensors)
    if (const Tensor g = t->requires_grad() ? t->grad() : Tensor(); g.defined())
      t->set_grad((g * factor.to(g.device())).to(g.dtype()));
  return norm;
}

Tensor clip_grad_norm_(const std::vector<Tensor*>& tensors, double max_norm) {
  check(max_norm > 0, "clip_grad_norm_: a norm of at most ", max_norm, ": takes one above 0");
  return clip_grad_norm_(tensors, Tensor::full({}, max_norm, kF64));
}

// --- SGD -----------------------------------------------------------------------------------------

SGD::SGD(const ParameterGroups& tensors, double lr, const SgdOptions& options)
    : Optimizer(tensors, lr), options_(options) {
  check(!options.nesterov || (options.momentum > 0 && options.dampening == 0),
        "SGD: nesterov needs a momentum and no dampening; here momentum ", options.momentum,
        ", dampening ", options.dampening);
  if (options.momentum != 0) m_ = &add_moments("m");
  if (m_ && options.dampening != 0) gain_ = &add_numbers("gain", 1);
}

Tensor SGD::updated(size_t i, const Tensor& p, const Tensor& g) {
  const double decay = weight_decay_of(i, options_.weight_decay);
  const Tensor decayed = decay != 0 ? g + p * decay : g;
  if (!m_) return p - lr_of(i) * decayed;
  Tensor& m = (*m_)[i];
  if (gain_) {
    Tensor& gain = (*gain_)[i];
    put(m, m * options_.momentum + decayed * gain);
    put(gain, Tensor::full({}, 1 - options_.dampening, kF64));
  } else {
    put(m, m * options_.momentum + decayed);
  }
  return p - lr_of(i) * (options_.nesterov ? decayed + m * options_.momentum : m);
}

// --- Adam and its kin ----------------------------------------------------------------------------

AdamBase::AdamBase(const ParameterGroups& tensors, double lr, const AdamOptions& options,
                   double eps, double weight_decay)
    : Optimizer(tensors, lr),
      weight_decay_(options.weight_decay.value_or(weight_decay)),
      beta1_(options.beta1),
      beta2_(options.beta2),
      eps_(options.eps.value_or(eps)),
      correction1_(add_row("correction1", 0)),
      correction2_(add_row("correction2", 0)),
      m_(add_moments("m")),
      v_(add_moments("v")) {}

// 1 - b^(t+1) = b (1 - b^t) + (1 - b): nothing cancels, as it would in 1 - b^t
// for b near 1.
void AdamBase::begin_step() {
  put_stepped(correction1_, correction1_ * beta1_ + (1 - beta1_));
  put_stepped(correction2_, correction2_ * beta2_ + (1 - beta2_));
}

Tensor AdamBase::direction(size_t i, const Tensor& g) {
  Tensor &m = m_[i], &v = v_[i];
  put(m, m * beta1_ + g * (1 - beta1_));
  put(v, v * beta2_ + g.square() * (1 - beta2_));
  // Each row is computed once a step: an element divides once.
  const Tensor first = number_of(i, correction1_.reciprocal().contiguous());
  const Tensor second = number_of(i, correction2_.rsqrt().contiguous());
  return m * first / (v.sqrt() * second + eps_);
}

Tensor Adam::updated(size_t i, const Tensor& p, const Tensor& g) {
  const double decay = weight_decay_of(i, weight_decay_);
  return p - lr_of(i) * direction(i, decay != 0 ? g + p * decay : g);
}

Tensor AdamW::updated(size_t i, const Tensor& p, const Tensor& g) {
  const Tensor d = direction(i, g);
  const double decay = weight_decay_of(i, weight_decay_);
  return p - lr_of(i) * (decay != 0 ? d + p * decay : d);
}

Tensor LAMB::updated(size_t i, const Tensor& p, const Tensor& g) {
  Tensor d = direction(i, g);
  const double decay = weight_decay_of(i, weight_decay_);
  if (decay != 0) d = d + p * decay;
  const Tensor size = norm_of(p), length = norm_of(d);
  const Tensor ratio = where(logical_and(size > 0, length > 0), size / length, 1);
  return p - lr_of(i) * ratio * d;
}

LARS::LARS(const ParameterGroups& tensors, double lr, const LarsOptions& options)
    : Optimizer(tensors, lr), options_(options), m_(add_moments("m")) {}

Tensor LARS::updated(size_t i, const Tensor& p, const Tensor& g) {
  const double decay = weight_decay_of(i, options_.weight_decay);
  const Tensor size = norm_of(p), length = norm_of(g);
  const Tensor scale = size * options_.trust / (length + size * decay);
  const Tensor ratio = where(logical_and(size > 0, length > 0), scale, 1);
  const Tensor scaled = lr_of(i) * ratio * (g + p * decay);
  Tensor& m = m_[i];
  put(m, m * options_.momentum + scaled);
  return p - (options_.nesterov ? scaled + m * options_.momentum : m);
}

// --- Muon ----------------------------------------------------------------------------------------

namespace {

const ParameterGroups& require_matrices(const ParameterGroups& tensors) {
  for (const ParameterGroup& group : tensors.groups())
    for (const Tensor* t : group.tensors)
      check(!t->requires_grad() || t->rank() >= 2, "Muon: a parameter of shape ",
            to_text(t->shape()), ": takes two axes or more; the others need another optimizer");
  return tensors;
}

// U V' for each x = U S V' (matrices, rows, columns), roughly: an odd
// polynomial that drives singular values in (0, 1] into about [0.7, 1.2],
// applied `steps` times to x / |x|. The coefficients are the write-up's. No
// more rows than columns, since y y' is a product then.
Tensor orthogonalized(const Tensor& x, int steps, DType t) {
  Tensor y = (x / (x.square().sum({1, 2}, true).sqrt() + 1e-7)).to(t).contiguous();
  if (y.size(0) == 1) y = y.squeeze(0);
  for (int i = 0; i < steps; ++i) {
    const Tensor a = y.matmul(y.transpose(-1, -2));
    const Tensor b = a * -4.7750 + a.matmul(a) * 2.0315;
    y = y * 3.4445 + b.matmul(y);
  }
  return y.reshape(to_shape(x.shape()));
}

}  // namespace

Muon::Muon(const ParameterGroups& tensors, double lr, const MuonOptions& options)
    : Optimizer(require_matrices(tensors), lr), options_(options), m_(add_moments("m")) {}

void Muon::begin_step() {
  steps_.assign(count(), Tensor());
  std::map<std::tuple<std::string, bool, Shape>, std::vector<size_t>> alike;  // device, f64, shape
  std::vector<Tensor> wide(count());                                          // lying matrices
  for (size_t i = 0; i < count(); ++i) {
    const Tensor g = gradient(i);
    if (!g.defined()) continue;
    put(m_[i], m_[i] * options_.momentum + g);
    const Tensor direction = options_.nesterov ? g + m_[i] * options_.momentum : m_[i];
    const Tensor matrix = direction.reshape({g.size(0), -1});
    wide[i] = matrix.size(0) > matrix.size(1) ? matrix.t() : matrix;
    alike[{g.device(), g.dtype() == kF64, to_shape(wide[i].shape())}].push_back(i);
  }
  for (const auto& [form, members] : alike) {
    std::vector<Tensor> parts;
    for (size_t i : members) parts.push_back(wide[i]);
    const Tensor all = orthogonalized(Tensor::stack(parts), options_.steps, options_.dtype);
    for (size_t k = 0; k < members.size(); ++k)
      steps_[members[k]] = all.select(0, static_cast<int64_t>(k));
  }
}

Tensor Muon::updated(size_t i, const Tensor& p, const Tensor&) {
  const double rows = static_cast<double>(p.size(0)), columns = p.numel() / rows;
  const Tensor lying = std::exchange(steps_[i], Tensor());
  const Tensor step =
      (rows > columns ? lying.t() : lying).reshape(to_shape(p.shape())).to(p.dtype()) *
      std::sqrt(std::max(1.0, rows / columns));
  const Tensor from = options_.unit_rows ? p * (std::sqrt(rows) / norm_of(p)) : p;
  const double decay = weight_decay_of(i, options_.weight_decay);
  return from - lr_of(i) * (decay != 0 ? step + from * decay : step);
}

}  // namespace tiny
