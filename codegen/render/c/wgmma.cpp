// Prints the Hopper GEMM main loop (codegen/wgmma/tile.h): a producer thread fills stages of shared
// memory by TMA, two consumer warpgroups run wgmma on them. Instructions, descriptors and layouts
// are those of the PTX ISA: "Asynchronous Warpgroup Level Matrix Instructions", "Matrix
// Descriptor", "Strides" (128-byte swizzle), and cp.async.bulk.tensor. Waits are printed from the
// table of steps that is proved (codegen/wgmma/pipeline.h).
#include "codegen/render/c/prelude_gpu.h"
#include "codegen/render/c/printer.h"
#include "codegen/wgmma/pipeline.h"

namespace tiny {

namespace {

// A text of codegen/render/c/prelude/wgmma.cuh.
std::string helper(std::string_view name) { return prelude_text(PreludeTable::Wgmma, name); }

constexpr const char* kPipeline = R"(
// Stages of shared memory in a ring. full: the copies of a stage have arrived; empty: the
// multiplying warpgroups have read it. Whoever waits follows the ring by index and parity.
template <int stages, int bytes, int full_count, int empty_count> struct Pipeline {
  u32 base, full, empty, parity;
  int at = 0, noted = -1;
  INLINE Pipeline(u64* barriers, char* memory, u32 first) : parity(first) {
    base = (shared_address(memory) + 1023) & ~1023u;
    full = shared_address(barriers);
    empty = full + 8 * stages;
  }
  INLINE void set_up() {
    for (int s = 0; s < stages; ++s) {
      mbarrier_init(full + 8 * s, full_count);
      mbarrier_init(empty + 8 * s, empty_count);
    }
    fence_async();
  }
  INLINE u32 stage() { return base + at * bytes; }
  INLINE u32 arrival() { return full + 8 * at; }
  INLINE void wait_empty() { mbarrier_wait(empty + 8 * at, parity); }
  INLINE void wait_full() { mbarrier_wait(full + 8 * at, parity); }
  INLINE void note() { noted = at; }
  INLINE void release() {
)";
constexpr const char* kPipelineEnd = R"(    noted = -1;
  }
  INLINE void advance() {
    if (++at == stages) {
      at = 0;
      parity ^= 1;
    }
  }
};
// Rows of 128 or 64 bytes, swizzled: `leading` bytes from one block of a row's bytes to the next
// along the contiguous axis, `stride` from eight rows to the next eight.
INLINE u64 descriptor(u32 address, u32 leading, u32 stride) {
  return (u64)(address >> 4 & 0x3fff) | (u64)(leading >> 4) << 16 | (u64)(stride >> 4) << 32 |
         (stride == 1024 ? 1ull : 2ull) << 62;
}
)";

struct CopyKind {
  bool once = false, shared = false;  // read once; copied to blocks of a cluster
  bool operator==(const CopyKind&) const = default;
};
std::string copy_name(const MatrixOperand& o, CopyKind kind) {
  return cat(o.map.windows ? "copy_windows"
             : kind.once   ? "copy_box_once"
                           : "copy_box",
             kind.shared ? "_to" : "");
}

// Copy functions differ in the number of coordinates. An operand that is read once leaves L2 first:
// else it would evict the results of others.
std::string copy_function(const MatrixOperand& o, CopyKind kind) {
  const bool once = kind.once, shared = kind.shared;
  const int first = shared ? 4 : 3;
  std::string params, list[2], inputs;
  for (int d = 0; d < o.coordinates(); ++d) {
    const bool offset = d >= o.map.rank;
    params += cat(offset ? ", u16 x" : ", int x", d);
    std::string& to = list[offset];
    to += cat(to.empty() ? "" : ", ", "%", first + d);
    inputs += cat(offset ? ", \"h\"(x" : ", \"r\"(x", d, ")");
  }
  return cat("INLINE void ", copy_name(o, kind), "(u32 to, const TensorMap& map, u32 arrival",
             shared ? ", u16 blocks" : "", params, ") {\n",
             once ? "  u64 policy;\n  asm(\"createpolicy.fractional.L2::evict_first.b64 %0, "
                    "1.0;\" : \"=l\"(policy));\n"
                  : "",
             "  asm volatile(\"cp.async.bulk.tensor.", o.map.rank, "d.shared::cluster.global.",
             o.map.windows ? "im2col" : "tile", ".mbarrier::complete_tx::bytes",
             shared ? ".multicast::cluster" : "", once ? ".L2::cache_hint" : "", " [%0], [%1, {",
             list[0], "}], [%2]", o.map.windows ? cat(", {", list[1], "}") : "",
             shared ? ", %3" : "", once ? cat(", %", first + o.coordinates()) : "",
             ";\"\n    ::\"r\"(to), \"l\"(&map), \"r\"(arrival)", shared ? ", \"h\"(blocks)" : "",
             inputs, once ? ", \"l\"(policy)" : "", " : \"memory\");\n}\n");
}

