#include "runtime/jit/holders.h"

#include "tiny/ir/facts.h"

namespace tiny {

namespace {

// What a node stands for, without what changes no element.
Node bare(Node n) {
  while (true) {
    if (n->realized)
      n = n->realized.load();
    else if (is_for_gradients(n->op) || n->op == Op::Reshape || n->op == Op::Assign)
      n = n->src(0);
    else
      return n;
  }
}

}  // namespace

const Memory* memory_below(Node n) {
  n = bare(n);
  while (is_movement(n->op) || n->op == Op::Multi) n = bare(n->src(0));
  return n->op == Op::Buffer ? n->arg<BufferArg>().buffer->memory().lock().get() : nullptr;
}

Holders::Place Holders::place_of(Node n) {
  Place place{memory_below(n), {}};
  const auto add = [&](Ints numbers) {
    place.view.push_back(std::ssize(numbers));
    place.view.insert(place.view.end(), numbers.begin(), numbers.end());
  };
  add(n->shape());
  for (n = bare(n); is_movement(n->op); n = bare(n->src(0))) {
    place.view.push_back(static_cast<int64_t>(n->op));
    add(n->shape());
    if (const Ints* numbers = std::get_if<Ints>(&n->payload)) add(*numbers);
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
    if (!c.now || !then.memory || place_of(c.now) != then) out.push_back({then.memory, c.now});
  }
  return out;
}

}  // namespace tiny
