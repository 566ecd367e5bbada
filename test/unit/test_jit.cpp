#include "tiny/run/jit.h"

#include <doctest/doctest.h>

#include "runtime/jit/replay.h"
#include "runtime/kernels/kernel.h"
#include "runtime/realize/realize.h"
#include "runtime/schedule/schedule.h"
#include "test/error_of.h"
#include "tiny/base/env.h"
#include "tiny/base/error.h"
#include "tiny/nn/functional.h"
#include "tiny/nn/layers.h"
#include "tiny/tensor/random.h"
#include "tiny/train/optim.h"

using namespace tiny;

namespace {

using Floats = std::vector<float>;

Tensor floats(const Floats& values) { return Tensor::from(values); }

// The text of the Error that a call throws.
}  // namespace

TEST_CASE("a replay computes with its own arguments") {
  Jit step([](const Tensor& x, const Tensor& y) { return (x * 2.0f + y).sin(); });
  for (int i = 0; i < 5; ++i) {
    const auto f = static_cast<float>(i);
    const Tensor x = floats({f, 1, 2}), y = floats({3, f, 5});
    CHECK(step(x, y).to_vector<float>() == (x * 2.0f + y).sin().to_vector<float>());
  }
  CHECK(step.statistics().calls == 2);
  CHECK(step.statistics().captures == 1);
  CHECK(step.statistics().replays == 3);
  CHECK(step.statistics().kernels == 1);
}

TEST_CASE("parts of arguments, of what was computed and of results are read where they are") {
  Jit step([](const Tensor& x) {
    const Tensor y = (x * 2.0f).contiguous();
    const Tensor row = x.select(0, 1) + y.select(0, 2),
                 one = x.select(0, 0) * y.select(0, 3).select(0, 5);
    return std::tuple(y, row, one, (y.select(0, 1) + 1.0f).sum());
  });
  for (int i = 0; i < 6; ++i) {
    if (i == 4) Replay::free_idle_arenas();  // they get other memory
    Tensor x = (Tensor::arange(256).to(kF32) + static_cast<float>(i)).reshape({4, 64});
    const auto [y, row, one, sum] = step(x.realize());
    const Floats given = x.to_vector<float>(), got = row.to_vector<float>();
    const Floats ones = one.to_vector<float>();
    float wanted = 64;
    for (size_t k = 0; k < 64; ++k) {
      CHECK(got[k] == given[64 + k] + 2 * given[128 + k]);
      CHECK(ones[k] == given[k] * (2 * given[192 + 5]));
      wanted += 2 * given[64 + k];
    }
    CHECK(sum.item<float>() == wanted);
    CHECK(y.to_vector<float>()[9] == 2 * given[9]);
  }
}

TEST_CASE("a capture has the schedule of the call before it, whatever it reads from outside") {
  nn::Embedding kinds(2, 8);
  const Tensor kind = (Tensor::arange(6) >= 3).to(kI32).expand({4, 6}).contiguous().realize();
  Jit step([&](const Tensor& x) { return (kinds(kind) + x).relu(); });
  const Tensor x = Tensor::randn({4, 6, 8}).realize();
  const Floats first = step(x).to_vector<float>();
  const size_t schedules = schedules_kept();
  CHECK(step(x).to_vector<float>() == first);
  CHECK(step.statistics().captures == 1);
  CHECK(schedules_kept() == schedules);
}

TEST_CASE("results of earlier replays stay what they were") {
  Jit step([](const Tensor& x) { return x + 1.0f; });
  std::vector<Tensor> results;
  for (int i = 0; i < 6; ++i) results.push_back(step(floats({static_cast<float>(i)})));
  for (int i = 0; i < 6; ++i) CHECK(results[i].item<float>() == static_cast<float>(i) + 1);
}

TEST_CASE("a result may be the next argument") {
  Jit step([](const Tensor& x) { return x * 2.0f; });
  Tensor x = floats({1, 3});
  for (int i = 0; i < 6; ++i) x = step(x);
  CHECK(x.to_vector<float>() == Floats{64, 192});
}

