#include "runtime/jit/arguments.h"

#include "tiny/base/error.h"

namespace tiny {

std::string to_text(const ArgumentSpec& a) {
  const std::string text = cat(a.dtype, ' ', tiny::to_text(a.shape), ' ', a.device);
  if (a.bounds.empty()) return text;
  return cat("a Variable in [", a.bounds[0], ", ", a.bounds[1], "], ", text);
}

ArgumentSpec spec_of(const Tensor& t, const Buffer& b) {
  const bool is_variable = t.node()->op == Op::Bound;
  return {t.dtype(), to_shape(t.shape()), b.device_name(),
          is_variable ? to_shape(t.node()->ints()) : Shape()};
}

std::vector<std::shared_ptr<Buffer>> buffers_of(std::vector<Tensor>& arguments) {
  std::vector<std::shared_ptr<Buffer>> out;
  for (size_t i = 0; i < arguments.size(); ++i) {
    Tensor& t = arguments[i];
    check(t.defined(), "Jit: argument ", i, " is no tensor");
    check(!t.node()->lengths, "Jit: argument ", i, " of ", tiny::to_text(t.capacity()),
          " has a length that is a Variable: give the whole tensor and the Variable");
    check(!t.requires_grad(), "Jit: argument ", i,
          " wants a gradient, which a replay could not add to it: give x.detach(), or let the step "
          "reach the tensor from outside");
    std::shared_ptr<Buffer> b = whole_buffer(t.node());
    if (!b && t.numel()) {
      t = t.contiguous().realize();
      b = whole_buffer(t.node());
    }
    // Without elements it is a constant; its buffer is one that nobody reads.
    if (!b) b = std::make_shared<Buffer>(runtime_seam::default_device(), t.dtype(), 0);
    out.push_back(std::move(b));
  }
  return out;
}

std::vector<ArgumentSpec> specs_of(const std::vector<Tensor>& arguments,
                                   const std::vector<std::shared_ptr<Buffer>>& buffers) {
  std::vector<ArgumentSpec> out;
  for (size_t i = 0; i < arguments.size(); ++i) out.push_back(spec_of(arguments[i], *buffers[i]));
  return out;
}

void check_aliases(const std::vector<Tensor>& arguments,
                   const std::vector<std::shared_ptr<Buffer>>& buffers) {
  for (size_t i = 0; i < buffers.size(); ++i)
    for (size_t j = 0; j < i; ++j)
      check(buffers[i]->data() != buffers[j]->data() || arguments[i].node()->op == Op::Bound,
            "Jit: arguments ", j, " and ", i,
            " are one tensor, and later calls may give two: give x.contiguous() for one of them");
}

}  // namespace tiny
