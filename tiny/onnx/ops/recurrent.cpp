// RNN, GRU and LSTM. Steps are unrolled in the graph.
#include <algorithm>
#include <functional>

#include "tiny/onnx/ops/table.h"

namespace tiny::onnx {

namespace {

using Activation = std::function<Tensor(const Tensor&)>;

// alpha and beta: of the activations that have such numbers, where they are given.
Activation activation_of(Call& c, std::string name, std::optional<double> alpha,
                         std::optional<double> beta) {
  std::ranges::transform(name, name.begin(), to_lower);
  if (name == "tanh") return &Tensor::tanh;
  if (name == "sigmoid") return &Tensor::sigmoid;
  if (name == "relu") return &Tensor::relu;
  if (name == "softplus") return [](const Tensor& x) { return x.softplus(); };
  if (name == "softsign") return [](const Tensor& x) { return x / (x.abs() + 1); };
  if (name == "elu") return [a = alpha.value_or(1)](const Tensor& x) { return x.elu(a); };
  if (name == "leakyrelu")
    return [a = alpha.value_or(0.01)](const Tensor& x) { return x.leaky_relu(a); };
  if (name == "thresholdedrelu")
    return [a = alpha.value_or(1)](const Tensor& x) { return where(x > a, x, 0); };
  const double a = alpha.value_or(name == "hardsigmoid" ? 0.2 : 1), b = beta.value_or(0.5);
  if (name == "hardsigmoid") return [a, b](const Tensor& x) { return (x * a + b).clamp(0, 1); };
  if (name == "scaledtanh")
    return [a, b = beta.value_or(1)](const Tensor& x) { return (x * b).tanh() * a; };
  if (name == "affine") return [a, b = beta.value_or(0)](const Tensor& x) { return x * a + b; };
  c.require(false, "the activation ", name, " is unknown");
  return {};
}

bool takes_alpha(const std::string& name) {
  return name != "Tanh" && name != "Sigmoid" && name != "Relu" && name != "Softplus" &&
         name != "Softsign";
}
bool takes_beta(const std::string& name) {
  return name == "HardSigmoid" || name == "ScaledTanh" || name == "Affine";
}

// What the three layers have in common: x (T, N, I), for each direction weights and states.
struct Layer {
  Tensor x, lengths;  // lengths (N), or undefined
  int64_t steps, batch, hidden, directions;
  bool starts_at_end;                   // of the only direction
  std::vector<Activation> activations;  // of all directions
  std::optional<double> clip;