TEST_CASE("arguments and results are tensors, lists, pairs, tuples and arrays") {
  Jit lists([](const std::vector<Tensor>& all, const Tensor& x) {
    std::vector<Tensor> out;
    for (const Tensor& t : all) out.push_back(t + x);
    return std::pair(out, x.sum());
  });
  Jit parts([](const Tensor& x) { return std::tuple(x + 1.0f, std::array{x * 2.0f, x.t()}); });
  Jit nothing([](const Tensor&) {});
  for (int i = 0; i < 4; ++i) {
    const auto f = static_cast<float>(i);
    const auto [all, sum] = lists(std::vector{floats({f}), floats({1})}, floats({f, 2}));
    REQUIRE(all.size() == 2);
    CHECK(all[1].to_vector<float>() == Floats{f + 1, 3});
    CHECK(sum.item<float>() == f + 2);
    const Tensor m = Tensor::from({f, 1.0f, 2.0f, 3.0f}, {2, 2});
    const auto [more, both] = parts(m);
    CHECK(more.to_vector<float>() == Floats{f + 1, 2, 3, 4});
    CHECK(both[0].to_vector<float>() == Floats{2 * f, 2, 4, 6});
    CHECK(both[1].to_vector<float>() == Floats{f, 2, 1, 3});
    nothing(m);
  }
}

TEST_CASE("views and tensors that were not computed yet are arguments too") {
  Jit step([](const Tensor& x) { return x.sum(0); });
  for (int i = 0; i < 5; ++i) {
    const Tensor all = Tensor::arange(0, 12, 1, kF32).reshape({3, 4}) + i;
    CHECK(step(all.t().narrow(0, 1, 2)).to_vector<float>() ==
          all.t().narrow(0, 1, 2).sum(0).to_vector<float>());
  }
}

TEST_CASE("what a step assigns to is assigned by replays, in the same memory") {
  Tensor total = floats({0, 0}).realize();
  Jit step([&](const Tensor& x) {
    total.assign(total + x);
    total.realize();
    return total * 10.0f;
  });
  for (int i = 0; i < 6; ++i) {
    const Tensor out = step(floats({1, static_cast<float>(i)}));
    CHECK(out.to_vector<float>()[0] == 10.0f * static_cast<float>(i + 1));
  }
  CHECK(total.to_vector<float>() == Floats{6, 15});
  CHECK(step.statistics().replays == 4);
}

namespace {

struct Trained {
  Floats losses, weights;
};

Trained train(bool jit, bool momentum) {
  const EnvOverride on("JIT", jit ? "1" : "0");
  manual_seed(7);
  nn::Sequential model(nn::Linear(6, 8), nn::BatchNorm2d(8), &Tensor::relu, nn::Linear(8, 3));
  std::unique_ptr<Optimizer> optimizer;
  if (momentum)
    optimizer = std::make_unique<SGD>(model.tensors(), 0.1, SgdOptions{.momentum = 0.9});
  else
    optimizer = std::make_unique<Adam>(model.tensors(), 1e-2);
  const nn::Training training;
  Jit step([&](const Tensor& x, const Tensor& y) {
    Tensor loss = cross_entropy(dropout(model(x), 0.1, true), y);
    loss.backward();
    optimizer->step({&loss});
    return loss;
  });
  Trained out;
  for (int i = 0; i < 12; ++i) {
    optimizer->set_lr(0.01 * (12 - i));
    Tensor x = Tensor::randn({16, 6}), y = Tensor::randint(0, 3, {16});
    Tensor* const both[] = {&x,
                            &y};  // as a Jit reads them: a kernel that draws them sums otherwise
    Tensor::realize(both);
    out.losses.push_back(step(x, y).item<float>());
  }
  // With a check, weights that are not updated in place are captured anew after each call.
  const int64_t least = !jit ? 0 : env_int("JIT_CHECK") ? 5 : 10;
  CHECK(step.statistics().replays >= least);
  for (Tensor* t : model.tensors())
    for (float f : t->to_vector<float>()) out.weights.push_back(f);
  return out;
}

}  // namespace

