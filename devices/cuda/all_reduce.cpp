// All-reduce over GPUs of one process: by a kernel of our own on each, or by NCCL. The algorithm is
// chosen in runtime/distributed/collective.cpp.
#include <algorithm>
#include <map>

#include "devices/cuda/cuda.h"
#include "devices/gpu/nccl.h"
#include "tiny/base/env.h"
#include "tiny/base/error.h"
#include "tiny/ir/sizes.h"

namespace tiny {
namespace {

constexpr size_t kMaxGpus = 8, kMaxSums = 23;  // of one launch, as in the text below
constexpr int64_t kMaxBlocks = 128;  // no more than a GPU runs at once: they wait for each other's
constexpr int64_t kThreads = 512;
constexpr int64_t kLargeBlocks = 32;  // as many as the links need (measurements.md: kLargeBlocks)
// Two-shot from so many bytes on: each GPU adds up a slice and writes it into the memory of all,
// which moves less over the links than if each read all pieces.
constexpr size_t kShared = 512 << 10;
// Up to so many bytes, of all sums of a launch, GPUs send one another what they add up.
constexpr int64_t kMailBytes = 64 << 10;

// An element type of the kernel below: how it is added up.
struct Element {
  const char *type, *sum, *up, *down;
};

const Element* element_of(DType t) {
  static const auto& known = *new std::map<Scalar, Element>{
      {Scalar::F32, {"float", "float", "return x;", "return x;"}},
      {Scalar::F64, {"double", "double", "return x;", "return x;"}},
      {Scalar::I32, {"int", "int", "return x;", "return x;"}},
      {Scalar::I64, {"long long", "long long", "return x;", "return x;"}},
      {Scalar::F16,
       {"unsigned short", "float",
        "float y; asm(\"cvt.f32.f16 %0, %1;\" : \"=f\"(y) : \"h\"(x)); return y;",
        "unsigned short y; asm(\"cvt.rn.f16.f32 %0, %1;\" : \"=h\"(y) : \"f\"(x)); return y;"}},
      {Scalar::BF16,
       {"unsigned short", "float", "return __int_as_float(static_cast<int>(x) << 16);",
        "unsigned short y; asm(\"cvt.rn.bf16.f32 %0, %1;\" : \"=h\"(y) : \"f\"(x)); return y;"}}};
  const auto at = known.find(t.scalar);
  return at == known.end() ? nullptr : &at->second;
}

// Every block waits, by flags in the memory of all, until the same block of all GPUs is there: then
// what they add up is in memory, and at the end nobody reads it any more. A flag never goes back, a
// later one stands for those before it; which one is next is counted in each GPU's own memory, by
// block, so that the launch is the same each time and can be replayed. (PTX ISA, memory consistency
// model: release and acquire at system scope.)
constexpr const char* kText = R"(
typedef unsigned int u32;
typedef unsigned long long u64;
constexpr int kGpus = 8, kSums = 23, kBlocks = 128, kCount = COUNT, kMail = MAIL;
__device__ Sum up(Element x) { UP }
__device__ Element down(Sum x) { DOWN }

// `data`: also what was written before is there. At the end reads have to be over, and what others
// wrote here has to be there.
__device__ void meet(u32* const* flags, u32 me, u32 count, u32 epoch, u64 limit, bool data) {
  __syncthreads();
  const u32 other = threadIdx.x;
  if (other < count) {
    u32 *there = nullptr, *here = nullptr;  // no array that is indexed dynamically
#pragma unroll
    for (int j = 0; j < kGpus; ++j) {
      if (j == other) there = flags[j] + blockIdx.x * kGpus + me;
      if (j == me) here = flags[j] + blockIdx.x * kGpus + other;
    }
    if (data)
      asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(there), "r"(epoch) : "memory");
    else
      asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(there), "r"(epoch) : "memory");
    u64 start = 0, now;
    for (u32 tries = 1, seen;; ++tries) {
      if (data)
        asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(seen) : "l"(here) : "memory");
      else
        asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(seen) : "l"(here) : "memory");
      if ((int)(seen - epoch) >= 0) break;
      if (tries % 1024) continue;
      asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
      if (!start) start = now;
      if (now - start > limit) __trap();
    }
  }
  __syncthreads();
}