  Tensor clipped(const Tensor& t) const { return clip ? t.clamp(-*clip, *clip) : t; }
};

Layer layer_of(Call& c, size_t gates, const std::vector<std::string>& defaults) {
  Layer out;
  out.x = c.integer("layout", 0) != 0 ? c[0].transpose(0, 1) : c[0];
  c.require(out.x.rank() == 3 && c[1].rank() == 3 && c[2].rank() == 3, "shapes ",
            to_text(c[0].shape()), ", ", to_text(c[1].shape()), ", ", to_text(c[2].shape()),
            ", expected three axes each");
  out.steps = out.x.size(0);
  out.batch = out.x.size(1);
  out.hidden = c[2].size(2);
  out.directions = c[1].size(0);
  c.require(c[1].size(1) == static_cast<int64_t>(gates) * out.hidden, "weights ",
            to_text(c[1].shape()), " of ", gates, " gates and ", out.hidden, " units");
  const std::string direction = c.text("direction", "forward");
  out.starts_at_end = direction == "reverse";
  c.require(out.directions == (direction == "bidirectional" ? 2 : 1), out.directions,
            " sets of weights for the direction ", direction);
  out.lengths = c.optional(4);
  if (c.has_attribute("clip")) out.clip = c.real("clip", 0);
  std::vector<std::string> names = c.texts("activations");
  for (int64_t d = 0; names.empty() && d < out.directions; ++d)
    for (const std::string& name : defaults)
      out.activations.push_back(activation_of(c, name, {}, {}));
  auto alphas = c.reals("activation_alpha"), betas = c.reals("activation_beta");
  const auto taken = [](std::vector<double>& list, bool takes) {
    std::optional<double> out;
    if (!takes || list.empty()) return out;
    out = list.front();
    list.erase(list.begin());
    return out;
  };
  for (const std::string& name : names)
    out.activations.push_back(
        activation_of(c, name, taken(alphas, takes_alpha(name)), taken(betas, takes_beta(name))));
  c.require(out.activations.size() == defaults.size() * static_cast<size_t>(out.directions),
            out.activations.size(), " activations, expected ", defaults.size(),
            " for each direction");
  return out;
}

// Biases (gates H) of the input and of the state; zeros by default.
struct Biases {
  Tensor input, state;
};
Biases biases_of(Call& c, int64_t direction, int64_t width) {
  if (!c.has(3)) {
    const Tensor zero = Tensor::zeros({width}, c[0].dtype());
    return {zero, zero};
  }
  const Tensor all = c[3].select(0, direction);
  return {all.narrow(0, 0, width), all.narrow(0, width, width)};
}

// The initial state (N, H) of a direction.
Tensor initial_state(Call& c, size_t input, const Layer& layer, int64_t direction) {
  if (!c.has(input)) return Tensor::zeros({layer.batch, layer.hidden}, c[0].dtype());
  // (directions, N, H), or batch first.
  return c.integer("layout", 0) != 0 ? c[input].select(1, direction)
                                     : c[input].select(0, direction);
}

// Takes the products of x with all gates' weights, and the states, to the next states.
using Step = std::function<Tensors(const Tensor& gates, const Tensors& states)>;

struct Run {
  Tensors results;  // (N, H) for each step
  Tensors states;   // after the last
};

// A state stays as it is beyond the end of a sequence, where results are zero.
Run run_direction(const Layer& layer, const Tensor& gates, Tensors states, bool reverse,
                  const Step& step) {
  Run out;
  out.results.resize(static_cast<size_t>(layer.steps));
  for (int64_t i = 0; i < layer.steps; ++i) {
    const int64_t t = reverse ? layer.steps - 1 - i : i;
    Tensors next = step(gates.select(0, t), states);
    Tensor result = next[0];
    if (layer.lengths.defined()) {
      const Tensor lives = (layer.lengths > t).reshape({layer.batch, 1});
      for (size_t s = 0; s < states.size(); ++s) next[s] = where(lives, next[s], states[s]);
      result = where(lives, result, 0);
    }
    states = std::move(next);
    out.results[t] = result;
  }
  out.states = std::move(states);
  return out;
}

// All directions' results as the operators give them: Y (T, D, N, H), then the last states.
Tensors joined_runs(Call& c, const std::vector<Run>& runs) {
  Tensors by_direction;
  for (const Run& run : runs) by_direction.push_back(Tensor::stack(run.results));
  const bool is_batch_first = c.integer("layout", 0) != 0;
  Tensor y = Tensor::stack(by_direction, 1);
  if (is_batch_first) y = y.permute({2, 0, 1, 3});
  Tensors out = {y};
  for (size_t s = 0; s < runs[0].states.size(); ++s) {
    Tensors states;
    for (const Run& run : runs) states.push_back(run.states[s]);
    out.push_back(Tensor::stack(states, is_batch_first ? 1 : 0));
  }
  return out;
}

// Runs a step's maker for each direction: make(d, biases) gives the Step.
template <class Make>
Tensors run_layer(Call& c, const Layer& layer, size_t gates, size_t states, Make&& make) {
  std::vector<Run> runs;
  const int64_t width = static_cast<int64_t>(gates) * layer.hidden;
  for (int64_t d = 0; d < layer.directions; ++d) {
    const Biases biases = biases_of(c, d, width);
    const Tensor products = layer.x.matmul(c[1].select(0, d).t()) + biases.input;
    Tensors first;
    for (size_t s = 0; s < states; ++s) first.push_back(initial_state(c, 5 + s, layer, d));
    const bool reverse = layer.starts_at_end || d == 1;
    runs.push_back(
        run_direction(layer, products, std::move(first), reverse, make(d, biases.state)));
  }
  return joined_runs(c, runs);
}

// H' = f(X W + H R + b).
Tensors rnn(Call& c) {
  const Layer layer = layer_of(c, 1, {"Tanh"});
  return run_layer(c, layer, 1, 1, [&](int64_t d, const Tensor& bias) -> Step {
    const Tensor weight = c[2].select(0, d).t();
    const Activation& f = layer.activations[d];
    return [&layer, weight, bias, f](const Tensor& gates, const Tensors& states) -> Tensors {
      return {f(layer.clipped(gates + states[0].matmul(weight) + bias))};
    };
  });
}

// Gates z, r, h. The bias of the state's part of h is inside of the product with r where
// linear_before_reset is set.
Tensors gru(Call& c) {
  const Layer layer = layer_of(c, 3, {"Sigmoid", "Tanh"});
  const bool linear = c.integer("linear_before_reset", 0) != 0;
  const int64_t h = layer.hidden;
  return run_layer(c, layer, 3, 1, [&](int64_t d, const Tensor& bias) -> Step {
    const Tensor weight = c[2].select(0, d).t();  // (H, 3 H)
    const Activation& f = layer.activations[2 * d];
    const Activation& g = layer.activations[static_cast<size_t>(2 * d) + 1];
    return [&layer, weight, bias, f, g, h, linear](const Tensor& gates,
                                                   const Tensors& states) -> Tensors {
      const Tensor& state = states[0];
      const auto part = [h](const Tensor& t, int64_t i) { return t.narrow(-1, i * h, h); };
      const Tensor zr = gates.narrow(1, 0, 2 * h) + state.matmul(weight.narrow(1, 0, 2 * h)) +
                        bias.narrow(0, 0, 2 * h);
      const Tensor z = f(layer.clipped(part(zr, 0))), r = f(layer.clipped(part(zr, 1)));
      const Tensor own = linear ? r * (state.matmul(part(weight, 2)) + part(bias, 2))
                                : (r * state).matmul(part(weight, 2)) + part(bias, 2);
      const Tensor candidate = g(layer.clipped(part(gates, 2) + own));
      return {(1 - z) * candidate + z * state};
    };
  });
}

// Gates i, o, f, c, with peepholes P for the first three in that order.
Tensors lstm(Call& c) {
  const Layer layer = layer_of(c, 4, {"Sigmoid", "Tanh", "Tanh"});
  const bool couples = c.integer("input_forget", 0) != 0;
  const int64_t h = layer.hidden;
  return run_layer(c, layer, 4, 2, [&](int64_t d, const Tensor& bias) -> Step {
    const Tensor weight = c[2].select(0, d).t();
    const Tensor peepholes = c.has(7) ? c[7].select(0, d) : Tensor();
    const auto first = layer.activations.begin() + 3 * d;
    const std::vector<Activation> act(first, first + 3);
    return [&layer, weight, bias, peepholes, act, h, couples](const Tensor& gates,
                                                              const Tensors& states) -> Tensors {
      const Tensor all = gates + states[0].matmul(weight) + bias;
      const auto gate = [&](int64_t i, const Tensor& cell) {
        const Tensor sum = all.narrow(1, i * h, h);
        return peepholes.defined() ? sum + peepholes.narrow(0, i * h, h) * cell : sum;
      };
      const Tensor& cell = states[1];
      const Tensor i = act[0](layer.clipped(gate(0, cell)));
      const Tensor f = couples ? 1 - i : act[0](layer.clipped(gate(2, cell)));
      const Tensor next = f * cell + i * act[1](layer.clipped(all.narrow(1, 3 * h, h)));
      const Tensor o = act[0](layer.clipped(gate(1, next)));
      return {o * act[2](next), next};
    };
  });
}

constexpr Operator kRecurrent[] = {
    {"GRU", 7, kFloats, gru},
    {"LSTM", 7, kFloats, lstm},
    {"RNN", 7, kFloats, rnn},
};

}  // namespace

std::span<const Operator> recurrent_operators() { return kRecurrent; }

}  // namespace tiny::onnx
