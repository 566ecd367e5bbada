// Normalisations, losses, attention and recurrent cells.
#include "test/conformance/arguments.h"
#include "test/conformance/operators.h"

namespace tiny::conformance {

namespace {

// --- Normalisations ------------------------------------------------------------------------------

Tensors batch_normalise(const Inputs& in, const Json& a) {
  const BatchNormOptions options{
      .training = a.at("training"), .momentum = real(a.at("momentum")), .eps = real(a.at("eps"))};
  const BatchNormResult r = batch_norm(in[0], in[1], in[2], in[3], in[4], options);
  if (!options.training) return {r.y};
  return {r.y, r.running_mean, r.running_var};
}

Tensors layer_normalise(const Inputs& in, const Json& a) {
  return {layer_norm(in[0], integers(a.at("normalized_shape")), in[1], in[2], real(a.at("eps")))};
}

Tensors rms_normalise(const Inputs& in, const Json& a) {
  return {rms_norm(in[0], integers(a.at("normalized_shape")), in[1], real(a.at("eps")))};
}

Tensors group_normalise(const Inputs& in, const Json& a) {
  return {group_norm(in[0], a.at("num_groups"), in[1], in[2], real(a.at("eps")))};
}

Tensors instance_normalise(const Inputs& in, const Json& a) {
  return {instance_norm(in[0], in[1], in[2], real(a.at("eps")))};
}

// --- Losses --------------------------------------------------------------------------------------

Tensors class_loss(const Inputs& in, const Json& a) {
  return {cross_entropy(in[0], in[1],
                        {.weight = in[2],
                         .reduction = reduction(a.at("reduction")),
                         .ignore_index = a.at("ignore_index"),
                         .label_smoothing = real(a.at("label_smoothing"))})};
}

Tensors likelihood_loss(const Inputs& in, const Json& a) {
  return {nll_loss(in[0], in[1],
                   {.weight = in[2],
                    .reduction = reduction(a.at("reduction")),
                    .ignore_index = a.at("ignore_index")})};
}

template <Tensor (*F)(const Tensor&, const Tensor&, Reduction)>
Tensors distance(const Inputs& in, const Json& a) {
  return {F(in[0], in[1], reduction(a.at("reduction")))};
}

Tensors smooth_l1(const Inputs& in, const Json& a) {
  return {smooth_l1_loss(in[0], in[1], reduction(a.at("reduction")), real(a.at("beta")))};
}

Tensors huber(const Inputs& in, const Json& a) {
  return {huber_loss(in[0], in[1], reduction(a.at("reduction")), real(a.at("delta")))};
}

Tensors bce(const Inputs& in, const Json& a) {
  return {binary_cross_entropy(in[0], in[1], in[2], reduction(a.at("reduction")))};
}

Tensors bce_with_logits(const Inputs& in, const Json& a) {
  return {
      binary_cross_entropy_with_logits(in[0], in[1], in[2], in[3], reduction(a.at("reduction")))};
}

Tensors divergence(const Inputs& in, const Json& a) {
  return {kl_div(in[0], in[1], reduction(a.at("reduction")), a.at("log_target"))};
}

// --- Attention, recurrent cells ------------------------------------------------------------------

Tensors sdpa(const Inputs& in, const Json& a) {
  return {scaled_dot_product_attention(in[0], in[1], in[2],
                                       {.mask = in[3],
                                        .is_causal = a.at("is_causal"),
                                        .scale = maybe_real(a.at("scale")),
                                        .enable_gqa = a.at("enable_gqa")})};
}

Tensors rotate(const Inputs& in, const Json&) { return {rope(in[0], in[1], in[2])}; }

Tensors gru(const Inputs& in, const Json&) {
  return {gru_cell(in[0], in[1], {in[2], in[3], in[4], in[5]})};
}

Tensors lstm(const Inputs& in, const Json&) {
  const LstmState r = lstm_cell(in[0], {in[1], in[2]}, {in[3], in[4], in[5], in[6]});
  return {r.h, r.c};
}

}  // namespace

void add_nn(Table& table) {
  table.insert({
      {"batch_norm", batch_normalise},
      {"layer_norm", layer_normalise},
      {"rms_norm", rms_normalise},
      {"group_norm", group_normalise},
      {"instance_norm", instance_normalise},
      {"cross_entropy", class_loss},
      {"nll_loss", likelihood_loss},
      {"mse_loss", distance<mse_loss>},
      {"l1_loss", distance<l1_loss>},
      {"smooth_l1_loss", smooth_l1},
      {"huber_loss", huber},
      {"bce", bce},
      {"bce_with_logits", bce_with_logits},
      {"kl_div", divergence},
      {"sdpa", sdpa},
      {"rope", rotate},
      {"gru_cell", gru},
      {"lstm_cell", lstm},
  });
}

}  // namespace tiny::conformance
