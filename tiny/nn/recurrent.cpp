// Recurrent cells, and layers of them over sequences.
#include "tiny/nn/functional.h"
#include "tiny/tensor/detail.h"

namespace tiny {

namespace {

constexpr int64_t kLstmGates = 4, kGruGates = 3;

void check_weights(const char* what, const CellWeights& w, int64_t gates, int64_t inputs,
                   int64_t size) {
  check(same(w.w_ih.shape(), Shape{gates * size, inputs}) &&
            same(w.w_hh.shape(), Shape{gates * size, size}),
        what, ": weights of ", to_text(w.w_ih.shape()), " and ", to_text(w.w_hh.shape()),
        " for an input of ", inputs, " and a state of ", size, " elements: takes ",
        to_text(Shape{gates * size, inputs}), " and ", to_text(Shape{gates * size, size}));
}

void check_cell(const char* what, const Tensor& x, const Tensor& h, const CellWeights& w,
                int64_t gates) {
  detail::require_float(what, x.dtype());
  check(x.rank() >= 1 && h.rank() >= 1, what, ": takes (..., I) and (..., H)");
  check_weights(what, w, gates, x.size(-1), h.size(-1));
}

// Part `i` of the gates stacked in the last axis.
Tensor gate(const Tensor& gates, int64_t i, int64_t size) {
  return gates.narrow(-1, i * size, size);
}

Tensor linear_wide(const Tensor& x, const Tensor& weight, const Tensor& bias, DType wide) {
  return x.to(wide).linear(weight.to(wide), bias.defined() ? bias.to(wide) : bias);
}

// The next state from both parts of the gates, all in one dtype.
LstmState lstm_next(const Tensor& from_x, const Tensor& from_h, const LstmState& state) {
  const int64_t size = state.c.size(-1);
  const Tensor gates = from_x + from_h;
  const Tensor i = gate(gates, 0, size).sigmoid(), f = gate(gates, 1, size).sigmoid();
  const Tensor g = gate(gates, 2, size).tanh(), o = gate(gates, 3, size).sigmoid();
  const Tensor c = f * state.c + i * g;
  return {o * c.tanh(), c};
}

LstmState gru_next(const Tensor& from_x, const Tensor& from_h, const LstmState& state) {
  const int64_t size = state.h.size(-1);
  const Tensor r = (gate(from_x, 0, size) + gate(from_h, 0, size)).sigmoid();
  const Tensor z = (gate(from_x, 1, size) + gate(from_h, 1, size)).sigmoid();
  const Tensor n = (gate(from_x, 2, size) + r * gate(from_h, 2, size)).tanh();
  return {(1 - z) * n + z * state.h, Tensor()};
}

}  // namespace

LstmState lstm_cell(const Tensor& x, const LstmState& state, const CellWeights& w) {
  LabelScope label("lstm_cell");
  check_cell("lstm_cell", x, state.h, w, kLstmGates);
  const DType t = x.dtype(), wide = detail::compute_dtype(t);
  const LstmState next =
      lstm_next(linear_wide(x, w.w_ih, w.b_ih, wide), linear_wide(state.h, w.w_hh, w.b_hh, wide),
                {state.h, state.c.to(wide)});
  return {next.h.to(t), next.c.to(t)};
}

Tensor gru_cell(const Tensor& x, const Tensor& h, const CellWeights& w) {
  LabelScope label("gru_cell");
  check_cell("gru_cell", x, h, w, kGruGates);
  const DType wide = detail::compute_dtype(x.dtype());
  return gru_next(linear_wide(x, w.w_ih, w.b_ih, wide), linear_wide(h, w.w_hh, w.b_hh, wide),
                  {h.to(wide), Tensor()})
      .h.to(x.dtype());
}

// --- Layers --------------------------------------------------------------------------------------

namespace {

// A kind of cell; a GRU has no c.
struct Cell {
  const char* what;
  int64_t gates;
  LstmState (*next)(const Tensor& from_x, const Tensor& from_h, const LstmState& state);
  bool has_c() const { return gates == kLstmGates; }
};

// Sequences (T, N, ...) of one layer, and where they end.
struct Sweep {
  Tensor y;  // (T, N, H)
  LstmState last;
};

// One layer in one direction. The inputs' part of the gates is one product for all steps.
Sweep sweep(const Cell& cell, const Tensor& x, LstmState state, const CellWeights& w,
            bool backwards) {
  const int64_t steps = x.size(0);
  const Tensor from_x = x.linear(w.w_ih, w.b_ih);
  std::vector<Tensor> y(static_cast<size_t>(steps));
  for (int64_t i = 0; i < steps; ++i) {
    const int64_t t = backwards ? steps - 1 - i : i;
    // A copy, so that all steps run the same kernels.
    const Tensor step = from_x.select(0, t).contiguous();
    state = cell.next(step, state.h.linear(w.w_hh, w.b_hh), state);
    y[t] = state.h;
  }
  return {Tensor::stack(y), state};
}

CellWeights to_dtype(const CellWeights& w, DType t) {
  const auto cast = [t](const Tensor& x) { return x.defined() ? x.to(t) : x; };
  return {w.w_ih.to(t), w.w_hh.to(t), cast(w.b_ih), cast(w.b_hh)};
}

// Checks the shapes of x (T, N, I) and of all weights; gives the size of the state.
int64_t check_layers(const Cell& cell, const Tensor& x, const std::vector<CellWeights>& weights,
                     int directions) {
  check(!weights.empty() && weights.size() % directions == 0, cell.what, ": ", weights.size(),
        " sets of weights: takes one for each layer", directions == 2 ? " and direction" : "");
  check(weights[0].w_hh.defined() && weights[0].w_hh.rank() == 2, cell.what,
        ": the weights of a state are (gates H, H)");
  const int64_t size = weights[0].w_hh.size(1);
  for (size_t i = 0; i < weights.size(); ++i) {
    const bool first = i < static_cast<size_t>(directions);
    check_weights(cell.what, weights[i], cell.gates, first ? x.size(2) : directions * size, size);
  }
  return size;
}

// The state of all layers before the first step, (layers directions, N, H), or without N.
Tensor initial_state(const Cell& cell, const char* name, const Tensor& given, const Shape& shape,
                     const Tensor& steps) {
  if (!given.defined()) {
    const Node zeros = Tensor::zeros(shape, steps.dtype()).node(), n = steps.node()->length(1);
    return Tensor(n ? build::limit(zeros, 1, n) : zeros);
  }
  check(same(given.capacity(), shape), cell.what, ": the initial ", name, " has shape ",
        to_text(given.capacity()), " and not ", to_text(shape));
  return given.to(steps.dtype());
}

// x (T, N, I) to y (T, N, directions H) and the last states, all in the dtype of the weights.
Sweep run_layers(const Cell& cell, const Tensor& x, const LstmState& initial,
                 const std::vector<CellWeights>& weights, const RecurrentOptions& o) {
  const size_t directions = o.bidirectional ? 2 : 1, layers = weights.size() / directions;
  Tensor y = x;
  std::vector<Tensor> h, c;
  for (size_t layer = 0; layer < layers; ++layer) {
    if (layer > 0) y = dropout(y, o.dropout, o.training);
    std::vector<Tensor> parts;
    for (size_t d = 0; d < directions; ++d) {
      const size_t i = layer * directions + d;
      const auto part = [i](const Tensor& t) {
        return t.defined() ? t.select(0, static_cast<int64_t>(i)) : t;
      };
      const Sweep s =
          sweep(cell, y, {part(initial.h), part(initial.c)}, to_dtype(weights[i], y.dtype()), d);
      parts.push_back(s.y);
      h.push_back(s.last.h);
      if (cell.has_c()) c.push_back(s.last.c);
    }
    y = Tensor::cat(parts, -1);
  }
  return {y, {Tensor::stack(h), cell.has_c() ? Tensor::stack(c) : Tensor()}};
}

Sweep recurrent(const Cell& cell, const Tensor& x, const LstmState& initial,
                const std::vector<CellWeights>& weights, const RecurrentOptions& o) {
  LabelScope label(cell.what);
  detail::require_float(cell.what, x.dtype());
  check(x.rank() == 2 || x.rank() == 3, cell.what, ": takes (T, N, I) or (T, I) and not ",
        to_text(x.capacity()));
  const bool batched = x.rank() == 3;
  const auto in_front = [&](const Tensor& t) {  // steps first, with a batch
    return !batched ? t.unsqueeze(1) : o.batch_first ? t.transpose(0, 1) : t;
  };
  const auto as_given = [&](const Tensor& t) {
    return (!batched ? t.squeeze(1) : o.batch_first ? t.transpose(0, 1) : t).to(x.dtype());
  };
  const DType wide = detail::compute_dtype(x.dtype());
  const Tensor steps = in_front(x).to(wide);
  check(steps.size(0) > 0, cell.what, ": a sequence of no steps");
  const int64_t size = check_layers(cell, steps, weights, o.bidirectional ? 2 : 1);
  Shape shape{static_cast<int64_t>(weights.size()), size};
  if (batched) shape.insert(shape.begin() + 1, steps.capacity()[1]);
  const auto state = [&](const char* name, const Tensor& t) {
    const Tensor s = initial_state(cell, name, t, shape, steps);
    return batched ? s : s.unsqueeze(1);
  };
  const LstmState before{state("h", initial.h), cell.has_c() ? state("c", initial.c) : Tensor()};
  const Sweep s = run_layers(cell, steps, before, weights, o);
  const auto last = [&](const Tensor& t) { return (batched ? t : t.squeeze(1)).to(x.dtype()); };
  return {as_given(s.y), {last(s.last.h), cell.has_c() ? last(s.last.c) : Tensor()}};
}

}  // namespace

LstmResult lstm(const Tensor& x, const LstmState& initial, const std::vector<CellWeights>& weights,
                const RecurrentOptions& options) {
  const Sweep s = recurrent({"lstm", kLstmGates, lstm_next}, x, initial, weights, options);
  return {s.y, s.last};
}

GruResult gru(const Tensor& x, const Tensor& initial, const std::vector<CellWeights>& weights,
              const RecurrentOptions& options) {
  const Cell cell{"gru", kGruGates, gru_next};
  const Sweep s = recurrent(cell, x, {initial, Tensor()}, weights, options);
  return {s.y, s.last.h};
}

}  // namespace tiny
