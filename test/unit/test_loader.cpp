#include "tiny/data/loader.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <stdexcept>
#include <thread>

#include "test/error_of.h"
#include "tiny/run/jit.h"

using namespace tiny;

namespace {

using Positions = std::vector<int64_t>;

// Batches that hold their positions, i64.
DataLoader::Batch positions_themselves(const Positions& at) { return {Tensor::from(at)}; }

std::vector<Positions> walked(DataLoader& loader) {
  std::vector<Positions> out;
  for (const DataLoader::Batch& batch : loader) out.push_back(batch[0].to_vector<int64_t>());
  return out;
}

Positions joined(const std::vector<Positions>& batches) {
  Positions out;
  for (const Positions& b : batches) out.insert(out.end(), b.begin(), b.end());
  return out;
}

}  // namespace

TEST_CASE("a loader cuts a data set into batches, the last of which may be dropped") {
  for (const int64_t prefetch : {0, 1, 3}) {
    CAPTURE(prefetch);
    DataLoader all(7, positions_themselves, {.batch_size = 3, .prefetch = prefetch});
    CHECK(all.batches() == 3);
    CHECK(walked(all) == std::vector<Positions>{{0, 1, 2}, {3, 4, 5}, {6}});
    DataLoader full(7, positions_themselves,
                    {.batch_size = 3, .drop_last = true, .prefetch = prefetch});
    CHECK(full.batches() == 2);
    CHECK(walked(full) == std::vector<Positions>{{0, 1, 2}, {3, 4, 5}});
    DataLoader none(0, positions_themselves, {.batch_size = 3, .prefetch = prefetch});
    CHECK(walked(none).empty());
    CHECK(walked(none).empty());
  }
}

TEST_CASE("a loader shuffles by its seed and the number of the epoch") {
  const DataLoaderOptions options{.batch_size = 8, .shuffle = true, .seed = 5};
  DataLoader one(100, positions_themselves, options), same(100, positions_themselves, options);
  const auto first = walked(one), second = walked(one);
  CHECK(first != second);
  CHECK(walked(same) == first);
  CHECK(walked(same) == second);
  for (const auto& epoch : {first, second}) {
    Positions sorted = joined(epoch), wanted(100);
    CHECK(sorted != wanted);
    std::sort(sorted.begin(), sorted.end());
    for (int64_t i = 0; i < 100; ++i) wanted[static_cast<size_t>(i)] = i;
    CHECK(sorted == wanted);
  }
  DataLoader other(100, positions_themselves, {.batch_size = 8, .shuffle = true, .seed = 6});
  CHECK(walked(other) != first);
}

TEST_CASE("a walk goes on where another one was, in the middle of an epoch and after its end") {
  const DataLoaderOptions options{.batch_size = 4, .shuffle = true, .seed = 1};
  DataLoader whole(18, positions_themselves, options), part(18, positions_themselves, options);
  const auto first = walked(whole), second = walked(whole), third = walked(whole);
  part.go_to(1, 3);
  CHECK(walked(part) == std::vector<Positions>(second.begin() + 3, second.end()));
  CHECK(part.epoch() == 2);
  CHECK(part.batch() == 0);
  CHECK(walked(part) == third);
  part.go_to(0, 5);  // all of the first one is done
  CHECK(walked(part) == second);
  part.go_to(0);
  for (const DataLoader::Batch& batch : part) {
    static_cast<void>(batch);
    if (part.batch() == 1) break;
  }
  CHECK(part.epoch() == 0);
  CHECK(walked(part) == second);  // what was left began no new one
  CHECK(has(error_of([&] { part.go_to(0, 6); }), "batch 6 of epoch 0, where each has 5"));
}

TEST_CASE("a loader gives one batch after the other over the ends of epochs") {
  const DataLoaderOptions options{.batch_size = 2, .shuffle = true, .drop_last = true, .seed = 2};
  DataLoader loader(5, positions_themselves, options), walk(5, positions_themselves, options);
  std::vector<Positions> wanted = walked(walk), got;
  for (const Positions& batch : walked(walk)) wanted.push_back(batch);
  for (size_t i = 0; i < wanted.size(); ++i) {
    CHECK(loader.epoch() * 2 + loader.batch() == static_cast<int64_t>(i ? i - 1 : 0));
    got.push_back(loader.next()[0].to_vector<int64_t>());
  }
  CHECK(got == wanted);
  DataLoader few(1, positions_themselves, options);
  CHECK(error_of([&] { few.next(); }) == "DataLoader: 1 samples make no batch of 2");
}

