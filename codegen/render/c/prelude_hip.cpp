// The primitives of codegen/render/c/prelude_gpu.h in HIP for AMD GPUs, as clang's language alone:
// its attributes and its builtins for amdgcn ("User Guide for AMDGPU Backend"). No header of ROCm
// and no device library is needed. Waves have 64 lanes on CDNA, 32 on RDNA: WARP.
#include "codegen/render/c/prelude_gpu.h"

namespace tiny {

namespace {

#define CONVERSION(name, to, from, instruction)                                     \
  {                                                                                 \
    name, "INLINE " to " " name "(" from " x) {\n  " to " y;\n  asm(\"" instruction \
          " %0, %1\" : \"=v\"(y) : \"v\"(x));\n  return y;\n}\n"                    \
  }
// Without an instruction: `above` is the first number that is too large.
#define CLAMPED(name, to, from, above, lowest, highest)                                           \
  {                                                                                               \
    name, "INLINE " to " " name "(" from " x) {\n  return x != x ? 0 : x >= " above " ? " highest \
          " : x <= (" from ")" lowest " ? " lowest " : (" to ")x;\n}\n"                           \
  }
#define LOWEST "(-0x7fffffffffffffffll - 1)"
#define HIGHEST "0x7fffffffffffffffll"
#define AGENT(name, function)                                                                    \
  {                                                                                              \
    name, "template <class T> INLINE void " name "(T* p, T x) {\n  __hip_atomic_fetch_" function \
          "(p, x, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);\n}\n"                             \
  }
// d += a b: of `t` in memory, which the builtin takes as `operand`; MFMA has flags behind them, and
// of bytes WMMA has before them whether they are signed, and behind whether sums saturate.
#define MATRIX(name, t, sum, results, operand, call)                                    \
  {                                                                                     \
    name, "INLINE void " name "(" sum "* d, const " t "* a, const " t                   \
          "* b) {\n"                                                                    \
          "  const auto x = gathered<" operand ">(a), y = gathered<" operand            \
          ">(b);\n"                                                                     \
          "  auto z = gathered<vector<" sum ", " #results                               \
          ">>(d);\n"                                                                    \
          "  z = __builtin_amdgcn_" call ";\n  __builtin_memcpy(d, &z, sizeof z);\n}\n" \
  }
#define MFMA(name, t, sum, operand, builtin) \
  MATRIX(name, t, sum, 4, operand, "mfma_" builtin "(x, y, z, 0, 0, 0)")
#define WMMA(name, t, operand, builtin) \
  MATRIX(name, t, "f32", 8, operand, "wmma_" builtin "(x, y, z)")
#define WMMA_I8(name, operand, builtin) \
  MATRIX(name, "i8", "i32", 8, operand, "wmma_" builtin "(true, x, true, y, z, false)")
#define BUILTIN(name) \
  { name, "#define " name " __builtin_" name "\n" }

// In order: a text uses only what stands before it.
constexpr Helper kPrimitives[] = {
    {"KERNEL", R"(#define KERNEL(threads) \
  __attribute__((global, amdgpu_flat_work_group_size(1, threads))) void
#define RESTRICT __restrict__
#define INLINE inline __attribute__((device, always_inline))
#define UNROLL _Pragma("unroll")
)"},
    {"u128", "typedef u32 u128 __attribute__((ext_vector_type(4)));\n"},
    {"block_x", "INLINE int block_x() { return __builtin_amdgcn_workgroup_id_x(); }\n"},
    {"block_y", "INLINE int block_y() { return __builtin_amdgcn_workgroup_id_y(); }\n"},
    {"block_z", "INLINE int block_z() { return __builtin_amdgcn_workgroup_id_z(); }\n"},
    {"thread_x", "INLINE int thread_x() { return __builtin_amdgcn_workitem_id_x(); }\n"},
    {"thread_y", "INLINE int thread_y() { return __builtin_amdgcn_workitem_id_y(); }\n"},
    {"thread_z", "INLINE int thread_z() { return __builtin_amdgcn_workitem_id_z(); }\n"},
    {"barrier", R"(INLINE void barrier() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}
)"},
    {"SHARED", "#define SHARED(type, name, count) __attribute__((shared)) type name[count]\n"},
    {"DYNAMIC_SHARED",
     "#define DYNAMIC_SHARED(name) \\\n  extern __attribute__((shared, aligned(16))) char "
     "name[]\n"},
    {"Copies", R"(template <int bytes> struct CopiedBytes;
template <> struct CopiedBytes<16> { typedef u128 type; };
template <> struct CopiedBytes<8> { typedef u64 type; };
template <> struct CopiedBytes<4> { typedef u32 type; };
struct Copies {  // done when the thread goes on
  template <int bytes> INLINE void start(void* to, const void* from, bool on) {
    typename CopiedBytes<bytes>::type x = {0};
    if (on) x = *(const decltype(x)*)from;
    *(decltype(x)*)to = x;
  }
  INLINE void commit() {}
  template <int groups> INLINE void wait() {}
};
)"},
    {"f16_to_f32",
     "INLINE f32 f16_to_f32(f16 x) { return __builtin_bit_cast(_Float16, x.bits); }\n"},
    {"f32_to_f16",
     "INLINE f16 f32_to_f16(f32 x) { return {__builtin_bit_cast(u16, (_Float16)x)}; }\n"},
    // ds_bpermute reads the register of the lane that its first operand is four times the number
    // of.
    {"thread_index", R"(INLINE int thread_index() {
  const int x = __builtin_amdgcn_workitem_id_x(), y = __builtin_amdgcn_workitem_id_y();
  const int wide = __builtin_amdgcn_workgroup_size_x(), high = __builtin_amdgcn_workgroup_size_y();
  return x + wide * (y + high * (int)__builtin_amdgcn_workitem_id_z());
}
)"},
    {"lane_index", R"(INLINE int lane_index() {
  const int low = __builtin_amdgcn_mbcnt_lo(~0u, 0);
  return WARP == 32 ? low : __builtin_amdgcn_mbcnt_hi(~0u, low);
}
)"},
    {"lane_value", R"(template <class T> INLINE T lane_value(T x, int lane) {
  constexpr int words = (sizeof(T) + 3) / 4;
  union { int words[(sizeof(T) + 3) / 4]; T value; } u = {};
  u.value = x;
  UNROLL for (int i = 0; i < words; ++i)
    u.words[i] = __builtin_amdgcn_ds_bpermute(lane * 4, u.words[i]);
  return u.value;
}
)"},
    {"shuffle_xor", R"(template <class T> INLINE T shuffle_xor(T x, int mask) {
  return lane_value(x, lane_index() ^ mask);
}
)"},
    {"shuffle_up", R"(template <class T> INLINE T shuffle_up(T x, int by) {  // or its own
  const int lane = lane_index();
  return lane_value(x, lane < by ? lane : lane - by);
}
)"},
    {"vector", "template <class T, int n> using vector = T __attribute__((ext_vector_type(n)));\n"},
    // One by one: of bytes that are copied as an array clang makes shifts of 128 bits.
    {"gathered", R"(template <class To, class T> INLINE To gathered(const T* from) {
  To to;
  if (sizeof(T) == 1) {
    vector<char, sizeof(To)> x;
    UNROLL for (int i = 0; i < sizeof(To); ++i) x[i] = ((const char*)from)[i];
    to = __builtin_bit_cast(To, x);
  } else {
    __builtin_memcpy(&to, from, sizeof to);
  }
  return to;
}
)"},
    MFMA("mfma_f32_16x16x4_f32", "f32", "f32", "f32", "f32_16x16x4f32"),
    MFMA("mfma_f32_16x16x16_f16", "f16", "f32", "vector<_Float16, 4>", "f32_16x16x16f16"),
    MFMA("mfma_f32_16x16x16_bf16", "bf16", "f32", "vector<short, 4>", "f32_16x16x16bf16_1k"),
    MFMA("mfma_i32_16x16x16_i8", "i8", "i32", "int", "i32_16x16x16i8"),
    MFMA("mfma_i32_16x16x32_i8", "i8", "i32", "long", "i32_16x16x32_i8"),
    MFMA("mfma_f32_16x16x32_fp8_fp8", "u32", "f32", "long", "f32_16x16x32_fp8_fp8"),
    WMMA("wmma_f32_16x16x16_f16", "f16", "vector<_Float16, 16>", "f32_16x16x16_f16_w32"),
    WMMA("wmma_f32_16x16x16_bf16", "bf16", "vector<short, 16>", "f32_16x16x16_bf16_w32"),
    WMMA_I8("wmma_i32_16x16x16_iu8", "vector<int, 4>", "i32_16x16x16_iu8_w32"),
    WMMA("wmma_f32_16x16x16_f16_gfx12", "f16", "vector<_Float16, 8>", "f32_16x16x16_f16_w32_gfx12"),
    WMMA("wmma_f32_16x16x16_bf16_gfx12", "bf16", "vector<short, 8>", "f32_16x16x16_bf16_w32_gfx12"),
    WMMA_I8("wmma_i32_16x16x16_iu8_gfx12", "vector<int, 2>", "i32_16x16x16_iu8_w32_gfx12"),
    WMMA("wmma_f32_16x16x16_fp8_fp8_gfx12", "f8e4m3", "vector<int, 2>",
         "f32_16x16x16_fp8_fp8_w32_gfx12"),
    WMMA("wmma_f32_16x16x16_bf8_bf8_gfx12", "f8e5m2", "vector<int, 2>",
         "f32_16x16x16_bf8_bf8_w32_gfx12"),
    {"least_atomic", R"(constexpr int least_atomic = 4;
template <class T> INLINE T atomicCAS(T* p, T expected, T next) {
  __hip_atomic_compare_exchange_strong(p, &expected, next, __ATOMIC_RELAXED, __ATOMIC_RELAXED,
                                       __HIP_MEMORY_SCOPE_AGENT);
  return expected;
}
)"},
    AGENT("atomicAdd", "add"),
    AGENT("atomicMax", "max"),
    AGENT("atomicMin", "min"),
    AGENT("atomicAnd", "and"),
    AGENT("atomicOr", "or"),
    AGENT("atomicXor", "xor"),
    BUILTIN("sqrtf"),
    BUILTIN("sqrt"),
    BUILTIN("floorf"),
    BUILTIN("floor"),
    BUILTIN("truncf"),
    BUILTIN("trunc"),
    BUILTIN("exp2f"),
    BUILTIN("log2f"),
    BUILTIN("exp2"),  // these two are never called: codegen/passes/decompose/decompose.cpp
    BUILTIN("log2"),
    BUILTIN("fabsf"),
    BUILTIN("fabs"),
    BUILTIN("fmaf"),
    BUILTIN("fma"),
    // The instructions saturate and give 0 for NaN (instruction set manuals, V_CVT_I32_F32).
    CONVERSION("__float2int_rz", "i32", "f32", "v_cvt_i32_f32"),
    CONVERSION("__float2uint_rz", "u32", "f32", "v_cvt_u32_f32"),
    CONVERSION("__double2int_rz", "i32", "f64", "v_cvt_i32_f64"),
    CONVERSION("__double2uint_rz", "u32", "f64", "v_cvt_u32_f64"),
    CLAMPED("__float2ll_rz", "i64", "f32", "0x1p63f", LOWEST, HIGHEST),
    CLAMPED("__double2ll_rz", "i64", "f64", "0x1p63", LOWEST, HIGHEST),
    CLAMPED("__float2ull_rz", "u64", "f32", "0x1p64f", "0ull", "~0ull"),
    CLAMPED("__double2ull_rz", "u64", "f64", "0x1p64", "0ull", "~0ull"),
};

}  // namespace

std::string hip_prelude(const PreludeUse& use) { return gpu_prelude(kPrimitives, use); }

}  // namespace tiny
