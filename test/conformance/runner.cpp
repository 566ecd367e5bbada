#include "test/conformance/runner.h"

#include <map>

#include "test/conformance/compare.h"
#include "test/conformance/operators.h"
#include "test/reference.h"
#include "tiny/base/error.h"
#include "tiny/tensor/tensor.h"

namespace tiny::conformance {

namespace {

class CaseRun {
 public:
  CaseRun(const Suite& suite, const Case& c, const RunOptions& options)
      : suite_(suite), case_(c), options_(options) {}

  std::vector<std::string> run() {
    for (const Input& i : case_.inputs) bind_input(i);
    for (const Step& s : case_.steps) run_step(s);
    Tensors outputs;
    for (const Stored& o : case_.outputs) outputs.push_back(value(o.id));
    compare("", case_.outputs, outputs);
    if (!case_.grads.empty()) compare("gradient of ", case_.grads, gradients());
    return std::move(failures_);
  }

 private:
  Tensor load(const std::string& key) const {
    const StateEntry& e = suite_.tensor(key);
    return Tensor::from_bytes(e.data.data(), e.dtype, e.shape, options_.device);
  }

  void bind_input(const Input& i) {
    Tensor t = load(i.key);
    if (i.grad) t.requires_grad_();
    values_.emplace(i.id, t);
  }

  const Tensor& value(const std::string& id) const {
    const auto found = values_.find(id);
    check(found != values_.end(), "nothing defines ", id);
    return found->second;
  }

  void run_step(const Step& s) {
    const auto op = operators().find(s.op);
    check(op != operators().end(), "unsupported operation ", s.op);
    Tensors in;
    for (const std::string& id : s.in) in.push_back(id.empty() ? Tensor() : value(id));
    const Tensors out = op->second(Inputs(std::move(in)), s.args);
    check(out.size() == s.out.size(), s.op, " gave ", out.size(), " results, expected ",
          s.out.size());
    for (size_t k = 0; k < out.size(); ++k) values_.emplace(s.out[k], out[k]);
  }

  Tensors gradients() const {
    Tensor loss;
    for (const Stored& c : case_.cotangents) {
      const Tensor part = (value(c.id) * load(c.key)).sum();
      loss = loss.defined() ? loss + part : part;
    }
    if (loss.defined() && loss.requires_grad()) loss.backward();
    Tensors out;
    for (const Stored& g : case_.grads) {
      const Tensor grad = value(g.id).grad();
      out.push_back(grad.defined() ? grad : value(g.id).detach().zeros_like());
    }
    return out;
  }

  // The tensors' values, all computed together.
  std::vector<HostTensor> evaluated(Tensors& tensors) const {
    std::vector<HostTensor> out;
    if (options_.reference) {
      std::vector<Node> nodes;
      for (const Tensor& t : tensors) nodes.push_back(t.node());
      return evaluate(nodes);
    }
    std::vector<Tensor*> all;
    for (Tensor& t : tensors) all.push_back(&t);
    Tensor::realize(all);
    for (const Tensor& t : tensors) {
      out.emplace_back(t.dtype(), t.shape());
      t.to_bytes(out.back().data.data());
    }
    return out;
  }

  void compare(const char* what, const std::vector<Stored>& stored, Tensors tensors) {
    const std::vector<HostTensor> actual = evaluated(tensors);
    for (size_t i = 0; i < stored.size(); ++i) {
      const StateEntry& e = suite_.tensor(stored[i].key);
      HostTensor expected(e.dtype, e.shape);
      expected.data = e.data;
      const std::string text = difference(actual[i], expected, {case_.rtol, case_.atol});
      if (!text.empty()) failures_.push_back(cat(what, stored[i].id, " ", text));
    }
  }

  const Suite& suite_;
  const Case& case_;
  const RunOptions& options_;
  std::map<std::string, Tensor> values_;
  std::vector<std::string> failures_;
};

}  // namespace

std::vector<std::string> run_case(const Suite& suite, const Case& c, const RunOptions& options) {
  try {
    return CaseRun(suite, c, options).run();
  } catch (const std::exception& e) {
    return {cat("threw: ", e.what())};
  }
}

}  // namespace tiny::conformance
