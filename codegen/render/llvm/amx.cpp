#include "codegen/render/llvm/amx.h"

#include <algorithm>

#include "codegen/options/mma.h"
#include "codegen/render/llvm/printer.h"

namespace tiny {

using namespace llvm_text;

namespace {

constexpr int kTiles = 8, kTileBytes = 1024, kRowBytes = 64;

// The instructions in plain code, for processors that lack them (Intel's manual, volume 2; whatever
// the processor's mode, subnormal numbers count as zeros in bf16 and in sums).
constexpr const char* kEmulated = R"(
define internal void @emulated.tilezero(ptr %t) {
  call void @llvm.memset.p0.i64(ptr %t, i8 0, i64 1024, i1 false)
  ret void
}
define internal void @emulated.tileloadd64(ptr %t, ptr %from, i64 %stride) {
entry:
  br label %row
row:
  %i = phi i64 [ 0, %entry ], [ %next, %row ]
  %from.at = mul i64 %i, %stride
  %row.from = getelementptr i8, ptr %from, i64 %from.at
  %to.at = mul i64 %i, 64
  %row.to = getelementptr i8, ptr %t, i64 %to.at
  call void @llvm.memcpy.p0.p0.i64(ptr %row.to, ptr %row.from, i64 64, i1 false)
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, 16
  br i1 %more, label %row, label %done
done:
  ret void
}
define internal void @emulated.tilestored64(ptr %t, ptr %to, i64 %stride) {
  call void @llvm.memcpy.p0.p0.i64(ptr %to, ptr %t, i64 1024, i1 false)
  ret void
}
define internal <16 x float> @emulated.flush(<16 x float> %x) {
  %bits = bitcast <16 x float> %x to <16 x i32>
  %exponent = and <16 x i32> %bits, SPLAT(2139095040)
  %sign = and <16 x i32> %bits, SPLAT(-2147483648)
  %small = icmp eq <16 x i32> %exponent, zeroinitializer
  %r = select <16 x i1> %small, <16 x i32> %sign, <16 x i32> %bits
  %f = bitcast <16 x i32> %r to <16 x float>
  ret <16 x float> %f
}
define internal <16 x float> @emulated.bf16(<16 x i32> %x, i1 %odd) {
  %high = and <16 x i32> %x, SPLAT(-65536)
  %low = shl <16 x i32> %x, SPLAT(16)
  %bits = select i1 %odd, <16 x i32> %high, <16 x i32> %low
  %f = bitcast <16 x i32> %bits to <16 x float>
  %r = call <16 x float> @emulated.flush(<16 x float> %f)
  ret <16 x float> %r
}
define internal <16 x float> @emulated.dpbf16ps.512(<16 x float> %c, <32 x bfloat> %a,
                                                    <32 x bfloat> %b) {
  %x = bitcast <32 x bfloat> %a to <16 x i32>
  %y = bitcast <32 x bfloat> %b to <16 x i32>
  %z = call <16 x float> @emulated.flush(<16 x float> %c)
  %s = call <16 x float> @emulated.add.bf16(<16 x float> %z, <16 x i32> %x, <16 x i32> %y, i1 true)
  %r = call <16 x float> @emulated.add.bf16(<16 x float> %s, <16 x i32> %x, <16 x i32> %y, i1 false)
  ret <16 x float> %r
}
define internal <16 x i32> @emulated.byte(<16 x i32> %x, i32 %at, i1 %signed) {
  %up = sub i32 24, %at
  %one = insertelement <16 x i32> poison, i32 %up, i32 0
  %all = shufflevector <16 x i32> %one, <16 x i32> poison, <16 x i32> zeroinitializer
  %top = shl <16 x i32> %x, %all
  %s = ashr <16 x i32> %top, SPLAT(24)
  %u = lshr <16 x i32> %top, SPLAT(24)
  %r = select i1 %signed, <16 x i32> %s, <16 x i32> %u
  ret <16 x i32> %r
}
define internal <16 x i32> @emulated.bytes(<16 x i32> %c, <16 x i32> %a, <16 x i32> %b,
                                           i1 %sa, i1 %sb) {
entry:
  br label %next
next:
  %i = phi i32 [ 0, %entry ], [ %j, %next ]
  %sum = phi <16 x i32> [ %c, %entry ], [ %more, %next ]
  %x = call <16 x i32> @emulated.byte(<16 x i32> %a, i32 %i, i1 %sa)
  %y = call <16 x i32> @emulated.byte(<16 x i32> %b, i32 %i, i1 %sb)
  %p = mul <16 x i32> %x, %y
  %more = add <16 x i32> %sum, %p
  %j = add i32 %i, 8
  %again = icmp slt i32 %j, 32
  br i1 %again, label %next, label %done
done:
  ret <16 x i32> %more
}
define internal <16 x i32> @emulated.vpdpbusd.512(<16 x i32> %c, <16 x i32> %a, <16 x i32> %b) {
  %r = call <16 x i32> @emulated.bytes(<16 x i32> %c, <16 x i32> %a, <16 x i32> %b, i1 false,
                                       i1 true)
  ret <16 x i32> %r
}
define internal <16 x i32> @emulated.row(ptr %a, i64 %m, i64 %k) {
  %at = mul i64 %m, 16
  %element = add i64 %at, %k
  %p = getelementptr i32, ptr %a, i64 %element
  %v = load i32, ptr %p
  %one = insertelement <16 x i32> poison, i32 %v, i32 0
  %all = shufflevector <16 x i32> %one, <16 x i32> poison, <16 x i32> zeroinitializer
  ret <16 x i32> %all
}
)";

// A pair's even or odd element times another's, plus a sum, for either 16-bit float.
constexpr const char* kEmulatedAdd = R"(
define internal <16 x float> @emulated.add.HALF(<16 x float> %c, <16 x i32> %a, <16 x i32> %b,
                                               i1 %odd) {
  %x = call <16 x float> @emulated.HALF(<16 x i32> %a, i1 %odd)
  %y = call <16 x float> @emulated.HALF(<16 x i32> %b, i1 %odd)
  %s = call <16 x float> @llvm.fma.v16f32(<16 x float> %x, <16 x float> %y, <16 x float> %c)
  %r = call <16 x float> @emulated.flush(<16 x float> %s)
  ret <16 x float> %r
}
)";
constexpr const char* kEmulatedF16 = R"(
define internal <16 x float> @emulated.f16(<16 x i32> %x, i1 %odd) {
  %high = lshr <16 x i32> %x, SPLAT(16)
  %bits = select i1 %odd, <16 x i32> %high, <16 x i32> %x
  %low = trunc <16 x i32> %bits to <16 x i16>
  %h = bitcast <16 x i16> %low to <16 x half>
  %f = fpext <16 x half> %h to <16 x float>
  ret <16 x float> %f
}
)";