TEST_CASE("training with a Jit gives the same bits as without") {
  for (bool momentum : {false, true}) {
    const Trained plain = train(false, momentum), jit = train(true, momentum);
    CHECK(plain.losses == jit.losses);
    CHECK(plain.weights == jit.weights);
  }
}

TEST_CASE("JIT=2 and JIT_CHECK=1 give the same") {
  const Trained plain = train(false, true);
  {
    const EnvOverride check("JIT_CHECK", "1");
    CHECK(train(true, true).weights == plain.weights);
  }
  Jit step([](const Tensor& x) { return x + 1.0f; });
  const EnvOverride on("JIT", "2");
  for (int i = 0; i < 4; ++i)
    CHECK(step(floats({static_cast<float>(i)})).item<float>() == static_cast<float>(i + 1));
}

TEST_CASE("random numbers in a step go on as they would without a Jit") {
  const auto draw = [](bool jit) {
    const EnvOverride on("JIT", jit ? "1" : "0");
    manual_seed(3);
    Jit step([](const Tensor& x) { return x * Tensor::rand({3}) + Tensor::randint(0, 9, {3}); });
    Floats out;
    for (int i = 0; i < 5; ++i) {
      for (float f : step(floats({1, 2, 3})).to_vector<float>()) out.push_back(f);
      out.push_back(Tensor::rand({1}).item<float>());  // the stream is shared
    }
    return out;
  };
  CHECK(draw(true) == draw(false));
}

TEST_CASE("a step may compute something on the way, and use it") {
  Jit step([](const Tensor& x) {
    Tensor sum = (x + 1.0f).sum();
    sum.realize();
    Tensor scaled = x / sum;
    scaled.realize();
    return scaled.max() + sum;
  });
  for (int i = 0; i < 4; ++i) {
    const Tensor x = floats({static_cast<float>(i), 2, 5});
    const Tensor sum = (x + 1.0f).sum();
    CHECK(step(x).item<float>() == ((x / sum).max() + sum).item<float>());
  }
}

TEST_CASE("results that are arguments, outside tensors or constants are copies") {
  Tensor w = floats({1, 2}).realize();
  Jit step([&](const Tensor& x) {
    w.assign(w + x);
    w.realize();
    return std::array{x, w, Tensor::full({2}, 4.0), w.flip()};
  });
  std::vector<std::array<Tensor, 4>> all;
  for (int i = 0; i < 5; ++i) all.push_back(step(floats({1, static_cast<float>(i)})));
  CHECK(all[3][0].to_vector<float>() == Floats{1, 3});
  CHECK(all[2][1].to_vector<float>() == Floats{4, 5});
  CHECK(all[3][1].to_vector<float>() == Floats{5, 8});
  CHECK(all[3][2].to_vector<float>() == Floats{4, 4});
  CHECK(all[3][3].to_vector<float>() == Floats{8, 5});
}

// --- Outside ------------------------------------------------------------------------------------

TEST_CASE("expressions and copies of a tensor keep its value when a replay assigns to it") {
  Tensor w = floats({1, 2}).realize();
  Jit step([&](const Tensor& x) {
    w.assign(w + x);
    w.realize();
  });
  const Tensor one = floats({1, 1}).realize();
  for (int i = 0; i < 3; ++i) step(one);
  const Tensor doubled = w * 2.0f, copy = w;
  step(one);
  CHECK(w.to_vector<float>() == Floats{5, 6});
  CHECK(doubled.to_vector<float>() == Floats{8, 10});
  CHECK(copy.to_vector<float>() == Floats{4, 5});
  const int64_t replays = step.statistics().replays;
  for (int i = 0; i < 3; ++i) step(one);
  CHECK(step.statistics().replays >= replays + 2);
  CHECK(w.to_vector<float>() == Floats{8, 9});
  CHECK((w * 2.0f).to_vector<float>() == Floats{16, 18});
  CHECK(copy.to_vector<float>() == Floats{4, 5});
}