union Packet {
  uint4 all;
  Element each[16 / sizeof(Element)];
};

// All fields take 8 bytes: the host writes them in a row.
struct Addition {
  u64 size, shared;             // shared: each GPU makes a part, for all
  u64 sources;                  // one: a piece that all get
  u64 block;  // the first block; small sums run concurrently
  u64 letter;  // the first of the words that are sent
  Element* out[kGpus];          // null: not wanted there
  const Element* from[kGpus];
};
struct Batch {
  u64 me, gpus, limit, sums, shares, sends;
  u32* flags[kGpus];
  u64* mail[kGpus];
  Addition sum[kSums];
};

template <class T> __device__ void store(const Addition& a, u64 me, u64 i, T value) {
#pragma unroll
  for (int j = 0; j < kCount; ++j)
    if (a.shared || j == me) reinterpret_cast<T*>(a.out[j])[i] = value;
}

// Each thread asks for several packets before it needs the first: what is on its way over the links
// has to be their rate times their latency, with no more blocks than leave room for others.
template <int kSources> __device__ void add_up(const Addition& a, u64 me) {
  constexpr int kLanes = 16 / sizeof(Element), kPackets = 8 / kSources;
  const u64 packets = a.size / kLanes;
  const u64 begin = a.shared ? packets * me / kCount : 0;
  const u64 end = a.shared ? packets * (me + 1) / kCount : packets;
  const u64 block = blockIdx.x < a.block ? blockIdx.x + gridDim.x - a.block : blockIdx.x - a.block;
  const u64 first = block * blockDim.x + threadIdx.x, step = gridDim.x * (u64)blockDim.x;
  for (u64 i = begin + first; i < end; i += step * kPackets) {
    Packet in[kPackets][kSources];
#pragma unroll
    for (int p = 0; p < kPackets; ++p)
#pragma unroll
      for (int j = 0; j < kSources; ++j)
        if (i + p * step < end)
          in[p][j].all = reinterpret_cast<const uint4*>(a.from[j])[i + p * step];
#pragma unroll
    for (int p = 0; p < kPackets; ++p) {
      if (i + p * step >= end) break;
      Packet result;
#pragma unroll
      for (int lane = 0; lane < kLanes; ++lane) {
        Sum sum = up(in[p][0].each[lane]);
#pragma unroll
        for (int j = 1; j < kSources; ++j) sum += up(in[p][j].each[lane]);
        result.each[lane] = down(sum);
      }
      store(a, me, i + p * step, result.all);
    }
  }
  if (a.shared && me + 1 < kCount) return;
  for (u64 i = packets * kLanes + first; i < a.size; i += step) {
    Sum sum = up(a.from[0][i]);
#pragma unroll
    for (int j = 1; j < kSources; ++j) sum += up(a.from[j][i]);
    store(a, me, i, down(sum));
  }
}

// What fits into words of 32 bits.
union Letter {
  Element each[sizeof(Element) < 4 ? 4 / sizeof(Element) : 1];
  u32 words[sizeof(Element) < 4 ? 1 : sizeof(Element) / 4];
};

