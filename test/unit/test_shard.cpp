#include "runtime/partition/shard.h"

#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <map>
#include <set>
#include <sstream>

#include "runtime/device/device.h"
#include "runtime/launch/launch.h"
#include "runtime/realize/realize.h"
#include "runtime/schedule/schedule.h"
#include "test/devices.h"
#include "tiny/base/env.h"
#include "tiny/base/error.h"
#include "tiny/ir/build.h"
#include "tiny/nn/functional.h"
#include "tiny/nn/layers.h"
#include "tiny/run/devices.h"
#include "tiny/run/jit.h"
#include "tiny/run/profile.h"
#include "tiny/tensor/checkpoint.h"
#include "tiny/tensor/random.h"
#include "tiny/train/optim.h"

using namespace tiny;

namespace {

using Names = std::vector<std::string>;
using Floats = std::vector<float>;

const Names kFour{"CPU:0", "CPU:1", "CPU:2", "CPU:3"}, kThree{"CPU", "CPU:1", "CPU:2"},
    kTwo{"CPU:1", "CPU:2"};

template <class F> std::string error_of(F f) {
  try {
    f();
  } catch (const std::exception& e) {
    return e.what();
  }
  return "none";
}

bool are_close(const Floats& a, const Floats& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::isnan(a[i]) && std::isnan(b[i])) continue;
    if (!(std::abs(a[i] - b[i]) <= 2e-5f * (1 + std::abs(b[i])))) return false;
  }
  return true;
}

Floats values(const Tensor& t) { return t.to(kF32).to_vector<float>(); }

Tensor numbers(const Shape& shape, float scale = 1) {
  Floats v(static_cast<size_t>(numel(shape)));
  for (size_t i = 0; i < v.size(); ++i)
    v[i] = scale * std::sin(1.7f * static_cast<float>(i) + 0.3f);
  return Tensor::from(v, shape);
}

struct Case {
  std::string name;
  std::function<Tensor(const Tensor&)> f;  // of x (6, 10, 4)
};

std::vector<Case> cases() {
  const Tensor row = Tensor::arange(0, 4, 1, kF32);
  const auto rows = [](const Tensor& x) { return x.reshape({60, 4}); };
  return {
      {"element-wise", [=](const Tensor& x) { return (x * 2 + row).exp().relu(); }},
      {"sum of all", [](const Tensor& x) { return x.sum(); }},
      {"sum over 0", [](const Tensor& x) { return x.sum(0); }},
      {"sum over 1", [](const Tensor& x) { return x.sum(1, true); }},
      {"maximum over 0 and 2",
       [](const Tensor& x) {
         return x.max({0, 2});
       }},
      {"product", [](const Tensor& x) { return (x + 2).prod(1); }},
      {"mean and variance",
       [](const Tensor& x) {
         return x.var({0, 2}) + x.mean();
       }},
      {"softmax", [](const Tensor& x) { return x.softmax(1); }},
      {"reshape that merges", [=](const Tensor& x) { return rows(x) * 2; }},
      {"reshape that splits",
       [](const Tensor& x) {
         return x.reshape({3, 2, 5, 2, 4}).sum(1);
       }},
      {"reshape across",
       [](const Tensor& x) {
         return x.reshape({8, 30}).exp();
       }},
      {"flatten", [](const Tensor& x) { return x.flatten().cumsum(0); }},
      {"permute",
       [](const Tensor& x) {
         return x.permute({2, 0, 1}) + 1;
       }},
      {"transposes that meet", [](const Tensor& x) { return x.matmul(x.transpose(1, 2)); }},
      {"expand",
       [](const Tensor& x) {
         return x.unsqueeze(1).expand({6, 3, 10, 4}) * 2;
       }},
      {"pad",
       [](const Tensor& x) {
         return x.pad({{1, 2}, {0, 3}, {1, 0}}) + 1;
       }},
      {"narrow and pad of a sum",
       [](const Tensor& x) {
         return x.sum(0).pad({{2, 1}, {0, 1}});
       }},
      {"shrink",
       [](const Tensor& x) {
         return x.shrink({{1, 3}, {2, 9}, {1, 2}}).exp();
       }},
      {"select", [](const Tensor& x) { return x.select(0, 4) - x.select(0, 1); }},
      {"stride",
       [](const Tensor& x) {
         return x.slice({0, 1}, {6, 10}, {2, 3});
       }},
      {"flip",
       [](const Tensor& x) {
         return x.flip({0, 1}) + x;
       }},
      {"roll",
       [](const Tensor& x) {
         return x.roll({1, 3}, {0, 1}) * x;
       }},
      {"cat",
       [](const Tensor& x) {
         return Tensor::cat({x, x * 2}, 0).sum(2);
       }},
      {"diagonal", [](const Tensor& x) { return x.diagonal(1, 0, 1); }},
      {"windows", [](const Tensor& x) { return x.unfold(1, 3, 2).sum(-1); }},
      {"cumulative sum", [](const Tensor& x) { return x.cumsum(1); }},
      {"sort", [](const Tensor& x) { return x.sort(1).values; }},
      {"argmax", [](const Tensor& x) { return x.argmax(0) + x.argmax(); }},
      {"triangle", [](const Tensor& x) { return x.tril() + Tensor::eye(10, 4); }},
      {"constants that are stored",
       [](const Tensor& x) {
         const Tensor c = Tensor::arange(0, 40, 1, kF32).reshape({10, 4});
         return x + c.sin().softmax(0) + c.cumsum(0);
       }},
      {"index_select",
       [](const Tensor& x) {
         return x.index_select(0, mod(Tensor::arange(4) * 5, 6)) + x.select(0, 0);
       }},
      {"index_select by computed positions",
       [](const Tensor& x) { return x.index_select(1, mod(Tensor::arange(7) * 3, 10)); }},
      {"gather", [](const Tensor& x) { return x.gather(0, mod(x.argsort(0), 6)); }},
      {"gather along the last", [](const Tensor& x) { return x.gather(2, x.argsort(2)); }},
      {"one_hot", [](const Tensor& x) { return x.argmax(2).one_hot(4).to(kF32); }},
      {"scatter_add",
       [](const Tensor& x) {
         return Tensor::zeros({6, 10, 4}).scatter_add(1, x.argsort(1), x);
       }},
      {"index_add",
       [](const Tensor& x) {
         return x.index_add(0, mod(Tensor::arange(3) * 5, 6), x.narrow(0, 1, 3));
       }},
      {"masked_fill", [](const Tensor& x) { return x.masked_fill(x > 0, 3.0); }},
      {"convolution",
       [](const Tensor& x) {
         const Tensor image = x.reshape({6, 2, 5, 4});
         return conv2d(image, Tensor::arange(0, 54, 1, kF32).reshape({3, 2, 3, 3}) / 27);
       }},
      {"pool",
       [](const Tensor& x) {
         return max_pool2d(x.reshape({6, 2, 5, 4}), 2);
       }},
      {"layer norm", [](const Tensor& x) { return layer_norm(x, {4}); }},
      {"norm", [](const Tensor& x) { return x / x.norm(); }},
      {"assign",
       [](const Tensor& x) {
         Tensor y = (x * 3).realize();
         y.assign(y + x);
         return y * 2;
       }},
  };
}

}  // namespace

