// Intrinsics, address spaces (1: buffers, 3: shared memory, 5: a thread's own) and attributes are
// those of LLVM's "User Guide for AMDGPU Backend".
#include "codegen/render/llvm/amdgpu.h"

#include <algorithm>

#include "codegen/kernel/access.h"
#include "codegen/kernel/facts.h"
#include "codegen/options/mma.h"
#include "codegen/render/c/text.h"
#include "codegen/render/llvm/amdgpu_memory.h"

namespace tiny {

namespace {

using namespace llvm_text;

class AmdPrinter : public amdgpu::Memory {
 public:
  AmdPrinter(const Linear& program, const Target& target)
      : Memory(program, target), single_use_(program) {
    find_grid();
    find_stages();
    for (Node n : program_.body)
      if (n->is(Op::Update) && is_sum_of_fragments(n->src(0))) added_[updated_with(n->src(0))] = 1;
  }

 private:
  void find_grid() {
    for (Node n : program_.body) {
      if (!n->is(Op::Loop)) continue;
      if (kind(n->src(0)) == RangeKind::Block) grid_.push_back(n->src(0));
      if (kind(n->src(0)) == RangeKind::Thread) threads_.push_back(n->src(0));
    }
    for (Node r : threads_) count_ *= static_cast<int>(extent(r));
  }

  std::string text() const override {
    std::string params;
    for (size_t i = 0; i < program_.params.size(); ++i)
      params += cat(i ? ", " : "", "ptr addrspace(1) noalias ",
                    program_.written[i] ? "" : "readonly ", "%b", i);
    return cat(globals_, "\ndefine amdgpu_kernel void @", program_.name, "(", params,
               ") #0 {\nentry:\n", allocas_, body_, "  ret void\n}\n", declarations(),
               "\nattributes #0 = { convergent nounwind \"amdgpu-flat-work-group-size\"=\"1,",
               count_, "\" \"uniform-work-group-size\"=\"true\" }\n",
               metadata_.empty() ? "" : "\n!0 = !{!\"llvm.loop.unroll.full\"}\n" + metadata_);
  }

  void statement(Node n) override {
    switch (n->op) {
      case Op::Stage: return;
      case Op::Barrier: return barrier();
      case Op::Fetch: values_[n->src(0)->src(2)] = load(n->src(0)->src(2)); return store(n->src(0));
      case Op::Group: return group(n->src(0));
      case Op::Prefix: values_[n] = prefix(n); return;
      case Op::Mma:
        if (!added_.contains(n)) values_[n] = mma(n, "");
        return;
      default: return LlvmPrinter::statement(n);
    }
  }

  bool is_sum_of_fragments(Node reduce) const {
    const Node term = updated_with(reduce);
    return is_fragment_product(term) && reduce->arg<OpArg>().op == Op::Add && single_use_(term);
  }

  void open_loop(Node loop) override {
    Node range = loop->src(0);
    const std::string type = type_of(range->dtype);
    if (is_grid(range)) {
      const bool block = kind(range) == RangeKind::Block;
      const std::vector<Node>& all = block ? grid_ : threads_;
      const auto after = all.end() - std::ranges::find(all, range);
      const std::string id = cat(range_id(range), ".", ++loops_);
      tags_[range] = id;
      const std::string v =
          number(block ? "workgroup" : "workitem", static_cast<size_t>(after - 1));
      line(cat("%r", id, " = ", type == "i32" ? "or" : "zext", " i32 ", v,
               type == "i32" ? ", 0" : " to i64"));
      return;
    }
    if (loop->num_src == 3) return open_ahead(range, loop->src(1), loop->src(2)->int_value());
    const int64_t lead = loop->num_src == 2 ? loop->src(1)->int_value() : 0;
    ++open_loops_;
    begin_loop(range, cat(-lead), value(range->src(0)), !lead && range->src(0)->vmin > 0);
  }

  // One iteration of a loop that has begun, or none.
  void open_ahead(Node range, Node of, int64_t lead) {
    const std::string type = type_of(range->dtype), id = cat(range_id(range), ".", ++loops_);
    behind_[range] = of;
    tags_[range] = id;
    line(cat("%r", id, " = add nsw ", type, " ", value(of), ", ", lead));
    const std::string on = define(cat("icmp slt ", type, " %r", id, ", ", value(of->src(0))));
    line(cat("br i1 ", on, ", label %loop", id, ", label %done", id));
    open_block("loop" + id);
    ++open_loops_;
  }

  void close_loop(Node range) override {
    if (is_grid(range)) return;
    --open_loops_;
    const Node* of = behind_.find(range);
    if (!of) return LlvmPrinter::close_loop(range);
    const std::string id = *tags_.find(range);
    line(cat("br label %done", id));
    open_block("done" + id);
    const std::string early =
        define(cat("icmp slt ", type_of(range->dtype), " ", value(*of), ", 0"));
    line(cat("br i1 ", early, ", label %latch", *tags_.find(*of), ", label %now", id));
    open_block("now" + id);
  }

  static bool is_grid(Node range) {
    return kind(range) == RangeKind::Block || kind(range) == RangeKind::Thread;
  }

  std::string loop_metadata(Node range) override {
    if (kind(range) != RangeKind::Unroll) return "";
    const std::string id = cat("!", 1 + unrolled_++);
    metadata_ += cat(id, " = distinct !{", id, ", !0}\n");
    return ", !llvm.loop " + id;
  }

  void update(Node reduce) override {
    if (!added_.contains(updated_with(reduce))) return LlvmPrinter::update(reduce);
    const std::string type = type_of(reduce->dtype);
    const std::string at = cat("ptr addrspace(5) ", accumulators_[reduce]);
    const std::string before = define(cat("load ", type, ", ", at));
    line(cat("store ", type, " ", mma(updated_with(reduce), before), ", ", at));
  }

  // --- arithmetic --------------------------------------------------------------------------------

  std::string unary(Op op, DType t, Str x) override {
    const std::string type = type_of(t);
    if (op == Op::Exp2) return intrinsic("", type, "llvm.exp2." + suffix_of(t), {type}, {x});
    if (op == Op::Exp) return intrinsic("", type, "llvm.exp." + suffix_of(t), {type}, {x});
    if (op == Op::Log2) return intrinsic("", type, "llvm.log2." + suffix_of(t), {type}, {x});
    return LlvmPrinter::unary(op, t, x);
  }

  const SingleUse single_use_;
  NodeMap<Node> behind_;  // of a range that is ahead of a loop: that loop
  NodeMap<char> added_;   // products of fragments that are added to one sum
  std::string metadata_;
  int unrolled_ = 0;
};

}  // namespace

Source render_amdgpu(const Linear& program, const Target& target) {
  return AmdPrinter(program, target).print();
}

}  // namespace tiny
