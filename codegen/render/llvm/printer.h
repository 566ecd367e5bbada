// The printer behind render_llvm: statements and memory in render.cpp, expressions in
// arithmetic.cpp. AMD's GPUs override parts of it in amdgpu.cpp.
#pragma once
#include <set>
#include <string>
#include <vector>

#include "codegen/kernel/linear.h"
#include "codegen/render/llvm/text.h"
#include "codegen/target/source.h"
#include "codegen/target/target.h"
#include "tiny/base/error.h"

namespace tiny {

class LlvmPrinter {
 public:
  LlvmPrinter(const Linear& program, const Target& target) : program_(program), target_(target) {}
  virtual ~LlvmPrinter() = default;

  Source print() {
    for (Node n : program_.body) statement(n);
    return {program_.name, text(), Source::Language::LlvmIr, program_.is_gemm};
  }

 protected:
  using Str = const std::string&;

  // --- what machines have otherwise --------------------------------------------------------------

  virtual std::string text() const;
  virtual void statement(Node n);
  virtual void open_loop(Node loop), close_loop(Node range);
  virtual void update(Node reduce);
  void rescale(Node statement);
  std::string accumulated(Node reduce);  // so far
  virtual std::string load(Node n);
  virtual void store(Node n);
  virtual std::string unary(Op op, DType t, Str x);
  // A binary operation that is also one of a reduction.
  virtual std::string combine(Op op, DType t, Str a, Str b, const char* flags = "");
  std::string mul_add(DType t, Str a, Str b, Str c);
  virtual std::string cast_half(DType from, Str v, DType to);
  // " addrspace(1)" where a pointer to a buffer, or (nullptr) to what is a thread's own, has one.
  virtual std::string space(Node) const { return ""; }
  virtual std::string loop_metadata(Node) { return ""; }           // of the branch back
  virtual std::string base(Node param) const;                      // a buffer's address
  virtual int alignment(Node, DType t) const { return t.size(); }  // of an access at the index

  // --- lines and names ---------------------------------------------------------------------------

  void line(Str text) { body_ += "  " + text + "\n"; }
  std::string fresh() { return cat("%v", ++names_); }
  std::string define(Str text);
  void open_block(Str label);
  std::string value(Node n) const;
  std::string typed(Node n) const { return llvm_text::type_of(n->dtype) + " " + value(n); }
  std::string intrinsic(Str flags, Str result, Str name, const std::vector<std::string>& types,
                        const std::vector<std::string>& values);
  std::string declarations() const;

  // --- statements --------------------------------------------------------------------------------

  // A bottom-tested loop; the test before it is omitted where it always holds.
  void begin_loop(Node range, Str begin, Str end, bool runs);
  void declare_accumulator(Node reduce);
  template <class Body> void branch_if(Str condition, Body body) {
    if (condition.empty()) return body();
    const int id = ++blocks_;
    line(cat("br ", condition, ", label %then", id, ", label %after", id));
    open_block(cat("then", id));
    body();
    line(cat("br label %after", id));
    open_block(cat("after", id));
  }

  // --- memory ------------------------------------------------------------------------------------

  std::string address(Node param, Str index, bool inbounds);
  std::string from_memory(DType t, Str v);
  std::string to_memory(DType t, Str v);
  std::string load_one(Node param, DType t, Str index, int align);
  void store_one(Node param, DType t, Str bits, Str index, int align);
  std::string gather(Node n, Str index);
  std::string lane_of(DType t, Str v, int i);
  std::string gate_for(Node gate, int lanes);
  std::string masked_load(Node n);
  std::string any_lane(DType mask, Str on);
  std::string memory_suffix(DType t) const {
    return llvm_text::suffix_of(t.is_bool() ? kU8.vec(t.lanes) : t);
  }
  void prefetch(Node load), combine_lanes(Node n);
  void scatter(Node n, Str bits);

  // --- arithmetic --------------------------------------------------------------------------------

  std::string arithmetic(Node n);
  std::string shuffle_two(Node n);
  std::string max_with_const(Node n);
  std::string compare(Node n);
  std::string divide(Node n);
  std::string shift(Node n);
  std::string convert(const char* how, DType from, Str v, DType to);
  std::string cast(Node n);
  std::string saturate(DType from, Str v, DType to);
  std::string broadcast(DType t, Str v);
  std::string shuffle(DType t, Str v, int lanes, int from, int step);
  std::string fold(Node n);
  std::string lanes_of(DType t, Str v, int lanes, int from);

  const Linear& program_;
  const Target& target_;
  std::string body_, allocas_, block_ = "entry";
  std::set<std::string> declarations_;
  std::vector<std::pair<std::string, const char*>> ends_;  // of the open loops, and flags
  NodeMap<std::string> values_, accumulators_;
  NodeMap<std::string> tags_;  // of the ranges whose loops are open
  int loops_ = 0;
  bool streams_ = false;
  int names_ = 0, blocks_ = 0;
};

}  // namespace tiny
