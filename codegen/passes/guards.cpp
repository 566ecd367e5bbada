#include <utility>
#include <vector>

#include "codegen/passes/passes.h"
#include "tiny/rewrite/rebuild.h"
#include "tiny/rewrite/rewrite.h"

namespace tiny {

namespace {

bool is_selection(Node n) { return n->op == Op::Where && n->dtype.is_float(); }

// Sources of nodes that are used in one branch alone of a selection by the condition that they are
// selected by themselves: the node's source, and that branch.
class Guards {
 public:
  explicit Guards(Node sink) {
    const std::vector<Node> all = topological(sink);
    for (Node n : all)
      for (Node s : n->srcs()) ++users_[s];
    for (Node n : all)
      if (is_selection(n))
        for (int branch : {1, 2}) find(n, branch);
  }

  struct Guard {
    int source, branch;
  };
  const std::vector<Guard>* of(Node n) const { return found_.find(n); }

 private:
  void find(Node selection, int branch) {
    NodeMap<int> seen;
    std::vector<Node> open;
    const auto reach = [&](Node s) {
      if (++seen[s] == users_[s] && is_elementwise(s->op)) open.push_back(s);
    };
    reach(selection->src(branch));
    while (!open.empty()) {
      Node n = open.back();
      open.pop_back();
      for (int i = 0; i < static_cast<int>(n->num_src); ++i) {
        Node s = n->src(i);
        reach(s);
        if (is_selection(s) && s->src(0) == selection->src(0)) found_[n].push_back({i, branch});
      }
    }
  }

  NodeMap<int> users_;
  NodeMap<std::vector<Guard>> found_;
};

}  // namespace

Node without_guards(Node sink) {
  const Guards guards(sink);
  return rebuild(sink, [&](Node old, Node now) {
    const auto* found = guards.of(old);
    if (!found) return now;
    std::vector<Node> srcs(now->srcs().begin(), now->srcs().end());
    for (const Guards::Guard& g : *found)
      if (Node s = now->src(g.source); is_selection(s)) srcs[g.source] = s->src(g.branch);
    return with_sources(now, srcs);
  });
}

}  // namespace tiny