TEST_CASE("batches of tensors are their rows, in their dtypes") {
  const Tensor x = Tensor::arange(0, 10, 1, kF32).reshape({5, 2}) * 0.5;
  const Tensor y = Tensor::from({4, 3, 2, 1, 0}).to(kU8);
  DataLoader loader({x, y}, {.batch_size = 2, .shuffle = true, .seed = 3});
  Positions seen;
  for (const DataLoader::Batch& batch : loader) {
    CHECK(batch[1].dtype() == kU8);
    const auto rows = batch[0].to_vector<float>();
    const auto labels = batch[1].to_vector<uint8_t>();
    for (size_t i = 0; i < labels.size(); ++i) {
      CHECK(rows[2 * i] == 4 - labels[i]);
      CHECK(rows[2 * i + 1] == 4.5f - labels[i]);
      seen.push_back(labels[i]);
    }
  }
  std::sort(seen.begin(), seen.end());
  CHECK(seen == Positions{0, 1, 2, 3, 4});
  CHECK(has(error_of([&] { DataLoader({x, Tensor::ones({4})}); }), "(4) beside one of (5,2)"));
  CHECK(has(error_of([&] { DataLoader(std::vector<Tensor>{}); }), "no tensors"));
}

TEST_CASE("batches are made ahead on a thread, and no more of them than was asked for") {
  std::atomic<int> made = 0;
  const auto caller = std::this_thread::get_id();
  std::atomic<bool> elsewhere = true;
  DataLoader loader(20,
                    [&](const Positions& at) {
                      elsewhere = elsewhere && std::this_thread::get_id() != caller;
                      ++made;
                      return positions_themselves(at);
                    },
                    {.prefetch = 3});
  int used = 0;
  for (const DataLoader::Batch& batch : loader) {
    CHECK(batch[0].numel() == 1);
    ++used;
    // One at hand, three that wait, one that finds no place.
    CHECK(made <= used + 4);
    if (used == 1)
      while (made < 4) std::this_thread::yield();  // ends: they are made while we wait
  }
  CHECK(used == 20);
  CHECK(elsewhere);
}

TEST_CASE("an error of the worker reaches the caller in the place of its batch") {
  for (const int64_t prefetch : {0, 2}) {
    CAPTURE(prefetch);
    bool is_broken = true;
    DataLoader loader(6,
                      [&](const Positions& at) -> DataLoader::Batch {
                        if (is_broken && at[0] == 4) throw Error("disk on fire");
                        return positions_themselves(at);
                      },
                      {.batch_size = 2, .prefetch = prefetch});
    Positions seen;
    const std::string error = error_of([&] {
      for (const DataLoader::Batch& batch : loader)
        seen.push_back(batch[0].to_vector<int64_t>()[0]);
    });
    CHECK(error == "disk on fire");
    CHECK(seen == Positions{0, 2});
    CHECK(loader.batch() == 2);
    is_broken = false;  // the walk before is over, and its thread with it
    CHECK(walked(loader) == std::vector<Positions>{{4, 5}});
  }
  DataLoader empty(2, [](const Positions&) { return DataLoader::Batch{}; });
  CHECK(has(error_of([&] { empty.begin(); }), "no tensors"));
}

TEST_CASE("a loader ends while its thread works, waits or has failed") {
  for (const int64_t taken : {0, 1, 5}) {
    DataLoader loader(1000, positions_themselves, {.prefetch = 2});
    int64_t count = 0;
    auto at = loader.begin();
    while (++count < taken) ++at;
  }
  DataLoader failing(3, [](const Positions&) -> DataLoader::Batch { throw Error("no"); });
  CHECK(error_of([&] { failing.begin(); }) == "no");
}

TEST_CASE("a captured step takes batches that a thread makes meanwhile") {
  const auto sums = [](int64_t prefetch) {
    DataLoader loader(32,
                      [](const Positions& at) -> DataLoader::Batch {
                        return {Tensor::from(at).to(kF32).square().realize()};
                      },
                      {.batch_size = 4, .shuffle = true, .prefetch = prefetch});
    Tensor sum = Tensor::zeros({4}).contiguous().realize();
    Jit step([&](const Tensor& x) { sum.assign(sum * 0.5 + x); });
    for (int epoch = 0; epoch < 3; ++epoch)
      for (const DataLoader::Batch& batch : loader) step(batch[0]);
    CHECK(step.statistics().replays > 10);
    return sum.to_vector<float>();
  };
  CHECK(sums(3) == sums(0));
}

TEST_CASE("loaders that cannot work say why") {
  CHECK(has(error_of([] { DataLoader(-1, positions_themselves); }), "-1 samples"));
  CHECK(has(error_of([] { DataLoader(1, positions_themselves, {.batch_size = 0}); }),
            "batches of 0"));
  CHECK(has(error_of([] { DataLoader(1, positions_themselves, {.prefetch = -1}); }),
            "-1 of them ahead"));
}
