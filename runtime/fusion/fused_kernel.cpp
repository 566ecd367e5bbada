#include "runtime/fusion/fused_kernel.h"

#include <algorithm>
#include <utility>

#include "runtime/analysis/after.h"
#include "runtime/analysis/views.h"

namespace tiny {

bool ReadSet::insert(const Read& read) {
  int& last = last_[read.leaf];
  for (int i = last; i > 0; i = entries_[i - 1].before)
    if (entries_[i - 1].read == read) return false;
  entries_.push_back({read, last});
  last = static_cast<int>(entries_.size());
  return true;
}

Read whole_read(Node output) {
  AxisMap axes(output->rank);
  for (int i = 0; i < output->rank; ++i) axes[i] = output->shape()[i] == 1 ? kNone : i;
  return {output, std::move(axes)};
}

void add_sources(const Read& read, std::vector<Read>& sources) {
  Node n = read.leaf;
  if (is_movement(n->op)) {
    const bool own = read.own && n->op == Op::Reshape;
    sources.push_back({n->src(0), through_movement(n, read.axes), own});
    return;
  }
  AxisMap from = read.axes;
  if (n->op == Op::ReduceAxis)
    for (int i = 0; i < n->rank; ++i)
      if (n->arg<ReduceArg>().axes >> i & 1) from[i] = kOther;
  for (Node s : used_sources(n)) {
    const bool anywhere = n->op == Op::Scatter || (n->op == Op::Gather && s == n->src(0));
    sources.push_back({s, anywhere ? AxisMap(s->rank, kOther) : from});
  }
}

namespace {

constexpr int kTranscendental = 20;  // operations of a CPU

// The element at the very place of the output's: safe to overwrite while it is read.
bool is_own_element(const Read& read, Node out) {
  if (!same(read.leaf->shape(), out->shape())) return false;
  for (int i = 0; i < out->rank; ++i)
    if (out->shape()[i] != 1 && read.axes[i] != i) return false;
  return true;
}

}  // namespace

FusedKernels::FusedKernels(std::span<const Node> order, const NodeMap<char>& stored) {
  for (Node n : order) {
    if (!stored.contains(n)) continue;
    const int k = dependences_.add();
    first_[n] = k;
    kernels_.push_back({.outputs = {n}});
    update(k);
  }
}

int FusedKernels::of(Node value) const {
  const int* k = first_.find(value);
  return k ? dependences_.find(*k) : -1;
}

// All that its outputs are computed from, depth first and without recursion: chains are long.
// Outputs that another one needs are reached through it; the others begin loops of their own.
void FusedKernels::update(int id) {
  FusedKernel& k = kernels_[id];
  k = {.outputs = std::move(k.outputs), .is_chain = k.is_chain, .changed = ++changes_};
  ReadSet seen;
  std::vector<Read> stack, sources;
  for (Node out : k.outputs) {
    stack.push_back(whole_read(out));
    while (!stack.empty()) {
      Read read = stack.back();
      stack.pop_back();
      read.own |= is_own_element(read, k.outputs[0]);
      if (read.leaf->is_const() || read.leaf->op == Op::Iota || !seen.insert(read)) continue;
      if (!visit(id, read)) continue;
      sources.clear();
      add_sources(read, sources);
      for (const Read& s : sources)
        if (of(s.leaf) == id) k.inner[s.leaf] = 1;
      stack.insert(stack.end(), sources.rbegin(), sources.rend());
    }
  }
  find_producers(id);
}

// Whether the kernel computes what is read: otherwise it ends there.
bool FusedKernels::visit(int id, const Read& read) {
  Node n = read.leaf;
  FusedKernel& k = kernels_[id];
  k.work = std::max(k.work, numel(n->shape()));
  k.size += n->op == Op::Sin || n->op == Op::Exp2 || n->op == Op::Log2 ? kTranscendental : 1;
  const int maker = n->op == Op::Param || n->op == Op::After ? -1 : of(n);
  if (n->op == Op::Param || n->op == Op::After || (maker >= 0 && maker != id)) {
    k.reads.push_back(read);
    return false;
  }
  k.is_gemm |= n->op == Op::ReduceAxis && is_product(n);
  return true;
}

void FusedKernels::find_producers(int id) {
  FusedKernel& k = kernels_[id];
  std::vector<int> producers;
  met_.resize(kernels_.size());
  const auto add = [&](Node n) {
    const int* p = first_.find(n);
    if (p && std::exchange(met_[*p], changes_) != changes_) producers.push_back(*p);
  };
  for (const Read& r : k.reads) {
    add(behind(r.leaf));
    for (Node n : waited_for(r.leaf)) add(n);
  }
  k.late =
      std::ranges::any_of(k.reads, [](auto& r) { return r.leaf->op == Op::Copy; }) ||
      std::ranges::any_of(producers, [&](int p) { return kernels_[dependences_.find(p)].late; });
  readers_.resize(kernels_.size());
  for (int p : producers) readers_[dependences_.find(p)].push_back(id);
  dependences_.set_producers(id, std::move(producers));
}

std::vector<int> FusedKernels::readers(int k) const {
  std::vector<int> out;
  for (int r : readers_[k]) out.push_back(dependences_.find(r));
  std::ranges::sort(out);
  out.erase(std::unique(out.begin(), out.end()), out.end());
  std::erase(out, k);
  return out;
}

void FusedKernels::merge(int p, int c) {
  kernels_[c].outputs = merged_outputs(p, c);
  kernels_[c].is_chain |= kernels_[p].is_chain;
  dependences_.merge(p, c);
  readers_[c].insert(readers_[c].end(), readers_[p].begin(), readers_[p].end());
  update(c);
}

std::vector<Node> FusedKernels::merged_outputs(int p, int c) const {
  std::vector<Node> out = kernels_[c].outputs;
  out.insert(out.end(), kernels_[p].outputs.begin(), kernels_[p].outputs.end());
  std::ranges::sort(out, [&](Node a, Node b) {
    if (numel(a->shape()) != numel(b->shape())) return numel(a->shape()) > numel(b->shape());
    return *first_.find(a) > *first_.find(b);  // sources had the lower numbers
  });
  return out;
}

const std::vector<Node>& FusedKernels::waited_for(Node n) const {
  static const auto& none = *new std::vector<Node>;
  if (n->op != Op::After) return none;
  if (const auto* known = waited_.find(n)) return *known;
  std::vector<Node> out, roots;
  for (Node a = n; a->op == Op::After; a = base_of(a->src(0))) roots.push_back(a->src(1));
  const auto visit = [&](Node s) {
    const bool has_memory = first_.contains(s) || s->op == Op::After;
    if (has_memory) out.push_back(behind(s));
    return !has_memory;
  };
  visit_below(std::move(roots), visit, used_sources);
  return waited_[n] = std::move(out);
}

bool FusedKernels::waits_for(int c, int p) const {
  const auto is_of_p = [&](Node n) { return of(n) == p; };
  return std::ranges::any_of(kernels_[c].reads, [&](const Read& r) {
    return r.leaf->op == Op::After &&
           (is_of_p(behind(r.leaf)) || std::ranges::any_of(waited_for(r.leaf), is_of_p));
  });
}

}  // namespace tiny