// Sums of the products of two tiles' rows and columns: BF16, and so here F16, keeps those of even
// and of odd elements apart until the end, others add in the order of k.
constexpr const char* kEmulatedTile = R"(
define internal void @emulated.NAME(ptr %c, ptr %a, ptr %b) {
entry:
  br label %row
row:
  %m = phi i64 [ 0, %entry ], [ %m1, %stored ]
  %cp = getelementptr <16 x TYPE>, ptr %c, i64 %m
  %old = load <16 x TYPE>, ptr %cp, align 4
  br label %step
step:
  %k = phi i64 [ 0, %row ], [ %k1, %step ]
  %even = phi <16 x TYPE> [ START, %row ], [ %even1, %step ]
  %odd = phi <16 x TYPE> [ zeroinitializer, %row ], [ %odd1, %step ]
  %x = call <16 x i32> @emulated.row(ptr %a, i64 %m, i64 %k)
  %bp = getelementptr <16 x i32>, ptr %b, i64 %k
  %y = load <16 x i32>, ptr %bp, align 4
STEP
  %k1 = add i64 %k, 1
  %more = icmp slt i64 %k1, 16
  br i1 %more, label %step, label %stored
stored:
END
  store <16 x TYPE> %new, ptr %cp, align 4
  %m1 = add i64 %m, 1
  %again = icmp slt i64 %m1, 16
  br i1 %again, label %row, label %done
done:
  ret void
}
)";

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
    text.replace(at, from.size(), to);
  return text;
}

