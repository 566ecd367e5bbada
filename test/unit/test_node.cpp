#include "tiny/ir/node.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <thread>

#include "runtime/realize/realize.h"
#include "tiny/ir/build.h"
#include "tiny/tensor/tensor.h"

using namespace tiny;

namespace {

Node parameter(int slot, int64_t size, DType dtype = kF32) {
  const int64_t arg[] = {slot, size};
  return make(Op::Param, dtype, {}, Ints(arg));
}

}  // namespace

TEST_CASE("equal parts give the same node") {
  Arena arena;
  ArenaScope scope(arena);
  Node x = parameter(0, 4), y = parameter(1, 4);
  CHECK(make(Op::Add, kF32, {x, y}) == make(Op::Add, kF32, {x, y}));
  CHECK(make(Op::Add, kF32, {x, y}) != make(Op::Add, kF32, {y, x}));
  CHECK(make(Op::Add, kF32, {x, y}) != make(Op::Sub, kF32, {x, y}));
  CHECK(parameter(0, 4) != parameter(0, 5));
  CHECK(parameter(0, 4, kI32) != parameter(0, 4));
  const size_t before = arena.size();
  make(Op::Add, kF32, {x, y});
  CHECK(arena.size() == before);
}

TEST_CASE("constants are told apart by their bits") {
  Arena arena;
  ArenaScope scope(arena);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  CHECK(constant(kF32, nan) == constant(kF32, nan));
  CHECK(constant(kF32, 0.0) != constant(kF32, -0.0));
  CHECK(constant(kI32, 1) != constant(kI64, 1));
  CHECK(constant(kF32, 1) == constant(kF32, 1.0));
}

TEST_CASE("constants are converted to their dtype") {
  Arena arena;
  ArenaScope scope(arena);
  CHECK(constant(kU8, 257)->int_value() == 1);
  CHECK(constant(kI8, 200)->int_value() == -56);
  CHECK(constant(kBool, 7)->int_value() == 1);
  CHECK(constant(kI32, 2.75)->int_value() == 2);
  CHECK(constant(kF32, 0.1)->float_value() == static_cast<double>(0.1f));
}

TEST_CASE("the text of a payload outlives what it was made from") {
  Arena arena;
  ArenaScope scope(arena);
  Node n;
  {
    std::vector<int64_t> shape{2, 3};
    n = make(Op::Reshape, kF32, {parameter(0, 6)}, Ints(shape));
    shape[0] = 99;
  }
  CHECK(n->ints()[0] == 2);
  CHECK(n->shape()[1] == 3);
}

TEST_CASE("nodes that nobody refers to are freed") {
  const size_t before = live().nodes;
  {
    NodeRef kept;
    {
      Node x = build::iota(1237, kI32);
      kept = NodeRef(make(Op::Neg, kI32, {make(Op::Neg, kI32, {x})}));
    }
    CHECK(live().nodes == before + 3);
  }
  CHECK(live().nodes == before);
}

TEST_CASE("nodes and memory go with the tensors") {
  clear_schedule_cache();  // or it would drop another schedule for that of this test
  Arena::global().collect();
  const Live before = live();
  {
    Tensor x = Tensor::from({1.0f, 2.0f, 3.0f});
    Tensor y = (x * 2.0f + 1.0f).sum();
    CHECK(y.item<float>() == 15.0f);
    CHECK(live().nodes > before.nodes);
    CHECK(live().buffers > before.buffers);
  }
  clear_schedule_cache();
  const Live after = live();
  CHECK(after.buffers == before.buffers);
  CHECK(after.bytes == before.bytes);
}

TEST_CASE("a node that was freed can be made again") {
  Arena::global().collect();
  for (int i = 0; i < 3; ++i) {
    NodeRef n(make(Op::Neg, kI32, {build::iota(4241, kI32)}));
    CHECK(n->shape()[0] == 4241);
    n = NodeRef();
    Arena::global().collect();
  }
}

TEST_CASE("threads with arenas of their own do not meet") {
  std::vector<std::thread> threads;
  std::vector<size_t> sizes(4);
  const size_t global_before = live().nodes;
  for (size_t t = 0; t < sizes.size(); ++t)
    threads.emplace_back([&sizes, t] {
      Arena arena;
      ArenaScope scope(arena);
      Node n = parameter(0, 8);
      for (int i = 0; i < 500; ++i) n = make(Op::Neg, kF32, {n});
      sizes[t] = arena.size();
    });
  for (std::thread& t : threads) t.join();
  for (size_t size : sizes) CHECK(size == 501);
  CHECK(live().nodes == global_before);
}

TEST_CASE("threads that share the global arena get the same nodes") {
  std::vector<std::thread> threads;
  std::vector<NodeRef> made(4);
  for (NodeRef& out : made)
    threads.emplace_back([&out] {
      for (int i = 0; i < 200; ++i) {
        NodeRef n(build::iota(5003, kI32));
        for (int k = 0; k < 20; ++k) n = NodeRef(make(Op::Neg, kI32, {n.get()}));
        out = n;
      }
    });
  for (std::thread& t : threads) t.join();
  for (const NodeRef& n : made) CHECK(n.get() == made[0].get());
}

TEST_CASE("a scope makes an arena current and ends with it") {
  Arena outer, inner;
  ArenaScope a(outer);
  CHECK(&Arena::current() == &outer);
  {
    ArenaScope b(inner);
    CHECK(&Arena::current() == &inner);
  }
  CHECK(&Arena::current() == &outer);
}

TEST_CASE("the outermost label names the nodes") {
  Arena arena;
  ArenaScope scope(arena);
  LabelScope outer("softmax");
  LabelScope inner("exp");
  CHECK(std::string(parameter(3, 3)->label) == "softmax");
}

TEST_CASE("a walk gives sources before users and each node once") {
  Arena arena;
  ArenaScope scope(arena);
  Node x = parameter(0, 4);
  Node square = make(Op::Mul, kF32, {x, x});
  Node root = make(Op::Add, kF32, {square, x});
  const std::vector<Node> order = topological(root);
  CHECK(order == std::vector<Node>{x, square, root});
}

TEST_CASE("a deep graph is walked without recursion") {
  Arena arena;
  ArenaScope scope(arena);
  Node n = parameter(0, 4);
  for (int i = 0; i < 100000; ++i) n = make(Op::Neg, kF32, {n});
  CHECK(topological(n).size() == 100001);
}

TEST_CASE("a map of nodes keeps what was put in while it grows") {
  Arena arena;
  ArenaScope scope(arena);
  NodeMap<int> map(2);
  for (int i = 0; i < 1000; ++i) map[parameter(i, 1)] = i;
  CHECK(map.size() == 1000);
  for (int i = 0; i < 1000; ++i) CHECK(*map.find(parameter(i, 1)) == i);
  CHECK(map.find(parameter(1000, 1)) == nullptr);
}
