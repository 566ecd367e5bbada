// Recurrent layers. Expected numbers are those of torch.nn.LSTM and torch.nn.GRU, PyTorch 1.13, in
// f64 with every tensor filled by `pattern`.
#include <doctest/doctest.h>

#include "runtime/realize/realize.h"
#include "tiny/nn/layers.h"
#include "tiny/tensor/random.h"
#include "tiny/train/optim.h"

using namespace tiny;

namespace {

using Numbers = std::vector<double>;

Tensor pattern(const Shape& shape, int64_t k) {
  return (mod(Tensor::arange(numel(shape)) * 7 + k * 5, 11) - 5).to(kF64).reshape(shape) / 10;
}

void check_numbers(const Tensor& t, const Numbers& expected, double tolerance = 1e-8) {
  const Numbers got = t.to(kF64).to_vector<double>();
  REQUIRE(got.size() == expected.size());
  for (size_t i = 0; i < got.size(); ++i)
    CHECK_MESSAGE(std::abs(got[i] - expected[i]) <= tolerance, "element ", i, ": ", got[i],
                  " against ", expected[i]);
}

// A layer with the pattern in its tensors, in the order of the state; k counts on.
template <class Layer>
Layer patterned(const nn::RecurrentLayerOptions& options, int64_t& k, DType t = kF64) {
  Layer layer(2, 2, options, t);
  for (const NamedTensor& named : layer.state_dict())
    named.tensor->assign(pattern(to_shape(named.tensor->shape()), k++).to(t));
  return layer;
}

// Sum of the gradients of all parameters, weighed by a pattern.
double gradient_sum(nn::Module& layer) {
  double sum = 0;
  for (Tensor* p : layer.parameters())
    sum += (p->grad() * pattern(to_shape(p->shape()), 3)).sum().item<double>();
  return sum;
}

struct Expected {
  int64_t layers;
  bool bidirectional;
  Numbers y, h, c, x_gradient;
  double gradients;
};

const Expected kLstm[] = {
    {1,
     false,
     {0.138397712, -0.115881266, 0.112491036, -0.0417540671, 0.174236028, -0.0569735287,
      0.163544636, -0.0632816352, 0.171122498, -0.118755342, 0.22790607, -0.12849237},
     {0.171122498, -0.118755342, 0.22790607, -0.12849237},
     {0.357953629, -0.188028136, 0.566992986, -0.237505663},
     {-0.0279512646, -0.0730197656, 0.00331836755, 0.0203658888, -0.100710406, -0.0305947688,
      -0.0118063054, -0.0525247963, -0.129535061, -0.148371684, -0.0988708024, -0.0525984929},
     0.872056146967},
    {2,
     true,
     {-0.14592658,   0.097318934,   0.182686972,   -0.178594495,  0.036482452,    -0.0850449833,
      0.166789627,   -0.160441779,  -0.113023977,  0.0682518574,  0.19090454,     -0.148707113,
      -0.0243916836, -0.0317831673, 0.129521107,   -0.112172103,  -0.103751323,   0.0340884687,
      0.203351905,   -0.0991140208, -0.0575351568, -0.0134117591, -0.00031497007, -0.0274521621},
     {0.189548849, -0.025484034, 0.214793921, -0.140786986, 0.0203329915, 0.178889806,
      -0.00801401232, 0.162719149, -0.103751323, 0.0340884687, -0.0575351568, -0.0134117591,
      0.182686972, -0.178594495, 0.166789627, -0.160441779},
     {0.400023944, -0.0460468429, 0.475306367, -0.234799435, 0.0560391141, 0.420588335,
      -0.0185733819, 0.329525112, -0.178743931, 0.0861487611, -0.0946906733, -0.0346084941,
      0.377291471, -0.336869782, 0.341872684, -0.317425017},
     {0.0111615437, 0.120172095, 0.0654466806, 0.148535343, -0.0410473881, 0.0240901479,
      -0.0353575969, 0.0319722897, -0.125598108, -0.0310168021, -0.130785872, -0.0361590854},
     3.73700253944}};

const Expected kGru[] = {
    {1,
     false,
     {-0.104663323, 0.188663332, 0.38000235, -0.362205256, 0.00746294806, 0.055493168, 0.301862559,
      -0.28937056, 0.0500549226, -0.1363146, 0.470662558, -0.364449506},
     {0.0500549226, -0.1363146, 0.470662558, -0.364449506},
     {},
     {0.0335263111, -0.0935477787, 0.0236817099, 0.0440467036, -0.110853551, -0.0307862214,
      0.038908479, -0.0859091585, -0.0589292354, -0.105222555, -0.125252339, 0.0510141469},
     0.402374825562},
    {2,
     true,
     {0.242858074,  0.0727617627, 0.345505607,  -0.489623368, -0.308785789, 0.193178017,
      0.274878422,  -0.278101432, 0.0879247491, 0.136048331,  0.292487861,  -0.45010698,
      -0.201399149, 0.171331217,  0.335839074,  -0.319363949, 0.0412394175, 0.122554784,
      0.154376688,  -0.459069667, -0.21861329,  0.204838168,  0.324942162,  -0.2329127},
     {0.281991939, -0.175254335, 0.174921559, -0.234531856, -0.12495136, 0.461171227, -0.114022141,
      0.309204856, 0.0412394175, 0.122554784, -0.21861329, 0.204838168, 0.345505607, -0.489623368,
      0.274878422, -0.278101432},
     {},
     {0.0598669477, 0.141314207, 0.131587287, 0.190080498, -0.108161078, 0.0478155897, 0.0304125113,
      0.0989561512, -0.207082572, -0.0412818539, -0.153527128, 0.0528560196},
     3.250913087}};

constexpr int64_t kSteps = 3, kBatch = 2, kSize = 2;

Tensor weighed(const Tensor& y, int64_t k) { return (y * pattern(to_shape(y.shape()), k)).sum(); }

}  // namespace

