// Convolutions, pools and interpolation.
#include <map>

#include "test/conformance/arguments.h"
#include "test/conformance/operators.h"

namespace tiny::conformance {

namespace {

using Conv = Tensor (*)(const Tensor&, const Tensor&, const Tensor&, const ConvOptions&);
using ConvTranspose = Tensor (*)(const Tensor&, const Tensor&, const Tensor&,
                                 const ConvTransposeOptions&);
using Pool = Tensor (*)(const Tensor&, const PerAxis&, const PoolOptions&);
using AdaptivePool = Tensor (*)(const Tensor&, const PerAxis&);

template <Conv F> Tensors conv(const Inputs& in, const Json& a) {
  return {F(in[0], in[1], in[2],
            {.stride = per_axis(a.at("stride")),
             .padding = per_axis(a.at("padding")),
             .dilation = per_axis(a.at("dilation")),
             .groups = a.at("groups")})};
}

template <ConvTranspose F> Tensors conv_transpose(const Inputs& in, const Json& a) {
  return {F(in[0], in[1], in[2],
            {.stride = per_axis(a.at("stride")),
             .padding = per_axis(a.at("padding")),
             .output_padding = per_axis(a.at("output_padding")),
             .dilation = per_axis(a.at("dilation")),
             .groups = a.at("groups")})};
}

// Maxima have a dilation, averages count_include_pad.
PoolOptions pool_options(const Json& a) {
  PoolOptions options;
  if (!a.at("stride").is_null()) options.stride = per_axis(a.at("stride"));
  options.padding = per_axis(a.at("padding"));
  if (a.contains("dilation")) options.dilation = per_axis(a.at("dilation"));
  options.ceil_mode = a.at("ceil_mode");
  options.count_include_pad = a.value("count_include_pad", true);
  return options;
}

template <Pool F, int kAxes> Tensors max_pool(const Inputs& in, const Json& a) {
  const PerAxis kernel = per_axis(a.at("kernel"));
  if (!a.at("return_indices").get<bool>()) return {F(in[0], kernel, pool_options(a))};
  const WithIndices r = max_pool_with_indices(in[0], kAxes, kernel, pool_options(a));
  return {r.values, r.indices};
}

template <Pool F> Tensors avg_pool(const Inputs& in, const Json& a) {
  return {F(in[0], per_axis(a.at("kernel")), pool_options(a))};
}

template <AdaptivePool F> Tensors adaptive_pool(const Inputs& in, const Json& a) {
  return {F(in[0], per_axis(a.at("output_size")))};
}

Tensors resize(const Inputs& in, const Json& a) {
  static const std::map<std::string, Resample> modes = {{"nearest", Resample::Nearest},
                                                        {"nearest-exact", Resample::NearestExact},
                                                        {"linear", Resample::Linear},
                                                        {"bilinear", Resample::Linear},
                                                        {"trilinear", Resample::Linear}};
  return {
      interpolate(in[0], per_axis(a.at("size")), modes.at(a.at("mode")), a.at("align_corners"))};
}

}  // namespace

void add_windows(Table& table) {
  table.insert({
      {"conv1d", conv<conv1d>},
      {"conv2d", conv<conv2d>},
      {"conv3d", conv<conv3d>},
      {"conv_transpose1d", conv_transpose<conv_transpose1d>},
      {"conv_transpose2d", conv_transpose<conv_transpose2d>},
      {"conv_transpose3d", conv_transpose<conv_transpose3d>},
      {"max_pool1d", max_pool<max_pool1d, 1>},
      {"max_pool2d", max_pool<max_pool2d, 2>},
      {"max_pool3d", max_pool<max_pool3d, 3>},
      {"avg_pool1d", avg_pool<avg_pool1d>},
      {"avg_pool2d", avg_pool<avg_pool2d>},
      {"avg_pool3d", avg_pool<avg_pool3d>},
      {"adaptive_avg_pool1d", adaptive_pool<adaptive_avg_pool1d>},
      {"adaptive_avg_pool2d", adaptive_pool<adaptive_avg_pool2d>},
      {"adaptive_avg_pool3d", adaptive_pool<adaptive_avg_pool3d>},
      {"adaptive_max_pool1d", adaptive_pool<adaptive_max_pool1d>},
      {"adaptive_max_pool2d", adaptive_pool<adaptive_max_pool2d>},
      {"adaptive_max_pool3d", adaptive_pool<adaptive_max_pool3d>},
      {"interpolate", resize},
  });
}

}  // namespace tiny::conformance