// "SPLAT(n)" as a vector.
std::string with_splats(std::string text) {
  for (size_t at = 0; (at = text.find("SPLAT(", at)) != std::string::npos;) {
    const size_t end = text.find(')', at);
    const std::string n = text.substr(at + 6, end - at - 6);
    text.replace(at, end + 1 - at, splat_text(kI32.vec(16), n));
  }
  return text;
}

std::string emulated_tile(const MmaUnit& unit, const std::string& name) {
  const bool floats = unit.sum == kF32;
  const std::string signs = cat("i1 ", unit.dtype == kI8 ? "true" : "false", ", i1 ",
                                unit.second == kI8 ? "true" : "false");
  const std::string add = cat("  %NEW = call <16 x float> @emulated.add.", unit.dtype.name(),
                              "(<16 x float> %OLD, <16 x i32> %x, <16 x i32> %y, i1 ODD)\n");
  std::string step, end;
  if (floats) {
    for (const char* which : {"even", "odd"}) {
      std::string one = replaced(add, "NEW", cat(which, "1"));
      one = replaced(one, "OLD", which);
      step += replaced(one, "ODD", which[0] == 'o' ? "true" : "false");
    }
    end =
        "  %both = fadd <16 x float> %even1, %odd1\n"
        "  %sum = call <16 x float> @emulated.flush(<16 x float> %both)\n"
        "  %was = call <16 x float> @emulated.flush(<16 x float> %old)\n"
        "  %exact = fadd <16 x float> %was, %sum\n"
        "  %new = call <16 x float> @emulated.flush(<16 x float> %exact)";
  } else {
    step =
        cat("  %even1 = call <16 x i32> @emulated.bytes(<16 x i32> %even, <16 x i32> %x, "
            "<16 x i32> %y, ",
            signs, ")\n  %odd1 = add <16 x i32> %odd, zeroinitializer");
    end = "  %new = add <16 x i32> %even1, zeroinitializer";
  }
  std::string text = replaced(kEmulatedTile, "NAME", name);
  text = replaced(text, "TYPE", floats ? "float" : "i32");
  text = replaced(text, "START", floats ? "zeroinitializer" : "%old");
  return replaced(replaced(text, "STEP", step), "END", end);
}

// Register allocation for AMX's eight tiles, from the statement that makes a tile to the last one
// that reads it; a loop that only reads it keeps it to its end.
class TileRegisters {
 public:
  explicit TileRegisters(const Linear& program) {
    find_rows(program);
    find_ends(program);
    std::vector<int> free;
    for (int t = kTiles; t-- > 0;) free.push_back(t);
    std::vector<std::pair<int, int>> held;  // until when, which
    for (int at = 0; at < static_cast<int>(program.body.size()); ++at) {
      Node made = made_by(program.body[at]);
      if (!made || numbers_.contains(made)) continue;
      std::erase_if(held, [&](const auto& h) {
        if (h.first < at) free.push_back(h.second);
        return h.first < at;
      });
      check(!free.empty(), "a product with more than ", kTiles, " tiles at a time");
      numbers_[made] = free.back();
      held.emplace_back(ends_[made], free.back());
      free.pop_back();
    }
  }

  const int* find(Node n) const { return numbers_.find(n); }

  // Of a load of a row: the first row of the tile, where it is the last one, else nullptr.
  const Node* first_row(Node load) const { return rows_.find(load); }