TEST_CASE("what is computed on several devices is what one device computes") {
  const EnvOverride device("DEVICE", "CPU");
  const Tensor x = numbers({6, 10, 4});
  for (const Case& c : cases()) {
    const Floats wanted = values(c.f(x));
    for (const Names& names : {kTwo, kFour})
      for (int axis = -1; axis < 3; ++axis) {
        const auto cut = axis < 0 ? std::optional<int64_t>() : axis;
        std::string what;
        const std::string error = error_of([&] {
          if (!are_close(values(c.f(x.shard(names, cut))), wanted)) what = "other values";
        });
        CHECK_MESSAGE(what + error == "none", c.name, ", axis ", axis, " of ", names.size(), ": ",
                      what, error);
      }
  }
}

namespace {

// Two devices of a kind; fewer where the machine has no second one.
Names two_of(const std::string& kind) {
  Names names = devices_from(kind, 2);
  try {
    find_device(names[1]).compiler_id();
  } catch (const std::exception&) {
    names.pop_back();
  }
  return names;
}

}  // namespace

// The cut axes of a case in turn, on emulators for some of the cases a day.
TEST_CASE("two devices of each kind compute what one does") {
  const Tensor x = numbers({6, 10, 4});
  int64_t turn = today();
  for (const std::string& kind : test_devices()) {
    const Names names = two_of(kind);
    if (kind == "CPU" || names.size() < 2) continue;
    const EnvOverride device("DEVICE", kind);
    for (const Case& c : cases()) {
      if (!is_in_turn(c.name, parts_on(kind) > 1 ? 4 * parts_on(kind) : 1)) continue;
      for (int64_t axis = parts_on(kind) > 1 ? ++turn % 3 : 0; axis < 3; ++axis) {
        Tensor plain = numbers({6, 10, 4}).requires_grad_(), cut = numbers({6, 10, 4});
        cut.shard_(names, axis).requires_grad_();
        const std::string error = error_of([&] {
          const Tensor y = c.f(plain), z = c.f(cut);
          CHECK_MESSAGE(are_close(values(z), values(y)), kind, ": ", c.name, ", axis ", axis);
          if (!y.requires_grad()) return;
          (y * y).sum().backward();
          (z * z).sum().backward();
          CHECK_MESSAGE(are_close(values(cut.grad()), values(plain.grad())), kind, ": ", c.name,
                        ", gradient, axis ", axis);
        });
        CHECK_MESSAGE(error == "none", kind, ": ", c.name, ", axis ", axis, ": ", error);
        if (parts_on(kind) > 1) break;
      }
    }
  }
}

TEST_CASE("names of several devices count up from one") {
  CHECK(devices_from("CUDA", 3) == Names{"CUDA", "CUDA:1", "CUDA:2"});
  CHECK(devices_from("CUDA:0", 2) == Names{"CUDA", "CUDA:1"});
  CHECK(devices_from("CPU:2", 2) == Names{"CPU:2", "CPU:3"});
  CHECK(devices_from("EMU:CUDA:sm_80", 2) == Names{"EMU:CUDA:sm_80", "EMU:CUDA:sm_80:1"});
  CHECK(devices_from("EMU:HIP:gfx942:1", 1) == Names{"EMU:HIP:gfx942:1"});
  const EnvOverride device("DEVICE", "NULL");
  CHECK(devices_from("", 2) == Names{"NULL", "NULL:1"});
  CHECK(error_of([] { devices_from("CPU", 0); }) == "devices_from: 0 devices; there has to be one");
  for (const char* name : {"EMU:CUDA:sm_80:1", "CPU:3", "NULL:1"})
    CHECK(canonical_device(name) == name);
  CHECK(canonical_device("EMU:CUDA:sm_80:0") == "EMU:CUDA:sm_80");
  for (const char* name : {"EMU:CUDA:sm_80:", "EMU:CUDA:sm_81", "CPU:x", "CPU:", ":1"})
    CHECK_THROWS_AS(canonical_device(name), Error);
}

TEST_CASE("gradients on several devices are those of one") {
  const EnvOverride device("DEVICE", "CPU");
  for (const Case& c : cases()) {
    const Tensor plain = numbers({6, 10, 4}).requires_grad_();
    Tensor y = c.f(plain);
    if (!y.requires_grad()) continue;
    (y * numbers(to_shape(y.shape()), 2)).sum().backward();
    const Floats wanted = values(plain.grad());
    for (int axis = -1; axis < 3; ++axis) {
      const auto cut = axis < 0 ? std::optional<int64_t>() : axis;
      Tensor x = numbers({6, 10, 4});
      x.shard_(kThree, cut).requires_grad_();
      const std::string error = error_of([&] {
        Tensor z = c.f(x);
        (z * numbers(to_shape(z.shape()), 2).shard(kThree)).sum().backward();
        const bool same = are_close(values(x.grad()), wanted);
        CHECK_MESSAGE(same, c.name, ", axis ", axis);
      });
      CHECK_MESSAGE(error == "none", c.name, ", axis ", axis, ": ", error);
    }
  }
}

