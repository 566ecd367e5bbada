// The printer behind render_c, in three parts: render.cpp has statements and the text as a whole,
// memory.cpp loads and stores, arithmetic.cpp expressions.
#pragma once
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "codegen/kernel/free_selections.h"
#include "codegen/kernel/linear.h"
#include "codegen/render/c/dialect.h"
#include "codegen/render/c/staged_loop.h"
#include "codegen/render/c/text.h"
#include "tiny/base/error.h"

namespace tiny {

struct MatrixOperand;  // codegen/wgmma/tile.h
struct MatrixTile;
struct Ring;  // codegen/wgmma/pipeline.h
struct RingStep;

class CPrinter;

// Prints products of fragments, those of four warps among them (codegen/render/c/fragments.cpp).
class FragmentPrinter {
 public:
  FragmentPrinter(CPrinter& kernel, const Linear& program, const SingleUse& single_use);

  // Products that are added to one sum, and used nowhere else: printed with the sum's update.
  bool is_added(Node n) const { return added_.contains(n); }
  // Loads of which only the address is wanted.
  bool is_described(Node load) const { return described_.contains(load); }
  bool has_warpgroups() const { return !functions_.empty(); }
  // Blocks of so many threads for which a multiprocessor has to have registers; 0: for any.
  int blocks(int threads) const;
  std::string helpers() const;  // text before the kernel

  std::string product(Node mma, const std::string& c);  // plus `c`
  void update(const std::string& sum, Node term);
  void rescale(Node statement);
  // Begins a product of four warps, which goes on while other things are computed: its name.
  std::string begin_product(Node mma);
  // Waits for the products that a statement reads; for all at the end of a loop.
  void end_products(Node statement = nullptr);

 private:
  struct Sum {
    std::string name;
    int group;  // the last that adds to it
  };

  void begin(const std::vector<Node>& products, const std::string& sum, bool adds);
  void end(const std::string& sum);
  std::string from_pairs(std::span<const Node> elements);
  std::string elements(const MmaUnit& unit, std::span<const Node> nodes);
  std::string descriptor(Node first, bool along_k, int rows);

  CPrinter& kernel_;
  NodeMap<char> added_, described_;
  std::set<std::string> functions_;  // texts
  std::vector<Sum> begun_;           // in order
  int groups_ = 0, done_ = 0;        // of products, begun and known to be done
  int registers_ = 0;                // that a thread needs; 0: no products of four warps
};

class CPrinter {
 public:
  CPrinter(const Linear& program, const Target& target)
      : program_(program),
        dialect_(dialect_of(target)),
        single_use_(program),
        selections_(program),
        fragments_(*this, program, single_use_) {
    use_.warp = target.warp;
  }

  Source print();

 private:
  friend FragmentPrinter;
  friend StagedLoopPrinter;
  using Str = const std::string&;

  // --- lines and names ---------------------------------------------------------------------------

  void line(Str text) { body_ += std::string(depth_ * 2, ' ') + text + "\n"; }
  std::string type(DType t);
  DType in_memory(DType t) const { return t.is_bool() ? kU8.vec(t.lanes) : t; }
  std::string fresh() { return cat("v", ++names_); }
  std::string define(DType t, Str expression);
  std::string named(Node n);        // for an operand that is printed more than once
  std::string typed(Node n);        // a variable of just that type, not a promoted expression
  std::string subscripted(Node n);  // for an operand whose lanes are taken one by one
  std::string value(Node n);
  std::string text();
  std::string parameters() const;

  // --- statements --------------------------------------------------------------------------------

  void statement(Node n);
  void open_loop(Node loop);
  void close_loop(Node range);
  void barrier(Node n);
  void declare_accumulator(Node reduce);
  void update(Node reduce);
  std::string among_threads(const char* what, Node n, const std::string& x);
  void group(Node reduce), prefix(Node n);
  void find_grid();
  bool is_grid(Node range) const;
  void open_whole_tile(Node test), close_whole_tile();