  static bool is_tile(DType t) { return t.size() * t.lanes == kTileBytes; }

 private:
  Node made_by(Node statement) const {
    Node n = statement->op == Op::Acc ? statement->src(0) : statement;
    if (const Node* first = rows_.find(n)) return *first ? n : nullptr;
    const bool makes = statement->op == Op::Acc || n->op == Op::Load || n->op == Op::Mma;
    return makes && is_tile(n->dtype) ? n : nullptr;
  }

  // Tiles whose rows do not lie one after the other have a load for each of them: the last one
  // stands for the tile.
  void find_rows(const Linear& program) {
    for (Node n : program.body) {
      if (n->op == Op::Update) n = n->src(0)->src(0);
      if (n->op != Op::Mma || n->num_src == 2 || mma_unit(n).rows == 1) continue;
      const int last = static_cast<int>(n->num_src) - 2;
      for (int row = 0; row < last; ++row) rows_[n->src(row)] = nullptr;
      rows_[n->src(last)] = n->src(0);
    }
  }

  void find_ends(const Linear& program) {
    const std::vector<Node>& body = program.body;
    std::vector<int> close(body.size()), open;  // of loops
    for (size_t i = 0; i < body.size(); ++i) {
      if (body[i]->op == Op::Loop) open.push_back(static_cast<int>(i));
      if (body[i]->op != Op::EndLoop) continue;
      close[open.back()] = static_cast<int>(i);
      open.pop_back();
    }
    NodeMap<int> made;
    for (int at = 0; at < static_cast<int>(body.size()); ++at) {
      Node n = body[at];
      if (n->op == Op::Loop) open.push_back(at);
      if (n->op == Op::EndLoop) open.pop_back();
      if (Node m = made_by(n); m && !made.contains(m)) made[m] = at;
      const auto use = [&](Node x) {
        const int* from = made.find(x);
        if (!from) return;
        int end = at;
        for (int loop : open)
          if (loop > *from) end = std::max(end, close[loop]);
        ends_[x] = std::max(ends_[x], end);
      };
      if (n->op == Op::Reduce) use(n);
      if (n->op == Op::Update) {
        use(n->src(0));
        for (Node s : n->src(0)->src(0)->srcs()) use(s);
      } else if (n->op == Op::Mma) {
        use(n);
        for (Node s : n->srcs()) use(s);
      }
    }
  }

  NodeMap<int> numbers_, ends_;
  NodeMap<Node> rows_;
};

class TilePrinter : public LlvmPrinter {
 public:
  TilePrinter(const Linear& program, const Target& target)
      : LlvmPrinter(program, target), registers_(program) {
    for (Node n : program.body)
      if (n->op == Op::Update && n->src(0)->src(0)->is(Op::Mma) &&
          !fragment_below(n->src(0)->src(0)))
        added_[n->src(0)->src(0)] = 1;
    for (Node n : program.body)
      for (Node s : n->srcs())
        if (n->op != Op::Update && n->op != Op::Reduce && added_.contains(s)) added_[s] = 0;
  }

 private:
  // Readers of a sum of tiles read the memory that they are stored to.
  void statement(Node n) override {
    switch (n->op) {
      case Op::Acc:
        if (const int* t = registers_.find(n->src(0))) return call("tilezero", {tile(*t)});
        break;
      case Op::Load:
        if (const Node* first = registers_.first_row(n)) return load_rows(*first, n);
        if (const int* t = registers_.find(n))
          return call("tileloadd64", {tile(*t), place(n), cat("i64 ", kRowBytes)});
        break;
      case Op::Reduce:
        if (const int* t = registers_.find(n)) return put(n, *t);
        break;
      case Op::Mma: return product(n);
      case Op::Shuffle:
        if (const std::string* at = memory_.find(n->src(0))) {
          values_[n] = part(n, *at);
          return;
        }
        break;
      default: break;
    }
    LlvmPrinter::statement(n);
  }

