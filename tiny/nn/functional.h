// Functions of neural networks on Tensor alone: convolutions, pools, resampling, normalisations,
// losses, attention and recurrent layers. Names and semantics are PyTorch's.
//
//   const Tensor features = conv2d(x, weight, bias, {.stride = 2, .padding = 1}).relu();
//   const Tensor loss = cross_entropy(max_pool2d(features, 2).flatten(1), labels);
//
// Rules that hold throughout, not repeated below:
// - x is (N, C, spatial...): N samples, C channels; conv1d has one spatial axis, conv3d three;
// - a tensor that may be left out is passed as Tensor();
// - results have the dtype of x; f16 and bf16 are computed in f32 and rounded once at the end;
//   integers throw Error;
// - shapes that do not fit throw Error before anything is computed, with the shapes.
#pragma once
#include <initializer_list>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tiny/tensor/tensor.h"

namespace tiny {

// One number for each spatial axis, or one for all of them.
class PerAxis {
 public:
  template <std::integral T> PerAxis(T all) : values_{static_cast<int64_t>(all)} {}
  PerAxis(std::initializer_list<int64_t> values) : values_(values) {}
  PerAxis(Shape values) : values_(std::move(values)) {}

  // The values for `axes` axes. Throws Error unless there are 1 or `axes` of at least `least`.
  Shape of(const char* what, const char* name, int axes, int64_t least) const;