// A small sum, by the protocol that NCCL calls LL: each GPU writes its words into the memory of all
// others, each in 64 bits beside the number of the launch, by which those tell that it has come:
// one way over the links, and nobody waits at the end. Odd and even launches have mail of their
// own; a GPU begins one when it has seen the letters of the last from all, which had read those of
// the one before.
__device__ void exchange(const Addition& a, const Batch& batch, u32 epoch) {
  constexpr int kLanes = sizeof(Letter) / sizeof(Element), kWords = sizeof(Letter) / 4;
  u64* own = nullptr;
  const Element* from = nullptr;
  Element* to = nullptr;
#pragma unroll
  for (int j = 0; j < kCount; ++j)
    if (j == batch.me) own = batch.mail[j], from = a.from[j], to = a.out[j];
  const u64 block = blockIdx.x < a.block ? blockIdx.x + gridDim.x - a.block : blockIdx.x - a.block;
  for (u64 i = (block * blockDim.x + threadIdx.x) * kLanes; i < a.size;
       i += gridDim.x * (u64)blockDim.x * kLanes) {
    const auto place = [&](int sender) {
      return ((epoch & 1) * kCount + sender) * (u64)kMail + a.letter + i / kLanes * kWords;
    };
    Letter in[kCount];
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      if (j != batch.me) continue;
#pragma unroll
      for (int lane = 0; lane < kLanes; ++lane)
        in[j].each[lane] = i + lane < a.size ? from[i + lane] : Element();
#pragma unroll
      for (int k = 0; k < kCount; ++k)
#pragma unroll
        for (int w = 0; w < kWords; ++w)
          if (k != j)
            asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(batch.mail[k] + place(j) + w),
                         "l"((u64)epoch << 32 | in[j].words[w])
                         : "memory");
    }
#pragma unroll
    for (int j = 0; j < kCount; ++j)
#pragma unroll
      for (int w = 0; w < kWords; ++w) {
        if (j == batch.me) continue;
        u64 seen, start = 0, now;
        for (u32 tries = 1;; ++tries) {
          asm volatile("ld.relaxed.sys.global.u64 %0, [%1];"
                       : "=l"(seen)
                       : "l"(own + place(j) + w)
                       : "memory");
          if (seen >> 32 == epoch) break;
          if (tries % 1024) continue;
          asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
          if (!start) start = now;
          if (now - start > batch.limit) __trap();
        }
        in[j].words[w] = (u32)seen;
      }
#pragma unroll
    for (int lane = 0; lane < kLanes; ++lane) {
      Sum sum = up(in[0].each[lane]);
#pragma unroll
      for (int j = 1; j < kCount; ++j) sum += up(in[j].each[lane]);
      if (to && i + lane < a.size) to[i + lane] = down(sum);
    }
  }
}

extern "C" __global__ void __launch_bounds__(512, 1) sum_together(
    const __grid_constant__ Batch batch) {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
  u32* own = nullptr;
#pragma unroll
  for (int j = 0; j < kGpus; ++j)
    if (j == batch.me) own = batch.flags[j] + kBlocks * kGpus + blockIdx.x;
  if (batch.sends) {
    u32* const launches = own + kBlocks;  // of each block the same number
    const u32 number = *launches + 1;
    for (int s = 0; s < batch.sums; ++s) exchange(batch.sum[s], batch, number);
    __syncthreads();
    if (threadIdx.x == 0) *launches = number;
    if (blockIdx.x == 0)
      for (u32 b = gridDim.x + threadIdx.x; b < kBlocks; b += blockDim.x) launches[b] = number;
    return;
  }
  const u32 epoch = *own + 1;
  meet(batch.flags, batch.me, batch.gpus, epoch, batch.limit, true);
  for (int s = 0; s < batch.sums; ++s) {
    bool wanted = false;
#pragma unroll
    for (int j = 0; j < kGpus; ++j)
      if (j == batch.me) wanted = batch.sum[s].out[j];
    if (!wanted) continue;
    if (batch.sum[s].sources == 1)
      add_up<1>(batch.sum[s], batch.me);
    else
      add_up<kCount>(batch.sum[s], batch.me);
  }
  meet(batch.flags, batch.me, batch.gpus, epoch + 1, batch.limit, batch.shares);
  if (threadIdx.x == 0) *own = epoch + 1;
}
)";

std::string text_of(const Element& e, size_t gpus) {
  std::string text = kText;
  const auto fill = [&](const char* name, const std::string& body) {
    const size_t at = text.find(name);
    text.replace(at, std::string(name).size(), body);
  };
  fill("COUNT", cat(gpus));
  fill("MAIL", cat(kMailBytes / sizeof(uint32_t)));
  fill("UP", e.up);
  fill("DOWN", e.down);
  return cat("using Element = ", e.type, ";\nusing Sum = ", e.sum, ";\n", text);
}

void* as_field(uint64_t value) { return reinterpret_cast<void*>(value); }

}  // namespace