namespace {

struct Network {
  explicit Network(const Names& devices) {
    manual_seed(3);
    parts = std::make_unique<nn::Sequential>(
        nn::Conv2d(1, 4, 3), &Tensor::relu, nn::BatchNorm2d(4),
        [](const Tensor& x) { return max_pool2d(x, 2).flatten(1); }, nn::Linear(36, 5));
    embedding = std::make_unique<nn::Embedding>(7, 5);
    for (Tensor* t : tensors()) t->realize();
    if (!devices.empty())
      for (Tensor* t : tensors()) t->shard_(devices);
  }
  std::vector<Tensor*> tensors() const {
    std::vector<Tensor*> out = parts->tensors();
    for (Tensor* t : embedding->tensors()) out.push_back(t);
    return out;
  }
  Tensor loss(const Tensor& x, const Tensor& word, const Tensor& label) const {
    return cross_entropy((*parts)(x) + (*embedding)(word), label);
  }
  std::unique_ptr<nn::Sequential> parts;
  std::unique_ptr<nn::Embedding> embedding;
};

using MakeOptimizer = std::function<std::unique_ptr<Optimizer>(const std::vector<Tensor*>&)>;

// Losses of some steps, and all tensors afterwards. `cut_state`: what the optimizer keeps is cut.
Floats trained(const Names& devices, const MakeOptimizer& make, bool cut_state = false) {
  const nn::Training training;
  const Network network(devices);
  const auto optimizer = make(network.tensors());
  if (cut_state)
    for (const NamedTensor& t : optimizer->state_dict())
      if (t.tensor->rank() > 0) t.tensor->shard_(devices, 0);
  Floats out;
  for (int step = 0; step < 4; ++step) {
    Tensor x = numbers({11, 1, 8, 8}, 1 + 0.1f * static_cast<float>(step));
    Tensor word = mod(Tensor::arange(11) * (step + 2), 7).realize();
    Tensor label = mod(Tensor::arange(11) * 3, 5).realize();
    if (!devices.empty())
      for (Tensor* t : {&x, &word, &label}) *t = t->shard(devices, 0);
    Tensor loss = network.loss(x, word, label);
    loss.backward();
    optimizer->step({&loss});
    out.push_back(loss.item<float>());
  }
  for (Tensor* t : network.tensors())
    for (float v : values(*t)) out.push_back(v);
  return out;
}

}  // namespace

TEST_CASE("training on several devices ends where training on one does") {
  const EnvOverride device("DEVICE", "CPU");
  const std::vector<std::pair<const char*, MakeOptimizer>> optimizers = {
      {"SGD",
       [](const auto& t) { return std::make_unique<SGD>(t, 0.05, SgdOptions{.momentum = 0.9}); }},
      {"Adam", [](const auto& t) { return std::make_unique<Adam>(t, 1e-2); }},
      {"LAMB", [](const auto& t) { return std::make_unique<LAMB>(t, 1e-2); }},
  };
  for (const auto& [name, make] : optimizers) {
    const Floats wanted = trained({}, make);
    for (const char* how : {"naive", "two_shot", "ring", "one_shot", "two_shot_direct", "flags"}) {
      const EnvOverride collective("COLLECTIVE", how);
      CHECK_MESSAGE(are_close(trained(kThree, make), wanted), std::string(name), " ",
                    std::string(how));
    }
    CHECK_MESSAGE(are_close(trained(kTwo, make, true), wanted), std::string(name),
                  " with its state cut");
  }
}

namespace {

// The steps that realizing tensors takes.
std::vector<Step> steps_of(const std::vector<Tensor>& tensors) {
  std::vector<Node> roots;
  for (const Tensor& t : tensors) roots.push_back(t.node());
  const Normalized graph = normalize(unshard(roots).pieces);
  std::vector<int> devices;
  for (Node b : graph.buffers) devices.push_back(b->device);
  return schedule(graph, devices, device_id("CPU"))->steps;
}

int64_t copies_of(const Tensor& t) {
  const auto steps = steps_of({t});
  return std::count_if(steps.begin(), steps.end(), [](const Step& s) { return !s.kernel; });
}

Tensor on(const Shape& shape, const Names& devices, std::optional<int64_t> axis = {}) {
  return numbers(shape).shard(devices, axis).realize();
}

}  // namespace

TEST_CASE("copies between devices come where parts are needed in another form, and only there") {
  const EnvOverride device("DEVICE", "CPU");
  const Tensor rows = on({8, 6}, kFour, 0), columns = on({8, 6}, kFour, 1), all = on({6, 4}, kFour);
  CHECK(copies_of((rows * 2 + rows.exp()).sum(1)) == 0);
  CHECK(copies_of(rows.matmul(all)) == 0);
  CHECK(copies_of(rows.reshape({4, 2, 6}).permute({1, 0, 2}).sum(2)) == 0);
  CHECK(copies_of(all + 1) == 0);
  CHECK(copies_of(rows.sum(0)) == 12);                         // all-reduce: each fetches three
  CHECK(copies_of(rows.sum(0) * 2 + rows.sum(0)) == 12);       // of the same sum
  CHECK(copies_of(rows.sum(0) + (rows * rows).sum(0)) == 12);  // of two sums at once
  CHECK(copies_of(rows.sum(0).shard(kFour, 0)) == 12);  // reduce-scatter, of a part of it each
  CHECK(copies_of(rows.shard(kFour)) == 12);            // all-gather
  CHECK(copies_of(rows + columns) == 12);               // all-to-all
  CHECK(copies_of(rows.to("CPU")) == 3);
  CHECK(copies_of(rows.sum().to("CPU:9")) == 4);
  CHECK(copies_of(numbers({4, 4}).shard(kFour)) == 3);  // broadcast
  // The gradient of weights that a product and a look-up share: one all-reduce of both.
  const Tensor ids = Tensor::arange(8).shard(kFour, 0).realize();
  const auto shared = [&](const Tensor& x, const Tensor& at, const Tensor& values) {
    return x.t().matmul(x).index_add(0, mod(at * 5, 6), values);
  };
  CHECK(copies_of(shared(rows, ids, rows)) == 12);
  CHECK(are_close(values(shared(rows, ids, rows)),
                  values(shared(numbers({8, 6}), Tensor::arange(8), numbers({8, 6})))));
  // A product over the cut axis, as the second of two layers has it: one all-reduce in all.
  const Tensor up = on({6, 8}, kFour, 1), down = on({8, 6}, kFour, 0);
  CHECK(copies_of(all.t().matmul(up).relu().matmul(down)) == 12);
  const EnvOverride collective("COLLECTIVE", "two_shot");
  CHECK(copies_of(rows.sum(0)) == 24);
  const EnvOverride ring("COLLECTIVE", "ring");
  CHECK(copies_of(rows.sum(0)) == 24);
  // Kernels that read the pieces where they are: nothing is copied but the sums of the parts.
  const EnvOverride direct("COLLECTIVE", "one_shot");
  CHECK(copies_of(rows.sum(0)) == 0);
  CHECK(copies_of(rows.sum(0).shard(kFour, 0)) == 0);
  CHECK(copies_of(rows.max(0)) == 12);  // no sum
  const EnvOverride parts("COLLECTIVE", "two_shot_direct");
  CHECK(copies_of(rows.sum(0)) == 12);
  // Together: one step for each device, and none of it a kernel.
  const EnvOverride together("COLLECTIVE", "flags");
  CHECK(copies_of(rows.sum(0)) == 4);
  CHECK(copies_of(rows.sum(0).shard(kFour, 0)) == 4);
  CHECK(copies_of(rows.shard(kFour)) == 4);
  // One that is wanted on one device alone is fetched.
  const Tensor x = numbers({8, 6});
  const Tensor y = rows.sum(0) * 2 + (rows * rows).sum(0).to("CPU").shard(kFour);
  CHECK(are_close(values(y), values(x.sum(0) * 2 + (x * x).sum(0))));
  const Tensor one = (rows.sum(0) * 2).to("CPU");  // the others give, and want nothing
  CHECK(are_close(values(one), values(x.sum(0) * 2)));
}