std::string multiply_name(const MatrixTile& tile) {
  const std::string name = cat("multiply_", tile.type().name);
  return tile.dtype == tile.second ? name : cat(name, "_", matrix_type(tile.second)->name);
}

// Each operand is contiguous along k (0) or MN-major (1).
std::string multiply_function(const MatrixTile& tile) {
  const int registers = tile.width() / 2;  // of 64 rows
  const MatrixType& type = tile.type();
  const bool floats = type.sum.is_float();
  std::string list, outputs;
  for (int i = 0; i < registers; ++i) {
    list += cat(i ? ", " : "", "%", i);
    outputs += cat(i ? ", " : "", floats ? "\"+f\"(acc[" : "\"+r\"(acc[", i, "])");
  }
  // Signs of floats, and whether each operand is MN-major where it may be.
  const std::string turns =
      type.allows_mn_major ? cat(", %", registers + 2, ", %", registers + 3) : std::string();
  const std::string adds =
      type.promotes_each_step ? cat("setp.ne.b32 p, %", registers + 2) : "setp.eq.b32 p, 0";
  return cat("template <int turn_a, int turn_b> INLINE void ", multiply_name(tile), "(",
             type.sum.name(), " (&acc)[", registers, "], u64 a, u64 b",
             type.promotes_each_step ? ", int adds" : "", ") {\n  asm volatile(\"{ .reg .pred p; ",
             adds, ", 0; wgmma.mma_async.sync.aligned.m64n", tile.width(), "k",
             32 / tile.dtype.size(), floats ? ".f32." : ".s32.", type.name, ".",
             matrix_type(tile.second)->name, " {", list, "}, %", registers, ", %", registers + 1,
             ", p", floats ? ", 1, 1" : "", turns, "; }\"\n    : ", outputs,
             " : \"l\"(a), \"l\"(b)", type.allows_mn_major ? ", \"n\"(turn_a), \"n\"(turn_b)" : "",
             type.promotes_each_step ? ", \"r\"(adds)" : "", ");\n}\n");
}

// The address of the next 32 bytes along k, or 16 elements of 16 bits, and the strides of the
// descriptor: rows of elements of k, or a row of elements of m or n for each of those. `leading`:
// to the next box of m or n.
std::string descriptor(const MatrixOperand& o, const std::string& address, int leading) {
  const int row = o.row_bytes();
  return o.k_major
             ? cat("descriptor(", address, " + k * 32, 16, ", 8 * row, ")")
             : cat("descriptor(", address, " + k * ", 16 * row, ", ", leading, ", ", 8 * row, ")");
}

// Bytes of 64 rows of an operand.
int piece_bytes(const MatrixOperand& o) {
  return o.k_major ? 64 * o.row_bytes() : 64 * 2 / o.row_bytes() * o.box_bytes();
}

// A group of products of the stage, which may run when this has been executed. The last piece of a
// tile that has no more rows than there are may end within a box of 64: it reads the same again.
std::string multiply_text(const MatrixTile& tile, const std::string& indent,
                          const std::string& thread) {
  const auto part = [&](const MatrixOperand& o, bool shared) {
    return shared ? "" : cat(" + ", thread, " / 128 * ", o.bytes() / 2);
  };
  std::string out =
      cat(indent, "const u32 a = pipeline.stage()",
          part(tile.a, tile.split_n || tile.groups() == 1), ", b = pipeline.stage() + ",
          tile.a.bytes(), part(tile.b, !tile.split_n), ";\n", indent, "products_fence();\n");
  out += cat(indent, "UNROLL\n", indent, "for (int k = 0; k < ",
             tile.depth * tile.dtype.size() / 32, "; ++k) {\n");
  for (int piece = 0; piece < tile.pieces(); ++piece) {
    const int begin = piece * piece_bytes(tile.a);
    const bool ends = tile.split_n && begin + piece_bytes(tile.a) > tile.a.bytes();
    out += cat(indent, "  ", multiply_name(tile), "<", tile.a.k_major ? 0 : 1, ", ",
               tile.b.k_major ? 0 : 1, tile.type().promotes_each_step ? ">(part[" : ">(acc[", piece,
               "], ", descriptor(tile.a, cat("a + ", begin), ends ? 0 : tile.a.box_bytes()), ", ",
               descriptor(tile.b, "b", tile.b.box_bytes()),
               tile.type().promotes_each_step ? ", k" : "", ");\n");
  }
  return cat(out, indent, "}\n", indent, "products_commit();\n");
}

