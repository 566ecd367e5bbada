"""Convolutions, pools, normalisations, losses, attention and recurrent layers."""
from cpp import Struct, cpp_shape, number
from operations import (TABLE, as_list, call, designated, op, per_axis, with_defaults)

# --- Convolutions and pools ----------------------------------------------------------------------


def padding_of(padding, kernel, dilation):
    """A number for each axis, also of "same" and "valid"."""
    if padding == "valid":
        return 0
    if padding != "same":
        return padding
    dilation = as_list(dilation, len(kernel))
    total = [d * (k - 1) for d, k in zip(dilation, kernel)]
    if any(t % 2 for t in total):
        raise NotImplementedError("padding='same' of an even kernel")
    return [t // 2 for t in total]


def convolution(rank):
    def forward(input, weight, bias=None, stride=1, padding=0, dilation=1, groups=1):
        padding = padding_of(padding, weight.shape[2:], dilation)
        options = designated(
            {"stride": per_axis(stride), "padding": per_axis(padding),
             "dilation": per_axis(dilation), "groups": str(groups)},
            {"stride": "1", "padding": "0", "dilation": "1", "groups": "1"})
        return call(f"conv{rank}d", [input, weight, bias], options)
    return forward


def transposed(rank):
    def forward(input, weight, bias=None, stride=1, padding=0, output_padding=0, groups=1,
                dilation=1):
        options = designated(
            {"stride": per_axis(stride), "padding": per_axis(padding),
             "output_padding": per_axis(output_padding), "dilation": per_axis(dilation),
             "groups": str(groups)},
            {"stride": "1", "padding": "0", "output_padding": "0", "dilation": "1", "groups": "1"})
        return call(f"conv_transpose{rank}d", [input, weight, bias], options)
    return forward


def pool_options(stride, padding=0, dilation=1, ceil_mode=False, count_include_pad=True):
    return designated(
        {"stride": "" if stride in (None, [], ()) else per_axis(stride),
         "padding": per_axis(padding), "dilation": per_axis(dilation),
         "ceil_mode": number(bool(ceil_mode)),
         "count_include_pad": number(bool(count_include_pad))},
        {"stride": "", "padding": "0", "dilation": "1", "ceil_mode": "false",
         "count_include_pad": "true"})


def max_pool(rank):
    def forward(x, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False,
                return_indices=False):
        options = pool_options(stride, padding, dilation, ceil_mode)
        if return_indices:
            text = call("max_pool_with_indices", [x, rank, per_axis(kernel_size)], options)
            return Struct("WithIndices", text, [".values", ".indices"])
        return call(f"max_pool{rank}d", [x, per_axis(kernel_size)], options)
    return forward


def avg_pool(rank):
    def forward(x, kernel_size, stride=None, padding=0, ceil_mode=False, count_include_pad=True,
                divisor_override=None):
        if divisor_override is not None:
            raise NotImplementedError("divisor_override")
        return call(f"avg_pool{rank}d", [x, per_axis(kernel_size)],
                    pool_options(stride, padding, 1, ceil_mode, count_include_pad))
    return forward


def adaptive(name):
    def forward(x, output_size, return_indices=False, *, out_):
        if return_indices:
            raise NotImplementedError("positions of adaptive pools")
        spatial = out_.shape[-int(name[-2]):]
        return f"{name}({x}, {per_axis(list(spatial))})"
    return forward


for rank in (1, 2, 3):
    TABLE[f"conv{rank}d"] = convolution(rank)
    TABLE[f"conv_transpose{rank}d"] = transposed(rank)
    TABLE[f"max_pool{rank}d"] = TABLE[f"max_pool{rank}d_with_indices"] = max_pool(rank)
    TABLE[f"avg_pool{rank}d"] = avg_pool(rank)
    for kind in ("avg", "max"):
        TABLE[f"adaptive_{kind}_pool{rank}d"] = adaptive(f"adaptive_{kind}_pool{rank}d")


@op("interpolate", "upsample")
def interpolate(x, size=None, scale_factor=None, mode="nearest", align_corners=None,
                recompute_scale_factor=None, antialias=False, *, out_):
    modes = {"nearest": "Nearest", "nearest-exact": "NearestExact", "linear": "Linear",
             "bilinear": "Linear", "trilinear": "Linear"}
    if mode not in modes or antialias:
        raise NotImplementedError(f"interpolation {mode}")
    corners = ", true" if align_corners else ""
    return f"interpolate({x}, {cpp_shape(out_.shape[2:])}, Resample::{modes[mode]}{corners})"


# --- Normalisations ------------------------------------------------------------------------------


@op("batch_norm")
def batch_norm(x, running_mean=None, running_var=None, weight=None, bias=None, training=False,
               momentum=0.1, eps=1e-5, *args):
    options = designated({"training": number(training), "momentum": number(momentum),
                          "eps": number(eps)},
                         {"training": "false", "momentum": "0.1", "eps": "1e-05"})
    text = call("batch_norm", [x, *(v or "Tensor()" for v in (weight, bias, running_mean,
                                                              running_var))], options)
    effects = [f"{running_mean}.assign($.running_mean)", f"{running_var}.assign($.running_var)"] \
        if training and running_mean is not None else []
    return Struct("BatchNormResult", text, [".y"], effects)


@op("layer_norm")
def layer_norm(x, normalized_shape, weight=None, bias=None, eps=1e-5, *args):
    end = [] if eps == 1e-5 else [weight or "Tensor()", bias or "Tensor()", number(eps)]
    return call("layer_norm", [x, cpp_shape(normalized_shape), *(end or [weight, bias])])


@op("rms_norm")
def rms_norm(x, normalized_shape, weight=None, eps=None):
    eps = 1.1920928955078125e-07 if eps is None else eps
    return call("rms_norm", [x, cpp_shape(normalized_shape), weight or "Tensor()", number(eps)])


@op("group_norm")
def group_norm(x, num_groups, weight=None, bias=None, eps=1e-5, *args):
    return call("group_norm", [x, num_groups, *([weight, bias] if eps == 1e-5 else
                                                [weight or "Tensor()", bias or "Tensor()",
                                                 number(eps)])])


@op("instance_norm")
def instance_norm(x, running_mean=None, running_var=None, weight=None, bias=None,
                  use_input_stats=True, momentum=0.1, eps=1e-5):
    if running_mean is not None:
        raise NotImplementedError("running statistics of instance_norm")
    return call("instance_norm", [x, *([weight, bias] if eps == 1e-5 else
                                       [weight or "Tensor()", bias or "Tensor()", number(eps)])])


@op("normalize")
def normalize(x, p=2.0, dim=1, eps=1e-12):
    return with_defaults("normalize", [x], [p, dim, eps], [2.0, 1, 1e-12])


@op("cosine_similarity")
def cosine_similarity(x1, x2, dim=1, eps=1e-8):
    return with_defaults("cosine_similarity", [x1, x2], [dim, eps], [1, 1e-8])


@op("feature_dropout", "alpha_dropout", "feature_alpha_dropout")
def other_dropout(x, p=0.5, training=True):
    if p and training:
        raise NotImplementedError("dropout of whole channels")
    return str(x)


# --- Losses --------------------------------------------------------------------------------------

REDUCTIONS = {"none": "None", "mean": "Mean", "sum": "Sum", "batchmean": "BatchMean"}


def reduction_text(reduction):
    return "" if reduction == "mean" else f", Reduction::{REDUCTIONS[reduction]}"


def loss(name):
    def forward(input, target, *args, reduction="mean", **kwargs):
        return f"{name}({input}, {target}{reduction_text(reduction)})"
    return forward


TABLE["mse_loss"], TABLE["l1_loss"] = loss("mse_loss"), loss("l1_loss")


@op("smooth_l1_loss")
def smooth_l1_loss(input, target, size_average=None, reduce=None, reduction="mean", beta=1.0):
    end = f", Reduction::{REDUCTIONS[reduction]}, {number(beta)}" if beta != 1 else \
        reduction_text(reduction)
    return f"smooth_l1_loss({input}, {target}{end})"


@op("huber_loss")
def huber_loss(input, target, reduction="mean", delta=1.0):
    end = f", Reduction::{REDUCTIONS[reduction]}, {number(delta)}" if delta != 1 else \
        reduction_text(reduction)
    return f"huber_loss({input}, {target}{end})"


def classes_loss(name):
    def forward(input, target, weight=None, size_average=None, ignore_index=-100, reduce=None,
                reduction="mean", label_smoothing=0.0):
        options = designated(
            {"weight": str(weight), "reduction": f"Reduction::{REDUCTIONS[reduction]}",
             "ignore_index": str(ignore_index), "label_smoothing": number(label_smoothing)},
            {"weight": "None", "reduction": "Reduction::Mean", "ignore_index": "-100",
             "label_smoothing": "0.0"})
        return call(name, [input, target], options)
    return forward


TABLE["cross_entropy"], TABLE["nll_loss"] = classes_loss("cross_entropy"), classes_loss("nll_loss")


@op("triplet_margin_loss")
def triplet_margin_loss(anchor, positive, negative, margin=1.0, p=2, eps=1e-6, swap=False,
                        size_average=None, reduce=None, reduction="mean"):
    if isinstance(reduction, int):  # as torch.triplet_margin_loss has it
        reduction = ("none", "mean", "sum")[reduction]
    options = designated(
        {"margin": number(float(margin)), "p": number(float(p)), "eps": number(eps),
         "swap": number(swap),
         "reduction": f"Reduction::{REDUCTIONS[reduction]}"},
        {"margin": "1.0", "p": "2.0", "eps": "1e-06", "swap": "false",
         "reduction": "Reduction::Mean"})
    return call("triplet_margin_loss", [anchor, positive, negative], options)


@op("kl_div")
def kl_div(input, target, size_average=None, reduce=None, reduction="mean", log_target=False):
    end = f", Reduction::{REDUCTIONS[reduction]}, true" if log_target else reduction_text(reduction)
    return f"kl_div({input}, {target}{end})"


@op("binary_cross_entropy")
def binary_cross_entropy(input, target, weight=None, size_average=None, reduce=None,
                         reduction="mean"):
    return f"binary_cross_entropy({input}, {target}, {weight or 'Tensor()'}" \
        f"{reduction_text(reduction)})"


@op("binary_cross_entropy_with_logits")
def binary_cross_entropy_with_logits(input, target, weight=None, size_average=None, reduce=None,
                                     reduction="mean", pos_weight=None):
    return f"binary_cross_entropy_with_logits({input}, {target}, {weight or 'Tensor()'}, " \
        f"{pos_weight or 'Tensor()'}{reduction_text(reduction)})"


# --- Attention and recurrent layers --------------------------------------------------------------


@op("scaled_dot_product_attention")
def attention(q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None,
              enable_gqa=False):
    options = designated(
        {"mask": str(attn_mask), "is_causal": number(is_causal), "scale": str(scale),
         "enable_gqa": number(enable_gqa), "dropout_p": number(dropout_p)},
        {"mask": "None", "is_causal": "false", "scale": "None", "enable_gqa": "false",
         "dropout_p": "0.0"})
    return call("scaled_dot_product_attention", [q, k, v], options)


@op("multi_head_attention_forward")
def multi_head_attention(query, key, value, embed_dim, num_heads, in_proj_weight, in_proj_bias,
                         bias_k, bias_v, add_zero_attn, dropout_p, out_proj_weight, out_proj_bias,
                         training=True, key_padding_mask=None, need_weights=True, attn_mask=None,
                         use_separate_proj_weight=False, q_proj_weight=None, k_proj_weight=None,
                         v_proj_weight=None, static_k=None, static_v=None,
                         average_attn_weights=True, is_causal=False, *, recorder_):
    """Products, heads apart, attention, heads together, a product: nn::MultiheadAttention::forward.
    The weights of attention are given only where the program reads them, and none does: None."""
    if bias_k or bias_v or add_zero_attn or key_padding_mask or use_separate_proj_weight or \
            static_k or static_v or (training and dropout_p) or len(query.shape) != 3:
        raise NotImplementedError("an option of multi_head_attention_forward")
    n, e = num_heads, embed_dim

    def heads(x, shape):
        return f"{x}.reshape({cpp_shape([shape[0], shape[1] * n, e // n])}).transpose(0, 1)"

    def projected(x, i):
        bias = f"{in_proj_bias}.narrow(0, {i * e}, {e})" if in_proj_bias else None
        weight = f"{in_proj_weight}.narrow(0, {i * e}, {e})"
        return heads(call(f"{x}.linear", [weight, bias]), x.shape)
    if query == key == value:
        uses = [v for r in (query, in_proj_weight, in_proj_bias) if r for v in r.uses]
        all_three = recorder_.new_name()
        recorder_.state(all_three, f"const Tensor {all_three} = "
                        f"{call(query + '.linear', [in_proj_weight, in_proj_bias])};", uses)
        recorder_.extra_uses.append(all_three)
        q, k, v = (heads(f"{all_three}.narrow(2, {i * e}, {e})", query.shape) for i in range(3))
    else:
        q, k, v = projected(query, 0), projected(key, 1), projected(value, 2)
    causal = bool(is_causal and not attn_mask)
    options = designated({"mask": str(attn_mask), "is_causal": number(causal)},
                         {"mask": "None", "is_causal": "false"})
    length, batch = query.shape[0], query.shape[1]
    text = call("scaled_dot_product_attention", [q, k, v], options)
    return [f"{text}.transpose(0, 1).reshape({{{length}, {batch}, {e}}})"
            + call(".linear", [out_proj_weight, out_proj_bias]), "Tensor()"]


def recurrent(name, gates_hidden, initial, parts):
    def forward(x, hx, weights, has_biases, num_layers, dropout, train, bidirectional,
                batch_first=False):
        if dropout:
            raise NotImplementedError("dropout between recurrent layers")
        if isinstance(has_biases, (list, tuple)) or not isinstance(has_biases, bool):
            raise NotImplementedError("packed sequences")
        step = 4 if has_biases else 2
        cells = ["{" + ", ".join(weights[i:i + step]) + "}" for i in range(0, len(weights), step)]
        options = designated({"batch_first": number(batch_first),
                              "bidirectional": number(bidirectional)},
                             {"batch_first": "false", "bidirectional": "false"})
        return Struct(f"{name.capitalize()}Result", call(
            name, [x, initial(hx), "{" + ", ".join(cells) + "}"], options), parts)
    return forward


TABLE["lstm"] = recurrent("lstm", 4, lambda hx: f"{{{hx[0]}, {hx[1]}}}",
                          [".y", ".state.h", ".state.c"])
TABLE["gru"] = recurrent("gru", 3, str, [".y", ".h"])