TEST_CASE("LSTM layers have the values and gradients of PyTorch") {
  for (const Expected& e : kLstm) {
    int64_t k = 0;
    auto layer = patterned<nn::LSTM>({.layers = e.layers, .bidirectional = e.bidirectional}, k);
    const Tensor x = pattern({kSteps, kBatch, kSize}, k++).contiguous().requires_grad_();
    const Shape states{e.layers * (e.bidirectional ? 2 : 1), kBatch, kSize};
    const Tensor h = pattern(states, k++), c = pattern(states, k);
    const LstmResult r = layer.run(x, {h, c});
    (weighed(r.y, k + 1) + r.state.h.sum() * 0.5 + r.state.c.sum() * 0.25).backward();
    check_numbers(r.y, e.y);
    check_numbers(r.state.h, e.h);
    check_numbers(r.state.c, e.c);
    check_numbers(x.grad(), e.x_gradient);
    CHECK(gradient_sum(layer) == doctest::Approx(e.gradients).epsilon(1e-9));
  }
}

TEST_CASE("GRU layers have the values and gradients of PyTorch") {
  for (const Expected& e : kGru) {
    int64_t k = 0;
    auto layer = patterned<nn::GRU>({.layers = e.layers, .bidirectional = e.bidirectional}, k);
    const Tensor x = pattern({kSteps, kBatch, kSize}, k++).contiguous().requires_grad_();
    const Tensor h = pattern({e.layers * (e.bidirectional ? 2 : 1), kBatch, kSize}, k++);
    const GruResult r = layer.run(x, h);
    (weighed(r.y, k + 1) + r.h.sum() * 0.5).backward();
    check_numbers(r.y, e.y);
    check_numbers(r.h, e.h);
    check_numbers(x.grad(), e.x_gradient);
    CHECK(gradient_sum(layer) == doctest::Approx(e.gradients).epsilon(1e-9));
  }
}

TEST_CASE("a recurrent layer without biases and an initial state starts from zeros") {
  int64_t k = 0;
  auto layer = patterned<nn::LSTM>({.has_bias = false}, k);
  CHECK(layer.tensors().size() == 2);
  const Tensor y = layer(pattern({kSteps, kBatch, kSize}, k));
  check_numbers(
      y, {-0.0386941024, -0.0274132086, 0.0606812702, -0.0447902486, -0.0496017152, 0.0284030982,
          0.00323617061, -0.0153092805, 0.0432040486, -0.00519641937, 0.0599676518, -0.0691664116});
}

TEST_CASE("a layer is its cell, step by step") {
  nn::LSTM lstm_layer(3, 4);
  nn::GRU gru_layer(3, 4);
  const Tensor x = Tensor::randn({5, 2, 3}), zero = Tensor::zeros({2, 4});
  LstmState state{zero, zero};
  Tensor h = zero;
  std::vector<Tensor> ys, hs;
  for (int64_t t = 0; t < 5; ++t) {
    state = lstm_cell(x.select(0, t), state, lstm_layer.weights[0]);
    h = gru_cell(x.select(0, t), h, gru_layer.weights[0]);
    ys.push_back(state.h);
    hs.push_back(h);
  }
  check_numbers(lstm_layer(x), Tensor::stack(ys).to(kF64).to_vector<double>(), 1e-6);
  check_numbers(gru_layer(x), Tensor::stack(hs).to(kF64).to_vector<double>(), 1e-6);
}

TEST_CASE("batch_first exchanges two axes, and a sequence alone has no batch") {
  nn::GRU layer(3, 4, {.layers = 2, .bidirectional = true});
  const Tensor x = Tensor::randn({5, 2, 3}).realize();
  const GruResult r = layer.run(x);
  const Numbers y = r.y.to(kF64).to_vector<double>();
  CHECK(to_shape(r.y.shape()) == Shape{5, 2, 8});
  CHECK(to_shape(r.h.shape()) == Shape{4, 2, 4});
  layer.options.batch_first = true;
  const GruResult swapped = layer.run(x.transpose(0, 1));
  CHECK(to_shape(swapped.y.shape()) == Shape{2, 5, 8});
  CHECK(to_shape(swapped.h.shape()) == Shape{4, 2, 4});
  check_numbers(swapped.y.transpose(0, 1), y, 1e-6);
  const GruResult alone = layer.run(x.select(1, 1), Tensor::zeros({4, 4}));
  CHECK(to_shape(alone.h.shape()) == Shape{4, 4});
  check_numbers(alone.y, r.y.select(1, 1).to(kF64).to_vector<double>(), 1e-6);
}