TEST_CASE("a tensor from outside that is assigned to in place is read anew") {
  Tensor scale = floats({2}).realize();
  Jit step([&](const Tensor& x) { return x * scale; });
  for (int i = 0; i < 6; ++i) {
    scale.assign(floats({static_cast<float>(i)})).realize();
    CHECK(step(floats({3})).item<float>() == 3.0f * static_cast<float>(i));
  }
  CHECK(step.statistics().replays == 4);
}

TEST_CASE("what a step assigns to can begin anew from outside, and replays go on") {
  // Read by a second kernel of the step, which makes a call of the function assign elsewhere.
  Tensor w = Tensor::zeros({4, 4}).contiguous().requires_grad_();
  SGD optimizer({&w}, 0.5, {.momentum = 0.5});
  const Tensor x = Tensor::eye(4).contiguous().realize();
  Jit step([&] {
    x.matmul(w).matmul(w + 1).sum().backward();
    optimizer.step();
  });
  Jit look([&](const Tensor& factor) { return (w.detach() * factor).sum(); });
  const auto trained = [&] {
    w.assign(Tensor::full({4, 4}, 0.5)).realize();
    optimizer.reset();
    for (int i = 0; i < 4; ++i) step();
    return look(floats({2})).item<float>();
  };
  const float first = trained();
  for (int i = 0; i < 3; ++i) CHECK(trained() == first);
  CHECK(step.statistics().captures == 1);
  CHECK(step.statistics().calls == 2);
  CHECK(look.statistics().captures == 1);

  // An expression of the new value keeps it.
  w.assign(Tensor::ones({4, 4})).realize();
  const Tensor tripled = w.detach() * 3;
  step();
  CHECK(tripled.sum().item<float>() == 48);
}

TEST_CASE("replays go on where what they assign to is realized in between") {
  Tensor w = Tensor::from(std::vector<float>{1, 2, 3, 4}).reshape({2, 2}).requires_grad_();
  SGD optimizer({&w}, 0.5);
  Jit step([&](const Tensor& x) {
    Tensor loss = (w * x).sum();
    loss.backward();
    optimizer.step({&loss});
    return loss;
  });
  Jit test([&](const Tensor& x) { return (w.detach() * x).sum(); });
  const Tensor one = Tensor::full({2, 2}, 1.0f).contiguous().realize();
  for (int i = 0; i < 5; ++i) {
    CHECK(step(one).item<float>() == 10 - 2 * i);
    CHECK(test(one).item<float>() == 8 - 2 * i);
    w.realize();  // as save() does
  }
  for (const auto& s : {step.statistics(), test.statistics()}) {
    CHECK(s.calls == 2);
    CHECK(s.replays == 3);
  }
}

TEST_CASE("one Jit trains and another evaluates") {
  Tensor w = floats({1}).realize();
  Jit step([&](const Tensor& x) {
    w.assign(w + x);
    w.realize();
  });
  Jit look([&](const Tensor& x) { return w * x; });
  for (int i = 1; i <= 8; ++i) {
    step(floats({1}));
    CHECK(look(floats({2})).item<float>() == 2.0f * static_cast<float>(i + 1));
  }
  CHECK(step.statistics().replays >= 5);
  CHECK(look.statistics().replays >= 5);
}

// --- Misuse --------------------------------------------------------------------------------------

TEST_CASE("arguments of another shape, dtype, device or number are errors") {
  const EnvOverride device("DEVICE", "CPU");
  Jit step([](const std::vector<Tensor>& x) { return x[0] + 1.0f; });
  for (int i = 0; i < 2; ++i) step(std::vector{floats({1, 2})});
  const auto call = [&](const std::vector<Tensor>& x) { return error_of([&] { step(x); }); };
  CHECK(has(call({floats({1, 2, 3})}),
            "argument 0 is f32 (3) CPU and was f32 (2) CPU at the capture: make another Jit"));
  CHECK(has(call({Tensor::from({1, 2})}), "is i32 (2) CPU and was f32"));
  CHECK(has(call({floats({1, 2}).to("CPU:2")}), "CPU:2 and was"));
  CHECK(has(call({floats({1, 2}), floats({1, 2})}), "2 tensors for a capture of 1"));
  CHECK(step(std::vector{floats({4, 5})}).to_vector<float>() == Floats{5, 6});
}

