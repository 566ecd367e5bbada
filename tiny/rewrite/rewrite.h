// The rewrite engine: ordered, named rules in tables, applied from the leaves up until no rule
// changes anything. Rules are found by the root's op and rejected by a bit mask of its sources'
// ops.
#pragma once
#include <array>
#include <string>
#include <vector>

#include "tiny/rewrite/pattern.h"

namespace tiny {

struct Rule {
  const char* name;
  Pattern pattern;
  Node (*apply)(const Match&);  // nullptr: no change
};

class RuleTable {
 public:
  explicit RuleTable(std::vector<Rule> rules);
  RuleTable(std::initializer_list<const RuleTable*> parts);  // one after another

  // The first rule that changes `n`, applied; nullptr where none does.
  Node apply(Node n, const char** fired) const;
  const std::vector<Rule>& rules() const { return rules_; }

 private:
  struct Entry {
    uint16_t rule;
    std::vector<OpSet> needs;  // each must meet the ops of the sources
  };
  void index();

  std::vector<Rule> rules_;
  std::array<std::vector<Entry>, kOps> by_op_;
};

// The graph with every rule of the table applied as often as one fits. Throws Bug naming the rules
// that fired last when a budget of steps is spent.
Node rewrite(Node root, const RuleTable& table);

// Prints each rule that fires on this thread to standard error while in scope, where wanted.
class TraceRules {
 public:
  explicit TraceRules(bool wanted);
  ~TraceRules();
  TraceRules(const TraceRules&) = delete;
  TraceRules& operator=(const TraceRules&) = delete;

 private:
  bool before_;
};

// Is told of each rule that fires on this thread while in scope; nullptr: nobody is.
using RuleWatcher = void (*)(const char* rule, Node before, Node after);
class WatchRules {
 public:
  explicit WatchRules(RuleWatcher watcher);
  ~WatchRules();
  WatchRules(const WatchRules&) = delete;
  WatchRules& operator=(const WatchRules&) = delete;

 private:
  RuleWatcher before_;
};

// The graph with `map`'s keys replaced by their values (values are not looked into).
Node substitute(Node root, const NodeMap<Node>& map);
Node substitute(Node root, Node from, Node to);

}  // namespace tiny
