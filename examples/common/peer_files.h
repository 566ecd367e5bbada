// What another framework needs to train the same model beside a program: its first weights, its
// batches in their order, and the losses to compare with (extra/bench/*_peer.py).
#pragma once
#include <string>
#include <vector>

#include "tiny/tiny.h"

namespace tiny::examples {

inline const std::vector<OptionText> kPeerOptions{
    {"save-initial", "FILE", "writes the network as it is before the first step"},
    {"dump-batches", "FILE", "writes the batches of all steps to this safetensors file"},
    {"losses", "FILE", "writes the losses of all steps to this file, one a line"},
};

// Files, each empty where it was not asked for.
struct PeerFiles {
  std::string initial, batches, losses;

  template <class Given> void read(const Given& given) {
    initial = given.new_file("save-initial");
    batches = given.new_file("dump-batches");
    losses = given.new_file("losses");
  }
};

// Keeps the batches of a training and writes the files at its end.
class PeerRecord {
 public:
  // `parts`: the names of a batch's tensors.
  PeerRecord(const PeerFiles& files, const std::vector<std::string>& parts)
      : files_(files), parts_(parts) {}

  void keep(const Trainer::Batch& batch) {
    if (!files_.batches.empty()) kept_.push_back(batch);
  }

  void write(const Trainer& trainer) {
    if (!files_.losses.empty()) {
      std::string text;
      for (int64_t i = 0; i < trainer.done(); ++i)
        text += formatted("%.9g\n", trainer.mean_loss(i, i + 1));
      FileAside file("losses", files_.losses);
      file.write(text);
      file.commit();
    }
    if (files_.batches.empty()) return;
    StateDict all;  // "step0.tokens"
    for (size_t step = 0; step < kept_.size(); ++step)
      for (size_t i = 0; i < parts_.size(); ++i)
        all.push_back({cat("step", step, ".", parts_[i]), &kept_[step][i]});
    save(files_.batches, all);
  }

 private:
  const PeerFiles& files_;
  const std::vector<std::string> parts_;
  std::vector<Trainer::Batch> kept_;
};

}  // namespace tiny::examples
