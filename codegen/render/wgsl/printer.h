// The printer behind render_wgsl, in four parts: render.cpp has statements and the text as a whole,
// memory.cpp loads and stores, arithmetic.cpp expressions, wide.cpp integers of 64 bits.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "codegen/kernel/free_selections.h"
#include "codegen/kernel/linear.h"
#include "codegen/options/thread_group.h"
#include "codegen/render/c/text.h"
#include "codegen/target/source.h"
#include "codegen/target/target.h"
#include "tiny/base/error.h"

namespace tiny {

// Whether 32 bits hold the value of an integer.
inline bool fits_word(Node n) {
  const bool is_signed = n->dtype.is_signed();
  return n->vmin >= (is_signed ? INT32_MIN : 0) &&
         n->vmax <= (is_signed ? int64_t{INT32_MAX} : int64_t{UINT32_MAX});
}

class WgslPrinter {
 public:
  WgslPrinter(const Linear& program, const Target& target)
      : program_(program), target_(target), single_use_(program), selections_(program) {}

  Source print();

 private:
  using Str = const std::string&;
  using Lanes = std::vector<std::string>;  // expressions, one for each lane

  // How elements lie in memory: as they are, in parts of a word, in pairs of words; f16 by
  // themselves, or where the device has none in parts of a word.
  enum class Layout { Whole, Parts, Pairs, Halves };
  struct Memory {
    Layout layout = Layout::Whole;
    bool by_words = true;  // halves: all accesses have both of a word
    bool atomic = false;   // words that threads change together
    bool uniform = false;
  };

  struct Known {
    NodeMap<Lanes> values, accumulators;
    NodeMap<Lanes> pairs;  // of words, of integers of 64 bits that may be large: vec2<u32>
    NodeMap<bool> wide;    // results or operands are such pairs
    NodeMap<Node> behind;  // of a range that is ahead of a loop: that loop
  };
  struct Grid {
    std::vector<Node> blocks, threads;  // ranges of these kinds, x last
    int lanes = 0;                      // most that threads combine at once
    bool by_lanes = false;              // some of them within subgroups
  };
  struct Text {
    std::string declarations, body;
    size_t depth = 1;
    int names = 0, accumulators = 0;
  };

  // --- lines and names ---------------------------------------------------------------------------

  void line(Str text) { text_.body += std::string(text_.depth * 2, ' ') + text + "\n"; }
  void open(Str text) { line(text + " {"), ++text_.depth; }
  void close() { --text_.depth, line("}"); }
  std::string fresh() { return cat("v", ++text_.names); }
  std::string define(Str expression);
  Lanes define_all(const Lanes& expressions);
  Lanes named(Node n);  // for an operand that is printed more than once
  Lanes value(Node n);
  std::string scalar(Node n) { return value(n)[0]; }
  std::string text() const;

  // --- statements --------------------------------------------------------------------------------

  void statement(Node n);
  void open_loop(Node loop);
  void open_ahead(Node loop);
  void close_loop(Node range);
  void declare_accumulator(Node reduce);
  void update(Node reduce);
  void group(Node reduce), prefix(Node n);
  struct Exchange;
  void among_threads(Node n, const Lanes& x, Str place, Str only,
                     const std::function<void(const Exchange&)>& exchange);
  std::string combine_lanes(Node reduce, const ThreadGroup& g);
  void find_grid();
  std::string grid_text() const, lanes_text(int64_t threads) const;

  // --- memory ------------------------------------------------------------------------------------

  void find_memory();
  void declare_buffers(), declare_stages();
  std::string half_functions() const;
  std::string buffer(Node param) const;
  std::string word(Node param, Str index) const;
  std::string from_word(DType t, Str word, Str shift) const;
  std::string element(Node param, DType t, Str index);
  bool has_whole_words(Node access, DType t) const;
  void set_load(Node n);
  Lanes load(Node n);
  Lanes load_words(Node n, Str at);
  void store(Node n);
  void store_words(Node n, Str at, const Lanes& v);
  void store_element(Node n, Str index, Str v);
  void change_word(Node param, Str at, const std::function<std::string(Str old)>& next);
  std::string once_per_grid(Node store);

  // --- arithmetic --------------------------------------------------------------------------------

  Lanes arithmetic(Node n);
  Lanes each_lane(Node n, const std::function<std::string(const Lanes& operands)>& of);
  std::string unary(Node n, Str x);
  std::string combine(Op op, DType t, Str a, Str b);
  std::string compare(Node n, Str a, Str b);
  std::string divide(Node n, Str a, Str b);
  std::string shift(Node n, Str x, Str amount);
  std::string shift_word(Node n, Str x, Str by);
  std::string cast(DType from, DType to, Str x);
  std::string bitcast(DType from, DType to, Str x);
  std::string select(Str condition, Str a, Str b);
  Lanes fold(Node n);

  // --- integers of 64 bits -----------------------------------------------------------------------

  void find_wide(), find_wide(Node n);
  void require_width(Node n) const;
  bool is_wide(Node n) const { return known_.wide.contains(n); }
  void wide_statement(Node n);
  Lanes wide_arithmetic(Node n);
  std::string wide_operation(Node n, const Lanes& operands);
  std::string wide_cast(DType from, DType to, Str x);
  std::string combine_pairs(Op op, DType t, Str a, Str b);
  Lanes pairs(Node n);
  void set_pairs(Node n, const Lanes& names);
  std::string pair_literal(Node n) const;
  std::string widened(DType t, Str x) const;
  std::string low_word(DType t, Str pair) const;

  std::string literal(Node n) const;  // of one lane
  std::string type(DType t) const;    // in a register
  std::string as_word(DType t, Str x) const;
  std::string from_bits(DType t, Str word) const;

  const Linear& program_;
  const Target& target_;
  const SingleUse single_use_;
  const FreeSelections selections_;
  std::vector<Memory> memory_;  // by slot
  Known known_;
  Grid grid_;
  Text text_;
};

}  // namespace tiny