 private:
  Shape values_;
};

// --- Activations beside those of Tensor ----------------------------------------------------------
// Element by element, of any shape.

Tensor softsign(const Tensor& x);                                   // x / (1 + |x|)
Tensor tanhshrink(const Tensor& x);                                 // x - tanh(x)
Tensor softshrink(const Tensor& x, double lambda = 0.5);            // towards 0 by up to lambda
Tensor hardshrink(const Tensor& x, double lambda = 0.5);            // 0 where |x| <= lambda
Tensor threshold(const Tensor& x, double threshold, double value);  // x where above, else value
// x, times the weight where it is not positive; weight of one element, or one of each channel (C).
Tensor prelu(const Tensor& x, const Tensor& weight);
// The first half along dim times the sigmoid of the second. Error for an odd size.
Tensor glu(const Tensor& x, int64_t dim = -1);

// --- Convolutions --------------------------------------------------------------------------------

struct ConvOptions {
  PerAxis stride = 1;
  PerAxis padding = 0;  // zeros on both sides
  PerAxis dilation = 1;
  int64_t groups = 1;
};

// Cross-correlation. weight (out, C / groups, kernel...), bias (out); gives (N, out, ...) with
// sizes floor((n + 2 padding - dilation (kernel - 1) - 1) / stride) + 1. Error where a kernel does
// not fit, and for channels that are no multiple of the groups.
Tensor conv1d(const Tensor& x, const Tensor& weight, const Tensor& bias = Tensor(),
              const ConvOptions& options = {});
Tensor conv2d(const Tensor& x, const Tensor& weight, const Tensor& bias = Tensor(),
              const ConvOptions& options = {});
Tensor conv3d(const Tensor& x, const Tensor& weight, const Tensor& bias = Tensor(),
              const ConvOptions& options = {});

struct ConvTransposeOptions {
  PerAxis stride = 1;
  PerAxis padding = 0;
  PerAxis output_padding = 0;  // makes the result longer at its end
  PerAxis dilation = 1;
  int64_t groups = 1;
};

// The gradient of a convolution with respect to its input. weight (C, out / groups, kernel...);
// sizes (n - 1) stride - 2 padding + dilation (kernel - 1) + output_padding + 1.
Tensor conv_transpose1d(const Tensor& x, const Tensor& weight, const Tensor& bias = Tensor(),
                        const ConvTransposeOptions& options = {});
Tensor conv_transpose2d(const Tensor& x, const Tensor& weight, const Tensor& bias = Tensor(),
                        const ConvTransposeOptions& options = {});
Tensor conv_transpose3d(const Tensor& x, const Tensor& weight, const Tensor& bias = Tensor(),
                        const ConvTransposeOptions& options = {});

// --- Pools ---------------------------------------------------------------------------------------

struct PoolOptions {
  std::optional<PerAxis> stride = {};  // that of the kernel by default
  PerAxis padding = 0;                 // at most half of the kernel
  PerAxis dilation = 1;                // maxima only
  bool ceil_mode = false;              // rounds the number of windows up
  bool count_include_pad = true;       // averages only: padding counts in the divisor
};

// Sizes as of a convolution. Padding never is a maximum, and x may have no axis N, or integers. The
// equal maxima of a window share its gradient, as in Tensor::max() (PyTorch: the first has it all).
Tensor max_pool1d(const Tensor& x, const PerAxis& kernel, const PoolOptions& options = {});
Tensor max_pool2d(const Tensor& x, const PerAxis& kernel, const PoolOptions& options = {});
Tensor max_pool3d(const Tensor& x, const PerAxis& kernel, const PoolOptions& options = {});
// With the positions (i64) in the flattened, unpadded spatial axes, the first of equals, or -1 for
// a window of padding alone. x has `axes` spatial axes.
WithIndices max_pool_with_indices(const Tensor& x, int axes, const PerAxis& kernel,
                                  const PoolOptions& options = {});
// The padding is zeros.
Tensor avg_pool1d(const Tensor& x, const PerAxis& kernel, const PoolOptions& options = {});
Tensor avg_pool2d(const Tensor& x, const PerAxis& kernel, const PoolOptions& options = {});
Tensor avg_pool3d(const Tensor& x, const PerAxis& kernel, const PoolOptions& options = {});

// Result i of m covers the elements floor(i n / m) to ceil((i + 1) n / m) - 1 of n.
Tensor adaptive_avg_pool1d(const Tensor& x, const PerAxis& output_size);
Tensor adaptive_avg_pool2d(const Tensor& x, const PerAxis& output_size);
Tensor adaptive_avg_pool3d(const Tensor& x, const PerAxis& output_size);
Tensor adaptive_max_pool1d(const Tensor& x, const PerAxis& output_size);
Tensor adaptive_max_pool2d(const Tensor& x, const PerAxis& output_size);
Tensor adaptive_max_pool3d(const Tensor& x, const PerAxis& output_size);

// --- Resampling ----------------------------------------------------------------------------------

enum class Resample { Nearest, NearestExact, Linear };  // Linear: along each spatial axis

// x (N, C, spatial...) to these spatial sizes. align_corners (Linear only): the outermost elements
// stay where they are, else the outer edges do.
Tensor interpolate(const Tensor& x, const PerAxis& size, Resample mode = Resample::Nearest,
                   bool align_corners = false);

// (..., C r^2, H, W) to (..., C, H r, W r): each r x r channels become a block of elements (W. Shi
// et al., arXiv 1609.05158). Of any dtype. Error for channels that are no multiple of r^2.
Tensor pixel_shuffle(const Tensor& x, int64_t upscale_factor);
// (N, C, ...): channel i of group g becomes channel g of group i (X. Zhang et al., "ShuffleNet",
// arXiv 1707.01083). Of any dtype. Error for channels that are no multiple of the groups.
Tensor channel_shuffle(const Tensor& x, int64_t groups);

// --- Normalisations ------------------------------------------------------------------------------

struct BatchNormResult {
  Tensor y, running_mean, running_var;
};

struct BatchNormOptions {
  bool training = false;
  double momentum = 0.1;
  double eps = 1e-5;
  int64_t groups =
      1;  // of N / groups samples that follow one another, with statistics of their own
};

// Per channel, x (N, C, ...), all others (C). In training: normalised by the batch's mean and
// variance, and the running statistics moved towards them (the variance with n - 1), without a
// gradient; else normalised by the running statistics, which stay as they are: Error where one of
// them is not defined. In training those that are not defined stay so. With `groups` each of them
// is normalised by itself and the running statistics get their averages ("ghost" batch norm: E.
// Hoffer et al., "Train longer, generalize better", arXiv 1705.08741): where a batch is cut over as
// many devices nothing is exchanged for that. Error where they do not divide N.
BatchNormResult batch_norm(const Tensor& x, const Tensor& weight, const Tensor& bias,
                           const Tensor& running_mean, const Tensor& running_var,
                           const BatchNormOptions& options = {});

// (x - mean) / sqrt(var + eps) over the last axes, times weight, plus bias, both of that shape.
Tensor layer_norm(const Tensor& x, const Shape& normalized_shape, const Tensor& weight = Tensor(),
                  const Tensor& bias = Tensor(), double eps = 1e-5);
// x / sqrt(mean(x^2) + eps) over the last axes, times weight.
Tensor rms_norm(const Tensor& x, const Shape& normalized_shape, const Tensor& weight = Tensor(),
                double eps = 1e-6);
// Statistics for each sample and group of channels; weight and bias (C).
Tensor group_norm(const Tensor& x, int64_t num_groups, const Tensor& weight = Tensor(),
                  const Tensor& bias = Tensor(), double eps = 1e-5);
// Statistics for each sample and channel. Error for one spatial element, which has no variance.
Tensor instance_norm(const Tensor& x, const Tensor& weight = Tensor(),
                     const Tensor& bias = Tensor(), double eps = 1e-5);

// x / max(|x|_p, eps), the norm along dim; any shape.
Tensor normalize(const Tensor& x, double p = 2, int64_t dim = 1, double eps = 1e-12);
// Of the vectors along dim, which disappears: x . y / (max(|x|, eps) max(|y|, eps)). x and y
// broadcast.
Tensor cosine_similarity(const Tensor& x, const Tensor& y, int64_t dim = 1, double eps = 1e-8);

// --- Losses --------------------------------------------------------------------------------------

// BatchMean (kl_div only): the sum divided by the size of the first axis.
enum class Reduction { None, Mean, Sum, BatchMean };

struct CrossEntropyOptions {
  Tensor weight = {};  // (C)
  Reduction reduction = Reduction::Mean;
  int64_t ignore_index = -100;
  double label_smoothing = 0;  // not for nll_loss
};

// x (N, C, ...) logits, or (C). target: class numbers (N, ...), or class probabilities, floats in
// the shape of x. Mean divides by the sum of weight[target] over what is not ignored; for
// probabilities by the number of positions. Where a number is that of no class, and not
// ignore_index, the loss is NaN (PyTorch raises an error; CHECK_NAN=1 names the kernel).
Tensor cross_entropy(const Tensor& x, const Tensor& target,
                     const CrossEntropyOptions& options = {});
struct LinearCrossEntropyOptions {
  Tensor bias = {};               // (C), of the product
  CrossEntropyOptions loss = {};  // of its results
  // Positions of the longest axis of rows whose logits are there at a time; 0: as many as take 2
  // GiB, or an eighth of MEMORY_LIMIT, in parts of one size.
  int64_t batch_chunk_size = 0;
};

// cross_entropy of x.linear(weight, bias), whose classes are the last axis: x (..., E), weight
// (C, E), target (...) or probabilities (..., C). In f32, or f64 for operands of that dtype. Chunk
// by chunk logits, losses and what gradients need of them are computed, used and forgotten, so that
// with loss.backward() in the same step no more than one chunk's logits are ever stored. Nothing is
// computed twice for that. Error, with the shapes, for those that do not fit. Rows of a Variable's
// number are one chunk.
Tensor linear_cross_entropy(const Tensor& x, const Tensor& weight, const Tensor& target,
                            const LinearCrossEntropyOptions& options = {});
// cross_entropy on log-probabilities and class numbers.
Tensor nll_loss(const Tensor& x, const Tensor& target, const CrossEntropyOptions& options = {});

// These take a target in the shape of x. Mean divides by the number of elements.
Tensor mse_loss(const Tensor& x, const Tensor& target, Reduction reduction = Reduction::Mean);
Tensor l1_loss(const Tensor& x, const Tensor& target, Reduction reduction = Reduction::Mean);
Tensor smooth_l1_loss(const Tensor& x, const Tensor& target, Reduction reduction = Reduction::Mean,
                      double beta = 1);
Tensor huber_loss(const Tensor& x, const Tensor& target, Reduction reduction = Reduction::Mean,
                  double delta = 1);
// x: probabilities. Logarithms are limited to -100. weight broadcasts.
Tensor binary_cross_entropy(const Tensor& x, const Tensor& target, const Tensor& weight = Tensor(),
                            Reduction reduction = Reduction::Mean);
// x: logits. pos_weight multiplies the term of the target; it and weight broadcast.
Tensor binary_cross_entropy_with_logits(const Tensor& x, const Tensor& target,
                                        const Tensor& weight = Tensor(),
                                        const Tensor& pos_weight = Tensor(),
                                        Reduction reduction = Reduction::Mean);
// x: logits; target: 0 or 1 of each, or between. Cross entropy that counts little where it is
// small: -a (1 - p)^gamma log p, with p the probability of what is the case and a = alpha for
// targets 1, 1 - alpha for 0; a negative alpha: a = 1 (T.-Y. Lin et al., "Focal loss for dense
// object detection", arXiv 1708.02002, section 3). Error for a gamma below 0 and an alpha above 1.
Tensor sigmoid_focal_loss(const Tensor& x, const Tensor& target, double alpha = 0.25,
                          double gamma = 2, Reduction reduction = Reduction::None);
// x: log-probabilities; target: probabilities, or their logarithms.
Tensor kl_div(const Tensor& x, const Tensor& target, Reduction reduction = Reduction::Mean,
              bool log_target = false);

struct TripletOptions {
  double margin = 1;
  double p = 2;  // of the distances |a - b + eps|_p along the last axis
  double eps = 1e-6;
  bool swap = false;  // the negative's distance is the smaller of those to anchor and positive
  Reduction reduction = Reduction::Mean;
};

// max(distance(anchor, positive) - distance(anchor, negative) + margin, 0) for vectors along the
// last axis: (N, E) to (N), reduced. They broadcast. (V. Balntas et al., "Learning local feature
// descriptors with triplets and shallow convolutional neural networks", BMVC 2016.)
Tensor triplet_margin_loss(const Tensor& anchor, const Tensor& positive, const Tensor& negative,
                           const TripletOptions& options = {});

// --- Attention -----------------------------------------------------------------------------------

struct AttentionOptions {
  Tensor mask = {};        // bool: true takes part; floats are added. Broadcasts to (..., L, S)
  bool is_causal = false;  // query i sees the keys j <= i
  std::optional<double> scale = {};  // 1 / sqrt(E) by default
  bool enable_gqa = false;           // axis -3 of k and v is repeated to that of q
  double dropout_p = 0;              // of weights, after they are normalised; others grow
  // Query i sees the keys from i - first to i + second alone: sliding windows.
  std::optional<std::pair<int64_t, int64_t>> window = {};
  std::optional<double> softcap = {};  // c: scores s become c tanh(s / c), before any mask
};

// softmax(q k^T scale + mask) v; q (..., L, E), k (..., S, E), v (..., S, V): (..., L, V). A query
// that sees no key gives NaN, as in PyTorch 1.13. Error, with the shapes, for those that do not fit
// and a mask that is none of scores (..., L, S).
Tensor scaled_dot_product_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                                    const AttentionOptions& options = {});