// The number of a step along its axes: the first counts fastest, from `begin` on.
std::string step_text(const MatrixTile& tile, int step, const std::string& begin) {
  std::string text = "step";
  for (int i = 0; i < step; ++i) text = cat(text, " / ", tile.steps[i]);
  const size_t at = static_cast<size_t>(step);
  if (at + 1 < tile.steps.size()) text = cat(text, " % ", tile.steps[at]);
  if (step > 0) return text;
  return cat(begin.empty() ? "" : begin + " + ", "(", text, ") * ", tile.depth);
}

// Of a place that counts what `text` says.
std::string place_text(std::string text, const BoxCoordinate& at) {
  if (at.divide != 1) text = cat("(", text, ") / ", at.divide);
  if (at.modulo != 0) text = cat("(", text, ") % ", at.modulo);
  if (at.times != 1) text = cat("(", text, ") * ", at.times);
  return at.plus == 0 ? text : cat(text, " + ", at.plus);
}

}  // namespace

// Whether the first operand need not stay in L2.
bool CPrinter::copies_once(const MatrixTile& tile) const {
  return (program_.streaming >> tile.a.map.slot & 1) != 0;
}

// The blocks of a cluster that read what this one copies of an operand, a bit for each.
static std::string mask_text(const MatrixTile& tile, bool first) {
  if (!first)
    return cat(", ", (1 << tile.cluster_m) - 1, " << rank / ", tile.cluster_m, " * ",
               tile.cluster_m);
  int mask = 0;
  for (int i = 0; i < tile.cluster_n; ++i) mask |= 1 << i * tile.cluster_m;
  return cat(", ", mask, " << rank % ", tile.cluster_m);
}

// Of one box of an operand, to an offset in the stage.
std::string CPrinter::copy_box(const MatrixTile& tile, const Ring& ring, int box) {
  const bool first = box < tile.a.boxes;
  const MatrixOperand& o = first ? tile.a : tile.b;
  const int own = first ? box : box - tile.a.boxes, blocks = tile.copied_by(first);
  std::string at, number = cat(own), offset = cat(ring.boxes[box].offset);
  if (blocks > 1) {
    const std::string rank =
        first ? cat("rank / ", tile.cluster_m) : cat("rank % ", tile.cluster_m);
    number = cat("(", rank, " * ", o.boxes / blocks, " + ", own, ")");
    offset = cat(first ? 0 : tile.a.bytes(), " + ", number, " * ", o.box_bytes());
  }
  const std::string begin = tile.begin < 0 ? "" : value(matrix_->src(tile.begin));
  for (int d = 0; d < o.coordinates(); ++d) {
    const BoxCoordinate& place = o.at[d];
    std::string x;
    if (place.source >= 0) x = value(matrix_->src(place.source));
    if (place.by_box) x = place_text(cat("(", x, " + ", number, ")"), place);
    if (place.step >= 0)
      x += (x.empty() ? "" : " + ") + place_text(step_text(tile, place.step, begin), place);
    const bool advances = d == o.advance && (own || blocks > 1) && !place.by_box;
    const int step = o.map.box[d];
    const std::string plus = blocks > 1 ? cat(" + ", number, " * ", step) : cat(" + ", own * step);
    at += cat(", ", x.empty() ? "0" : x, advances ? plus : "");
  }
  return cat(copy_name(o, {first && copies_once(tile), blocks > 1}), "(pipeline.stage() + ", offset,
             ", map_", first ? "a" : "b", ", pipeline.arrival()",
             blocks > 1 ? mask_text(tile, first) : "", at, ");\n");
}