  void product(Node n) {
    if (const int* added = added_.find(n); added && *added) return;
    const int* t = registers_.find(n);
    if (!t) {
      Node below = fragment_below(n);
      values_[n] = dot(n, below ? value(below) : "zeroinitializer");
      return;
    }
    call("tilezero", {tile(*t)});
    multiply(n, *t);
    put(n, *t);
  }

  void update(Node reduce) override {
    Node n = reduce->src(0);
    if (!n->is(Op::Mma) || !added_[n]) return LlvmPrinter::update(reduce);
    if (const int* t = registers_.find(reduce)) return multiply(n, *t);
    const std::string type = type_of(n->dtype), at = cat("ptr ", accumulators_[reduce]);
    const std::string sum = dot(n, define(cat("load ", type, ", ", at)));
    line(cat("store ", type, " ", sum, ", ", at));
  }

  // --- tiles -------------------------------------------------------------------------------------

  std::string tile(int number) {
    used_ = true;
    return target_.emulates ? cat("ptr %tile", number) : cat("i8 ", number);
  }

  // A tile from the first row on, once the place of the last one is known.
  void load_rows(Node first, Node last) {
    if (!first) return;
    constexpr int kRows = kTileBytes / kRowBytes;
    const std::string type = type_of(last->src(1)->dtype);
    std::string apart = define(cat("sub ", typed(last->src(1)), ", ", value(first->src(1))));
    if (type != "i64") apart = define(cat("sext ", type, " ", apart, " to i64"));
    apart = define(cat("sdiv exact i64 ", apart, ", ", kRows - 1));
    const std::string bytes = define(cat("mul i64 ", apart, ", ", last->dtype.one().size()));
    call("tileloadd64", {tile(*registers_.find(last)), place(first), "i64 " + bytes});
  }

  std::string place(Node load) { return "ptr " + address(load->src(0), typed(load->src(1)), true); }

  void call(const std::string& name, const std::vector<std::string>& args) {
    std::string signature, values;
    for (const std::string& a : args) {
      signature += cat(signature.empty() ? "" : ", ", a.substr(0, a.find(' ')));
      values += cat(values.empty() ? "" : ", ", a);
    }
    const std::string whole = cat(target_.emulates ? "emulated." : "llvm.x86.", name);
    if (!target_.emulates)
      declarations_.insert(cat("declare void @", whole, "(", signature, ")\n"));
    line(cat("call void @", whole, "(", values, ")"));
  }

  void multiply(Node mma, int sum) {
    const MmaUnit& unit = mma_unit(mma);
    const std::string name = std::string(unit.intrinsic).substr(9);  // behind "llvm.x86."
    if (target_.emulates) tiles_.insert(emulated_tile(unit, name));
    f16_ |= unit.dtype == kF16;
    call(name, {tile(sum), tile(*registers_.find(mma->src(static_cast<int>(mma->num_src) - 2))),
                tile(*registers_.find(mma->src(static_cast<int>(mma->num_src) - 1)))});
  }

  void put(Node n, int number) {
    const std::string at = cat("%sums", memory_.size());
    allocas_ += cat("  ", at, " = alloca [", kTileBytes, " x i8], align 64\n");
    memory_[n] = at;
    call("tilestored64", {tile(number), "ptr " + at, cat("i64 ", kRowBytes)});
  }

  // Neighbours among a tile's elements.
  std::string part(Node n, const std::string& at) {
    const Ints picks = n->ints();
    for (size_t i = 0; i < picks.size(); ++i)
      expect(picks[i] == picks[0] + static_cast<int64_t>(i), "elements of a tile in another order");
    const std::string from = define(
        cat("getelementptr inbounds ", type_of(n->dtype.one()), ", ptr ", at, ", i64 ", picks[0]));
    return define(cat("load ", type_of(n->dtype), ", ptr ", from, ", align 4"));
  }

  // --- vectors -----------------------------------------------------------------------------------