Source cuda_sum_source(DType dtype, size_t gpus) {
  const Element* e = element_of(dtype);
  expect(e, "a sum over GPUs of ", dtype);
  return {"sum_together", text_of(*e, gpus), Source::Language::Cuda};
}

// State of GPUs that make all-reduces together: flags in the memory of each, and the epochs of its
// barriers.
struct CudaDevice::Together {
  std::vector<CudaDevice*> gpus;
  std::vector<void*> flags, mail;

  explicit Together(std::vector<CudaDevice*> all) : gpus(std::move(all)) {
    const std::vector<uint32_t> zeros(kMaxBlocks * (kMaxGpus + 2));
    const std::vector<uint64_t> empty(2 * gpus.size() * kMailBytes / sizeof(uint32_t));
    for (CudaDevice* d : gpus) {
      for (CudaDevice* other : gpus)
        if (other != d)
          check(d->reach(*other), d->name_, " cannot reach the memory of ", other->name_);
      flags.push_back(d->alloc(zeros.size() * sizeof(uint32_t)));
      d->upload(flags.back(), zeros.data(), zeros.size() * sizeof(uint32_t));
      mail.push_back(d->alloc(empty.size() * sizeof(uint64_t)));
      d->upload(mail.back(), empty.data(), empty.size() * sizeof(uint64_t));
    }
    for (CudaDevice* d : gpus) d->synchronize();
  }

  // Of one list of GPUs, made at its first sum and kept.
  static Together& of(const std::vector<CudaDevice*>& gpus) {
    static auto& all = *new std::map<std::vector<CudaDevice*>, std::unique_ptr<Together>>;
    std::unique_ptr<Together>& one = all[gpus];
    if (!one) one = std::make_unique<Together>(gpus);
    return *one;
  }

  static bool is_large(const AllReduce& s) { return s.count * s.dtype.size() >= kShared; }

  static bool is_shared(const AllReduce& s) {
    const auto is_wanted = [](void* to) { return to != nullptr; };
    return s.from.size() > 1 && is_large(s) && std::ranges::all_of(s.to, is_wanted);
  }

  // Of letters, each for one or more elements of 32 bits in all, or for half of one of 64.
  static int64_t words_of(const AllReduce& s) {
    return ceil_div(static_cast<int64_t>(s.count * s.dtype.size()), sizeof(uint32_t));
  }

  bool sends(std::span<const AllReduce> sums) const {
    int64_t words = 0;
    for (const AllReduce& s : sums) {
      if (s.from.size() != gpus.size()) return false;
      words += words_of(s);
    }
    return words * sizeof(uint32_t) <= kMailBytes;
  }

  // Of one dtype; for each GPU.
  std::vector<LaunchItem> launches(std::span<const AllReduce> sums) {
    const auto limit = static_cast<uint64_t>(env_int("COLLECTIVE_TIMEOUT")) * 1'000'000'000;
    const bool sent = sends(sums);
    int64_t blocks = 0, words = 0;
    std::vector<int64_t> begin, letter;  // the block and the first word of each sum
    uint64_t shares = 0;
    for (const AllReduce& s : sums) {
      int64_t packets = static_cast<int64_t>(s.count * s.dtype.size()) / 16;
      if (is_shared(s)) packets /= static_cast<int64_t>(gpus.size());
      begin.push_back(blocks);
      letter.push_back(words);
      words += words_of(s);
      blocks += std::max<int64_t>(ceil_div(sent ? words_of(s) : packets, kThreads), 1);
      shares += is_shared(s);
    }
    LaunchSize size;
    size.block[0] = kThreads;
    size.waits = true;
    const bool large = std::ranges::any_of(sums, is_large);
    const int64_t most = large ? kLargeBlocks : kMaxBlocks;
    size.grid[0] = std::min({blocks, most, int64_t{gpus[0]->target().cores}});
    std::vector<LaunchItem> out;
    for (size_t me = 0; me < gpus.size(); ++me) {
      std::vector<void*> batch{as_field(me),          as_field(gpus.size()), as_field(limit),
                               as_field(sums.size()), as_field(shares),      as_field(sent)};
      const auto add = [&](const auto& pointers) {
        for (size_t i = 0; i < kMaxGpus; ++i)
          batch.push_back(i < pointers.size() ? const_cast<void*>(pointers[i]) : nullptr);
      };
      add(flags);
      add(mail);
      for (size_t i = 0; i < sums.size(); ++i) {
        const AllReduce& s = sums[i];
        batch.insert(batch.end(),
                     {as_field(s.count), as_field(is_shared(s)), as_field(s.from.size()),
                      as_field(static_cast<uint64_t>(begin[i] % size.grid[0])),
                      as_field(static_cast<uint64_t>(letter[i]))});
        add(s.to);
        add(s.from);
      }
      batch.resize(6 + 2 * kMaxGpus + kMaxSums * (5 + 2 * kMaxGpus));
      out.push_back({&gpus[me]->sum_program(sums[0].dtype, gpus.size()), size, std::move(batch)});
    }
    return out;
  }
};

