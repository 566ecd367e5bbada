// onnxruntime-node in a process of its own, for comparisons: extra/onnx_peer.mjs says how to
// install it. Its runs and those of this process can take turns, so that both see the same machine.
#pragma once
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tiny/onnx.h"

namespace tiny {

// The name that onnxruntime's JavaScript has for a dtype; empty for those that it lacks.
inline std::string onnx_peer_type(DType dtype) {
  static const std::map<Scalar, std::string> kNames = {
      {Scalar::F32, "float32"}, {Scalar::F64, "float64"}, {Scalar::I8, "int8"},
      {Scalar::U8, "uint8"},    {Scalar::I16, "int16"},   {Scalar::U16, "uint16"},
      {Scalar::I32, "int32"},   {Scalar::U32, "uint32"},  {Scalar::I64, "int64"},
      {Scalar::U64, "uint64"},  {Scalar::Bool, "bool"},   {Scalar::F16, "float16"}};
  const auto at = kNames.find(dtype.scalar);
  return at == kNames.end() ? "" : at->second;
}

class OnnxPeer {
 public:
  static bool is_installed() {
    return std::filesystem::exists("build/node_modules/onnxruntime-node");
  }

  // Starts it on a model with these inputs. Throws Error where it does not come up.
  OnnxPeer(const std::string& model, int threads, const std::vector<onnx::Port>& ports,
           const std::vector<Tensor>& inputs)
      : folder_(std::filesystem::temp_directory_path() / cat("tiny-onnx-", getpid())) {
    std::filesystem::create_directories(folder_);
    write_inputs(ports, inputs);
    start(model, threads);
    check(line() == "ready", "onnxruntime does not start: node extra/onnx_peer.mjs ", model, ' ',
          threads, ' ', folder_.string());
  }
  ~OnnxPeer() {
    std::fclose(to_);
    std::fclose(from_);
    waitpid(process_, nullptr, 0);
    std::filesystem::remove_all(folder_);
  }
  OnnxPeer(const OnnxPeer&) = delete;
  OnnxPeer& operator=(const OnnxPeer&) = delete;

  // Milliseconds of a run, with a pause before and after it: threads of the one that had its turn
  // may wait for more work on the cores that the other is to have.
  double run() {
    const auto pause = [] { std::this_thread::sleep_for(std::chrono::milliseconds(100)); };
    pause();
    send("run\n");
    const double ms = std::stod(line());
    pause();
    return ms;
  }
  // The outputs of the last run by name; ends it.
  std::map<std::string, Tensor> finish() {
    send("end\n");
    check(line() == "done", "onnxruntime gave no outputs");
    std::ifstream list(folder_ / "outputs.json");
    std::map<std::string, Tensor> out;
    for (const auto& entry : nlohmann::json::parse(list)) {
      const auto file = (folder_ / entry["file"].get<std::string>()).string();
      const std::string bytes = InputFile("onnx", file).read_all();
      out[entry["name"]] =
          Tensor::from_bytes(bytes.data(), dtype_of(entry["type"]), entry["dims"].get<Shape>());
    }
    return out;
  }

 private:
  static DType dtype_of(const std::string& name) {
    for (int s = 0; s <= static_cast<int>(Scalar::F64); ++s)
      if (onnx_peer_type(static_cast<Scalar>(s)) == name) return static_cast<Scalar>(s);
    throw Error(cat("onnxruntime gives a tensor of ", name));
  }

  void write_inputs(const std::vector<onnx::Port>& ports, const std::vector<Tensor>& inputs) {
    auto list = nlohmann::json::array();
    for (size_t i = 0; i < inputs.size(); ++i) {
      const std::string type = onnx_peer_type(inputs[i].dtype()), file = cat("input_", i);
      check(!type.empty(), "onnxruntime takes no tensor of ", inputs[i].dtype(), " here");
      std::string bytes(static_cast<size_t>(inputs[i].numel() * inputs[i].dtype().size()), '\0');
      inputs[i].to_bytes(bytes.data());
      std::ofstream(folder_ / file, std::ios::binary).write(bytes.data(), std::ssize(bytes));
      list.push_back({{"name", ports[i].name},
                      {"type", type},
                      {"dims", to_shape(inputs[i].shape())},
                      {"file", file}});
    }
    std::ofstream(folder_ / "inputs.json") << list;
  }

  void start(const std::string& model, int threads) {
    std::array<int, 2> in{}, out{};
    check(pipe(in.data()) == 0 && pipe(out.data()) == 0, "no pipe to onnxruntime");
    process_ = fork();
    check(process_ >= 0, "no process for onnxruntime");
    if (process_ == 0) {
      dup2(in[0], 0);
      dup2(out[1], 1);
      for (const int fd : {in[0], in[1], out[0], out[1]}) close(fd);
      const std::string count = cat(threads), folder = folder_.string();
      execlp("node", "node", "extra/onnx_peer.mjs", model.c_str(), count.c_str(), folder.c_str(),
             nullptr);
      _exit(127);
    }
    close(in[0]);
    close(out[1]);
    to_ = fdopen(in[1], "w");
    from_ = fdopen(out[0], "r");
  }
  void send(const char* text) {
    std::fputs(text, to_);
    std::fflush(to_);
  }
  std::string line() {
    std::string out;
    for (int c; (c = std::fgetc(from_)) != EOF && c != '\n';) out += static_cast<char>(c);
    return out;
  }

  const std::filesystem::path folder_;
  pid_t process_ = -1;
  FILE* to_ = nullptr;
  FILE* from_ = nullptr;
};

// The largest difference of two results over the largest magnitude of the second; infinite where
// shapes or dtypes differ, or one has a NaN where the other has none.
inline double onnx_difference(const Tensor& x, const Tensor& y) {
  if (x.dtype() != y.dtype() || !same(x.shape(), y.shape())) return INFINITY;
  if (x.numel() == 0) return 0;
  const auto wide = [](const Tensor& t) { return t.to(kF64).to_vector<double>(); };
  const std::vector<double> a = wide(x), b = wide(y);
  double most = 0, size = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    if (std::isnan(a[i]) != std::isnan(b[i])) return INFINITY;
    if (std::isnan(a[i]) || a[i] == b[i]) continue;
    most = std::max(most, std::abs(a[i] - b[i]));
    size = std::max(size, std::abs(b[i]));
  }
  for (const double v : b) size = std::max(size, std::isnan(v) ? 0 : std::abs(v));
  return size > 0 ? most / size : most;
}

}  // namespace tiny
