// Batches of a data set, made ahead by a thread while a step runs.
//
//   DataLoader loader({images, labels}, {.batch_size = 64, .shuffle = true, .seed = 7});
//   for (int epoch = 0; epoch < 3; ++epoch)
//     for (const std::vector<Tensor>& batch : loader) step(batch[0], batch[1]);
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "tiny/tensor/tensor.h"

namespace tiny {

struct DataLoaderOptions {
  int64_t batch_size = 1;
  bool shuffle = false;    // a new order in each epoch, a function of the seed and its number
  bool drop_last = false;  // leaves out a last batch that is not full
  uint64_t seed = 0;
  int64_t prefetch = 2;  // batches that are made ahead; 0: each when it is asked for, by the caller
};

// Not copied or moved. One thread walks over it; it may stop anywhere, and begin again.
class DataLoader {
 public:
  using Batch = std::vector<Tensor>;
  // Makes the batch of the samples at these positions of the data set. It runs on the loader's
  // thread, one call at a time, and shares with others only what may be shared. What it throws
  // reaches the caller in the place of its batch, and ends the epoch.
  using Fetch = std::function<Batch(const std::vector<int64_t>&)>;

  // Of `size` samples. Error for a size, a batch or a prefetch below 0, 1 and 0.
  DataLoader(int64_t size, Fetch fetch, const DataLoaderOptions& options = {});
  // Rows of tensors with the same first axis (Error), which are copied to the host. Batches have
  // their dtypes and go to their devices.
  explicit DataLoader(const std::vector<Tensor>& columns, const DataLoaderOptions& options = {});
  ~DataLoader();
  DataLoader(const DataLoader&) = delete;
  DataLoader& operator=(const DataLoader&) = delete;

  class End {};
  class Iterator {
   public:
    explicit Iterator(DataLoader* loader) : loader_(loader) {}
    const Batch& operator*() const { return loader_->current_; }
    Iterator& operator++() {
      loader_->advance();
      return *this;
    }
    bool operator!=(End) const { return loader_->has_current(); }

   private:
    DataLoader* loader_;
  };
  // The next epoch, 0 at first, from its first batch on. Ends the walk before.
  Iterator begin();
  End end() const { return {}; }

  // The next batch, of the next epoch where this one is over: for a training that counts steps.
  // Error where an epoch has none.
  const Batch& next();

  int64_t batches() const;  // of an epoch
  // begin() goes on there: a training that is resumed.
  void go_to(int64_t epoch, int64_t batch = 0);
  // Of the batch at hand, or that comes next: what go_to() takes.
  int64_t epoch() const { return epoch_; }
  int64_t batch() const { return batch_; }

 private:
  struct Run;  // an epoch at work

  std::vector<int64_t> positions(int64_t epoch) const;
  bool has_current() const { return !current_.empty(); }
  void advance();

  const int64_t size_;
  const Fetch fetch_;
  const DataLoaderOptions options_;
  int64_t epoch_ = 0, batch_ = 0;
  Batch current_;  // empty at the end
  std::unique_ptr<Run> run_;
};

}  // namespace tiny
