#include "tiny/rewrite/rewrite.h"

#include <algorithm>
#include <deque>
#include <iostream>

#include "tiny/base/error.h"
#include "tiny/ir/print.h"
#include "tiny/rewrite/rebuild.h"

namespace tiny {

namespace {

bool match_sources(const Pattern& p, Node n, Match& m) {
  if (p.sources.size() != n->num_src) return false;
  const Match before = m;
  bool ok = true;
  for (size_t i = 0; ok && i < p.sources.size(); ++i)
    ok = match(p.sources[i], n->src(static_cast<int>(i)), m);
  if (ok || !info(n->op).commutative) return ok;
  m = before;
  return match(p.sources[0], n->src(1), m) && match(p.sources[1], n->src(0), m);
}

}  // namespace

bool match(const Pattern& p, Node n, Match& m) {
  if (p.ops.any() && !p.ops.test(static_cast<size_t>(n->op))) return false;
  if (p.value && !n->is_const(*p.value)) return false;
  if (p.where && !p.where(n)) return false;
  if (p.capture >= 0) {
    Node& slot = m.captured[p.capture];
    if (slot && slot != n) return false;
    slot = n;
  }
  return p.any_sources || match_sources(p, n, m);
}

RuleTable::RuleTable(std::vector<Rule> rules) : rules_(std::move(rules)) { index(); }

RuleTable::RuleTable(std::initializer_list<const RuleTable*> parts) {
  for (const RuleTable* part : parts)
    rules_.insert(rules_.end(), part->rules_.begin(), part->rules_.end());
  index();
}

void RuleTable::index() {
  for (size_t r = 0; r < rules_.size(); ++r) {
    const Pattern& p = rules_[r].pattern;
    Entry entry{static_cast<uint16_t>(r), {}};
    for (const Pattern& s : p.sources)
      if (s.ops.any()) entry.needs.push_back(s.ops);
    for (int op = 0; op < kOps; ++op)
      if (p.ops.none() || p.ops.test(op)) by_op_[op].push_back(entry);
  }
}

Node RuleTable::apply(Node n, const char** fired) const {
  OpSet ops;
  for (Node s : n->srcs()) ops.set(static_cast<size_t>(s->op));
  for (const Entry& e : by_op_[static_cast<int>(n->op)]) {
    if (!std::ranges::all_of(e.needs, [&](const OpSet& need) { return (need & ops).any(); }))
      continue;
    const Rule& rule = rules_[e.rule];
    Match m;
    m.root = n;
    if (!match(rule.pattern, n, m)) continue;
    Node r = rule.apply(m);
    if (r && r != n) {
      *fired = rule.name;
      return r;
    }
  }
  return nullptr;
}

namespace {

thread_local bool trace_rules = false;
thread_local RuleWatcher rule_watcher = nullptr;

class Rewriter {
 public:
  Rewriter(const RuleTable& table, size_t nodes) : table_(table), done_(nodes) {
    budget_ = 10000 + 100 * nodes;
  }

  // Sources of nodes that a rule made are new too; those of the given graph are already done.
  Node operator()(Node given) {
    Node n = given;
    for (;;) {
      if (Node* r = done_.find(n)) {
        n = *r;
        break;
      }
      Node next = step(n);
      if (!next) break;
      n = next;
    }
    done_[given] = n;
    done_[n] = n;  // no rule fits it: it need not be walked again
    return n;
  }

 private:
  // `n` with its sources rewritten, or with one rule applied; nullptr where nothing changes it.
  Node step(Node n) {
    std::vector<Node> srcs(n->num_src);
    for (uint32_t i = 0; i < n->num_src; ++i) srcs[i] = (*this)(n->src(static_cast<int>(i)));
    Node now = with_sources(n, srcs);
    if (now != n) return now;
    const char* fired = nullptr;
    LabelScope label(n->label);
    Node r = table_.apply(n, &fired);
    if (!r) return nullptr;
    spend(fired);
    if (trace_rules) show(fired, n, r);
    if (rule_watcher) rule_watcher(fired, n, r);
    return r;
  }

  void spend(const char* rule) {
    recent_.push_back(rule);
    if (recent_.size() > 12) recent_.pop_front();
    if (budget_-- > 0) return;
    std::string names;
    for (const char* r : recent_) names += cat("\n  ", r);
    throw Bug(cat("rewrite goes round in circles; the last rules were:", names));
  }

  static void show(const char* rule, Node from, Node to) {
    std::cerr << cat("rule '", rule, "': ", to_expression(from), " -> ", to_expression(to), "\n");
  }

  const RuleTable& table_;
  NodeMap<Node> done_;
  int64_t budget_;
  std::deque<const char*> recent_;
};

}  // namespace

TraceRules::TraceRules(bool wanted) : before_(std::exchange(trace_rules, wanted)) {}
TraceRules::~TraceRules() { trace_rules = before_; }

WatchRules::WatchRules(RuleWatcher watcher) : before_(std::exchange(rule_watcher, watcher)) {}
WatchRules::~WatchRules() { rule_watcher = before_; }

Node rewrite(Node root, const RuleTable& table) {
  const std::vector<Node> order = topological(root);
  Rewriter rewriter(table, order.size());
  for (Node n : order) rewriter(n);  // leaves first: recursion stays shallow
  return rewriter(root);
}

Node substitute(Node root, const NodeMap<Node>& map) {
  return remake(root, [&](Node n, const std::vector<Node>& srcs) {
    const Node* to = map.find(n);
    return to ? *to : with_sources(n, srcs);
  });
}

Node substitute(Node root, Node from, Node to) {
  NodeMap<Node> map;
  map[from] = to;
  return substitute(root, map);
}

}  // namespace tiny
