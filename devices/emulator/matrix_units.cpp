#include "devices/emulator/matrix_units.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "tiny/base/error.h"
#include "tiny/ir/dtype.h"
#include "tiny/ir/sizes.h"

namespace tiny {

namespace {

// The 128-byte swizzle: within 1024 bytes, the number of the row of 128 bytes is added without
// carry to that of the piece of 16 bytes in it. Those of 64 and 32 bytes: with half and a quarter
// of the bytes, and of the pieces.
uint32_t swizzled(uint32_t address, uint32_t bytes) {
  return address ^ (address >> 7 & (bytes / 16 - 1)) << 4;
}

int size_of_type(int type) {
  return type == EmulatedMatrixUnits::Tf32 ? 4 : type >= EmulatedMatrixUnits::S8 ? 1 : 2;
}

// f32 that is copied as TF32: to 10 bits after the point, ties away from zero.
void round_to_tf32(char* at) {
  uint32_t bits;
  std::memcpy(&bits, at, 4);
  if ((bits & 0x7f800000) != 0x7f800000) bits = (bits + 0x1000) & 0xffffe000u;
  std::memcpy(at, &bits, 4);
}

float to_float(uint16_t bits, bool bf16) { return bf16 ? bf16_to_f32(bits) : f16_to_f32(bits); }

}  // namespace

void EmulatedMatrixUnits::begin_block(char* shared, int64_t bytes, int threads) {
  shared_ = shared;
  bytes_ = bytes;
  events_ = 0;
  fenced_ = shown_ = met_ = reached_ = false;
  stored_.clear();
  barriers_.clear();
  copies_.clear();
  warpgroups_.assign(static_cast<size_t>(ceil_div(threads, kGroup)), {});
  threads_.assign(static_cast<size_t>(threads), {});
}

// --- barriers ------------------------------------------------------------------------------------

EmulatedMatrixUnits::Barrier* EmulatedMatrixUnits::find(uint32_t barrier) {
  const auto found = barriers_.find(barrier);
  return found == barriers_.end() ? nullptr : &found->second;
}

std::string EmulatedMatrixUnits::init(uint32_t barrier, uint32_t count) {
  if (barrier % 8 || barrier + 8 > bytes_) return cat("an mbarrier at byte ", barrier);
  if (find(barrier)) return "initialises an mbarrier again";
  barriers_[barrier] = {count, count};
  fenced_ = shown_ = met_ = false;
  return "";
}

// The phase is over when all have arrived and all bytes have come.
void EmulatedMatrixUnits::settle(Barrier& b) {
  ++events_;
  if (b.pending || b.bytes) return;
  ++b.phase;
  b.pending = b.count;
}

std::string EmulatedMatrixUnits::test(uint32_t barrier, uint32_t parity, bool* complete) {
  const Barrier* b = find(barrier);
  if (!b) return "waits at an mbarrier that was not initialised";
  // The phase before the one in progress has the other parity.
  *complete = (b->phase & 1) != parity;
  return "";
}

std::string EmulatedMatrixUnits::arrive(uint32_t barrier, uint32_t expected_bytes) {
  Barrier* b = find(barrier);
  if (!b) return "arrives at an mbarrier that was not initialised";
  if (!b->pending) return "arrives at an mbarrier once more than its count";
  b->bytes += expected_bytes;
  --b->pending;
  settle(*b);
  return "";
}

// --- copies --------------------------------------------------------------------------------------

int64_t EmulatedMatrixUnits::box_bytes(const TensorMap& map) {
  int64_t bytes = map.element_bytes;
  for (int d = 0; d < map.rank; ++d) bytes *= map.box[d];
  return bytes;
}

std::string EmulatedMatrixUnits::copy_box(uint32_t to, const EmulatedMap& map, uint32_t barrier,
                                          const int* at) {
  const int64_t bytes = box_bytes(map.map);
  if (!find(barrier)) return "copies with an mbarrier that was not initialised";
  if (!fenced_) return "copies with no fence after an mbarrier was initialised";
  if (to % 1024 || to + bytes > bytes_)
    return cat("copies ", bytes, " bytes to byte ", to, " of shared memory, which has ", bytes_);
  if (const int row = map.map.box[0] * map.map.element_bytes; row != 128 && row != 64 && row != 32)
    return "copies rows of other bytes than a swizzle's";
  // Hopper ends the kernel with CUDA_ERROR_ILLEGAL_INSTRUCTION.
  if (at[0] * map.map.element_bytes % 16 != 0)
    return cat("copies a box from element ", at[0], " of rows, which is no multiple of 16 bytes");
  if (std::string problem = window_problem(map.map, at); !problem.empty()) return problem;
  std::memset(shared_ + to, 0xFF, static_cast<size_t>(bytes));
  const int places = map.map.rank + (map.map.windows ? map.map.rank - 2 : 0);
  copies_.push_back({to, barrier, &map, {at, at + places}});
  return "";
}

// PTX ISA, "im2col mode": sizes of corners and offsets by rank; the first window begins in the box.
std::string EmulatedMatrixUnits::window_problem(const TensorMap& map, const int* at) {
  if (!map.windows) return "";
  if (map.rank < 3) return cat("windows of ", map.rank, " axes");
  const int bits = map.rank == 3 ? 16 : map.rank == 4 ? 8 : 5, most = 1 << bits;
  for (int i = 0; i < map.rank - 2; ++i) {
    const int64_t last = map.sizes[i + 1] - 1 + map.upper[i];
    const int offset = at[map.rank + i], begin = at[i + 1];
    if (std::min(map.lower[i], map.upper[i]) < -most / 2 ||
        std::max(map.lower[i], map.upper[i]) >= most / 2)
      return cat("windows with corners ", map.lower[i], " and ", map.upper[i]);
    if (offset < 0 || offset >= most) return cat("copies from offset ", offset, " in windows");
    if (map.steps[i] < 1 || map.steps[i] > 8) return cat("windows ", map.steps[i], " apart");
    if (begin < map.lower[i] || begin > last)
      return cat("copies from a window at ", begin, ", outside of ", map.lower[i], " to ", last);
  }
  return "";
}

bool EmulatedMatrixUnits::complete_copy() {
  if (copies_.empty()) return false;
  const Copy copy = std::move(copies_.back());
  copies_.pop_back();
  const TensorMap& map = copy.map->map;
  const int64_t bytes = box_bytes(map), row = map.box[0] * map.element_bytes;
  int64_t at[5];  // of the row; of windows, where the window begins
  std::copy_n(copy.at.begin(), map.rank, at);
  for (int64_t done = 0; done < bytes; done += row) {
    int64_t element[5];
    std::copy_n(at, map.rank, element);
    for (int d = 1; map.windows && d < map.rank - 1; ++d) element[d] += copy.at[map.rank + d - 1];
    copy_row(copy, element, static_cast<uint32_t>(copy.to + done));
    for (int d = 1; d < map.rank; ++d) {
      const bool image = map.windows && d == map.rank - 1;
      const int64_t first = map.windows ? map.lower[d - 1] : copy.at[d];
      const int64_t last =
          map.windows ? map.sizes[d] - 1 + map.upper[d - 1] : first + map.box[d] - 1;
      at[d] += map.windows && !image ? map.steps[d - 1] : 1;
      if (image || at[d] <= last) break;
      at[d] = first;
    }
  }
  Barrier& b = *find(copy.barrier);
  b.bytes -= bytes;
  settle(b);
  return true;
}

// Copies box[0] elements from `element` on, zeros outside the tensor.
void EmulatedMatrixUnits::copy_row(const Copy& copy, const int64_t* element, uint32_t to) {
  const TensorMap& map = copy.map->map;
  const auto size = static_cast<size_t>(map.element_bytes);
  int64_t from = 0;
  bool inside = true;
  for (int d = 1; d < map.rank; ++d) {
    inside &= element[d] >= 0 && element[d] < map.sizes[d];
    from += element[d] * map.strides[d];
  }
  for (int i = 0; i < map.box[0]; ++i) {
    const int64_t x = element[0] + i;
    const auto row = static_cast<uint32_t>(map.box[0] * map.element_bytes);
    char* const there = shared_ + swizzled(to + static_cast<uint32_t>(i * map.element_bytes), row);
    if (inside && x >= 0 && x < map.sizes[0])
      std::memcpy(there, copy.map->base + from + x * map.element_bytes, size);
    else
      std::memset(there, 0, size);
    if (map.dtype == kF32) round_to_tf32(there);
  }
}

// --- clusters ------------------------------------------------------------------------------------

std::string EmulatedMatrixUnits::reach() {
  if (!met_) return "reaches into a block of its cluster that may not have begun";
  reached_ = true;
  return "";
}

void EmulatedMatrixUnits::meet() {
  met_ = barriers_.empty() || shown_;
  reached_ = false;
  for (auto& [address, seen] : stored_) seen = true;
}

std::string EmulatedMatrixUnits::store(uint32_t address, const void* words) {
  if (std::string problem = reach(); !problem.empty()) return problem;
  if (address % 16 || address + 16 > bytes_) return cat("stores words at byte ", address);
  const auto multiplies = [](const Warpgroup& w) { return !w.issued.empty(); };
  if (!copies_.empty() || std::ranges::any_of(warpgroups_, multiplies))
    return "stores words into a block whose copies or products may be under way";
  std::memcpy(shared_ + address, words, 16);
  stored_[address] = false;
  return "";
}

std::string EmulatedMatrixUnits::load(uint32_t address, void* words) {
  const auto found = stored_.find(address);
  if (found == stored_.end() || !found->second)
    return cat("reads words at byte ", address, " that no block has stored before all met");
  std::memcpy(words, shared_ + address, 16);
  return "";
}

std::string EmulatedMatrixUnits::end() const {
  return reached_ ? "ends when others of its cluster may still reach into it" : "";
}

// --- products ------------------------------------------------------------------------------------

std::string EmulatedMatrixUnits::multiply(int thread, void* acc, const Product& given) {
  Product product = given;
  const bool in_registers = product.form & 64;
  if (in_registers) product.a = 0;
  Thread& t = threads_[thread];
  Warpgroup& group = warpgroups_[thread / kGroup];
  if (!t.fenced) return "multiplies with no wgmma.fence after its registers were changed";
  const auto at = static_cast<size_t>(t.issued - group.executed);
  if (at == group.issued.size()) group.issued.push_back({product, 0, {}, {}});
  Issued& issued = group.issued[at];
  if (!(issued.product == product))
    return "multiplies other operands than the rest of its warpgroup";
  issued.acc[thread % kGroup] = acc;
  if (in_registers)
    std::memcpy(issued.words[thread % kGroup], reinterpret_cast<const void*>(given.a), 16);
  ++issued.threads;
  ++t.issued;
  ++events_;
  t.group_end.resize(static_cast<size_t>(t.groups) + 1);
  t.group_end.back() = t.issued;
  return "";
}

std::string EmulatedMatrixUnits::wait(int thread, int groups, bool* done) {
  Thread& t = threads_[thread];
  Warpgroup& group = warpgroups_[thread / kGroup];
  const int finished = t.groups - groups;
  *done = true;
  if (groups == 0) t.fenced = false;
  if (finished <= 0 || t.group_end.empty()) return "";
  const int64_t wanted =
      t.group_end[std::min(static_cast<size_t>(finished), t.group_end.size()) - 1];
  for (; group.executed < wanted; ++group.executed) {
    if (group.issued.front().threads < kGroup) {  // it begins when all of the warpgroup are there
      *done = false;
      return "";
    }
    if (std::string problem = execute(group.issued.front()); !problem.empty()) return problem;
    group.issued.pop_front();
    ++events_;
  }
  return "";
}

// Where element k of a row of an operand lies; rows count along m or n. Descriptors: the address,
// the leading and the stride offset in units of 16 bytes from bits 0, 16 and 32, the swizzle in
// bits 62 and 63 (1: 128 bytes, 2: 64, 3: 32, 0: none).
std::string EmulatedMatrixUnits::find(uint64_t descriptor, bool turned, const Element& e,
                                      uint32_t* address) const {
  const auto field = [&](int bit) {
    return static_cast<uint32_t>(descriptor >> bit & 0x3fff) << 4;
  };
  const uint32_t start = field(0), leading = field(16), stride = field(32);
  const auto r = static_cast<uint32_t>(e.row), c = static_cast<uint32_t>(e.k);
  const auto size = static_cast<uint32_t>(e.size);
  const uint64_t swizzle = descriptor >> 62;
  const uint32_t bytes = swizzle == 0 ? 16 : 256u >> swizzle;  // of a row
  if (swizzle == 0 && turned) return "has a matrix descriptor that is not emulated";
  if (turned && size != 2) return "turns an operand of other elements than halves";
  if (descriptor >> 49 & 7) return "has a matrix descriptor with a base offset";
  if (swizzle == 0)  // matrices of 8 rows of 16 bytes
    *address = start + r / 8 * stride + r % 8 * 16 + c * size / 16 * leading + c * size % 16;
  else if (turned)  // blocks of a row's elements of m or n in 8 rows of k
    *address = swizzled(
        start + r / (bytes / 2) * leading + c / 8 * stride + c % 8 * bytes + r % (bytes / 2) * 2,
        bytes);
  else  // blocks of 8 rows along k
    *address = swizzled(start + r / 8 * stride + r % 8 * bytes + c * size, bytes);
  return *address + size <= bytes_ ? ""
                                   : cat("multiplies what lies at byte ", *address,
                                         " of shared memory, which has ", bytes_);
}

// A thread's share of the bytes that its warpgroup reads.
std::vector<uint32_t> EmulatedMatrixUnits::share_of(int thread, const Product& p) const {
  const int size = size_of_type(p.form >> 2 & 7), depth = kBytes / size;
  std::vector<uint32_t> out;
  const auto add = [&](uint64_t descriptor, bool turned, int rows) {
    for (int i = thread % kGroup; i < rows * depth; i += kGroup) {
      uint32_t address = 0;
      if (find(descriptor, turned, {i / depth, i % depth, size}, &address).empty())
        out.push_back(address);
    }
  };
  if (!(p.form & 64)) add(p.a, p.form & 1, kRows);
  add(p.b, p.form & 2, p.columns);
  return out;
}

namespace {

// The type of one operand where each has its own.
int type_of_operand(int type, bool first) {
  if (type < EmulatedMatrixUnits::E4M3E5M2) return type;
  const bool is_e4m3 = first == (type == EmulatedMatrixUnits::E4M3E5M2);
  return is_e4m3 ? EmulatedMatrixUnits::E4M3 : EmulatedMatrixUnits::E5M2;
}

// Of TF32 the unit reads the upper 19 bits.
float operand_value(const char* at, int type) {
  uint32_t word = 0;
  std::memcpy(&word, at, static_cast<size_t>(size_of_type(type)));
  switch (type) {
    case EmulatedMatrixUnits::Tf32: return std::bit_cast<float>(word & 0xffffe000u);
    case EmulatedMatrixUnits::S8: return static_cast<int8_t>(word);
    case EmulatedMatrixUnits::E4M3: return f8_to_f32(static_cast<uint8_t>(word), Scalar::F8E4M3);
    case EmulatedMatrixUnits::E5M2: return f8_to_f32(static_cast<uint8_t>(word), Scalar::F8E5M2);
    default: return to_float(static_cast<uint16_t>(word), type == EmulatedMatrixUnits::BF16);
  }
}

// The sums of integers wrap around.
void add(void* acc, int i, float sum, bool integers) {
  if (integers)
    static_cast<uint32_t*>(acc)[i] += static_cast<uint32_t>(static_cast<int32_t>(sum));
  else
    static_cast<float*>(acc)[i] += sum;
}

}  // namespace

std::string EmulatedMatrixUnits::execute(Issued& issued) {
  const Product& p = issued.product;
  const int type = p.form >> 2 & 7, size = size_of_type(type), depth = kBytes / size;
  std::vector<float> a, b;
  const auto read = [&](uint64_t descriptor, bool turned, int rows, std::vector<float>& out) {
    const int own = type_of_operand(type, &out == &a);
    out.resize(static_cast<size_t>(rows * depth));
    for (int i = 0; i < rows * depth; ++i) {
      uint32_t address = 0;
      std::string problem = find(descriptor, turned, {i / depth, i % depth, size}, &address);
      if (!problem.empty()) return problem;
      out[i] = operand_value(shared_ + address, own);
    }
    return std::string();
  };
  std::string problem = p.form & 64 ? "" : read(p.a, p.form & 1, kRows, a);
  if (p.form & 64) {  // figure "WGMMA .m64nNk16 register fragment layout for matrix A"
    a.resize(kRows * 16);
    for (int i = 0; i < kGroup * 8; ++i) {
      const int thread = i / 8, word = i % 8 / 2;
      const int row = thread / 32 * 16 + thread % 32 / 4 + word % 2 * 8;
      const auto bits = static_cast<uint16_t>(issued.words[thread][word] >> i % 2 * 16);
      a[row * 16 + word / 2 * 8 + thread % 4 * 2 + i % 2] =
          operand_value(reinterpret_cast<const char*>(&bits), type);
    }
  }
  if (problem.empty()) problem = read(p.b, p.form & 2, p.columns, b);
  if (!problem.empty()) return problem;
  // A thread's registers: pairs of columns, in two rows eight apart, of each eight columns (figure
  // "WGMMA .m64nNk16 register fragment layout for accumulator matrix D").
  for (int thread = 0; thread < kGroup; ++thread)
    for (int i = 0; i < p.columns / 2; ++i) {
      const int row = thread / 32 * 16 + thread % 32 / 4 + (i % 4 >= 2 ? 8 : 0);
      const int column = i / 4 * 8 + thread % 4 * 2 + i % 2;
      const float *x = &a[row * depth], *y = &b[column * depth];
      float sum = 0;  // of 32 products of bytes it is exact
      for (int k = 0; k < depth; ++k) sum += x[k] * y[k];
      if (p.form & 32) static_cast<float*>(issued.acc[thread])[i] = 0;
      add(issued.acc[thread], i, sum, type == S8);
    }
  return "";
}

}  // namespace tiny