// Rotary embedding of the halves [a, b] of the last axis: [a cos - b sin, b cos + a sin], in the
// shape of x. cos and sin broadcast against a half. Error for an odd size.
Tensor rope(const Tensor& x, const Tensor& cos, const Tensor& sin);

// --- Recurrent cells and layers ------------------------------------------------------------------

struct CellWeights {
  Tensor w_ih, w_hh;            // (gates H, I), (gates H, H)
  Tensor b_ih = {}, b_hh = {};  // (gates H)
};

struct LstmState {
  Tensor h = {}, c = {};  // (..., H)
};

// One step: x (..., I), states (..., H). Gates i, f, g, o stacked in the weights. c' = f c + i
// tanh(g), h' = o tanh(c').
LstmState lstm_cell(const Tensor& x, const LstmState& state, const CellWeights& weights);
// Gates r, z, n stacked in the weights. h' = (1 - z) n + z h.
Tensor gru_cell(const Tensor& x, const Tensor& h, const CellWeights& weights);

struct RecurrentOptions {
  bool batch_first = false;    // x (N, T, I) and y (N, T, ...) instead of (T, N, ...)
  bool bidirectional = false;  // each layer has a second set of weights, for the way back
  double dropout = 0;          // of what a layer passes to the next one, in training
  bool training = false;
};

