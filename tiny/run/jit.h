// Jit: a function of tensors that is recorded once and then replayed, without building, scheduling
// or looking up anything again.
//
//   Jit step([&](const Tensor& x, const Tensor& y) {
//     Tensor loss = cross_entropy(model(x), y);
//     loss.backward();
//     optimizer.step({&loss});
//     return loss;
//   });
//   for (...) Tensor loss = step(x, y);
//
// The first call runs the function, the second records what it computes, later ones replay that
// with the arguments' new values: the kernels are the same, the results bit for bit those of a call
// without Jit. Arguments are Tensors, std::vectors of them
// and Variables (a capture serves all values between their bounds); results the same, also in
// pairs, tuples and arrays, or nothing. Results are computed and want no gradient, and stay what
// they are in later calls.
//
// Tensors that the function reaches from outside (weights, moments, data) are read where they are;
// what it assigns to them is assigned by each replay, and computed with the results. On the CPU
// what is made of such tensors alone, like weights that are packed for products, is made again only
// when they have changed. Random numbers go on: each replay takes the next part of the stream. What
// would make a replay differ from a call is an Error that says what to do: arguments of another
// shape, dtype or device, one tensor given twice or also assigned to, a value read on the host in
// the function, data made from host values in it, a tensor from outside that was replaced by
// another and let go, tensors from outside that the function itself puts in each other's places,
// tensors made inside that outlive the call (gradients as well: micro-steps that add up are one
// function, with the optimizer's step; a cache has its full size and memory of its own before).
// Tensors from outside that change places with others between calls, as by std::swap, move away or
// are assigned what cannot be computed in their memory are seen: the step is recorded again, eight
// times at most, then called. Plain C++ values that the function reads are those of the second call
// for ever: give such as arguments.
//
// JIT=0 calls the function each time; JIT=2 replays a plain list of launches where the device has
// graphs; JIT_CHECK=1 compares each replay with a call.
#pragma once
#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "tiny/tensor/variable.h"

namespace tiny {

// Counts of a Jit's calls so far, and the contents of a replay.
struct JitStatistics {
  int64_t calls = 0, captures = 0, replays = 0;  // calls: of the function
  size_t kernels = 0;
  int64_t arena_bytes = 0;  // intermediate values
};

// The part that knows nothing of the function's type.
class JitCore {
 public:
  using Tensors = std::vector<Tensor>;
  using Body = std::function<Tensors(const Tensors&)>;

  JitCore();
  ~JitCore();
  JitCore(JitCore&&) noexcept;
  JitCore& operator=(JitCore&&) noexcept;

  Tensors call(const Tensors& arguments, const Body& body);
  void reset();  // the next call runs the function, the one after that records again
  const JitStatistics& statistics() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

namespace jit_detail {

// Applies f to every tensor of a value, in order.
template <class F> void each(Tensor& t, F&& f) { f(t); }
template <class F> void each(Variable& v, F&& f) { v.exchange(f); }
template <class F> void each(std::vector<Tensor>& list, F&& f) {
  for (Tensor& t : list) f(t);
}
template <size_t N, class F> void each(std::array<Tensor, N>& list, F&& f) {
  for (Tensor& t : list) f(t);
}
template <class... T, class F> void each(std::tuple<T...>& all, F&& f) {
  std::apply([&](auto&... parts) { (each(parts, f), ...); }, all);
}
template <class A, class B, class F> void each(std::pair<A, B>& both, F&& f) {
  each(both.first, f);
  each(both.second, f);
}

template <class T> std::vector<Tensor> tensors_of(T& value) {
  std::vector<Tensor> out;
  each(value, [&](Tensor& t) { out.push_back(t); });
  return out;
}

template <class T> void put_tensors(T& value, const std::vector<Tensor>& tensors) {
  size_t i = 0;
  each(value, [&](Tensor& t) { t = tensors[i++]; });
}

}  // namespace jit_detail

template <class Function> class Jit {
 public:
  explicit Jit(Function function) : function_(std::move(function)) {}

  // Throws Error where a replay could not give what a call would.
  template <class... Args> auto operator()(const Args&... args) {
    using Result = std::invoke_result_t<Function&, const Args&...>;
    std::tuple<Args...> given(args...);
    std::optional<std::conditional_t<std::is_void_v<Result>, std::tuple<>, Result>> result;
    const auto body = [&](const std::vector<Tensor>& arguments) {
      std::tuple<Args...> inner = given;
      jit_detail::put_tensors(inner, arguments);
      if constexpr (std::is_void_v<Result>) {
        std::apply(function_, inner);
        result.emplace();
      } else {
        result = std::apply(function_, inner);
      }
      std::vector<Tensor> out = jit_detail::tensors_of(*result);
      counts_ = counts_of(*result);
      jit_detail::each(*result, [](Tensor& t) { t = Tensor(); });
      return out;
    };
    std::vector<Tensor> arguments = jit_detail::tensors_of(given);
    if (!trace_) remember(given, arguments);
    const std::vector<Tensor> out = core_.call(arguments, body);
    if (!result) {
      result.emplace();
      set_counts(*result);
    }
    jit_detail::put_tensors(*result, out);
    if constexpr (!std::is_void_v<Result>) return *std::move(result);
  }

  void reset() { core_.reset(); }
  const JitStatistics& statistics() const { return core_.statistics(); }

  // What the function gives for these arguments, as a graph that nothing runs: for exports. Error
  // before the first call, which says what the arguments are.
  std::vector<Tensor> trace(const std::vector<Tensor>& arguments) {
    check(static_cast<bool>(trace_), "Jit: trace before the first call");
    return trace_(function_, arguments);
  }
  // Zeros in the shapes and dtypes of the first call's arguments; of a Variable with its bounds.
  const std::vector<Tensor>& examples() const { return examples_; }

 private:
  template <class Given> void remember(Given given, const std::vector<Tensor>& arguments) {
    for (const Tensor& t : arguments) {
      examples_.push_back(Tensor::zeros(to_shape(t.capacity()), t.dtype()));
      const Node zeros = examples_.back().node();
      if (t.node()->op == Op::Bound) examples_.back() = Tensor(with_sources(t.node(), {&zeros, 1}));
    }
    jit_detail::put_tensors(given, examples_);  // the arguments themselves may go
    trace_ = [given](Function& function, const std::vector<Tensor>& tensors) {
      Given inner = given;
      jit_detail::put_tensors(inner, tensors);
      if constexpr (std::is_void_v<decltype(std::apply(function, inner))>) {
        std::apply(function, inner);
        return std::vector<Tensor>();
      } else {
        auto result = std::apply(function, inner);
        return jit_detail::tensors_of(result);
      }
    };
  }
  // Lengths of the lists in a result, in order.
  template <class T> static std::vector<size_t> counts_of(T& value) {
    std::vector<size_t> out;
    lists(value, [&](std::vector<Tensor>& list) { out.push_back(list.size()); });
    return out;
  }
  template <class T> void set_counts(T& value) const {
    size_t i = 0;
    lists(value, [&](std::vector<Tensor>& list) { list.resize(counts_[i++]); });
  }
  template <class T, class F> static void lists(T& value, F&& f) {
    if constexpr (std::is_same_v<T, std::vector<Tensor>>)
      f(value);
    else if constexpr (requires { std::tuple_size<T>::value; })
      std::apply([&](auto&... parts) { (lists(parts, f), ...); }, value);
  }

  Function function_;
  JitCore core_;
  std::vector<size_t> counts_;
  std::function<std::vector<Tensor>(Function&, const std::vector<Tensor>&)> trace_;
  std::vector<Tensor> examples_;
};

}  // namespace tiny