  // --- memory ------------------------------------------------------------------------------------

  std::string buffer(Node param);
  void declare_stages();
  void fetch(Node store);
  std::string element(Node param, Str index);
  std::string vector_at(Node param, DType t, Str index, const char* access);
  std::string lane_from(DType t, Str v);
  int proved_alignment(Node index, DType t) const;
  bool is_streaming(Node param) const;
  std::string vector_load(Node n);
  std::string vector_store(Node n, Str v);
  std::string registers(Node n);
  bool copies_once(const MatrixTile& tile) const;
  std::string copy_box(const MatrixTile& tile, const Ring& ring, int box);
  std::string ring_text(const MatrixTile& tile, const Ring& ring,
                        const std::vector<RingStep>& steps, Str indent, Str thread);
  std::string matrix_text();
  std::string load(Node n);
  bool is_mostly_whole(Node index, Node gate, DType t) const;
  void open_whole(Str on, int lanes, Str statement);  // if all lanes: the statement, else
  void close_whole();
  std::string load_lanes(Node n);
  std::string where_gated(Node load);  // a register of what its elements are where the gate fails
  std::string lane_index(Node index, Str v, Str l);
  std::string lane_gate(Node gate, Str v, Str l);
  void each_lane(int lanes, const std::function<std::string(Str l)>& statement);
  void store(Node n);
  void store_lanes(Node n);
  void combine_lanes(Node n);
  void combine_atomically(Node n);
  std::string once_per_grid(Node store);

  // --- arithmetic --------------------------------------------------------------------------------

  std::string arithmetic(Node n);
  std::string unary(Node n);
  std::string by_lane(Node n, const char* function);
  std::string combine(Op op, DType t, Str a, Str b, bool exact = false);
  std::string mul_add(DType t, Str a, Str b, Str c);
  std::string max_with_const(Node n);
  std::string compare(Node n);
  std::string divide(Node n);
  std::string shift(Node n);
  std::string cast(Node n);
  std::string saturate(Node n);
  std::string bitcast(Node n);
  std::string broadcast(Node n);
  std::string fold(Node n);
  std::string converted(Node n, Str function);

  std::string infix(DType t, Str a, const char* op, Str b);  // the result has the operands' dtype
  std::string test(DType t, Str a, const char* op, Str b);   // bools of the lanes of t
  std::string where(DType t, Str mask, Str a, Str b);
  std::string splat(DType t, Str one);
  std::string convert(Str v, DType from, DType to);
  std::string shuffle(DType t, Str a, Str b, Str lanes);
  std::string lanes_of(DType t, Str v, int lanes, int from);
  std::string lane_of(DType t, Str v, int i);
  std::string as(DType t, Str v) { return cat("(", type(t), ")", v); }
  std::string call(const char* function, DType to, DType from, Str arguments);
  void use(const char* function, DType to, DType from);
  static const char* function_name(Op op);  // "add" for Op::Add

  const Linear& program_;
  const Dialect& dialect_;
  const SingleUse single_use_;
  FreeSelections selections_;
  FragmentPrinter fragments_;
  StagedLoopPrinter staged_loop_{*this};
  PreludeUse use_;
  std::set<Scalar> scalars_;
  std::set<std::pair<Scalar, int>> vectors_;
  NodeMap<std::string> values_, accumulators_;
  NodeMap<std::pair<std::string, int>> converted_;  // and in which stretch of statements
  int statements_ = 0;  // stretches without a loop's begin or end so far
  bool fetches_ = false;
  Node matrix_ = nullptr;               // the product on matrix units, if any
  std::string before_;                  // text before the kernel
  std::vector<Node> blocks_, threads_;  // ranges of these kinds, x last
  std::string body_, shared_;           // statements; declarations of shared memory
  size_t depth_ = 1;
  int loops_ = 0, names_ = 0, accumulator_names_ = 0, groups_ = 0;  // loops that are open
};

}  // namespace tiny
