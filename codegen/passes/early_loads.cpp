#include <algorithm>
#include <utility>
#include <vector>

#include "codegen/options/mma.h"
#include "codegen/passes/passes.h"

namespace tiny {

namespace {

// Statements that others do not move past.
bool is_fence(Node n) {
  return n->is(Op::Loop) || n->is(Op::EndLoop) || n->is(Op::Store) || n->is(Op::Fetch) ||
         n->is(Op::Barrier);
}

bool is_warpgroup_product(Node n) { return n->is(Op::Mma) && mma_unit(n).warpgroup; }

// Of the statements from `begin` on, as far as others move: which stay behind products, and the
// loads among the rest with what they take.
class Waiting {
 public:
  Waiting(const Linear& program, size_t begin) : body_(program.body) {
    for (end_ = begin; end_ < body_.size() && !is_fence(body_[end_]); ++end_) {
      Node n = body_[end_];
      bool takes_product = false;
      for (Node s : n->srcs()) takes_product |= waits_.contains(s);
      const bool is_product = is_warpgroup_product(n);
      if (takes_product || is_product || n->is(Op::Reduce) ||
          info(n->op).cls == OpClass::Statement)
        waits_[n] = 1;
      if (takes_product && !is_product && first_ == body_.size()) first_ = end_;
    }
  }

  // The first that takes a product's result.
  size_t first() const { return std::min(first_, end_); }
  size_t end() const { return end_; }

  // Which statements behind the first come before it: of a thread no more than `words`.
  NodeMap<char> early(const Linear& program, int words) const {
    NodeMap<char> out;
    for (size_t i = end_; i-- > first();) {
      Node n = body_[i];
      if (n->is(Op::Load) && !waits_.contains(n) && reads_memory(program, n)) out[n] = 1;
      if (out.contains(n))
        for (Node s : n->srcs()) out[s] = 1;
    }
    int taken = 0;
    for (size_t i = first(); i < end_; ++i)
      if (out.contains(body_[i]) && body_[i]->is(Op::Load))
        taken += (body_[i]->dtype.size() * body_[i]->dtype.lanes + 3) / 4;
    return taken <= words ? out : NodeMap<char>();
  }

 private:
  static bool reads_memory(const Linear& program, Node load) {
    Node param = load->src(0);
    return param->is(Op::Param) && !program.written[static_cast<size_t>(param->ints()[0])];
  }

  const std::vector<Node>& body_;
  size_t first_ = body_.size(), end_ = 0;
  NodeMap<char> waits_;
};

}  // namespace

void load_early(Linear& program) {
  constexpr int kWords = 64;  // registers of a thread
  for (size_t i = 0; i < program.body.size(); ++i) {
    if (!is_warpgroup_product(program.body[i])) continue;
    const Waiting waiting(program, i);
    const NodeMap<char> early = waiting.early(program, kWords);
    std::vector<Node> moved, rest;
    for (size_t k = waiting.first(); k < waiting.end(); ++k)
      (early.contains(program.body[k]) ? moved : rest).push_back(program.body[k]);
    moved.insert(moved.end(), rest.begin(), rest.end());
    std::ranges::copy(moved, program.body.begin() + static_cast<ptrdiff_t>(waiting.first()));
    i = waiting.end() - 1;
  }
}

}  // namespace tiny
