// Training steps of whole models on random tokens, as ../shared/peers/model_peers.py measures them
// with PyTorch: attention forward and backward, GPT-2 124M (AdamW) and BERT-large (LAMB, dropout
// 0.1), all in bf16 from f32 weights.
//
//   models [attention] [gpt2] [bert]      DEVICE chooses where; all three where none is named
//   models --loss-chunks N gpt2           rows of the loss in N parts; 1 stores all logits
//   models --fp8 gpt2 bert                products by weights in 8-bit floats (Autocast)
//
// Times are the host's from one step to the next, the device idle at both ends; "first" is the
// first call, which schedules and compiles, "second" the call that captures.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "extra/bench/gpt2.h"
#include "tiny/ir/sizes.h"
#include "tiny/tiny.h"

using namespace tiny;

namespace {

double seconds(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// `step` gives one number, which is waited for.
void measure(const std::string& name, const std::function<double()>& step, int rounds,
             double tokens = 0) {
  double value = 0;
  const double first = seconds([&] { value = step(); });
  const double second = seconds([&] { step(); });
  std::vector<double> times;
  for (int i = 0; i < rounds; ++i) times.push_back(seconds([&] { step(); }));
  std::sort(times.begin(), times.end());
  const double median = times[times.size() / 2];
  std::printf("%-44s %9.3f ms, first %6.2f s, second %6.2f s, value %.5g", name.c_str(),
              median * 1e3, first, second, value);
  if (tokens > 0) std::printf(", %.0f tokens/s", tokens / median);
  int64_t peak = 0;
  for (const DeviceMemory& d : memory_report(0).devices) peak = std::max(peak, d.peak_bytes);
  std::printf(", peak %.2f GB\n", static_cast<double>(peak) / 1e9);
  std::fflush(stdout);
}

Tensor tokens(const Shape& shape, int64_t words) {
  return (Tensor::rand(shape) * static_cast<double>(words)).to(kI32).realize();
}

void attention(int64_t batch, int64_t heads, int64_t length, int64_t width, bool causal) {
  const auto input = [&] {
    return Tensor::randn({batch, heads, length, width}).to(kBF16).realize();
  };
  const Tensor q = input(), k = input(), v = input(), seed = input();
  for (const bool backward : {false, true}) {
    Jit step([&](const Tensor& given_q, const Tensor& given_k, const Tensor& given_v) {
      Tensor x = given_q.detach(), y = given_k.detach(), z = given_v.detach();
      if (backward)
        for (Tensor* t : {&x, &y, &z}) t->requires_grad_();
      const Tensor out = scaled_dot_product_attention(x, y, z, {.is_causal = causal});
      if (!backward) return std::vector<Tensor>{out};
      out.backward(seed);
      return std::vector<Tensor>{out, x.grad(), y.grad(), z.grad()};
    });
    const auto run = [&] {
      const std::vector<Tensor> out = step(q, k, v);
      return static_cast<double>(
          out[0].slice({0, 0, 0, 0}, {1, 1, 1, 1}).to(kF32).to_vector<float>()[0]);
    };
    measure(cat("attention ", batch, 'x', heads, 'x', length, 'x', width, causal ? " causal" : "",
                backward ? " with backward" : ""),
            run, 9);
  }
}

// In how many parts of rows the loss is computed; 0: as the library chooses.
int64_t chunk_of(int64_t rows, int64_t parts) { return parts > 0 ? ceil_div(rows, parts) : 0; }

void gpt2(int64_t loss_chunks, DType products) {
  constexpr int64_t kBatch = 16, kContext = 1024;
  bench::Gpt2 net;
  const std::vector<Tensor*> parameters = net.parameters();
  for (Tensor* p : parameters) p->requires_grad_();
  AdamW optimizer(parameters, 3e-4, {.beta2 = 0.95, .weight_decay = 0.1});
  const Tensor x = tokens({kBatch, kContext}, 50257), y = tokens({kBatch, kContext}, 50257);
  Jit step([&](const Tensor& in, const Tensor& next) {
    Tensor loss;
    {
      const Autocast narrow(products);
      loss = net.loss(in, next, chunk_of(kContext, loss_chunks));
    }
    loss.backward();
    optimizer.step({&loss});
    return loss;
  });
  measure(
      "GPT-2 124M, 16 x 1024", [&] { return step(x, y).item<float>(); }, 8, kBatch * kContext);
}

struct BertBlock {
  static constexpr int64_t kWidth = 1024, kHeads = 16;
  nn::Linear q{kWidth, kWidth}, k{kWidth, kWidth}, v{kWidth, kWidth}, d{kWidth, kWidth};
  nn::Linear up{kWidth, 4 * kWidth}, down{4 * kWidth, kWidth};
  nn::LayerNorm n1{kWidth}, n2{kWidth};

  Tensor operator()(const Tensor& x, const Tensor& mask) {
    const int64_t batch = x.size(0), length = x.size(1);
    const auto heads = [&](const Tensor& t) {
      return t.reshape({batch, length, kHeads, kWidth / kHeads}).transpose(1, 2);
    };
    const Tensor a =
        scaled_dot_product_attention(heads(q(x)), heads(k(x)), heads(v(x)), {.mask = mask})
            .transpose(1, 2)
            .reshape({batch, length, kWidth});
    const Tensor y = n1(x + dropout(d(a), 0.1));
    return n2(y + dropout(down(up(y).gelu()), 0.1));
  }
  void add(std::vector<Tensor*>& all) {
    for (nn::Linear* l : {&q, &k, &v, &d, &up, &down})
      all.insert(all.end(), {&l->weight, &l->bias});
    for (nn::LayerNorm* n : {&n1, &n2}) all.insert(all.end(), {&n->weight, &n->bias});
  }
};

void bert(int64_t loss_chunks, DType products) {
  constexpr int64_t kBatch = 32, kContext = 512, kWords = 30522, kWidth = BertBlock::kWidth;
  nn::Embedding words(kWords, kWidth), places(kContext, kWidth), kinds(2, kWidth);
  nn::LayerNorm norm(kWidth), head_norm(kWidth);
  nn::Linear head(kWidth, kWidth);
  Tensor bias = Tensor::zeros({kWords}).contiguous();
  std::deque<BertBlock> blocks(24);
  std::vector<Tensor*> parameters{
      &words.weight,     &places.weight, &kinds.weight,   &norm.weight, &norm.bias,
      &head_norm.weight, &head.weight,   &head_norm.bias, &head.bias,   &bias};
  for (BertBlock& b : blocks) b.add(parameters);
  Tensor::realize(parameters);
  for (Tensor* p : parameters) p->requires_grad_();
  LAMB optimizer(parameters, 1e-3);
  const Tensor x = tokens({kBatch, kContext}, kWords);
  const Tensor kind = (Tensor::arange(kContext) >= kContext / 2)
                          .to(kI32)
                          .expand({kBatch, kContext})
                          .contiguous()
                          .realize();
  const Tensor lengths = Tensor::rand({kBatch, 1}) * (kContext / 4) + kContext * 3 / 4;
  const Tensor seen = (Tensor::arange(kContext).to(kF32).unsqueeze(0) < lengths).realize();
  const Tensor chosen = logical_and(Tensor::rand({kBatch, kContext}) < 0.15, seen);
  const Tensor y = where(chosen, x, -100).realize();
  const Tensor mask = seen.unsqueeze(1).unsqueeze(1).expand({kBatch, 1, kContext, kContext});
  Jit step([&](const Tensor& in, const Tensor& next) {
    Tensor loss;
    {
      const Autocast narrow(products);
      Tensor z = dropout(norm(words(in) + places.weight + kinds(kind)), 0.1);
      for (BertBlock& b : blocks) z = b(z, mask);
      loss =
          linear_cross_entropy(head_norm(head(z).gelu()), words.weight, next,
                               {.bias = bias, .batch_chunk_size = chunk_of(kContext, loss_chunks)});
    }
    loss.backward();
    optimizer.step({&loss});
    return loss;
  });
  measure(
      "BERT-large, 32 x 512", [&] { return step(x, y).item<float>(); }, 5, kBatch * kContext);
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::string> named(argv + 1, argv + argc);
  int64_t loss_chunks = 0;
  if (const auto at = std::ranges::find(named, "--loss-chunks"); at != named.end()) {
    check(at + 1 != named.end(), "--loss-chunks: of how many parts?");
    loss_chunks = std::stoll(at[1]);
    named.erase(at, at + 2);
  }
  const DType products = std::erase(named, "--fp8") ? kF8E4M3 : kBF16;
  const auto wanted = [&](const char* name) {
    return named.empty() || std::find(named.begin(), named.end(), name) != named.end();
  };
  if (wanted("attention"))
    for (const auto& [batch, length, width] :
         {std::tuple{16, 1024, 64}, std::tuple{16, 4096, 64}, std::tuple{4, 4096, 128}})
      for (const bool causal : {false, true}) attention(batch, 16, length, width, causal);
  if (wanted("gpt2")) gpt2(loss_chunks, products);
  if (wanted("bert")) bert(loss_chunks, products);
}