TEST_CASE("what is gathered and scattered by flags is what copies bring, along any axis") {
  const EnvOverride device("DEVICE", "CPU"), together("COLLECTIVE", "flags");
  for (const int axis : {0, 1, 2})
    for (const int64_t size : {8, 7, 3}) {  // 7 is cut into uneven parts, 3 leaves a device none
      Shape shape{4, 4, 4};
      shape[static_cast<size_t>(axis)] = size;
      const Tensor x = numbers(shape), cut = x.shard(kFour, axis).realize();
      CHECK(are_close(values(cut.shard(kFour) * 2), values(x * 2)));
      Jit step([axis](const Tensor& in) {
        return (in.sum(axis, true) + in.to(kBF16).shard(kFour).to(kF32))
            .shard(kFour, (axis + 1) % 3);
      });
      const Tensor expected = x.sum(axis, true) + x.to(kBF16).to(kF32);
      for (int i = 0; i < 3; ++i) CHECK(are_close(values(step(cut)), values(expected)));
    }
}

TEST_CASE("devices meet before kernels that read the memory of others, and after them") {
  const std::string names[] = {"CPU:1", "CPU:2"};
  Device *a = &find_device(names[0]), *b = &find_device(names[1]);
  Schedule s;
  for (int i = 0; i < 6; ++i) s.values.push_back({kF32, 4, device_id(names[i % 2])});
  std::byte memory[6 * 16];
  const auto step = [&](std::vector<int> values, int device) {
    Step out;
    Node stored = nullptr;
    for (size_t i = 0; i < values.size(); ++i) {
      const int64_t arg[] = {static_cast<int64_t>(i), 4};
      Node p = make(Op::Param, kF32, {}, Ints(arg));
      if (i == 0) stored = p;
      if (i == values.size() - 1)
        out.kernel = NodeRef(make(Op::Sink, kVoid, {make(Op::Store, kVoid, {stored, p})}));
    }
    out.values = values;
    out.device = device_id(names[device]);
    out.reads_peers = values.size() > 2;
    return out;
  };
  Meetings meetings(s);
  using Devices = std::vector<Device*>;
  const auto before = [&](const Step& t) {
    std::vector<void*> args;
    for (int v : t.values) args.push_back(memory + 16 * v);
    const Devices met = meetings.before(t, args);
    CHECK((met.empty() || std::set<Device*>(met.begin(), met.end()) == std::set<Device*>{a, b}));
    return !met.empty();
  };
  // Values 0 and 1 are added up on both devices, into 2 and 3.
  CHECK_FALSE(before(step({4, 0}, 0)));
  CHECK(before(step({2, 0, 1}, 0)));
  CHECK_FALSE(before(step({3, 0, 1}, 1)));
  CHECK(before(step({4, 0}, 0)));  // might write what the other device still reads
  CHECK(before(step({2, 0, 1}, 0)));
  CHECK(before(step({1, 2, 3}, 1)));        // reads what a step on the other device writes
  CHECK_FALSE(before(step({5, 2, 3}, 1)));  // of one device: in order anyway
  CHECK(before(step({2, 4, 5}, 0)));        // writes what the other one reads
  CHECK(meetings.at_end().size() == 2);
  CHECK(meetings.at_end().empty());
}

TEST_CASE("dropout on several devices drops what it drops on one") {
  const EnvOverride device("DEVICE", "CPU");
  const auto dropped = [](const Tensor& x) {
    manual_seed(4);
    return values(dropout(x, 0.5, true));
  };
  const Tensor x = numbers({7, 9});
  CHECK(dropped(x.shard(kThree, 0)) == dropped(x));
  CHECK(dropped(x.shard(kTwo, 1)) == dropped(x));
  CHECK(dropped(x.to("CPU:2")) == dropped(x));
  const Tensor wide = numbers({3, 40});  // rows of random blocks of their own
  CHECK(dropped(wide.shard(kThree, 0)) == dropped(wide));
  CHECK(dropped(wide.shard(kTwo, 1)) == dropped(wide));
  CHECK(copies_of(dropout(on({8, 8}, kTwo, 0), 0.5, true)) == 2);  // of the generator's state
}

TEST_CASE("parts are as even as can be, and may be empty") {
  const EnvOverride device("DEVICE", "CPU");
  for (int64_t n : {1, 2, 3, 5, 10}) {
    const Tensor x = numbers({n, 3}), y = x.shard(kFour, 0);
    CHECK(values(y) == values(x));
    CHECK(are_close(values((y * y).sum(0)), values((x * x).sum(0))));
    CHECK(are_close(values(y.softmax(0).max(1)), values(x.softmax(0).max(1))));
    CHECK(are_close(values(y.matmul(y.t())), values(x.matmul(x.t()))));
  }
  Tensor parts = numbers({10, 3}).shard(kFour, 0).realize();
  Shape sizes;
  for (Node piece : parts.node()->srcs()) sizes.push_back(piece->shape()[0]);
  CHECK(sizes == Shape{3, 3, 2, 2});
}

TEST_CASE("a part that is empty is no value that devices share") {
  const EnvOverride device("DEVICE", "CPU");
  const Tensor x = Tensor::from(std::vector<float>{1, 2, 3, 4}, {2, 2});
  for (int axis : {0, 1}) {
    const Tensor rows = x.shard(kThree, axis).sum({1}, true), all = rows.sum({0}, true);
    CHECK(values((rows - all).realize()) == Floats{-7, -3});
    CHECK(values((all * 2).realize()) == Floats{20});
  }
}