struct LstmResult {
  Tensor y;         // (T, N, D H) of the last layer: forwards, then backwards (D directions)
  LstmState state;  // after the last step of each layer and direction: (layers D, N, H)
};
struct GruResult {
  Tensor y, h;
};

// Layers of cells over sequences x (T, N, I) of T >= 1 steps, or (T, I): then y and the states have
// no axis N either. Layer 0 reads x, the others the result of the layer before. `weights`: those of
// layer 0 forwards, layer 0 backwards (where bidirectional), layer 1 forwards, ... `initial`: in
// the shape of the last states, zeros where it is not defined. The steps are unrolled in the graph.
LstmResult lstm(const Tensor& x, const LstmState& initial, const std::vector<CellWeights>& weights,
                const RecurrentOptions& options = {});
GruResult gru(const Tensor& x, const Tensor& initial, const std::vector<CellWeights>& weights,
              const RecurrentOptions& options = {});

// --- Dropout -------------------------------------------------------------------------------------

// Zeroes each element with the probability p, rounded to a multiple of 2^-16, and scales the others
// by 1 / (1 - p); x itself where `training` is false. Takes random numbers from the stream of
// tiny/tensor/random.h.
Tensor dropout(const Tensor& x, double p = 0.5, bool training = true);

}  // namespace tiny
