#include "runtime/fusion/few_buffers.h"

#include "runtime/analysis/after.h"
#include "runtime/analysis/views.h"

namespace tiny {

std::vector<Node> FewBuffers::too_large(Node n, int most, const NodeMap<char>& stored) {
  constexpr int kMany = 64;  // as good as no limit
  std::vector<Node> out;
  if (most >= kMany) return out;
  const auto has_memory = [&](Node s) {
    return is_leaf(s) || stored.contains(s) || contains(out, s);
  };
  for (;;) {
    std::set<Node> all;
    Node largest = nullptr;
    size_t reads = 1;
    for (Node s : used_sources(n)) {
      if (Node base = base_of(s); has_memory(s) || has_memory(base)) {
        if (!base->is_const()) all.insert(behind(base));
        continue;
      }
      const std::set<Node>& own = reads_[s];
      all.insert(own.begin(), own.end());
      if (own.size() <= reads) continue;
      reads = own.size();
      largest = base_of(s);
    }
    if (all.size() <= static_cast<size_t>(most) || !largest) {
      reads_[n] = std::move(all);
      return out;
    }
    out.push_back(largest);
  }
}

}  // namespace tiny