namespace {

// Of a gather a sum of one piece for each device, in its place behind those before it: of integers,
// as which any elements keep their bits.
std::vector<AllReduce> pieces_of(const AllReduce& s) {
  if (s.counts.empty()) return {s};
  std::vector<AllReduce> out;
  const auto width = static_cast<size_t>(s.dtype.size());
  size_t begin = 0;
  for (size_t i = 0; i < s.from.size(); ++i) {
    const size_t bytes = s.counts[i] * width;
    AllReduce one{s.devices, {s.from[i]}, s.to, kI32, bytes / sizeof(int32_t), s.by};
    for (void*& to : one.to)
      if (to) to = static_cast<std::byte*>(to) + begin;
    begin += bytes;
    out.push_back(std::move(one));
  }
  return out;
}

}  // namespace

Program& CudaDevice::sum_program(DType dtype, size_t gpus) {
  std::lock_guard lock(ordering_);
  std::unique_ptr<Program>& program = sums_[{dtype.scalar, gpus}];
  if (!program) {
    const Source source = cuda_sum_source(dtype, gpus);
    program = load(compile(source), source.entry);
  }
  return *program;
}

std::string CudaDevice::missing_for_all_reduce(SumBy by, DType dtype) {
  if (by == SumBy::Library) return nccl().missing_reason(dtype);
  return element_of(dtype) ? "" : cat("its kernel does not add up values of ", dtype);
}

std::vector<std::vector<LaunchItem>> CudaDevice::all_reduce_launches(
    std::span<const AllReduce> sums) {
  std::map<Scalar, std::vector<AllReduce>> by_dtype;
  for (const AllReduce& s : sums) {
    if (s.by != SumBy::Flags) return {};
    for (AllReduce& part : pieces_of(s)) by_dtype[part.dtype.scalar].push_back(std::move(part));
  }
  std::vector<CudaDevice*> gpus;
  for (Device* d : sums[0].devices) gpus.push_back(&dynamic_cast<CudaDevice&>(*d));
  std::vector<std::vector<LaunchItem>> out(gpus.size());
  for (const auto& [dtype, all] : by_dtype)
    for (size_t i = 0; i < all.size(); i += kMaxSums) {
      const size_t count = std::min(kMaxSums, all.size() - i);
      const auto made = Together::of(gpus).launches(std::span(all).subspan(i, count));
      for (size_t g = 0; g < gpus.size(); ++g) out[g].push_back(made[g]);
    }
  return out;
}

std::shared_ptr<PendingAllReduce> CudaDevice::all_reduce(std::span<const AllReduce> sums) {
  std::vector<AllReduce> own;
  for (const AllReduce& s : sums)
    if (s.by == SumBy::Flags) own.push_back(s);
  if (!own.empty()) {
    const auto launches = all_reduce_launches(own);  // compiled before any of them waits
    for (size_t g = 0; g < launches.size(); ++g)
      for (const LaunchItem& i : launches[g])
        dynamic_cast<CudaDevice&>(*sums[0].devices[g]).start(*i.program, i.size, i.args);
  }
  return add_by_library(nccl(), sums);
}

}  // namespace tiny
