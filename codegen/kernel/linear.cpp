#include "codegen/kernel/linear.h"

#include <limits>

#include "codegen/kernel/access.h"
#include "tiny/base/error.h"
#include "tiny/base/text.h"

namespace tiny {

namespace {

std::string number_text(Node n) {
  if (std::holds_alternative<int64_t>(n->payload)) return cat(n->int_value());
  TextStream out;
  out.precision(n->dtype.scalar == Scalar::F64 ? 17 : 9);
  out << n->float_value();
  return out.str();
}

// Values are numbered in the order of their definitions.
class Text {
 public:
  std::string print(const Linear& program) {
    out_ << "kernel " << program.name;
    for (size_t i = 0; i < program.params.size(); ++i)
      if (program.params[i]) {
        const char* access = i < program.written.size() && program.written[i] ? "out " : "in ";
        out_ << (i ? ", " : " ") << access << program.params[i]->dtype << " b" << i;
      }
    out_ << "\n";
    for (Node n : program.body) line(n);
    return out_.str();
  }

 private:
  std::string name(Node n) {
    switch (n->op) {
      case Op::Const: return number_text(n) + (n->dtype.lanes > 1 ? ":" + n->dtype.name() : "");
      case Op::Range: return cat("r", n->arg<RangeArg>().id);
      case Op::Param: return cat("b", n->ints()[0]);
      case Op::Stage: return cat("s", -2 - n->ints()[0]);
      default: break;
    }
    if (const int* id = ids_.find(n)) return cat("v", *id);
    return cat("?", n->op);  // not defined: a defect of the program that the reader wants to see
  }

  std::string accumulator(Node reduce) {
    int& id = accumulators_[reduce];
    if (!id) id = static_cast<int>(accumulators_.size());
    return cat("acc", id);
  }

  void line(Node n) {
    if (n->is(Op::EndLoop)) depth_ -= 2;
    out_ << std::string(static_cast<size_t>(depth_ + 2), ' ');
    switch (n->op) {
      case Op::Loop: loop(n); break;
      case Op::EndLoop: out_ << "end " << name(n->src(0)); break;
      case Op::Acc:
        out_ << accumulator(n->src(0)) << ": " << n->src(0)->dtype << " = "
             << name(identity(n->src(0)->arg<OpArg>().op, n->src(0)->dtype));
        break;
      case Op::Update:
        out_ << accumulator(n->src(0)) << " = " << n->src(0)->arg<OpArg>().op << "("
             << accumulator(n->src(0)) << ", " << name(updated_with(n->src(0))) << ")";
        break;
      case Op::Rescale:
        for (Node sum : n->srcs()) out_ << accumulator(sum) << " ";
        out_ << "times " << name(n->src(0)->src(0)->src(1));
        break;
      case Op::Group: out_ << "group " << accumulator(n->src(0)); break;
      case Op::Barrier: out_ << "barrier, pending " << name(n->src(0)); break;
      case Op::Fetch: fetch(n->src(0)); break;
      case Op::Store: out_ << "Store(" << sources(n) << ")"; break;
      default: definition(n);
    }
    out_ << "\n";
  }

  void fetch(Node store) {
    out_ << "fetch(" << name(store->src(0)) << ", " << name(store->src(1)) << ", "
         << sources(store->src(2)) << "): " << store->src(2)->dtype;
  }

  void loop(Node n) {
    Node range = n->src(0);
    static constexpr const char* kKinds[] = {"Loop",   "Reduce", "Core",   "Vector",
                                             "Unroll", "Block",  "Thread", "Device"};
    out_ << "loop " << name(range) << ": " << range->dtype << " < " << name(range->src(0)) << " "
         << kKinds[static_cast<int>(range->arg<RangeArg>().kind)];
    if (n->num_src == 2) out_ << ", from -" << name(n->src(1));
    if (n->num_src == 3) out_ << ", " << name(n->src(2)) << " ahead of " << name(n->src(1));
    depth_ += 2;
  }

  void definition(Node n) {
    const std::string values = n->is(Op::Reduce) ? accumulator(n)
                               : is_running(n)   ? accumulator(running_reduce(n))
                                                 : sources(n);
    int& id = ids_[n];
    if (!id) id = static_cast<int>(ids_.size());
    out_ << "v" << id << ": " << n->dtype << " = " << n->op;
    if (n->is(Op::Fold)) out_ << "." << n->arg<OpArg>().op;
    out_ << "(" << values << ")";
  }

  std::string sources(Node n) {
    std::string out;
    for (Node s : n->srcs()) out += (out.empty() ? "" : ", ") + name(s);
    return out;
  }

  TextStream out_;
  NodeMap<int> ids_, accumulators_;
  int depth_ = 0;
};

}  // namespace

std::string to_text(const Linear& program) { return Text().print(program); }

Node identity(Op op, DType dtype) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  const bool f = dtype.is_float();
  switch (op) {
    case Op::Add:
    case Op::Or:
    case Op::Xor: return constant(dtype, 0);
    case Op::Mul: return constant(dtype, 1);
    case Op::And: return constant(dtype, dtype.is_bool() ? 1 : -1);
    case Op::Max: return f ? constant(dtype, -kInf) : constant(dtype, int_min(dtype));
    case Op::Min:
      if (f) return constant(dtype, kInf);
      // int_max is clamped to i64; the highest u64 has all bits set.
      return constant(dtype, dtype.scalar == Scalar::U64 ? int64_t{-1} : int_max(dtype));
    default: throw Bug(cat("identity: ", op, " is no operation of a reduction"));
  }
}

}  // namespace tiny
