#include "codegen/render/c/staged_loop.h"

#include <algorithm>

#include "codegen/render/c/printer.h"

namespace tiny {

namespace {

bool is_unrolled(Node loop) {
  Node range = loop->src(0);
  return loop->num_src == 1 && range->arg<RangeArg>().kind == RangeKind::Unroll &&
         range->src(0)->is_const();
}

int64_t extent_of(Node range) { return range->src(0)->int_value(); }

// Where the loop that begins at `at` ends.
size_t end_of(const std::vector<Node>& body, size_t at) {
  Node range = body[at]->src(0);
  while (body[at]->op != Op::EndLoop || body[at]->src(0) != range) ++at;
  return at;
}

// Whether a copy is asynchronous: of four bytes at least.
bool is_wide(Node fetch) { return fetch->src(0)->src(2)->dtype.one().size() >= 4; }

// The lines, further in by so many levels.
std::string indented(const std::string& text, size_t levels) {
  std::string out;
  for (size_t at = 0, end; at < text.size(); at = end + 1) {
    end = text.find('\n', at);
    out += std::string(2 * levels, ' ') + text.substr(at, end + 1 - at);
  }
  return out;
}

}  // namespace

void StagedLoopPrinter::find(const Linear& program) {
  const std::vector<Node>& body = program.body;
  if (kernel_.dialect_.language != Source::Language::Cuda) return;
  if (std::ranges::any_of(body, [](Node n) { return n->is(Op::Mma) || n->is(Op::Matrix); })) return;
  for (size_t i = 0; i < body.size(); ++i)
    if (body[i]->is(Op::Loop) && body[i]->num_src == 2 && is_spread_over(body, i)) {
      loop_ = body[i]->src(0);
      return;
    }
}

// Whether what is filled ahead in the loop that begins there are copies in unrolled loops, and
// behind them is an unrolled loop of as many iterations as there are copies.
bool StagedLoopPrinter::is_spread_over(const std::vector<Node>& body, size_t begin) {
  Node range = body[begin]->src(0);
  lead_ = body[begin]->src(1)->int_value();
  if (!range->src(0)->is_const() || extent_of(range) <= lead_) return false;
  size_t at = begin + 1;
  while (body[at]->op == Op::Barrier) ++at;
  if (body[at]->op != Op::Loop || body[at]->num_src != 3) return false;
  int64_t copies = 0;
  bool inside = false;
  const size_t filled = end_of(body, at), end = end_of(body, begin);
  for (++at; at < filled; ++at) {
    Node n = body[at];
    if (n->is(Op::Loop)) {
      if (inside || !is_unrolled(n)) return false;
      copies += extent_of(n->src(0));
    }
    if (n->is(Op::Fetch) ? !inside || !is_wide(n) : n->is(Op::Store) || n->is(Op::Load))
      return false;
    if (n->is(Op::Loop) || n->is(Op::EndLoop)) inside = n->is(Op::Loop);
  }
  for (++at; at < end; ++at) {
    if (body[at]->op == Op::Barrier) return false;  // stages of the iteration itself
    if (body[at]->op != Op::Loop) continue;
    if (!is_unrolled(body[at]) || extent_of(body[at]->src(0)) < copies) return false;
    arithmetic_ = body[at]->src(0);
    return true;
  }
  return false;
}

bool StagedLoopPrinter::open(Node loop) {
  Node range = loop->src(0);
  if (loop->num_src == 3) {
    open_ahead(loop);
  } else if (is_spread() && range == loop_) {
    kernel_.line(cat("const auto iteration = [&](const ", kernel_.type(range->dtype), " ",
                     kernel_.value(range), ", auto fills, auto computes) {"));
  } else if (is_spread() && ahead_) {
    begin_ = kernel_.body_.size();
  } else {
    return false;
  }
  ++kernel_.depth_;
  ++kernel_.loops_;
  return true;
}

bool StagedLoopPrinter::close(Node range) {
  if (range == ahead_) {
    close_ahead();
    return true;
  }
  if (!is_spread() || (range != loop_ && !ahead_)) return false;
  --kernel_.depth_;
  --kernel_.loops_;
  if (range == loop_) {
    print_calls();
  } else {
    copies_.push_back({range, kernel_.body_.substr(begin_)});
    kernel_.body_.resize(begin_);
  }
  return true;
}

// One iteration of a loop that has begun, or none.
void StagedLoopPrinter::open_ahead(Node loop) {
  ahead_ = loop->src(0);
  behind_ = loop->src(1);
  const std::string r = kernel_.value(ahead_);
  const std::string begins = cat("const ", kernel_.type(ahead_->dtype), " ", r, " = ",
                                 kernel_.value(behind_), " + ", loop->src(2)->int_value(), ";");
  if (is_spread()) {
    kernel_.line(begins);
    --kernel_.depth_;
    return;
  }
  kernel_.line("{");
  ++kernel_.depth_;
  kernel_.line(begins);
  kernel_.line(cat("if (", r, " < ", kernel_.value(behind_->src(0)), ") {"));
}

void StagedLoopPrinter::close_ahead() {
  ahead_ = nullptr;
  --kernel_.loops_;
  if (is_spread()) return print_fill();
  kernel_.fragments_.end_products();
  for (int i = 0; i < 2; ++i) {
    --kernel_.depth_;
    kernel_.line("}");
  }
  if (kernel_.fetches_) kernel_.line("copies.commit();");
  kernel_.line(cat("if (", kernel_.value(behind_), " < 0) continue;"));
}

void StagedLoopPrinter::print_fill() {
  kernel_.line("if constexpr (!computes) {");
  ++kernel_.depth_;
  for (const Copies& c : copies_) {
    const std::string r = kernel_.value(c.range);
    kernel_.line(cat("UNROLL for (", kernel_.type(c.range->dtype), " ", r, " = 0; ", r, " < ",
                     extent_of(c.range), "; ++", r, ") {"));
    kernel_.body_ += indented(c.text, 1);
    kernel_.line("}");
  }
  kernel_.line("copies.commit();");
  kernel_.line("return;");
  --kernel_.depth_;
  kernel_.line("}");
}

void StagedLoopPrinter::begin_iteration(Node range) {
  if (!is_spread() || range != arithmetic_) return;
  const std::string at = kernel_.value(range);
  kernel_.line("if constexpr (fills) {");
  ++kernel_.depth_;
  int64_t before = 0;
  for (const Copies& c : copies_) {
    const int64_t behind = before + extent_of(c.range);
    kernel_.line(before ? cat("if (", at, " >= ", before, " && ", at, " < ", behind, ") {")
                        : cat("if (", at, " < ", behind, ") {"));
    ++kernel_.depth_;
    kernel_.line(cat("const ", kernel_.type(c.range->dtype), " ", kernel_.value(c.range), " = ", at,
                     before ? cat(" - ", before) : std::string(), ";"));
    --kernel_.depth_;
    kernel_.body_ += indented(c.text, 2);
    kernel_.line("}");
    before = behind;
  }
  --kernel_.depth_;
  kernel_.line("}");
}

void StagedLoopPrinter::print_calls() {
  kernel_.line("  copies.commit();");
  kernel_.line("};");
  const std::string r = kernel_.value(loop_), type = kernel_.type(loop_->dtype);
  const int64_t end = extent_of(loop_);
  const auto calls = [&](int64_t from, int64_t to, bool fills, bool computes) {
    kernel_.line(cat("for (", type, " ", r, " = ", from, "; ", r, " < ", to, "; ++", r,
                     ") iteration(", r, ", Constant<", fills ? "true" : "false", ">(), Constant<",
                     computes ? "true" : "false", ">());"));
  };
  calls(-lead_, 0, true, false);
  calls(0, end - lead_, true, true);
  calls(end - lead_, end, false, true);
}

}  // namespace tiny