TEST_CASE("one tensor for two arguments is an error") {
  Jit step([](const Tensor& x, const Tensor& y) { return x + y; });
  const Tensor x = floats({1});
  step(x, x);
  CHECK(has(error_of([&] { step(x, x); }), "arguments 0 and 1 are one tensor"));
  step(x, floats({2}));
  step(x, floats({2}));
  CHECK(has(error_of([&] { step(x, x); }), "give x.contiguous() for one"));
}

TEST_CASE("a value that is read on the host in a step is an error") {
  Jit step([](const Tensor& x) { return x * x.sum().item<float>(); });
  step(floats({1}));
  CHECK(has(error_of([&] { step(floats({1})); }), "return the tensor and read it afterwards"));
}

TEST_CASE("host data made into a tensor in a step is an error") {
  Jit step([](const Tensor& x) { return x + floats({1}); });
  step(floats({1}));
  CHECK(has(error_of([&] { step(floats({1})); }), "make the tensor outside"));
}

TEST_CASE("seeding in a step is an error") {
  Jit step([](const Tensor& x) {
    manual_seed(1);
    return x + Tensor::rand({1});
  });
  step(floats({1}));
  CHECK(has(error_of([&] { step(floats({1})); }), "manual_seed() in the step"));
}

TEST_CASE("an argument that the step assigns to is not changed for the caller") {
  Jit step([](Tensor x) {
    x.assign(x + 1.0f);
    x.realize();
    return x * 2.0f;
  });
  for (int i = 0; i < 4; ++i) {
    const Tensor x = floats({static_cast<float>(i)});
    CHECK(step(x).item<float>() == 2.0f * static_cast<float>(i + 1));
    CHECK(x.item<float>() == static_cast<float>(i));
  }
}

TEST_CASE("a tensor that the step assigns to as an argument is an error") {
  Tensor w = floats({1}).realize();
  Jit other([&](const Tensor& x) {
    w.assign(w + x);
    w.realize();
  });
  for (int i = 0; i < 3; ++i) other(floats({1}));
  CHECK(has(error_of([&] { other(w); }), "is a tensor that the step also assigns to"));
}

TEST_CASE("an argument that wants a gradient is an error") {
  Jit step([](const Tensor& x) { return x.square(); });
  const Tensor x = floats({1}).requires_grad_();
  step(x);
  CHECK(has(error_of([&] { step(x); }), "give x.detach()"));
}

TEST_CASE("a tensor from outside that is replaced is an error") {
  Tensor scale = floats({2}).realize();
  Jit step([&](const Tensor& x) { return x * scale; });
  for (int i = 0; i < 3; ++i) step(floats({1}));
  const Tensor kept = scale;  // even where somebody still has the old one
  step(floats({1}));
  scale = floats({3});
  scale.realize();
  const std::string text = error_of([&] { step(floats({1})); });
  CHECK((has(text, "was replaced") || text == "no error"));
  Tensor other = floats({2}).realize();
  Jit step2([&](const Tensor& x) { return x * other; });
  for (int i = 0; i < 3; ++i) step2(floats({1}));
  other = floats({3});
  CHECK(has(error_of([&] { step2(floats({1})); }), "was replaced"));
}

TEST_CASE("a tensor from outside with an assignment that waits is an error") {
  Tensor scale = floats({2}).realize();
  Jit step([&](const Tensor& x) { return x * scale; });
  for (int i = 0; i < 3; ++i) step(floats({1}));
  scale.assign(scale + 1.0f);
  CHECK(has(error_of([&] { step(floats({1})); }), "without realize()"));
  scale.realize();
  CHECK(step(floats({1})).item<float>() == 3.0f);
}

