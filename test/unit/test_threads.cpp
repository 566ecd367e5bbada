// Tensors of several threads at once; `make tsan FILTER=threads` looks for races.
#include <doctest/doctest.h>

#include <atomic>
#include <thread>
#include <utility>

#include "runtime/realize/realize.h"
#include "tiny/tiny.h"

using namespace tiny;

namespace {

// Runs job(0) .. job(count-1), each in a thread of its own; gives what they threw.
std::vector<std::string> in_threads(int count, const std::function<void(int)>& job) {
  std::vector<std::string> errors(static_cast<size_t>(count));
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i)
    threads.emplace_back([&, i] {
      try {
        job(i);
      } catch (const std::exception& e) {
        errors[static_cast<size_t>(i)] = e.what();
      }
    });
  for (std::thread& t : threads) t.join();
  std::erase(errors, "");
  return errors;
}

float sum(const Tensor& t) { return t.sum().item<float>(); }

}  // namespace

TEST_CASE("threads build and realize tensors at once, some of them shared") {
  const EnvOverride cpu("DEVICE", "CPU");
  const Tensor shared = Tensor::full({8, 8}, 0.5).contiguous().realize();
  const Tensor lazy = shared + 1;  // computed by whoever comes first
  std::atomic<int> wrong{0};
  const auto errors = in_threads(4, [&](int id) {
    const Tensor mine = shared, other = lazy;
    for (int i = 0; i < 50; ++i) {
      const int n = 1 + i % 3;
      Tensor x = Tensor::full({8, 8}, id + n).contiguous();
      const Tensor y = (x.matmul(mine) + other * n).relu();
      wrong += sum(y) != static_cast<float>(64 * (4 * (id + n)) + 64 * 1.5 * n);
      if (i % 10 == 0) wrong += sum(other) != 96;
      try {
        y.reshape({7});
        ++wrong;
      } catch (const Error&) {
      }
    }
  });
  for (const std::string& e : errors) CHECK(e == "");
  CHECK(wrong == 0);
}

TEST_CASE("threads train networks of their own, plain and with a Jit") {
  const EnvOverride cpu("DEVICE", "CPU");
  std::vector<float> first(4), last(4);
  const auto errors = in_threads(4, [&](int id) {
    Tensor w = Tensor::full({4, 1}, 0.1).contiguous().realize().requires_grad_();
    SGD sgd({&w}, 0.05);
    const auto body = [&](const Tensor& x) {
      Tensor loss = (x.matmul(w) - 1).square().mean();
      loss.backward();
      sgd.step({&loss});
      return loss;
    };
    Jit jit(body);
    for (int i = 0; i < 20; ++i) {
      const Tensor x = Tensor::full({2 + id % 2, 4}, 0.5).contiguous().realize();
      const float loss = (id < 2 ? body(x) : jit(x)).item<float>();
      (i ? last : first)[static_cast<size_t>(id)] = loss;
    }
  });
  for (const std::string& e : errors) CHECK(e == "");
  for (size_t i = 0; i < 4; ++i) {
    CHECK(last[i] < first[i]);
    CHECK(last[i] == last[0]);
  }
}

// Equal weights are one node where threads build them at once, or copies of one tensor.
TEST_CASE("threads that begin with equal weights train apart from each other") {
  const EnvOverride cpu("DEVICE", "CPU");
  using Floats = std::vector<float>;
  const Tensor trained = Tensor::from(Floats(16, 0.1f), {4, 4}).realize();
  for (int round = 0; round < 8; ++round) {
    for (const bool copied : {false, true}) {
      CAPTURE(copied);
      std::vector<Tensor> copies(4);
      for (Tensor& c : copies) c = trained.detach().requires_grad_();
      std::vector<Floats> last(4);
      std::atomic<int> ready{0};
      const auto errors = in_threads(4, [&](int id) {
        Tensor w = std::exchange(copies[static_cast<size_t>(id)], Tensor());
        ++ready;
        while (ready < 4) std::this_thread::yield();
        if (!copied) w = Tensor::full({4, 4}, 0.1).contiguous().realize().requires_grad_();
        Tensor bias = Tensor::full({4}, 0.1).contiguous().realize().requires_grad_();
        SGD sgd({&w, &bias}, 0.05);
        for (int i = 0; i < 5; ++i) {
          const Tensor y = Tensor::full({2, 4}, 0.5).matmul(w.t()) + bias;
          Tensor loss = (y.reshape({8}) - 1).square().mean() + w.reshape({16}).square().mean();
          loss.backward();
          sgd.step({&loss});
        }
        last[static_cast<size_t>(id)] = w.to_vector<float>();
      });
      for (const std::string& e : errors) CHECK(e == "");
      for (const Floats& l : last) CHECK(l == last[0]);
      CHECK(last[0] != Floats(16, 0.1f));
      CHECK(trained.to_vector<float>() == Floats(16, 0.1f));
    }
  }
}

TEST_CASE("nothing of threads that have ended stays") {
  const auto work = [] {
    in_threads(3, [](int id) {
      for (int i = 0; i < 5; ++i) (Tensor::rand({4}) + id).to_vector<float>();
      const Tensor never = Tensor::rand({4}) + id;
    });
  };
  work();
  const Live before = live();
  for (int i = 0; i < 5; ++i) work();
  const Live after = live();
  CHECK(after.nodes == before.nodes);
  CHECK(after.buffers == before.buffers);
}
