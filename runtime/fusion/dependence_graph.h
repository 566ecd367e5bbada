// Which kernels wait for which while kernels become one: an acyclic graph that is contracted.
#pragma once
#include <cstdint>
#include <vector>

namespace tiny {

// Its vertices stand in a topological order, so that a search between two of them looks at nothing
// outside (Pearce and Kelly, "A dynamic topological sort algorithm for directed acyclic graphs",
// 2006). Arguments other than find's are vertices that are part of no other one.
class DependenceGraph {
 public:
  // The number of a new vertex, the last one in the order: 0, 1, ...
  int add();
  // What a vertex waits for, by the numbers that add() gave.
  void set_producers(int v, std::vector<int> producers);

  int find(int v) const;                    // the vertex that it is part of now
  std::vector<int> producers(int v) const;  // distinct ones, and none that it is part of

  // Visits them, some perhaps more than once.
  template <class Visit> void visit_producers(int v, Visit visit) const {
    for (int first : vertices_[v].producers)
      if (const int p = find(first); p != v) visit(p);
  }

  bool depends(int v, int on) const;
  // Whether a path goes from p to c through another vertex: with the two as one, it were a circle.
  bool reaches_otherwise(int p, int c) const;
  // What c depends on and stands behind p in the order.
  std::vector<int> between(int p, int c) const;

  // Vertex p becomes part of c, whose producers are then to be set.
  void merge(int p, int c);

  // All vertices, each behind its producers, and otherwise by their numbers.
  std::vector<int> sources_first() const;

 private:
  struct Vertex {
    std::vector<int> producers = {};   // by the numbers that add() gave
    mutable int merged_into = -1;      // or a part of it
    int place = 0;                     // in order_
    mutable uint64_t searched_by = 0;  // the last search that came by
  };

  template <class Visit> void visit_between(int p, int c, Visit visit) const;
  void place_together(int p, int c);

  std::vector<Vertex> vertices_;
  std::vector<int> order_;  // producers first
  mutable uint64_t search_ = 0;
};

}  // namespace tiny
