#include "tiny/nn/lora.h"

#include <algorithm>
#include <cmath>
#include <string_view>

namespace tiny::nn {

namespace {

constexpr std::string_view kNames[] = {"lora_A.weight", "lora_B.weight"};

bool is_adapters(const std::string& name) {
  return std::any_of(std::begin(kNames), std::end(kNames), [&](std::string_view end) {
    return name == end || name.ends_with("." + std::string(end));
  });
}

// Whether a text is a pattern, in which * stands for any text.
bool matches(std::string_view text, std::string_view pattern) {
  if (pattern.empty()) return text.empty();
  if (pattern[0] != '*')
    return !text.empty() && text[0] == pattern[0] && matches(text.substr(1), pattern.substr(1));
  for (size_t i = 0; i <= text.size(); ++i)
    if (matches(text.substr(i), pattern.substr(1))) return true;
  return false;
}

bool fits(const std::string& name, const std::string& pattern) {
  if (matches(name, pattern)) return true;
  for (size_t point = name.find('.'); point != name.npos; point = name.find('.', point + 1))
    if (matches(std::string_view(name).substr(point + 1), pattern)) return true;
  return false;
}

// "a, b, c and 9 more".
std::string some_names(const std::vector<Product>& products) {
  constexpr size_t kMax = 6;
  std::string out;
  for (size_t i = 0; i < std::min(products.size(), kMax); ++i)
    out += (i ? ", " : "") + products[i].name;
  if (products.size() > kMax) out += cat(" and ", products.size() - kMax, " more");
  return out.empty() ? "none" : out;
}

void forget_gradient(Tensor& t) {
  if (t.defined()) t.requires_grad_(false);
}

template <class F> void each_lora(Module& module, F&& f) {
  for (const Product& p : products_of(module))
    if (auto* lora = dynamic_cast<Lora*>(p.adapter->get())) f(*lora, p);
}

}  // namespace

// --- Lora ----------------------------------------------------------------------------------------

Lora::Lora(const Tensor& weight, bool input_first, const LoraOptions& given)
    : options(given), input_first_(input_first) {
  check(weight.rank() == 2 && weight.dtype().is_float(), "LoRA: takes a matrix of floats and not ",
        weight.dtype(), " ", to_text(weight.shape()));
  check(options.rank >= 1, "LoRA: a rank of ", options.rank, ": takes one of 1 or more");
  check(options.dropout >= 0 && options.dropout <= 1, "LoRA: dropout ", options.dropout,
        " is no probability");
  const int64_t in = weight.size(input_first ? 0 : 1), out = weight.size(input_first ? 1 : 0);
  const DType dtype = weight.dtype() == kF64 ? kF64 : kF32;
  const double bound = 1 / std::sqrt(static_cast<double>(std::max<int64_t>(in, 1)));
  a = Tensor::uniform({options.rank, in}, -bound, bound, dtype);
  b = Tensor::zeros({out, options.rank}, dtype).contiguous();
  for (Tensor* t : {&a, &b}) {
    if (!weight.device().empty()) *t = t->to(weight.device());
    t->realize().requires_grad_();
  }
}

Tensor Lora::add_to(const Tensor& y, const Tensor& x) {
  if (merged_) return y;
  const Tensor dropped = tiny::dropout(x, options.dropout, is_training());
  const Tensor low = dropped.to(a.dtype()).linear(a).to(a.dtype());
  const Tensor added = low.linear(b) * (options.alpha / static_cast<double>(options.rank));
  return y + added.to(y.dtype());
}

void Lora::state(StateDict& out, const std::string& prefix) {
  out.push_back({cat(prefix, kNames[0]), &a});
  out.push_back({cat(prefix, kNames[1]), &b});
}

Tensor Lora::difference() const {
  const Tensor d =
      b.detach().matmul(a.detach()) * (options.alpha / static_cast<double>(options.rank));
  return input_first_ ? d.t() : d;
}

void Lora::merge(Tensor& weight) {
  check(!merged_, "LoRA: the adapter is merged already");
  const NoGrad no_grad;
  weight.assign(weight.detach().to(a.dtype()) + difference()).realize();
  merged_ = true;
}

void Lora::unmerge(Tensor& weight) {
  check(merged_, "LoRA: the adapter is not merged");
  const NoGrad no_grad;
  weight.assign(weight.detach().to(a.dtype()) - difference()).realize();
  merged_ = false;
}

LoraLinear::LoraLinear(Linear given, const LoraOptions& options) : base(std::move(given)) {
  check(!base.adapter, "LoraLinear: the layer has an adapter already");
  base.adapter = std::make_shared<Lora>(base.weight, /*input_first=*/false, options);
  forget_gradient(base.weight);
  forget_gradient(base.bias);
}

// --- Adapters of a module ------------------------------------------------------------------------

int64_t add_lora(Module& module, const std::vector<std::string>& patterns,
                 const LoraOptions& options) {
  const std::vector<Product> products = products_of(module);
  std::vector<Product> chosen;
  for (const std::string& pattern : patterns) {
    const size_t before = chosen.size();
    bool found = false;
    for (const Product& p : products) {
      if (!fits(p.name, pattern)) continue;
      found = true;
      const auto is_same = [&](const Product& c) { return c.adapter == p.adapter; };
      if (std::any_of(chosen.begin(), chosen.begin() + static_cast<int64_t>(before), is_same))
        continue;  // of another pattern
      check(!*p.adapter, "add_lora: ", p.name, " has an adapter already");
      chosen.push_back(p);
    }
    check(found, "add_lora: no product fits '", pattern, "'; there are ", some_names(products));
  }
  for (const NamedTensor& named : module.state_dict())
    if (!is_adapters(named.name)) forget_gradient(*named.tensor);
  for (const Product& p : chosen)
    *p.adapter = std::make_shared<Lora>(*p.weight, p.input_first, options);
  return static_cast<int64_t>(chosen.size());
}

StateDict lora_state_dict(Module& module, const std::string& prefix) {
  StateDict out;
  for (const NamedTensor& named : module.state_dict(prefix))
    if (is_adapters(named.name)) out.push_back(named);
  return out;
}

void merge_lora(Module& module) {
  each_lora(module, [](Lora& lora, const Product& p) { lora.merge(*p.weight); });
}

void unmerge_lora(Module& module) {
  each_lora(module, [](Lora& lora, const Product& p) { lora.unmerge(*p.weight); });
}

void remove_lora(Module& module) {
  for (const Product& p : products_of(module))
    if (dynamic_cast<Lora*>(p.adapter->get())) p.adapter->reset();
}

}  // namespace tiny::nn