TEST_CASE("a tensor on several devices says where it is") {
  const EnvOverride device("DEVICE", "CPU");
  const Tensor x = on({4, 6}, kThree, 1);
  CHECK(x.device() == "CPU,CPU:1,CPU:2");
  CHECK(x.shard_axis() == 1);
  CHECK(x.t().shard_axis() == 0);
  CHECK(x.sum(1).shard_axis() == -1);
  CHECK(x.shard(kThree).shard_axis() == -1);
  CHECK(x.shape()[1] == 6);
  CHECK(x.to("CPU:0").device() == "CPU");
  CHECK(x.to("CPU:0,CPU:1,CPU:2").node() == x.node());
  CHECK(numbers({3}).shard({"CPU:0"}, 0).device() == "CPU");
  CHECK(x.dtype() == kF32);
}

TEST_CASE("what cannot be on several devices is an Error that says so") {
  const EnvOverride device("DEVICE", "CPU");
  const Tensor x = numbers({4, 6}), y = x.shard(kTwo, 0);
  CHECK(error_of([&] { x.shard({}, 0); }) == "shard: no device is named");
  CHECK(error_of([&] {
          x.shard({"CPU", "CPU:0"}, 0);
        }) == "device: CPU is named twice in 'CPU,CPU:0'");
  CHECK(error_of([&] { x.shard(kTwo, 2); }) ==
        "shard: axis 2 is out of range for 2 axes: it must lie in [-2, 1]");
  CHECK(error_of([&] { x.sum().shard(kTwo, 0); }) == "shard: a 0-d tensor has no axis to cut");
  CHECK(error_of([&] { y + x; }) ==
        "add: tensors are on different devices, CPU:1,CPU:2 and CPU: move one with to()");
  CHECK(
      error_of([&] { y + x.shard(kThree, 0); }) ==
      "add: tensors are on different devices, CPU:1,CPU:2 and CPU,CPU:1,CPU:2: move one with to()");
  CHECK(error_of([&] { x.shard_axis(); }) == "shard_axis: the tensor is on CPU and not on several");
  CHECK(error_of([&] {
          x.shard({"CPU", "TPU"}, 0).realize();
        }).starts_with("unknown device 'TPU'"));
  const EnvOverride collective("COLLECTIVE", "tree");
  CHECK(error_of([&] { y.sum().realize(); }) ==
        "COLLECTIVE=tree: it is one of naive, two_shot, ring, one_shot, two_shot_direct, flags, "
        "nccl");
  const EnvOverride library("COLLECTIVE", "nccl");
  CHECK(error_of([&] { y.sum().realize(); }) == "COLLECTIVE=nccl: CPUs have no library for it");
  const EnvOverride together("COLLECTIVE", "flags");
  CHECK(error_of([&] { y.to(kF16).max().realize(); }) == "none");  // no sum
  const Tensor eight = (Tensor::arange(8) - 4).to(kU32).shard(kTwo, 0);
  CHECK(error_of([&] { Tensor(build::reduce(Op::Add, eight.node(), 1)).realize(); }) ==
        "COLLECTIVE=flags: CPUs do not add up values of u32 together");
}

TEST_CASE("a parameter stays one when it moves to several devices") {
  const EnvOverride device("DEVICE", "CPU");
  Tensor w = numbers({4, 3}).requires_grad_();
  w.shard_(kTwo, 1);
  CHECK(w.requires_grad());
  (w * 2).sum().backward();
  CHECK(values(w.grad()) == Floats(12, 2));
  w.assign(w * 3);
  CHECK(are_close(values(w), values(numbers({4, 3}) * 3)));
  CHECK(w.shard_axis() == 1);
  // Back through the copies to where it came from.
  Tensor v = numbers({4, 3}).requires_grad_();
  (v.shard(kThree, 0) * v.shard(kThree, 1)).sum().backward();
  CHECK(v.grad().device() == "CPU");
  CHECK(are_close(values(v.grad()), values(v.detach() * 2)));
}

TEST_CASE("constants are assigned in the memory of each device") {
  const std::vector<std::string> two{"EMU:CUDA:sm_80",
                                     "EMU:CUDA:sm_80:1"};  // say what is not theirs
  const EnvOverride device("DEVICE", two[0]);
  Tensor x = Tensor::zeros({2}).shard(two).contiguous().realize();
  Tensor other = Tensor::ones({3}).contiguous().realize();
  x.assign(Tensor::full({2}, 3.0f)).realize();
  CHECK(values(x) == Floats{3, 3});
  Tensor* const both[] = {&other.assign(other + 1), &x.assign(x.zeros_like())};
  Tensor::realize(both);
  CHECK(values(x) == Floats{0, 0});
  CHECK(values(other) == Floats{2, 2, 2});
}

TEST_CASE("nodes and buffers of work on several devices are freed") {
  const EnvOverride device("DEVICE", "CPU");
  Tensor w = on({8, 4}, kThree, 0);
  const auto once = [&] {
    Tensor y = (w.matmul(w.t()).softmax(1).sum(0) + 1).realize();
    w.assign(w * 1.5f).realize();
    return y.to_vector<float>();
  };
  for (int i = 0; i < 2; ++i) once();  // the schedules are kept
  const Live before = live();
  for (int i = 0; i < 3; ++i) once();
  const Live after = live();
  CHECK(after.nodes == before.nodes);
  CHECK(after.buffers == before.buffers);
  CHECK(after.bytes == before.bytes);
}

namespace {

// Losses of steps of a Jit, or without one, with arguments cut and parameters on each device.
Floats losses_of_steps(const Names& devices, bool cut_state, JitStatistics* statistics) {
  const nn::Training training;
  const Network network(devices);
  Adam optimizer(network.tensors(), 1e-2);
  if (cut_state)
    for (const NamedTensor& t : optimizer.state_dict())
      if (t.tensor->rank() > 0) t.tensor->shard_(devices, 0);
  Jit step([&](const Tensor& x, const Tensor& word, const Tensor& label) {
    Tensor loss = network.loss(x, word, label);
    loss.backward();
    optimizer.step({&loss});
    return std::pair(loss, x.reshape({11, 64}) * 2);
  });
  Floats out;
  for (int i = 0; i < 6; ++i) {
    optimizer.set_lr(1e-2 / (i + 1));
    const Tensor x = numbers({11, 1, 8, 8}, 1 + 0.1f * static_cast<float>(i));
    const Tensor word = mod(Tensor::arange(11) * (i + 2), 7).realize();
    const Tensor label = mod(Tensor::arange(11) * 3, 5).realize();
    const auto [loss, twice] = devices.empty() ? step(x, word, label)
                                               : step(x.shard(devices, 0), word.shard(devices, 0),
                                                      label.shard(devices, 0));
    out.push_back(loss.item<float>());
    out.push_back(values(twice)[700]);
    CHECK(values(twice) == values(x.reshape({11, 64}) * 2));
  }
  if (statistics) *statistics = step.statistics();
  return out;
}

}  // namespace

