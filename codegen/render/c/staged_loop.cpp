#include "codegen/render/c/staged_loop.h"

#include <algorithm>
#include <utility>

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

// Copies of 16 bytes. Smaller ones are windows with a gate each, whose arithmetic takes registers.
bool is_wide(Node fetch) {
  const DType t = fetch->src(0)->src(2)->dtype;
  return t.size() * t.lanes == 16;
}

bool touches_memory(Node n) { return n->is(Op::Fetch) || n->is(Op::Store) || n->is(Op::Load); }

// What is held is loaded by every iteration from the first one on, and stored by every second one
// up to the last; then asynchronous copies come behind the loads, else they have twice the room.
constexpr int64_t kStoresApart = 2;
int64_t copies_apart(bool any_held) { return any_held ? 1 : 2; }

// A loop of asynchronous copies, or of copies through registers, one load and one store each.
struct CopyLoop {
  bool is_one = false, is_held = false;
  int64_t extent = 0;
};

CopyLoop copy_loop(const std::vector<Node>& body, size_t begin) {
  CopyLoop out;
  int loads = 0, stores = 0, fetches = 0;
  if (!is_unrolled(body[begin])) return out;
  for (size_t at = begin + 1, end = end_of(body, begin); at < end; ++at) {
    Node n = body[at];
    if (n->is(Op::Loop) || (n->is(Op::Fetch) && !is_wide(n))) return out;
    loads += n->is(Op::Load);
    stores += n->is(Op::Store);
    fetches += n->is(Op::Fetch);
  }
  out.extent = extent_of(body[begin]->src(0));
  out.is_held = loads == 1 && stores == 1 && fetches == 0;
  out.is_one = out.is_held || (fetches > 0 && loads + stores == 0);
  return out;
}

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

// The iterations of the arithmetic in which something is copied: so many, some apart.
struct StagedLoopPrinter::Turns {
  int64_t first, count, apart;

  int64_t end() const { return first + count * apart; }
  std::string has(const std::string& at) const {
    const std::string among = cat(at, " >= ", first, " && ", at, " < ", end());
    return apart == 1 ? among : cat(among, " && (", at, " - ", first, ") % ", apart, " == 0");
  }
  std::string number(const std::string& at) const {
    const std::string past = first ? cat("(", at, " - ", first, ")") : at;
    return apart == 1 ? bare(past) : cat(past, " / ", apart);
  }
};

void StagedLoopPrinter::find(const Linear& program) {
  const std::vector<Node>& body = program.body;
  if (kernel_.dialect_.language != Source::Language::Cuda) return;
  if (std::ranges::any_of(body, [](Node n) { return n->is(Op::Mma) || n->is(Op::Matrix); })) return;
  for (size_t i = 0; i < body.size(); ++i)
    if (body[i]->is(Op::Loop) && body[i]->num_src == 2 && is_spread_over(body, i)) {
      loop_ = body[i];
      return;
    }
}

// Whether what is filled ahead in the loop that begins there are copies in unrolled loops, and
// behind them is an unrolled loop of as many iterations as there are copies.
bool StagedLoopPrinter::is_spread_over(const std::vector<Node>& body, size_t begin) {
  Node range = body[begin]->src(0);
  const int64_t lead = body[begin]->src(1)->int_value();
  if (!range->src(0)->is_const() || extent_of(range) <= lead) return false;
  size_t at = begin + 1;
  while (body[at]->op == Op::Barrier) ++at;
  if (body[at]->op != Op::Loop || body[at]->num_src != 3) return false;
  const size_t filled = end_of(body, at), end = end_of(body, begin);
  int64_t copies = 0, held = 0;  // iterations, and those whose elements go through registers
  for (++at; at < filled; ++at) {
    if (body[at]->op != Op::Loop) {
      if (touches_memory(body[at])) return false;
      continue;
    }
    const CopyLoop loop = copy_loop(body, at);
    if (!loop.is_one) return false;
    at = end_of(body, at);
    copies += loop.extent;
    if (loop.is_held) held += loop.extent;
  }
  for (++at; at < end; ++at) {
    if (body[at]->op == Op::Barrier) return false;  // stages of the iteration itself
    if (body[at]->op != Op::Loop) continue;
    if (!is_unrolled(body[at]) ||
        extent_of(body[at]->src(0)) < copies * copies_apart(held > 0) + kStoresApart * held)
      return false;
    arithmetic_ = body[at]->src(0);
    return copies > 0;
  }
  return false;
}

bool StagedLoopPrinter::open(Node loop) {
  Node range = loop->src(0);
  if (loop->num_src == 3) {
    open_ahead(loop);
  } else if (loop == loop_) {
    kernel_.line(cat("const auto iteration = [&](const ", kernel_.type(range->dtype), " ",
                     kernel_.value(range), ", auto fills, auto computes) {"));
  } else if (is_spread() && ahead_) {
    current_.range = range;
    begin_ = kernel_.body_.size();
  } else {
    return false;
  }
  ++kernel_.depth_;
  ++kernel_.loops_;
  return true;
}

bool StagedLoopPrinter::close(Node range) {
  if (ahead_ && range == ahead_->src(0)) {
    close_ahead();
    return true;
  }
  const bool is_outer = is_spread() && range == loop_->src(0);
  if (!is_outer && !(is_spread() && ahead_)) return false;
  --kernel_.depth_;
  --kernel_.loops_;
  if (is_outer) {
    print_calls();
  } else {
    current_.behind = taken();
    copies_.push_back(std::exchange(current_, {}));
  }
  return true;
}

