#include "runtime/jit/holders.h"

#include "tiny/ir/facts.h"

namespace tiny {

namespace {

// What a node stands for below what changes no element and, added to `views`, what leaves elements
// out or changes their order.
Node origin(Node n, std::vector<Node>* views = nullptr) {
  while (true) {
    const bool is_view = is_movement(n->op);
    if (n->realized) {
      n = n->realized.load();
    } else if (is_view || is_for_gradients(n->op) || n->op == Op::Assign || n->op == Op::Multi) {
      if (views && is_view && n->op != Op::Reshape) views->push_back(n);
      n = n->src(0);
    } else {
      return n;
    }
  }
}

const Memory* memory_of(Node n) {
  return n->op == Op::Buffer ? n->arg<BufferArg>().buffer->memory().lock().get() : nullptr;
}

}  // namespace

const Memory* memory_below(Node n) { return memory_of(origin(n)); }

Holders::Place Holders::place_of(Node n) {
  std::vector<Node> views;
  Place place{memory_of(origin(n, &views)), {}};
  const auto add = [&](Ints numbers) {
    place.view.push_back(std::ssize(numbers));
    place.view.insert(place.view.end(), numbers.begin(), numbers.end());
  };
  add(n->shape());
  for (Node v : views) {
    place.view.push_back(static_cast<int64_t>(v->op));
    add(v->shape());
    if (const Ints* numbers = std::get_if<Ints>(&v->payload)) add(*numbers);
  }
  return place;
}

Holders::Holders(const std::vector<Node>& nodes) : log_(nodes) {
  for (Node n : nodes) places_.emplace(n, place_of(n));
}

std::vector<Holders::Replaced> Holders::replaced() const {
  std::vector<Replaced> out;
  for (const HandleLog::Change& c : log_.changes()) {
    const Place& then = places_.at(c.then);
    if (!c.now || !then.memory || place_of(c.now) != then)
      out.push_back({then.memory, c.now, c.is_assigned});
  }
  return out;
}

}  // namespace tiny