  // The sum and four bytes along k of one row by those of sixteen columns.
  std::string dot(Node mma, const std::string& sum) {
    const MmaUnit& unit = mma_unit(mma);
    const bool floats = unit.sum == kF32;
    const std::string words = "<16 x i32>", halves = "<32 x bfloat>";
    const std::string one = define(cat("bitcast ", typed(mma->src(0)), " to i32"));
    std::string a = broadcast(kI32.vec(16), one);
    const std::string type = floats ? halves : words;
    if (floats) a = define(cat("bitcast ", words, " ", a, " to ", halves));
    std::string b = define(cat("bitcast ", typed(mma->src(1)), " to ", type));
    if (mma->src(1)->dtype.scalar == Scalar::U32) std::swap(a, b);  // the last may be in memory
    const std::string result = type_of(mma->dtype);
    if (!target_.emulates)
      return intrinsic("", result, unit.intrinsic, {result, type, type}, {sum, a, b});
    const std::string name = unit.intrinsic;
    vectors_ = true;
    return define(cat("call ", result, " @emulated.", name.substr(name.find('.', 9) + 1), "(",
                      result, " ", sum, ", ", type, " ", a, ", ", type, " ", b, ")"));
  }

  // --- the whole text ----------------------------------------------------------------------------

  std::string text() const override {
    TilePrinter whole = *this;
    if (used_ && !target_.emulates) {
      whole.allocas_ += "  call void @llvm.x86.ldtilecfg(ptr @tiles)\n";
      whole.body_ += "  call void @llvm.x86.tilerelease()\n";
      whole.declarations_.insert("declare void @llvm.x86.ldtilecfg(ptr)\n");
      whole.declarations_.insert("declare void @llvm.x86.tilerelease()\n");
    }
    if (used_ && target_.emulates)
      for (int t = 0; t < kTiles; ++t)
        whole.allocas_ += cat("  %tile", t, " = alloca [", kTileBytes, " x i8], align 64\n");
    std::string out = whole.LlvmPrinter::text();
    if (used_ && !target_.emulates) out += configuration();
    if (target_.emulates && (used_ || vectors_)) {
      out += with_splats(kEmulated) + replaced(kEmulatedAdd, "HALF", "bf16");
      if (f16_) out += with_splats(kEmulatedF16) + replaced(kEmulatedAdd, "HALF", "f16");
      for (const std::string& t : tiles_) out += t;
      out +=
          "declare <16 x float> @llvm.fma.v16f32(<16 x float>, <16 x float>, <16 x float>)\n"
          "declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)\n"
          "declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)\n";
    }
    return out;
  }

  // Palette 1; bytes of a row of each tile from byte 16 on, rows from byte 48 on.
  static std::string configuration() {
    std::string bytes;
    for (int i = 0; i < 64; ++i) {
      const bool row = i >= 48 && i < 48 + kTiles, width = i >= 16 && i < 16 + 2 * kTiles;
      const int value = i == 0 ? 1 : row ? 16 : width && i % 2 == 0 ? kRowBytes : 0;
      bytes += cat(i ? ", " : "", "i8 ", value);
    }
    return cat("\n@tiles = private unnamed_addr constant [64 x i8] [", bytes, "], align 64\n");
  }

  TileRegisters registers_;
  NodeMap<int> added_;           // products that an instruction adds to their sum
  NodeMap<std::string> memory_;  // where the elements of tiles are read
  std::set<std::string> tiles_;  // emulated instructions
  bool used_ = false, vectors_ = false, f16_ = false;
};

}  // namespace

bool has_tiles(const Linear& program) {
  return std::ranges::any_of(program.body, [](Node n) {
    return n->op == Op::Mma || (n->op == Op::Update && n->src(0)->src(0)->is(Op::Mma));
  });
}

Source render_llvm_tiles(const Linear& program, const Target& target) {
  return TilePrinter(program, target).print();
}

}  // namespace tiny