TEST_CASE("kernels on every device have the names of the user's operations") {
  const EnvOverride device("DEVICE", "CPU");
  const nn::Training training;
  // The operations of the kernels of a training step, by device.
  const auto operations = [](const Names& devices) {
    const Network network(devices);
    Tensor x = numbers({12, 1, 8, 8}), word = mod(Tensor::arange(12), 7).realize();
    const Tensor label = mod(word, 5).realize();
    if (!devices.empty()) {
      x = x.shard(devices, 0);
      word = word.shard(devices, 0);
    }
    Tensor loss = network.loss(x, word, devices.empty() ? label : label.shard(devices, 0));
    loss.backward();
    std::vector<Tensor> all{loss};
    for (Tensor* t : network.tensors())
      if (t->requires_grad()) all.push_back(t->grad());
    std::map<std::string, std::set<std::string>> out;
    for (const Step& s : steps_of(all)) {
      std::istringstream names(s.operations);
      for (std::string name; std::getline(names >> std::ws, name, ',');)
        if (s.kernel) out[device_name(s.device)].insert(name);
    }
    return out;
  };
  const std::set<std::string> wanted = operations({})["CPU"];
  for (const char* name :
       {"conv2d", "batch_norm", "cross_entropy", "conv2d_grad", "embedding_grad"})
    CHECK_MESSAGE(wanted.count(name), std::string(name));
  const auto all = operations(kThree);
  CHECK(all.size() == 3);
  for (auto [name, found] : all) {
    CHECK(found.erase("all_reduce") == 1);
    CHECK(found.erase("shard") == (name == "CPU"));  // the parts that it sends
    std::vector<std::string> others;
    std::set_symmetric_difference(found.begin(), found.end(), wanted.begin(), wanted.end(),
                                  std::back_inserter(others));
    std::string text;
    for (const std::string& o : others) text += (found.count(o) ? " too many: " : " missing: ") + o;
    CHECK_MESSAGE(text.empty(), name, text);
  }
}

TEST_CASE("kernels of a replayed training step on several devices name the user's operations") {
  const EnvOverride device("DEVICE", "CPU");
  const nn::Training training;
  nn::Sequential network(
      nn::Conv2d(1, 4, 3), nn::BatchNorm2d(4), &Tensor::relu,
      [](const Tensor& x) { return x.flatten(1); }, nn::Linear(4 * 6 * 6, 5));
  for (Tensor* t : network.tensors()) t->shard_(kTwo);
  Adam optimizer(network.tensors());
  Jit step([&](const Tensor& x, const Tensor& y) {
    Tensor loss = cross_entropy(network(x), y);
    loss.backward();
    optimizer.step({&loss});
    return loss;
  });
  const Tensor x = numbers({8, 1, 8, 8}).shard(kTwo, 0).realize();
  const Tensor y = mod(Tensor::arange(8), 5).realize().shard(kTwo, 0).realize();
  // Operations of the kernels that ran, by device.
  const auto names_in = [&](const char* jit) {
    const EnvOverride mode("JIT", jit);
    for (int i = 0; i < 2; ++i) step(x, y);
    const Profile profile;
    step(x, y);
    std::map<std::string, std::set<std::string>> out;
    for (const KernelTime& k : kernel_times()) {
      std::istringstream names(k.operations);
      for (std::string name; std::getline(names >> std::ws, name, ',');) out[k.device].insert(name);
    }
    return out;
  };
  const auto plain = names_in("0"), replayed = names_in("1");
  CHECK(step.statistics().replays == 1);
  CHECK(plain == replayed);
  for (const std::string& name : kTwo)
    for (const char* operation : {"conv2d", "batch_norm", "relu", "linear", "cross_entropy",
                                  "conv2d_grad", "linear_grad", "step", "all_reduce"})
      CHECK_MESSAGE(replayed.at(canonical_device(name)).count(operation), name, ": ", operation);
}

TEST_CASE("gradients of all parameters are exchanged at once") {
  const EnvOverride device("DEVICE", "CPU");
  nn::Sequential network(nn::Linear(6, 8), &Tensor::relu, nn::Linear(8, 8), &Tensor::relu,
                         nn::Linear(8, 3));
  for (Tensor* t : network.tensors()) t->shard_(kTwo);
  const Tensor labels = mod(Tensor::arange(10), 3).realize().shard(kTwo, 0).realize();
  const Tensor loss = cross_entropy(network(on({10, 6}, kTwo, 0)), labels);
  loss.backward();
  std::vector<Tensor> all{loss};
  for (Tensor* t : network.parameters()) all.push_back(t->grad() * 2);
  int copies = 0, times = 0;
  bool before = false;
  for (const Step& s : steps_of(all)) {
    copies += !s.kernel;
    times += !s.kernel && !before;
    before = !s.kernel;
  }
  CHECK(copies == 16);  // both ways: the loss and what it is divided by, and six gradients
  CHECK(times == 2);
}

namespace {

// Results, statistics and gradients of a batch norm of x (8, 3, 5, 2), whose channels are far from
// zero, and the samples of its second half far from those of the first.
std::vector<Floats> of_batch_norm(const Names& devices, int64_t groups = 1) {
  const auto place = [&](const Tensor& t, std::optional<int64_t> axis) {
    return devices.empty() ? t : t.shard(devices, axis);
  };
  const Tensor offset = where(Tensor::arange(0, 8, 1, kF32).reshape({8, 1, 1, 1}) < 4, 300, -500) *
                        Tensor::arange(0, 3, 1, kF32).reshape({1, 3, 1, 1});
  const Tensor noise = numbers({8, 3, 5, 2}, 2);
  const Tensor x = place((noise + offset).realize(), 0).realize().requires_grad_();
  const Tensor weight = place(numbers({3}, 3), {}).realize().requires_grad_();
  const Tensor bias = place(numbers({3}, 5), {}).realize().requires_grad_();
  const Tensor mean = place(numbers({3}), {}), var = place(numbers({3}, 2), {});
  const auto r = batch_norm(x, weight, bias, mean, var, {.training = true, .groups = groups});
  (r.y * place(numbers({8, 3, 5, 2}, 7).sin(), 0)).sum().backward();
  std::vector<Floats> out;
  for (const Tensor& t :
       {r.y, r.running_mean, r.running_var, x.grad() * 100, weight.grad(), bias.grad()})
    out.push_back(values(t));
  return out;
}

}  // namespace

