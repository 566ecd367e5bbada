// Operators that select elements by index tensors or by values.
#include <algorithm>
#include <array>
#include <cstring>
#include <map>

#include "tiny/onnx/ops/table.h"

namespace tiny::onnx {

namespace {

Shape joined(std::initializer_list<Ints> parts) {
  Shape out;
  for (const Ints part : parts) out.insert(out.end(), part.begin(), part.end());
  return out;
}

Tensors gather(Call& c) {
  const Tensor &x = c[0], &index = c[1];
  const auto axis = static_cast<size_t>(axis_of(x, c.integer("axis", 0)));
  // Rows of a table for indices of any shape, also of a length that is a Variable.
  if (axis == 0 && x.rank() == 2 && index.rank() > 0)
    return {x.embedding(from_front(index, x.size(0)))};
  const Shape shape = sizes(x);
  const Shape result =
      joined({Ints(shape).first(axis), index.shape(), Ints(shape).subspan(axis + 1)});
  const Tensor at = from_front(index, shape[axis]).reshape({index.numel()});
  return {x.index_select(static_cast<int64_t>(axis), at).reshape(result)};
}

Tensors gather_elements(Call& c) {
  const Tensor& x = c[0];
  const int64_t axis = axis_of(x, c.integer("axis", 0));
  return {x.gather(axis, from_front(c[1], x.size(axis)))};
}

// Indices of tuples (..., k) as positions in the flattened axes of these sizes.
Tensor flat_index(const Tensor& index, Ints axes) {
  Tensor flat;
  for (size_t i = 0; i < axes.size(); ++i) {
    const Tensor at = from_front(index.select(-1, static_cast<int64_t>(i)).to(kI64), axes[i]);
    flat = flat.defined() ? flat * axes[i] + at : at;
  }
  return flat;
}

Tensors gather_nd(Call& c) {
  const Tensor &x = c[0], &index = c[1];
  const auto batch = static_cast<size_t>(c.integer("batch_dims", 0));
  const Shape shape = sizes(x), from = sizes(index);
  c.require(!from.empty() && batch < from.size() &&
                batch + static_cast<size_t>(from.back()) <= shape.size() && from.back() > 0,
            "indices ", to_text(from), " of ", to_text(shape), " with ", batch, " batch axes");
  const auto inner = batch + static_cast<size_t>(from.back());
  const int64_t batches = numel(Ints(shape).first(batch));
  const Ints indexed = Ints(shape).subspan(batch, inner - batch);
  Tensor flat = flat_index(index, indexed).reshape({batches, -1});
  flat = flat + Tensor::arange(batches).unsqueeze(1) * numel(indexed);
  const Ints rest = Ints(shape).subspan(inner);
  const Tensor rows = x.reshape({batches * numel(indexed), numel(rest)});
  const Tensor out = rows.index_select(0, flat.reshape({flat.numel()}));
  return {out.reshape(joined({Ints(from).first(from.size() - 1), rest}))};
}

// The name that scatter_reduce has for a reduction; empty for none.
std::string reduction_name(Call& c) {
  const std::string name = c.text("reduction", "none");
  static const std::map<std::string, std::string> kNames = {
      {"none", ""}, {"add", "sum"}, {"mul", "prod"}, {"max", "amax"}, {"min", "amin"}};
  const auto at = kNames.find(name);
  c.require(at != kNames.end(), "the reduction is \"", name,
            "\", expected none, add, mul, max or min");
  return at->second;
}

Tensor scattered(const Tensor& x, int64_t axis, const Tensor& index, const Tensor& updates,
                 const std::string& reduce) {
  if (reduce.empty()) return x.scatter(axis, index, updates);
  return x.scatter_reduce(axis, index, updates, reduce);
}

Tensors scatter_elements(Call& c) {
  const Tensor& x = c[0];
  const int64_t axis = axis_of(x, c.integer("axis", 0));
  c.require(c[2].dtype() == x.dtype(), "updates of ", c[2].dtype(), " for ", x.dtype());
  const Tensor index = from_front(c[1], x.size(axis));
  return {scattered(x, axis, index, c[2], reduction_name(c))};
}

Tensors scatter_nd(Call& c) {
  const Tensor &x = c[0], &index = c[1], &updates = c[2];
  const Shape shape = sizes(x), from = sizes(index);
  c.require(!from.empty() && from.back() <= x.rank() && from.back() > 0, "indices ", to_text(from),
            " of ", to_text(shape));
  c.require(updates.dtype() == x.dtype(), "updates of ", updates.dtype(), " for ", x.dtype());
  const auto k = static_cast<size_t>(from.back());
  const Shape expected = joined({Ints(from).first(from.size() - 1), Ints(shape).subspan(k)});
  c.require(same(updates.shape(), expected), "updates ", to_text(updates.shape()), ", expected ",
            to_text(expected));
  const Tensor flat = flat_index(index, Ints(shape).first(k));
  const int64_t width = numel(Ints(shape).subspan(k)), count = flat.numel();
  const Tensor rows = x.reshape({numel(Ints(shape).first(k)), width});
  const Tensor at = flat.reshape({count, 1}).expand({count, width});
  return {
      scattered(rows, 0, at, updates.reshape({count, width}), reduction_name(c)).reshape(shape)};
}

Tensors one_hot(Call& c) {
  const Tensor &index = c[0], &values = c[2];
  const auto depths = c.host_reals(1);
  c.require(depths.size() == 1, "the depth has ", depths.size(), " values, expected one");
  const auto depth = static_cast<int64_t>(depths[0]);
  const int rank = index.rank() + 1;
  const int axis = normalize_axis("OneHot", c.integer("axis", -1), rank);
  const Tensor at = from_front(index.dtype().is_float() ? index.to(kI64) : index, depth);
  const Tensor place = Tensor::arange(0, depth, 1, at.dtype()).reshape(ones_but(rank, axis, depth));
  return {where(at.unsqueeze(axis) == place, values.select(0, 1), values.select(0, 0))};
}

// --- Results whose shape depends on values -------------------------------------------------------

bool is_nonzero(const HostArray& x, size_t i) {
  return x.dtype.is_float() ? x.reals[i] != 0 : x.integers[i] != 0;
}

Tensors nonzero(Call& c) {
  const Tensor& x = c[0];
  if (!c.around().is_known(x)) return {x.nonzero().t()};
  const HostArray values = c.around().values_of(x);
  std::vector<size_t> found;
  for (size_t i = 0; i < values.size(); ++i)
    if (is_nonzero(values, i)) found.push_back(i);
  const Shape strides = strides_of(values.shape);
  Shape places;
  for (size_t d = 0; d < strides.size(); ++d)
    for (const size_t i : found)
      places.push_back(static_cast<int64_t>(i) / strides[d] % values.shape[d]);
  return {c.constant(places, {std::ssize(values.shape), std::ssize(found)})};
}

Tensors compress(Call& c) {
  Tensor x = c[0];
  int64_t axis = 0;
  if (c.has_attribute("axis"))
    axis = axis_of(x, c.integer("axis", 0));
  else
    x = x.reshape({x.numel()});
  const Shape condition = c.host_integers(1);
  Shape kept;
  for (int64_t i = 0; i < std::min(std::ssize(condition), x.size(axis)); ++i)
    if (condition[i] != 0) kept.push_back(i);
  if (kept.empty()) return {x.narrow(axis, 0, 0)};
  return {x.index_select(axis, c.constant(kept))};
}

// The parts of an array along an axis, each as a list that compares like its elements in order.
struct Part {
  std::vector<double> reals;
  std::vector<int64_t> integers;
  auto operator<=>(const Part&) const = default;
};

std::vector<Part> parts_of(const HostArray& x, size_t axis) {
  const auto size = static_cast<size_t>(x.shape[axis]);
  const auto inner = static_cast<size_t>(numel(Ints(x.shape).subspan(axis + 1)));
  std::vector<Part> out(size);
  for (size_t i = 0; i < x.size(); ++i) {
    Part& part = out[i / inner % size];
    if (x.dtype.is_float())
      part.reals.push_back(x.reals[i]);
    else
      part.integers.push_back(x.integers[i]);
  }
  return out;
}

// The parts that differ: where each comes first, the rank of each part among them, their counts.
struct UniqueParts {
  Shape first, inverse, counts;
};

UniqueParts unique_parts(const std::vector<Part>& parts, bool is_sorted) {
  std::map<Part, int64_t, decltype([](const Part& a, const Part& b) { return (a <=> b) < 0; })>
      numbers;
  UniqueParts out;
  for (size_t i = 0; i < parts.size(); ++i) {
    const auto [at, is_new] = numbers.emplace(parts[i], std::ssize(out.first));
    if (is_new) out.first.push_back(static_cast<int64_t>(i));
    out.counts.resize(out.first.size());
    ++out.counts[at->second];
    out.inverse.push_back(at->second);
  }
  if (!is_sorted) return out;
  Shape new_number(out.first.size());
  const UniqueParts found = out;
  int64_t next = 0;
  for (const auto& [part, number] : numbers) {
    const auto old = static_cast<size_t>(number), place = static_cast<size_t>(next);
    out.first[place] = found.first[old];
    out.counts[place] = found.counts[old];
    new_number[old] = next++;
  }
  for (int64_t& number : out.inverse) number = new_number[number];
  return out;
}

Tensors unique(Call& c) {
  Tensor x = c[0];
  int64_t axis = 0;
  if (c.has_attribute("axis"))
    axis = axis_of(x, c.integer("axis", 0));
  else
    x = x.reshape({x.numel()});
  const HostArray values = c.around().values_of(x);
  const UniqueParts found =
      unique_parts(parts_of(values, static_cast<size_t>(axis)), c.integer("sorted", 1) != 0);
  return {x.index_select(axis, c.constant(found.first)), c.constant(found.first),
          c.constant(found.inverse), c.constant(found.counts)};
}

// --- Boxes ---------------------------------------------------------------------------------------

using Box = std::array<double, 4>;  // lower corner, upper corner

Box box_at(const std::vector<double>& values, size_t i, bool is_centered) {
  const double a = values[4 * i], b = values[4 * i + 1], p = values[4 * i + 2],
               q = values[4 * i + 3];
  if (is_centered) return {a - p / 2, b - q / 2, a + p / 2, b + q / 2};
  return {std::min(a, p), std::min(b, q), std::max(a, p), std::max(b, q)};
}

// The area of what two boxes share over that of both.
double overlap_of(const Box& a, const Box& b) {
  const double height = std::min(a[2], b[2]) - std::max(a[0], b[0]);
  const double width = std::min(a[3], b[3]) - std::max(a[1], b[1]);
  if (height <= 0 || width <= 0) return 0;
  const double shared = height * width;
  const auto area = [](const Box& x) { return (x[2] - x[0]) * (x[3] - x[1]); };
  return shared / (area(a) + area(b) - shared);
}

struct SuppressionLimits {
  int64_t most;    // boxes of a class
  double overlap;  // more than that with a better box
  double score;    // at least
  bool is_centered;
};

// Of the boxes in order of their scores those that no better one of the class covers.
Shape kept_boxes(const std::vector<double>& boxes, std::span<const double> scores, size_t first_box,
                 const SuppressionLimits& limits) {
  std::vector<size_t> order;
  for (size_t i = 0; i < scores.size(); ++i)
    if (scores[i] > limits.score) order.push_back(i);
  std::ranges::stable_sort(order, [&](size_t a, size_t b) { return scores[a] > scores[b]; });
  Shape kept;
  std::vector<Box> kept_corners;
  for (const size_t i : order) {
    if (std::ssize(kept) >= limits.most) break;
    const Box box = box_at(boxes, first_box + i, limits.is_centered);
    const bool is_covered = std::ranges::any_of(
        kept_corners, [&](const Box& other) { return overlap_of(box, other) > limits.overlap; });
    if (is_covered) continue;
    kept.push_back(static_cast<int64_t>(i));
    kept_corners.push_back(box);
  }
  return kept;
}

Tensors non_max_suppression(Call& c) {
  const Shape shape = sizes(c[0]), by_class = sizes(c[1]);
  c.require(shape.size() == 3 && by_class.size() == 3 && shape[2] == 4 && shape[0] == by_class[0] &&
                shape[1] == by_class[2],
            "boxes ", to_text(shape), " and scores ", to_text(by_class),
            ", expected (batch, boxes, 4) and (batch, classes, boxes)");
  const auto real = [&](size_t i, double otherwise) {
    return c.has(i) ? c.host_reals(i).at(0) : otherwise;
  };
  const SuppressionLimits limits{c.has(2) ? c.host_integers(2).at(0) : 0, real(3, 0),
                                 real(4, -std::numeric_limits<double>::infinity()),
                                 c.integer("center_point_box", 0) != 0};
  const auto boxes = c.host_reals(0), scores = c.host_reals(1);
  const auto count = static_cast<size_t>(shape[1]);
  Shape out;
  for (int64_t n = 0; n < shape[0]; ++n)
    for (int64_t k = 0; k < by_class[1]; ++k) {
      const std::span<const double> row(
          scores.data() + static_cast<size_t>(n * by_class[1] + k) * count, count);
      for (const int64_t i : kept_boxes(boxes, row, static_cast<size_t>(n) * count, limits))
        out.insert(out.end(), {n, k, i});
    }
  return {c.constant(out, {std::ssize(out) / 3, 3})};
}

// --- Counts of sequences
// ---------------------------------------------------------------------------

// The pool of n-grams: those of length n stand from counts[n - 1] on, and each has a column.
struct NgramPool {
  std::map<Shape, int64_t> columns;
  int64_t width = 0;
};

NgramPool ngram_pool(Call& c) {
  const Shape pool = c.integers("pool_int64s"), starts = c.integers("ngram_counts"),
              columns = c.integers("ngram_indexes");
  c.require(!pool.empty() || !c.has_attribute("pool_strings"), "strings are refused");
  NgramPool out;
  size_t next = 0;
  for (size_t n = 0; n < starts.size(); ++n) {
    const int64_t end = n + 1 < starts.size() ? starts[n + 1] : std::ssize(pool);
    const auto length = static_cast<int64_t>(n) + 1;
    c.require(starts[n] >= 0 && end <= std::ssize(pool) && (end - starts[n]) % length == 0,
              "n-grams of ", length, " from ", starts[n], " to ", end, " of ", pool.size());
    for (int64_t at = starts[n]; at < end; at += length) {
      c.require(next < columns.size(), "more n-grams than the ", columns.size(), " columns");
      const int64_t column = columns[next++];
      c.require(column >= 0, "column ", column);
      out.columns[Shape(pool.begin() + at, pool.begin() + at + length)] = column;
      out.width = std::max(out.width, column + 1);
    }
  }
  return out;
}

struct NgramLengths {
  int64_t least, most, skips;
};

// How often each of the pool is in the row: elements one after the other, or up to `skips` between
// two.
std::vector<double> ngram_counts(const Shape& row, const NgramPool& pool,
                                 const NgramLengths& lengths) {
  std::vector<double> out(static_cast<size_t>(pool.width), 0);
  for (int64_t skip = 0; skip <= lengths.skips; ++skip)
    for (int64_t n = lengths.least; n <= lengths.most; ++n) {
      if (n == 1 && skip > 0) continue;  // the same for all skips
      for (int64_t at = 0; at + (n - 1) * (skip + 1) < std::ssize(row); ++at) {
        Shape gram;
        for (int64_t i = 0; i < n; ++i) gram.push_back(row[at + i * (skip + 1)]);
        if (const auto found = pool.columns.find(gram); found != pool.columns.end())
          ++out[found->second];
      }
    }
  return out;
}

// Of integers alone; on the host.
Tensors tfidf_vectorizer(Call& c) {
  const Tensor& x = c[0];
  c.require(x.rank() == 1 || x.rank() == 2, "the input has the shape ", to_text(x.shape()));
  const NgramPool pool = ngram_pool(c);
  const NgramLengths lengths{c.integer("min_gram_length", 1), c.integer("max_gram_length", 1),
                             c.integer("max_skip_count", 0)};
  const std::string mode = c.text("mode", "TF");
  const auto weights = c.reals("weights");
  const Shape values = c.host_integers(0);
  const int64_t width = x.size(-1);
  std::vector<double> all;
  for (int64_t begin = 0; begin < std::ssize(values); begin += width) {
    const Shape row(values.begin() + begin, values.begin() + begin + width);
    std::vector<double> counts = ngram_counts(row, pool, lengths);
    for (size_t i = 0; i < counts.size(); ++i) {
      const double weight = i < weights.size() ? weights[i] : 1;
      if (mode == "IDF") counts[i] = counts[i] > 0 ? weight : 0;
      if (mode == "TFIDF") counts[i] *= weight;
    }
    all.insert(all.end(), counts.begin(), counts.end());
  }
  Shape shape = {pool.width};
  if (x.rank() == 2) shape.insert(shape.begin(), x.size(0));
  return {c.constant(all, shape, kF32)};
}

constexpr TypeSet kIndexable = kAll;

constexpr Operator kIndexing[] = {
    {"Compress", 9, kIndexable, compress},
    {"Gather", 1, kIndexable, gather},
    {"GatherElements", 11, kIndexable, gather_elements},
    {"GatherND", 11, kIndexable, gather_nd},
    {"NonMaxSuppression", 10, type_set(kF32), non_max_suppression},
    {"NonZero", 9, kIndexable, nonzero},
    {"OneHot", 9, kNumbers, one_hot},
    {"Scatter", 9, kIndexable, scatter_elements},
    {"ScatterElements", 11, kIndexable, scatter_elements},
    {"ScatterND", 11, kIndexable, scatter_nd},
    {"TfIdfVectorizer", 9, type_set(kI32, kI64), tfidf_vectorizer},
    {"Unique", 11, kIndexable, unique},
};

}  // namespace

std::span<const Operator> indexing_operators() { return kIndexing; }

}  // namespace tiny::onnx
