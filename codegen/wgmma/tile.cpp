#include "codegen/wgmma/tile.h"

#include <algorithm>

#include "tiny/base/env.h"

namespace tiny {

namespace {

// Every number of a tile in one order, for the payload of its node and back.
template <class Visit> void each_number(MatrixTile& tile, Visit visit) {
  visit(tile.rows);
  visit(tile.columns);
  visit(tile.split_n);
  visit(tile.vectorized_epilogue);
  visit(tile.depth);
  int type = static_cast<int>(tile.dtype.scalar);
  visit(type);
  tile.dtype = static_cast<Scalar>(type);
  for (MatrixOperand* o : {&tile.a, &tile.b}) {
    TensorMap& map = o->map;
    visit(map.slot);
    visit(o->elements);
    visit(map.offset);
    visit(map.rank);
    visit(map.windows);
    visit(o->k_major);
    visit(o->boxes);
    for (int d = 0; d < 5; ++d) {
      visit(map.sizes[d]);
      visit(map.strides[d]);
      visit(map.box[d]);
    }
    for (int d = 0; d < 3; ++d) {
      visit(map.lower[d]);
      visit(map.upper[d]);
      visit(map.steps[d]);
    }
    for (BoxCoordinate& at : o->at) {
      visit(at.source);
      visit(at.step);
      visit(at.divide);
      visit(at.modulo);
      visit(at.times);
      visit(at.plus);
      visit(at.by_box);
    }
    map.element_bytes = tile.dtype.size();
    map.dtype = tile.dtype;
  }
  visit(tile.max_stages);
  visit(tile.begin);
  visit(tile.a.advance);
  visit(tile.b.advance);
  visit(tile.cluster_m);
  visit(tile.cluster_n);
  visit(tile.split_k);
  int second = static_cast<int>(tile.second.scalar);
  visit(second);
  tile.b.map.dtype = tile.second = static_cast<Scalar>(second);
}

}  // namespace

MatrixTile::MatrixTile(Node matrix) {
  const Ints numbers = matrix->ints();
  size_t at = 0;
  each_number(*this, [&](auto& n) { n = static_cast<std::decay_t<decltype(n)>>(numbers[at++]); });
  steps.assign(numbers.begin() + static_cast<ptrdiff_t>(at), numbers.end());
}

std::vector<int64_t> MatrixTile::numbers() const {
  MatrixTile tile = *this;
  std::vector<int64_t> out;
  each_number(tile, [&](auto& n) { out.push_back(n); });
  out.insert(out.end(), steps.begin(), steps.end());
  return out;
}

int64_t MatrixTile::all_steps() const {
  int64_t n = 1;
  for (int64_t s : steps) n *= s;
  return n;
}

int MatrixOperand::box_bytes() const {
  int bytes = map.element_bytes;
  for (int d = 0; d < map.rank; ++d) bytes *= map.box[d];
  return bytes;
}

bool MatrixTile::reads_once() const {
  const auto is_matrix = [](const TensorMap& map) { return map.rank == 2 && !map.windows; };
  return is_matrix(a.map) && is_matrix(b.map) && b.map.sizes[b.k_major ? 1 : 0] <= columns;
}

// Two where half of the registers hold a tile, and half of the shared memory enough stages; of the
// smallest tiles three, but where memory is the limit four stages of a third are too few
// (measurements.md: shared_by).
int MatrixTile::shared_by() const {
  if (groups() == 1) return columns <= (reads_once() ? 32 : 64) ? 3 : 2;
  if (type().promotes_each_step && registers() > kMaxRegisters / 4) return 1;
  return rows == 128 && columns <= 128 ? 2 : 1;
}

// A warpgroup can leave its registers to the others; that pays where one block has all of them.
int MatrixTile::threads() const { return multipliers() + (sets_maxnreg() ? 128 : 32); }

// Of 228 KiB, less what the system takes of each block, makes the addresses multiples of 1024, and
// the barriers.
int MatrixTile::stages() const {
  return std::min(8, (228 / blocks() * 1024 - 4096) / stage_bytes());
}

// PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions: wgmma.mma_async", the shapes and
// types of its operands, and the bits of descriptors that turn them.
const MatrixType* matrix_type(DType dtype) {
  static constexpr MatrixType kTypes[] = {{kBF16, "bf16", kF32, true},
                                          {kF16, "f16", kF32, true},
                                          {kI8, "s8", kI32},
                                          {kF8E4M3, "e4m3", kF32, false, true},
                                          {kF8E5M2, "e5m2", kF32, false, true},
                                          {kF32, "tf32", kF32}};
  for (const MatrixType& type : kTypes)
    if (type.dtype == dtype && (dtype != kF32 || env_int("ALLOW_TF32"))) return &type;
  return nullptr;
}

bool has_matrix_unit(const Target& target, DType dtype) {
  return target.has_wgmma && matrix_type(dtype);
}

bool has_window_unit(const Target& target, DType dtype) {
  return has_matrix_unit(target, dtype) && matrix_type(dtype)->allows_mn_major;
}
void set_launch(const MatrixTile& tile, const Target& target, LaunchSize& size) {
  const int64_t clusters = std::max(1, target.cores * tile.blocks() / tile.cluster());
  const int64_t most = clusters * tile.cluster();
  // An operand that is read once needs no neighbouring sectors of a miss; one with reuse does
  // (measurements.md: once).
  const int64_t copied = size.grid[0] * tile.rows * tile.all_steps() * tile.depth;
  const bool once = !tile.a.map.windows && copied <= tile.a.elements + tile.a.elements / 8;
  // Pairs of blocks fill all multiprocessors; of larger clusters some have no room for as many.
  size.grid[0] *= tile.split_k;
  if (tile.split_k <= 2) size.grid[0] = std::min(size.grid[0], most);
  size.cluster = tile.cluster();
  size.block[0] = tile.threads();
  size.shared_bytes = tile.stages() * tile.stage_bytes() + 1024;
  size.maps = {tile.a.map, tile.b.map};
  for (TensorMap& map : size.maps) map.once = once;
}

}  // namespace tiny