TEST_CASE("sums of one pass over the same values are sent by one kernel, each once") {
  const EnvOverride device("DEVICE", "CPU"), how("COLLECTIVE", "flags");
  const Tensor x = on({8, 6}, kTwo, 0), sum = x.sum(0), squares = x.square().sum(0);
  int kernels = 0, sums = 0;
  for (const Step& s : steps_of({sum + 1, squares.sqrt(), sum.reshape({2, 3}) * 2})) {
    kernels += s.kernel && sums == 0;
    sums += Sums::takes(s);
  }
  CHECK(kernels == 2);
  CHECK(sums == 4);
  CHECK(are_close(values(sum.reshape({2, 3}) * 2), values(numbers({8, 6}).sum(0) * 2)));
}

TEST_CASE("batch norm of a batch in parts is that of the whole") {
  const EnvOverride device("DEVICE", "CPU");
  const auto whole = of_batch_norm({});
  for (const Names& devices : {kTwo, kThree, kFour}) {  // three have parts of other sizes
    const auto parts = of_batch_norm(devices);
    for (size_t i = 0; i < whole.size(); ++i) {
      CAPTURE(i);
      CHECK(are_close(parts[i], whole[i]));
    }
  }
}

TEST_CASE("batch norm over groups is the same where each device has some of them") {
  const EnvOverride device("DEVICE", "CPU");
  for (const auto& [devices, groups] :
       {std::pair(kTwo, 2), std::pair(kTwo, 4), std::pair(kFour, 4), std::pair(kFour, 2)}) {
    const auto whole = of_batch_norm({}, groups), parts = of_batch_norm(devices, groups);
    for (size_t i = 0; i < whole.size(); ++i) {
      CAPTURE(i);
      CHECK(are_close(parts[i], whole[i]));
    }
  }
}

TEST_CASE(
    "batch norm over the groups of each device sends gradients and running statistics alone") {
  const EnvOverride device("DEVICE", "CPU"), how("COLLECTIVE", "flags");
  const Tensor x = on({8, 3, 5, 2}, kTwo, 0).requires_grad_(),
               weight = on({3}, kTwo).requires_grad_();
  const Tensor mean = on({3}, kTwo), var = on({3}, kTwo);
  const auto sums = [&](int64_t groups, bool in_all) {
    const auto r = batch_norm(x, weight, {}, mean, var, {.training = true, .groups = groups});
    const Tensor loss = (r.y * 2).exp().sum();
    std::vector<Tensor> wanted = Tensor::gradient(loss, {x, weight});
    if (in_all)
      wanted.insert(wanted.end(), {r.running_mean, r.running_var});
    else
      wanted.pop_back();
    wanted.push_back(r.y);
    const auto steps = steps_of(wanted);
    return std::count_if(steps.begin(), steps.end(), [](const Step& s) { return Sums::takes(s); });
  };
  CHECK(sums(2, false) == 0);
  CHECK(sums(4, false) == 0);
  CHECK(sums(2, true) == 2 * 3);  // for each device: the weight's gradient and both statistics
  CHECK(sums(1, false) > 0);
}

TEST_CASE("a Jit replays work on several devices") {
  const EnvOverride device("DEVICE", "CPU");
  const Floats wanted = losses_of_steps({}, false, nullptr);
  for (const char* check : {"0", "1"})
    for (const bool cut : {false, true}) {
      const EnvOverride checked("JIT_CHECK", check);
      JitStatistics statistics;
      CHECK(are_close(losses_of_steps(kThree, cut, &statistics), wanted));
      JitStatistics one;
      losses_of_steps({}, false, &one);
      // Checked replays of one device move its tensors; here scalars of the optimizer stay.
      CHECK(statistics.captures <= one.captures);
      CHECK(statistics.replays >= one.replays);
    }
  for (const char* how : {"one_shot", "flags"})
    for (const bool cut : {false, true}) {
      const EnvOverride direct("COLLECTIVE", how), checked("JIT_CHECK", cut ? "1" : "0");
      CHECK(are_close(losses_of_steps(kThree, cut, nullptr), wanted));
    }
  const EnvOverride plain("JIT", "2");
  CHECK(are_close(losses_of_steps(kTwo, false, nullptr), wanted));
}

TEST_CASE("a Jit keeps the results of work on several devices apart") {
  const EnvOverride device("DEVICE", "CPU");
  Tensor sum = on({3}, kTwo);
  Jit step([&](const Tensor& x) {
    sum.assign(sum + x.sum(0)).realize();
    return x * 2;
  });
  std::vector<Tensor> results;
  Floats total = values(sum);
  for (int i = 0; i < 6; ++i) {
    const Tensor x = numbers({5, 3}, static_cast<float>(i));
    results.push_back(step(x.shard(kTwo, 0)));
    for (size_t k = 0; k < 3; ++k) total[k] += values(x.sum(0))[k];
  }
  for (int i = 0; i < 6; ++i)
    CHECK(are_close(values(results[i]), values(numbers({5, 3}, static_cast<float>(2 * i)))));
  CHECK(are_close(values(sum), total));
  CHECK(step.statistics().replays == 4);
  // Somebody who still has to see the old value.
  const Tensor old = sum + 0;
  step(numbers({5, 3}).shard(kTwo, 0));
  CHECK(are_close(values(old), total));
  CHECK_FALSE(are_close(values(sum), total));
  CHECK(error_of([&] {
          step(numbers({5, 3}));
        }) == "Jit: 1 tensors for a capture of 2: make another Jit for them");
}