TEST_CASE("16-bit floats are carried through the steps in f32 and rounded once") {
  int64_t k = 0, again = 0;
  auto half = patterned<nn::LSTM>({}, k, kBF16);
  auto wide = patterned<nn::LSTM>({}, again, kF32);
  for (size_t i = 0; i < wide.tensors().size(); ++i)
    wide.tensors()[i]->assign(half.tensors()[i]->to(kF32));
  const Tensor x = Tensor::randn({20, 2, 2}).to(kBF16);
  const Tensor y = half(x);
  CHECK(y.dtype() == kBF16);
  check_numbers(y, wide(x.to(kF32)).to(kBF16).to(kF64).to_vector<double>(), 0.002);
}

TEST_CASE("dropout acts between layers, in training") {
  nn::LSTM layer(2, 3, {.layers = 2, .dropout = 0.9});
  const Tensor x = Tensor::randn({4, 2, 2}).realize();
  const auto values = [&] { return layer(x).to_vector<float>(); };
  const auto evaluated = values();
  CHECK(values() == evaluated);
  {
    nn::Training training;
    CHECK(values() != values());
    layer.options.dropout = 0;
    CHECK(values() == evaluated);
    nn::LSTM single(2, 3, {.dropout = 0.9});  // nothing lies between layers
    CHECK(single(x).to_vector<float>() == single(x).to_vector<float>());
  }
}

TEST_CASE("recurrent layers name their tensors as PyTorch does") {
  nn::GRU layer(3, 4, {.layers = 2, .bidirectional = true});
  std::vector<std::string> names;
  for (const NamedTensor& named : layer.state_dict("rnn.")) names.push_back(named.name);
  REQUIRE(names.size() == 16);
  CHECK(names[0] == "rnn.weight_ih_l0");
  CHECK(names[3] == "rnn.bias_hh_l0");
  CHECK(names[4] == "rnn.weight_ih_l0_reverse");
  CHECK(names[13] == "rnn.weight_hh_l1_reverse");
  CHECK(to_shape(layer.weights[2].w_ih.shape()) == Shape{12, 8});
  CHECK(to_shape(layer.weights[3].b_ih.shape()) == Shape{12});
  for (Tensor* p : layer.parameters()) {
    const auto values = p->abs().max().item<float>();
    CHECK(values <= 0.5f);
    CHECK(values > 0.2f);
  }
}

TEST_CASE("a recurrent network learns which step was marked") {
  manual_seed(2);
  nn::GRU layer(1, 8);
  nn::Linear head(8, 4);
  std::vector<Tensor*> tensors = layer.tensors();
  for (Tensor* t : head.tensors()) tensors.push_back(t);
  Adam optimizer(tensors, 0.03);
  const Tensor x = Tensor::eye(4).t().unsqueeze(2);  // (steps, samples, 1)
  const Tensor target = Tensor::arange(4);
  float loss_value = 0;
  for (int i = 0; i < 60; ++i) {
    Tensor loss = cross_entropy(head(layer.run(x).h.select(0, 0)), target);
    loss.backward();
    optimizer.step({&loss});
    loss_value = loss.item<float>();
  }
  CHECK(loss_value < 0.2f);
}

TEST_CASE("recurrent layers say what does not fit") {
  nn::LSTM layer(3, 4);
  CHECK_THROWS_WITH_AS(layer(Tensor::zeros({5, 2, 2})),
                       "lstm: weights of (16,3) and (16,4) for an input of 2 and a state of 4 "
                       "elements: takes (16,2) and (16,4)",
                       Error);
  CHECK_THROWS_WITH_AS(layer(Tensor::zeros({3})), "lstm: takes (T, N, I) or (T, I) and not (3)",
                       Error);
  CHECK_THROWS_WITH_AS(layer(Tensor::zeros({0, 2, 3})), "lstm: a sequence of no steps", Error);
  const Tensor x = Tensor::zeros({5, 2, 3}), h = Tensor::zeros({1, 3, 4});
  CHECK_THROWS_WITH_AS(layer.run(x, {h, h}),
                       "lstm: the initial h has shape (1,3,4) and not (1,2,4)", Error);
  CHECK_THROWS_WITH_AS(nn::GRU(3, 0), "recurrent layers: 1 layers of 0 elements for an input of 3",
                       Error);
  CHECK_THROWS_WITH_AS(gru(x, Tensor(), {}), "gru: 0 sets of weights: takes one for each layer",
                       Error);
}