// A loop over a thread's registers of a tile.
static std::string each_register(const MatrixTile& tile, const std::string& indent) {
  return cat(indent, "UNROLL\n", indent, "for (int i = 0; i < ", tile.registers(), "; ++i) ");
}

std::string CPrinter::ring_text(const MatrixTile& tile, const Ring& ring,
                                const std::vector<RingStep>& steps, Str indent, Str thread) {
  const auto element = [&](const char* name) {
    return cat(name, "[i / ", tile.width() / 2, "][i % ", tile.width() / 2, "]");
  };
  std::string out;
  for (const RingStep& step : steps) {
    switch (step.op) {
      case RingOp::WaitEmpty: out += indent + "pipeline.wait_empty();\n"; break;
      case RingOp::Expect:
        out += cat(indent, "mbarrier_expect(pipeline.arrival(), ", step.amount, ");\n");
        break;
      case RingOp::Copy: out += indent + copy_box(tile, ring, static_cast<int>(step.amount)); break;
      case RingOp::Theirs: break;
      case RingOp::WaitFull: out += indent + "pipeline.wait_full();\n"; break;
      case RingOp::Multiply: out += multiply_text(tile, indent, thread); break;
      case RingOp::WaitProducts:
        out += cat(indent, "products_wait<", step.amount, ">();\n");
        if (step.amount == 0)
          out += cat(each_register(tile, indent), "settle(",
                     element(tile.type().promotes_each_step ? "part" : "acc"), ");\n");
        break;
      case RingOp::Release: out += indent + "pipeline.release();\n"; break;
      case RingOp::Note: out += indent + "pipeline.note();\n"; break;
      case RingOp::Sum:
        out += cat(each_register(tile, indent), element("acc"), " += ", element("part"), ";\n");
        break;
      case RingOp::Use:
        for (int piece = 0; tile.vectorized_epilogue && piece < tile.pieces(); ++piece)
          out += cat(indent, "exchange(acc[", piece, "]);\n");
        if (tile.split_k > 1)
          out += cat(indent, "if (!shared || add_parts<", tile.split_k, ", ", tile.multipliers(),
                     ">(acc, pipeline.base, rank)) {\n", body_, indent, "}\n");
        else
          out += body_;
        break;
      case RingOp::Advance: out += indent + "pipeline.advance();\n"; break;
    }
  }
  return out;
}

// Where blocks of a cluster copy for each other, the readers of all of them tell each.
static std::string release_text(const MatrixTile& tile) {
  if (!tile.multicasts())
    return "    if (noted >= 0 && thread_x() % 128 == 0) mbarrier_arrive(empty + 8 * noted);\n";
  return cat("    if (noted >= 0 && thread_x() % 128 < ", tile.cluster(),
             ")\n      mbarrier_arrive_at(empty + 8 * noted, thread_x() % 128);\n");
}

namespace {

// The loops of a block over its tiles and over the steps of one, what is known before them, and
// what the threads that fill do after them.
struct TileLoops {
  std::string set_up, tiles, steps, end;
};

// `all` tiles, the number of which is `number`. The tiles of a last, partial wave are shared by
// split-K, where there are blocks for all slices: each block then has a slice of one, which is its
// last.
TileLoops tile_loops(const MatrixTile& tile, const std::string& all, const std::string& number) {
  const int64_t steps = tile.all_steps();
  if (tile.split_k == 1)
    return {"",
            cat("for (i32 ", number, " = block_x(); ", number, " < ", all, "; ", number,
                " += grid_x()) {\n"),
            cat("for (int step = 0; step < ", steps, "; ++step) {\n"), ""};
  const std::string begin = cat("rank * ", steps, " / ", tile.split_k);
  const std::string end = cat("(rank + 1) * ", steps, " / ", tile.split_k);
  TileLoops out;
  out.set_up = cat("  const i32 last = ", all, " % grid_x(), rest = last * ", tile.split_k,
                   " <= grid_x() ? last : 0, whole = ", all, " - rest;\n");
  out.tiles = cat("for (i32 item = block_x(); item < whole + rest * ", tile.split_k,
                  "; item += grid_x()) {\n    const bool shared = item >= whole;\n    const i32 ",
                  number, " = shared ? whole + block_x() / ", tile.split_k, " : item;\n");
  out.steps = cat("for (int step = shared ? ", begin, " : 0; step < (shared ? ", end, " : ", steps,
                  "); ++step) {\n");
  out.end = cat("    if (block_x() < rest * ", tile.split_k,
                ") {\n      cluster_barrier();\n      cluster_barrier();\n    }\n");
  return out;
}

}  // namespace

