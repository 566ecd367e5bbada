#include "tiny/train/mixed_precision.h"

#include "tiny/tensor/detail.h"

namespace tiny {

namespace {

thread_local DType products = kF32;

}  // namespace

Autocast::Autocast(DType dtype) : before_(products) {
  check(dtype.is_half() || dtype == kF32 || dtype == kF8E4M3,
        "Autocast: takes f16, bf16, f8e4m3 or f32, which switches it off, and not ", dtype.name());
  products = dtype;
}

Autocast::~Autocast() { products = before_; }

DType detail::autocast_dtype() { return products == kF8E4M3 ? kBF16 : products; }

bool detail::autocasts_to_f8() { return products == kF8E4M3; }

Tensor detail::autocast(const Tensor& x) {
  if (products == kF32 || !(x.dtype() == kF32 || x.dtype().is_half())) return x;
  return x.to(autocast_dtype());
}

DType detail::autocast_loss(DType t) { return products != kF32 && t.is_half() ? kF32 : t; }

// --- LossScaler ----------------------------------------------------------------------------------

LossScaler::LossScaler(const std::vector<Optimizer*>& optimizers, const LossScale& options)
    : optimizers_(optimizers), options_(options) {
  check(!optimizers.empty(), "LossScaler: no optimizers");
  check(options.start > 0 && options.growth >= 1 && options.backoff > 0 && options.backoff < 1 &&
            options.every >= 1,
        "LossScaler: a scale of ", options.start, ", growth ", options.growth, " every ",
        options.every, " steps, backoff ", options.backoff,
        ": takes a scale > 0, a growth >= 1 and a backoff in (0, 1)");
  const std::string device = optimizers[0]->lr_.device();
  scale_ = Tensor::from(std::vector<float>{static_cast<float>(options.start)}, {}, device);
  good_steps_ = Tensor::from(std::vector<float>{0}, {}, device);
}

Tensor LossScaler::scaled(const Tensor& loss) const {
  return loss.to(kF32) * scale_.to(loss.device());
}

// Whether all of them are finite: a sum of what is 0 for finite numbers and else is not.
Tensor LossScaler::unscale_gradients() {
  Tensor sum;
  const Tensor factor = scale_.reciprocal();
  for (Optimizer* o : optimizers_)
    for (const auto& parameter : o->parameters_) {
      const Tensor* p = parameter.tensor;
      const Tensor grad = p->grad();
      if (!grad.defined()) continue;
      const Tensor wide = grad.to(detail::compute_dtype(grad.dtype()));
      const Tensor none = (wide * 0).sum().to(kF32);
      sum = sum.defined() ? sum + none.to(sum.device()) : none.to(scale_.device());
      p->set_grad(wide * factor.to(wide.device()));
    }
  check(sum.defined(), "LossScaler: no parameter has a gradient");
  return (sum == 0).contiguous();
}

void LossScaler::step(std::initializer_list<Tensor*> also) {
  const NoGrad no_grad;
  const Tensor finite = unscale_gradients();
  std::vector<Tensor*> all(also);
  for (Optimizer* o : optimizers_) {
    o->taken_ = finite;
    o->update();
    o->taken_ = Tensor();
    const std::vector<Tensor*> own = o->all_tensors();
    all.insert(all.end(), own.begin(), own.end());
  }
  const Tensor good = good_steps_ + 1, grows = good >= static_cast<double>(options_.every);
  const Tensor larger = where(grows, scale_ * options_.growth, scale_);
  // A larger one must be finite itself.
  const Tensor next = where(larger.isfinite(), larger, scale_);
  scale_.assign(where(finite, next, scale_ * options_.backoff));
  good_steps_.assign(where(logical_and(finite, grows.logical_not()), good, 0));
  all.push_back(&scale_);
  all.push_back(&good_steps_);
  Tensor::realize(all);
}

double LossScaler::scale() const { return scale_.item<float>(); }

StateDict LossScaler::state_dict(const std::string& prefix) {
  return {{prefix + "scale", &scale_}, {prefix + "good_steps", &good_steps_}};
}

}  // namespace tiny