// They are constants, which would lie on the default device once they are computed.
TEST_CASE("positions in an axis of one element are where the tensor is") {
  for (const Shape& shape : {Shape{1, 1}, Shape{}}) {
    const Tensor one = Tensor::full(shape, 2).contiguous().realize();
    for (const Tensor& x : {one.shard(kThree), one.to("CPU:1")}) {
      for (Tensor at : {x.sort(0).indices, x.argsort(0, true), x.argmax(0), x.cummax(0).indices}) {
        at.realize();
        CHECK(at.device() == x.device());
        CHECK((at.to(kF32) + x).sum().item<float>() == 2);
      }
    }
  }
}

TEST_CASE("a constant gradient is where the tensor is") {
  const auto check_device = [](Tensor x) {
    x = x.detach().requires_grad_();
    (x.sum() * 3).backward();
    for (Tensor g : {x.grad(), Tensor::gradient(x.sum() * 3, {x})[0]}) {
      g = g.detach();
      g.realize();
      CHECK(g.device() == x.device());
      CHECK((x.detach() + g).sum().item<float>() == 6 * (3 + 2));
    }
  };
  const Tensor x = Tensor::full({6}, 2).to(kF32).contiguous().realize();
  for (const Tensor& on : {x, x.to("CPU:1"), x.shard(kTwo), x.shard(kThree, 0), x.shard(kTwo, 0)})
    check_device(on);
}

TEST_CASE("elements are written over constants of their own on each device") {
  const EnvOverride device("DEVICE", "CPU");
  const auto gradient = [](Tensor x) {
    x = x.to(kBF16).requires_grad_();
    const Tensor chosen = x.masked_select(x > 0, 12);
    const Tensor loss = (chosen * (Tensor::arange(12).to(kF32) * 0.5 + 1).sin().to(kBF16)).sum();
    Tensor all[] = {chosen, Tensor::gradient(loss, {x})[0]};
    Tensor* both[] = {&all[0], &all[1]};
    Tensor::realize(both);
    return values(all[1].to("CPU").to(kF32));
  };
  const Tensor x = Tensor::from(Floats{1});
  CHECK(are_close(gradient(x.shard(kTwo)), gradient(x)));
}

TEST_CASE("a tensor cut over devices that was assigned to is there for later readers too") {
  const EnvOverride device("DEVICE", "CPU");
  const std::vector<std::string> own_first{"CPU", "CPU:1"};  // the first part is no copy
  for (int64_t n : {1, 4})
    for (const bool held : {false, true}) {
      CAPTURE(n);
      CAPTURE(held);
      Tensor whole = numbers({n});
      const Tensor before = whole.shard(own_first);
      if (!held) whole = Tensor();
      Tensor w = before.detach();
      w.assign((numbers({n}) + 5).realize().shard(own_first));
      Tensor five = w * 5, twice = w * 2;
      five.realize();
      twice.realize();
      CHECK(are_close(values(five.to("CPU")), values((numbers({n}) + 5) * 5)));
      CHECK(are_close(values(twice.to("CPU")), values((numbers({n}) + 5) * 2)));
      CHECK(are_close(values(before.to("CPU")), values(numbers({n}))));
      if (held) CHECK(are_close(values(whole), values(numbers({n}))));
    }
}

TEST_CASE("a reshape of no elements is cut into the parts of its own shape") {
  const EnvOverride device("DEVICE", "CPU");
  const Tensor x = Tensor::zeros({0, 3, 2}).shard({"CPU", "CPU:1", "CPU:2"}, 1);
  Tensor y = x.reshape({1, 3, 0, 3});
  y.realize();
  CHECK(same(y.to("CPU").shape(), Shape{1, 3, 0, 3}));
}

TEST_CASE("what is made of constants is a result on one device and read by the kernels of others") {
  const EnvOverride device("DEVICE", "CPU");
  const Tensor x = Tensor::from(std::vector<double>{1.5}).shard(kTwo).requires_grad_();
  auto [most, at] = x.cummax(0);
  std::vector<Tensor*> both{&most, &at};
  Tensor::realize(both);
  CHECK(most.to("CPU").to_vector<double>() == std::vector<double>{1.5});
  CHECK(at.to("CPU").to_vector<int64_t>() == std::vector<int64_t>{0});
}

TEST_CASE("a checkpoint computes again from memory that other devices have sent") {
  const EnvOverride device("DEVICE", "CPU");
  const Tensor whole = Tensor::from(Floats{1, 2, 3, 4});
  const Tensor x = whole.shard(kTwo, 0).requires_grad_(), by = Tensor::from(Floats{2, 3, 4, 5});
  const Tensor y = checkpoint([&](const Tensor& t) { return t * t * by.shard(kTwo, 0); }, x);
  CHECK(values(Tensor::gradient((y * x.detach()).sum(), {x})[0].to("CPU")) ==
        Floats{4, 24, 72, 160});
}

TEST_CASE("what is made of constants alone is read on several devices at once") {
  const auto on = [](const Tensor& t, int device) {
    return t.to(cat("CPU:", device)).contiguous().realize();
  };
  const Tensor nothing = Tensor::zeros({3, 2, 0});
  const std::function<Tensor(int)> makers[] = {
      [](int) {
        return Tensor::full({3, 2}, 4.0f).max({1}, true);
      },
      [](int) {
        return Tensor::arange(0, 6, 1, kF32).reshape({3, 2}).exp().sum({1}, true);
      },
      [&](int d) { return on(nothing, d).sum({2}).max({1}, true) + 4; },
      [&](int d) {
        return on(nothing.reshape({3, 0}), d).pad({{0, 0}, {1, 1}}).exp().sum(1, true);
      },
  };
  for (const auto& make : makers) {
    const std::vector<float> alone = (make(1) + 1).realize().to("CPU").to_vector<float>();
    Tensor a = on(Tensor::ones({3, 1}), 1) + make(1), b = on(Tensor::ones({3, 1}), 2) + make(2);
    std::vector<Tensor*> both{&a, &b};
    Tensor::realize(both);
    CHECK(a.device() == "CPU:1");
    CHECK(b.device() == "CPU:2");
    CHECK(a.to_vector<float>() == alone);
    CHECK(b.to_vector<float>() == alone);
  }
  const std::vector<std::string> devices{"CPU", "CPU:1", "CPU:2"};
  const Tensor one = Tensor::from({2.0f}).shard(devices, 0);  // two parts are empty
  const Tensor empty = Tensor::zeros({3, 2, 2, 0}).contiguous().realize().shard(devices);
  const Tensor y = empty.sum({2, 3}).max({1}, true) + one.sum();
  CHECK(y.to("CPU").to_vector<float>() == std::vector<float>{2, 2, 2});
}
