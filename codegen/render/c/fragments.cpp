// Prints products of fragments. Those of four warps are wgmma on swizzled stages, the first operand
// from there or from registers (PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions": matrix
// descriptors, fragments of m64nNk16).
#include <algorithm>

#include "codegen/kernel/linear.h"
#include "codegen/options/mma.h"
#include "codegen/render/c/prelude_gpu.h"
#include "codegen/render/c/printer.h"

namespace tiny {

namespace {

std::span<const Node> operand(Node mma, bool first) {
  const auto a = static_cast<size_t>(mma_a_count(mma));
  return first ? mma->srcs().first(a) : mma->srcs().subspan(a, 2);
}

const char* type_name(const MmaUnit& unit) { return unit.dtype == kF16 ? "f16" : "bf16"; }

// sum += A B, or sum = A B, begun: for 64 rows, and 16 elements along k.
std::string function_of(Node mma) {
  const MmaUnit& unit = mma_unit(mma);
  const WarpgroupProduct p = warpgroup_product(mma);
  const int results = mma_results(mma), words = p.a.in_registers ? 4 : 1;
  std::string list, outputs, a;
  for (int i = 0; i < results; ++i) {
    list += cat(i ? ", " : "", "%", i);
    outputs += cat(i ? ", " : "", "\"+f\"(sum[", i, "])");
  }
  for (int i = 0; i < words; ++i) a += cat(i ? ", " : "", "%", results + i);
  const int b = results + words;
  return cat(
      "template <int turn_a, int turn_b, int adds> INLINE void ", unit.function, "(f32 (&sum)[",
      results, "], ", p.a.in_registers ? "vec<u32, 4> a" : "u64 a",
      ", u64 b) {\n  asm volatile(\"{ .reg .pred p; setp.ne.b32 p, %", b + 1,
      ", 0; wgmma.mma_async.sync.aligned.m64n", p.columns, "k16.f32.", type_name(unit), ".",
      type_name(unit), " {", list, "}, ", p.a.in_registers ? cat("{", a, "}") : a, ", %", b,
      ", p, 1, 1, ", p.a.in_registers ? "" : cat("%", b + 2, ", "), "%",
      b + (p.a.in_registers ? 2 : 3), "; }\"\n    : ", outputs, " : ",
      p.a.in_registers ? "\"r\"(a.v[0]), \"r\"(a.v[2]), \"r\"(a.v[1]), \"r\"(a.v[3])" : "\"l\"(a)",
      ", \"l\"(b), \"n\"(adds)", p.a.in_registers ? "" : ", \"n\"(turn_a)",
      ", \"n\"(turn_b));\n}\n");
}

// A sum whose update computes the term as well: of products of fragments, or of elements.
bool computes_term(Node reduce) {
  return adds_product(reduce) ||
         (updated_with(reduce)->is(Op::Mma) && reduce->arg<OpArg>().op == Op::Add);
}

// Registers of a thread that has so many results of products: few beside them, more where it reads
// other numbers for each. A compiler that is not told takes a few more, and one block less has room
// (measurements.md: FragmentPrinter::blocks).
int registers_for(int results, const Linear& program, const NodeMap<char>& described) {
  constexpr int kFewLoads = 16;
  int loads = 0;
  for (Node n : program.body)
    if (n->is(Op::Load) && n->dtype.lanes <= 2 && !described.contains(n)) loads += n->dtype.lanes;
  return std::max(128, results + (loads > kFewLoads ? 40 : 32));
}

}  // namespace

FragmentPrinter::FragmentPrinter(CPrinter& kernel, const Linear& program,
                                 const SingleUse& single_use)
    : kernel_(kernel) {
  int results = 0;  // of a thread, in products of four warps
  for (Node n : program.body) {
    if (n->is(Op::Update) && computes_term(n->src(0)))
      for (Node term = updated_with(n->src(0)); term && single_use(term);
           term = fragment_below(term))
        added_[term] = 1;
    if (!n->is(Op::Mma) || !mma_unit(n).warpgroup) continue;
    functions_.insert(function_of(n));
    if (Node before = fragment_below(n); !before || !before->is(Op::Mma)) results += mma_results(n);
    for (const bool first : {true, false})
      if (!first || !warpgroup_product(n).a.in_registers)
        for (Node load : operand(n, first)) described_[load] = 1;
    if (Node below = fragment_below(n); below && single_use(below)) added_[below] = 1;
  }
  if (results > 0) registers_ = registers_for(results, program, described_);
}

int FragmentPrinter::blocks(int threads) const {
  constexpr int kRegisters = 65536;
  const int blocks = registers_ ? kRegisters / registers_ / threads : 0;
  return blocks > 1 ? blocks : 0;
}

std::string FragmentPrinter::helpers() const {
  if (functions_.empty()) return "";
  std::string functions;
  for (const std::string& f : functions_) functions += f;
  return cat("#ifndef TINY_PRELUDE\n", prelude_text(PreludeTable::Wgmma, "instructions"), functions,
             "#endif\n", prelude_text(PreludeTable::Wgmma, "swizzled"));
}

// A vector of 16-bit elements that are all lanes of pairs, made of these as words: elements by
// themselves cost instructions. Empty where they are none.
std::string FragmentPrinter::from_pairs(std::span<const Node> elements) {
  std::string words;
  if (elements.size() < 2) return "";
  for (size_t i = 0; i < elements.size(); i += 2) {
    const Node low = elements[i], high = elements[i + 1];
    if (low->op != Op::Shuffle || high->op != Op::Shuffle || low->src(0) != high->src(0) ||
        low->src(0)->dtype.lanes != 2 || low->dtype.size() != 2 || low->ints()[0] != 0 ||
        high->ints()[0] != 1)
      return "";
    words += cat(i ? ", " : "", "bitcast<", kernel_.type(kU32), ">(",
                 bare(kernel_.value(low->src(0))), ")");
  }
  const DType t = elements[0]->dtype.vec(static_cast<int>(elements.size()));
  const DType wide = kU32.vec(t.lanes / 2);
  return cat("bitcast<", kernel_.type(t), ">(", kernel_.type(wide), "{", words, "})");
}

// A thread's elements of an operand as the unit's function takes them.
std::string FragmentPrinter::elements(const MmaUnit& unit, std::span<const Node> nodes) {
  const Node all = nodes[0]->op == Op::Shuffle ? nodes[0]->src(0) : nullptr;
  const auto is_lane = [&](Node e) { return e->op == Op::Shuffle && e->src(0) == all; };
  const int count = static_cast<int>(nodes.size());
  std::string values;
  if (all && !unit.convert && std::ranges::all_of(nodes, is_lane)) {
    for (Node e : nodes) values += cat(values.empty() ? "" : ", ", e->ints()[0]);
    const std::string v = kernel_.value(all);
    return kernel_.shuffle(all->dtype.one().vec(count), v, v, values);
  }
  if (const std::string pairs = unit.convert ? "" : from_pairs(nodes); !pairs.empty()) return pairs;
  for (Node e : nodes)
    values += cat(values.empty() ? "" : ", ",
                  unit.convert ? kernel_.converted(e, unit.convert) : bare(kernel_.value(e)));
  const DType t = unit.convert ? kU32 : nodes[0]->dtype.one();
  return cat(kernel_.type(t.vec(count)), "{", values, "}");
}

std::string FragmentPrinter::product(Node n, const std::string& c) {
  const MmaUnit& unit = mma_unit(n);
  const auto a = static_cast<size_t>(unit.a_count()), b = static_cast<size_t>(unit.b_count());
  return cat(unit.function, "(", elements(unit, n->srcs().first(a)), ", ",
             elements(unit, n->srcs().subspan(a, b)), ", ", c, ")");
}

// Products of fragments, the innermost first.
void FragmentPrinter::update(const std::string& sum, Node term) {
  std::vector<Node> products;
  Node rest = term;
  for (; rest && is_added(rest); rest = fragment_below(rest)) products.push_back(rest);
  if (rest)
    kernel_.line(
        cat(sum, " = ", kernel_.combine(Op::Add, rest->dtype, sum, kernel_.value(rest)), ";"));
  if (mma_unit(term).warpgroup) return begin(products, sum, true);
  for (size_t i = products.size(); i-- > 0;)
    kernel_.line(cat(sum, " = ", product(products[i], sum), ";"));
}

// Where a scale is 1, as most are, nothing is done: no bit would change.
void FragmentPrinter::rescale(Node n) {
  const Node scales = n->src(0)->src(0)->src(1);
  const DType t = scales->dtype;
  const std::string scale = kernel_.typed(scales);
  std::string any;
  std::vector<int64_t> seen;
  for (int i = 0; i < t.lanes; ++i) {
    const int64_t lane = scales->is(Op::Shuffle) ? scales->ints()[i] : i;
    if (contains(seen, lane)) continue;
    seen.push_back(lane);
    any += cat(any.empty() ? "" : " || ", kernel_.lane_of(t, scale, i),
               " != ", kernel_.value(constant(t.one(), 1)));
  }
  kernel_.line(cat("if (", any, ") {"));
  ++kernel_.depth_;
  for (Node sum : n->srcs()) {
    const std::string acc = kernel_.accumulators_[sum];
    kernel_.line(cat(acc, " = ", bare(kernel_.combine(Op::Mul, t, acc, scale)), ";"));
  }
  --kernel_.depth_;
  kernel_.line("}");
}

// Eight rows take 1,024 bytes; elements across that do not fit 128 bytes are in another box. What
// is added to an address is added to the descriptor, in units of 16 bytes.
std::string FragmentPrinter::descriptor(Node first, bool along_k, int rows) {
  Node at = first->src(1);
  int64_t offset = 0;
  if (at->is(Op::Add) && at->src(1)->is_const()) {
    offset = at->src(1)->int_value();
    at = at->src(0);
  } else if (at->is_const()) {
    offset = std::exchange(at, nullptr)->int_value();
  }
  const int64_t units = offset * first->dtype.size() / 16;
  return cat("matrix_descriptor(", kernel_.buffer(first->src(0)),
             at ? cat(" + ", kernel_.value(at)) : std::string(), ", ", along_k ? 16 : rows * 128,
             ")", units ? cat(" + ", units) : std::string());
}

// A group of products that is asked for, and goes on while other things are computed.
void FragmentPrinter::begin(const std::vector<Node>& products, const std::string& sum, bool adds) {
  std::vector<std::string> calls;
  for (size_t i = products.size(); i-- > 0;) {
    const Node n = products[i];
    const WarpgroupProduct p = warpgroup_product(n);
    const auto a = operand(n, true);
    const std::string first = p.a.in_registers ? cat("bitcast<", kernel_.type(kU32.vec(4)), ">(",
                                                     elements(mma_unit(n), a), ")")
                                               : descriptor(a[0], p.a.along_k, p.a.rows);
    calls.push_back(cat(mma_unit(n).function, "<", p.a.in_registers || p.a.along_k ? 0 : 1, ", ",
                        p.b.along_k ? 0 : 1, ", ", adds || !calls.empty() ? 1 : 0, ">(", sum,
                        ".v, ", first, ", ",
                        descriptor(operand(n, false)[0], p.b.along_k, p.b.rows), ");"));
  }
  kernel_.line("products_fence();");
  for (const std::string& call : calls) kernel_.line(call);
  kernel_.line("products_commit();");
  begun_.push_back({sum, ++groups_});
}

// Waits for the sum's group, and for none behind it.
void FragmentPrinter::end(const std::string& sum) {
  const auto at = std::ranges::find(begun_, sum, &Sum::name);
  if (at == begun_.end()) return;
  if (at->group > done_) {
    kernel_.line(cat("products_wait<", groups_ - at->group, ">();"));
    done_ = at->group;
  }
  kernel_.line(cat("settle_all(", sum, ".v);"));
  begun_.erase(at);
}

void FragmentPrinter::end_products(Node statement) {
  if (!statement) {
    if (!begun_.empty() && begun_.back().group > done_) {
      kernel_.line("products_wait<0>();");
      done_ = groups_;
    }
    while (!begun_.empty()) end(std::string(begun_.front().name));
    return;
  }
  if (statement->is(Op::Reduce)) end(kernel_.accumulators_[statement]);  // reads its accumulator
  for (Node s : SingleUse::uses_of(statement))
    if (const std::string* name = s->is(Op::Mma) ? kernel_.values_.find(s) : nullptr)
      end(std::string(*name));
}

std::string FragmentPrinter::begin_product(Node mma) {
  std::vector<Node> products;
  Node rest = mma;
  do products.push_back(std::exchange(rest, fragment_below(rest)));
  while (rest && is_added(rest));
  const std::string sum = kernel_.fresh();
  kernel_.line(cat(kernel_.type(mma->dtype), " ", sum,
                   rest ? cat(" = ", kernel_.value(rest)) : std::string(), ";"));
  begin(products, sum, rest != nullptr);
  return sum;
}

}  // namespace tiny