TEST_CASE("a tensor made in a step that stays is an error") {
  Tensor kept;
  Jit step([&](const Tensor& x) {
    kept = x + 1.0f;
    return x * 2.0f;
  });
  step(floats({1}));
  CHECK(has(error_of([&] { step(floats({1})); }), "is still there after it"));
  const Tensor w = floats({2}).requires_grad_();
  Jit no_reset([&](const Tensor& x) {
    Tensor loss = (w * x).sum();
    loss.backward();
    return loss;
  });
  no_reset(floats({1}));
  CHECK(has(error_of([&] { no_reset(floats({1})); }), "zero_grad()"));
}

TEST_CASE("a change of mode is an error") {
  Jit step([](const Tensor& x) { return dropout(x, 0.5, nn::is_training()); });
  for (int i = 0; i < 3; ++i) step(floats({1}));
  const nn::Training training;
  CHECK(has(error_of([&] { step(floats({1})); }), "make one Jit for each"));
}

TEST_CASE("a check finds what a replay cannot see") {
  const EnvOverride check("JIT_CHECK", "1");
  float factor = 1;
  Jit step([&](const Tensor& x) { return x * factor; });
  for (int i = 0; i < 3; ++i) step(floats({1}));
  factor = 2;
  CHECK(has(error_of([&] { step(floats({1})); }), "depends on something besides its arguments"));
}

// --- Life ----------------------------------------------------------------------------------------

TEST_CASE("after an error in the function the next call records again") {
  bool fail = false;
  Jit step([&](const Tensor& x) {
    check(!fail, "no");
    return x + 1.0f;
  });
  step(floats({1}));
  fail = true;
  CHECK(error_of([&] { step(floats({1})); }) == "no");
  fail = false;
  for (int i = 0; i < 3; ++i) CHECK(step(floats({4})).item<float>() == 5.0f);
  CHECK(step.statistics().replays == 2);
}

TEST_CASE("a Jit inside another is part of it") {
  Jit inner([](const Tensor& x) { return x * 2.0f; });
  Jit outer([&](const Tensor& x) { return inner(x) + 1.0f; });
  for (int i = 0; i < 5; ++i)
    CHECK(outer(floats({static_cast<float>(i)})).item<float>() == 2.0f * static_cast<float>(i) + 1);
  CHECK(outer.statistics().replays == 3);
}

TEST_CASE("kernels that a Jit recorded outlive the kernel cache") {
  Jit step([](const Tensor& x) { return (x * 3.0f).sum(); });
  for (int i = 0; i < 2; ++i) step(floats({1, 2}));
  clear_kernel_cache();
  clear_schedule_cache();
  CHECK(step(floats({4, 2})).item<float>() == 18.0f);
}

TEST_CASE("replays leave nothing behind, and a Jit that goes gives everything back") {
  const Tensor a = Tensor::rand({32, 32}).realize();
  const Live before = live();
  {
    Tensor w = Tensor::rand({32, 32}).realize();
    Jit step([&](const Tensor& x) {
      w.assign(w * 0.5f + (x.matmul(w).softmax(1).matmul(x)) * Tensor::rand({32, 32}));
      Tensor sum = w.sum();
      Tensor* both[] = {&w, &sum};
      Tensor::realize(both);
      return sum;
    });
    for (int i = 0; i < 5; ++i) step(a);
    const Live early = live();
    for (int i = 0; i < 50; ++i) step(a);
    const Live late = live();
    CHECK(late.nodes == early.nodes);
    CHECK(late.buffers == early.buffers);
    CHECK(late.bytes == early.bytes);
    CHECK(step.statistics().arena_bytes > 0);
  }
  clear_schedule_cache();
  const Live after = live();
  CHECK(after.buffers == before.buffers);
  CHECK(after.bytes == before.bytes);
}

TEST_CASE("reset makes a Jit record again, with other shapes") {
  Jit step([](const Tensor& x) { return x.sum(); });
  for (int i = 0; i < 3; ++i) step(floats({1, 2}));
  step.reset();
  for (int i = 0; i < 3; ++i) CHECK(step(floats({1, 2, 3})).item<float>() == 6.0f);
  CHECK(step.statistics().captures == 2);
}
