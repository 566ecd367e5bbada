#include "codegen/access_order.h"

#include <map>

#include "codegen/access.h"
#include "codegen/linearize.h"
#include "codegen/matrix.h"
#include "codegen/stage.h"
#include "tiny/algebra.h"
#include "tiny/error.h"
#include "tiny/print.h"
#include "tiny/rewrite.h"

namespace tiny {

namespace {

// Where accesses stand in the text of the program: a load last, a store first.
class Text {
 public:
  explicit Text(Node sink) {
    const Linear program = linearize(sink, "k");
    for (size_t i = 0; i < program.body.size(); ++i) {
      Node n = program.body[i];
      if (n->is(Op::Fetch)) n = n->src(0)->src(2);
      if (n->is(Op::Load) || (n->is(Op::Store) && !at_.contains(n))) at_[n] = i;
    }
  }
  const size_t* find(Node access) const { return at_.find(access); }

 private:
  NodeMap<size_t> at_;
};

// The element that each lane touches.
std::vector<Node> elements(const Claim& c) {
  if (!c.lane) return {c.index};
  std::vector<Node> out;
  for (int64_t i = 0; i < extent(c.lane); ++i)
    out.push_back(simplify(substitute(c.index, c.lane, index(i))));
  return out;
}

Finding order_of(const Text& text, const std::vector<Claim>& loads,
                 const std::vector<Claim>& stores) {
  NodeMap<size_t> written;  // elements, and where
  for (const Claim& s : stores)
    if (const size_t* at = text.find(s.access))
      for (Node e : elements(s)) written[e] = *at;
  for (const Claim& l : loads) {
    const size_t* at = text.find(l.access);
    if (!at) continue;
    for (Node e : elements(l)) {
      const size_t* store = written.find(e);
      if (store && *store < *at)
        return {Verdict::Wrong, Method::Walk,
                cat("element ", to_expression(e), " of buffer ", l.slot(),
                    " is read after it is written")};
    }
  }
  return {Verdict::Proved, Method::Walk, ""};
}

}  // namespace

std::vector<Finding> prove_order(Node sink, std::span<const Claim> claims) {
  std::map<int, std::vector<Claim>> loads, stores;
  for (const Claim& c : claims)
    if (!is_stage(c.access->src(0))) (c.is_store() ? stores : loads)[c.slot()].push_back(c);
  std::vector<Finding> out;
  for (Node m : all_of(sink, Op::Matrix)) {
    const MatrixTile tile(m);
    for (const MatrixOperand* o : {&tile.a, &tile.b})
      if (stores.count(o->map.slot))
        out.push_back({Verdict::Wrong, Method::Walk,
                       cat("the copy engine reads buffer ", o->map.slot, ", which is written")});
  }
  std::erase_if(loads, [&](const auto& l) { return !stores.count(l.first); });
  if (loads.empty()) return out;
  const Text text(sink);
  for (const auto& [slot, of] : loads) out.push_back(order_of(text, of, stores[slot]));
  return out;
}

}  // namespace tiny