// `before_`: what computes where a tile begins; body_: what is done with the product.
std::string CPrinter::matrix_text() {
  const MatrixTile tile(matrix_);
  const Ring ring = ring_of(tile);
  const int pieces = tile.pieces(), registers = tile.width() / 2, cluster = tile.cluster();
  const CopyKind kinds[] = {{copies_once(tile), tile.cluster_n > 1}, {false, tile.cluster_m > 1}};
  std::string helpers = cat("#ifndef TINY_PRELUDE\n", helper("instructions"),
                            cluster > 1 ? helper("cluster") : "", copy_function(tile.a, kinds[0]));
  if (!(kinds[0] == kinds[1]) || tile.b.map.rank != tile.a.map.rank ||
      tile.b.map.windows != tile.a.map.windows)
    helpers += copy_function(tile.b, kinds[1]);
  helpers += cat(multiply_function(tile), "#endif", kPipeline, release_text(tile), kPipelineEnd);
  if (tile.vectorized_epilogue) helpers += helper("exchange");
  if (tile.split_k > 1) helpers += helper("add_parts");
  const std::string thread = threads_.empty() ? "r_" : value(threads_[0]);
  const TileLoops loops =
      tile_loops(tile, blocks_.empty() ? "1" : cat(blocks_[0]->src(0)->int_value()),
                 blocks_.empty() ? "r_tile" : value(blocks_[0]));
  std::string params = parameters();
  const std::string apart =
      tile.type().promotes_each_step ? cat(", part[", pieces, "][", registers, "]") : std::string();
  const bool alone = tile.sets_maxnreg();  // registers are given to those that multiply
  const std::string kernel = cat("MATRIX_KERNEL(", tile.threads(), ", ", tile.blocks(), ")",
                                 cluster > 1 ? cat(" CLUSTER(", cluster, ")") : "");
  // Blocks begin to speak to each other when all have barriers, and end together.
  std::string set_up = "  if (thread_x() == 0) pipeline.set_up();\n  barrier();\n";
  if (cluster > 1)
    set_up = cat("  const int rank = block_x() % ", cluster,
                 ";\n  if (thread_x() == 0) {\n    pipeline.set_up();\n    fence_cluster();\n  }\n"
                 "  cluster_barrier();\n");
  return helpers +
         cat("extern \"C\" ", kernel, " ", program_.name, "(TENSOR_MAP(map_a), TENSOR_MAP(map_b), ",
             params, ") {\n  DYNAMIC_SHARED(memory);\n  SHARED(u64, barriers, ", 2 * ring.stages,
             ");\n  const bool fills = thread_x() >= ", tile.multipliers(), ";\n  Pipeline<",
             ring.stages, ", ", ring.stage_bytes, ", ", ring.full_count, ", ", ring.empty_count,
             "> pipeline(barriers, memory, fills ? ", ring.fill_parity, " : ", ring.read_parity,
             ");\n", set_up, "  wait_for_earlier();\n", loops.set_up, "  const i32 ", thread,
             " = thread_x();\n  if (fills) {\n", alone ? "    fewer_registers<40>();\n" : "",
             "    if (thread_x() == ", tile.multipliers(), ")\n      ", loops.tiles, before_,
             "        ", loops.steps, ring_text(tile, ring, ring.fill, "          ", thread),
             "        }\n      }\n", loops.end, "  } else {\n",
             alone ? "    more_registers<232>();\n" : "", "    ", loops.tiles, before_, "    ",
             tile.type().sum.name(), " acc[", pieces, "][", registers, "]", apart,
             ";\n    UNROLL\n    for (int i = 0; i < ", pieces * registers, "; ++i) acc[i / ",
             registers, "][i % ", registers, "] = 0;\n    ", loops.steps,
             ring_text(tile, ring, ring.read, "      ", thread), "    }\n",
             ring_text(tile, ring, ring.end, "    ", thread), "    }\n  }\n",
             tile.multicasts() ? "  cluster_barrier();\n" : "", "}\n");
}

}  // namespace tiny
