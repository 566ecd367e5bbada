// Names of devices for Tensor::shard.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace tiny {

// So many devices of one kind, the given one first: devices_from("CUDA", 3) is CUDA, CUDA:1,
// CUDA:2, devices_from("CPU:2", 2) CPU:2, CPU:3. An empty name stands for the default device.
// Whether the machine has them is seen when they are used. Error for a count below 1.
std::vector<std::string> devices_from(const std::string& first, int64_t count);

}  // namespace tiny
