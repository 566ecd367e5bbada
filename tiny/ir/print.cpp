#include "tiny/ir/print.h"

#include <algorithm>

#include "tiny/base/error.h"
#include "tiny/base/text.h"

namespace tiny {

std::string operation_of(Node n) {
  std::string label = *n->label ? n->label : info(n->op).name;
  std::ranges::transform(label, label.begin(), to_lower);
  return label;
}

const char* name_of(RangeKind kind) {
  constexpr const char* names[] = {"loop",   "reduce", "core",   "vector",
                                   "unroll", "block",  "thread", "device"};
  return names[static_cast<int>(kind)];
}

namespace {

struct PrintPayload {
  std::ostream& out;
  void operator()(std::monostate) const {}
  void operator()(int64_t v) const { out << ' ' << v; }
  void operator()(double v) const {
    TextStream text;  // enough digits to tell any two f64 apart
    text.precision(17);
    text << v;
    out << ' ' << text.str();
  }
  void operator()(Ints v) const {
    const std::string text = to_text(v);
    out << " [" << text.substr(1, text.size() - 2) << ']';
  }
  void operator()(RangeArg a) const { out << " r" << a.id << ' ' << name_of(a.kind); }
  void operator()(ReduceArg a) const {
    out << ' ' << a.op << " axes";
    for (int i = 0; i < 32; ++i)
      if (a.axes >> i & 1) out << ' ' << i;
  }
  void operator()(OpArg a) const { out << ' ' << a.op; }
  void operator()(ScatterArg a) const { out << ' ' << a.op << (a.unique ? " unique" : ""); }
  void operator()(const BufferArg& a) const { out << " size " << a.size; }
};

constexpr const char* infix(Op op) {
  switch (op) {
    case Op::Add: return "+";
    case Op::Sub: return "-";
    case Op::Mul: return "*";
    case Op::Div:
    case Op::FloorDiv:
    case Op::TruncDiv: return "/";
    case Op::FloorMod:
    case Op::TruncMod: return "%";
    case Op::Lt: return "<";
    case Op::Le: return "<=";
    case Op::Eq: return "==";
    case Op::Ne: return "!=";
    case Op::And: return "&";
    case Op::Or: return "|";
    case Op::Xor: return "^";
    default: return nullptr;
  }
}

void expression(std::ostream& out, Node n, bool nested) {
  if (n->op == Op::Range) {
    out << 'r' << n->arg<RangeArg>().id;
  } else if (n->is_const()) {
    PrintPayload{out}(n->number());
  } else if (const char* sign = infix(n->op)) {
    if (nested) out << '(';
    expression(out, n->src(0), true);
    out << sign;
    expression(out, n->src(1), true);
    if (nested) out << ')';
  } else {
    out << n->op << '(';
    for (uint32_t i = 0; i < n->num_src; ++i) {
      if (i) out << ", ";
      expression(out, n->src(static_cast<int>(i)), false);
    }
    out << ')';
  }
}

}  // namespace

std::string to_expression(Node n) {
  TextStream out;
  expression(out, n, false);
  std::string text = out.str();
  std::erase(text, ' ');
  return text;
}

std::string to_text(std::span<const Node> roots) {
  TextStream out;
  NodeMap<int> names;
  int next = 0;
  for (Node n : topological(roots)) {
    names[n] = next;
    out << '%' << next++ << ' ' << n->op;
    if (n->dtype.scalar != Scalar::Void) out << ' ' << n->dtype;
    if (n->rank) out << ' ' << to_text(n->shape());
    std::visit(PrintPayload{out}, n->payload);
    for (Node s : n->srcs()) out << " %" << *names.find(s);
    out << '\n';
  }
  return out.str();
}

std::string to_text(Node root) { return to_text(std::span(&root, 1)); }

}  // namespace tiny