// What was printed of the current loop since the last time.
std::string StagedLoopPrinter::taken() {
  std::string text = kernel_.body_.substr(begin_);
  kernel_.body_.resize(begin_);
  return text;
}

void StagedLoopPrinter::printed(Node n) {
  if (current_.range && n->is(Op::Load)) {
    current_.load = n;
    current_.loading = taken();
  } else if (current_.range && !current_.load && n->op != Op::Loop && n->op != Op::Fetch) {
    current_.before += taken();
  } else if (is_spread() && n->is(Op::Loop) && n->src(0) == arithmetic_) {
    print_iteration();
  }
}

// One iteration of a loop that has begun, or none.
void StagedLoopPrinter::open_ahead(Node loop) {
  ahead_ = loop;
  Node range = loop->src(0), of = loop->src(1);
  const std::string r = kernel_.value(range);
  const std::string begins = cat("const ", kernel_.type(range->dtype), " ", r, " = ",
                                 kernel_.value(of), " + ", loop->src(2)->int_value(), ";");
  if (is_spread()) {
    kernel_.line(begins);
    --kernel_.depth_;
    return;
  }
  kernel_.line("{");
  ++kernel_.depth_;
  kernel_.line(begins);
  kernel_.line(cat("if (", r, " < ", kernel_.value(of->src(0)), ") {"));
}

void StagedLoopPrinter::close_ahead() {
  Node of = std::exchange(ahead_, nullptr)->src(1);
  --kernel_.loops_;
  if (is_spread()) return print_fill();
  kernel_.fragments_.end_products();
  for (int i = 0; i < 2; ++i) {
    --kernel_.depth_;
    kernel_.line("}");
  }
  if (kernel_.fetches_) kernel_.line("copies.commit();");
  kernel_.line(cat("if (", kernel_.value(of), " < 0) continue;"));
}

void StagedLoopPrinter::print_fill() {
  // What is stored at the end is loaded first.
  std::ranges::stable_partition(copies_, [](const Copies& c) { return c.load != nullptr; });
  kernel_.line("if constexpr (!computes) {");
  ++kernel_.depth_;
  for (const Copies& c : copies_) {
    const std::string r = kernel_.value(c.range);
    kernel_.line(cat("UNROLL for (", kernel_.type(c.range->dtype), " ", r, " = 0; ", r, " < ",
                     extent_of(c.range), "; ++", r, ") {"));
    kernel_.body_ += indented(c.text(), 1);
    kernel_.line("}");
  }
  if (kernel_.fetches_) kernel_.line("copies.commit();");
  kernel_.line("return;");
  --kernel_.depth_;
  kernel_.line("}");
  int number = 0;
  for (const Copies& c : copies_)
    if (c.load)
      kernel_.line(
          cat(kernel_.type(c.load->dtype), " held", ++number, "[", extent_of(c.range), "];"));
}

// The copies among the iterations of the arithmetic.
void StagedLoopPrinter::print_iteration() {
  kernel_.line("if constexpr (fills) {");
  ++kernel_.depth_;
  const int64_t apart = copies_apart(copies_[0].load != nullptr);
  int64_t first = 0, last = extent_of(arithmetic_);
  int number = 0;
  for (const Copies& c : copies_) {
    const int64_t count = extent_of(c.range);
    const Turns turns{first, count, apart};
    first = turns.end();
    if (!c.load) {
      print_turn(c, turns, indented(c.text(), 2));
      continue;
    }
    last -= count * kStoresApart;
    const std::string v = kernel_.value(c.load), indent((kernel_.depth_ + 1) * 2, ' ');
    const std::string held = cat("held", ++number, "[", kernel_.value(c.range), "]");
    print_turn(c, turns, cat(indented(c.before + c.loading, 2), indent, held, " = ", v, ";\n"));
    print_turn(c, {last, count, kStoresApart},
               cat(indented(c.before, 2), indent, "const ", kernel_.type(c.load->dtype), " ", v,
                   " = ", held, ";\n", indented(c.behind, 2)));
  }
  --kernel_.depth_;
  kernel_.line("}");
}

void StagedLoopPrinter::print_turn(const Copies& c, const Turns& turns, const std::string& text) {
  const std::string at = kernel_.value(arithmetic_);
  kernel_.line(cat("if (", turns.has(at), ") {"));
  kernel_.line(cat("  const ", kernel_.type(c.range->dtype), " ", kernel_.value(c.range), " = ",
                   turns.number(at), ";"));
  kernel_.body_ += text;
  kernel_.line("}");
}

void StagedLoopPrinter::print_calls() {
  if (kernel_.fetches_) kernel_.line("  copies.commit();");
  kernel_.line("};");
  Node range = loop_->src(0);
  const std::string r = kernel_.value(range), type = kernel_.type(range->dtype);
  const int64_t end = extent_of(range), lead = loop_->src(1)->int_value();
  const auto calls = [&](int64_t from, int64_t to, bool fills, bool computes) {
    kernel_.line(cat("for (", type, " ", r, " = ", from, "; ", r, " < ", to, "; ++", r,
                     ") iteration(", r, ", Constant<", fills ? "true" : "false", ">(), Constant<",
                     computes ? "true" : "false", ">());"));
  };
  calls(-lead, 0, true, false);
  calls(0, end - lead, true, true);
  calls(end - lead, end, false, true);
}

}  // namespace tiny
