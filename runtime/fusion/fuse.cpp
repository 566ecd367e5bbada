#include "runtime/fusion/fuse.h"

#include <algorithm>
#include <set>
#include <utility>

#include "runtime/analysis/after.h"
#include "runtime/analysis/views.h"
#include "runtime/fusion/chain_options.h"
#include "runtime/fusion/fused_kernel.h"
#include "runtime/fusion/fusion_rules.h"
#include "runtime/fusion/materialize.h"
#include "tiny/base/env.h"

namespace tiny {

namespace {

// Merges kernels of one value each in passes; the kernels know what they read, the rules what may
// become one.
class Fuser {
 public:
  Fuser(std::span<const Node> roots, std::span<const Node> order, const Stored& stored,
        const NodeTargets& targets)
      : roots_(roots),
        chains_(stored.chains),
        kernels_(order, stored.values),
        rules_(kernels_, roots, stored, targets) {}

  void run() {
    for (const Chain& chain : chains_.all) merge_chain(chain);
    for (const auto& [a, b] : chains_.together) merge_together(kernels_.of(a), kernels_.of(b));
    // Sums go first, while they are alone: what follows each of them differs.
    for (const bool only_sums : {true, false}) {
      merge_siblings(only_sums);
      merge_rows(false);
    }
    merge_rows(true);  // at last, so that small ones keep nothing else apart
  }

  // What only its own kernel needs stays in registers. A kernel that nobody needs goes: an old
  // value that an assignment replaces before it was ever computed.
  std::vector<Group> groups() const {
    NodeMap<char> wanted;
    for (Node r : roots_) wanted[base_of(r)] = 1;
    const std::vector<int> order = kernels_.dependences().sources_first();
    std::vector<Group> out;
    for (size_t i = order.size(); i-- > 0;) {
      Group g = group_of(kernels_[order[i]]);
      std::erase_if(g.outputs, [&](Node n) { return !wanted.contains(n) && n->op != Op::Assign; });
      if (g.outputs.empty()) continue;
      for (Node n : g.inputs) wanted[n] = 1;
      out.push_back(std::move(g));
    }
    std::ranges::reverse(out);
    return out;
  }

  // Products of chains whose kernels have no options as they have come to be.
  std::vector<Node> refused_chains(std::span<const Group> groups,
                                   const NodeTargets& targets) const {
    std::set<int> bad;
    for (const Group& g : groups) {
      const int k = kernels_.of(g.outputs[0]);
      if (kernels_[k].is_chain && !has_chain_options(g.outputs, g.inputs, targets.of(g.outputs[0])))
        bad.insert(k);
    }
    std::vector<Node> out;
    for (const Chain& chain : chains_.all)
      if (bad.count(kernels_.of(chain.product))) out.push_back(chain.product);
    return out;
  }

 private:
  // A chain's reductions into the kernel of its last product, where nothing between them is
  // computed by another one.
  void merge_chain(const Chain& chain) {
    const DependenceGraph& dependences = kernels_.dependences();
    const int last = kernels_.of(chain.product);
    kernels_.mark_chain(last);
    std::set<int> own;
    for (Node n : chain.rows) own.insert(kernels_.of(n));
    for (int p : own)
      if (p != last)
        for (int q : dependences.between(p, last))
          if (!own.count(q) && dependences.depends(q, p)) return;
    for (size_t i = chain.rows.size(); i-- > 0;)
      if (const int p = kernels_.of(chain.rows[i]); p != last) kernels_.merge(p, last);
  }

  // Two chains of the same scores that do not wait for each other, and are of no third one.
  void merge_together(int a, int b) {
    const DependenceGraph& dependences = kernels_.dependences();
    const bool alone = kernels_[a].outputs.size() == 1 && kernels_[b].outputs.size() == 1;
    if (alone && !dependences.depends(a, b) && !dependences.depends(b, a)) kernels_.merge(b, a);
  }

  void merge_siblings(bool only_sums) {
    constexpr int kNear = 64;  // kernels
    for (int a = 0; a < kernels_.end(); ++a) {
      if (!kernels_.is_alive(a)) continue;
      if (only_sums && kernels_[a].outputs[0]->op != Op::ReduceAxis) continue;
      for (int b = a + 1; b < std::min(kernels_.end(), a + kNear); ++b)
        if (kernels_.is_alive(b) && rules_.are_siblings(a, b)) kernels_.merge(b, a);
    }
  }

  // Until nothing changes: what could not be merged is looked at again when it, or what it reads
  // from, has become another kernel.
  void merge_rows(bool joins_small) {
    std::vector<int64_t> examined(kernels_.end());  // changes() then; 0: not yet
    for (bool changed = true; changed;) {
      changed = false;
      for (int c = 0; c < kernels_.end(); ++c) {
        if (!kernels_.is_alive(c)) continue;
        int64_t newest = kernels_[c].changed;
        kernels_.dependences().visit_producers(
            c, [&](int p) { newest = std::max(newest, kernels_[p].changed); });
        if (std::exchange(examined[c], kernels_.changes()) >= newest) continue;
        const std::vector<int> from = gemms_first(kernels_.dependences().producers(c));
        const auto p = std::ranges::find_if(
            from, [&](int k) { return rules_.is_of_own_rows(k, c, joins_small); });
        if (p == from.end()) continue;
        kernels_.merge(*p, c);
        changed = true;
      }
    }
  }

  // What follows a product goes with it rather than with a sum that it also needs, and with one
  // that nothing follows yet: of a sum of several products each kernel adds to those before it.
  std::vector<int> gemms_first(std::vector<int> kernels) const {
    const auto end =
        std::ranges::stable_partition(kernels, [&](int k) { return kernels_[k].is_gemm; }).begin();
    std::stable_partition(kernels.begin(), end, [&](int k) {
      const std::vector<Node>& outputs = kernels_[k].outputs;
      return outputs.size() == 1 && outputs[0]->op == Op::ReduceAxis;
    });
    return kernels;
  }

  Group group_of(const FusedKernel& k) const {
    Group g;
    g.outputs = k.outputs;
    for (const Read& r : k.reads) {
      Node value = behind(r.leaf);
      if (!contains(g.inputs, value)) g.inputs.push_back(value);
      if (!r.own) g.elsewhere.push_back(value);
      const std::vector<Node>& before = kernels_.waited_for(r.leaf);
      g.after.insert(g.after.end(), before.begin(), before.end());
    }
    return g;
  }

  const std::span<const Node> roots_;
  const Chains& chains_;
  FusedKernels kernels_;
  const FusionRules rules_;
};

}  // namespace

std::vector<Group> fuse(std::span<const Node> roots, std::span<const Node> stored,
                        const NodeTargets& targets) {
  const std::vector<Node> order = topological(roots);
  for (std::set<Node> refused;;) {  // until all chains' kernels have options
    const Stored chosen = choose_stored(roots, order, stored, targets, refused);
    Fuser fuser(roots, order, chosen, targets);
    if (env_int("FUSE")) fuser.run();
    std::vector<Group> groups = fuser.groups();
    const std::vector<Node> more = fuser.refused_chains(groups, targets);
    if (more.empty()) return groups;
    refused.insert(more.begin(), more.end());
  }
}

}  // namespace tiny
